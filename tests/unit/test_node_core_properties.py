"""The node core's promises under any order of events, with messages lost, repeated, late and out of order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import AttemptId, Failure, FailureCode, Instant, JobSpec, NodeId, Resources, job_of
from holdfast.model.messages import Discard, Drained, Go, HeldPhase, Ping, Renewed, Report, Start, Welcome
from holdfast.node.core.attempt_lifecycle import BodyOutcome, EndKind, Phase
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import (
    CommandReceived,
    Connected,
    Delivered,
    Disconnected,
    LeaveAsked,
    NodeAction,
    NodeEvent,
    NodeTick,
    Remove,
    Removed,
    Say,
    ShimDied,
    ShimSaid,
    ShimStatus,
    Spawn,
    SpawnFailed,
    Tell,
)

NODE = NodeId("node_" + "a" * 32)
ATTEMPTS = [AttemptId(f"att_{letter * 14}.1") for letter in "abc"]
LEASED = {ATTEMPTS[0], ATTEMPTS[1]}
LEASE = 4_000

attempts = st.sampled_from(ATTEMPTS)
fences = st.sampled_from([7, 7, 7, 8])
epochs = st.sampled_from([4, 5, 5, 5, 6])


def _start(attempt: AttemptId, fence: int, epoch: int) -> Start:
    return Start(epoch, attempt, fence, job_of(attempt), JobSpec(("a",)), 60_000, LEASE if attempt in LEASED else 0)


commands = st.one_of(
    st.builds(_start, attempts, fences, epochs),
    st.builds(Go, epochs, attempts, fences, st.integers(0, 30)),
    st.builds(Discard, epochs, attempts, fences, st.just("why")),
    st.builds(Renewed, epochs, st.integers(0, 30), st.just(tuple(ATTEMPTS))),
    st.builds(Ping, epochs, st.integers(0, 9)),
    st.builds(Drained, epochs, st.booleans()),
)
statuses = st.sampled_from(
    [
        ShimStatus(Phase.PREPARING),
        ShimStatus(Phase.READY),
        ShimStatus(Phase.RUNNING),
        ShimStatus(Phase.ENDED, BodyOutcome(EndKind.EXIT, exit_code=0), 1, 1, "ab" * 32),
        ShimStatus(Phase.ENDED, BodyOutcome(EndKind.STOPPED)),
    ]
)
events: st.SearchStrategy[NodeEvent] = st.one_of(
    st.builds(CommandReceived, commands),
    st.builds(CommandReceived, commands),
    st.builds(ShimSaid, attempts, statuses),
    st.builds(ShimDied, attempts, st.just("gone")),
    st.builds(SpawnFailed, attempts, st.just(Failure(FailureCode.RUNTIME_FAULT))),
    st.builds(Delivered, attempts),
    st.builds(Removed, attempts),
    st.just(NodeTick()),
    st.just(Disconnected()),
    st.builds(lambda epoch: Connected(Welcome(NODE, epoch, 5_000, 500, LEASE, 60_000, 100)), epochs),
    st.builds(LeaveAsked, st.sampled_from([0, 3_000])),
)


def _life(attempt: AttemptId) -> list[NodeEvent]:
    """A whole life in good order, so that histories reach far enough for the disorder around it to matter."""
    return [
        CommandReceived(_start(attempt, 7, 5)),
        ShimSaid(attempt, ShimStatus(Phase.READY)),
        CommandReceived(Discard(5, attempt, 7, "why")),
        ShimSaid(attempt, ShimStatus(Phase.ENDED, BodyOutcome(EndKind.STOPPED))),
        Removed(attempt),
    ]


delays = st.sampled_from([0, 0, 10, 400, 2_000, 5_000])
pieces = st.one_of(events.map(lambda event: [event]), st.builds(_life, attempts))
CONNECTED = Connected(Welcome(NODE, 5, 5_000, 500, LEASE, 60_000, 100))
histories = st.lists(st.tuples(pieces, delays), max_size=40).map(
    lambda some: [(CONNECTED, 0), *((event, wait) for piece, wait in some for event in piece)]
)


class World:
    """Feeds a history to a core and keeps what a checker must remember."""

    def __init__(self) -> None:
        self.core = NodeCore(NODE, "i1", offered=Resources(9_000, 9_000, 9_000))
        self.now = 1_000
        self.spawned: list[str] = []
        self.said: dict[int, tuple[int, Report]] = {}
        self.allowed: set[AttemptId] = set()
        self.leases: dict[AttemptId, Instant] = {}

    def feed(self, event: NodeEvent, later_ms: int) -> list[NodeAction]:
        self.now += later_ms
        if isinstance(event, CommandReceived) and isinstance(event.command, Go):
            go = event.command
            known = self.core.holding(go.attempt)
            if known is not None and known.fence == go.fence and go.epoch >= self.core.epoch_seen:
                self.allowed.add(go.attempt)
        actions = self.core.apply(event, Instant(self.now))
        for action in actions:
            self.check(action)
        return actions

    def check(self, action: NodeAction) -> None:
        match action:
            case Spawn(order):
                assert order.attempt not in self.spawned, "a second body for one attempt"
                self.spawned.append(order.attempt)
                assert order.wait_for_go == (order.attempt in LEASED)
            case Tell(attempt, "lease", until):
                moments = [at for at, report in self.said.values() if _speaks_of_lease(report, attempt)]
                assert until in [at + LEASE * 9 // 10 for at in moments], "a lease from nowhere"
                self.leases[attempt] = until
            case Tell(attempt, "go"):
                assert attempt in self.allowed, "told to go without a Go"
                assert self.leases[attempt] > self.now, "told to go without a lease"
            case Remove(attempt):
                assert attempt not in self.core.alive, "removed while it may live"
            case Say(Report() as report):
                assert report.seq not in self.said
                self.said[report.seq] = (self.now, report)
                if report.full:
                    assert report.held == self.core.held()
            case _:
                pass


def _speaks_of_lease(report: Report, attempt: AttemptId) -> bool:
    ready = [h.attempt for h in report.held if h.phase is HeldPhase.READY]
    return attempt in report.renew or attempt in ready


@pytest.mark.spec("J5", "J8")
@settings(max_examples=250, deadline=None)
@given(histories)
def test_no_second_body_no_go_without_go_and_no_lease_from_nowhere(
    history: list[tuple[NodeEvent, int]],
) -> None:
    world = World()
    for event, later_ms in history:
        world.feed(event, later_ms)


@pytest.mark.spec("J14", "H2")
@settings(max_examples=120, deadline=None)
@given(histories)
def test_whatever_is_held_is_reported_when_a_session_stands(history: list[tuple[NodeEvent, int]]) -> None:
    world = World()
    for event, later_ms in history:
        world.feed(event, later_ms)
    world.feed(Connected(Welcome(NODE, 99, 5_000, 500, LEASE, 60_000, 100)), 1)
    due = world.core.next_due()
    assert due is not None
    held = world.core.held()
    actions = world.feed(NodeTick(), max(0, due - world.now) + 5_000)
    full = [a.message for a in actions if isinstance(a, Say) and isinstance(a.message, Report) and a.message.full]
    assert [(h.attempt, h.fence) for h in full[-1].held] == [(h.attempt, h.fence) for h in held]


@pytest.mark.spec("N5")
@settings(max_examples=120, deadline=None)
@given(histories, commands)
def test_a_lower_epoch_changes_nothing(
    history: list[tuple[NodeEvent, int]], command: Start | Go | Discard | Renewed | Ping | Drained
) -> None:
    world = World()
    for event, later_ms in history:
        world.feed(event, later_ms)
    world.feed(Connected(Welcome(NODE, 99, 5_000, 500, LEASE, 60_000, 100)), 1)
    world.feed(NodeTick(), 0)
    before = (world.core.held(), world.core.alive, world.core.next_due())
    assert world.feed(CommandReceived(command), 0) == []
    assert (world.core.held(), world.core.alive, world.core.next_due()) == before


@pytest.mark.spec("N7")
@settings(max_examples=120, deadline=None)
@given(histories)
def test_a_leaving_node_leaves_once_everything_has_died(history: list[tuple[NodeEvent, int]]) -> None:
    world = World()
    for event, later_ms in history:
        world.feed(event, later_ms)
    world.feed(LeaveAsked(1_000), 0)
    for attempt in world.core.alive:
        assert not world.core.left
        world.feed(ShimDied(attempt, "killed"), 1)
    for _ in range(8):
        due = world.core.next_due()
        if world.core.left or due is None:
            break
        world.feed(NodeTick(), max(0, due - world.now))
    world.feed(NodeTick(), 60_000)
    assert world.core.left
