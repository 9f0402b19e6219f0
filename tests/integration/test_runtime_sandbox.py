"""The sandbox keeps what every runtime must keep: the public conformance suite, run on this machine's kernel."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_network import FAR, FarNetwork

from holdfast.model import Result
from holdfast.node.launcher import Launcher
from holdfast.node.runtimes import cgroups
from holdfast.testing.attempts import Attempts
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

    @pytest.mark.spec("J1", "J2")
    @pytest.mark.parametrize(("milli", "seen"), [(500, "1 0"), (1_000, "1 0"), (3_000, "3 0-2")])
    def test_programs_count_the_processors_that_the_job_has(self, bodies: Attempts, milli: int, seen: str) -> None:
        program = "import os; print(os.cpu_count(), open('/sys/devices/system/cpu/online').read().strip())"
        attempt = bodies.start("python3", "-c", program, resources={"cpu_milli": milli, "memory_mib": 64})
        assert isinstance(attempt.verdict(), Result), attempt.log("stderr")
        assert attempt.log("stdout") == f"{seen}\n"

    @pytest.mark.spec("J2", "N5")
    def test_it_sees_of_the_system_what_programs_need_and_nothing_else(self, bodies: Attempts) -> None:
        attempt = bodies.start(
            "sh", "-c", "ls -A /etc /var; openssl version -d; date +%Z; ls /etc/shadow /etc/ssl/private"
        )
        attempt.verdict()
        told = attempt.log("stdout").split()
        assert {"alternatives", "ssl", "localtime", "fonts"} <= set(told), told
        assert not {"shadow", "ssh", "docker", "apt", "pip.conf", "machine-id", "cron.d", "private"} & set(told)
        assert attempt.log("stderr").count("No such file") == 2

    def remains(self, folder: Path) -> list[str]:
        name = cgroups.name_of(str(folder))
        return [found for found, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(found) == name]
