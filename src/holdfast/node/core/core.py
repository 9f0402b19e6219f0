"""Decides what a node does: which attempts it starts, stops, reports and deletes. Pure: knows no clock, socket or file.

The agent drives it in production, the simulator in a simulated world. Duties of the caller:

1. Apply `Recovered` for every attempt found on disk before the first `Connected`; a session's `Hello` carries
   `held()` and `epoch_seen` as of the moment it is sent.
2. Apply events as they happen, in any order, with a `now` that never goes back; `NodeTick` at `next_due()`.
3. Carry out the actions of one `apply` in order. `RememberEpoch` must be durable before the next action.
4. Apply `ShimDied`, `SpawnFailed` and `Removed` only when no process of the attempt is left.
5. Stop when `left` is true.

It keeps these rules even if messages are lost, repeated, late or out of order:

- an attempt is spawned at most once, and never again after it was discarded;
- the body of a leased attempt starts only after the orchestrator's Go, under a lease that counts from a
  report that this node sent before the orchestrator answered it;
- a command with a lower epoch than the highest seen changes nothing;
- an ended attempt stays reported until the orchestrator discards it.
"""

from msgspec.structs import replace

from holdfast.model import AttemptId, Failure, FailureCode, Instant, NodeId, Resources, Result, after
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Held,
    HeldPhase,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Progress,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.node.core.admission import Means, NodeLimits, crowding, flaw, order_for, unable
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.events import (
    AttemptInputs,
    CaptureCheckpoint,
    CommandReceived,
    Connected,
    Delivered,
    DeliveredFiles,
    Disconnected,
    HangUp,
    LeaveAsked,
    LoadMeasured,
    NodeAction,
    NodeEvent,
    NodeTick,
    OfferAsked,
    Progressed,
    Recovered,
    RememberEpoch,
    Remove,
    Removed,
    Say,
    ShimDied,
    ShimSaid,
    ShimStatus,
    Spawn,
    SpawnFailed,
    Tell,
    Undeliverable,
)
from holdfast.node.core.held_attempt import HeldAttempt
from holdfast.node.core.verdicts import verdict

NUDGE_MS = 1_000
"""Interval at which go and stop are repeated to a shim that has not obeyed."""
CONTACT_MS_MAX = 10_000
"""The longest interval between reports of the last contact to a shim."""
PERIOD_MS_MIN = 50
"""The shortest report interval, whatever the orchestrator asks for."""
LAST_WORDS_MS = 2_000
"""A leaving node has this long to deliver its last reports after everything was stopped."""
FORGOTTEN_MAX = 4_096
"""Number of discarded attempts that are remembered, so that a late Start does not start one again."""
LEASE_REPORTS_MAX = 1_024
"""Number of remembered reports from which a lease may still count."""

_SEEN_AS = {
    Phase.PREPARING: HeldPhase.PREPARING,
    Phase.READY: HeldPhase.READY,
    Phase.RUNNING: HeldPhase.RUNNING,
}


