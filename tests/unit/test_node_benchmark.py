"""A machine compared with itself: slow is what lasts, and only idle machines are measured."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node import benchmark
from holdfast.node.benchmark import FILE, SLOW_IN_A_ROW, SLOW_PERMILLE, Benchmark, Speeds, Yardstick, measure

pytestmark = pytest.mark.spec("H1")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40))
def test_slow_is_far_below_its_best_several_times_in_a_row(speeds: list[int]) -> None:
    yardstick = Yardstick()
    for number in range(len(speeds)):
        seen = speeds[: number + 1]
        yardstick = yardstick.after("cpu", Speeds(500, seen[-1], 500))
        last = range(number - SLOW_IN_A_ROW + 1, number + 1)
        slow = all(i > 0 and seen[i] * 1000 < max(seen[: i + 1]) * SLOW_PERMILLE for i in last)
        assert bool(yardstick.warnings()) == slow
        assert yardstick.best == Speeds(500, max(seen), 500)


def test_another_processor_is_another_machine() -> None:
    fast = Yardstick().after("fast", Speeds(1000, 1000, 1000))
    for _ in range(SLOW_IN_A_ROW):
        fast = fast.after("fast", Speeds(1000, 1000, 100))
    assert fast.warnings() == ["its disk writes at 100 MiB/s; its best was 1000 MiB/s"]
    assert fast.after("slow", Speeds(100, 100, 100)).warnings() == []


def test_it_measures_when_idle_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(tmp_path)
    assert min(found.hashing, found.copying, found.writing) > 0 and not (tmp_path / "speed").exists()
    idle = [False]
    machine = Benchmark(tmp_path, "cpu", lambda: idle[0])
    # Given a machine that works, then nothing is measured
    assert not asyncio.run(machine.look()) and not (tmp_path / FILE).exists()
    # When it is idle, it is measured and remembered; also by the next agent
    idle[0] = True
    assert asyncio.run(machine.look())
    assert Benchmark(tmp_path, "cpu", lambda: True).yardstick == machine.yardstick != Yardstick()

    # When work came in the middle, or the disk fails, then what was measured says nothing
    def interrupted(home: Path) -> Speeds:
        idle[0] = False
        return Speeds(1, 1, 1)

    def broken(home: Path) -> Speeds:
        raise OSError("gone")

    before = machine.yardstick
    monkeypatch.setattr(benchmark, "measure", interrupted)
    assert not asyncio.run(machine.look())
    idle[0] = True
    monkeypatch.setattr(benchmark, "measure", broken)
    assert asyncio.run(machine.look()) and machine.yardstick == before
    # And a file that was damaged is as good as none
    (tmp_path / FILE).write_text("{")
    assert Benchmark(tmp_path, "cpu", lambda: True).yardstick == Yardstick()
