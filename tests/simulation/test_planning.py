"""The planner: simulated worlds against what is known without them, and against themselves."""

import math
from functools import cache

import pytest
from msgspec.structs import replace

from holdfast.model import Settings
from holdfast.sim import planning_world
from holdfast.sim.planning import (
    Cause,
    PlannedOutcome,
    Question,
    as_good,
    best,
    daly_every_ms,
    daly_total_ms,
    impossible,
    intervals,
    percentile,
    summary,
    too_large,
    young_ms,
)
from holdfast.sim.planning_effort import EVENTS_TOTAL, PART_LEAST, PART_MIN, events_of, played_as, runs_for
from holdfast.sim.planning_world import play

pytestmark = pytest.mark.spec("A6")

MINUTE, HOUR = 60_000, 3_600_000
SMALL_MS = 500
"""What offering, starting and accepting take together on an idle network, with room to spare."""
STEADY = Question(nodes=4, length_ms=48 * HOUR, mtbf_ms=12 * HOUR, return_ms=10 * MINUTE, every_ms=2 * HOUR,
                  cost_ms=5 * MINUTE, prepare_ms=10_000, attempts=1_000)  # fmt: skip
"""Spare machines, so that nobody waits: the formula's world."""
POISONED = (2,)
"""Worlds in which a job of a month used to be taken for the cause (docs/decisions/0017)."""


@cache
def worlds(question: Question, runs: int) -> tuple[PlannedOutcome, ...]:
    return tuple(play(question, seed) for seed in range(runs))


def test_without_churn_a_job_takes_its_length_and_the_overheads() -> None:
    # given machines that never go
    question = Question(3, 5 * HOUR, every_ms=HOUR, cost_ms=30_000, prepare_ms=20_000)

    # when it is simulated
    (outcome,) = worlds(question, 1)

    # then the time is that of the work, of preparing once and of four checkpoints: the last hour is not saved
    overheads = 20_000 + 4 * 30_000
    assert 0 <= outcome.took_ms[0] - (5 * HOUR + overheads) < SMALL_MS
    told = summary(question, [outcome])
    assert told.goodput == pytest.approx(5 * HOUR / (5 * HOUR + overheads), abs=1e-4)
    assert (told.falls, told.takeovers, told.failed, told.unfinished) == (0, 0, {}, 0)


def test_every_millisecond_has_a_cause_and_the_useful_ones_are_the_jobs_length() -> None:
    question = replace(STEADY, jobs=3, length_ms=20 * HOUR, mtbf_ms=6 * HOUR)
    for outcome in worlds(question, 4):
        assert sum(outcome.spent_ms.values()) == sum(outcome.took_ms)
        assert outcome.spent_ms[Cause.USEFUL] == question.length_ms * len(outcome.took_ms)
        assert outcome.falls > 0


def test_a_job_that_saves_its_state_takes_what_dalys_formula_says() -> None:
    # given machines that go at random, and spare ones
    outcomes = worlds(STEADY, 60)
    took = [ms for one in outcomes for ms in one.took_ms]
    mean = sum(took) / len(took)

    # when the formula is asked: after a loss, a few seconds until it is found, and preparing
    restart = 10_000 + Settings.lan().silence_floor_ms
    formula = daly_total_ms(STEADY.length_ms, STEADY.every_ms, STEADY.cost_ms, restart, STEADY.mtbf_ms)

    # then they agree, within what sixty runs can tell
    spread = math.sqrt(sum((ms - mean) ** 2 for ms in took) / len(took)) / math.sqrt(len(took))
    assert len(took) == 60
    assert abs(mean - formula) < 3 * spread + 0.01 * formula, (mean / formula, spread / formula)
    assert mean > STEADY.length_ms * 1.05, "losses cost something"


def test_what_is_lost_with_a_machine_is_computed_again() -> None:
    # given jobs that lost machines
    outcomes = [one for one in worlds(STEADY, 60) if one.takeovers]
    assert len(outcomes) > 30
    for one in outcomes:
        # then each loss cost some work, and never more than lies between two checkpoints
        redone = one.spent_ms[Cause.REDONE]
        assert 0 < redone <= one.takeovers * (STEADY.every_ms + 1)
    # and on average about half an interval, for a machine goes at any moment of it
    lost = sum(one.spent_ms[Cause.REDONE] for one in outcomes) / sum(one.takeovers for one in outcomes)
    assert 0.35 < lost / STEADY.every_ms < 0.6


