"""How far something is, in words: bytes, speed, time left; seldom enough where it is written down."""

import msgspec
import pytest

from holdfast.blobs.transfer import TransferProgress
from holdfast.cli.render.progress_bars import Bar, Speed
from holdfast.cli.watch.job_watch import Stages, Waits, waiting_text
from holdfast.quantities import counted, spoken_bytes
from holdfast.wire.http import AttemptView, ExplainView, JobView, ProgressView

pytestmark = pytest.mark.spec("J3")

MIB = 1 << 20


def job(*progress: ProgressView, phase: str = "preparing") -> JobView:
    attempts = [AttemptView(p.attempt, "node_1", phase, 0, None, None, None, None) for p in progress]
    return JobView(
        id="job_1", name="", owner="me", argv=["true"], phase=phase, waiting="", recovery="restart", priority=5,
        submitted_ms=0, ended_ms=None, verdict=None, failure=None, result_sha256=None, result_bytes=None,
        exit_code=None, attempts_made=1, attempts=attempts, progress=list(progress),
    )  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_speed_is_what_was_moved_since_it_was_first_seen() -> None:
    clock = Clock()
    pace = Speed(clock)
    assert pace.told(10 * MIB, 50 * MIB) == "10.0 MiB of 50.0 MiB (20 %)", "what was there already is no speed"
    clock.now = 2.0
    assert pace.told(30 * MIB, 50 * MIB) == "30.0 MiB of 50.0 MiB (60 %), 10.0 MiB/s, 2.0 s left"
    assert pace.told(5 * MIB, 0) == "5.0 MiB"
    assert pace.told(0, 0) == ""


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    # given a transfer that tells of itself hundreds of times in nine seconds
    clock = Clock()
    with Bar("sending", "desk/", live=False, clock=clock) as bar:
        for step in range(900):
            clock.now = step / 100
            bar.told(TransferProgress(step * MIB, 900 * MIB, step, 900, step * MIB))

    # then a log of it has one line, plain, with the numbers
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["-- sending desk/: 500.0 MiB of 900.0 MiB (55 %), 100.0 MiB/s, 4.0 s left"]


def test_what_is_over_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("sending", "desk/", live=False, clock=Clock()) as bar:
        bar.read(100)
        bar.told(TransferProgress(100, 100, 1, 1, 100))
    assert capsys.readouterr().err == ""


def test_reading_a_large_folder_is_told_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Bar("sending", "desk/", live=False, clock=clock) as bar:
        clock.now = 6.0
        bar.read(3 * MIB)
    assert capsys.readouterr().err == "-- reading desk/: 3.0 MiB\n"


def test_stages_are_told_of_the_newest_attempt() -> None:
    first = ProgressView("att_1.1", "data", 9, 9, 100, 10)
    second = ProgressView("att_1.2", "image", 10 * MIB, 40 * MIB, 0, 0)
    building = ProgressView("att_1.2", "build", 2, 5, 0, 0)
    last = ProgressView("att_1.2", "files", 0, 0, 0, 0)
    stages = Stages()

    assert stages.told(job()) == ""
    assert stages.told(job(first, phase="running")) == "", "of a body that runs, its output tells"
    assert stages.told(job(first, second)) == "pulling its image: 10.0 MiB of 40.0 MiB (25 %)"
    assert stages.told(job(building)) == "building its environment: step 2 of 5"
    assert stages.told(job(last, phase="uploading")) == "sending its results"


@pytest.mark.spec("J3")
def test_what_a_job_waits_for_is_said_soon_and_then_ever_more_rarely() -> None:
    clock = Clock()
    waits = Waits(clock)
    said: list[float] = []
    for tenth in range(40_000):
        clock.now = tenth / 10
        if waits.due("waiting: a machine"):
            said.append(clock.now)
    assert said == [2.0, 62.0, 182.0, 422.0, 902.0, 1502.0, 2102.0, 2702.0, 3302.0, 3902.0]

    # what changes is said at once, and what began anew is waited for a little first
    clock.now += 1
    assert waits.due("waiting: its lease") and not waits.due("waiting: its lease")
    assert not waits.due("") and not waits.due("waiting: its lease")
    clock.now += 1.9
    assert not waits.due("waiting: its lease")
    clock.now += 0.1
    assert waits.due("waiting: its lease")
    clock.now += 59.9
    assert not waits.due("waiting: its lease")
    clock.now += 0.1
    assert waits.due("waiting: its lease")


@pytest.mark.spec("J3")
def test_a_network_without_machines_is_a_sentence_of_its_own() -> None:
    none = ExplainView("job_1", "queued", "a machine to join", None, "", [], {}, "", 0, wait_reason="machine")
    assert waiting_text(none).startswith("no machine has joined yet; ")
    some = msgspec.structs.replace(none, wait_reason="room", waiting_for="a machine", nearest="bee: 1 core more")
    assert waiting_text(some) == "a machine; bee: 1 core more"


def test_amounts_are_said_shortly() -> None:
    said = [spoken_bytes(n) for n in (0, 1023, 1024, 999 * 1024, 1000 * 1024, 5 << 30, 3 << 40)]
    assert said == ["0 B", "1023 B", "1.0 KiB", "999.0 KiB", "1.0 MiB", "5.0 GiB", "3.0 TiB"]
    assert [counted(n, "file") for n in (0, 1, 12000)] == ["0 files", "1 file", "12,000 files"]
