"""A checkpoint names its author and its ancestor. What a machine saved that delivered something false is not used."""

from typing import Any

import pytest
from kernel_driver import GOOD, SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.checkpoints import ANCESTORS_MAX, DELIVERED_MAX
from holdfast.kernel.decision import Done, Rejected, Verify
from holdfast.kernel.events import CancelAsked, Checkpointed, ContentDelivered, Verified
from holdfast.kernel.tainting import SavedJobs, last_good, taint_attempt, taint_node
from holdfast.model import (
    Attempt,
    Checkpoint,
    Entry,
    FailureCode,
    Instant,
    JobId,
    NodeId,
    NodeState,
    Recovery,
    RevokeCause,
)
from holdfast.model.messages import HeldPhase

LASTING = replace(SETTINGS, attempts_max=20, backoff_ms=1, backoff_ms_max=1, quarantine_share_max_permille=1)


def runs(network: Network, key: str = "k") -> Attempt:
    """The newest attempt, running."""
    attempt = network.attempts(key)[-1]
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING), full=False)
    return network.attempts(key)[-1]


def saves(network: Network, attempt: Attempt, name: str) -> Any:
    return network.tell(Checkpointed(attempt.id, attempt.fence, name * 64, 10)).answer


def begun(*nodes: str) -> Network:
    network = Network(LASTING)
    for node in nodes:
        network.join(node)
    network.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
    return network


def lost(network: Network, attempt: Attempt) -> None:
    """Its machine says that it is gone, and the job goes on elsewhere."""
    network.report(attempt.node, seen(attempt, HeldPhase.GONE), full=False)
    network.wait(200, 50)


def handed_on(*names: str) -> Network:
    """A job that went from machine to machine; each attempt saved its name once, and the last one runs."""
    network = begun("node_a", "node_b")
    for name in names:
        attempt = runs(network)
        assert saves(network, attempt, name) == Done()
        lost(network, attempt)
    runs(network)
    return network


def line(checkpoint: Checkpoint | None) -> str:
    return "" if checkpoint is None else "".join(one.manifest[0] for one in checkpoint.line)


def lies(network: Network, attempt: Attempt) -> list[Any]:
    """A result that verification refuses."""
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD), full=False)
    return network.tell(Verified(attempt.id, attempt.fence, False, "hashes differ")).changes


# --- author and ancestor ---


@pytest.mark.spec("J8", "A12")
def test_a_checkpoint_names_its_author_and_what_its_attempt_started_from() -> None:
    network = begun("node_a", "node_b")
    first = runs(network)
    saves(network, first, "1")
    saves(network, first, "2")
    kept = network.job().checkpoint
    assert kept is not None
    assert (kept.attempt, kept.node, kept.ancestor, kept.line) == (first.id, first.node, None, (kept,))
    lost(network, first)
    second = runs(network)
    assert second.resumed == kept
    saves(network, second, "3")
    grown = network.job().checkpoint
    assert grown is not None
    assert (grown.attempt, grown.node, grown.ancestor) == (second.id, second.node, kept)


@pytest.mark.spec("J8")
def test_a_limited_number_of_ancestors_is_kept() -> None:
    network = handed_on(*"abcdef")
    assert line(network.job().checkpoint) == "fedc"
    assert len(network.job().checkpoint.line) == 1 + ANCESTORS_MAX
    assert line(handed_on(*"ab").job().checkpoint) == "ba"


# --- the last good one ---


def chain(*nodes: str) -> Checkpoint | None:
    made: Checkpoint | None = None
    for depth, node in enumerate(nodes, 1):
        made = Checkpoint(str(depth), f"att_{depth}", None, depth, 1, Instant(depth), NodeId(node), made)  # type: ignore[arg-type]
    return made


@pytest.mark.spec("J8")
@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ((), 0),
        (("a",), 1),
        (("a", "b"), 2),
        (("liar",), 0),
        (("a", "liar"), 1),
        (("a", "liar", "b"), 1),
        (("a", "b", "liar", "c", "liar"), 2),
        (("liar", "a", "b"), 0),
    ],
)
def test_the_last_good_checkpoint_has_no_guilty_ancestor(nodes: tuple[str, ...], kept: int) -> None:
    good = last_good(chain(*nodes), lambda one: one.node == "liar")
    assert (0 if good is None else good.depth) == kept