def test_a_lost_machine_is_found_as_quickly_as_the_settings_promise() -> None:
    settings = Settings.lan()
    outcomes = [one for one in worlds(STEADY, 60) if one.takeovers]
    found = sum(one.spent_ms[Cause.DETECTING] for one in outcomes) / sum(one.takeovers for one in outcomes)
    assert 500 < found <= settings.silence_ceiling_ms + settings.keepalive_ms


def test_nothing_is_left_out_but_talk() -> None:
    # given one machine that comes and goes: what happens does not hang on who is chosen
    question = Question(1, 8 * MINUTE, mtbf_ms=3 * MINUTE, return_ms=30_000, every_ms=MINUTE, cost_ms=2_000,
                        prepare_ms=3_000, attempts=100)  # fmt: skip
    seen = 0
    for seed in range(5):
        # when the same world is played with all that is said, and without
        whole, quick = play(question, seed, leaps=False), play(question, seed)
        seen += whole.takeovers

        # then it is the same story, told with a fraction of the events
        assert whole.falls == quick.falls and whole.takeovers == quick.takeovers
        assert whole.took_ms[0] == pytest.approx(quick.took_ms[0], abs=2_000)
        assert whole.spent_ms[Cause.REDONE] == pytest.approx(quick.spent_ms[Cause.REDONE], abs=2_000)
        assert whole.spent_ms[Cause.WAITING] == pytest.approx(quick.spent_ms[Cause.WAITING], abs=4_000)
        assert quick.events < whole.events
    assert seen > 3


def test_a_machine_that_is_back_is_given_the_time_to_prove_itself() -> None:
    # given two machines and one job, so that the job often moves to the one that went before
    question = Question(2, 40 * MINUTE, mtbf_ms=15 * MINUTE, return_ms=2 * MINUTE, every_ms=MINUTE, cost_ms=1_000,
                        prepare_ms=3_000, attempts=100)  # fmt: skip
    whole, quick = ([play(question, seed, leaps) for seed in (0, 2)] for leaps in (False, True))

    # then it does not wait for quarantines that would long be over
    waited = [sum(one.spent_ms.get(Cause.WAITING, 0) for one in some) for some in (whole, quick)]
    assert sum(one.takeovers for one in whole) > 4
    assert waited[1] == pytest.approx(waited[0], abs=15_000), waited


def test_more_churn_never_helps() -> None:
    means = [summary(q, worlds(q, 12)).mean_ms for q in (
        replace(STEADY, mtbf_ms=0), replace(STEADY, mtbf_ms=48 * HOUR), STEADY, replace(STEADY, mtbf_ms=6 * HOUR)
    )]  # fmt: skip
    assert means == sorted(means) and means[0] < means[-1]


def test_a_seed_names_an_answer() -> None:
    question = replace(STEADY, length_ms=10 * HOUR, mtbf_ms=4 * HOUR)
    assert play(question, 3) == play(question, 3)
    assert play(question, 3).took_ms != play(question, 4).took_ms


def test_the_best_interval_lies_where_the_formula_puts_it() -> None:
    # given a clear case: saving costs five minutes, machines last twelve hours
    formula = daly_every_ms(STEADY.cost_ms, STEADY.mtbf_ms)
    tried = [summary(replace(STEADY, every_ms=every), worlds(replace(STEADY, every_ms=every), 16))
             for every in intervals(STEADY)]  # fmt: skip

    # then the best of those that were tried is near the formula's, and the ends of the range are worse
    assert 0.5 <= best(tried) / formula <= 2
    assert min(tried[0].mean_ms, tried[-1].mean_ms) > min(one.mean_ms for one in tried)
    assert STEADY.every_ms in {one.every_ms for one in tried}


def test_without_checkpoints_a_job_starts_over() -> None:
    question = Question(4, 6 * HOUR, mtbf_ms=12 * HOUR, return_ms=10 * MINUTE, attempts=1_000)
    outcomes = [one for one in worlds(question, 30) if one.takeovers]
    assert outcomes
    assert all(
        one.took_ms[0] >= question.length_ms + one.spent_ms[Cause.REDONE] > question.length_ms for one in outcomes
    )
    assert intervals(question) == []


