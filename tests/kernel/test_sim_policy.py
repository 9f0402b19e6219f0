"""What the simulated worlds check over whole runs, and meet only once in hundreds of seeds: coming back to a
quarantine, coming back after a goodbye, contenders that both save, and GPUs after a restart of the agent."""

from random import Random

import pytest
from kernel_driver import SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.events import Checkpointed, NodeSaid
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    Failure,
    FailureCode,
    Instant,
    JobSpec,
    Need,
    NodeId,
    NodeState,
    Recovery,
    Resources,
    job_of,
)
from holdfast.model.messages import HeldPhase, Leaving, Start, Welcome
from holdfast.node.core.admission import Means
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import CommandReceived, Connected, NodeAction, Recovered, ShimDied, ShimStatus, Spawn

NODES = ("node_a", "node_b", "node_c")
PATIENT = replace(SETTINGS, quarantine_ms=4_000, suspect_ms_max=60_000)


def network_of_three() -> Network:
    network = Network(PATIENT)
    for node in NODES:
        network.join(node)
    return network


def spoil(network: Network, key: str, failure: Failure | None) -> str:
    """A job's first attempt is spoiled by its node: it fails so, or says finished and declares nothing."""
    network.submit(key, attempts_max=1)
    attempt = network.attempts(key)[0]
    network.report(attempt.node, seen(attempt, HeldPhase.FINISHED, failure=failure))
    return attempt.node


@pytest.mark.spec("H3")
@pytest.mark.parametrize("away_ms", [200, 1_500, 3_000])
def test_a_node_that_comes_back_serves_the_rest_of_its_quarantine(away_ms: int) -> None:
    network = network_of_three()
    node = spoil(network, "lie", None)
    until = network.node(node).state_until_ms
    assert network.node(node).state is NodeState.QUARANTINED and until == network.now + PATIENT.quarantine_ms

    network.leave(node)
    assert network.node(node).state is NodeState.SUSPECT
    others = {other: [] for other in NODES if other != node}
    network.wait(away_ms, report=others)
    network.join(node)

    assert network.node(node).state is NodeState.QUARANTINED and network.node(node).state_until_ms == until
    network.wait(until - network.now - 50, report={node: [], **others})
    assert network.node(node).state is NodeState.QUARANTINED
    network.wait(100)
    assert network.node(node).state is NodeState.PROBATION


@pytest.mark.spec("H3", "N7")
def test_a_goodbye_does_not_clear_a_record() -> None:
    network = network_of_three()
    node = spoil(network, "fault", Failure(FailureCode.RUNTIME_FAULT, "it broke"))
    assert network.node(node).state is NodeState.READY and network.node(node).strikes == 1

    network.tell(NodeSaid(network.sessions[node], NodeId(node), Leaving(0, done=True)))
    network.join(node)

    assert network.node(node).state is NodeState.PROBATION and network.node(node).strikes == 1


@pytest.mark.spec("J7", "J8")
def test_what_a_returning_node_does_not_name_has_ended() -> None:
    network = network_of_three()
    network.submit("k")
    attempt = network.attempts()[0]
    network.report(attempt.node, seen(attempt, HeldPhase.RUNNING))
    network.leave(attempt.node)

    network.join(attempt.node)

    lost = network.attempts()[0]
    assert lost.phase is AttemptPhase.ENDED and lost.failure is not None
    assert lost.failure.code is FailureCode.NODE_LOST


def contenders(network: Network) -> tuple[Attempt, Attempt]:
    """Two attempts that both run: the first one's machine was away for a while."""
    network.submit("k", Recovery.RESUME, checkpoint_ms=1_000)
    first = network.attempts()[0]
    network.report(first.node, seen(first, HeldPhase.RUNNING))
    for number in range(3):
        network.tell(Checkpointed(first.id, first.fence, f"{number}" * 64, 10))
    network.leave(first.node)
    second = network.attempts()[1]
    network.report(second.node, seen(second, HeldPhase.RUNNING))
    network.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    return first, second


@pytest.mark.spec("J6")
@pytest.mark.parametrize("seed", range(8))
def test_of_two_contenders_that_save_the_job_keeps_what_lies_deeper(seed: int) -> None:
    network = network_of_three()
    both = contenders(network)
    assert all(attempt.may_win for attempt in network.attempts())
    draw = Random(seed)
    kept = network.job().checkpoint
    assert kept is not None and kept.depth == 3

    for number in range(12):
        attempt = draw.choice(both)
        network.tell(Checkpointed(attempt.id, attempt.fence, f"{number:064d}", 10))
        now = network.job().checkpoint
        assert now is not None and now.depth >= kept.depth, f"save {number} of {attempt.id} took the job back"
        kept = now
    captures = {attempt.id: attempt.captures for attempt in network.attempts()}
    assert kept.depth == max(captures[both[0].id], 3 + captures[both[1].id])


GPUS = ("gpu a", "gpu b", "gpu c")
OFFERED = Resources(4_000, 4_096, 8_192, len(GPUS))
WELCOME = Welcome(NodeId("node_g"), 5, 30_000, 1_000, 10_000, 60_000, 500)


class Agent:
    """A node core of a machine with three GPUs, and the orders it gave."""

    def __init__(self) -> None:
        self.core = NodeCore(NodeId("node_g"), "start 1", offered=OFFERED, means=Means("none", gpus=GPUS))
        self.now = 1_000
        self.leased: dict[str, tuple[str, ...]] = {}
        self.orders = {}
        self.carry_out(self.core.apply(Connected(WELCOME), Instant(self.now)))

    def carry_out(self, actions: list[NodeAction]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                self.orders[action.order.attempt] = action.order
                self.leased[action.order.attempt] = action.order.gpu_ids

    def do(self, event: object) -> None:
        self.now += 10
        self.carry_out(self.core.apply(event, Instant(self.now)))  # type: ignore[arg-type]

    def start(self, number: int, gpus: int) -> AttemptId:
        attempt = AttemptId(f"att_{'a' * 13}{number}.1")
        spec = JobSpec(("train",), need=Need(Resources(100, 100, 100, gpus)))
        self.do(CommandReceived(Start(5, attempt, number, job_of(attempt), spec, 60_000, 0)))
        return attempt

    def restart(self) -> None:
        again = Agent()
        for order in self.orders.values():
            again.do(Recovered(order, ShimStatus(Phase.RUNNING)))
        self.core = again.core


@pytest.mark.spec("N4")
@pytest.mark.parametrize("restarts", [False, True])
def test_no_gpu_is_leased_twice_also_after_a_restart(restarts: bool) -> None:
    agent = Agent()
    first = agent.start(1, 2)
    if restarts:
        agent.restart()

    second = agent.start(2, 1)
    agent.start(3, 1)  # does not fit any more

    assert sorted(agent.leased[first] + agent.leased[second]) == sorted(GPUS)
    assert set(agent.leased) == {first, second}
    agent.do(ShimDied(first, "it was killed"))
    third = agent.start(4, 2)
    assert set(agent.leased[third]) == set(agent.leased[first])
