"""Moves a job to a machine that a person chose (SPEC J12): make before break (docs/decisions/0013).

A job that has not started waits in the queue for room there and nowhere else. A running job gets a contender there
after it had time to save its state; when the body of that contender runs, the others are revoked. If the move fails
before that, the job stays where it is. `Job.move` always holds the state of the move, so a new leader can continue it.
"""

from msgspec.structs import replace

from holdfast.kernel.checkpoints import ask_to_save, may_save, saved_since
from holdfast.kernel.contenders import offer, refresh, revoke, seek, waits_for
from holdfast.kernel.decision import Answer, Done, Rejected
from holdfast.kernel.events import MoveAsked
from holdfast.kernel.explain import shortfall
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.world import World, node_label
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Facts,
    Failure,
    Gate,
    Instant,
    Job,
    JobId,
    Move,
    MoveState,
    Node,
    NodeId,
    NodeState,
    Purpose,
    Recovery,
    Resources,
    RevokeCause,
    WaitReason,
)
from holdfast.model.cause_text import gate_text, takeover_cause_text

MOVES_MAX = 64
"""Most moves of one job: every decision about a job looks at all its attempts, so their number is bounded."""
_ROOM = (Gate.RESERVED, Gate.PROBATION_PROBES, Gate.PROBATION_BUSY, Gate.ATTEMPTS_MAX, Gate.UNPROVEN)
"""Gates that a job can wait for: the machine is present and in service."""


class Moving(Mechanism):
    def __init__(self) -> None:
        self.pinned: dict[NodeId, dict[JobId, None]] = {}
        """Jobs that wait for room on one node and no other."""

    def offered(self, w: World, job: Job) -> Job:
        """A job that waited for room on its new node has it."""
        if job.move is not None and job.move.state is MoveState.WAITING:
            return replace(job, move=replace(job.move, state=MoveState.DONE))
        return job

    def body_started(self, w: World, attempt: Attempt, first: bool) -> None:
        body_started(w, attempt)

    def checkpointed(self, w: World, attempt: Attempt, manifest: str) -> None:
        saved(w, attempt)

    def away(self, w: World, attempt: Attempt, why: Facts) -> bool:
        return away(w, attempt, why)

    def lost(self, w: World, job: Job, attempt: Attempt, failure: Failure) -> Job:
        return hindered(w, job, attempt, failure.detail or failure.meaning.says)

    def due(self, w: World, job: Job) -> None:
        save_due(w, job)

    def ending(self, w: World, job: Job) -> Job:
        if job.move is not None and job.move.under_way:
            return replace(job, move=replace(job.move, state=MoveState.FAILED, says="the job ended before"))
        return job

    def job_changed(self, w: World, before: Job | None, job: Job) -> None:
        """Update `pinned`: the only node where the job may be placed may have changed."""
        if job.move is None and (before is None or before.move is None):
            return
        was = None if before is None else before.pinned
        now = job.pinned if job.live else None
        if was is not None and was != now:
            del self.pinned[was][job.id]
            if not self.pinned[was]:
                del self.pinned[was]
        if now is not None:
            self.pinned.setdefault(now, {})[job.id] = None

    def node_lost(self, w: World, node: NodeId) -> None:
        release(w, node)

    def digest(self) -> object:
        return sorted((node, sorted(jobs)) for node, jobs in self.pinned.items())


# --- asking ---


def ask(w: World, event: MoveAsked) -> Answer:
    """Move the job, or reject the request with the reason. A repeated request changes nothing."""
    job = w.jobs.get(event.job)
    if job is None:
        return Rejected("not_live", f"{event.job} has already ended or does not exist.")
    move = job.move
    if move is not None and event.key and move.key == event.key:
        return Done(f"this request was taken before: {move.state.value}")
    node = w.nodes.get(event.node)
    if node is None or node.state is NodeState.GONE:
        return Rejected("no_such_node", f"There is no node {event.node}.")
    if move is not None and move.under_way and move.to == node.id:
        return Done(f"it is being moved there already: {move.state.value}")
    contenders = [a for a in w.attempts_of(job.id) if a.may_win]
    refusal = _too_late(w, job, contenders, node) or _unfit(w, job, node, bool(contenders))
    if refusal is not None:
        return refusal
    who = event.by or "its owner"
    if contenders and job.spec.recovery is not Recovery.NEVER:
        _begin(w, job, contenders, Move(node.id, MoveState.SAVING, event.key, asked_ms=w.patience), who)
    else:
        _wait_there(w, job, contenders, Move(node.id, MoveState.WAITING, event.key, asked_ms=w.patience), who)
    return Done("moving")