@pytest.mark.spec("J8", "A12", "N13")
def test_what_grew_from_a_false_result_is_redone_from_the_last_good_ancestor() -> None:
    # given a state of node_a, on which node_b built, on which the next attempt runs
    network = begun("node_a", "node_b", "node_c")
    first = runs(network)
    saves(network, first, "a")
    lost(network, first)
    liar = runs(network)
    saves(network, liar, "b")
    lost(network, liar)
    heir = runs(network)
    assert line(heir.resumed) == "ba" and len({first.node, liar.node, heir.node}) == 3
    # and another job that goes on from a state of the same machine
    network.submit("other", recovery=Recovery.RESUME, checkpoint_ms=1_000)
    while network.attempts("other")[-1].node != liar.node:
        lost(network, runs(network, "other"))
    other = runs(network, "other")
    saves(network, other, "c")
    # when that machine delivers something false
    changes = lies(network, other)
    # then nothing of it is used: the heir is revoked, and the work is redone from the state of the first machine
    again = network.attempts()[-1]
    assert network.attempts()[2].revoke_cause is RevokeCause.TAINTED
    assert network.attempts()[2].revoked.code is FailureCode.SUPERSEDED
    assert line(network.job().checkpoint) == "a"
    network.wait(200, 50)
    again = network.attempts()[-1]
    assert (again.may_win, line(again.resumed), again.node != liar.node) == (True, "a", True)
    assert network.job("other").checkpoint is None
    told = [(row.job, row.text) for row in changes if isinstance(row, Entry) and row.kind == "job.tainted"]
    assert sorted(told) == sorted(
        [
            (network.job().id, f"the checkpoints of {liar.id} and what grew from them are not used: "
             "it goes on from checkpoint 1"),
            (network.job("other").id, f"the checkpoints of {other.id} and what grew from them are not used: "
             "it starts over"),
        ]
    )  # fmt: skip


@pytest.mark.spec("J8", "A12")
def test_a_false_result_of_the_job_itself_takes_it_back_too() -> None:
    network = handed_on("a")
    liar = runs(network)
    saves(network, liar, "b")
    assert line(network.job().checkpoint) == "ba"
    lies(network, liar)
    assert line(network.job().checkpoint) == "a"
    network.wait(200, 50)
    assert line(network.attempts()[-1].resumed) == "a" and network.attempts()[-1].may_win


@pytest.mark.spec("J8", "A12")
def test_a_failure_that_is_no_lie_takes_nothing_back() -> None:
    network = handed_on("a", "b")
    assert line(network.job().checkpoint) == "ba"


@pytest.mark.spec("J8", "A12")
def test_what_a_machine_that_lied_goes_on_to_save_is_not_kept() -> None:
    # given a machine with two jobs, where quarantine is capped and it goes on
    network = begun("node_a")
    network.submit("other", recovery=Recovery.RESUME, checkpoint_ms=1_000)
    first, other = runs(network), runs(network, "other")
    lies(network, other)
    assert network.node("node_a").state is NodeState.READY and network.attempts()[0].tainted
    # then what it holds since before may end, but saves nothing
    answer = saves(network, first, "a")
    assert isinstance(answer, Rejected) and answer.code == "revoked"
    assert network.job().checkpoint is None and network.attempts()[0].may_win
    # and what it gets afterwards is judged by what it does then
    network.wait(200, 50)
    assert saves(network, runs(network, "other"), "b") == Done()
    assert line(network.job("other").checkpoint) == "b"


