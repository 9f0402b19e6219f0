"""Long jobs: links that drop and machines that come and go do not use up their attempts."""

from typing import Any

import pytest
from kernel_driver import SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.decision import ToSession
from holdfast.kernel.events import Checkpointed, NodeSaid
from holdfast.kernel.poison import POISON_WINDOW_MS
from holdfast.model import (
    Failure,
    FailureCode,
    Recovery,
)
from holdfast.model.messages import HeldPhase, Ping, Pong


def run_on(network: Network, ms: int) -> None:
    """Every node goes on with what it holds for so long, and drops what was revoked."""
    for _ in range(0, ms, 200):
        for node in network.sessions:
            held = [a for a in network.attempts() if a.node == node and a.live]
            network.report(node, *(seen(a, HeldPhase.GONE if a.revoked else HeldPhase.RUNNING) for a in held))
        network.wait(200, 200)
        sends = [s for s in network.sends if isinstance(s, ToSession)]
        for session, node, ping in [(s.session, s.node, s.message) for s in sends]:
            if isinstance(ping, Ping):
                network.tell(NodeSaid(session, node, Pong(ping.nonce)))


def drop_and_return(network: Network, node: str) -> None:
    """The link drops and comes back before the second contender's body has started."""
    network.leave(node)
    held = tuple(seen(a, HeldPhase.RUNNING) for a in network.attempts() if a.node == node and a.live)
    network.join(node, held=held)


@pytest.mark.spec("J5", "J8")
def test_a_long_job_on_a_link_that_drops_now_and_then_does_not_run_out_of_attempts() -> None:
    # given a job that runs for long
    network = Network(replace(SETTINGS, attempts_max=2))
    network.join("node_a")
    network.submit()
    network.report("node_a", seen(network.attempts()[0], HeldPhase.RUNNING))
    network.join("node_b")
    # when the link of its machine drops again and again, each time after it got on for a while
    for _ in range(20):
        run_on(network, network.settings.lasting_ms + 400)
        drop_and_return(network, "node_a")
        assert network.attempts()[-1].node == "node_b"
    # then each drop was answered by a takeover, and the first attempt still runs
    assert len(network.attempts()) == 21
    assert network.attempts()[0].may_win
    assert network.job().live


LONG_MS = POISON_WINDOW_MS + 60_000


def dying_under(
    lives_ms: int = LONG_MS,
    saves: bool = True,
    anew: bool = True,
    said: FailureCode = FailureCode.RUNTIME_FAULT,
    recovery: Recovery = Recovery.RESUME,
    nodes: int = 4,
    away: bool = True,
) -> Network:
    """A job whose machine is gone three times. Another goes on each time, and the first comes back without its body.
    `anew`: what is saved differs from what was saved before. `nodes`: with one, the job waits until it is back. `away`:
    else it is not gone, and only its body is."""
    network = Network(replace(SETTINGS, attempts_max=1))
    for number in range(nodes):
        network.join(f"node_{number}")
    network.submit(recovery=recovery, checkpoint_ms=1_000)
    for turn in range(3):
        if not network.job().live:
            break
        run_on(network, lives_ms)
        running = network.attempts()[-1]
        if saves:
            network.tell(Checkpointed(running.id, running.fence, f"{turn if anew else 0:064x}", 10))
        gone = seen(running, HeldPhase.FINISHED, failure=Failure(said))
        if not away:
            network.report(running.node, gone)
            continue
        network.leave(running.node)
        del network.sessions[running.node]
        run_on(network, 600)
        network.join(running.node, held=(gone,))
    run_on(network, 10_000)
    return network


@pytest.mark.spec("J5", "J8")
@pytest.mark.parametrize("nodes", [4, 1], ids=["taken over", "nobody had room"])
def test_a_long_job_whose_machines_die_and_come_back_empty_does_not_run_out_of_attempts(nodes: int) -> None:
    # given a job that saves its work and may not fail once, and machines that are each switched off now and then
    network = dying_under(nodes=nodes)
    # then the job goes on, and no machine that died was counted as a failure of it
    assert network.job().live
    assert network.job().failures == 0
    assert len(network.attempts()) == 4


@pytest.mark.spec("J8")
@pytest.mark.parametrize(
    "story",
    [
        {"lives_ms": 60_000},
        {"saves": False},
        {"anew": False},
        {"recovery": Recovery.RESTART},
        {"said": FailureCode.UPLOAD_TIMEOUT},
        {"nodes": 1, "lives_ms": 60_000},
        {"nodes": 1, "saves": False},
        {"nodes": 1, "away": False},
    ],
    ids=[
        "soon",
        "unsaved",
        "the same saved again",
        "from the beginning",
        "delivers too late",
        "soon, alone",
        "unsaved, alone",
        "its machine stood all the while",
    ],
)
def test_a_job_that_gets_nowhere_or_fails_by_itself_is_given_up(story: dict[str, Any]) -> None:
    """It would start from the beginning for ever, fail again, or be what machines die of."""
    assert not dying_under(**story).job().live


@pytest.mark.spec("J8")
def test_a_job_that_never_lasts_runs_out_of_attempts() -> None:
    network = Network(replace(SETTINGS, attempts_max=2))
    network.join("node_a")
    network.submit()
    network.report("node_a", seen(network.attempts()[0], HeldPhase.RUNNING))
    network.join("node_b")
    for _ in range(20):
        run_on(network, 200)
        drop_and_return(network, "node_a")
    assert network.now < 1_000_000 + network.settings.lasting_ms
    assert len(network.attempts()) == 8
