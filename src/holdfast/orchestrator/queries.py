"""Answers queries from the store, in threads: only committed rows are ever shown.

Finds a job, node or token by what a person typed: an id, a unique prefix of one, or a name.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from holdfast.model import Attempt, DeletedJob, DeletedToken, Entry, Job, JoinToken, Keep, Node
from holdfast.orchestrator.api_error import ApiError

T = TypeVar("T")

READERS = 8
JOURNAL_SHOWN = 200
"""Entries in the view of one job or node; the rest is in the event stream."""
_FULL_JOB = re.compile(r"job_[0-9a-z]{14}").fullmatch
_FULL_NODE = re.compile(r"node_[0-9a-f]{32}").fullmatch


class RowsPort(Protocol):
    """The queries that a store answers. See `state/store.py` for their meaning."""

    def job(self, id: str) -> Job | None: ...
    def jobs_by_ids(self, ids: Sequence[str]) -> list[Job]: ...
    def deleted_jobs(self, ids: Sequence[str]) -> list[DeletedJob]: ...
    def deleted_token(self, id: str) -> DeletedToken | None: ...
    def jobs(
        self, owner: str | None = None, phase: str | None = None, limit: int = 50, after: str | None = None
    ) -> list[Job]: ...
    def job_ids_by_prefix(self, prefix: str, limit: int = 10, owner: str | None = None) -> list[str]: ...
    def jobs_by_name(self, owner: str, name: str, limit: int = 10, *, live: bool = False) -> list[Job]: ...
    def live_named(self, owner: str, name: str, limit: int = 10) -> list[str]: ...
    def jobs_of_array(self, array: str) -> list[Job]: ...
    def keep(self, job: str) -> Keep | None: ...
    def attempts(self, job: str) -> list[Attempt]: ...
    def attempts_of_jobs(self, jobs: Sequence[str]) -> list[Attempt]: ...
    def node(self, id: str) -> Node | None: ...
    def nodes(self) -> list[Node]: ...
    def node_ids_by_prefix(self, prefix: str, limit: int = 10) -> list[str]: ...
    def token(self, id: str) -> JoinToken | None: ...
    def tokens(self) -> list[JoinToken]: ...
    def entries(
        self, after_seq: int = 0, job: str | None = None, node: str | None = None, limit: int = 1000
    ) -> list[Entry]: ...
    def last_seq(self) -> int: ...
    def first_seq(self) -> int: ...


class Queries:
    def __init__(self, store: RowsPort) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="read")

    async def ask(self, question: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question, *args)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- jobs ---

    async def job(self, named: str, sees: str | None, owner: str, *, live: bool = False) -> Job:
        """`sees`: only this owner's jobs are found; None: everybody's. Another owner's job is reported like one that
        does not exist. `owner`: whose jobs a name refers to. `live`: a name stands for a job that has not ended; if
        several match, the name is ambiguous."""
        return await self.ask(self._job, named, sees, owner, live)

    def _job(self, named: str, sees: str | None, owner: str, live: bool) -> Job:
        store = self.store
        if _FULL_JOB(named):
            job = store.job(named)
            if job is not None and sees in (None, job.owner):
                return job
            for deleted in store.deleted_jobs([named]):
                if sees in (None, deleted.owner):
                    raise ApiError("job_deleted", f"{deleted_text(deleted)} and was deleted")
        elif named.startswith("job_") and len(named) > 4:
            ids = store.job_ids_by_prefix(named, owner=sees)
            if len(ids) == 1 and (job := store.job(ids[0])) is not None:
                return job
            if ids:
                raise _ambiguous("jobs", named, ids)
        if live and (found := self._live_named(named, owner)) is not None:
            return found
        named_so = store.jobs_by_name(owner, named)
        if named_so:
            # A name may be used again and stands for the newest job. Older ones are found by id.
            return named_so[0]
        raise ApiError("not_found", f"there is no job {named[:80]!r}", "`holdfast jobs` lists them.")

    def _live_named(self, name: str, owner: str) -> Job | None:
        """For an array, returns one of its items that has not ended: an ended item would make the whole array look
        ended."""
        ids = self.store.live_named(owner, name)
        if len(ids) > 1:
            hint = "Give the id of the one that is meant; `holdfast jobs` lists them."
            raise _ambiguous("that have not ended", name, ids, hint)
        live = self.store.jobs_by_name(owner, name, 1, live=True) if ids else []
        return live[0] if live else None

    async def job_story(self, job: Job) -> tuple[list[Attempt], list[Entry]]:
        return await self.ask(lambda: (self.store.attempts(job.id), self.store.entries(0, job.id, None, JOURNAL_SHOWN)))

    async def received(self, job: str) -> bool:
        """Whether the owner has received the files of an ended job."""
        keep = await self.ask(self.store.keep, job)
        return keep is not None and keep.received

    async def jobs(self, owner: str | None, phase: str | None, limit: int, after: str | None) -> list[Job]:
        return await self.ask(self.store.jobs, owner, phase, limit, after)

    async def last_attempts(self, jobs: Iterable[Job]) -> dict[str, Attempt]:
        """By job: the attempt that was accepted, or else the newest. Of the jobs that have one."""
        wanted = {job.id: job for job in jobs}
        made = await self.ask(self.store.attempts_of_jobs, list(wanted))
        newest = {attempt.job: attempt for attempt in made}
        accepted = {attempt.job: attempt for attempt in made if attempt.id == wanted[attempt.job].accepted}
        return {**newest, **accepted}

    async def known_jobs(self, ids: Iterable[str]) -> dict[str, Job | DeletedJob]:
        """Those of the ids that exist or existed."""
        return await self.ask(self._known_jobs, list(ids))

    def _known_jobs(self, ids: Sequence[str]) -> dict[str, Job | DeletedJob]:
        found: dict[str, Job | DeletedJob] = {job.id: job for job in self.store.jobs_by_ids(ids)}
        gone = self.store.deleted_jobs([id for id in ids if id not in found])
        return {**found, **{job.id: job for job in gone}}

    # --- nodes ---

    async def node(self, named: str, operator: str | None = None) -> Node:
        """`operator`: only this operator's nodes are found; None: everybody's. Another operator's node is reported
        like one that does not exist."""
        if operator is None:
            return await self.ask(self._node, named)
        return await self.ask(self._node_of, named, operator)

    def _node_of(self, named: str, operator: str) -> Node:
        ours = [node for node in self.store.nodes() if node.operator == operator]
        fits = [node for node in ours if named in (node.id, node.name)]
        if not fits and named.startswith("node_") and len(named) > 5:
            fits = [node for node in ours if node.id.startswith(named)]
        return _one_node(named, fits)

    def _node(self, named: str) -> Node:
        store = self.store
        if _FULL_NODE(named):
            node = store.node(named)
            if node is not None:
                return node
        elif named.startswith("node_") and len(named) > 5:
            ids = store.node_ids_by_prefix(named)
            if named in ids:
                # In a virtual network ids are short, and one may begin with another.
                ids = [named]
            if len(ids) == 1 and (node := store.node(ids[0])) is not None:
                return node
            if ids:
                raise _ambiguous("nodes", named, ids)
        return _one_node(named, [node for node in store.nodes() if node.name and node.name == named])

    async def nodes(self) -> list[Node]:
        return await self.ask(self.store.nodes)

    async def token_deleted(self, id: str) -> bool:
        return await self.ask(self.store.deleted_token, id) is not None

    async def token(self, id: str) -> JoinToken | None:
        return await self.ask(self.store.token, id)

    async def tokens(self) -> list[JoinToken]:
        """All tokens, newest first."""
        return sorted(await self.ask(self.store.tokens), key=lambda token: (-token.made_ms, token.id))

    async def token_named(self, named: str, made_by: str | None = None) -> JoinToken | None:
        """The token with this id, or with this unique prefix of an id. `made_by`: only this caller's tokens are found;
        None: everybody's."""
        known = await self.token(named)
        if known is not None and made_by in (None, known.made_by):
            return known
        if len(named) <= len("tok_"):
            return None
        ours = (token for token in await self.tokens() if made_by in (None, token.made_by))
        fits = [token for token in ours if token.id.startswith(named)]
        if len(fits) > 1:
            raise _ambiguous("tokens", named, [token.id for token in fits])
        return fits[0] if fits else None

    # --- journal ---

    async def entries(self, after: int, job: str | None, node: str | None, limit: int) -> list[Entry]:
        return await self.ask(self.store.entries, after, job, node, limit)

    async def oldest_cursor(self) -> int:
        """The cursor before the oldest entry that is kept: none before it can be resumed from."""
        return max(0, await self.ask(self.store.first_seq) - 1)

    async def recent_of_node(self, node: str) -> list[Entry]:
        return await self.ask(self._recent_of_node, node)

    def _recent_of_node(self, node: str) -> list[Entry]:
        """The end of a node's journal, found by reading back in windows that double."""
        last = self.store.last_seq()
        window = 1_000
        while True:
            found = self.store.entries(max(0, last - window), None, node, window)
            if len(found) >= JOURNAL_SHOWN or window >= last:
                return found[-JOURNAL_SHOWN:]
            window *= 4


def _one_node(named: str, fits: list[Node]) -> Node:
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise _ambiguous("nodes", named, [node.id for node in fits])
    raise ApiError("not_found", f"there is no node {named[:80]!r}", "`holdfast nodes` lists them.")


def deleted_text(job: DeletedJob) -> str:
    return f"{job.id} ended long ago ({job.verdict.value if job.verdict else 'unknown'})"


def _ambiguous(kind: str, named: str, ids: list[str], hint: str = "Give more letters of the id.") -> ApiError:
    shown = ", ".join(ids[:5]) + (" …" if len(ids) > 5 else "")
    return ApiError("ambiguous", f"{named[:80]!r} fits several {kind}: {shown}", hint)
