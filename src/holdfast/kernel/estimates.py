"""When a job will start and end, as intervals that should hold four times of five, and how often they did (SPEC J15).

Foretold from what jobs like it took, from how long they take to get ready, and from a rehearsal of the queue
(policy.forecast). Where nothing like it ever ran, no end is foretold. Of some jobs what was foretold is kept and judged
when it is known; the score is part of the network's row and widens or narrows what is foretold next. Nothing is
decided from any of it (docs/decisions/0015).
"""

from itertools import islice

from msgspec.structs import replace

from holdfast.kernel import duration_history
from holdfast.kernel.decision import Estimate
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.queue import LaneKey
from holdfast.kernel.world import World, amounts, weight
from holdfast.model import (
    Attempt,
    AttemptPhase,
    DurationHistory,
    Instant,
    Job,
    JobId,
    JobSpec,
    Need,
    Node,
    NodeId,
    NodeState,
    Owner,
    Promise,
    Purpose,
    Score,
)
from holdfast.policy.estimates import Spread, adapted, left, mean_ms, spread
from holdfast.policy.forecast import ForecastRequest, Room, starts

NODES_REHEARSED = 64
JOBS_REHEARSED = 128
ATTEMPTS_REHEARSED = 1_000
"""A rehearsal of so many takes some ten milliseconds, whatever the network holds. A larger one is rehearsed in part,
with as much less of its queue."""
SHARED_MS = 1_000
"""Whoever asks within so long of somebody else hears of the same rehearsal."""
ORDERED_MAX = 2_048
KEPT_EVERY_MS = 250
"""What is foretold is kept and judged of one job in so long at most: submitting stays cheap under any load."""
KEPT_WAITING_MS = 1_000
"""Of those that must wait, one in so long: the queue is rehearsed for each."""
GOING_MS = 1_000
"""An attempt that was told to stop is gone after about this long."""
GUESSED_WAIT = Spread(500, 1_000, 2_000)
"""How far off waits are, in thousandths, until some were measured."""
WAIT_SMOOTH_MS = 1_000
FEW_WAITS = 5
START, END, END_RUNNING = "start", "end", "end_running"
"""The sorts of estimates that are judged: when submitted for the start and the end, when started for the end."""

NOTHING_ALIKE = "no estimate of the end: nothing like it has run here"


class Estimates(Mechanism):
    def __init__(self) -> None:
        self.sampled = duration_history.Sampled()
        self.predicted_ms = Instant(0)
        """When something was last foretold that is to be judged."""
        self.rehearsed: tuple[Instant, dict[str, int]] | None = None
        """The last rehearsal of the queue that was made for questions, and when; no decision depends on it."""

    def body_started(self, w: World, attempt: Attempt, first: bool) -> None:
        if first:
            body_started(w, attempt)

    def accepted(self, w: World, job: Job, attempt: Attempt) -> None:
        job_done(w, job, attempt)


def _mine(w: World) -> Estimates:
    return w.lifecycle.of(Estimates)


# --- asking ---


def of_new(w: World, job: Job, lane: LaneKey, placed: bool) -> Estimate:
    """Of a job that is not submitted, or is being submitted now."""
    return _before_body(w, job, 0, 0 if placed else _wait_ms(w, job, lane), placed)


def of_live(w: World, job_id: JobId, waits: "dict[str, int] | None" = None) -> Estimate | None:
    """Of a job that lives. `waits`: a rehearsal of the queue that was made for many; of who stands behind all that were
    rehearsed nothing is said then, for counting who is before each would take too long."""
    job = w.jobs.get(job_id)
    if job is None:
        return None
    leader = max((a for a in w.attempts_of(job_id) if a.may_win), key=_how_far, default=None)
    if leader is None:
        alone = waits is None
        waits = _waits(w) if waits is None else waits
        point = waits.get(job_id)
        if point is None and alone:
            point = _beyond(w, waits, w.queue.turn_of(job_id) if job_id in w.queue else 0)
        return _before_body(w, job, 0, point, placed=False)
    if leader.started_ms is None:
        return _before_body(w, job, w.now - leader.offered_ms, 0, placed=True)
    return _running(w, job, leader)