def _too_late(w: World, job: Job, contenders: list[Attempt], node: Node) -> Answer | None:
    """The answer if the state of the job rules out the move, or None."""
    label = node_label(node)
    move = job.move
    if any(a.node == node.id for a in contenders):
        if move is not None and move.to == node.id and move.state is MoveState.DONE:
            return Done("it is there already")
        return Rejected("already_there", f"{job.id} is on {label} already.")
    if move is not None and move.state in (MoveState.SAVING, MoveState.STARTING):
        there = node_label(w.nodes[move.to])
        return Rejected("move_under_way", f"{job.id} is being moved to {there} ({move.state.value}).")
    if any(a.phase is AttemptPhase.UPLOADING for a in contenders):
        return Rejected("too_late", f"The program of {job.id} has ended; its result is on its way.")
    if any(a.go for a in contenders):
        says = f"{job.id} must not run twice and may have started, so it stays where it is."
        return Rejected("must_not_repeat", says)
    if job.moves >= MOVES_MAX:
        return Rejected("moved_too_often", f"{job.id} was moved {job.moves} times; a job is not moved more often.")
    return None


def _unfit(w: World, job: Job, node: Node, at_once: bool) -> Rejected | None:
    """The answer if the machine rules out the move, or None. `at_once`: there must be room now, not only later."""
    label, kind = node_label(node), w.fleet[node.id].kind
    gate = w.closed_to_work(node, job.id)
    if gate is None and any(a.node == node.id for a in w.attempts_of(job.id)):
        gate = Gate.EARLIER_ATTEMPT
    if job.pending_verdict is not None and job.pending_verdict.node == node.id:
        gate = Gate.DOUBTED
    if gate is not None and (at_once or gate not in _ROOM):
        return Rejected("node_not_ready", f"{label} can take no work now: {gate_text(gate)}.")
    miss = shortfall(kind, node.offered, job.spec.need)
    if miss is not None:
        return Rejected("no_fit", f"{job.id} does not fit on {label}; it misses {miss.text}.")
    miss = shortfall(kind, Resources(*w.free_on(node)), job.spec.need)
    if miss is not None and at_once:
        return Rejected("no_room", f"{label} has no room for {job.id} now; it misses {miss.text}.")
    return None


def _wait_there(w: World, job: Job, contenders: list[Attempt], move: Move, who: str) -> None:
    """The job has not started: it waits for room there and nowhere else."""
    label = node_label(w.nodes[move.to])
    w.put(replace(job, move=move, moves=job.moves + 1, reserved=None))
    w.note("job.move", Facts(move=move.state, label=label, by=who), job.id, node=move.to)
    for attempt in contenders:
        revoke(w, attempt, Facts(revoke=RevokeCause.MOVED_BEFORE_START, label=label))
    refresh(w, job.id)
    w.put(waits_for(w.jobs[job.id], WaitReason.NODE_ROOM, Facts(label=label)))
    seek(w, job.id)


# --- make before break ---


def _begin(w: World, job: Job, contenders: list[Attempt], move: Move, who: str) -> None:
    saving = [a for a in contenders if may_save(w, a) and w.presence(a.node).session is not None]
    label = node_label(w.nodes[move.to])
    w.note("job.move", Facts(move=move.state, label=label, by=who), job.id, node=move.to)
    if job.spec.recovery is not Recovery.RESUME or not saving:
        _start(w, replace(job, move=move, moves=job.moves + 1))
        return
    until = w.soon(w.settings.save_ms_max)
    w.put(replace(job, move=replace(move, save_until_ms=until), moves=job.moves + 1))
    w.deadlines.add(until, "job", job.id)
    for attempt in saving:
        ask_to_save(w, attempt)


