"""The planner's question, the outcome of one simulated world, and the summary of many.

`Question` is a fleet, its churn and a kind of job. `holdfast.sim.planning_world` simulates it once for each seed;
`summary` combines the outcomes into the answer. Pure: no clock, file, process or screen.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.model import Settings
from holdfast.model.job import CHECKPOINT_MS_MIN

NODES_MAX = JOBS_MAX = 100_000
JOBS_PER_NODE_MAX = 500
PLAYED_MAX, BUSY_MAX = 500, 50
"""The largest fleet that is simulated as a whole: in nodes or jobs, and in nodes at work at the same time."""
RUNS_MAX = 1_000
"""Limits of a question: a plan is computed while somebody waits for it."""
TELLING_MIN = 20
"""With fewer jobs, the 95th percentile is the longest; with fewer than three worlds, noise cannot be estimated."""
QUANTILES = 20
SPREAD = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Checkpoint intervals to try, as multiples of the formula's interval."""


class Cause(StrEnum):
    """The causes of a job's elapsed time. Every moment between submission and end has exactly one."""

    USEFUL = "useful work"
    REDONE = "work redone"
    SAVING = "checkpoint writing"
    DETECTING = "detection"
    PREPARING = "preparing"
    WAITING = "waiting"
    DELIVERING = "delivering"


LOSSES = tuple(cause for cause in Cause if cause is not Cause.USEFUL)


class Question(msgspec.Struct, frozen=True):
    nodes: int
    length_ms: int
    """Computing time of one job, undisturbed and without checkpoints."""
    mtbf_ms: int = 0
    """Mean time until a node goes down; 0: never."""
    return_ms: int = 0
    """Mean time until it is back; 0: it never comes back."""
    every_ms: int = 0
    """Time between two checkpoints; 0: the job saves nothing and starts over."""
    cost_ms: int = 0
    """How long a job pauses to write a checkpoint."""
    prepare_ms: int = 0
    """Time to prepare an attempt, on any node."""
    jobs: int = 1
    """Jobs submitted at the same moment; a node runs one at a time."""
    attempts: int | None = None
    """Failures after which a job is given up, as set by its owner; None: the network's default."""
    preset: str = "lan"


class PlannedOutcome(msgspec.Struct, frozen=True):
    """One world: a seed, and what happened to the jobs."""

    seed: int
    took_ms: tuple[int, ...]
    """For the jobs that succeeded: from submission to the accepted result."""
    started_ms: tuple[int, ...]
    """For the same jobs: time until each was first placed on a node."""
    unfinished: int
    failed: dict[str, int]
    """By failure code."""
    all_ms: int
    """Time until the last job succeeded; 0 if not all did."""
    spent_ms: dict[str, int]
    """By cause, over the jobs that succeeded."""
    node_ms: int
    """Time during which nodes were occupied, by all jobs."""
    falls: int
    takeovers: int
    events: int
    cut: bool = False
    """The simulator's guard ended this world, not the jobs or their time limit: it says nothing about the jobs."""


class Summary(msgspec.Struct, frozen=True):
    """The combined result of many worlds for one question."""

    every_ms: int
    runs: int
    jobs: int
    succeeded: int
    unfinished: int
    failed: dict[str, int]
    goodput: float
    """Useful computing as a share of the time from a job's first start to its accepted result."""
    p50_ms: int
    """One job, from submission to the accepted result."""
    p95_ms: int
    mean_ms: int
    quantiles_ms: tuple[int, ...]
    """The time within which each twentieth of the submitted jobs had succeeded, as far as they did."""
    all_p50_ms: int
    """All jobs of a run; 0 if no run finished all of them."""
    all_p95_ms: int
    spent_ms: dict[str, int]
    """By cause: the mean over the jobs that succeeded."""
    node_hours: float
    """Mean of a run: the time during which nodes were occupied."""
    falls: float
    takeovers: float
    """Mean of a run."""
    cut: int = 0
    """Further worlds that were not simulated to their end. They are not part of these figures."""


