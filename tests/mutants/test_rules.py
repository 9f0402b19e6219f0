"""One story for each safety rule that a few simulated worlds may not touch. Each kills a mutant of its own."""

from typing import Any

import pytest
from by_hand import GOOD, SETTINGS, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel.decision import Rejected, Taken, Verify
from holdfast.kernel.events import NodeBroke, NodeSaid, Tick, TokenMade, Verified
from holdfast.kernel.placement import Index, Seat
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    Instant,
    JoinToken,
    Need,
    NodeId,
    NodeState,
    Recovery,
    Resources,
    TokenId,
    Verdict,
    job_id,
)
from holdfast.model.messages import (
    Discard,
    Go,
    HeldPhase,
    Load,
    Pong,
    Refusal,
    Renewed,
    Report,
    Start,
    Welcome,
)
from holdfast.node.core.warden import Act, Order, Phase, Warden

# --- contenders ---


@pytest.mark.spec("J5")
def test_a_result_that_was_verified_after_its_attempt_was_revoked_is_not_accepted() -> None:
    # given a result that is being verified
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    assert [s for s in network.sends if isinstance(s, Verify)]
    # when the verdict does not come in time, so that the attempt is given up, and comes then
    held = {first.node: [seen(first, HeldPhase.FINISHED, GOOD)]}
    network.wait(network.settings.upload_ms_max + 200, step=100, report=held)
    assert network.attempts()[0].live
    assert network.attempts()[0].revoked is not None
    network.tell(Verified(first.id, first.fence, ok=True))
    # then it counts for nothing
    assert network.job().accepted is None


@pytest.mark.spec("J5")
def test_a_report_under_another_fence_is_answered_with_a_discard() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, replace(seen(first, HeldPhase.RUNNING), fence=first.fence + 1), full=False)
    assert network.attempts()[0].phase.value == "offered"
    assert [d.fence for d in network.said(Discard)] == [first.fence + 1]


def two_that_run() -> tuple[Network, Attempt, Attempt]:
    """Two contenders whose bodies both run, because the first one's node was away."""
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    assert len([a for a in network.attempts() if a.may_win]) == 2
    return network, first, second


@pytest.mark.spec("J5")
def test_a_second_result_changes_nothing() -> None:
    # given two results, both being verified
    network, first, second = two_that_run()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    network.report(second.node, seen(second, HeldPhase.FINISHED, replace(GOOD, stdout_sha256="bb" * 32)))
    # when both are found good
    network.tell(Verified(first.id, first.fence, ok=True))
    network.tell(Verified(second.id, second.fence, ok=True))
    # then the first one stands
    assert network.job().accepted == first.id
    assert network.job().result == GOOD


@pytest.mark.spec("J5", "J7")
def test_a_result_declared_after_another_is_not_accepted_by_the_verdict_on_the_other() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.FINISHED, GOOD))
    network.report(first.node, seen(first, HeldPhase.FINISHED, replace(GOOD, stdout_sha256="bb" * 32)))
    network.tell(Verified(first.id, first.fence, ok=True))
    assert network.job().accepted is None


@pytest.mark.spec("J5")
def test_who_lost_is_told_to_stop() -> None:
    # given two contenders that both run
    network, first, second = two_that_run()
    # when the second delivers
    network.report(second.node, seen(second, HeldPhase.FINISHED, GOOD))
    network.tell(Verified(second.id, second.fence, ok=True))
    # then the first is revoked and told
    assert network.job().accepted == second.id
    assert network.attempts()[0].revoked is not None
    assert first.id in [d.attempt for d in network.said(Discard)]


@pytest.mark.spec("J5", "H2")
def test_a_broken_stream_brings_a_second_contender_in_the_same_step() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.leave(first.node)
    assert network.node(first.node).state is NodeState.SUSPECT
    assert [s.attempt for s in network.said(Start)] == [network.attempts()[1].id]
    assert network.attempts()[0].revoked is None


# --- class never ---


def never_with_go() -> tuple[Network, Attempt]:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.READY))
    assert [g.attempt for g in network.said(Go)] == [first.id]
    return network, first


