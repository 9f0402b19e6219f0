"""Damaged files: a node's word is verified, the platform is blamed, and a checkpoint before is used."""

import pytest
from kernel_driver import GOOD, Network, seen
from test_tainting import begun, handed_on, line, runs

from holdfast.kernel.decision import Inspect
from holdfast.kernel.events import Inspected, Verified
from holdfast.kernel.tainting import drop_damaged
from holdfast.model import Attempt, Blame, Failure, FailureCode, Input, Instant, JobId, Recovery, Verdict
from holdfast.model.messages import HeldPhase

PACKAGE, INPUT = "d" * 64, "e" * 64
CLAIM = Failure(FailureCode.DAMAGED, "it has another hash")


def given_files(*nodes: str) -> tuple[Network, Attempt]:
    network = begun(*nodes)
    network.submit("files", package=PACKAGE, inputs=(Input("one", manifest=INPUT), Input("two", url="http://a")))
    return network, network.attempts("files")[-1]


def claims(network: Network, attempt: Attempt) -> list[Inspect]:
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, failure=CLAIM), full=False)
    return [send for send in network.sends if isinstance(send, Inspect)]


@pytest.mark.spec("J7", "H3")
def test_what_a_node_calls_damaged_is_read_again_before_anybody_is_blamed() -> None:
    network, attempt = given_files("node_a", "node_b")
    assert claims(network, attempt) == [Inspect(attempt.id, attempt.fence, attempt.owner, (PACKAGE, INPUT))]
    waiting = network.attempts("files")[-1]
    assert waiting.may_win and waiting.phase_until_ms == network.now + network.settings.upload_ms_max
    # it is asked once, however often the node says it
    assert claims(network, attempt) == []
    # a new leader asks again
    network.restart(2)
    network.join(attempt.node, held=(seen(attempt, HeldPhase.FINISHED, failure=CLAIM),))
    assert [send.attempt for send in network.sends if isinstance(send, Inspect)] == [attempt.id]


@pytest.mark.spec("J7")
def test_a_job_whose_files_are_damaged_fails_by_the_platforms_fault() -> None:
    network, attempt = given_files("node_a", "node_b")
    claims(network, attempt)
    network.tell(Inspected(attempt.id, attempt.fence, (PACKAGE,)))
    job = network.job("files")
    assert job.failure is not None and job.verdict is Verdict.FAILED
    assert job.failure.code is FailureCode.DAMAGED and PACKAGE in job.failure.detail
    meaning = job.failure.meaning
    assert (meaning.blame, meaning.retryable, meaning.billable) == (Blame.PLATFORM, True, False)
    assert network.node(attempt.node).strikes == 0


@pytest.mark.spec("J7", "H3")
def test_a_node_that_is_wrong_about_damage_is_struck_and_the_job_goes_on() -> None:
    network, attempt = given_files("node_a", "node_b")
    claims(network, attempt)
    network.tell(Inspected(attempt.id, attempt.fence))
    ended = network.attempts("files")[0]
    assert ended.failure is not None and ended.failure.code is FailureCode.RUNTIME_FAULT
    assert network.node(attempt.node).strikes == 1 and network.job("files").live


@pytest.mark.spec("J5")
def test_an_inspection_of_something_else_counts_for_nothing() -> None:
    network, attempt = given_files("node_a", "node_b")
    claims(network, attempt)
    assert network.tell(Inspected(attempt.id, attempt.fence + 1, (PACKAGE,))).changes == ()
    assert network.tell(Inspected("att_none.1", 1, (PACKAGE,))).changes == ()  # type: ignore[arg-type]
    network.tell(Inspected(attempt.id, attempt.fence, (PACKAGE,)))
    assert network.tell(Inspected(attempt.id, attempt.fence, ())).changes == ()


@pytest.mark.spec("J7")
def test_a_contender_that_has_its_files_goes_on() -> None:
    # given an attempt that runs on a machine that fell silent, and a second one that cannot fetch the files
    network = Network()
    network.join("node_a")
    network.submit("files", package=PACKAGE)
    first = network.attempts("files")[0]
    network.report("node_a", seen(first, HeldPhase.RUNNING))
    network.join("node_b")
    network.leave("node_a")
    second = network.attempts("files")[-1]
    assert second.node == "node_b"
    claims(network, second)
    network.tell(Inspected(second.id, second.fence, (PACKAGE,)))
    # then the job is not over as long as the first may return with a result
    assert network.job("files").live and network.attempts("files")[0].may_win


@pytest.mark.spec("J8")
def test_a_damaged_checkpoint_is_left_out_and_what_was_before_it_is_used() -> None:
    network = handed_on("a", "b")
    heir = runs(network)
    assert line(heir.resumed) == "ba"
    claims(network, heir)
    network.tell(Inspected(heir.id, heir.fence, ("b" * 64,)))
    assert network.job().live and line(network.job().checkpoint) == "a"
    network.wait(200, 50)
    assert line(network.attempts()[-1].resumed) == "a"


@pytest.mark.spec("J8")
def test_only_the_newest_checkpoint_need_be_sound() -> None:
    network = handed_on("a", "b", "c")
    w = network.kernel._w
    w.begin(Instant(network.now))
    job = network.job().id
    for damaged in (("b" * 64,), ("a" * 64, "b" * 64), ()):
        drop_damaged(w, job, damaged)
        assert line(w.jobs[job].checkpoint) == "cba"
    drop_damaged(w, JobId("job_none"), ("c" * 64,))
    drop_damaged(w, job, ("c" * 64, "b" * 64))
    assert line(w.jobs[job].checkpoint) == "a"
    drop_damaged(w, job, ("a" * 64,))
    assert w.jobs[job].checkpoint is None
    drop_damaged(w, job, ("a" * 64,))
    told = [(row.kind, row.facts.count) for row in w.changes if getattr(row, "kind", "") == "job.tainted"]
    assert told == [("job.tainted", 1), ("job.tainted", 0)]


@pytest.mark.spec("H3")
@pytest.mark.parametrize(
    ("damaged", "code", "strikes"), [(True, FailureCode.DAMAGED, 0), (False, FailureCode.INVALID_RESULT, 3)]
)
def test_output_that_was_damaged_here_strikes_nobody(damaged: bool, code: FailureCode, strikes: int) -> None:
    network = begun("node_a", "node_b")
    attempt = runs(network)
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD), full=False)
    network.tell(Verified(attempt.id, attempt.fence, False, "hashes differ", damaged))
    ended = network.attempts()[0]
    assert ended.failure == Failure(code, "hashes differ")
    assert network.node(attempt.node).strikes == strikes and network.job().live
    assert network.job().spec.recovery is Recovery.RESUME