class Plan(msgspec.Struct, frozen=True):
    """The complete answer."""

    question: Question
    seed: int
    here: Summary
    """With the requested checkpoint interval."""
    sweep: tuple[Summary, ...]
    """With other intervals, by length; empty if none were tried."""
    best_every_ms: int
    """The interval, of all that were tried, with the lowest mean job time; 0: none was tried."""
    formula_every_ms: int
    """Young's and Daly's formulas; 0 where they do not apply."""
    formula_mean_ms: int
    """Daly's time for one job with the requested interval: a formula to compare with the simulation."""
    as_good_ms: tuple[int, ...] = ()
    """Intervals that are statistically as good as the best: on the same worlds they differ by less than the noise.
    Empty: there were too few worlds to tell."""
    price: float | None = None
    """For a node hour."""
    cost: float | None = None
    """For a run, in the same currency."""
    played_nodes: int = 0
    played_jobs: int = 0
    """The part of the fleet that was simulated, if the whole would take too long (planning_effort)."""
    runs_meant: int = 0
    stopped: str = ""
    """Why fewer runs or intervals were simulated than intended: `time` or `interrupted`; empty: all were simulated."""

    @property
    def surely_best_ms(self) -> int:
        """The best interval, if there were enough worlds to rule out chance; else 0."""
        return self.best_every_ms if self.as_good_ms else 0

    @property
    def undecided(self) -> bool:
        """Whether intervals were compared, but with too few worlds to tell which is best."""
        several = len(intervals(self.question)) > 1
        return several and not self.as_good_ms and (not self.sweep or self.best_every_ms > 0)


def percentile(values: Sequence[int], share: float) -> int:
    """The smallest value such that at least this share of the values is not greater."""
    if not values:
        return 0
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summary(question: Question, played: Sequence[PlannedOutcome]) -> Summary:
    outcomes = [one for one in played if not one.cut]
    took = [ms for one in outcomes for ms in one.took_ms]
    whole = [one.all_ms for one in outcomes if one.all_ms]
    failed: dict[str, int] = {}
    for one in outcomes:
        for code, count in one.failed.items():
            failed[code] = failed.get(code, 0) + count
    spent = {cause.value: sum(one.spent_ms.get(cause.value, 0) for one in outcomes) for cause in Cause}
    running = sum(sum(one.took_ms) - sum(one.started_ms) for one in outcomes)
    runs = max(1, len(outcomes))
    return Summary(
        every_ms=question.every_ms,
        runs=len(outcomes),
        jobs=question.jobs * len(outcomes),
        succeeded=len(took),
        unfinished=sum(one.unfinished for one in outcomes),
        failed=dict(sorted(failed.items())),
        goodput=spent[Cause.USEFUL] / running if running else 0.0,
        p50_ms=percentile(took, 0.5),
        p95_ms=percentile(took, 0.95),
        mean_ms=round(sum(took) / len(took)) if took else 0,
        quantiles_ms=_quantiles(took, question.jobs * len(outcomes)),
        all_p50_ms=percentile(whole, 0.5) if len(whole) == len(outcomes) else 0,
        all_p95_ms=percentile(whole, 0.95) if len(whole) == len(outcomes) else 0,
        spent_ms={cause: round(ms / len(took)) if took else 0 for cause, ms in spent.items()},
        node_hours=sum(one.node_ms for one in outcomes) / runs / 3_600_000,
        falls=sum(one.falls for one in outcomes) / runs,
        takeovers=sum(one.takeovers for one in outcomes) / runs,
        cut=len(played) - len(outcomes),
    )


def _quantiles(took: Sequence[int], submitted: int) -> tuple[int, ...]:
    ranked = sorted(took)
    places = [max(1, math.ceil(step * submitted / QUANTILES)) for step in range(QUANTILES + 1)]
    return tuple(ranked[place - 1] for place in places if place <= len(ranked))


# --- formulas to compare with the simulation ---


def young_ms(cost_ms: float, mtbf_ms: float) -> float:
    """Young's interval between two checkpoints: sqrt(2 C M)."""
    return math.sqrt(2 * cost_ms * mtbf_ms)


