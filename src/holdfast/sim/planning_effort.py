"""Decides how much of a question is simulated: how large a part of the fleet, and how many worlds. Pure.

The cost of a world grows with its number of messages: while anything is awake, every busy node sends one every second,
and every machine that fails wakes all. So a fleet of thousands over weeks would take too long. In that case a part of
it is simulated, with the same number of jobs per node, which behaves alike; the answer says so.
"""

import math

from msgspec.structs import replace

from holdfast.quantities import counted
from holdfast.sim.planning import Plan, Question, Summary, daly_total_ms, too_large

EVENTS_TOTAL = 400_000
"""About what two cores simulate in ten seconds; it determines the number of runs."""
SECONDS_MAX = 20
"""A limit for slow machines and underestimated questions: after it, the results so far are reported."""
RUNS_MOST, SWEEP_RUNS_MOST = 200, 120
JOBS_LEAST, SWEEP_JOBS_LEAST = 24, 8
"""The least number of jobs that an answer is based on, if that many can be simulated in time."""
PART_MIN, PART_LEAST = 10, 3
"""The smallest part: few machines cannot stand in for each other as many can. The second number applies if even such a
part would take too long; the part still has as many nodes as two jobs need."""


def played_as(question: Question, tried: int) -> Question:
    """The question as it is simulated: itself, or a part of its fleet with the same number of jobs per node."""
    parts = 1
    if question.mtbf_ms and not question.return_ms:
        return question  # how long a fleet without returns lasts depends on its size
    least_of_all = min(PART_MIN, max(PART_LEAST, 2 * math.ceil(question.nodes / question.jobs)))
    for least, affordable in ((PART_MIN, 2 * EVENTS_TOTAL), (least_of_all, 8 * EVENTS_TOTAL)):
        while too_large(part := _part(question, parts)) or _effort(part, tried) > affordable:
            if question.nodes < least * (parts + 1) and not too_large(part):
                break
            parts += 1
    return _part(question, parts)


def _effort(part: Question, tried: int) -> int:
    """The least total number of events of all worlds for an answer."""
    main, beside = _least(part)
    return events_of(part) * (main + tried * beside)


def _least(part: Question) -> tuple[int, int]:
    return max(3, math.ceil(JOBS_LEAST / part.jobs)), max(1, math.ceil(SWEEP_JOBS_LEAST / part.jobs))


def _part(question: Question, parts: int) -> Question:
    """One of this many equal parts. A single job is not divided, and keeps enough machines to move to. If the whole
    fleet usually has a spare machine, so does the part: otherwise a job that lost its machine would wait for it to
    return."""
    nodes = max(1, question.nodes // parts)
    away = question.nodes * question.return_ms / (question.mtbf_ms + question.return_ms) if question.mtbf_ms else 0.0
    spare = question.nodes - question.jobs
    most = nodes - 1 if spare > 0 and spare >= away else question.jobs
    return replace(question, nodes=nodes, jobs=max(1, min(most, round(question.jobs * nodes / question.nodes))))


def of_the_whole(told: Summary, question: Question, part: Question) -> Summary:
    """Results of a part, scaled to the whole fleet. A part does not tell when the last job of the whole fleet ends."""
    if part == question:
        return told
    jobs, nodes = question.jobs / part.jobs, question.nodes / part.nodes
    return replace(
        told,
        falls=told.falls * nodes,
        takeovers=told.takeovers * jobs,
        node_hours=told.node_hours * jobs,
        all_p50_ms=0,
        all_p95_ms=0,
    )


def said_of_effort(plan: Plan) -> list[str]:
    """What a reader must know about how little was simulated, as text."""
    lines: list[str] = []
    question = plan.question
    if (plan.played_nodes, plan.played_jobs) != (question.nodes, question.jobs):
        nodes, jobs = plan.played_nodes, plan.played_jobs
        part = f"{counted(nodes, 'node')} and {counted(jobs, 'job')}"
        alike = "a part behaves like the whole" if nodes >= PART_MIN else "so small a part behaves only roughly alike"
        lines.append(f"simulated as {part}: {alike}")
    if plan.stopped:
        all_runs = plan.here.runs + plan.here.cut >= plan.runs_meant
        meant = "more intervals were planned" if all_runs else f"{counted(plan.runs_meant, 'run')} were planned"
        late = f"the time was up. --runs {plan.runs_meant} runs all of them"
        lines.append(f"{meant}; {late if plan.stopped == 'time' else 'you stopped it'}")
    if plan.here.cut:
        worlds = counted(plan.here.runs + plan.here.cut, "world")
        lines.append(f"{plan.here.cut} of {worlds} grew too large for the simulator: not counted")
    if plan.undecided:
        lines.append("too few worlds to say which interval is best")
    return lines


def events_of(question: Question) -> int:
    """The approximate number of events in one world of this question, from measurements; used to choose the runs."""
    busy = min(question.nodes, question.jobs)
    rounds = math.ceil(question.jobs / question.nodes)
    span = rounds * (question.length_ms + question.prepare_ms)
    if question.mtbf_ms:
        span = rounds * min(20 * question.length_ms, daly_total_ms(
            question.length_ms, question.every_ms, question.cost_ms, question.prepare_ms + 10_000, question.mtbf_ms
        ))  # fmt: skip
    falls = span / question.mtbf_ms if question.mtbf_ms else 0.0
    awake_s = 20 + 14 * busy * falls + 4 * question.jobs
    if question.nodes == busy + 1:  # jobs wait for the one spare machine until it is trusted again
        awake_s += 80 * question.nodes * falls
    saves = question.jobs * span / question.every_ms if question.every_ms else 0
    return round(awake_s * (8 + 6 * busy + 0.5 * question.nodes) + 9 * saves + 12 * question.nodes * (2 + falls))


def runs_for(question: Question, tried: int) -> tuple[int, int]:
    """How many worlds to run for the question itself, and for each of the other intervals."""
    affordable = EVENTS_TOTAL // max(1, events_of(question))
    least, beside = _least(question)
    main = max(least, min(RUNS_MOST, affordable // 3 if tried else affordable))
    if not tried:
        return main, 0
    return main, max(beside, min(SWEEP_RUNS_MOST, main, (affordable - main) // tried))