@pytest.mark.spec("J5", "J8")
def test_after_the_go_no_other_node_gets_the_job_though_its_body_was_never_seen() -> None:
    # given a body that may start, and was not seen running
    network, first = never_with_go()
    # when its node is cut off, however long
    network.leave(first.node)
    other = "node_b" if first.node == "node_a" else "node_a"
    network.wait(network.settings.lease_ms * 2, report={other: []})
    # then nobody else got it, and it ends as what it is
    assert len(network.attempts()) == 1
    assert network.job().failure is not None
    assert network.job().failure.code is FailureCode.LEASE_LOST  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.spec("J8")
def test_the_orchestrator_waits_longer_than_the_lease() -> None:
    network, first = never_with_go()
    network.leave(first.node)
    other = "node_b" if first.node == "node_a" else "node_a"
    network.wait(network.settings.lease_ms, report={other: []})
    assert network.job().live


@pytest.mark.spec("J8")
def test_a_revoked_attempt_gets_no_further_lease() -> None:
    # given a leased body whose job was given up because its machine did not stop it in time
    network, first = never_with_go()
    network.report(first.node, seen(first, HeldPhase.RUNNING), renew=(first.id,))
    assert [r.attempts for r in network.said(Renewed)] == [(first.id,)]
    network.tell(Verified(first.id, first.fence, ok=True))
    network.leave(first.node)
    network.wait(network.settings.lease_ms * 2)
    assert network.attempts()[0].revoked is not None
    # when its machine is back and asks for more
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    network.report(first.node, seen(first, HeldPhase.RUNNING), renew=(first.id,))
    # then it gets none
    assert network.said(Renewed) == []


@pytest.mark.spec("J8")
def test_a_body_that_started_without_its_go_is_not_accepted_and_not_repeated() -> None:
    network = with_two_nodes()
    network.submit(recovery=Recovery.NEVER)
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    assert not network.job().live
    assert network.job().verdict is Verdict.FAILED
    assert len(network.attempts()) == 1


# --- deadlines ---


@pytest.mark.spec("H6")
def test_an_offer_that_is_not_answered_goes_elsewhere() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.wait(network.settings.offer_ms_max + 2_000, report={"node_a": [], "node_b": []})
    assert network.attempts()[0].revoked is not None
    assert network.attempts()[0].revoked.code is FailureCode.OFFER_UNANSWERED  # pyright: ignore[reportOptionalMemberAccess]
    assert {a.node for a in network.attempts()} != {first.node}


@pytest.mark.spec("H6", "J7")
def test_a_preparation_that_takes_too_long_is_given_up() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    held = {first.node: [seen(first, HeldPhase.PREPARING)]}
    network.wait(network.settings.prepare_ms_max + 1_000, step=100, report=held)
    revoked = network.attempts()[0].revoked
    assert revoked is not None
    assert revoked.code is FailureCode.PREPARE_TIMEOUT


@pytest.mark.spec("H6", "J13")
def test_a_job_that_finds_no_room_ends_at_its_queue_limit() -> None:
    network = Network()
    network.submit(queue_limit_ms=1_000)
    network.wait(1_200)
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.QUEUE_EXPIRED


@pytest.mark.spec("J14", "H6")
def test_time_without_a_leader_counts_against_nobody() -> None:
    # given a job that waits, and an orchestrator that is away for longer than the job may wait
    network = Network()
    network.submit(queue_limit_ms=1_000)
    network.wait(200)
    network.restart(epoch=2, away_ms=60_000)
    # when it leads again, then the job has the time it had left
    network.wait(500)
    assert network.job().live
    network.wait(1_000)
    assert not network.job().live


@pytest.mark.spec("H2")
@pytest.mark.parametrize("frozen_ms", [2_000, 60_000])
def test_time_in_which_the_orchestrator_was_frozen_counts_against_nobody(frozen_ms: int) -> None:
    # given a node at work, and an orchestrator frozen for longer than a node may be silent
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.PREPARING))
    assert frozen_ms > network.settings.silence_ceiling_ms
    network.now += frozen_ms
    # when it learns of its own lateness, then nobody is blamed and no session is ended
    network.tell(Tick(late_ms=frozen_ms))
    assert network.sends == []
    assert network.node(first.node).state is NodeState.READY
    assert [a.revoked for a in network.attempts()] == [None]


# --- leadership ---


@pytest.mark.spec("J14")
def test_commands_carry_the_epoch_of_the_new_leader() -> None:
    network = with_two_nodes()
    network.restart(epoch=2)
    network.join("node_a")
    assert [w.epoch for w in network.said(Welcome)] == [2]
    network.submit()
    assert [s.epoch for s in network.said(Start)] == [2]


