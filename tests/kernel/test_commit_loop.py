"""Commit, then act: nothing leaves the loop before its batch is durable, and nobody's answer is lost."""

import pytest
from kernel_driver import EAGER, Network

from holdfast.kernel.commit import CommitLoop
from holdfast.kernel.decision import Decision, Rejected, Taken
from holdfast.kernel.events import CancelAsked, ExplainAsked, Led, NodeJoined, NodeSaid, Submitted, Tick
from holdfast.kernel.kernel import Kernel
from holdfast.model import Hardware, Instant, JobId, JobSpec, Keep, Meta, NodeId, Owner, Resources, job_id
from holdfast.model.messages import Hello, Pong
from holdfast.model.rows import row_key

ROOM = Resources(4_000, 4_096, 10_000, 0)
HELLO = Hello(NodeId("node_a"), "first", "k" * 64, "0.1.0", Hardware(total=ROOM), ROOM, "none")
JOB = job_id(Owner("ada"), "k")
SUBMITTED = Submitted(JOB, Owner("ada"), JobSpec(("true",)), "hash")


def led() -> CommitLoop:
    loop = CommitLoop(Kernel(EAGER))
    loop.offer(Led(1, 7), Instant(1_000))
    batch = loop.next_batch()
    assert batch is not None
    loop.committed(batch)
    return loop


@pytest.mark.spec("J14")
def test_one_batch_is_committed_at_a_time_and_the_next_gathers_meanwhile() -> None:
    loop = led()
    loop.offer(NodeJoined(1, HELLO), Instant(1_001))
    loop.offer(SUBMITTED, Instant(1_002), "ada asks")
    first = loop.next_batch()
    assert first is not None
    assert (loop.waiting, first.events) == (0, 2)

    loop.offer(Tick(), Instant(1_003))
    loop.offer(CancelAsked(JOB), Instant(1_004), "ada stops it")
    assert loop.next_batch() is None
    assert loop.waiting == 2
    loop.committed(first)
    second = loop.next_batch()

    assert first.sends and [answer for _, answer in first.answers] == [Taken(JOB)]
    assert second is not None and [ticket for ticket, _ in second.answers] == ["ada stops it"]


@pytest.mark.spec("J14")
def test_only_what_has_something_to_say_is_committed() -> None:
    """An event that changes nothing is no batch; an answer or a send alone is one."""
    loop = led()
    assert loop.next_batch() is None
    loop.offer(NodeSaid(9, NodeId("node_z"), Pong(1)), Instant(1_001))
    assert loop.next_batch() is None

    loop.offer(ExplainAsked(JobId("job_none")), Instant(1_002), "somebody asks")
    asked = loop.next_batch()

    assert asked is not None and not asked.rows and not asked.sends
    assert isinstance(asked.answers[0][1], Rejected)


@pytest.mark.spec("J14")
def test_sends_without_a_row_are_released_by_a_batch_of_their_own() -> None:
    loop = led()
    loop.offer(NodeJoined(1, HELLO), Instant(1_001))
    joined = loop.next_batch()
    assert joined is not None
    loop.committed(joined)
    loop.offer(NodeJoined(2, HELLO), Instant(1_002))
    again = loop.next_batch()

    assert again is not None and again.sends


@pytest.mark.spec("J14")
def test_a_batch_that_is_not_in_flight_cannot_have_been_committed() -> None:
    loop = led()
    loop.offer(SUBMITTED, Instant(1_001), "ada asks")
    batch = loop.next_batch()
    assert batch is not None
    loop.committed(batch)

    with pytest.raises(AssertionError, match="not in flight"):
        loop.committed(batch)


@pytest.mark.spec("J14")
def test_whoever_waits_when_the_loop_is_dropped_is_known() -> None:
    loop = led()
    loop.offer(ExplainAsked(JobId("job_none")), Instant(1_001), "first")
    assert loop.unanswered() == ["first"]
    loop.next_batch()
    loop.offer(ExplainAsked(JobId("job_none")), Instant(1_002), "second")
    loop.offer(ExplainAsked(JobId("job_none")), Instant(1_003))

    assert loop.unanswered() == ["first", "second"]


@pytest.mark.spec("J14")
def test_of_one_row_the_last_version_is_committed() -> None:
    loop = led()
    loop.offer(NodeJoined(1, HELLO), Instant(1_001))
    loop.offer(SUBMITTED, Instant(1_002))
    loop.offer(CancelAsked(JOB), Instant(1_003))
    batch = loop.next_batch()

    assert batch is not None
    job = batch.rows["job", JOB]
    assert job.ended_ms == 1_003  # type: ignore[union-attr]
    assert row_key(Meta()) == ("meta", 0)
    assert row_key(Keep(JOB, Owner("ada"), (), Instant(5))) == ("keep", JOB)


@pytest.mark.spec("J14")
def test_the_driver_of_these_tests_is_the_kernel_itself() -> None:
    """What `Network` decides is what a loop would commit."""
    network = Network(EAGER)
    loop = CommitLoop(Kernel(EAGER))
    loop.offer(Led(1, 7), Instant(network.now))
    batch = loop.next_batch()
    assert batch is not None and batch.rows["meta", 0] == network.rows["meta"]


@pytest.mark.spec("J7", "J14")
def test_a_row_that_ended_is_not_changed_in_the_batch_that_ends_it() -> None:
    """The store sees only the last version of a row in a batch: it could not tell that the job ended in between."""
    loop = led()
    loop.offer(NodeJoined(1, HELLO), Instant(1_001))
    loop.offer(SUBMITTED, Instant(1_002))
    loop.offer(CancelAsked(JOB), Instant(1_003))
    loop.kernel._w.ended.clear()

    with pytest.raises(AssertionError, match="has ended"):
        loop.offer(SUBMITTED, Instant(1_004))


@pytest.mark.spec("J14")
def test_a_row_that_ended_may_be_decided_again_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = led()
    loop.offer(NodeJoined(1, HELLO), Instant(1_001))
    loop.offer(SUBMITTED, Instant(1_002))
    loop.offer(CancelAsked(JOB), Instant(1_003))
    ended = loop._gathering.rows["job", JOB]
    monkeypatch.setattr(loop.kernel, "apply", lambda *_: Decision((ended,)))

    loop.offer(Tick(), Instant(1_004))

    assert loop._gathering.rows["job", JOB] == ended
