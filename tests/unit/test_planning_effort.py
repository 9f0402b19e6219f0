"""How much of a plan is simulated: what is told when it was less than was meant, and who is left behind then."""

import subprocess
import sys
from collections.abc import Generator

import pytest
from msgspec.structs import replace

from holdfast.cli import planning
from holdfast.sim.planning import Outcome, Plan, Question, summary
from holdfast.sim.planning_effort import of_the_whole, said_of_effort

pytestmark = pytest.mark.spec("A6")

HOUR = 3_600_000
QUESTION = Question(4, HOUR)
OUTCOME = Outcome(0, (HOUR,), (0,), 0, {}, HOUR, {"useful work": HOUR}, HOUR, 1, 1, 9)
WORLDS = [(QUESTION, seed) for seed in range(3)]


def playing(monkeypatch: pytest.MonkeyPatch, outcomes: int, end: type[BaseException] | None = None) -> None:
    def played(worlds: object, seconds: float | None) -> Generator[Outcome]:
        yield from [OUTCOME] * outcomes
        if end is not None:
            raise end

    monkeypatch.setattr(planning, "_played", played)


def test_what_was_simulated_in_time_or_until_somebody_had_enough_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, 3)
    assert planning.gathered(WORLDS, 1) == ({0: [OUTCOME] * 3}, "")
    playing(monkeypatch, 2)
    assert planning.gathered(WORLDS, 1) == ({0: [OUTCOME] * 2}, "time")
    playing(monkeypatch, 1, KeyboardInterrupt)
    assert planning.gathered(WORLDS, None) == ({0: [OUTCOME]}, "interrupted")


def test_an_interrupt_before_anything_is_known_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, 0, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        planning.gathered(WORLDS, None)


def test_the_first_world_is_waited_for_and_no_other_when_the_time_is_up() -> None:
    program = """
from multiprocessing import active_children
from holdfast.cli.planning import gathered
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
    assert "simulated as 4 nodes and 1 job" in part
    (late,) = said_of_effort(replace(plan, runs_meant=24, stopped="time"))
    assert "24 runs were meant" in late and "--runs 24" in late
    (enough,) = said_of_effort(replace(plan, runs_meant=24, stopped="interrupted"))
    assert "you stopped it" in enough


def test_what_was_seen_of_a_part_is_said_of_the_whole() -> None:
    part = replace(QUESTION, nodes=10, jobs=5)
    told = summary(part, [OUTCOME])
    whole = of_the_whole(told, replace(QUESTION, nodes=100, jobs=50), part)
    assert (whole.falls, whole.takeovers, whole.node_hours) == (10 * told.falls, 10 * told.takeovers, 10 * 1.0)
    assert (whole.p95_ms, whole.goodput) == (told.p95_ms, told.goodput)
    assert whole.all_p95_ms == 0, "when the last of them ends is not known"
    assert of_the_whole(told, part, part) == told
