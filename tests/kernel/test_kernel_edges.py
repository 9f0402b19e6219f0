"""Small rules of the kernel at their edges: forgiveness after a freeze, who had a turn, what an explanation
names, what the shell may ask."""

import pytest
from kernel_driver import SETTINGS, WHOLE, Network, seen, with_two_nodes
from msgspec.structs import replace

from holdfast.kernel import contenders, health
from holdfast.kernel.events import DrainAsked, NodeBroke, NodeSaid, Tick
from holdfast.kernel.explain import worst_gate
from holdfast.kernel.kernel import CLOCK_MS, Kernel
from holdfast.model import AttemptId, Facts, Gate, Instant, JobId, Meta, NodeCause, NodeId, NodeState, Recovery
from holdfast.model.messages import Discard, Held, HeldPhase, Leaving, Load, Offers, Report

NODE = NodeId("node_a")


# --- after a freeze of our own ---


@pytest.mark.spec("H2", "J14")
@pytest.mark.parametrize(("short_ms", "forgives"), [(1, False), (0, True)])
def test_a_freeze_of_twice_the_longest_silence_is_forgiven_for_a_while(short_ms: int, forgives: bool) -> None:
    network = with_two_nodes()
    s, w = network.settings, network.kernel._w
    w.begin(Instant(network.now))

    health.forgive(w, 2 * s.silence_ceiling_ms - short_ms)

    until = w.patience + s.silence_ceiling_ms + 2 * s.keepalive_ms
    kept = w.lifecycle.of(health.NodeHealth)
    assert (kept.forgive_until_ms == until) is forgives
    assert (kept.woke_ms == w.patience) is forgives


@pytest.mark.spec("H2", "J14")
@pytest.mark.parametrize(("after_ms", "state"), [(-1, NodeState.READY), (0, NodeState.SUSPECT)])
def test_a_stream_that_breaks_while_we_are_forgiven_is_nobodys_fault(after_ms: int, state: NodeState) -> None:
    network = with_two_nodes()
    w = network.kernel._w
    w.lifecycle.of(health.NodeHealth).forgive_until_ms = Instant(w.patience + 100)
    network.now += 100 + after_ms
    network.tell(NodeBroke(network.sessions["node_a"], NODE, "cut"))
    assert network.node("node_a").state is state


@pytest.mark.spec("H2")
def test_a_node_that_never_heard_its_welcome_because_we_were_slow_is_excused_for_a_while() -> None:
    """Given sessions that break before their first report while we are late, then the grace counts from the first."""
    network = Network()
    grace = network.settings.reconnect_grace_ms
    states: list[NodeState] = []
    for wait_ms in (0, grace - 1, 1):
        network.now += wait_ms
        session = max(network.sessions.values(), default=0) + 1
        network.sessions["node_a"] = session
        _dial(network, session)
        network.now += 10
        network.tell(Tick(10))
        network.tell(NodeBroke(session, NODE, "cut"))
        states.append(network.node("node_a").state)
    assert states == [NodeState.READY, NodeState.READY, NodeState.SUSPECT]


def _dial(network: Network, session: int) -> None:
    from kernel_driver import ROOM

    from holdfast.kernel.events import NodeJoined
    from holdfast.model import Hardware
    from holdfast.model.messages import Hello

    hello = Hello(NODE, "first", "k" * 64, "0.1.0", Hardware(total=ROOM), ROOM, "none")
    network.tell(NodeJoined(session, hello))


@pytest.mark.spec("H2")
@pytest.mark.parametrize(("reported", "late_ms"), [(True, 10), (False, 0)])
def test_who_was_heard_or_whom_nobody_kept_waiting_is_not_excused(reported: bool, late_ms: int) -> None:
    network = Network()
    network.sessions["node_a"] = 1
    _dial(network, 1)
    if reported:
        network.tell(NodeSaid(1, NODE, Report(1, True, ())))
    network.tell(Tick(late_ms))
    network.tell(NodeBroke(1, NODE, "cut"))
    assert network.node("node_a").state is NodeState.SUSPECT


