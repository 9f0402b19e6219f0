"""Accounts for each job's time in a planned world. It only observes; it never acts and decides nothing.

Every millisecond of a job between submission and end is assigned to one cause. A body that recomputes what had been
computed before does repeated work; work beyond the furthest point ever reached is useful, and adds up to the job's
length. Without a body, the rows show what the orchestrator is doing, and the world knows the truth: the time during
which a dead machine still counts as alive is detection.
"""

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.kernel.decision import Row
from holdfast.model import Attempt, AttemptId, AttemptPhase, Job, JobId, JobPhase, Node, NodeId, NodeState, Verdict
from holdfast.sim.planning import Cause, PlannedOutcome
from holdfast.sim.shim import SimShim
from holdfast.sim.watch import Rule

if TYPE_CHECKING:
    from holdfast.sim.planning_world import PlannedNetwork

_BELIEVED = (NodeState.READY, NodeState.PROBATION)


class Effort(msgspec.Struct):
    """One running body."""

    shim: SimShim
    from_ms: int
    """The progress in the checkpoint that it started from."""
    saving: bool = False

    @property
    def reached_ms(self) -> int:
        return self.from_ms + (self.shim.body.computed_ms if self.shim.body is not None else 0)


class Account(msgspec.Struct):
    """The time of one job so far."""

    submitted: int
    since: int
    cause: Cause = Cause.WAITING
    leader: Effort | None = None
    """The running body with the most progress; None if none runs."""
    seen_ms: int = 0
    """The progress of that body at the last update."""
    furthest_ms: int = 0
    first_ms: int | None = None
    """When it was first placed on a node."""
    ended: int | None = None
    verdict: Verdict | None = None
    code: str = ""
    spent: Counter[Cause] = msgspec.field(default_factory=Counter)
    efforts: dict[AttemptId, Effort] = {}
    attempts: dict[AttemptId, Attempt] = {}
    """Attempts that can still win."""