def daly_every_ms(cost_ms: float, mtbf_ms: float) -> float:
    """Daly's interval of higher order: sqrt(2 C M) (1 + sqrt(C/2M)/3 + C/18M) - C for C < 2M, else M."""
    if cost_ms >= 2 * mtbf_ms:
        return mtbf_ms
    ratio = cost_ms / (2 * mtbf_ms)
    return young_ms(cost_ms, mtbf_ms) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_ms


def daly_total_ms(work_ms: float, every_ms: float, cost_ms: float, restart_ms: float, mtbf_ms: float) -> float:
    """Daly's time for a job under exponential losses: M e^(R/M) (e^((t+C)/M) - 1) W/t. The last piece of work is not
    saved, so with t >= W there is one piece of length W."""
    if every_ms <= 0 or every_ms >= work_ms:
        every_ms, cost_ms = work_ms, 0.0
    if not mtbf_ms:
        return work_ms + cost_ms * (math.ceil(work_ms / every_ms) - 1)
    pieces = work_ms / every_ms
    exponent = min(700.0, (every_ms + cost_ms) / mtbf_ms)
    return mtbf_ms * math.exp(min(700.0, restart_ms / mtbf_ms)) * math.expm1(exponent) * pieces


def intervals(question: Question) -> list[int]:
    """Checkpoint intervals worth trying for this question, shortest first; empty if there is no choice."""
    if not question.mtbf_ms or not question.every_ms:
        return []
    centre = daly_every_ms(max(1, question.cost_ms), question.mtbf_ms) if question.cost_ms else question.every_ms
    tried = {max(1_000, round(centre * factor, -3)) for factor in SPREAD} | {question.every_ms}
    kept = sorted(round(every) for every in tried if every < question.length_ms)
    return [every for every in kept if every >= max(1_000, question.cost_ms)] or [question.every_ms]


def too_large(question: Question) -> bool:
    """Whether only a part of such a fleet can be simulated."""
    return max(question.nodes, question.jobs) > PLAYED_MAX or min(question.nodes, question.jobs) > BUSY_MAX


def impossible(question: Question) -> str:
    """Why this cannot be simulated, as text; empty: it can."""
    if question.jobs > JOBS_PER_NODE_MAX * question.nodes:
        return f"more than {JOBS_PER_NODE_MAX} jobs for each node are not simulated"
    if question.mtbf_ms and not question.return_ms and too_large(question):
        return (
            f"a fleet whose nodes never return is simulated as a whole, which is at most {PLAYED_MAX} nodes or jobs, "
            f"{BUSY_MAX} of them at work"
        )
    settings = Settings.preset(question.preset)
    if question.prepare_ms >= settings.prepare_ms_max:
        return f"the network gives an attempt {settings.prepare_ms_max // 60_000} min to be prepared, and no more"
    if question.every_ms and question.every_ms < CHECKPOINT_MS_MIN:
        return "a checkpoint more often than every second leaves no time for the job"
    return ""


def best(tried: Sequence[Summary]) -> int:
    """The interval with the lowest mean job time. Intervals with which jobs were lost are excluded."""
    whole = [one for one in tried if one.succeeded == one.jobs and one.jobs]
    return min(whole, key=lambda one: (one.mean_ms, one.every_ms)).every_ms if whole else 0


def as_good(outcomes: Mapping[int, Sequence[PlannedOutcome]], best_ms: int) -> tuple[int, ...]:
    """The best interval and those that are statistically as good: on the same worlds, in which the same machines fail
    at the same moments, the mean difference is less than two of its standard errors."""
    of_best = outcomes.get(best_ms, ())
    if len(of_best) < 3:
        return ()
    alike: list[int] = []
    for every, worlds in sorted(outcomes.items()):
        pairs = [(a, b) for a, b in zip(worlds, of_best, strict=False) if a.took_ms and b.took_ms]
        more = [sum(a.took_ms) / len(a.took_ms) - sum(b.took_ms) / len(b.took_ms) for a, b in pairs]
        if len(more) < 3 or any(a.unfinished or a.failed for a, _ in pairs):
            continue
        mean = sum(more) / len(more)
        error = math.sqrt(sum((x - mean) ** 2 for x in more) / (len(more) - 1) / len(more))
        if mean <= 2 * error:
            alike.append(every)
    return tuple(alike)
