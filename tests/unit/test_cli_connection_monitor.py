"""That nobody answers is said soon, once, and taken back: and never for time in which we stood still ourselves."""

import io
import re
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli import connection_monitor
from holdfast.cli.app import app
from holdfast.cli.commands import logs as logs_command
from holdfast.cli.connection_monitor import AGAIN, SILENT_S, TICK_S, ConnectionMonitor
from holdfast.cli.render import progress_bars
from holdfast.cli.watch import array_watch, job_watch
from holdfast.errors import Misuse, NotAllowed, Unreachable
from holdfast.wire.http import ArrayItem, ArrayView, JobList, JobView, LogLine

pytestmark = pytest.mark.spec("J3", "J14")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    with connection_monitor.through(lines.append, "job_1 goes on"):
        yield lines


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def felt(clock: Clock) -> ConnectionMonitor:
    return ConnectionMonitor("http://127.0.0.1:1", lambda: None, clock)


def passes(seconds: float, felt: ConnectionMonitor, clock: Clock) -> None:
    """Time in which somebody looks."""
    for _ in range(round(seconds / TICK_S)):
        clock.now += TICK_S
        felt.look()


def test_an_answer_that_is_owed_too_long_is_missed_once_and_its_coming_is_told(
    felt: ConnectionMonitor, clock: Clock, said: list[str]
) -> None:
    felt.asked()
    passes(SILENT_S - TICK_S, felt, clock)
    assert not said
    passes(2, felt, clock)
    assert said == ["no answer from http://127.0.0.1:1 for 3.0 s; job_1 goes on"]
    assert felt.silent_s() == 4.75

    felt.answered()
    assert said[1:] == ["http://127.0.0.1:1 answers again, after 4.8 s"]
    assert not felt.silent_s()


def test_a_long_silence_is_told_again_ever_less_often(felt: ConnectionMonitor, clock: Clock, said: list[str]) -> None:
    felt.asked()
    felt.asked()  # again and again: what counts is since when nobody has answered
    passes(SILENT_S * AGAIN * AGAIN + 1, felt, clock)
    assert [line.split(" for ")[1].partition(";")[0] for line in said] == ["3.0 s", "12.0 s", "48.0 s"]


def test_answers_in_time_are_no_news(felt: ConnectionMonitor, clock: Clock, said: list[str]) -> None:
    for _ in range(10):
        felt.asked()
        passes(SILENT_S - 0.5, felt, clock)
        felt.answered()
    assert not said


def test_time_in_which_we_stood_still_is_nobodys_silence(
    felt: ConnectionMonitor, clock: Clock, said: list[str]
) -> None:
    felt.asked()
    felt.look()
    clock.now += 3_600  # Ctrl-Z, and lunch
    felt.look()
    assert not said
    passes(SILENT_S, felt, clock)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("how", "told"), [(None, True), (NotAllowed("no"), True), (Unreachable("nobody"), False), (Misuse("closed"), False)]
)
def test_whoever_answers_anything_is_there(
    how: Exception | None, told: bool, said: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a network that was missed
    felt: ConnectionMonitor
    asked = threading.Event()

    def ask() -> None:
        clock.now += SILENT_S
        felt.look()
        asked.set()
        felt.end()
        if how is not None:
            raise how

    felt = ConnectionMonitor("http://127.0.0.1:1", ask, clock)
    monkeypatch.setattr(connection_monitor, "FIRST_S", 0.0)

    # when it is asked
    felt._keep_asking()

    # then any answer but none at all is one
    assert asked.is_set()
    assert any("answers again" in line for line in said) == told


def test_the_words_of_who_waits_are_those_of_the_innermost(
    felt: ConnectionMonitor, clock: Clock, said: list[str]
) -> None:
    bar: list[str] = []
    say: Callable[[str], None] = bar.append
    with connection_monitor.through(say):
        felt.asked()
        passes(SILENT_S, felt, clock)
    felt.answered()
    assert bar == ["no answer from http://127.0.0.1:1 for 3.0 s; job_1 goes on"], "what goes on, the one around it knew"
    assert said == ["http://127.0.0.1:1 answers again, after 3.0 s"]


# --- in the commands ---

JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="running", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=None, verdict=None, failure=None, result_sha256=None, result_bytes=None, exit_code=None,
    attempts_made=1,
)  # fmt: skip
ENDED = msgspec.structs.replace(JOB, phase="ended", verdict="succeeded", ended_ms=1)
OVER = msgspec.structs.replace(ENDED, id="job_2")
ARRAY = ArrayView("arr_1", "", "me", 1, {"running": 1}, False, 0, [ArrayItem(0, "job_1", "running")])
PATIENCE_S = 60.0


