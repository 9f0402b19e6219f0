"""The leader's shell: events in, one writer thread, and after each commit the sends, answers and wake-ups.

It decides nothing: `leader.core.LeaderCore` and the kernel do. Its duties:

    1. every event is offered with the clock readings of that moment;
    2. one batch at a time goes to the store, under this leader's epoch, also when it has no rows;
    3. nothing leaves before its batch is durable: answers, sends, bells;
    4. a failed commit, or a kernel that breaks on more than a question, ends leadership: waiting callers are told to
       try again, all sessions are closed, and the state is rebuilt from the store under a higher epoch, as often as
       needed.

Everything but the store's own calls runs in the event loop's thread.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from holdfast.boottime import boottime_ms
from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Answer, Done, Rejected, Send, Taken
from holdfast.kernel.events import AccessMade, AnyEvent, MoveAsked, Submitted, Tick, TokenMade
from holdfast.kernel.kernel import Kernel
from holdfast.model import Entry, Job, JobId, Meta, NodeId, Settings, WallTimes
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.leader.clock import wall_ms
from holdfast.orchestrator.leader.core import QUESTIONS, TIGHT_JOBS_MAX, LeaderCore, LeadState, Moment, Offered
from holdfast.orchestrator.leader.record import Recorder, rebuilt
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.wakeups import JOURNAL, NEWS, Wakeups
from holdfast.state import EndedRowChanged, LeadershipLost, Snapshot, Store, StoreError

log = logging.getLogger("holdfast.loop")
_encode = msgspec.json.Encoder().encode

ANSWER_S_MAX = 30.0
"""Limit for an answer, in seconds. A store that hangs must not hang its callers: they get an error and may repeat any
call."""
YIELD_EVENTS = 256
"""After this many events, a large request lets others have a turn. A commit may begin at each turn, and the rest of the
request waits behind it: an ordinary batch should be one commit. This many events take about ten milliseconds."""


NEW = (Submitted, TokenMade, AccessMade, MoveAsked)
"""Events that make something new, and that are refused first when the store has little space. What runs can end without
them, and nothing is freed by them. Machines that are not known yet are refused as well (`need_space`)."""


class LeaderEffects(Protocol):
    """The effects that the loop has outside once a batch is durable."""

    def rebuilt(self, snapshot: Snapshot) -> None: ...

    def carry_out(self, send: Send) -> None: ...

    def committed(self, batch: CommitBatch) -> None: ...

    def leadership_ended(self, why: str) -> None: ...


class _Broken(Exception):
    """The kernel could not apply an event; its state can no longer be trusted."""


class _Waiting:
    """The answers that one caller waits for."""

    def __init__(self, count: int) -> None:
        self.answers: list[Answer | None] = [None] * count
        self.jobs: dict[JobId, Job] = {}
        """Jobs as they were committed with the answer, so that they need not be read again."""
        self.missing = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Leader:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        outside: LeaderEffects,
        wakeups: Wakeups,
        metrics: Metrics,
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.wakeups = wakeups
        self.metrics = metrics
        self.core = LeaderCore(settings)
        self.trouble = "starting"
        """Why no request can be served now; empty while leading."""
        self.question_s: dict[type, float] = {}
        """How long the last question of each kind kept the loop busy, in seconds."""
        self.wall_times = WallTimes()
        """Shows served time as dates; what is durable of it."""
        self._served_ms = 0
        """The last served time that this process read or loaded."""
        self.crowded: Callable[[], bool] = lambda: False
        """Whether nodes wait for their handshake; set by the service for nodes."""
        self.disk_low: Callable[[int], str] = lambda growth: ""
        """Why so many new bytes are not taken for lack of space; empty if there is enough. Set by the process."""
        self._growth = 0
        """Bytes of what is new in requests that are not answered yet."""
        self.disk_short: Callable[[], bool] = lambda: False
        """Whether the store has space for small commits only; set by the process."""
        self.free_disk: Callable[[], object] = lambda: None
        """Frees space for the store, if it has none; set by the process."""
        self._outside = outside
        self._holder = f"{socket.gethostname()} pid {os.getpid()}"
        self._recorder = recorder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._gathered = asyncio.Event()
        self._roomy = asyncio.Event()
        self.led = asyncio.Event()
        """Set once this orchestrator has led for the first time."""
        self._broken: BaseException | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turns: dict[object, asyncio.Event] = {}
        self._quiet: list[tuple[Callable[[Kernel], Any], asyncio.Future[Any]]] = []

    @property
    def epoch(self) -> int:
        return self.core.epoch

    def moment(self) -> Moment:
        """What the core needs to know about this machine now."""
        return Moment(boottime_ms(), wall_ms(), self.crowded())

    def served_ms(self) -> int:
        """Served time: lifetimes and retention are counted on it. It stands still while this process does not lead."""
        if self.core.leads:
            self._served_ms = self.core.now(self.moment())
        return self._served_ms

    def begin(self, meta: Meta | None, wall_times: WallTimes | None) -> None:
        """What the store holds of the time, before this process has led."""
        self._served_ms = meta.now_ms if meta is not None else 0
        self.wall_times = wall_times or self.wall_times

    # --- for requests and sessions ---

    def tell(self, event: AnyEvent) -> None:
        """Apply an event without waiting for its answer. Raises `Unavailable` while this orchestrator does not lead."""
        self._offer(event, None)

    async def ask(self, event: AnyEvent) -> Answer:
        """Apply an event and return its answer once everything before it is durable."""
        return (await self.ask_all([event]))[0][0]

    async def ask_all(self, events: Sequence[AnyEvent]) -> tuple[list[Answer], dict[JobId, Job]]:
        """Apply several events at once. After the commit: their answers, in order, and the jobs newly accepted."""
        if self.core.tight and len(events) > TIGHT_JOBS_MAX:
            return await self._ask_in_parts(events)
        self._refuse_overload()
        growth = sum(len(_encode(event)) for event in events if isinstance(event, NEW))
        if growth:
            self.need_space(growth)
        self._growth += growth
        self._tickets += 1
        number = self._tickets
        waiting = self._waiting[number] = _Waiting(len(events))
        try:
            for index, event in enumerate(events):
                self._offer(event, (number, index))
                if index % YIELD_EVENTS == YIELD_EVENTS - 1:
                    await asyncio.sleep(0)
                if waiting.done.done():
                    break
            async with asyncio.timeout(ANSWER_S_MAX):
                await waiting.done
        except TimeoutError:
            raise Unavailable(
                "store_unavailable", "the store did not confirm in time; asking again is safe", 5
            ) from None
        finally:
            self._growth -= growth
            self._waiting.pop(number, None)
        return [answer or Done() for answer in waiting.answers], waiting.jobs

    async def _ask_in_parts(self, events: Sequence[AnyEvent]) -> tuple[list[Answer], dict[JobId, Job]]:
        """In small commits, because a large one has no space."""
        answers: list[Answer] = []
        jobs: dict[JobId, Job] = {}
        for at in range(0, len(events), TIGHT_JOBS_MAX):
            more, new = await self.ask_all(events[at : at + TIGHT_JOBS_MAX])
            answers += more
            jobs |= new
        return answers, jobs

    def need_space(self, growth: int = 0) -> None:
        """For everything that makes something new, of this many bytes. Raises `Unavailable` if the store would have
        little space left, with what others are adding at the same time."""
        if why := self.disk_low(self._growth + growth):
            raise Unavailable("store_unavailable", why, 5)

    async def room(self) -> None:
        """Wait until a session may add more events. This slows down a node that sends faster than the store writes."""
        if not self.core.has_room:
            self._roomy.clear()
            await self._roomy.wait()

    @contextlib.asynccontextmanager
    async def turn(self, jobs: Set[JobId]) -> AsyncIterator[None]:
        """Hold the turn for these jobs: no other request that takes a turn submits any of them meanwhile."""
        ticket, given = object(), asyncio.Event()
        self._turns[ticket] = given
        if self.core.submissions.enter(ticket, jobs):
            given.set()
        try:
            await given.wait()
            yield
        finally:
            del self._turns[ticket]
            for waiting in self.core.submissions.leave(ticket):
                self._turns[waiting].set()

    async def at_quiet_moment(self, look: Callable[[Kernel], Any], timeout_s: float = 5.0) -> Any:
        """Run `look` in place of a commit, when every decision is durable and nothing is being written.

        `look` gets the kernel and runs in the loop's thread; if it returns an awaitable, commits wait for it.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._quiet.append((look, future))
        self._gathered.set()
        async with asyncio.timeout(timeout_s):
            return await future

    async def leave_note(self, subject: str, text: str, epoch: int) -> None:
        """Write a note for the next leader, between two commits. For things that no decision depends on."""
        await self._in_writer(self.store.write_note, subject, text, epoch)

    async def forget_entries(self, to_seq: int, epoch: int) -> None:
        """Delete the journal up to an entry, between two commits."""
        await self._in_writer(self.store.forget_entries, to_seq, epoch)

    async def shrink_store(self) -> int:
        """Give space inside the store back to its disk, between two commits. Returns how many bytes that were."""
        return await self._in_writer(self.store.shrink)

    def now_ms(self) -> int:
        """Kernel time; 0 while this orchestrator does not lead."""
        return self.core.now(self.moment()) if self.core.leads else 0

    def knows_node(self, node: NodeId) -> bool:
        kernel = self.core.kernel
        return kernel is not None and kernel.knows_node(node)

    def _refuse_overload(self) -> None:
        match self.core.refusal():
            case "":
                return
            case "busy":
                self.metrics.refused.labels("busy").inc()
                raise Unavailable("busy", f"{self.core.behind_commit} requests are already waiting for the store")
            case _:
                raise self._away()

    def _away(self) -> "Unavailable":
        return Unavailable("store_unavailable", f"the orchestrator cannot decide anything now: {self.trouble}")

    def _offer(self, event: AnyEvent, ticket: tuple[int, int] | None) -> None:
        if not self.core.leads:
            raise self._away()
        began = time.perf_counter()
        offered = self.core.offer(event, self.moment(), ticket)
        if isinstance(event, QUESTIONS):
            self.question_s[type(event)] = time.perf_counter() - began
        self._offered(event, offered, ticket)

    def _offered(self, event: AnyEvent, offered: Offered, ticket: tuple[int, int] | None) -> None:
        if offered.late_ms:
            self.metrics.late_ms.inc(offered.late_ms)
            log.warning("the loop was late by %d ms; all deadlines move", offered.late_ms)
        self._gathered.set()
        if self.core.state is LeadState.BROKEN:
            cause = offered.failed
            log.error("the kernel broke on %s", type(event).__name__, exc_info=cause)
            self._broken = _Broken(f"the kernel broke on {type(event).__name__}: {type(cause).__name__}")
            raise Unavailable("internal", "the orchestrator failed on this and rebuilds its state") from cause
        if offered.failed is not None:
            # A question that changed nothing: the kernel can still be trusted, and only the caller gets the error.
            log.error("the kernel has no answer to %s", type(event).__name__, exc_info=offered.failed)
            if ticket is not None:
                self._answered(
                    ticket, Rejected("internal", "the orchestrator failed on this question; its log says more")
                )
        self.metrics.applied(event)

    # --- leading ---

    async def run(self) -> None:
        """Lead until cancelled. Whatever ends leadership, rebuild and lead again, unless another orchestrator leads
        now."""
        while True:
            try:
                await self._rebuild()
                await self._commit_batches()
            except LeadershipLost as lost:
                # Taking the lead back would only make two orchestrators depose each other in turn: the newer one leads.
                self._drop(lost)
                raise
            except Exception as cause:
                self.metrics.commit_failures.inc()
                log.error("leadership ended: %s", getattr(cause, "says", None) or cause)
                if isinstance(cause, EndedRowChanged):
                    self.core.refused(cause.rows)
                self._drop(cause)
                self.core.tight = self.disk_short()
                self.free_disk()
                with contextlib.suppress(StoreError):
                    await self._in_writer(self.store.checkpoint)
            finally:
                if self._timer is not None:
                    self._timer.cancel()
            await asyncio.sleep(self.core.retry_ms() / 1000)

    async def stop(self) -> None:
        """After `run` was cancelled: let the commit in flight end, then refuse all callers that still wait."""
        await asyncio.get_running_loop().run_in_executor(None, self._writer.shutdown)
        self._drop(Unavailable("stopping", "the orchestrator is being stopped"))

    async def _rebuild(self) -> None:
        store = self.store
        epoch = await self._in_writer(store.take_lead, self._holder)
        failpoint("rebuild.lead_taken")
        snapshot = await self._in_writer(store.load_live)
        failpoint("rebuild.loaded")
        kernel = rebuilt(self.settings, snapshot, self._recorder)
        self._broken = None
        last_ms = snapshot.meta.now_ms if snapshot.meta else 0
        self.begin(snapshot.meta, next(iter(snapshot.of(WallTimes)), None))
        self.core.take(epoch, kernel, last_ms, secrets.randbits(63), self.moment())
        self._outside.rebuilt(snapshot)
        batch = self.core.next_batch(self.moment())
        assert batch is not None
        await self._commit(batch)
        failpoint("rebuild.committed")
        self.metrics.rebuilt(snapshot.jobs, snapshot.paces)
        self.metrics.rebuilds.inc()
        self.metrics.leading.set(1)
        self.metrics.epoch.set(self.epoch)
        self.trouble = ""
        self.led.set()
        self._pulse()
        log.info(
            "leading with epoch %d: %d jobs, %d attempts, %d nodes",
            self.epoch, len(snapshot.jobs), len(snapshot.attempts), len(snapshot.nodes),
        )  # fmt: skip

    async def _commit_batches(self) -> None:
        while True:
            await self._gathered.wait()
            self._gathered.clear()
            while (batch := self.core.next_batch(self.moment())) is not None:
                self._roomy.set()
                await self._commit(batch)
            if self._broken is not None:
                raise self._broken
            self._roomy.set()
            self._schedule_pulse()
            if self._quiet:
                await self._be_quiet()

    async def _commit(self, batch: CommitBatch) -> None:
        failpoint("commit.before")
        self.metrics.gathering.set(batch.events)
        with self.metrics.commit_seconds.time():
            await self._in_writer(self._write, batch, self.epoch)
        if self.core.tight:
            await self._stay_small()
        self._publish(self.core.committed(batch, self.moment()))

    async def _stay_small(self) -> None:
        """While space is short, what was written is moved out of the write-ahead log at once."""
        with contextlib.suppress(StoreError):
            await self._in_writer(self.store.checkpoint)
        self.core.tight = self.disk_short()

    def _write(self, batch: CommitBatch, epoch: int) -> None:
        self.store.commit(list(batch.rows.values()), epoch)
        failpoint("commit.written")

    def _publish(self, batch: CommitBatch) -> None:
        """The batch is durable: send its messages and answers."""
        self.metrics.committed(batch)
        walls = batch.rows.get(("wall", 0))
        if isinstance(walls, WallTimes):
            self.wall_times = walls
        self._outside.committed(batch)
        failpoint("publish.before_answers")
        for ticket, answer in batch.answers:
            assert isinstance(ticket, tuple)
            row = batch.rows.get(("job", answer.job)) if isinstance(answer, Taken) else None
            self._answered(ticket, answer, row if isinstance(row, Job) else None)
        failpoint("publish.before_sends")
        for send in batch.sends:
            try:
                self._outside.carry_out(send)
            except Exception:
                # One send that fails must not undo a committed batch; its message is derived again.
                log.exception("%s could not be carried out", type(send).__name__)
            failpoint("publish.between_sends")
        entries = [row for row in batch.rows.values() if isinstance(row, Entry)]
        if entries:
            self.wakeups.wake(JOURNAL)
        if any(entry.kind != "orchestrator.late" for entry in entries):
            self.wakeups.wake(NEWS)
        for topic in {entry.job for entry in entries if entry.job}:
            self.wakeups.wake(topic)

    def _answered(self, ticket: tuple[int, int], answer: Answer | None, job: Job | None = None) -> None:
        waiting = self._waiting.get(ticket[0])
        if waiting is None:
            return
        waiting.answers[ticket[1]] = answer
        if job is not None:
            waiting.jobs[job.id] = job
        waiting.missing -= 1
        if waiting.missing == 0 and not waiting.done.done():
            waiting.done.set_result(None)

    def _drop(self, cause: BaseException) -> None:
        """Leadership is over: forget the kernel and everything it decided that did not become durable."""
        self.core.drop()
        self._roomy.set()
        self.trouble = getattr(cause, "says", None) or str(cause) or type(cause).__name__
        self.metrics.leading.set(0)
        code = cause.code if isinstance(cause, Unavailable) else "store_unavailable"
        for waiting in self._waiting.values():
            if not waiting.done.done():
                waiting.done.set_exception(Unavailable(code, f"the orchestrator lost its store: {self.trouble}"))
        for _, future in self._quiet:
            if not future.done():
                future.set_exception(Unavailable(code, self.trouble))
        self._quiet.clear()
        self._outside.leadership_ended(self.trouble)

    async def _in_writer(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *args)

    async def _be_quiet(self) -> None:
        looks, self._quiet = self._quiet, []
        kernel = self.core.kernel
        assert kernel is not None
        for look, future in looks:
            try:
                outcome = look(kernel)
                if asyncio.iscoroutine(outcome):
                    outcome = await outcome
                if not future.done():
                    future.set_result(outcome)
            except Exception as cause:
                if not future.done():
                    future.set_exception(cause)

    # --- time ---

    def _pulse(self) -> None:
        """Keep the promise to look at the clock."""
        offered = self.core.pulse(self.moment())
        if offered is not None:
            with contextlib.suppress(Unavailable):
                self._offered(Tick(), offered, None)
        self.core.pulsed(self.moment())
        self._schedule_pulse()

    def _schedule_pulse(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = self.core.next_pulse_ms(self.moment())
        if wait_ms is not None:
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._pulse)
