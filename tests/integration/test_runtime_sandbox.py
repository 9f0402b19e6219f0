"""The sandbox keeps what every runtime must keep: the public conformance suite, run on this machine's kernel."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_network import FAR, FarNetwork

from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import cgroups
from holdfast.testing.runtimes import RuntimeSuite

FETCH = """exec python3 -c '
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
' "$1" """


class TestSandbox(RuntimeSuite):
    @pytest.fixture
    def runtime(self) -> str:
        return "bubblewrap"

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
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
        return {"LD_PRELOAD": str(library)}

    def remains(self, folder: Path) -> list[str]:
        name = cgroups.name_of(str(folder))
        return [found for found, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(found) == name]
