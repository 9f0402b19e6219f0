"""What a machine saved does not judge it, and is not used at all once its exit codes have set it aside (A12, J8)."""

import pytest
from kernel_driver import SETTINGS, Network, seen
from msgspec.structs import replace
from test_confirming import EXIT, fail, succeed
from test_tainting import begun, line, lost, runs, saves

from holdfast.kernel.confirming import refuted
from holdfast.kernel.events import DrainAsked
from holdfast.model import Attempt, Confirmation, Entry, Failure, FailureCode, Instant, NodeId, Recovery, Verdict
from holdfast.model.messages import HeldPhase

LATE = Failure(FailureCode.TIME_LIMIT, "too slow")
PATIENT = replace(SETTINGS, attempts_max=20, backoff_ms=1, backoff_ms_max=1, quarantine_share_max_permille=1)


def came_back_blaming() -> tuple[Network, Attempt, Attempt]:
    """A machine saved its state, was away, and says of the job that it failed; another one goes on from that state."""
    network = begun("node_a", "node_b")
    liar = runs(network)
    saves(network, liar, "a")
    network.leave(liar.node)
    heir = runs(network)
    assert heir.node != liar.node and line(heir.resumed) == "a"
    network.join(liar.node, held=(seen(liar, HeldPhase.FINISHED, failure=EXIT),))
    return network, liar, heir


@pytest.mark.spec("A12", "J8")
def test_a_run_that_confirms_relies_on_nothing_that_the_doubted_machine_saved() -> None:
    # given a machine that saved something in an earlier attempt, and fails in its next one
    network = begun("node_a")
    first = runs(network)
    saves(network, first, "a")
    lost(network, first)
    again = runs(network)
    assert again.node == first.node and line(again.resumed) == "a"
    network.join("node_b")
    # when it blames the owner
    fail(network, again)
    # then the other machine starts before all of that
    confirming = network.attempts()[-1]
    assert confirming.node == "node_b" and confirming.resumed is None
    assert network.job().checkpoint is None
    fail(network, confirming)
    assert network.job().confirmation is Confirmation.CONFIRMED


@pytest.mark.spec("A12", "J8")
def test_what_an_honest_machine_saved_before_is_not_lost() -> None:
    network = begun("node_a", "node_b")
    honest = runs(network)
    saves(network, honest, "a")
    network.leave(honest.node)
    doubted = runs(network)
    saves(network, doubted, "b")
    network.join(honest.node, instance="second")
    fail(network, doubted)
    assert line(network.job().checkpoint) == "a"
    assert line(network.attempts()[-1].resumed) == "a"


@pytest.mark.spec("A12", "J8")
def test_a_failure_that_grew_from_what_the_doubted_machine_saved_confirms_nothing() -> None:
    network, liar, heir = came_back_blaming()
    pending = network.job().pending_verdict
    assert pending is not None and pending.node == liar.node and heir.may_win
    # when the heir of its checkpoint fails as well
    saves(network, heir, "b")
    fail(network, heir)
    # then the first verdict is still in question, and the work begins before both
    assert network.job().live and network.job().pending_verdict == pending
    assert network.job().checkpoint is None
    network.wait(200, 50, report={"node_a": [], "node_b": []})
    again = network.attempts()[-1]
    assert (again.node, again.resumed) == (heir.node, None)
    # and the same machine can say whether it is true
    fail(network, again)
    assert (network.job().verdict, network.job().confirmation) == (Verdict.FAILED, Confirmation.CONFIRMED)


@pytest.mark.spec("A12")
def test_the_record_of_a_machine_does_not_help_where_it_was_misled() -> None:
    network, _, heir = came_back_blaming()
    for node in ("node_a", "node_b"):
        record = replace(network.record(node), ends="s" * 19 + "uu", good=4)
        network.kernel._w.load(record)
    fail(network, heir)
    assert network.job().live and network.job().confirmation is None


@pytest.mark.spec("A12")
def test_an_heir_that_finishes_has_the_result() -> None:
    network, liar, heir = came_back_blaming()
    succeed(network, heir)
    assert (network.job().verdict, network.job().accepted) == (Verdict.SUCCEEDED, heir.id)
    # the one that was away is not struck
    assert network.node(liar.node).strikes == 0


# --- found dishonest ---


def blaming(times: int, failure: Failure) -> tuple[Network, Attempt]:
    """A machine that saved the state of a job, and whose word on other jobs was refuted this often."""
    network = Network(PATIENT)
    network.join("node_a")
    network.submit("long", recovery=Recovery.RESUME, checkpoint_ms=1_000)
    author = runs(network, "long")
    saves(network, author, "a")
    network.join("node_b")
    for number in range(times):
        key = f"short {number}"
        network.tell(DrainAsked(NodeId("node_b"), on=True))
        network.submit(key)
        (first,) = network.attempts(key)
        network.tell(DrainAsked(NodeId("node_b"), on=False))
        fail(network, first, failure)
        second = network.attempts(key)[-1]
        assert (first.node, second.node) == ("node_a", "node_b")
        succeed(network, second)
        assert network.job(key).verdict is Verdict.SUCCEEDED
        network.report("node_b")
    return network, network.attempts("long")[0]


@pytest.mark.spec("A12", "J8")
@pytest.mark.parametrize(
    ("times", "failure", "believed"),
    [
        (2, EXIT, True),  # programs fail by chance
        (3, EXIT, False),
        (3, LATE, True),  # it is slow
        (3, Failure(FailureCode.OOM_JOB), True),
    ],
)
def test_exit_codes_that_set_a_machine_aside_take_what_it_saved_with_them(
    times: int, failure: Failure, believed: bool
) -> None:
    network, author = blaming(times, failure)
    assert network.node("node_a").strikes == times
    assert line(network.job("long").checkpoint) == ("a" if believed else "")
    assert author.tainted != believed


@pytest.mark.spec("A12")
def test_a_machine_that_is_forgotten_meanwhile_is_not_looked_for() -> None:
    network, liar, heir = came_back_blaming()
    pending = network.job().pending_verdict
    assert pending is not None
    w = network.kernel._w
    del w.nodes[liar.node]
    w.begin(Instant(network.now))
    refuted(w, replace(network.job(), pending_verdict=replace(pending, excused=False)), heir)
    assert not any(isinstance(row, Entry) for row in w.changes)