@pytest.mark.spec("H2")
def test_a_report_ends_the_excuse() -> None:
    network = Network()
    network.sessions["node_a"] = 1
    _dial(network, 1)
    network.tell(Tick(10))
    network.tell(NodeBroke(1, NODE, "cut"))
    _dial(network, 2)
    network.tell(NodeSaid(2, NODE, Report(1, True, ())))
    assert network.kernel._w.presence(NODE).excused_ms is None


# --- whose turn it is ---


@pytest.mark.spec("J13", "J8")
@pytest.mark.parametrize(
    ("made", "felled", "had"), [(0, 0, False), (1, 0, True), (1, 1, True), (1, 2, False), (3, 3, False)]
)
def test_a_job_that_lost_its_machine_goes_first_unless_two_went_down_with_it(made: int, felled: int, had: bool) -> None:
    network = with_two_nodes()
    network.submit()
    nodes = tuple(NodeId(f"node_{n}") for n in range(felled))
    assert contenders.had_its_turn(replace(network.job(), attempts_made=made, felled=nodes)) is had


@pytest.mark.spec("J8")
@pytest.mark.parametrize(("short_ms", "forgiven"), [(1, False), (0, True)])
def test_a_body_that_ran_on_for_long_enough_forgives_what_was_tried(short_ms: int, forgiven: bool) -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    w = network.kernel._w
    w.begin(Instant(network.now + network.settings.lasting_ms - short_ms))
    job = replace(network.job(), tries=3, tried_ms=Instant(network.now))
    started = replace(attempt, started_ms=Instant(network.now))
    assert contenders.got_on(w, job, started).tries == (0 if forgiven else 3)
    assert contenders.got_on(w, job, replace(attempt, started_ms=None)).tries == 3


# --- what an explanation names ---


@pytest.mark.spec("H6", "H5")
@pytest.mark.parametrize(
    ("gates", "worst"),
    [
        ({}, None),
        ({Gate.GPUS: 1, Gate.LOST: 2}, Gate.LOST),
        ({Gate.GPUS: 2, Gate.CPU: 2, Gate.SUSPECT: 1}, Gate.CPU),
        # By titles both would be `probation`, and three.
        ({Gate.PROBATION_PROBES: 1, Gate.PROBATION_BUSY: 2, Gate.MEMORY: 2}, Gate.PROBATION_BUSY),
    ],
)
def test_the_gate_that_holds_back_most_is_named_and_of_equals_the_one_declared_first(
    gates: dict[Gate, int], worst: Gate | None
) -> None:
    assert worst_gate(gates) is worst


# --- what the shell may ask ---


@pytest.mark.spec("J14")
def test_the_shell_is_told_what_waits_what_is_at_stake_and_how_busy_a_node_is() -> None:
    network = with_two_nodes()
    kernel: Kernel = network.kernel
    assert not kernel.at_stake and kernel.waiting == 0
    assert kernel.load_of(NODE) == (True, Load())
    assert kernel.load_of(NodeId("node_none")) == (False, None)
    network.submit(recovery=Recovery.RESTART)
    (attempt,) = network.attempts()
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    assert kernel.at_stake
    network.submit("large", need=replace(WHOLE, resources=replace(WHOLE.resources, memory_mib=4_096)))
    network.submit("larger", need=replace(WHOLE, resources=replace(WHOLE.resources, memory_mib=4_096)))
    assert kernel.waiting == 1
    network.tell(Tick())
    assert not kernel.changing
    network.tell(NodeSaid(9_999, NODE, Report(1, True, ())))
    assert not kernel.changing
    network.leave("node_b" if attempt.node == "node_a" else "node_a")
    assert kernel.changing
    assert [kernel.load_of(NodeId(node))[0] for node in ("node_a", "node_b")].count(False) == 1


@pytest.mark.spec("J14")
def test_a_rebuilt_kernel_has_nothing_to_say_before_it_leads() -> None:
    network = with_two_nodes()
    network.submit()
    network.restart(epoch=2)
    assert len(network.attempts()) == 1 and network.job().live


# --- draining, twice wished ---


@pytest.mark.spec("N7")
def test_a_node_drains_while_either_operator_wants_it_to() -> None:
    network = with_two_nodes()
    session = network.sessions["node_a"]
    network.tell(DrainAsked(NODE, True))
    network.tell(NodeSaid(session, NODE, Leaving(60_000)))
    network.tell(DrainAsked(NODE, False))
    node = network.node("node_a")
    assert (node.draining, node.drained, node.leaving) == (True, False, True)
    network.tell(NodeSaid(session, NODE, Leaving(0, done=True)))
    answers = [network.tell(DrainAsked(NODE, on)).answer.__class__.__name__ for on in (True, False)]
    assert answers == ["Rejected", "Rejected"]
    assert network.node("node_a").state is NodeState.GONE


