"""How much of a plan is simulated: what is told when it was less than was meant, and who is left behind then."""

import subprocess
import sys
from collections.abc import Generator

import pytest
from msgspec.structs import replace

from holdfast.cli.commands import plan as plan_command
from holdfast.cli.render.plan_text import show
from holdfast.sim.planning import Plan, PlannedOutcome, Question, summary
from holdfast.sim.planning_effort import of_the_whole, said_of_effort

pytestmark = pytest.mark.spec("A6")

HOUR = 3_600_000
QUESTION = Question(4, HOUR)
OUTCOME = PlannedOutcome(0, (HOUR,), (0,), 0, {}, HOUR, {"useful work": HOUR}, HOUR, 1, 1, 9)
WORLDS = [(QUESTION, seed) for seed in range(3)]


def playing(monkeypatch: pytest.MonkeyPatch, outcomes: int, end: type[BaseException] | None = None) -> None:
    def played(worlds: object, seconds: float | None) -> Generator[PlannedOutcome]:
        yield from [OUTCOME] * outcomes
        if end is not None:
            raise end

    monkeypatch.setattr(plan_command, "_played", played)


def test_what_was_simulated_in_time_or_until_somebody_had_enough_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, 3)
    assert plan_command.gathered(WORLDS, 1) == ({0: [OUTCOME] * 3}, "")
    playing(monkeypatch, 2)
    assert plan_command.gathered(WORLDS, 1) == ({0: [OUTCOME] * 2}, "time")
    playing(monkeypatch, 1, KeyboardInterrupt)
    assert plan_command.gathered(WORLDS, None) == ({0: [OUTCOME]}, "interrupted")


def test_an_interrupt_before_anything_is_known_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, 0, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        plan_command.gathered(WORLDS, None)


def test_the_first_world_is_waited_for_and_no_other_when_the_time_is_up() -> None:
    program = """
from multiprocessing import active_children
from holdfast.cli.commands.plan import gathered
from holdfast.sim.planning import Question

quick = Question(2, 3_600_000)
slow = Question(10, 30 * 86_400_000, mtbf_ms=3_600_000, return_ms=600_000, every_ms=600_000, jobs=10, attempts=1_000)
found, stopped = gathered([(quick, 0), (slow, 1), (slow, 2)], 0.0)
print(sum(map(len, found.values())), stopped, len(active_children()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["1", "time", "0"], "")


def test_what_a_person_must_know_of_how_little_was_simulated_is_said() -> None:
    plan = Plan(QUESTION, 0, summary(QUESTION, [OUTCOME]), (), 0, 0, 0, played_nodes=4, played_jobs=1, runs_meant=1)
    assert said_of_effort(plan) == []
    (part,) = said_of_effort(replace(plan, question=replace(QUESTION, nodes=1_000)))
    assert "simulated as 4 nodes and 1 job" in part and "roughly" in part
    (part,) = said_of_effort(replace(plan, question=replace(QUESTION, nodes=1_000), played_nodes=10))
    assert "simulated as 10 nodes and 1 job" in part and "roughly" not in part
    (late,) = said_of_effort(replace(plan, runs_meant=24, stopped="time"))
    assert "24 runs were planned" in late and "--runs 24" in late
    (enough,) = said_of_effort(replace(plan, runs_meant=24, stopped="interrupted"))
    assert "24 runs were planned" in enough and "you stopped it" in enough
    # all runs are done, and only other intervals were not tried any more
    (tried,) = said_of_effort(replace(plan, stopped="interrupted"))
    assert "intervals" in tried and "you stopped it" in tried and "runs" not in tried
    (cut,) = said_of_effort(replace(plan, here=replace(plan.here, cut=2)))
    assert "2 of 3 worlds" in cut


SAVING = Question(4, 10 * HOUR, mtbf_ms=5 * HOUR, return_ms=HOUR, every_ms=HOUR, cost_ms=10_000)


def saving(monkeypatch: pytest.MonkeyPatch, runs: int, cut: int = 0) -> Plan:
    """The answer where a job takes the longer, the seldomer it saves; of these many worlds some are cut short."""

    def played(worlds: list[tuple[Question, int]], seconds: float | None) -> Generator[PlannedOutcome]:
        for question, seed in worlds:
            took = 10 * HOUR + question.every_ms
            yield replace(OUTCOME, took_ms=(took,), all_ms=took, cut=seed < cut and question.every_ms != HOUR)

    monkeypatch.setattr(plan_command, "_played", played)
    return plan_command.asked(SAVING, 0, runs, None)


@pytest.mark.parametrize(("runs", "cut"), [(1, 0), (5, 3), (3, 3)], ids=["one world", "two left", "none left"])
def test_which_interval_is_best_is_not_said_from_too_few_worlds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: int, cut: int
) -> None:
    answer = saving(monkeypatch, runs, cut)
    assert [one.runs for one in answer.sweep] == [runs - cut] * len(answer.sweep)
    assert "too few worlds to say which interval is best" in said_of_effort(answer)
    show(answer, False, None)
    told = capsys.readouterr().out.replace("which interval is best", "")
    assert "best" not in told and "instead would spare" not in told


def test_which_interval_is_best_is_said_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = saving(monkeypatch, 6)
    assert said_of_effort(answer) == []
    show(answer, False, None)
    told = capsys.readouterr().out
    assert "  best" in told and "instead would spare" in told


def test_where_no_world_came_to_its_end_no_failure_of_the_jobs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    cut = replace(OUTCOME, took_ms=(), unfinished=1, cut=True)
    show(Plan(QUESTION, 0, summary(QUESTION, [cut]), (), 0, 0, 0, played_nodes=4, played_jobs=1), False, None)
    told = capsys.readouterr().out
    assert "no world was simulated to its end" in told
    assert "of 0 jobs" not in told and "save more often" not in told


def test_what_was_seen_of_a_part_is_said_of_the_whole() -> None:
    part = replace(QUESTION, nodes=10, jobs=5)
    told = summary(part, [OUTCOME])
    whole = of_the_whole(told, replace(QUESTION, nodes=100, jobs=50), part)
    assert (whole.falls, whole.takeovers, whole.node_hours) == (10 * told.falls, 10 * told.takeovers, 10 * 1.0)
    assert (whole.p95_ms, whole.goodput) == (told.p95_ms, told.goodput)
    assert whole.all_p95_ms == 0, "when the last of them ends is not known"
    assert of_the_whole(told, part, part) == told
