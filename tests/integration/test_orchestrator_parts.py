"""The shell's parts by themselves: its loop on a store that fails, its log files, its record."""

import asyncio
import errno
import os
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.kernel import checking, estimates, explain
from holdfast.kernel.commit import CommitBatch
from holdfast.kernel.decision import Answer, Send, Taken
from holdfast.kernel.events import CheckAsked, EstimatesAsked, ExplainAsked, Led, Submitted, Tick
from holdfast.model import AttemptId, Instant, JobSpec, Owner, Settings, job_id
from holdfast.orchestrator import failpoints
from holdfast.orchestrator.leader import record
from holdfast.orchestrator.leader.loop import Leader, Unavailable
from holdfast.orchestrator.leader.record import Recorder
from holdfast.orchestrator.logs.log_files import LogRefused, LogStore
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.wakeups import JOURNAL, NEWS, Wakeups
from holdfast.state import Snapshot, Store, StoreFailed
from holdfast.testing.processes import wait_for
from holdfast.wire.convert import LogPiece

ATTEMPT = AttemptId("att_00000000000000.1")


# --- the loop ---


class Nowhere:
    """An outside that remembers what reached it."""

    def __init__(self) -> None:
        self.sent: list[Send] = []
        self.ended: list[str] = []
        self.batches = 0

    def rebuilt(self, snapshot: Snapshot) -> None: ...

    def carry_out(self, send: Send) -> None:
        self.sent.append(send)

    def committed(self, batch: CommitBatch) -> None:
        self.batches += 1

    def leadership_ended(self, why: str) -> None:
        self.ended.append(why)


class Moody(Store):
    """A real store that fails, or takes its time, when a test says so."""

    fails = False
    gate = threading.Event()

    def commit(self, rows: Any, epoch: int) -> None:
        self.gate.wait(60)
        if self.fails:
            raise StoreFailed("the store is in a mood")
        super().commit(rows, epoch)


STEADY = msgspec.structs.replace(Settings.test(), late_tolerance_ms=600_000)
"""Never late, so that events which a story counts are only those that it told."""


def with_leader(url: str, story: Any, settings: Settings = STEADY) -> None:
    """Run a story against a leader on a store of its own."""

    async def run() -> None:
        store = Moody.open(url)
        store.gate.set()
        outside = Nowhere()
        leader = Leader(settings, store, outside, Wakeups(), Metrics())
        leading = asyncio.create_task(leader.run())
        try:
            await asyncio.wait_for(leader.led.wait(), 60)
            await asyncio.wait_for(story(leader, store, outside), 90)
        finally:
            store.gate.set()
            leading.cancel()
            await leader.stop()
            store.close()

    asyncio.run(run())


def submitted(key: str) -> Submitted:
    return Submitted(job_id("ann", key), Owner("ann"), JobSpec(("x",)), sha256(key.encode()).hexdigest())


async def until(condition: Any) -> None:
    await asyncio.to_thread(wait_for, condition, "the leader")


async def commit_that_takes_its_time(leader: Leader, store: Moody, event: Submitted) -> "asyncio.Future[Answer]":
    """It is under way until the gate is set. The leader's clock, which ticks while there are jobs, is silent meanwhile:
    a story counts what waits behind the commit."""
    assert leader._timer is not None
    leader._timer.cancel()
    store.gate.clear()
    asked = asyncio.ensure_future(leader.ask(event))
    await until(lambda: leader.core.committing)
    return asked


@pytest.mark.spec("J14")
def test_a_failed_commit_answers_try_again_and_forgets_what_was_not_durable(sqlite_url: str) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        first = await leader.ask(submitted("kept"))
        assert isinstance(first, Taken)
        epoch = leader.epoch
        # When the store fails under a submission
        store.fails = True
        with pytest.raises(Unavailable) as unavailable:
            await leader.ask(submitted("lost"))
        assert unavailable.value.code == "store_unavailable"
        assert outside.ended and "in a mood" in leader.trouble
        with pytest.raises(Unavailable):
            await leader.ask(submitted("refused"))
        # Then, when it works again, it leads by itself under a higher epoch with exactly what was durable
        store.fails = False
        await until(lambda: not leader.trouble)
        assert leader.epoch > epoch
        again = await leader.ask(submitted("kept"))
        anew = await leader.ask(submitted("lost"))
        assert isinstance(again, Taken) and again.again
        assert isinstance(anew, Taken) and not anew.again

    with_leader(sqlite_url, story)