@pytest.mark.spec("N7")
def test_a_node_that_left_while_it_was_drained_can_be_taken_back() -> None:
    network = with_two_nodes()
    network.tell(DrainAsked(NODE, True))
    network.tell(NodeSaid(network.sessions["node_a"], NODE, Leaving(0, done=True)))
    assert type(network.tell(DrainAsked(NODE, True)).answer).__name__ == "Rejected"

    assert type(network.tell(DrainAsked(NODE, False)).answer).__name__ == "Done"

    node = network.node("node_a")
    assert (node.draining, node.drained, node.leaving, node.leaving_why) == (False, False, False, "")
    assert SETTINGS.drain_ms > 0


# --- a node that is not connected through no fault of its own ---


def cut_while_forgiven(how: str) -> Network:
    """Given an orchestrator that was frozen, a stream that broke meanwhile or on which nothing was heard since."""
    network = with_two_nodes()
    w = network.kernel._w
    kept = w.lifecycle.of(health.NodeHealth)
    kept.woke_ms, kept.forgive_until_ms = w.patience, w.soon(60_000)
    if how == "broken":
        network.tell(NodeBroke(network.sessions["node_a"], NODE, "cut"))
    else:
        network.now += network.settings.idle_silence_ms
        network.report("node_b")
        network.tell(Tick())
    assert network.node("node_a").state is NodeState.READY
    assert not network.kernel.load_of(NODE)[0]
    return network


@pytest.mark.spec("H2", "J5")
@pytest.mark.parametrize("how", ["broken", "silent"])
def test_a_node_that_is_not_connected_gets_no_work_though_it_is_not_to_blame(how: str) -> None:
    network = cut_while_forgiven(how)
    network.submit("one", need=WHOLE)
    network.submit("two", need=WHOLE)
    assert [a.node for key in ("one", "two") for a in network.attempts(key)] == ["node_b"]


@pytest.mark.spec("H2", "H6")
@pytest.mark.parametrize("how", ["broken", "silent"])
def test_a_node_that_is_not_to_blame_and_does_not_come_back_is_suspected_after_its_grace(how: str) -> None:
    network = cut_while_forgiven(how)
    grace = network.settings.reconnect_grace_ms
    network.wait(grace - 500, step=500, report={"node_b": []})
    assert network.node("node_a").state is NodeState.READY
    network.wait(1_000, step=500, report={"node_b": []})
    assert network.node("node_a").state is NodeState.SUSPECT


@pytest.mark.spec("H2")
def test_an_excuse_covers_only_sessions_that_we_kept_waiting() -> None:
    network = Network()
    for session, late_ms, state in ((1, 10, NodeState.READY), (2, 0, NodeState.SUSPECT)):
        _dial(network, session)
        network.now += late_ms
        network.tell(Tick(late_ms))
        network.tell(NodeBroke(session, NODE, "cut"))
        assert network.node("node_a").state is state


@pytest.mark.spec("H2")
def test_a_fault_of_its_own_does_not_use_up_the_excuse_of_a_node() -> None:
    """Given a session that broke while nobody was late, when later ones break because we are slow, then the time for
    which that is excused counts from the first of those."""
    network = Network()
    _dial(network, 1)
    network.tell(NodeBroke(1, NODE, "cut"))
    network.now += network.settings.reconnect_grace_ms
    _dial(network, 2)
    network.now += 10
    network.tell(Tick(10))
    network.tell(NodeBroke(2, NODE, "cut"))
    assert network.node("node_a").state is NodeState.PROBATION


@pytest.mark.spec("H2")
def test_the_break_of_a_stream_that_nobody_had_means_nothing() -> None:
    network = with_two_nodes()
    decision = network.tell(NodeBroke(99, NodeId("node_none"), "cut"))
    assert not decision.changes and not decision.sends


