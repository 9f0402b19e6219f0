"""A fixture for your tests. In `conftest.py`: `pytest_plugins = ["holdfast.testing.network_plugin"]`.

    @pytest.mark.holdfast_network(nodes=5, seed=7)         # what `holdfast.testing.Network` takes; may be left out
    def test_mine(holdfast_network):
        job = holdfast_network.client().jobs.run(["train"])

A test that fails shows what happened in its network.
"""

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from holdfast.testing.network import Network


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "holdfast_network(...): what the network of this test is made of")


@pytest.fixture
def holdfast_network(request: pytest.FixtureRequest) -> Iterator[Network]:
    marker = request.node.get_closest_marker("holdfast_network")
    with Network(*marker.args, **marker.kwargs) if marker else Network() as network:
        request.node.stash[_NETWORK] = network
        yield network


_NETWORK = pytest.StashKey[Network]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    network = item.stash.get(_NETWORK, None)
    if report.when == "call" and report.failed and network is not None:
        report.sections.append((f"what happened in the network (seed {network.seed})", network.story()))
    return report