@pytest.mark.spec("J5", "J14")
def test_a_fence_is_not_used_again_after_a_restart() -> None:
    network = with_two_nodes()
    network.submit("one")
    network.restart(epoch=2)
    network.join("node_b")
    network.submit("two")
    fences = [a.fence for key in ("one", "two") for a in network.attempts(key)]
    assert len(fences) == len(set(fences)) == 2


# --- people ---


@pytest.mark.spec("J13", "J14")
def test_the_same_key_gives_the_same_job_and_another_job_under_it_is_refused() -> None:
    network = with_two_nodes()
    assert network.submit() == Taken(job_id("ann", "k"))
    network.wait(100)
    before = network.job()
    assert network.submit() == Taken(job_id("ann", "k"), again=True)
    assert network.job() == before
    refused = network.submit(name="another")
    assert isinstance(refused, Rejected)
    assert refused.code == "key_reused"


@pytest.mark.spec("J7", "J8")
def test_a_fault_of_the_job_itself_is_not_tried_again() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    failed = Failure(FailureCode.EXIT_CODE, exit_code=1)
    network.report(first.node, seen(first, HeldPhase.FINISHED, failure=failed))
    network.wait(2_000, report={"node_a": [], "node_b": []})
    assert network.job().failure == failed
    assert len(network.attempts()) == 1


@pytest.mark.spec("J8")
def test_attempts_are_bounded_whatever_fails() -> None:
    # given a fleet on which every attempt breaks, on ever other nodes
    network = Network()
    for number in range(12):
        network.join(f"node_{number:02}")
    network.submit(attempts_max=2)
    for _ in range(200):
        live = [a for a in network.attempts() if a.live and a.revoked is None]
        for attempt in live:
            broke = seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.RUNTIME_FAULT))
            network.report(attempt.node, broke, full=False)
        network.wait(100, step=100)
    # then it ends with that failure, after as many as it may have
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.RUNTIME_FAULT
    assert network.job().failures == 2


@pytest.mark.spec("J8")
def test_a_job_under_which_several_nodes_went_down_is_stopped_as_poison() -> None:
    # given a fleet large enough that losing a few is no network failure
    network = Network()
    for number in range(30):
        network.join(f"node_{number:02}")
    network.submit()
    # when one node after the other goes down with its body running
    for _ in range(network.settings.poison_nodes):
        (attempt,) = [a for a in network.attempts() if a.may_win and network.node(a.node).state is NodeState.READY]
        network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
        network.leave(attempt.node)
    # then it is stopped, and says so
    failure = network.job().failure
    assert failure is not None
    assert failure.code is FailureCode.POISON


# --- nodes ---


@pytest.mark.spec("H3")
def test_who_comes_back_is_probed_before_it_is_given_anything() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a")
    network.submit()
    assert network.attempts() == []
    assert network.node("node_a").state is NodeState.PROBATION


@pytest.mark.spec("H3")
def test_quarantine_leaves_part_of_the_fleet_in_service() -> None:
    # given two nodes that both break whatever they get
    network = with_two_nodes(replace(SETTINGS, attempts_max=50))
    for round_ in range(12):
        network.submit(f"job {round_}")
        for attempt in [a for a in network.attempts(f"job {round_}") if a.live and a.revoked is None]:
            broke = seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.RUNTIME_FAULT))
            network.report(attempt.node, broke, full=False)
    # then one of them is still given work
    states = [network.node(n).state for n in ("node_a", "node_b")]
    assert states.count(NodeState.QUARANTINED) == 1


@pytest.mark.spec("H3")
def test_a_quarantined_node_is_given_nothing() -> None:
    network = Network()
    for name in ("node_a", "node_b", "node_c"):
        network.join(name)
    bad = "node_a"
    sick = Report(2, True, (), load=Load(sick="the disk fails"))
    network.tell(NodeSaid(network.sessions[bad], NodeId(bad), sick))
    assert network.node(bad).state is NodeState.QUARANTINED
    for number in range(8):
        network.submit(f"job {number}")
    assert bad not in {a.node for number in range(8) for a in network.attempts(f"job {number}")}