def test_jobs_wait_for_each_other_where_machines_are_few() -> None:
    question = Question(2, HOUR, jobs=6)
    (outcome,) = worlds(question, 1)
    told = summary(question, [outcome])
    assert told.all_p50_ms == pytest.approx(3 * HOUR, abs=10_000)
    assert told.p50_ms == pytest.approx(2 * HOUR, abs=10_000)
    assert told.node_hours == pytest.approx(6, abs=0.01)
    assert told.goodput > 0.999, "waiting for a free machine is no loss of theirs"


def test_a_job_that_cannot_succeed_is_told_as_that() -> None:
    # given machines that go within minutes, and a network that takes such a job for the cause
    question = Question(6, 4 * HOUR, mtbf_ms=4 * MINUTE, return_ms=MINUTE)
    told = summary(question, worlds(question, 3))
    assert told.succeeded == 0 and sum(told.failed.values()) + told.unfinished == 3
    assert told.failed.get("poison")
    assert best([told]) == 0


def test_what_would_take_too_long_is_refused_in_words() -> None:
    assert "500 jobs for each node" in impossible(Question(2, HOUR, jobs=1_001))
    assert "prepared" in impossible(Question(2, HOUR, prepare_ms=HOUR))
    assert impossible(STEADY) == ""


def test_the_number_of_runs_follows_from_the_work() -> None:
    light, heavy = Question(5, HOUR), replace(STEADY, nodes=20, jobs=20)
    for question in (light, heavy):
        main, beside = runs_for(question, len(intervals(question)))
        assert 3 <= main <= 200 and 0 <= beside <= main
    assert runs_for(light, 0)[0] > runs_for(heavy, 5)[0]