@pytest.mark.spec("J13")
def test_too_many_waiting_behind_one_commit_are_refused(sqlite_url: str) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        leader.core.events_max = 5
        # Given a commit that takes its time
        asked = [await commit_that_takes_its_time(leader, store, submitted("0"))]
        # When more come than may wait, then the rest is told to come back
        asked += [asyncio.ensure_future(leader.ask(submitted(str(n)))) for n in range(1, 6)]
        await until(lambda: leader.core.behind_commit == 5)
        with pytest.raises(Unavailable) as busy:
            await leader.ask(submitted("one too many"))
        assert busy.value.code == "busy"
        # And nobody was answered before the commit, and everybody is after it
        assert not any(future.done() for future in asked)
        store.gate.set()
        assert len(await asyncio.gather(*asked)) == 6

    with_leader(sqlite_url, story)


@pytest.mark.spec("J14")
def test_questions_are_answered_after_the_commit_of_what_came_before(sqlite_url: str) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        asked = [await commit_that_takes_its_time(leader, store, submitted("first"))]
        asked.append(asyncio.ensure_future(leader.ask(ExplainAsked(job_id("ann", "first")))))
        await until(lambda: leader.core.behind_commit == 1)
        assert not any(future.done() for future in asked)
        store.gate.set()
        assert [type(answer).__name__ for answer in await asyncio.gather(*asked)] == ["Taken", "Explanation"]

    with_leader(sqlite_url, story)


@pytest.mark.spec("J5")
def test_a_store_that_stalls_moves_the_deadlines(sqlite_url: str) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        before = leader.metrics.late_ms._value.get()
        store.gate.clear()
        asked = asyncio.ensure_future(leader.ask(submitted("slow")))
        # While a commit takes longer than the loop may be late, its time is counted as lateness
        await until(lambda: leader.metrics.late_ms._value.get() > before + 500)
        store.gate.set()
        assert isinstance(await asked, Taken)

    with_leader(sqlite_url, story, Settings.test())


@pytest.mark.spec("J5", "J14")
def test_no_deadline_runs_out_while_nodes_wait_to_be_let_in_by_a_new_leader(sqlite_url: str) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        late = leader.metrics.late_ms._value
        # Given a leader that has just begun, when nodes stand in line at its door, then that time is its own lateness
        leader.crowded = lambda: True
        assert leader.core.held_up(leader.moment())
        await until(lambda: late.get() > 500)
        # And once the line is empty, time goes on
        leader.crowded = lambda: False
        await until(lambda: not leader.core.held_up(leader.moment()))
        # And long after its start no line can make time stand still: a stranger could keep one up for ever
        leader.core.crowd_ms_max = 0
        leader.crowded = lambda: True
        await until(lambda: not leader.core.held_up(leader.moment()))

    with_leader(sqlite_url, story, Settings.test())


