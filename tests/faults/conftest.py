"""Networks to break. After each test the records of all orchestrators it used are replayed (zero mismatches)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_network import FaultNetwork, Fleet


@pytest.fixture(autouse=True)
def replayed() -> Iterator[None]:
    """The real kernel and the replayed one decide alike, in every life of every orchestrator of the test."""
    yield
    for network in list(FaultNetwork.open_ones):
        if network.closed:
            FaultNetwork.open_ones.remove(network)
        network.check_records()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[FaultNetwork]:
    """An empty network for this test alone."""
    with FaultNetwork(tmp_path) as network:
        yield network


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Start an orchestrator and nodes of these names, once for the tests of a module."""
    made: list[FaultNetwork] = []

    def start(*names: str, preset: str = "test", **rules: int) -> FaultNetwork:
        network = FaultNetwork(tmp_path_factory.mktemp("fleet"))
        network.rules = rules
        made.append(network)
        network.start_orchestrator(preset=preset)
        for name in names:
            network.start_node(name, wait=False)
        for name in names:
            network.wait_node(name)
        return network

    yield start
    for network in made:
        network.close()