@pytest.mark.spec("H2")
def test_a_node_is_suspected_once() -> None:
    network = with_two_nodes()
    network.leave("node_a")
    w = network.kernel._w
    w.begin(Instant(network.now))
    health.suspect(w, NODE, Facts(node_cause=NodeCause.SILENT))
    assert not w.changes and not w.sends


@pytest.mark.spec("H2", "J5")
def test_nothing_is_taken_over_for_a_job_that_has_ended() -> None:
    network = with_two_nodes()
    network.submit()
    (attempt,) = network.attempts()
    w = network.kernel._w
    w.begin(Instant(network.now))
    health.take_over(w, replace(attempt, job=JobId("job_gone")), Facts(node_cause=NodeCause.SILENT))
    assert not w.changes and not w.sends


@pytest.mark.spec("H3", "J5")
def test_a_node_that_comes_back_into_its_quarantine_takes_nothing_back() -> None:
    """Given a quarantined node whose body was taken over, when it is cut off and dials in again while its quarantine
    lasts, then the contender that was to replace it goes on."""
    network = with_two_nodes(replace(SETTINGS, quarantine_share_max_permille=1_000))
    network.submit()
    (first,) = network.attempts()
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    network.seqs[first.node] += 1
    sick = Report(network.seqs[first.node], True, (seen(first, HeldPhase.RUNNING),), Load(sick="its disk fails"))
    network.tell(NodeSaid(network.sessions[first.node], first.node, sick))
    assert network.node(first.node).state is NodeState.QUARANTINED and len(network.attempts()) == 2

    network.leave(first.node)
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))

    assert network.node(first.node).state is NodeState.QUARANTINED
    assert network.attempts()[1].may_win


# --- the clock ---


@pytest.mark.spec("H2", "J14")
def test_a_single_late_millisecond_moves_the_deadlines() -> None:
    network = with_two_nodes()
    late_ms = network.kernel._w.meta.late_ms
    network.tell(Tick(1))
    assert network.kernel._w.meta.late_ms == late_ms + 1


@pytest.mark.spec("J14")
@pytest.mark.parametrize(("job", "short_ms", "stored"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_the_time_is_stored_now_and_then_while_a_job_is_live_and_not_without_one(
    job: bool, short_ms: int, stored: bool
) -> None:
    network = Network()
    if job:
        network.join("node_a")
        network.submit(need=WHOLE)
        network.leave("node_a")
    w = network.kernel._w
    w.begin(Instant(network.now + CLOCK_MS - short_ms))
    for subject, id in list(w.deadlines._due):
        w.deadlines.drop(subject, id)
    network.now += CLOCK_MS - short_ms
    decision = network.tell(Tick())
    assert [row.now_ms for row in decision.changes if isinstance(row, Meta)] == ([network.now] if stored else [])


@pytest.mark.spec("J14")
def test_an_event_that_only_says_something_has_also_changed_something() -> None:
    network = with_two_nodes()
    held = Held(AttemptId("att_none.1"), 7, HeldPhase.RUNNING)
    network.report("node_a", held, full=False)
    assert network.said(Discard) and not network.kernel._w.changes
    assert network.kernel.changing


# --- what a node's own operator wants ---


@pytest.mark.spec("N10", "N7")
def test_a_pause_that_is_said_again_is_still_one_and_changes_nothing() -> None:
    network = with_two_nodes()
    paused = Offers(network.node("node_a").offered, True, 500, "games")
    network.tell(NodeSaid(network.sessions["node_a"], NODE, paused))
    decision = network.tell(NodeSaid(network.sessions["node_a"], NODE, paused))
    assert not decision.changes
    assert network.node("node_a").draining


@pytest.mark.spec("N7")
def test_who_takes_back_a_node_that_left_forgets_also_what_its_own_operator_wanted() -> None:
    network = with_two_nodes()
    session = network.sessions["node_a"]
    network.tell(DrainAsked(NODE, True))
    network.tell(NodeSaid(session, NODE, Leaving(60_000)))
    network.tell(NodeSaid(session, NODE, Leaving(0, done=True)))
    assert network.node("node_a").leaving and network.node("node_a").pause_cause is not None

    network.tell(DrainAsked(NODE, False))

    node = network.node("node_a")
    assert (node.draining, node.drained, node.leaving, node.leaving_why) == (False, False, False, "")
    assert node.pause_cause is None
