"""Inputs by URL, fetched over real sockets in a network of the test's own: what is connected to is what was checked."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from own_network import FAR, NODE, FarNetwork

from holdfast.model import FailureCode
from holdfast.node.attempt import web_inputs

pytestmark = [pytest.mark.spec("N5", "N13"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def network() -> Iterator[FarNetwork]:
    with FarNetwork() as network:
        yield network


class Resolver:
    """Gives its answers in turn, and the last one for ever. Knows one name; addresses mean themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
        self.asked = 0
        self._answers = answers
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int, *words: Any, **more: Any) -> Any:
        if host != "data.example":
            return self._real(host, port, *words, **more)
        self.asked += 1
        answer = self._answers[min(self.asked, len(self._answers)) - 1]
        return [found for one in answer.split() for found in self._real(one, port, *words, **more)]


def fetched(network: FarNetwork, url: str, into: Path) -> bytes:
    with network.inside(network.node):
        asyncio.run(web_inputs.fetch(url, into, bytes_max=1_000, seconds_max=30))
    return into.read_bytes()


def refused(network: FarNetwork, url: str, into: Path) -> None:
    with pytest.raises(web_inputs.Unfetched, match="own network") as wrong:
        fetched(network, url, into)
    assert wrong.value.failure.code is FailureCode.DATA
    assert not into.exists()


def named(url: str) -> str:
    return f"http://data.example:{urlsplit(url).port}/"


def test_a_name_that_means_another_address_the_second_time_is_fetched_from_the_one_that_was_checked(
    network: FarNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the same port on a public machine and on the node's own loopback
    world = network.serve(network.far, FAR, b"world")
    near = network.serve(network.node, "127.0.0.1", b"near", port=urlsplit(world).port or 0)
    assert network.reaches(network.node, near)
    resolver = Resolver(monkeypatch, FAR, "127.0.0.1")
    assert fetched(network, named(world), tmp_path / "x") == b"world"
    # then the name was resolved once; and when it is resolved anew, it is checked anew
    assert resolver.asked == 1
    refused(network, named(world), tmp_path / "y")


def test_one_address_that_is_not_public_among_several_is_enough_to_refuse(
    network: FarNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = network.serve(network.far, FAR, b"world")
    Resolver(monkeypatch, f"{FAR} 169.254.169.254")
    refused(network, named(world), tmp_path / "x")


@pytest.mark.parametrize(
    "host",
    ["[::ffff:100.64.0.1]", "192.0.0.192", "168.63.129.16", "100.100.100.200", "169.254.169.254", "[fd00:ec2::254]",
     "[64:ff9b::a00:1]", "[2002:a00:1::1]", "127.0.0.1", "0x7f000001", "[::]", NODE, f"[::ffff:{NODE}]"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_not_connected_to(network: FarNetwork, tmp_path: Path, host: str) -> None:
    refused(network, f"http://{host}:8000/latest/meta-data", tmp_path / "x")


@pytest.mark.parametrize("to", ["192.0.0.192", "[::ffff:127.0.0.1]", NODE])
def test_a_public_server_cannot_send_a_node_on_into_its_own_network(
    network: FarNetwork, tmp_path: Path, to: str
) -> None:
    refused(network, network.serve(network.far, FAR, b"", location=f"http://{to}/"), tmp_path / "x")


def test_an_address_that_the_machine_got_a_moment_ago_is_its_own(network: FarNetwork, tmp_path: Path) -> None:
    # given an address of the machine beside, which then becomes the node's
    network.address(network.far, "203.0.114.77/24")
    url = network.serve(network.far, "203.0.114.77", b"world")
    assert fetched(network, url, tmp_path / "x") == b"world"
    network.address(network.node, "203.0.114.77/24")
    refused(network, url, tmp_path / "y")
