"""Containers keep what every runtime must keep: the public conformance suite, on a real Docker and a real Podman."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_network import FAR, FarNetwork

from holdfast.node.launcher import Launcher
from holdfast.node.runtimes.container_request import name_of
from holdfast.testing.engines import Docker, EngineService, Podman
from holdfast.testing.runtimes import RuntimeSuite

FETCH = r"""at=${1#*//}; at=${at%/}; printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 "${at%:*}" "${at#*:}" """

pytestmark = pytest.mark.xdist_group("engines")


class ContainerSuite(RuntimeSuite):
    @pytest.fixture
    def engine(self) -> EngineService:
        raise LookupError("a subclass names its engine")

    @pytest.fixture
    def runtime(self) -> str:
        return "container"

    @pytest.fixture
    def order(self, engine: EngineService, busybox: bytes) -> dict[str, Any]:
        self.engine_under_test = engine
        return {"engine": engine.socket, "image": engine.add_image(busybox)}

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls) -> Iterator[FarNetwork]:
        with FarNetwork() as network:
            yield network

    @pytest.fixture(scope="class")
    @classmethod
    def launcher(cls, network: FarNetwork) -> Iterator[Launcher]:
        launcher = Launcher()
        with network.inside(network.node):
            launcher.start()
        yield launcher
        launcher.close()

    @pytest.fixture(scope="class")
    @classmethod
    def outside(cls, network: FarNetwork) -> str:
        return network.serve(network.far, FAR, b"outside")

    @pytest.fixture
    def fetch(self) -> str:
        return FETCH

    @pytest.fixture
    def faketime(self) -> dict[str, str]:
        return {"LD_PRELOAD": "/opt/libfaketime.so.1"}

    def remains(self, folder: Path) -> list[str]:
        return [name for name in self.engine_under_test.containers() if name == name_of(str(folder))]


class TestDocker(ContainerSuite):
    @pytest.fixture
    def engine(self, docker: Docker) -> EngineService:
        return docker


class TestPodman(ContainerSuite):
    @pytest.fixture
    def engine(self, podman: Podman) -> EngineService:
        return podman