@pytest.mark.spec("N1", "N6")
def test_an_id_belongs_to_the_first_key_that_joined_under_it() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a", public_key="x" * 64)
    assert [r.code for r in network.said(Refusal)] == ["uuid_taken"]
    assert network.node("node_a").public_key == "k" * 64


@pytest.mark.spec("N6")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"expires_ms": 999_999}, "token_expired"),
        ({"uses_left": 0}, "token_used"),
        ({"revoked": True}, "token_revoked"),
    ],
)
def test_a_token_that_is_over_lets_nobody_in(change: dict[str, Any], code: str) -> None:
    network = Network(replace(SETTINGS, open_join=False))
    token = JoinToken(TokenId("tok_1"), "s" * 64, Instant(0), Instant(9_999_999), 1)
    network.tell(TokenMade(replace(token, **change)))
    network.join("node_a", token_id="tok_1", token_sha256="s" * 64)
    assert [r.code for r in network.said(Refusal)] == [code]
    assert "node_a" not in network.rows


@pytest.mark.spec("N6")
def test_a_token_for_one_machine_lets_in_one() -> None:
    network = Network(replace(SETTINGS, open_join=False))
    network.tell(TokenMade(JoinToken(TokenId("tok_1"), "s" * 64, Instant(0), Instant(9_999_999), 1)))
    network.join("node_a", token_id="tok_1", token_sha256="s" * 64)
    assert len(network.said(Welcome)) == 1
    network.join("node_b", token_id="tok_1", token_sha256="s" * 64, public_key="m" * 64)
    assert len(network.said(Refusal)) == 1


@pytest.mark.spec("J5", "N5")
def test_an_older_report_does_not_undo_a_newer_one() -> None:
    # given a node whose report that it holds the attempt has arrived
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, full=True)
    network.report(first.node, seen(first, HeldPhase.PREPARING))
    # when the one before it, in which it did not hold it yet, arrives again
    old = Report(1, True, ())
    network.tell(NodeSaid(network.sessions[first.node], first.node, old))
    # then nothing is thought to have vanished
    assert [a.live for a in network.attempts()] == [True]


@pytest.mark.spec("J5", "H2")
def test_a_session_that_was_replaced_is_not_listened_to() -> None:
    network = with_two_nodes()
    network.submit()
    (first,) = network.attempts()
    old = network.sessions[first.node]
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    network.tell(NodeSaid(old, first.node, Report(9, True, ())))
    network.tell(NodeBroke(old, first.node, "cut"))
    assert network.attempts()[0].live
    assert network.node(first.node).state is NodeState.READY


@pytest.mark.spec("H3")
def test_an_answer_to_another_probe_proves_nothing() -> None:
    network = Network()
    network.join("node_a")
    network.leave("node_a")
    network.join("node_a")
    network.submit()
    for _ in range(5):
        network.tell(NodeSaid(network.sessions["node_a"], NodeId("node_a"), Pong(-1)))
    assert network.attempts() == []


# --- placement and the node ---


@pytest.mark.spec("J13")
def test_the_one_machine_that_fits_is_found_among_thousands() -> None:
    # given a fleet of small machines, and one that is larger
    index = Index[Seat](SETTINGS.candidates)
    for number in range(5_000):
        index.open(Seat(NodeId(f"node_{number}")), (1_000, 512, 10_000, 0))
    index.open(Seat(NodeId("node_large")), (32_000, 32_768, 10_000, 0))
    # when somebody needs all of the larger one, then no draw misses it
    need = Need(Resources(cpu_milli=32_000, memory_mib=32_768, disk_mib=1_000))
    assert all([seat.node for seat in index.candidates(need, draw, ())] == ["node_large"] for draw in range(20))


LEASED = Order(
    attempt="att_1.1",
    fence=1,
    job="job_1",
    argv=("true",),
    time_limit_ms=60_000,
    orphan_ms_max=60_000,
    stop_grace_ms=500,
    log_bytes_max=1_000,
    lease_ms=10_000,
    wait_for_go=True,
)


@pytest.mark.spec("J5", "J8")
def test_a_lease_alone_starts_nothing() -> None:
    # given a body that must not run twice, under a good lease
    warden = Warden(LEASED, 0)
    warden.lease(10_000)
    # when the go does not come, it does not start
    assert warden.due(1) is Act.NOTHING
    assert warden.phase is Phase.READY
    # then with the go it does
    warden.go(2)
    assert warden.due(2) is Act.START
