"""Placement: the index never says "no fit" when there is one, and never offers what does not fit."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_driver import ROOM, SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel.events import Tick
from holdfast.kernel.placement import NodeIndex, NodeKind, Seat, has_room, kind_serves, level
from holdfast.kernel.world import kind_of
from holdfast.model import CONTAINER, JOBS, Failure, FailureCode, Gpu, Hardware, Need, NodeId, Resources
from holdfast.model.messages import HeldPhase
from holdfast.policy import cost
from holdfast.policy.chance import mix

pytestmark = pytest.mark.spec("J13", "S1")

amounts = st.integers(0, 70_000)
kinds = st.sampled_from(
    [
        NodeKind("x86_64"),
        NodeKind("arm64"),
        NodeKind("x86_64", features=(CONTAINER, JOBS)),
        NodeKind("x86_64", "A100", 81_920, "550.54.15", "12.4"),
        NodeKind("x86_64", "RTX 3060", 12_288, "535.104.5", "12.2"),
    ]
)
frees = st.tuples(amounts, amounts, amounts, st.integers(0, 4))
needs = st.builds(
    Need,
    st.builds(Resources, amounts, amounts, amounts, st.integers(0, 3)),
    arch=st.sampled_from(["", "", "x86_64", "arm64"]),
    gpu_model=st.sampled_from(["", "", "a100"]),
    gpu_memory_mib=st.sampled_from([0, 0, 24_000]),
    cuda_min=st.sampled_from(["", "", "12.3"]),
    features=st.sampled_from([(JOBS,), (JOBS,), (CONTAINER, JOBS)]),
)
steps = st.lists(st.tuples(st.integers(0, 30), st.none() | st.tuples(kinds, frees)), max_size=120)


def fleet(steps) -> tuple[NodeIndex[Seat], dict[NodeId, Seat]]:
    """An index that went through any sequence of changes, and the seats that are open in the end."""
    index, seats = NodeIndex[Seat](candidates=2), {}
    for number, state in steps:
        node = NodeId(f"node_{number}")
        seat = seats.get(node)
        if seat is not None and (state is None or seat.kind != state[0]):
            index.close(seats.pop(node))
            seat = None
        if state is not None:
            kind, free = state
            seat = seats.setdefault(node, seat or Seat(node, kind=kind))
            index.open(seat, free)
    return index, seats


def fits(need: Need, seat: Seat) -> bool:
    return kind_serves(seat.kind, need) and need.resources.fits_in(
        Resources(seat.cpu, seat.memory, seat.disk, seat.gpus)
    )


@given(steps, needs, st.integers(0, 2**64 - 1), st.sets(st.integers(0, 30), max_size=5))
@settings(max_examples=400)
def test_a_fit_is_found_exactly_when_there_is_one(steps, need, draw, ruled_out):
    # given an index that went through any sequence of changes
    index, seats = fleet(steps)
    assert len(index) == len(seats)
    # when candidates are asked for
    without = {NodeId(f"node_{n}") for n in ruled_out}
    found = [seat.node for seat in index.candidates(need, draw, without)]
    # then they all fit, and there are none only if nothing fits
    possible = {n for n, seat in seats.items() if n not in without and fits(need, seat)}
    assert set(found) <= possible
    assert bool(found) == bool(possible)


@given(steps, st.lists(st.tuples(needs, st.integers(0, 2**64 - 1), st.booleans()), max_size=30))
def test_what_is_taken_is_gone_and_what_is_given_back_is_there_again(steps, asked):
    """Needs are asked for again and again while nodes fill and empty: what is remembered of a need never misleads."""
    index, seats = fleet(steps)
    taken: list[tuple[Seat, Need]] = []
    for need, draw, ends in asked:
        found = index.candidates(need, draw, ())
        assert all(fits(need, seat) for seat in found)
        assert bool(found) == any(fits(need, seat) for seat in seats.values())
        if found:
            index.take(found[0], need.resources)
            taken.append((found[0], need))
        if ends and taken:
            seat, held = taken.pop(draw % len(taken))
            index.give(seat, held.resources)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_levels_never_go_down(a, b):
    assert (level(a) <= level(b)) or a > b


@given(st.tuples(*[st.integers(0, 10**6)] * 5, st.integers(0, 8), st.integers(0, 8), st.booleans(), st.booleans()))
def test_the_breakdown_of_a_cost_sums_to_its_total(terms):
    node, job = terms[:5], terms[5:]
    named = cost.breakdown(cost.standing_terms(*node), cost.placing_terms(*job))
    assert tuple(named) == cost.TERMS
    assert sum(named.values()) == cost.standing_ms(*node) + cost.placing_ms(*job)


def test_a_machine_that_is_half_idle_is_taken_without_looking_further():
    index = NodeIndex[Seat](candidates=2)
    idle = Seat(NodeId("node_idle"), kind=NodeKind("x86_64"), cpu_total=8_000, memory_total=8_192)
    busy = Seat(NodeId("node_busy"), kind=NodeKind("x86_64"), cpu_total=80_000, memory_total=81_920)
    index.open(idle, (6_000, 6_144, 10_000, 0))
    index.open(busy, (8_000, 8_192, 10_000, 0))
    need = Need(Resources(1_000, 1_024, 1_000))
    sizes = {draw: index.candidates(need, mix(1, draw), ()) for draw in range(64)}
    assert all(len(found) == 1 for found in sizes.values() if found[0] is idle)
    assert any(len(found) == 2 for found in sizes.values() if found[0] is busy)


def test_a_machine_with_no_more_free_gpus_than_needed_comes_before_a_whole_one():
    index = NodeIndex[Seat](candidates=2)
    kind = NodeKind("x86_64", "A100", 81_920)
    for number in range(8):
        index.open(Seat(NodeId(f"node_whole_{number}"), kind=kind), (8_000, 8_192, 10_000, 4))
    index.open(Seat(NodeId("node_begun"), kind=kind), (8_000, 8_192, 10_000, 1))
    one, none, four = (Need(Resources(1_000, 1_024, 1_000, gpus)) for gpus in (1, 0, 4))
    for draw in range(20):
        assert [seat.node for seat in index.candidates(one, mix(1, draw), ())] == ["node_begun"]
        assert [seat.node for seat in index.candidates(none, mix(1, draw), ())] == ["node_begun"]
        assert "node_begun" not in [seat.node for seat in index.candidates(four, mix(1, draw), ())]


def test_a_kind_that_grows_is_drawn_as_often_as_it_deserves():
    """What is remembered of a need is counted anew now and then, though not at every change."""
    index = NodeIndex[Seat](candidates=1)
    need = Need(Resources(1_000, 1_024, 1_000))
    for number in range(100):
        index.open(Seat(NodeId(f"node_first_{number}"), kind=NodeKind("x86_64")), (8_000, 8_192, 10_000, 0))
    index.open(Seat(NodeId("node_later"), kind=NodeKind("arm64")), (8_000, 8_192, 10_000, 0))
    assert index.candidates(need, 0, ())
    for number in range(300):
        index.open(Seat(NodeId(f"node_later_{number}"), kind=NodeKind("arm64")), (8_000, 8_192, 10_000, 0))
    drawn = [index.candidates(need, mix(1, draw), ())[0].kind.arch for draw in range(400)]
    assert 250 < drawn.count("arm64") < 350


# --- what a machine holds at most ---


@pytest.mark.spec("N5", "S1")
@pytest.mark.parametrize("led_anew", [False, True])
def test_a_machine_holds_so_many_attempts_and_takes_the_next_when_one_is_gone(led_anew: bool) -> None:
    network = Network(replace(SETTINGS, attempts_per_node_max=2))
    network.join("node_a")
    tiny = Need(Resources(1, 1, 1, 0))
    for key in ("one", "two", "three"):
        network.submit(key, need=tiny)
    held = [seen(network.attempts(key)[0], HeldPhase.RUNNING) for key in ("one", "two")]
    if led_anew:
        network.restart(epoch=2)
        network.join("node_a", held=tuple(held))
    network.report("node_a", *held)
    network.kernel._w.reindex(NodeId("node_a"))
    network.tell(Tick())
    assert not network.attempts("three") and network.kernel.waiting == 1

    failure = Failure(FailureCode.EXIT_CODE, "it exited with 3", 3)
    network.report("node_a", replace(held[0], phase=HeldPhase.FINISHED, failure=failure), held[1])

    assert [a.node for a in network.attempts("three")] == ["node_a"]
    network.submit("four", need=tiny)
    assert not network.attempts("four")


@pytest.mark.spec("S1", "N3")
def test_a_machine_whose_gpus_differ_promises_the_least_of_each() -> None:
    network = Network()
    gpus = (Gpu("Test 1", 8_000, "550.9", "12.4"), Gpu("Test 2", 16_000, "550.10", "12.10"))
    for order in (gpus, gpus[::-1]):
        network.join("node_a", hardware=Hardware(total=replace(ROOM, gpus=2), gpus=order))
        kind = kind_of(network.node("node_a"))
        assert (kind.gpu_model, kind.gpu_memory_mib, kind.gpu_driver, kind.cuda) == ("", 8_000, "550.9", "12.4")


@pytest.mark.spec("N7")
def test_a_node_that_drains_without_an_end_keeps_its_work() -> None:
    """Rows of the first release have no end of the grace."""
    network = Network()
    network.join("node_a")
    network.submit()
    (attempt,) = network.attempts()
    network.kernel._w.put(replace(network.node("node_a"), draining=True))
    network.tell(Tick())
    assert network.attempts() == [attempt] and attempt.may_win


@pytest.mark.spec("S1")
def test_a_node_of_which_nothing_changed_stays_where_it_is_in_the_index() -> None:
    network = Network()
    network.join("node_a")
    w = network.kernel._w
    idle = w.fleet[NodeId("node_a")].idle
    w.put(replace(network.node("node_a"), strikes=1))
    assert w.fleet[NodeId("node_a")].idle is idle
    w.put(replace(network.node("node_a"), features=("other",)))
    assert w.fleet[NodeId("node_a")].idle is not idle
    w.reindex(NodeId("node_none"))
    assert len(w.index) == 1


KIND = NodeKind("x86_64", "NVIDIA H200", 141_000, "580.1", "13.0", (CONTAINER, JOBS))


@pytest.mark.spec("J2")
@pytest.mark.parametrize(
    ("need", "serves"),
    [
        ({}, True),
        ({"arch": "x86_64"}, True),
        ({"arch": "aarch64"}, False),
        ({"gpu_model": "h200"}, True),
        ({"gpu_model": "A100"}, False),
        ({"gpu_memory_mib": 141_000}, True),
        ({"gpu_memory_mib": 141_001}, False),
        ({"gpu_driver_min": "580.1"}, True),
        ({"gpu_driver_min": "580.2"}, False),
        ({"cuda_min": "13.0"}, True),
        ({"cuda_min": "13.1"}, False),
        ({"features": (CONTAINER, JOBS)}, True),
        ({"features": (JOBS, "zz")}, False),
    ],
)
def test_every_fixed_requirement_is_a_gate(need: dict[str, Any], serves: bool) -> None:
    assert kind_serves(KIND, Need(**need)) is serves
    # and a node without a GPU serves every need that names none
    assert kind_serves(NodeKind("x86_64"), Need())


@pytest.mark.spec("J2", "N4")
@pytest.mark.parametrize("amount", ["cpu_milli", "memory_mib", "disk_mib", "gpus"])
def test_a_node_has_room_for_exactly_what_is_free(amount: str) -> None:
    free = Resources(cpu_milli=2_000, memory_mib=300, disk_mib=40, gpus=2)
    seat = Seat(NodeId("node_a"), cpu=2_000, memory=300, disk=40, gpus=2)
    assert has_room(seat, Need(free))
    assert not has_room(seat, Need(replace(free, **{amount: getattr(free, amount) + 1})))