class Gone:
    """A network that stops answering while something is asked of it, until that was noticed; and then answers."""

    url = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.jobs = self.arrays = self
        self.waited_for = threading.Event()
        self.missed = threading.Event()
        self.back = threading.Event()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)
        (self.back if "answers again" in text else self.missed).set()

    def ping(self, patience_s: float) -> None:
        if self.waited_for.is_set() and not self.missed.is_set():
            raise Unreachable("nobody there")

    def _waited(self) -> None:
        self.waited_for.set()
        assert self.missed.wait(PATIENCE_S) and self.back.wait(PATIENCE_S), self.lines

    def list(self, **_: object) -> JobList:
        self._waited()
        return JobList([ENDED])

    def get(self, what: str, **_: object) -> JobView | ArrayView:
        if what in (JOB.id, OVER.id):
            return JOB if what == JOB.id else OVER
        self._waited()
        return msgspec.structs.replace(ARRAY, ended=True, counts={"succeeded": 1})

    def wait(self, job: str, check: bool) -> JobView:
        return ENDED

    def logs(self, job: str, **_: object) -> Iterator[LogLine]:
        yield LogLine("att_1.1", "stdout", 0, "begun\n")
        self._waited()
        yield LogLine("att_1.1", "stdout", 6, "done\n")

    def events(self, **_: object) -> Iterator[object]:
        self._waited()
        return iter(())

    def __enter__(self) -> "Gone":
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gone]:
    made = Gone()
    for name, value in (("FIRST_S", 0.0), ("EVERY_S", 0.01), ("SILENT_S", 0.02), ("TICK_S", 0.01)):
        monkeypatch.setattr(connection_monitor, name, value)
    monkeypatch.setattr(holdfast.Client, "find", lambda *_, **__: made)
    yield made
    for felt in connection_monitor._felt:
        felt.end()
    connection_monitor._felt.clear()


def told_twice(said: str, goes_on: str) -> None:
    assert re.search(rf"-- no answer from http://127.0.0.1:1 for \d+\.\d s; {goes_on}", said), said
    assert "-- http://127.0.0.1:1 answers again, after" in said


@pytest.mark.parametrize("words", [["jobs"], ["events", "-f"]], ids=" ".join)
def test_a_command_that_waits_for_its_answer_says_so(gone: Gone, words: list[str]) -> None:
    with connection_monitor.through(gone.say):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert [line.split(" for ")[0] for line in gone.lines[:1]] == ["no answer from http://127.0.0.1:1"]


def heard_by(gone: Gone, monkeypatch: pytest.MonkeyPatch, kind: type, how: str) -> None:
    """What is shown there is heard here too."""
    shown = getattr(kind, how)

    def both(self: object, text: str) -> None:
        shown(self, text)
        if "answer" in text:
            gone.say(text)

    monkeypatch.setattr(kind, how, both)


def test_whoever_follows_output_reads_that_the_job_goes_on(gone: Gone, monkeypatch: pytest.MonkeyPatch) -> None:
    heard_by(gone, monkeypatch, logs_command.LogPrinter, "platform")
    done = CliRunner().invoke(app, ["logs", "-f", "job_1"])
    assert done.stdout == "begun\ndone\n"
    told_twice(done.stderr, "job_1 goes on; still asking")


@pytest.mark.parametrize("words", [["-f", "job_2"], ["job_1"], ["job_2"]], ids=" ".join)
def test_of_a_job_that_ended_or_that_nobody_asked_about_it_is_not_said_to_go_on(
    gone: Gone, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    heard_by(gone, monkeypatch, logs_command.LogPrinter, "platform")
    told_twice(CliRunner().invoke(app, ["logs", *words]).stderr, "still asking")


def test_what_is_said_meanwhile_waits_until_a_piece_of_output_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    # given somebody who stands in the middle of writing a piece of output
    order: list[str] = []
    about_to_say = threading.Event()
    printer = logs_command.LogPrinter()
    monkeypatch.setattr("holdfast.cli.error_output.say", lambda text, **_: order.append(text))

    def aside() -> None:
        about_to_say.set()
        printer.platform("no answer")

    other = threading.Thread(target=aside)

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            other.start()
            assert about_to_say.wait(PATIENCE_S)
            other.join(0.05)  # it has every chance to come between
            order.append(text)
            return len(text)

    # when another thread has something to say, then that comes after it
    monkeypatch.setattr("sys.stdout", Slow())
    printer.put(LogLine("att_1.1", "stdout", 0, "half a line"))
    other.join(PATIENCE_S)
    assert order == ["half a line", "-- no answer"]
    assert printer.at_line_start


def test_whoever_watches_a_job_reads_that_it_goes_on(
    gone: Gone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard_by(gone, monkeypatch, logs_command.LogPrinter, "platform")
    connection_monitor.feel(gone)  # type: ignore[arg-type]
    assert job_watch.JobWatch(gone, JOB).until_ended() == ENDED  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert said.out == "begun\ndone\n"
    told_twice(said.err, "job_1 goes on; still asking")


def test_whoever_watches_an_array_reads_that_it_goes_on(
    gone: Gone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard_by(gone, monkeypatch, progress_bars.Tally, "say")
    connection_monitor.feel(gone)  # type: ignore[arg-type]
    assert array_watch.ArrayWatch(gone, ARRAY, []).until_ended().ended  # type: ignore[arg-type]
    told_twice(capsys.readouterr().err, "arr_1 goes on; still asking")
