"""Predicts when jobs start and end, as intervals that should hold four times out of five, and judges them (SPEC J15).

A prediction is based on how long similar jobs took to prepare and to run, and on a forecast of the queue
(policy.forecast). If no similar job ever ran, no end is predicted. For some jobs the prediction is kept and judged when
the outcome is known. The score is part of the network's row and widens or narrows later predictions. No decision
depends on any of it (docs/decisions/0015).
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

NODES_FORECAST = 64
NODES_LOOKED_AT = 2_000
JOBS_FORECAST = 128
ATTEMPTS_FORECAST = 1_000
"""Limits of one forecast: it takes some ten milliseconds in a network of any size. In a larger network, a sample of the
nodes is forecast with the same fraction of the queue."""
SHARED_MS = 1_000
"""Forecasts are cached for this long and shared between callers."""
ORDERED_MAX = 2_048
KEPT_EVERY_MS = 250
"""At most one prediction in this time is kept and judged, so that submitting stays cheap under any load."""
KEPT_WAITING_MS = 1_000
"""The same for jobs that must wait: each of them needs a forecast of the queue."""
GOING_MS = 1_000
"""A revoked attempt is gone after about this long."""
GUESSED_WAIT = Spread(500, 1_000, 2_000)
"""The assumed ratio of actual to predicted waits, in thousandths, until enough are measured."""
WAIT_SMOOTH_MS = 1_000
FEW_WAITS = 5
START, END, END_RUNNING = "start", "end", "end_running"
"""The sorts of judged estimates: start and end, made at submission, and the end, made when the body starts."""

NOTHING_ALIKE = "no estimate of the end: nothing like it has run here"


class Estimates(Mechanism):
    def __init__(self) -> None:
        self.sampled = duration_history.Sampled()
        self.predicted_ms = Instant(0)
        """When a prediction was last kept to be judged."""
        self.forecast: tuple[Instant, dict[str, int]] | None = None
        """The last forecast of the queue that was made for questions, and its time. No decision depends on it."""

    def body_started(self, w: World, attempt: Attempt, first: bool) -> None:
        if first:
            body_started(w, attempt)

    def accepted(self, w: World, job: Job, attempt: Attempt) -> None:
        job_done(w, job, attempt)


def _mine(w: World) -> Estimates:
    return w.lifecycle.of(Estimates)


# --- asking ---


def of_new(w: World, job: Job, lane: LaneKey, placed: bool) -> Estimate:
    """The estimate of a job that is not submitted, or is being submitted now."""
    return _before_body(w, job, 0, 0 if placed else _wait_ms(w, job, lane), placed)


def of_live(w: World, job_id: JobId, waits: "dict[str, int] | None" = None) -> Estimate | None:
    """The estimate of a live job. `waits`: a forecast of the queue made for many jobs. A job that is not in it gets no
    estimate then, because counting the jobs ahead of each would take too long."""
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
    """The estimates of several jobs, with one forecast of the queue for all of them."""
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
    """The estimate of a job whose body has not started. `passed_ms`: time since its offer to a machine."""
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
    """The durations of the most similar jobs on record, and the likeness in words."""
    for kind, words in duration_history.kinds_alike(owner, spec):
        history = w.durations.get(kind)
        if history is not None and history.took_ms:
            runs = len(history.took_ms)
            return history.took_ms, f"the last {runs} {words}" if runs > 1 else f"the only one {words}"
    return (), ""


def _readying(w: World, owner: Owner, spec: JobSpec) -> tuple[int, ...]:
    for kind in (*(kind for kind, _ in duration_history.kinds_alike(owner, spec)), duration_history.NETWORK):
        history = w.durations.get(kind)
        if history is not None and history.readied_ms:
            return history.readied_ms
    return ()


def _network(w: World) -> DurationHistory:
    return w.durations.get(duration_history.NETWORK) or DurationHistory(duration_history.NETWORK, 0, ())


def _stretch(w: World, sort: str) -> int:
    return _network(w).scores.get(sort, Score()).stretch_permille


def _waiting(w: World, point_ms: int) -> Spread:
    """A forecast wait as an interval, by the errors of earlier forecasts."""
    off = _network(w).waits_permille
    factors = spread(off) if len(off) >= FEW_WAITS else GUESSED_WAIT
    smooth = point_ms + WAIT_SMOOTH_MS
    return Spread(*(max(0, smooth * factor // 1000 - WAIT_SMOOTH_MS) for factor in factors))


# --- the queue ---


def _wait_ms(w: World, job: Job, lane: LaneKey) -> int | None:
    """How long a job that joins the queue now is predicted to wait for room; None: unknown."""
    waits = forecast_queue(w, (job.id, job.owner, job.spec.priority, lane), job)
    point = waits.get(job.id)
    return _beyond(w, waits, w.queue.turn_if(job.owner, job.spec.priority)) if point is None else point


def _beyond(w: World, waits: dict[str, int], turn: int) -> int | None:
    """The wait of a job that is not in the forecast. Behind all jobs of the forecast: extrapolated at their rate. Among
    them, where the forecast is a sample: the wait of the job whose turn is closest."""
    share = _forecast_scope(w)[1]
    place = turn // share
    if waits and place > len(waits):
        return max(waits.values()) * place // len(waits)
    return sorted(waits.values())[max(0, place - 1)] if waits and share > 1 else None


def _forecast_scope(w: World) -> tuple[list[Node], int]:
    """The machines in a forecast, and how many times larger the fleet is. The queue is sampled alike."""
    working: list[Node] = []
    looked_at = attempts = 0
    for node_id in islice(w.present, NODES_LOOKED_AT):
        node = w.nodes[node_id]
        if node.state not in _WORKING:
            continue
        looked_at += 1
        if not node.draining:
            working.append(node)
            attempts += len(w.fleet[node.id].held)
        if looked_at >= NODES_FORECAST or attempts >= ATTEMPTS_FORECAST:
            break
    return working, max(1, sum(w.states.get(state, 0) for state in _WORKING) // max(1, looked_at))


def _waits(w: World) -> dict[str, int]:
    """Milliseconds until each waiting job finds room, from a forecast that all callers share."""
    known = _mine(w).forecast
    if known is None or w.now - known[0] >= SHARED_MS:
        known = _mine(w).forecast = (w.now, forecast_queue(w))
    passed = w.now - known[0]
    return {job: max(0, ms - passed) for job, ms in known[1].items()} if passed else known[1]


def forecast_queue(
    w: World, newcomer: "tuple[JobId, Owner, int, LaneKey] | None" = None, new_job: Job | None = None
) -> dict[str, int]:
    """Forecast the queue: milliseconds until each waiting job finds room, as far as this can be predicted."""
    usual = _network(w).took_ms
    if not usual:
        return {}
    nodes, share = _forecast_scope(w)
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

    order = w.queue.in_order(min(ORDERED_MAX, JOBS_FORECAST * share), _weight_of, newcomer)
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
    """Mean milliseconds until an attempt frees what it holds, and what it holds."""
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
    # It has run longer than any before: assume that it runs as long again.
    return (mean_ms(longer) if longer else max(1, passed)), holds


# --- keeping predictions, and judging them ---


def predict(w: World, job: Job, lane: LaneKey, placed: bool) -> Job:
    """The job that is being submitted, with its prediction if that is to be judged."""
    every_ms = KEPT_EVERY_MS if placed else KEPT_WAITING_MS
    mine = w.lifecycle.of(Estimates)
    if w.now - mine.predicted_ms < every_ms or duration_history.NETWORK not in w.durations:
        return job
    mine.predicted_ms = w.now
    estimate = of_new(w, job, lane, placed)
    if estimate.start is None and estimate.end is None:
        return job
    return replace(job, promise=Promise(estimate.wait_ms, estimate.start, estimate.end))


def body_started(w: World, attempt: Attempt) -> None:
    """A body runs for the first time: judge the prediction of its start, and predict its end."""
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
    """A result is accepted: judge the predictions of the job's end, and record its duration."""
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
