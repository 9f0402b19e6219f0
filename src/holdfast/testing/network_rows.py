"""What is committed in a network for tests, found by what people call it: an id, the beginning of one, or a name."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeVar

from holdfast.model import Attempt, Entry, Job, JoinToken, Keep, Node
from holdfast.orchestrator.asked import BadRequest
from holdfast.sim.store import Store

R = TypeVar("R", Job, Attempt, Node, JoinToken)


class NotThere(Exception):
    def __init__(self, says: str, hint: str = "") -> None:
        super().__init__(says)
        self.code, self.says, self.hint = "not_found", says, hint


class Rows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def _all(self, kind: type[R]) -> Iterator[R]:
        return (row for row in self._store.rows.values() if isinstance(row, kind))

    def job(self, named: str, *, live: bool = False) -> Job:
        found = self._store.rows.get(("job", named))
        if isinstance(found, Job):
            return found
        if named.startswith("job_") and len(named) > 4:
            fits = [job for job in self._all(Job) if job.id.startswith(named)]
            if len(fits) > 1:
                raise _ambiguous("jobs", named)
            if fits:
                return fits[0]
        named_so = [job for job in self._all(Job) if job.spec.name and job.spec.name == named]
        if not named_so:
            raise NotThere(f"there is no job {named[:80]!r}", "`holdfast jobs` lists them.")
        living = {job.spec.array or job.id: job for job in named_so if job.live} if live else {}
        if len(living) > 1:
            raise _ambiguous("that have not ended", named)
        if living:
            return next(iter(living.values()))
        # A name may be used again; the newest is meant.
        return max(named_so, key=_age)

    def jobs(self) -> list[Job]:
        """Newest first."""
        return sorted(self._all(Job), key=_age, reverse=True)

    def of_array(self, array: str) -> list[Job]:
        """Oldest first."""
        found = sorted((job for job in self._all(Job) if job.spec.array == array), key=_age)
        if not found:
            raise NotThere(f"there is no array {array[:80]!r}")
        return found

    def known(self, job: str) -> Job | None:
        found = self._store.rows.get(("job", job))
        return found if isinstance(found, Job) else None

    def attempts(self, job: str) -> list[Attempt]:
        return sorted((one for one in self._all(Attempt) if one.job == job), key=lambda one: one.fence)

    def held_by(self, node: str) -> list[Attempt]:
        held = (one for one in self._all(Attempt) if one.node == node and one.live)
        return sorted(held, key=lambda one: one.fence)

    def received(self, job: str) -> bool:
        row = self._store.rows.get(("keep", job))
        return isinstance(row, Keep) and row.received

    def node(self, named: str) -> Node:
        fits = [node for node in self._all(Node) if named in (node.id, node.name)]
        fits = fits or [node for node in self._all(Node) if len(named) > 5 and node.id.startswith(named)]
        if len(fits) > 1:
            raise _ambiguous("nodes", named)
        if not fits:
            raise NotThere(f"there is no node {named[:80]!r}", "`holdfast nodes` lists them.")
        return fits[0]

    def nodes(self) -> list[Node]:
        return sorted(self._all(Node), key=lambda node: node.id)

    def tokens(self) -> list[JoinToken]:
        return sorted(self._all(JoinToken), key=lambda token: (-token.made_ms, token.id))

    def token(self, id: str) -> JoinToken | None:
        return next((token for token in self._all(JoinToken) if token.id == id), None)

    def token_named(self, named: str) -> JoinToken | None:
        if (known := self.token(named)) is not None or len(named) <= len("tok_"):
            return known
        fits = [token for token in self.tokens() if token.id.startswith(named)]
        if len(fits) > 1:
            raise _ambiguous("tokens", named)
        return fits[0] if fits else None

    def entries(self, after: int = 0, job: str | None = None, node: str | None = None) -> list[Entry]:
        journal = self._store.journal
        first = bisect_right(journal, after, key=lambda one: one[1].seq)
        found = (journal[place][1] for place in range(first, len(journal)))
        return [entry for entry in found if job in (None, entry.job) and node in (None, entry.node)]


def _age(job: Job) -> tuple[int, str]:
    return (job.submitted_ms, job.id)


def _ambiguous(kind: str, named: str) -> BadRequest:
    return BadRequest(f"{named[:80]!r} fits several {kind}", "Give more letters of the id.", "ambiguous")