def of_all(w: World, jobs: "tuple[JobId, ...]") -> dict[JobId, Estimate]:
    """Of several, with one rehearsal of the queue for all of them."""
    if len(jobs) == 1:
        alone = of_live(w, jobs[0])
        return {} if alone is None else {jobs[0]: alone}
    waits = _waits(w) if any(job in w.queue for job in jobs) else {}
    found = ((job, of_live(w, job, waits)) for job in jobs)
    return {job: estimate for job, estimate in found if estimate is not None}


def _how_far(attempt: Attempt) -> int:
    return _PHASES.index(attempt.phase)


_PHASES = list(AttemptPhase)


def scores(w: World) -> dict[str, Score]:
    return dict(_network(w).scores)


# --- one job ---


def _before_body(w: World, job: Job, passed_ms: int, wait_ms: int | None, placed: bool) -> Estimate:
    """`passed_ms`: since it was offered to its machine."""
    took, alike = _history(w, job.owner, job.spec)
    ready = _readying(w, job.owner, job.spec)
    limit = job.spec.time_limit_ms
    getting_ready = (left(ready, passed_ms) or Spread(0, 0, 1_000)) if ready else None
    if getting_ready is None or wait_ms is None:
        why = "no estimate: nothing has run here yet" if getting_ready is None else "no estimate of when there is room"
        return Estimate(None, None, len(took), why, None)
    until = _waiting(w, wait_ms).plus(getting_ready) if not placed else getting_ready
    start = until.stretched(_stretch(w, START))
    if not took:
        bound = None if limit is None else w.now + start.high + limit
        return Estimate(_from_now(w, start), None, 0, NOTHING_ALIKE, bound, 0 if placed else max(1, wait_ms))
    lasts = spread(took)
    if limit is not None:
        lasts = Spread(*(min(part, limit) for part in lasts))
    end = until.plus(lasts).stretched(_stretch(w, END))
    bound = None if limit is None else w.now + start.high + limit
    return Estimate(_from_now(w, start), _from_now(w, end), len(took), alike, bound, 0 if placed else max(1, wait_ms))


def _running(w: World, job: Job, attempt: Attempt) -> Estimate:
    took, alike = _history(w, job.owner, job.spec)
    started = attempt.started_ms or w.now
    limit = job.spec.time_limit_ms
    bound = None if limit is None else started + limit
    passed = w.now - started
    more = left(took, passed) if took else None
    if more is None:
        why = f"no estimate: it has run longer than all {len(took)} {alike}" if took else NOTHING_ALIKE
        return Estimate(None, None, len(took), why, bound)
    low, _, high = more.stretched(_stretch(w, END_RUNNING))
    end = (w.now + low, w.now + high)
    if bound is not None:
        end = (min(end[0], bound), min(end[1], bound))
    return Estimate(None, end, len(took), alike, bound)


def _from_now(w: World, after: Spread) -> tuple[int, int]:
    return (w.now + after.low, w.now + after.high)


def _history(w: World, owner: Owner, spec: JobSpec) -> tuple[tuple[int, ...], str]:
    """What jobs like it took, the closest likeness that is known, and in words which."""
    for kind, words in duration_history.kinds_alike(owner, spec):
        pace = w.paces.get(kind)
        if pace is not None and pace.took_ms:
            runs = len(pace.took_ms)
            return pace.took_ms, f"the last {runs} {words}" if runs > 1 else f"the only one {words}"
    return (), ""


def _readying(w: World, owner: Owner, spec: JobSpec) -> tuple[int, ...]:
    for kind in (*(kind for kind, _ in duration_history.kinds_alike(owner, spec)), duration_history.NETWORK):
        pace = w.paces.get(kind)
        if pace is not None and pace.readied_ms:
            return pace.readied_ms
    return ()


