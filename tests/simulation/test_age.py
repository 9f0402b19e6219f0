"""An old network: thousands of nodes have left, and its journal was never pruned. It places, explains and rebuilds as a
young one does, and what it does for one event does not grow with those who are gone."""

from typing import Any

import pytest
from counted_calls import calls_of
from msgspec.structs import replace

from holdfast.kernel.decision import Explanation, Rejected, Taken
from holdfast.kernel.events import ExplainAsked, Led, NodeJoined, NodeSaid, Submitted, Tick
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    Attempt,
    Entry,
    Gpu,
    Hardware,
    Instant,
    JobSpec,
    Meta,
    Need,
    Node,
    NodeId,
    NodeState,
    Owner,
    Resources,
    Settings,
    job_id,
)
from holdfast.model.messages import Hello, Report

DEPARTED = 4_000
LINES = 50_000_000
ROOM = Resources(4_000, 4_096, 10_000, 0)
SETTINGS = replace(Settings.test(), open_join=True)
NOW = Instant(1_700_000_000_000)
HERE = [NodeId(f"node_{name}") for name in ("x", "y", "z")]


def left(number: int) -> Node:
    """Two in three said goodbye, one in three never came back; each offered something else."""
    state = NodeState.LOST if number % 3 == 0 else NodeState.GONE
    gpus = (Gpu("Old 1000", 80_000),) if state is NodeState.GONE else ()
    offered = Resources(1_000 + number % 50, 2_048, 10_000, len(gpus))
    hardware = Hardware(total=offered, gpus=gpus)
    return Node(
        NodeId(f"node_{number}"), f"key {number}", "0.1.0", hardware, NOW, state, offered=offered, strikes=number % 5
    )


def hello(node: NodeId) -> Hello:
    return Hello(node, "first", f"key of {node}", "0.1.0", Hardware(total=ROOM), ROOM, "bubblewrap")


class Aged:
    def __init__(self, departed: int = DEPARTED) -> None:
        meta = Meta(epoch=7, entry_seq=LINES, fence=LINES // 10, draws=LINES, seed=3, now_ms=NOW)
        self.kernel = Kernel.load(SETTINGS, [meta, *(left(number) for number in range(departed))])
        self.now = NOW
        self.tell(Led(8))
        for session, node in enumerate(HERE, 1):
            self.tell(NodeJoined(session, hello(node)))

    def tell(self, event: Any) -> Any:
        return self.kernel.apply(event, self.now)

    def submit(self, key: str, **more: Any) -> Any:
        spec = JobSpec(("true",), **more)
        return self.tell(Submitted(job_id("ann", key), Owner("ann"), spec, key))


def fill(network: Aged) -> None:
    for number in range(len(HERE)):
        network.submit(f"whole {number}", need=Need(ROOM))


@pytest.mark.spec("H3", "S1")
def test_work_goes_to_those_who_are_here() -> None:
    network = Aged()
    placed = [
        row.node
        for number in range(12)
        for row in network.submit(f"small {number}", need=Need(Resources(400, 64, 10, 0))).changes
        if isinstance(row, Attempt)
    ]
    assert len(placed) == 12 and set(placed) == set(HERE)


@pytest.mark.spec("H6")
def test_a_job_that_waits_is_explained_by_those_who_are_here() -> None:
    network = Aged()
    fill(network)
    assert isinstance(network.submit("waits", need=Need(ROOM)).answer, Taken)

    said = network.tell(ExplainAsked(job_id("ann", "waits"))).answer

    assert isinstance(said, Explanation)
    assert said.gates == {"memory": len(HERE), "lost": len(range(0, DEPARTED, 3))}
    assert said.nearest.startswith(tuple(HERE))


@pytest.mark.spec("J13")
def test_what_only_those_who_said_goodbye_could_hold_is_refused_at_once() -> None:
    refused = Aged().submit("gpu", need=Need(Resources(100, 100, 100, 1))).answer

    assert isinstance(refused, Rejected) and refused.code == "no_fit"


@pytest.mark.spec("J14")
def test_a_rebuild_knows_the_same_and_the_journal_goes_on() -> None:
    network = Aged()
    fill(network)
    network.submit("waits", need=Need(ROOM))
    rows = network.kernel.rows()
    again = Kernel.load(SETTINGS, rows)
    assert again.digest() == network.kernel.digest()

    lines = [row.seq for row in again.apply(Led(9), network.now).changes if isinstance(row, Entry)]
    meta = next(row for row in rows if isinstance(row, Meta))
    assert lines == list(range(meta.entry_seq + 1, meta.entry_seq + 1 + len(lines))) and lines[0] > LINES


@pytest.mark.spec("A6")
def test_an_event_costs_no_more_than_in_a_young_network() -> None:
    def day(network: Aged) -> int:
        def passes() -> None:
            fill(network)
            network.submit("waits", need=Need(ROOM))
            network.tell(ExplainAsked(job_id("ann", "waits")))
            for second in range(20):
                network.now = Instant(network.now + 100)
                for session, node in enumerate(HERE, 1):
                    network.tell(NodeSaid(session, node, Report(second + 1, False, ())))
                network.tell(Tick())

        return calls_of(passes)

    young, old = day(Aged(0)), day(Aged())
    assert old < 1.2 * young + 200, f"{young} calls in a young network, {old} in an old one"


@pytest.mark.spec("A6")
def test_rebuilding_costs_each_departed_node_the_same() -> None:
    half, whole = (calls_of(lambda count=count: Aged(count)) for count in (DEPARTED // 2, DEPARTED))
    assert whole < 2.3 * half, f"{half} calls for {DEPARTED // 2} departed nodes, {whole} for {DEPARTED}"
