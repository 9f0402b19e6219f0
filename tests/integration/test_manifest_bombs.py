"""A hostile node sends manifests that are refused only at the last check: others do not notice, and it is set aside."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from wire_node import Line, WireNode

from holdfast.blobs import ManifestLimits
from holdfast.blobs.errors import ManifestRefused
from holdfast.model import Resources
from holdfast.model.messages import Start
from holdfast.orchestrator.content.manifest_checks import ManifestChecks
from holdfast.testing.processes import READY_S, LocalNetwork, OrchestratorProcess, wait_for
from holdfast.wire.convert import Admitted, Refusal

AT_ONCE = 6
BOMB_MIB = 8
RESIDENT_MIB_MAX = 200
"""By which the orchestrator may grow. Six bombs of 35 MiB that were checked in its own process took 1,200."""
SLOWER_MAX = 5.0
NOTICED_S = 3.0
"""What a busy machine may take longer by itself, whatever the quiet time was."""


class Bomber(WireNode):
    """A node that never delivers what it was told to make. It alone has room for its job."""

    data_url = ""

    def introduce(self, line: Line, pin: str = "") -> Admitted | Refusal:
        answer = super().introduce(line, pin)
        if isinstance(answer, Admitted):
            self.data_url = answer.data_url
        return answer

    def files(self) -> httpx.Client:
        port = urlsplit(self.data_url).port
        headers = {"Authorization": f"Bearer {self.bulk_key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120, trust_env=False)

    def sends(self, start: Start, data: bytes) -> str:
        name = sha256(data).hexdigest()
        with self.files() as http:
            asked = http.post(self.at(start, "links"), json={"blobs": [[name, len(data)]]})
            assert asked.status_code == 200, asked.text
            assert http.put(asked.json()["urls"][name], content=data).status_code == 201
        return name

    def takes(self, start: Start, name: str) -> str:
        with self.files() as http:
            return http.post(self.at(start, "manifests"), json={"manifest": name}).json().get("code", "taken")

    def at(self, start: Start, path: str) -> str:
        return f"/node/v1/attempts/{start.attempt}/{path}?fence={start.fence}"


def bomb(below: str) -> bytes:
    """Every name is valid, in order and checked; the last byte is one too many."""
    count = BOMB_MIB * (1 << 20) // len(f'["folder","0000000{below}"],'.encode())
    entries = ",".join(f'["folder","{at:07d}{below}"]' for at in range(count))
    return f'{{"version":1,"blobs":[],"entries":[{entries}]}} '.encode()


WIDE, DEEP = bomb("/" + "x" * 78), bomb("/" + "/".join(["é" * 30] * 63))
"""Many names; and few that are as deep as they may be, in letters of which each has to be looked at."""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path) as network:
        network.start_orchestrator(preset="lan")
        yield network


def errand_s(network: LocalNetwork, folder: Path, number: int) -> float:
    """Seconds until 1 kB of somebody is sent, used by a job, and a result of 1 kB is back."""
    began = time.monotonic()
    (folder / "given").write_bytes(bytes([number]) * 1024)
    client = network.client()
    package = client.content.send(folder).manifest
    job = client.jobs.submit(
        ["sh", "-c", "cat given given > made"], package=package, cpu_milli=100, memory_mib=32, disk_mib=16
    )
    view = client.jobs.wait(job.id, timeout_s=READY_S)
    assert view.verdict == "succeeded" and view.files is not None
    client.content.fetch(view.files.manifest, folder.parent / f"result-{number}")
    assert (folder.parent / f"result-{number}" / "made").stat().st_size == 2048
    return time.monotonic() - began


def resident_mib(process: OrchestratorProcess) -> int:
    return psutil.Process(process.pid).memory_info().rss >> 20


@pytest.mark.spec("A12", "N13")
def test_the_process_that_checks_a_bomb_gets_to_its_end_and_says_what_is_wrong() -> None:
    """A refusal for its size alone would strike nobody: honest bodies may make many files."""

    async def check() -> None:
        async with ManifestChecks().turns_of("somebody")(len(DEEP)) as judge:
            await judge(DEEP, ManifestLimits())

    with pytest.raises(ManifestRefused, match="not in its canonical form"):
        asyncio.run(check())


@pytest.mark.serial
@pytest.mark.spec("A12", "H3", "N13")
def test_manifest_bombs_slow_nobody_down_and_their_node_is_quarantined(network: LocalNetwork, tmp_path: Path) -> None:
    # given an honest node, and how long an errand takes in quiet
    network.start_node("bee")
    (folder := tmp_path / "folder").mkdir()
    errand_s(network, folder, 0)  # the first one prepares what is kept
    quiet_s = min(errand_s(network, folder, number) for number in (1, 2))
    client = network.client()
    up = network.orchestrator
    assert up is not None
    # and a hostile node with a job that only it has room for
    hostile = Bomber(up.listen, client.tokens.create().token, name="bomber", hold_back=True)
    hostile.offered = Resources(cpu_milli=100, memory_mib=32, disk_mib=40_000_000)  # for its own job
    with hostile:
        hostile.wait_welcome()
        client.jobs.submit(["held"], cpu_milli=100, memory_mib=32, disk_mib=40_000_000)
        wait_for(lambda: hostile.starts, "the hostile node to be given its job")
        start = hostile.starts[0]
        names = [hostile.sends(start, data) for data in (WIDE, DEEP)]

        # when it sends six at a time, again and again
        over = threading.Event()

        def bombard(name: str) -> list[str]:
            heard = [hostile.takes(start, name)]
            while not over.is_set():
                heard.append(hostile.takes(start, name))
                over.wait(0.02)
            return heard

        most = before = resident_mib(up)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            bombs = [threads.submit(bombard, names[number % len(names)]) for number in range(AT_ONCE)]
            try:
                busy_s = []
                while len(busy_s) < 2 or client.nodes.get(hostile.id).state != "quarantined":
                    busy_s.append(errand_s(network, folder, 3 + len(busy_s)))
                    most = max(most, resident_mib(up))
            finally:
                over.set()
            heard = {code for bombed in bombs for code in bombed.result()}

        # then it is told no, is set aside, and nobody else waits for it
        assert heard <= {"manifest_refused", "not_found", "revoked", "busy", "not_allowed"}, heard
        assert "manifest_refused" in heard
        assert max(busy_s) <= max(SLOWER_MAX * quiet_s, quiet_s + NOTICED_S), (quiet_s, busy_s)
        assert most - before <= RESIDENT_MIB_MAX, (before, most)
        assert [entry for entry in client.events(node=hostile.id) if entry.kind == "node.strike"]