class Ledger(Rule):
    def __init__(self, scene: "PlannedNetwork") -> None:
        self.network = scene
        self.accounts: dict[JobId, Account] = {}
        self.falls = self.takeovers = 0
        self.live = 0
        """Jobs that have not ended."""
        self.states: dict[NodeId, NodeState] = {}
        """The recorded state of every machine."""
        self._dead: set[AttemptId] = set()
        """Attempts whose machine went down since they were placed on it."""
        self._held: dict[AttemptId, tuple[NodeId, JobId, int]] = {}
        """Since when each attempt occupies its machine."""
        self._node_ms = 0

    def open(self, job: JobId, at: int) -> None:
        self.accounts[job] = Account(at, at)
        self.live += 1

    # --- events ---

    def started(self, shim: SimShim, from_ms: int) -> None:
        account = self.accounts[shim.job]
        account.efforts[shim.attempt] = Effort(shim, from_ms)
        self._look(account)

    def ended(self, shim: SimShim) -> None:
        account = self.accounts[shim.job]
        self._add_up(account)
        account.efforts.pop(shim.attempt, None)
        self._look(account)

    def saving(self, shim: SimShim, now_saving: bool) -> None:
        account = self.accounts[shim.job]
        self._add_up(account)
        if shim.attempt in account.efforts:
            account.efforts[shim.attempt].saving = now_saving
        self._look(account)

    def fell(self, node: NodeId) -> None:
        """The machine went down. Its bodies are reported by `ended`; attempts without a body are gone as well."""
        self.falls += 1
        for attempt, (where, job, _) in list(self._held.items()):
            if where == node:
                self._release(attempt)
                self._dead.add(attempt)
                self._look(self.accounts[job])

    def durable(self, rows: list[tuple[Row | None, Row]]) -> None:
        touched: dict[JobId, None] = {}
        for before, after in rows:
            match after:
                case Job():
                    self._job(after)
                    touched[after.id] = None
                case Attempt():
                    self._attempt(before, after)
                    touched[after.job] = None
                case Node():
                    self.states[after.id] = after.state
                    touched |= {job: None for job, a in self.accounts.items() if any(
                        attempt.node == after.id for attempt in a.attempts.values())}  # fmt: skip
                case _:
                    pass
        for job in touched:
            if job in self.accounts:
                self._look(self.accounts[job])

    def _job(self, job: Job) -> None:
        account = self.accounts.get(job.id)
        if account is None or account.ended is not None or job.phase is not JobPhase.ENDED:
            return
        self._add_up(account)
        account.ended, account.verdict = self.network.world.now, job.verdict
        account.code = job.failure.code.value if job.failure is not None else ""
        self.live -= 1

    def _attempt(self, before: Row | None, attempt: Attempt) -> None:
        account = self.accounts[attempt.job]
        if before is None and attempt.live:
            self.takeovers += account.first_ms is not None
            account.first_ms = self.network.world.now if account.first_ms is None else account.first_ms
            if self.network.machines[attempt.node].up:
                self._held[attempt.id] = (attempt.node, attempt.job, self.network.world.now)
            else:
                self._dead.add(attempt.id)
        if attempt.may_win:
            account.attempts[attempt.id] = attempt
        else:
            account.attempts.pop(attempt.id, None)
        if not attempt.live:
            self._release(attempt.id)

    def _release(self, attempt: AttemptId) -> None:
        held = self._held.pop(attempt, None)
        if held is not None:
            self._node_ms += self.network.world.now - held[2]

    # --- accounting ---

    def _look(self, account: Account) -> None:
        """Close the period that ends now, and determine the cause of the next one."""
        self._add_up(account)
        if account.ended is None:
            account.leader = max(account.efforts.values(), key=lambda e: e.reached_ms, default=None)
            account.cause = self._cause(account)
            account.seen_ms = account.leader.reached_ms if account.leader is not None else 0

    def _add_up(self, account: Account) -> None:
        now = self.network.world.now
        span, account.since = now - account.since, now
        if account.ended is not None or not span:
            return
        if account.cause is not Cause.USEFUL or account.leader is None:
            account.spent[account.cause] += span
            return
        reached = account.leader.reached_ms
        fresh = max(0, reached - max(account.furthest_ms, account.seen_ms))
        account.spent[Cause.USEFUL] += fresh
        account.spent[Cause.REDONE] += span - fresh
        account.furthest_ms, account.seen_ms = max(account.furthest_ms, reached), reached

    def _cause(self, account: Account) -> Cause:
        if account.leader is not None:
            return Cause.SAVING if account.leader.saving else Cause.USEFUL
        alive = [a for a in account.attempts.values() if a.id not in self._dead]
        if any(a.phase in (AttemptPhase.RUNNING, AttemptPhase.UPLOADING) for a in alive):
            return Cause.DELIVERING
        if alive:
            return Cause.PREPARING
        if any(self.states.get(a.node) in _BELIEVED for a in account.attempts.values()):
            return Cause.DETECTING
        return Cause.WAITING

    # --- the result ---

    def outcome(self, seed: int) -> PlannedOutcome:
        for attempt in list(self._held):
            self._release(attempt)
        good = [a for a in self.accounts.values() if a.verdict is Verdict.SUCCEEDED and a.ended is not None]
        took = tuple(a.ended - a.submitted for a in good if a.ended is not None)
        spent: Counter[str] = Counter()
        for account in good:
            spent.update({cause.value: ms for cause, ms in account.spent.items()})
        return PlannedOutcome(
            seed=seed,
            took_ms=took,
            started_ms=tuple((a.first_ms or a.submitted) - a.submitted for a in good),
            unfinished=sum(a.ended is None for a in self.accounts.values()),
            failed=dict(Counter(a.code for a in self.accounts.values() if a.verdict is Verdict.FAILED)),
            all_ms=max(took) if took and len(took) == len(self.accounts) else 0,
            spent_ms=dict(sorted(spent.items())),
            node_ms=self._node_ms,
            falls=self.falls,
            takeovers=self.takeovers,
            events=self.network.world.happened,
        )