class NodeCore:
    def __init__(
        self,
        node: NodeId,
        instance: str,
        epoch_seen: int = 0,
        offered: Resources = Resources(),  # noqa: B008 - frozen
        means: Means = Means(),  # noqa: B008 - frozen
        limits: NodeLimits = NodeLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.node = node
        self.instance = instance
        self.epoch_seen = epoch_seen
        self.offered = offered
        self.means = means
        self.limits = limits
        self.paused = False
        self._paused_why = ""
        """Why the operator paused the node, for people to read."""
        self.drained = False
        """Whether the network's operator drains it, as last reported. For people to read: no decision depends on it."""
        self.left = False
        """The node has left: the agent may stop."""
        self._holdings: dict[AttemptId, HeldAttempt] = {}
        self._forgotten: dict[AttemptId, int] = {}
        self._welcome: Welcome | None = None
        self._stop_grace_ms = 5_000
        self._load: Load | None = None
        self._seq = 0
        self._said: dict[int, tuple[Instant, frozenset[AttemptId]]] = {}
        """Reports of this session from which a lease may count: when each was sent, and for which attempts."""
        self._last_full = Instant(0)
        self._last_contact_told = Instant(0)
        self._leave_until: Instant | None = None
        self._overdue = False
        """The grace of a leaving node is over: attempts that still run are stopped."""
        self._news: dict[tuple[AttemptId, int], Held] = {}
        self._renew_now: set[AttemptId] = set()
        self._out: list[NodeAction] = []

    # --- state ---

    @property
    def connected(self) -> bool:
        return self._welcome is not None

    @property
    def leaving(self) -> bool:
        return self._leave_until is not None

    @property
    def in_use(self) -> Resources:
        return sum((h.need for h in self._holdings.values() if h.occupies), Resources())

    @property
    def alive(self) -> tuple[AttemptId, ...]:
        """Attempts whose shim or body may be alive."""
        return tuple(sorted(h.attempt for h in self._holdings.values() if h.alive))

    def holding(self, attempt: AttemptId) -> HeldAttempt | None:
        """For inspection only."""
        return self._holdings.get(attempt)

    def held(self) -> tuple[Held, ...]:
        """All held attempts, as in `Hello` and a full report."""
        return tuple(self._holdings[key].held() for key in sorted(self._holdings))

    def next_due(self) -> Instant | None:
        """When a `NodeTick` is due if no event comes first; None: only an event changes anything."""
        moments: list[Instant] = []
        if self._welcome is not None:
            moments.append(after(self._last_full, self._report_every_ms(self._welcome)))
            if any(h.alive for h in self._holdings.values()):
                moments.append(after(self._last_contact_told, self._contact_every_ms(self._welcome)))
        moments += [after(h.nudged, NUDGE_MS) for h in self._holdings.values() if self._wants_nudge(h)]
        if self._leave_until is not None and not self.left:
            moments.append(self._last_words_at() if self._overdue else self._leave_until)
        return min(moments, default=None)

    # --- events ---

    def apply(self, event: NodeEvent, now: Instant) -> list[NodeAction]:
        match event:
            case Recovered():
                self._recovered(event)
            case Connected(welcome):
                self._connected(welcome, now)
            case Disconnected():
                self._disconnected(now)
            case CommandReceived(command):
                self._told(command, now)
            case ShimSaid(attempt, status):
                self._shim_said(attempt, status)
            case ShimDied(attempt, why):
                self._ended_badly(attempt, Failure(FailureCode.RUNTIME_FAULT, why))
            case SpawnFailed(attempt, failure):
                self._ended_badly(attempt, failure)
            case Delivered(attempt, files):
                self._delivered(attempt, files)
            case Undeliverable(attempt, failure):
                self._undeliverable(attempt, failure)
            case Progressed(attempt, progress):
                self._progressed(attempt, progress)
            case Removed(attempt):
                self._removed(attempt)
            case LoadMeasured(load):
                self._load_measured(load, now)
            case LeaveAsked(grace_ms):
                self._leave_asked(grace_ms, now)
            case OfferAsked():
                self._offer_asked(event)
            case NodeTick():
                pass
        self._due(now)
        actions, self._out = self._out, []
        return actions

    def _recovered(self, event: Recovered) -> None:
        order, status = event.order, event.status
        need = Resources(**order.resources)
        holding = HeldAttempt(
            AttemptId(order.attempt), order.fence, need, order.lease_ms, order.gpu_ids, has_folder=True
        )
        self._holdings[holding.attempt] = holding
        if status is None:
            return
        if status.phase is Phase.ENDED:
            self._end(holding, status)
            return
        holding.advance(_SEEN_AS[status.phase])
        if holding.leased and (status.go or status.phase is Phase.RUNNING):
            holding.granted = holding.went = True

    def _connected(self, welcome: Welcome, now: Instant) -> None:
        if welcome.epoch < self.epoch_seen:
            seen = f"epoch {welcome.epoch}, but {self.epoch_seen} was seen"
            self._out.append(HangUp(f"the orchestrator no longer leads: {seen}"))
            return
        if welcome.node != self.node:
            self._out.append(HangUp(f"the welcome is for {welcome.node}, this is {self.node}"))
            return
        self._saw_epoch(welcome.epoch)
        self._welcome = welcome
        self.drained = False  # if it is drained, a Drained message follows
        self._stop_grace_ms = max(0, welcome.stop_grace_ms)
        self._forget_session()
        self._say_full(now)
        self._tell_contact(now)
        if self.paused:
            self._say(Offers(self.offered, paused=True, why=self._paused_why))
        if self._leave_until is not None:
            self._say(Leaving(max(0, self._leave_until - now), done=self.left))

    def _disconnected(self, now: Instant) -> None:
        if self._welcome is not None:
            self._tell_contact(now)
        self._welcome = None
        self._forget_session()

    def _forget_session(self) -> None:
        self._said.clear()
        self._news.clear()
        self._renew_now.clear()

    def _told(self, command: Start | Go | Discard | Renewed | Ping | Save | Drained, now: Instant) -> None:
        if self._welcome is None or command.epoch < self.epoch_seen:
            return
        self._saw_epoch(command.epoch)
        match command:
            case Start():
                self._start(command, self._welcome)
            case Go():
                self._go(command, now)
            case Discard():
                self._discard(command, now)
            case Renewed():
                self._renewed(command, now)
            case Ping():
                self._say(Pong(command.nonce))
            case Drained():
                self.drained = command.on
            case Save():
                self._save(command)

    def _saw_epoch(self, epoch: int) -> None:
        if epoch > self.epoch_seen:
            self.epoch_seen = epoch
            self._out.append(RememberEpoch(epoch))

    # --- commands ---

    def _start(self, start: Start, welcome: Welcome) -> None:
        known = self._holdings.get(start.attempt)
        if known is not None and known.fence == start.fence:
            self._report(known)
            return
        if known is not None or self._forgotten.get(start.attempt, start.fence) != start.fence:
            self._refuse(start, "this attempt was held here under another fence", keep=False)
            return
        if start.attempt in self._forgotten:
            self._report_gone(start.attempt, start.fence)
            return
        wrong = flaw(start, self.limits)
        if wrong:
            self._refuse(start, wrong, keep=False)
            return
        if len(self._holdings) >= self.limits.attempts_max:
            self._refuse(start, f"{len(self._holdings)} attempts are held already", keep=False)
            return
        if self.leaving or self.paused:
            self._refuse(start, "the node is leaving" if self.leaving else "its operator paused the node")
            return
        need = start.spec.need.resources
        unfit = unable(start, self.means) or crowding(need, self.offered, self.in_use)
        if unfit:
            self._refuse(start, unfit)
            return
        order = order_for(start, welcome, self.means, self.limits, self._free_gpus()[: need.gpus])
        if isinstance(order, str):
            self._refuse(start, order)
            return
        holding = HeldAttempt(start.attempt, start.fence, need, start.lease_ms, order.gpu_ids, has_folder=True)
        self._holdings[start.attempt] = holding
        self._out.append(Spawn(order, AttemptInputs.of(start)))
        self._report(holding)

    def _free_gpus(self) -> tuple[str, ...]:
        """A GPU is assigned as a whole to one attempt."""
        leased = {gpu for holding in self._holdings.values() if holding.occupies for gpu in holding.gpu_ids}
        return tuple(gpu for gpu in self.means.gpus if gpu not in leased)

    def _refuse(self, start: Start, why: str, keep: bool = True) -> None:
        """`keep`: hold the refusal, so that a lost answer is repeated. Not kept if that would displace others."""
        failure = Failure(FailureCode.REFUSED, why)
        refused = HeldAttempt(start.attempt, start.fence, Resources(), phase=HeldPhase.REFUSED, alive=False)
        refused.verdict = failure
        if keep:
            self._holdings[start.attempt] = refused
        self._report(refused)

    def _go(self, go: Go, now: Instant) -> None:
        """The first Go starts the body under the lease that counts from the report it answers. If that report is
        too old or unknown (the Hello, another session), and for any further Go, the node requests a lease
        instead, and the body starts when the lease is granted."""
        holding = self._holdings.get(go.attempt)
        if holding is None or holding.fence != go.fence:
            self._report_gone(go.attempt, go.fence)
            return
        if not holding.leased or not holding.alive or holding.unwanted:
            return
        first, holding.granted = not holding.granted, True
        if not (first and self._extend(holding, go.seq, now)) and not holding.went:
            self._renew_now.add(holding.attempt)

    def _renewed(self, renewed: Renewed, now: Instant) -> None:
        for attempt in renewed.attempts:
            holding = self._holdings.get(attempt)
            if holding is not None and holding.renews:
                self._extend(holding, renewed.seq, now)

    def _extend(self, holding: HeldAttempt, seq: int, now: Instant) -> bool:
        """Let the lease count from the sending of report `seq`, if that report named this lease and extends it."""
        said, leases = self._said.get(seq, (Instant(0), frozenset[AttemptId]()))
        until = holding.lease_from(said)
        if holding.attempt not in leases or until <= max(holding.lease_until, now):
            return False
        holding.lease_until = until
        if holding.phase in (HeldPhase.PREPARING, HeldPhase.READY):
            self._tell_go(holding, now)
        else:
            self._out.append(Tell(holding.attempt, "lease", until))
        return True

    def _tell_go(self, holding: HeldAttempt, now: Instant) -> None:
        holding.went = True
        holding.nudged = now
        self._out.append(Tell(holding.attempt, "lease", holding.lease_until))
        self._out.append(Tell(holding.attempt, "go"))

    def _discard(self, discard: Discard, now: Instant) -> None:
        holding = self._holdings.get(discard.attempt)
        if holding is None or holding.fence != discard.fence:
            if holding is None:
                self._forget(discard.attempt, discard.fence)
            self._report_gone(discard.attempt, discard.fence)
            return
        if not holding.has_folder:
            self._drop(holding)
            return
        if not holding.unwanted:
            holding.unwanted = discard.reason or "no longer wanted"
            if holding.alive:
                self._tell_stop(holding, holding.unwanted, now)
            else:
                self._remove(holding)

    def _save(self, save: Save) -> None:
        holding = self._holdings.get(save.attempt)
        if holding is not None and holding.fence == save.fence and holding.phase is HeldPhase.RUNNING:
            self._out.append(CaptureCheckpoint(save.attempt))

    # --- the shim's side ---

    def _shim_said(self, attempt: AttemptId, status: ShimStatus) -> None:
        holding = self._holdings.get(attempt)
        if holding is None or not holding.alive:
            return
        if status.phase is Phase.ENDED:
            self._end(holding, status)
            self._report(holding)
        elif holding.advance(_SEEN_AS[status.phase]):
            self._report(holding)

    def _end(self, holding: HeldAttempt, status: ShimStatus) -> None:
        holding.alive = False
        holding.verdict = verdict(status)
        # A leased body without a go has never started, and has left no logs to wait for.
        began = not holding.leased or holding.went or status.go
        holding.advance(HeldPhase.UPLOADING if began else HeldPhase.FINISHED)
        if holding.unwanted:
            self._remove(holding)

    def _ended_badly(self, attempt: AttemptId, failure: Failure) -> None:
        """Reported at once, without waiting for the logs, so that the job can be tried elsewhere. A machine that finds
        no room for it has refused it: nothing of it ran."""
        holding = self._holdings.get(attempt)
        if holding is None or not holding.alive:
            return
        holding.alive = False
        holding.verdict = failure
        if failure.code is FailureCode.REFUSED:
            holding.phase = HeldPhase.REFUSED
        else:
            holding.advance(HeldPhase.FINISHED)
        if holding.unwanted:
            self._remove(holding)
        self._report(holding)

    def _delivered(self, attempt: AttemptId, files: DeliveredFiles) -> None:
        holding = self._holdings.get(attempt)
        if holding is not None and not holding.alive and holding.advance(HeldPhase.FINISHED):
            if isinstance(holding.verdict, Result) and files.manifest:
                holding.verdict = replace(
                    holding.verdict, manifest=files.manifest, files=files.count, files_bytes=files.bytes
                )
            self._report(holding)

    def _undeliverable(self, attempt: AttemptId, failure: Failure) -> None:
        """A result that cannot be delivered becomes a failure; an earlier failure is kept."""
        holding = self._holdings.get(attempt)
        if holding is not None and not holding.alive and holding.advance(HeldPhase.FINISHED):
            if isinstance(holding.verdict, Result):
                holding.verdict = failure
            self._report(holding)

    def _progressed(self, attempt: AttemptId, progress: Progress) -> None:
        holding = self._holdings.get(attempt)
        if holding is not None:
            holding.progress = progress

    def _remove(self, holding: HeldAttempt) -> None:
        if not holding.removing:
            holding.removing = True
            self._out.append(Remove(holding.attempt))

    def _removed(self, attempt: AttemptId) -> None:
        holding = self._holdings.get(attempt)
        if holding is not None and holding.removing:
            self._drop(holding)

    def _drop(self, holding: HeldAttempt) -> None:
        del self._holdings[holding.attempt]
        self._forget(holding.attempt, holding.fence)
        self._report_gone(holding.attempt, holding.fence)

    def _forget(self, attempt: AttemptId, fence: int) -> None:
        self._forgotten.setdefault(attempt, fence)
        while len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]

    # --- leaving, and offering less ---

    def _offer_asked(self, asked: OfferAsked) -> None:
        """Attempts stay until the orchestrator has moved them: it knows where else there is room."""
        self.offered = self.offered if asked.offered is None else asked.offered
        if asked.paused is not None:
            self.paused, self._paused_why = asked.paused, asked.why
        self._say(Offers(self.offered, self.paused, max(0, asked.grace_ms), self._paused_why))

    def _leave_asked(self, grace_ms: int, now: Instant) -> None:
        until = after(now, max(0, grace_ms))
        self._leave_until = until if self._leave_until is None else min(until, self._leave_until)
        self._say(Leaving(max(0, self._leave_until - now)))

    def _last_words_at(self) -> Instant:
        return after(self._leave_until or Instant(0), self._stop_grace_ms + LAST_WORDS_MS)

    def _leave(self, now: Instant) -> None:
        """The node has left when it holds nothing; after the grace, also when nothing is alive and the time for the
        last reports has passed. Never while a body may be alive: the orchestrator takes `done` as proof that none
        is."""
        if self._leave_until is None or self.left:
            return
        self._overdue = now >= self._leave_until
        kept = [h for h in self._holdings.values() if h.phase is not HeldPhase.REFUSED]
        spoken = now >= self._last_words_at() and not any(h.alive for h in kept)
        if not kept or spoken:
            self.left = True
            self._say(Leaving(0, done=True))

    # --- time ---

    def _due(self, now: Instant) -> None:
        self._say_news(now)
        self._leave(now)
        for holding in self._holdings.values():
            if self._wants_nudge(holding) and now >= after(holding.nudged, NUDGE_MS):
                self._nudge(holding, now)
        welcome = self._welcome
        if welcome is None:
            return
        if now >= after(self._last_contact_told, self._contact_every_ms(welcome)):
            self._tell_contact(now)
        if now >= after(self._last_full, self._report_every_ms(welcome)):
            self._say_full(now)

    def _report_every_ms(self, welcome: Welcome) -> int:
        return max(PERIOD_MS_MIN, welcome.keepalive_ms if self._holdings else welcome.heartbeat_ms)

    def _contact_every_ms(self, welcome: Welcome) -> int:
        return max(PERIOD_MS_MIN, min(CONTACT_MS_MAX, welcome.orphan_ms_max // 10))

    def _wants_nudge(self, holding: HeldAttempt) -> bool:
        if not holding.alive:
            return False
        waiting = holding.phase in (HeldPhase.PREPARING, HeldPhase.READY)
        return bool(holding.unwanted) or self._overdue or (holding.went and waiting)

    def _nudge(self, holding: HeldAttempt, now: Instant) -> None:
        if holding.unwanted or self._overdue:
            self._tell_stop(holding, holding.unwanted or "the node is leaving", now)
        elif holding.lease_until > now:
            self._tell_go(holding, now)
        else:
            holding.nudged = now

    def _tell_stop(self, holding: HeldAttempt, reason: str, now: Instant) -> None:
        holding.nudged = now
        self._out.append(Tell(holding.attempt, "stop", reason=reason))

    def _tell_contact(self, now: Instant) -> None:
        """An open session counts as contact: the transport's own probes end a dead one."""
        self._last_contact_told = now
        self._out += [Tell(attempt, "contact", now) for attempt in self.alive]

    # --- reporting ---

    def _report(self, holding: HeldAttempt) -> None:
        self._news[holding.attempt, holding.fence] = holding.held()

    def _report_gone(self, attempt: AttemptId, fence: int) -> None:
        self._news[attempt, fence] = Held(attempt, fence, HeldPhase.GONE)

    def _load_measured(self, load: Load, now: Instant) -> None:
        sick_before = self._load.sick if self._load else ""
        self._load = load
        if load.sick != sick_before and self.connected:
            self._say_full(now)

    def _say(self, message: Report | Pong | Leaving | Offers) -> None:
        if self.connected:
            self._out.append(Say(message))

    def _say_news(self, now: Instant) -> None:
        if self._news or self._renew_now:
            news, renew = tuple(self._news.values()), self._renew_now
            self._news, self._renew_now = {}, set()
            self._say_report(now, False, news, tuple(sorted(renew)))

    def _say_full(self, now: Instant) -> None:
        self._last_full = now
        renew = tuple(key for key in sorted(self._holdings) if self._holdings[key].renews)
        self._say_report(now, True, self.held(), renew)

    def _say_report(self, now: Instant, full: bool, held: tuple[Held, ...], renew: tuple[AttemptId, ...]) -> None:
        if not self.connected:
            return
        self._seq += 1
        ready = (h.attempt for h in held if h.phase is HeldPhase.READY)
        leases = frozenset((*renew, *ready))
        if leases:
            oldest = now - max((h.lease_ms for h in self._holdings.values()), default=0)
            self._said = {seq: said for seq, said in self._said.items() if said[0] > oldest}
            self._said[self._seq] = (now, leases)
            if len(self._said) > LEASE_REPORTS_MAX:
                del self._said[next(iter(self._said))]
        self._say(Report(self._seq, full, held, self._load if full else None, renew))
