"""A world is told in plain words, and every failure comes with exactly one line to replay it."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.sim import __main__ as sim
from holdfast.sim.scene import Scene
from holdfast.sim.story import tell
from holdfast.sim.watch import Broken

GOOD = 5


@pytest.mark.spec("A6")
def test_a_story_names_faults_decisions_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(GOOD, story=True, json=False) == 0

    told = capsys.readouterr().out
    assert "leads with epoch 1" in told
    assert "job.assigned" in told and "job.ended" in told
    assert "everything is healed" in told
    assert told.rstrip().endswith("every rule held")


@pytest.mark.spec("A6")
def test_the_verdict_is_also_told_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(GOOD, story=False, json=True) == 0

    verdict = msgspec.json.decode(capsys.readouterr().out)
    assert verdict["ok"] and verdict["seed"] == GOOD and sum(verdict["faults"].values()) > 0


@pytest.mark.spec("A6")
def test_a_broken_rule_gives_one_replay_line_and_a_bad_exit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given worlds in which a rule breaks, when they are searched, then each leaves its replay line and its seed."""

    def break_a_rule(self: Scene) -> None:
        raise Broken("some_rule", "it did not hold")

    monkeypatch.setattr(Scene, "_run", break_a_rule)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("11  # some_rule\n")

    assert tell(11, story=True, json=False) == 1
    told = capsys.readouterr().out
    assert told.count("holdfast sim --seed 11 --story") == 1 and "some_rule: it did not hold" in told

    # a clock that goes on by a second with every look: there is time for two worlds
    monkeypatch.setattr(sim, "time", SimpleNamespace(monotonic=count().__next__, process_time=count().__next__))
    assert sim.main(["fuzz", "--for", "3", "--from", "11", "--corpus", str(corpus)]) == 1
    assert [line.split()[0] for line in corpus.read_text().splitlines()] == ["11", "12"]


@pytest.mark.spec("A6")
def test_a_range_of_seeds_reports_speed_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["run", str(GOOD), "2"]) == 0

    told = capsys.readouterr().out
    assert "2 seeds, 0 bad" in told and "events a CPU second" in told