def saved(w: World, attempt: Attempt) -> None:
    """The job has a checkpoint that is newer than the request to move it: it can start there."""
    job = w.jobs[attempt.job]
    move = job.move
    if move is not None and move.state is MoveState.SAVING and saved_since(w, attempt, move.asked_ms):
        _start(w, job)


def save_due(w: World, job: Job) -> None:
    """Saving took too long: start from what was saved before."""
    if job.move is None or job.move.state is not MoveState.SAVING:
        return
    if job.move.save_until_ms > w.patience:
        w.deadlines.add(job.move.save_until_ms, "job", job.id)
    else:
        _start(w, job)


def _start(w: World, job: Job) -> None:
    """Start a contender there, if it still fits: the room was not reserved while the job saved its state."""
    assert job.move is not None
    refusal = _unfit(w, job, w.nodes[job.move.to], at_once=True)
    if refusal is not None:
        w.put(_failed(w, job, refusal.says))
        return
    w.queue.leave(job.id)
    move = replace(job.move, state=MoveState.STARTING, save_until_ms=Instant(0))
    offer(w, replace(job, move=move), w.fleet[move.to], Purpose.MOVE)


def body_started(w: World, attempt: Attempt) -> None:
    """The job runs on its new node: its other attempts are revoked. One whose body has ended may still win."""
    job = w.jobs.get(attempt.job)
    if job is None or job.move is None or job.move.state is not MoveState.STARTING:
        return
    if attempt.purpose is not Purpose.MOVE or attempt.node != job.move.to or not attempt.may_win:
        return
    label = node_label(w.nodes[attempt.node])
    w.put(replace(job, move=replace(job.move, state=MoveState.DONE)))
    w.note("job.moved", Facts(label=label), job.id, attempt.id, attempt.node)
    for other in w.attempts_of(job.id):
        if other.id != attempt.id and other.may_win and other.phase is not AttemptPhase.UPLOADING:
            revoke(w, other, Facts(revoke=RevokeCause.MOVED, attempt=attempt.id, label=label))


# --- failed moves ---


def hindered(w: World, job: Job, attempt: Attempt, why: str) -> Job:
    """The job row after the loss of an attempt: a move that depended on that attempt has failed."""
    move = job.move
    if move is None or not move.under_way:
        return job
    arriving = move.state is MoveState.STARTING and attempt.purpose is Purpose.MOVE and attempt.node == move.to
    if arriving or move.state is MoveState.SAVING:
        return _failed(w, job, why)
    return job


def away(w: World, attempt: Attempt, why: Facts) -> bool:
    """Its machine is in doubt. An attempt that was made for the move is not needed while another contender exists."""
    job = w.jobs[attempt.job]
    if (later := hindered(w, job, attempt, takeover_cause_text(why))) is job:
        return False
    w.put(later)
    if attempt.purpose is Purpose.MOVE and any(a.may_win for a in w.attempts_of(job.id) if a.id != attempt.id):
        revoke(w, attempt, replace(why, revoke=RevokeCause.AWAY_BEFORE_MOVE))
        refresh(w, job.id)
        seek(w, job.id)
        return True
    return False


def release(w: World, node_id: NodeId) -> None:
    """The machine is lost or gone: jobs that wait for it may be placed anywhere."""
    for job_id in sorted(w.lifecycle.of(Moving).pinned.get(node_id, ())):
        job = _failed(w, w.jobs[job_id], f"{node_label(w.nodes[node_id])} is gone")
        w.put(waits_for(job, WaitReason.ROOM))
        seek(w, job_id)


def _failed(w: World, job: Job, why: str) -> Job:
    assert job.move is not None
    label = node_label(w.nodes[job.move.to])
    w.note("job.not_moved", Facts(label=label, detail=why), job.id, node=job.move.to)
    return replace(job, move=replace(job.move, state=MoveState.FAILED, says=why, save_until_ms=Instant(0)))
