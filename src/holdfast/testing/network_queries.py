"""Queries on the committed rows of a test network, with the interface of `state/store.py`."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.model import Attempt, DeletedJob, DeletedToken, Entry, Job, JoinToken, Keep, Node
from holdfast.orchestrator.queries import Queries
from holdfast.sim.store import SimStore

R = TypeVar("R", Job, Attempt, Node, JoinToken)
T = TypeVar("T")


class VirtualQueries(Queries):
    """Answers in the caller's own thread: nothing in a virtual network takes real time."""

    def __init__(self, store: SimStore) -> None:
        self.store = VirtualRows(store)

    async def ask(self, question: Callable[..., T], *args: Any) -> T:
        return question(*args)

    def close(self) -> None: ...


class VirtualRows:
    def __init__(self, store: SimStore) -> None:
        self._store = store

    def _all(self, kind: type[R]) -> Iterator[R]:
        return (row for row in self._store.rows.values() if isinstance(row, kind))

    # --- jobs ---

    def job(self, id: str) -> Job | None:
        found = self._store.rows.get(("job", id))
        return found if isinstance(found, Job) else None

    def jobs_by_ids(self, ids: Sequence[str]) -> list[Job]:
        return [job for id in ids if (job := self.job(id)) is not None]

    def deleted_jobs(self, ids: Sequence[str]) -> list[DeletedJob]:
        found = (self._store.rows.get(("deleted_job", id)) for id in ids)
        return [row for row in found if isinstance(row, DeletedJob)]

    def deleted_token(self, id: str) -> DeletedToken | None:
        found = self._store.rows.get(("deleted_token", id))
        return found if isinstance(found, DeletedToken) else None

    def jobs(
        self, owner: str | None = None, phase: str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Job]:
        last = None if after is None else self.job(after)
        if after is not None and last is None:
            return []
        wanted = (job for job in self._all(Job) if owner in (None, job.owner) and phase in (None, job.phase.value))
        return _newest(job for job in wanted if last is None or _age(job) < _age(last))[:limit]

    def job_ids_by_prefix(self, prefix: str, limit: int = 10, owner: str | None = None) -> list[str]:
        ids: list[str] = [job.id for job in self._all(Job) if owner in (None, job.owner)]
        return sorted(id for id in ids if id.startswith(prefix))[:limit]

    def jobs_by_name(self, owner: str, name: str, limit: int = 10, *, live: bool = False) -> list[Job]:
        return _newest(job for job in self._named(owner, name) if job.live or not live)[:limit]

    def live_named(self, owner: str, name: str, limit: int = 10) -> list[str]:
        ids: set[str] = {job.spec.array or job.id for job in self._named(owner, name) if job.live}
        return sorted(ids)[:limit]

    def _named(self, owner: str, name: str) -> Iterator[Job]:
        return (job for job in self._all(Job) if job.owner == owner and job.spec.name and job.spec.name == name)

    def jobs_of_array(self, array: str) -> list[Job]:
        return _newest(job for job in self._all(Job) if job.spec.array and job.spec.array == array)[::-1]

    def keep(self, job: str) -> Keep | None:
        found = self._store.rows.get(("keep", job))
        return found if isinstance(found, Keep) else None

    def attempts(self, job: str) -> list[Attempt]:
        return sorted((one for one in self._all(Attempt) if one.job == job), key=lambda one: one.fence)

    def attempts_of_jobs(self, jobs: Sequence[str]) -> list[Attempt]:
        wanted = set(jobs)
        return sorted((one for one in self._all(Attempt) if one.job in wanted), key=lambda one: one.fence)

    def held_by(self, node: str) -> list[Attempt]:
        held = (one for one in self._all(Attempt) if one.node == node and one.live)
        return sorted(held, key=lambda one: one.fence)

    # --- nodes and tokens ---

    def node(self, id: str) -> Node | None:
        found = self._store.rows.get(("node", id))
        return found if isinstance(found, Node) else None

    def nodes(self) -> list[Node]:
        return sorted(self._all(Node), key=lambda node: node.id)

    def node_ids_by_prefix(self, prefix: str, limit: int = 10) -> list[str]:
        ids: list[str] = [node.id for node in self.nodes()]
        return [id for id in ids if id.startswith(prefix)][:limit]

    def token(self, id: str) -> JoinToken | None:
        found = self._store.rows.get(("token", id))
        return found if isinstance(found, JoinToken) else None

    def tokens(self) -> list[JoinToken]:
        return sorted(self._all(JoinToken), key=lambda token: token.id)

    # --- journal ---

    def entries(
        self, after_seq: int = 0, job: str | None = None, node: str | None = None, limit: int = 1000
    ) -> list[Entry]:
        journal = self._store.journal
        found: list[Entry] = []
        for place in range(bisect_right(journal, after_seq, key=lambda one: one[1].seq), len(journal)):
            entry = journal[place][1]
            if job in (None, entry.job) and node in (None, entry.node):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

    def last_seq(self) -> int:
        return self._store.journal[-1][1].seq if self._store.journal else 0

    def first_seq(self) -> int:
        return self._store.journal[0][1].seq if self._store.journal else 0


def _age(job: Job) -> tuple[int, str]:
    return (job.submitted_ms, job.id)


def _newest(jobs: Iterator[Job]) -> list[Job]:
    return sorted(jobs, key=_age, reverse=True)
