"""`holdfast.checkpoint` as a program uses it: what was saved is found again, whole, wherever it was interrupted."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import checkpoint

PLACE = "HOLDFAST_CHECKPOINT_DIR"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a job was given."""
    folder = tmp_path / "checkpoint"
    monkeypatch.setenv(PLACE, str(folder))
    monkeypatch.setattr(checkpoint, "_last_s", None)
    monkeypatch.setattr(checkpoint, "_told", False)
    return folder


@pytest.mark.spec("J6")
@pytest.mark.parametrize("state", [{"step": 3, "pair": (1, 2.5)}, b"\x00raw\xff", None, [1, "two"]])
def test_what_was_saved_is_what_is_loaded(place: Path, state: Any) -> None:
    checkpoint.save("an older one")
    assert checkpoint.save(state)
    assert checkpoint.load("nothing there") == state


@pytest.mark.spec("J6")
def test_without_a_state_there_is_the_default(place: Path) -> None:
    assert checkpoint.load({"step": 0}) == {"step": 0}
    assert checkpoint.newest() is None


@pytest.mark.spec("J6")
def test_json_can_be_read_by_others(place: Path) -> None:
    checkpoint.save({"step": 4}, as_json=True)
    newest = checkpoint.newest()
    assert newest is not None and newest.read_text() == '{"step": 4}'
    assert checkpoint.load() == {"step": 4}


@pytest.mark.spec("J6")
def test_only_the_newest_is_kept_and_nothing_unfinished_is_left(place: Path) -> None:
    # given what an attempt left that was killed while it saved
    place.mkdir()
    (place / ".state-00000007.pickle.new").write_bytes(b"half")
    (place / ".state-00000008.new").mkdir()
    (place / "mine.txt").write_text("not ours")

    # when states are saved
    for step in range(12):
        checkpoint.save(step)

    # then the last one is there, and what is not ours
    assert checkpoint.load() == 11
    assert sorted(p.name for p in place.iterdir()) == ["mine.txt", "state-00000012.pickle"]


@pytest.mark.spec("J6")
def test_states_may_be_files(place: Path) -> None:
    # given a state of several files, and one after it
    for text in ("old", "new"):
        with checkpoint.saving() as folder:
            assert folder.name.startswith(".") and folder.name.endswith(".new"), "never captured half-written"
            (folder / "deep").mkdir()
            (folder / "deep" / "weights").write_text(text)

    # then the newest is the whole of the second
    newest = checkpoint.newest()
    assert newest is not None
    assert (newest / "deep" / "weights").read_text() == "new"
    assert [p.name for p in place.iterdir()] == [newest.name]
    with pytest.raises(checkpoint.Unreadable):
        checkpoint.load()


@pytest.mark.spec("J6")
def test_a_block_that_fails_changes_nothing(place: Path) -> None:
    checkpoint.save("good")

    def fails() -> None:
        with checkpoint.saving() as folder:
            (folder / "half").write_text("x")
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="middle"):
        fails()
    assert checkpoint.load() == "good"
    assert len(list(place.iterdir())) == 1


@pytest.mark.spec("J6")
def test_saving_too_often_does_nothing(place: Path) -> None:
    assert checkpoint.save(1, every_s=3600)
    assert not checkpoint.save(2, every_s=3600)
    assert checkpoint.load() == 1
    assert checkpoint.save(3)
    assert checkpoint.load() == 3


@pytest.mark.spec("J6")
def test_a_state_of_another_program_is_named(place: Path) -> None:
    place.mkdir()
    (place / "state-00000001.pickle").write_bytes(b"no pickle")
    with pytest.raises(checkpoint.Unreadable, match=r"state-00000001\.pickle"):
        checkpoint.load()


@pytest.mark.spec("J6")
def test_a_job_without_checkpoints_is_told_once_and_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PLACE)
    monkeypatch.setenv("HOLDFAST_JOB", "job_x")

    assert not checkpoint.save(1)
    assert not checkpoint.save(2)
    with checkpoint.saving() as folder:
        (folder / "file").write_text("goes nowhere")

    assert checkpoint.load("start") == "start"
    assert capsys.readouterr().err.count("--checkpoint") == 1
    assert not folder.exists()


@pytest.mark.spec("J6")
def test_outside_of_holdfast_a_program_goes_on_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.delenv(PLACE)
    monkeypatch.delenv("HOLDFAST_JOB", raising=False)
    monkeypatch.chdir(tmp_path)
    checkpoint.save(5)
    assert checkpoint.load() == 5
    assert (tmp_path / ".holdfast" / "checkpoint").is_dir(), "where `holdfast run` does not send it from"


@pytest.mark.spec("J6")
def test_a_program_killed_at_any_write_finds_a_whole_state(tmp_path: Path) -> None:
    """Killed between any two system calls of a save: the state is the old or the new one, never a half."""
    copy = tmp_path / "checkpoint.py"
    copy.write_bytes(Path(checkpoint.__file__).read_bytes())
    script = (
        "import os, sys, checkpoint\n"
        "kill_at, calls = int(sys.argv[1]), 0\n"
        "def cut(name):\n"
        "    real = getattr(os, name)\n"
        "    def call(*words, **more):\n"
        "        global calls\n"
        "        calls += 1\n"
        "        if calls == kill_at: os._exit(9)\n"
        "        return real(*words, **more)\n"
        "    setattr(os, name, call)\n"
        "checkpoint.save('old' * 1000)\n"
        "for name in ('fsync', 'rename', 'unlink'): cut(name)\n"
        "checkpoint.save('new' * 1000)\n"
        "print(calls)\n"
    )
    seen: set[str] = set()
    for kill_at in range(1, 9):
        place = tmp_path / str(kill_at)
        env = {"PATH": os.environ["PATH"], PLACE: str(place), "PYTHONPATH": str(tmp_path)}
        # Alone, as it may be copied: without anything else of Holdfast.
        words = [sys.executable, "-S", "-c", script, str(kill_at)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 9), done.stderr
        words = [sys.executable, "-S", "-c", "import checkpoint; print(checkpoint.load())"]
        found = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout.strip()
        assert found in ("old" * 1000, "new" * 1000)
        seen.add(f"{found[:3]} {done.returncode}")
    assert {"old 9", "new 9", "new 0"} <= seen, "it was cut before, after, and not at all"