@pytest.mark.spec("J8")
def test_the_checkpoints_of_one_attempt_are_taken_back_alone() -> None:
    network = handed_on("a", "b")
    _, second, heir = network.attempts()
    w = network.kernel._w
    w.begin(Instant(network.now))
    taint_attempt(w, second.id, second.job)
    for row in w.changes:
        network.rows[str(getattr(row, "id", "meta"))] = row
    assert line(network.job().checkpoint) == "a"
    assert network.attempts()[2].revoke_cause is RevokeCause.TAINTED and heir.may_win
    # and a live one saves nothing more; nothing happens twice, or to a job that is gone
    before = dict(w.rows[Attempt])
    taint_attempt(w, second.id, second.job)
    taint_attempt(w, second.id, JobId("job_gone"))
    assert dict(w.rows[Attempt]) == before
    # what is revoked already is left alone; what still runs saves nothing more
    taint_attempt(w, heir.id, heir.job)
    taint_node(w, heir.node)
    assert not w.attempts[heir.id].tainted
    network.submit("other")
    (live,) = network.attempts("other")
    taint_attempt(w, live.id, live.job)
    assert w.attempts[live.id].tainted


@pytest.mark.spec("J8")
def test_only_live_jobs_with_a_checkpoint_are_looked_at() -> None:
    network = handed_on("a")
    saved = network.kernel._w.lifecycle.of(SavedJobs)
    assert saved.jobs == {network.job().id}
    network.submit("plain")
    assert saved.jobs == {network.job().id}
    attempt = network.attempts()[-1]
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, GOOD), full=False)
    network.tell(Verified(attempt.id, attempt.fence, True))
    assert not network.job().live and saved.jobs == set()


# --- a result names only what its attempt sent ---


def sent(network: Network, attempt: Attempt, name: str, fence: int = 0) -> Any:
    return network.tell(ContentDelivered(attempt.id, fence or attempt.fence, name * 64)).answer


@pytest.mark.spec("J4", "J6", "A12")
def test_a_result_names_only_files_that_its_attempt_sent() -> None:
    network = begun("node_a")
    attempt = runs(network)
    assert sent(network, attempt, "a") == Done()
    own, stranger = replace(GOOD, manifest="a" * 64), replace(GOOD, manifest="b" * 64)
    network.report("node_a", seen(attempt, HeldPhase.FINISHED, stranger), full=False)
    ended = network.attempts()[0]
    assert not any(isinstance(send, Verify) for send in network.sends)
    assert ended.failure is not None and ended.failure.code is FailureCode.UPLOAD_TIMEOUT
    assert network.node("node_a").strikes == 0, "a restored state may not know what was sent"
    network.wait(200, 50)
    again = runs(network)
    assert sent(network, again, "a") == Done()
    network.report("node_a", seen(again, HeldPhase.FINISHED, own), full=False)
    assert [send.result for send in network.sends if isinstance(send, Verify)] == [own]


@pytest.mark.spec("J6")
def test_the_last_deliveries_of_an_attempt_are_remembered() -> None:
    network = begun("node_a")
    attempt = runs(network)
    for name in "abcdefa":
        assert sent(network, attempt, name) == Done()
    assert "".join(name[0] for name in network.attempts()[0].delivered) == "abcdefa"[-DELIVERED_MAX:]
    # one that is known is not written again
    assert network.tell(ContentDelivered(attempt.id, attempt.fence, "f" * 64)).changes == ()
    # another fence and an attempt that is gone or revoked count for nothing
    assert sent(network, attempt, "g", attempt.fence + 1).code == "not_live"
    assert network.tell(ContentDelivered("att_none.1", 1, "a" * 64)).answer.code == "not_live"  # type: ignore[arg-type]
    lies(network, attempt)
    assert sent(network, attempt, "g").code == "not_live"


@pytest.mark.spec("J5")
def test_a_revoked_attempt_delivers_nothing() -> None:
    network = begun("node_a", "node_b")
    attempt = runs(network)
    network.submit("other", recovery=Recovery.RESUME, checkpoint_ms=1_000)
    network.tell(CancelAsked(attempt.job, "ann"))
    answer = sent(network, attempt, "a")
    assert answer.code == "revoked" and "was revoked: stopped by ann" in answer.says
    assert network.attempts()[0].delivered == ()