@pytest.mark.parametrize(
    "question",
    [
        Question(1_000, 14 * 24 * HOUR, jobs=1_000, mtbf_ms=24 * HOUR, return_ms=HOUR, every_ms=HOUR, cost_ms=10_000),
        Question(100_000, 10 * HOUR, jobs=30_000, mtbf_ms=240 * HOUR, return_ms=HOUR),
        Question(1_000, 30 * 24 * HOUR, mtbf_ms=HOUR, return_ms=HOUR, every_ms=10 * MINUTE, cost_ms=10_000),
        Question(7, HOUR, jobs=3_000),
        Question(12, 30 * 24 * HOUR, jobs=12, mtbf_ms=HOUR, return_ms=HOUR, every_ms=10 * MINUTE),
        Question(19, 30 * 24 * HOUR, jobs=18, mtbf_ms=24 * HOUR, return_ms=HOUR // 2, every_ms=HOUR, cost_ms=10_000),
        Question(40, 30 * 24 * HOUR, jobs=39, mtbf_ms=24 * HOUR, return_ms=2 * HOUR, every_ms=HOUR, cost_ms=10_000),
        Question(19, 30 * 24 * HOUR, jobs=9, mtbf_ms=HOUR, return_ms=HOUR // 2, every_ms=HOUR // 2, cost_ms=10_000),
    ],
    ids=[
        "large and long",
        "very large",
        "one job among many nodes",
        "many jobs",
        "small and endless",
        "one spare",
        "one spare that is mostly taken",
        "half of them spare",
    ],
)
def test_of_what_is_too_much_a_part_is_simulated_with_as_many_jobs_for_each_node(question: Question) -> None:
    part = played_as(question, 5)
    assert part != question and replace(part, nodes=question.nodes, jobs=question.jobs) == question
    assert not too_large(part)
    runs, beside = runs_for(part, 5)
    least = min(PART_MIN, max(PART_LEAST, 2 * math.ceil(question.nodes / question.jobs)))
    assert part.nodes < 2 * least or (runs + 5 * beside) * events_of(part) <= 8 * EVENTS_TOTAL
    assert part.nodes >= least or too_large(replace(part, nodes=least, jobs=least * question.jobs // question.nodes))
    if question.jobs > 1:
        assert abs(part.jobs - question.jobs * part.nodes / question.nodes) < 1
    away = question.nodes * question.return_ms / (question.mtbf_ms + question.return_ms) if question.mtbf_ms else 0
    spare = question.nodes - question.jobs
    assert (part.jobs < part.nodes) == (spare > 0 and spare >= away), "a machine to spare is one in the part as well"


def test_a_fleet_of_which_nobody_comes_back_is_simulated_as_a_whole() -> None:
    lasting = Question(100, 200 * HOUR, mtbf_ms=24 * HOUR, every_ms=HOUR, cost_ms=10_000)
    assert played_as(lasting, 5) == lasting
    assert "as a whole" in impossible(replace(lasting, nodes=1_000))
    assert impossible(replace(lasting, nodes=1_000, return_ms=HOUR)) == ""


def test_what_is_not_too_much_is_simulated_as_it_is() -> None:
    for question in (STEADY, Question(20, 10 * HOUR, jobs=20, mtbf_ms=240 * HOUR), Question(10, 10 * HOUR, jobs=40)):
        assert played_as(question, len(intervals(question))) == question


def test_a_part_of_a_fleet_fares_like_the_whole() -> None:
    whole = Question(
        16, 4 * HOUR, mtbf_ms=8 * HOUR, return_ms=10 * MINUTE, every_ms=20 * MINUTE, cost_ms=5_000, jobs=20
    )
    part = replace(whole, nodes=8, jobs=10)
    one, other = summary(whole, worlds(whole, 1)), summary(part, worlds(part, 2))
    assert one.mean_ms == pytest.approx(other.mean_ms, rel=0.06)
    assert one.goodput == pytest.approx(other.goodput, rel=0.06)


def test_a_world_that_the_simulator_cuts_short_is_no_failure_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a world that ends well
    question = Question(2, 4 * HOUR, jobs=4)
    (whole,) = worlds(question, 1)
    assert not whole.cut
    # when the guard against worlds that run away ends it before
    monkeypatch.setattr(planning_world, "EVENTS_MAX", whole.events // 2)
    cut = play(question, 0)
    # then it is known for that, and nothing is told from it
    assert cut.cut and cut.unfinished
    told = summary(question, [whole, cut])
    assert (told.runs, told.cut) == (1, 1)
    assert replace(told, cut=0) == summary(question, [whole])


def test_on_a_single_machine_the_best_interval_is_young_and_dalys_within_its_noise() -> None:
    # given one machine that comes and goes, and a job that stands still for five minutes to save
    question = replace(STEADY, nodes=1, return_ms=MINUTE)
    formula = daly_every_ms(question.cost_ms, question.mtbf_ms)
    tried = [round(formula * factor) for factor in (0.25, 0.5, 1, 2, 4)]

    # when intervals around the formula's are tried on the same worlds
    outcomes = {every: worlds(replace(question, every_ms=every), 10) for every in tried}
    found = best([summary(replace(question, every_ms=every), outcomes[every]) for every in tried])
    alike = as_good(outcomes, found)

    # then the formula's is the best, or cannot be told from it; and there is no more noise than that
    assert found in alike and tried[2] in alike
    assert tried[0] not in alike and tried[4] not in alike
    assert as_good({every: some[:2] for every, some in outcomes.items()}, found) == ()


def test_jobs_that_lost_their_machines_are_not_put_behind_fresh_ones() -> None:
    """Forty jobs on ten machines that go every twelve hours: without that, goodput was 47 %."""
    question = Question(10, 10 * HOUR, mtbf_ms=12 * HOUR, return_ms=30 * MINUTE, every_ms=30 * MINUTE, cost_ms=10_000,
                        prepare_ms=10_000, jobs=40)  # fmt: skip
    told = summary(question, worlds(question, 1))
    assert told.succeeded == 40
    assert told.goodput > 0.9


def test_a_job_of_weeks_is_not_stopped_for_machines_that_go() -> None:
    """It lost more than two machines within ten minutes of its start there, and got on in between."""
    question = Question(10, 30 * 24 * HOUR, mtbf_ms=6 * HOUR, return_ms=30 * MINUTE, every_ms=30 * MINUTE,
                        cost_ms=10_000, prepare_ms=10_000)  # fmt: skip
    told = summary(question, [play(question, seed) for seed in POISONED])
    assert told.failed == {} and told.succeeded == len(POISONED)


def test_formulas() -> None:
    assert young_ms(2, 100) == 20
    assert daly_every_ms(MINUTE, 24 * HOUR) == pytest.approx(young_ms(MINUTE, 24 * HOUR), rel=0.05)
    assert daly_every_ms(3 * HOUR, HOUR) == HOUR
    assert daly_total_ms(10 * HOUR, HOUR, 60_000, 0, 0) == 10 * HOUR + 9 * 60_000
    assert daly_total_ms(10 * HOUR, HOUR, 0, 0, 10_000 * HOUR) == pytest.approx(10 * HOUR, rel=1e-3)
    assert (percentile([3, 1, 2], 0.5), percentile([3, 1, 2], 0.95), percentile([], 0.5)) == (2, 3, 0)