@pytest.mark.spec("J14")
def test_an_event_that_breaks_the_kernel_costs_only_itself(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        await leader.ask(submitted("kept"))
        # When an event makes the kernel fail
        with pytest.raises(Unavailable) as broken:
            await leader.ask(msgspec.structs.replace(submitted("bad"), spec=None))  # pyright: ignore
        assert broken.value.code == "internal"
        # Then the state is rebuilt from the store and work goes on
        await until(lambda: outside.ended and not leader.trouble)
        again = await leader.ask(submitted("kept"))
        assert isinstance(again, Taken) and again.again

    with_leader(sqlite_url, story)


@pytest.mark.spec("J14")
def test_a_question_that_fails_costs_only_its_answer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        await leader.ask(submitted("kept"))
        epoch = leader.epoch

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        # When the kernel fails on a question of any kind
        for module, name in ((checking, "room_now"), (estimates, "of_live"), (explain, "of_live")):
            monkeypatch.setattr(module, name, broken)
        job = job_id("ann", "kept")
        questions = [CheckAsked(Owner("ann"), JobSpec(("x",))), EstimatesAsked((job,)), ExplainAsked(job)]
        answers, _ = await leader.ask_all([*questions, submitted("more")])
        # Then whoever asked is told, whoever asked for something else has it, and nothing is rebuilt
        assert [getattr(answer, "code", "") for answer in answers] == ["internal"] * 3 + [""]
        assert isinstance(answers[3], Taken)
        assert leader.epoch == epoch and not leader.trouble and not outside.ended
        # And a question that fails on what it was not to do is no question
        monkeypatch.setattr(checking, "room_now", lambda w, *_, **__: (w.note("job.queued", "?"), broken()))
        with pytest.raises(Unavailable):
            await leader.ask(questions[0])
        await until(lambda: outside.ended and not leader.trouble)

    with_leader(sqlite_url, story)


@pytest.mark.spec("H5")
def test_that_the_orchestrator_was_late_is_written_down_and_wakes_nobody_who_would_ask_it_more(
    sqlite_url: str,
) -> None:
    async def story(leader: Leader, store: Moody, outside: Nowhere) -> None:
        with leader.wakeups.listen(JOURNAL) as journal, leader.wakeups.listen(NEWS) as news:
            leader.tell(Tick(500))
            await asyncio.wait_for(journal.wait(), 60)
            assert not news.is_set()
            await leader.ask(submitted("one"))
            assert news.is_set()

    with_leader(sqlite_url, story)


# --- log files ---


def piece(offset: int, data: bytes, attempt: str = ATTEMPT, stream: str = "stdout") -> LogPiece:
    return LogPiece(AttemptId(attempt), 1, stream, offset, data)


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs", bytes_max=100)


@pytest.mark.spec("J4")
def test_pieces_fit_together_or_are_not_stored(logs: LogStore) -> None:
    sizes = logs.append([piece(0, b"abc"), piece(0, b"abc"), piece(2, b"cde"), piece(9, b"gap"), piece(0, b"")])
    assert sizes == [3, 3, 5, 5, 5]
    assert logs.append([piece(0, b"err", stream="stderr")]) == [3]
    assert logs.read(ATTEMPT, "stdout", 1, 3) == b"bcd" and logs.size(ATTEMPT, "stderr") == 3
    assert logs.digest(ATTEMPT) == (5, sha256(b"abcde").hexdigest())


@pytest.mark.spec("J4")
def test_nothing_is_added_over_the_limit_or_to_what_is_sealed(logs: LogStore) -> None:
    over, within = logs.append([piece(0, b"x" * 101), piece(0, b"x" * 100)])
    assert isinstance(over, LogRefused) and within == 100
    logs.seal(ATTEMPT)
    added, repeated = logs.append([piece(100, b"more"), piece(50, b"x" * 50)])
    assert isinstance(added, LogRefused) and repeated == 100


@pytest.mark.spec("J4", "N5")
@pytest.mark.parametrize(
    "attempt", ["att_../../../../tmp/x.1", "att_.1", "", "att_00000000000000.1/../..", "/etc/passwd"]
)
def test_a_hostile_name_reaches_no_file(logs: LogStore, tmp_path: Path, attempt: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    (refused,) = logs.append([piece(0, b"x", attempt=attempt)])
    assert isinstance(refused, LogRefused)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.spec("J4")
def test_more_attempts_than_open_files(logs: LogStore) -> None:
    names = [f"att_00000000000000.{n}" for n in range(1, 300)]
    assert set(logs.append([piece(0, b"one", name) for name in names])) == {3}
    assert set(logs.append([piece(3, b"two", name) for name in names])) == {6}
    assert all(logs.read(name, "stdout", 0, 10) == b"onetwo" for name in names)


@pytest.mark.spec("J4", "J14")
def test_what_could_not_be_synced_is_not_kept(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs.append([piece(0, b"safe")]) == [4]

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError):
            logs.append([piece(4, b"unsure")])
    # A later sync that succeeds says nothing about pages that were dropped: the node must send them again
    assert logs.append([piece(0, b"")]) == [4]
    assert logs.append([piece(4, b"unsure")]) == [10]


# --- fail points and records ---


@pytest.mark.spec("J14")
def test_fail_points_are_found_in_the_source_and_cost_nothing_unless_armed() -> None:
    found = failpoints.names()
    assert len(found) >= 12 and {"commit.before", "commit.written", "logs.before_ack", "rebuild.loaded"} <= set(found)
    failpoints.arm(None)
    for name in found:
        failpoints.failpoint(name)


@pytest.mark.spec("A6")
def test_a_record_tells_where_decisions_differ(tmp_path: Path) -> None:
    # Given a record of some decisions
    path = tmp_path / "record.jsonl"
    recorder = Recorder(path)
    kernel = record.rebuilt(Settings.test(), Snapshot(), recorder)
    for at, event in enumerate([Led(1, seed=5), submitted("a"), Tick(), submitted("b")]):
        kernel.apply(event, Instant(1_000 + at))
    recorder.close()
    assert record.replay(path) == []
    # When one of them is changed, then it is named; and a line cut by a crash is none
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"owner":"ann"', b'"owner":"eve"')
    path.write_bytes(b"".join(lines) + b'{"now":1')
    assert [(found.line, found.event) for found in record.replay(path)] == [(3, "Submitted")]