def _network(w: World) -> DurationHistory:
    return w.paces.get(duration_history.NETWORK) or DurationHistory(duration_history.NETWORK, 0, ())


def _stretch(w: World, sort: str) -> int:
    return _network(w).scores.get(sort, Score()).stretch_permille


def _waiting(w: World, point_ms: int) -> Spread:
    """A rehearsed wait, with what such rehearsals were off by."""
    off = _network(w).waits_permille
    factors = spread(off) if len(off) >= FEW_WAITS else GUESSED_WAIT
    smooth = point_ms + WAIT_SMOOTH_MS
    return Spread(*(max(0, smooth * factor // 1000 - WAIT_SMOOTH_MS) for factor in factors))


# --- the queue ---


def _wait_ms(w: World, job: Job, lane: LaneKey) -> int | None:
    """How long one that would join the queue now waits for room, as far as can be foreseen."""
    waits = rehearse(w, (job.id, job.owner, job.spec.priority, lane), job)
    point = waits.get(job.id)
    return _beyond(w, waits, w.queue.turn_if(job.owner, job.spec.priority)) if point is None else point


def _beyond(w: World, waits: dict[str, int], turn: int) -> int | None:
    """Of one who was not rehearsed. Behind all that were: as if the line went on moving at that speed. Among them,
    where only some were: as long as the one whose turn is next to its own."""
    share = _rehearsed(w)[1]
    place = turn // share
    if waits and place > len(waits):
        return max(waits.values()) * place // len(waits)
    return sorted(waits.values())[max(0, place - 1)] if waits and share > 1 else None


def _rehearsed(w: World) -> tuple[list[Node], int]:
    """The machines that are rehearsed, and one in how many that is: one waiting job in so many goes with them."""
    working: list[Node] = []
    looked_at = attempts = 0
    for node in islice(w.nodes.values(), NODES_REHEARSED):
        looked_at += 1
        if node.state in _WORKING and not node.draining:
            working.append(node)
            attempts += len(w.fleet[node.id].held)
            if attempts >= ATTEMPTS_REHEARSED:
                break
    return working, max(1, len(w.nodes) // max(1, looked_at))


def _waits(w: World) -> dict[str, int]:
    """In how long those who wait find room: one rehearsal for all who ask, however many and however often."""
    known = _mine(w).rehearsed
    if known is None or w.now - known[0] >= SHARED_MS:
        known = _mine(w).rehearsed = (w.now, rehearse(w))
    passed = w.now - known[0]
    return {job: max(0, ms - passed) for job, ms in known[1].items()} if passed else known[1]


def rehearse(
    w: World, newcomer: "tuple[JobId, Owner, int, LaneKey] | None" = None, new_job: Job | None = None
) -> dict[str, int]:
    """In how long those who wait find room, as far as can be foreseen."""
    usual = _network(w).took_ms
    if not usual:
        return {}
    nodes, share = _rehearsed(w)
    rooms = [Room(w.free_on(node), [_ends(w, a, usual) for a in w.held_by(node.id)]) for node in nodes]
    kinds = [w.fleet[node.id].kind for node in nodes]
    ids = [node.id for node in nodes]
    serving: dict[LaneKey, frozenset[int]] = {}

    def rooms_for(lane: LaneKey) -> frozenset[int]:
        known = serving.get(lane)
        if known is None:
            need, ruled_out, only = lane
            known = serving[lane] = frozenset(
                i for i, kind in enumerate(kinds) if _may(ids[i], ruled_out, only) and kind_serves(kind, need)
            )
        return known

    order = w.queue.in_order(min(ORDERED_MAX, JOBS_REHEARSED * share), _weight_of, newcomer)
    mine = newcomer[0] if newcomer is not None else JobId("")
    line: list[ForecastRequest] = []
    for place, (job_id, owner, lane) in enumerate(order):
        if place % share and job_id != mine:
            continue
        job = new_job if job_id == mine and new_job is not None else w.jobs[job_id]
        lasts = mean_ms(_history(w, owner, job.spec)[0] or usual)
        line.append(ForecastRequest(job_id, amounts(lane[0].resources), rooms_for(lane), lasts))
    return starts(rooms, line, until=mine)


_WORKING = (NodeState.READY, NodeState.PROBATION)


def _may(node: NodeId, ruled_out: tuple[NodeId, ...], only: NodeId | None) -> bool:
    return node not in ruled_out and only in (None, node)


def _weight_of(need: Need) -> int:
    return weight(need.resources)


def _ends(w: World, attempt: Attempt, usual: tuple[int, ...]) -> tuple[int, tuple[int, int, int, int]]:
    """In how long an attempt gives back what it holds, on average."""
    holds = amounts(attempt.holds)
    job = w.jobs.get(attempt.job)
    if job is None or attempt.revoked is not None:
        return GOING_MS, holds
    took = _history(w, job.owner, job.spec)[0] or usual
    if attempt.started_ms is None:
        ready = _readying(w, job.owner, job.spec)
        return mean_ms(took) + (mean_ms(ready) if ready else 0), holds
    passed = w.now - attempt.started_ms
    longer = [ms - passed for ms in took if ms > passed]
    # Longer than any before: what lasted long may last as long again.
    return (mean_ms(longer) if longer else max(1, passed)), holds


# --- keeping what was foretold, and judging it ---


def predict(w: World, job: Job, lane: LaneKey, placed: bool) -> Job:
    """The job that is being submitted, with what is foretold of it where that is to be judged."""
    every_ms = KEPT_EVERY_MS if placed else KEPT_WAITING_MS
    mine = w.lifecycle.of(Estimates)
    if w.now - mine.predicted_ms < every_ms or duration_history.NETWORK not in w.paces:
        return job
    mine.predicted_ms = w.now
    estimate = of_new(w, job, lane, placed)
    if estimate.start is None and estimate.end is None:
        return job
    return replace(job, promise=Promise(estimate.wait_ms, estimate.start, estimate.end))


def body_started(w: World, attempt: Attempt) -> None:
    """A body runs for the first time: was its start foretold, and when will it end?"""
    job, mine = w.jobs[attempt.job], _mine(w)
    duration_history.readied(w, mine.sampled, job, attempt)
    promise = job.promise
    if promise is None:
        if w.now - mine.predicted_ms < KEPT_EVERY_MS or attempt.purpose is not Purpose.PLACED or job.attempts_made > 1:
            return
        promise, mine.predicted_ms = Promise(), w.now
    if promise.started:
        return
    if promise.start is not None:
        _judge(w, START, promise.start)
        if promise.wait_ms:
            actual = attempt.offered_ms - job.submitted_ms + WAIT_SMOOTH_MS
            network = _network(w)
            off = (*network.waits_permille, actual * 1000 // (promise.wait_ms + WAIT_SMOOTH_MS))
            w.put(replace(network, seq=w.written, waits_permille=off[-duration_history.NETWORK_KEPT :]))
    w.put(replace(job, promise=replace(promise, started=True, end_running=_running(w, job, attempt).end)))


def job_done(w: World, job: Job, attempt: Attempt) -> None:
    """Its result is accepted: was its end foretold?"""
    if job.promise is not None:
        if job.promise.end is not None:
            _judge(w, END, job.promise.end)
        if job.promise.end_running is not None:
            _judge(w, END_RUNNING, job.promise.end_running)
    duration_history.remember(w, _mine(w).sampled, job, attempt)


def _judge(w: World, sort: str, predicted: tuple[int, int]) -> None:
    network = _network(w)
    score = network.scores.get(sort, Score())
    right = predicted[0] <= w.now <= predicted[1]
    score = Score(
        score.right + right,
        score.early + (w.now < predicted[0]),
        score.late + (w.now > predicted[1]),
        adapted(score.stretch_permille, right),
    )
    w.put(replace(network, seq=w.written, scores={**network.scores, sort: score}))
