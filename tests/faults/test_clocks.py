"""Clocks that are set while real processes run: seconds to years, ahead and back, on the orchestrator and on a node.

The clock of one process is set, never the system's: libfaketime, which reads the difference from a file every
second. CLOCK_BOOTTIME and CLOCK_MONOTONIC stay real, as on a machine whose wall clock is set.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client
from holdfast.model import DAY_MS
from holdfast.testing.processes import READY_S, LocalNetwork, wait_for
from holdfast.wire.http import EventView

pytestmark = pytest.mark.timeout(300)

HELD = ["sh", "-c", "echo begun; while [ ! -e release ]; do sleep 0.05; done; echo done > made; echo done"]
SMALL: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}
YEAR_S = 365 * 86_400
JUMPS_S = (30 * 86_400, 0, -20 * YEAR_S, 10 * YEAR_S, 90, -90, 0)
BLAMED = ("node.strike", "node.quarantined")
SITECUSTOMIZE = """
import threading, time

# libfaketime refuses the absolute deadlines of clock_nanosleep, which `time.sleep` uses, if CLOCK_MONOTONIC is real.
time.sleep = lambda seconds: threading.Event().wait(seconds) and None
"""


class WallClock:
    """The wall clock of the processes that are started with `env`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        self._file = folder / "ahead"
        self.set(0)
        self.env = {
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(folder),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, ahead_s: int) -> None:
        self.ahead_s = ahead_s
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{ahead_s:+d}\n")
        draft.replace(self._file)  # whoever reads it meanwhile finds the one or the other

    def ms(self) -> float:
        return (time.time() + self.ahead_s) * 1_000


def told(client: Client, *kinds: str) -> list[EventView]:
    return [entry for entry in client.events() if entry.kind in kinds]


def let_go(network: LocalNetwork, job: str) -> None:
    for work in network.folder.glob(f"node-*/attempts/att_{job.removeprefix('job_')}.*/work"):
        (work / "release").touch()


@pytest.mark.spec("H2", "J1", "J5", "J10", "J14", "N5")
def test_clocks_that_jump_by_years_delete_expire_and_blame_nothing(tmp_path: Path) -> None:
    mine, theirs = WallClock(tmp_path / "mine"), WallClock(tmp_path / "theirs")
    with LocalNetwork(tmp_path / "net") as network:
        # Given a network with running work, a result that is kept, and a join token
        network.start_orchestrator(preset="lan", env=mine.env)
        network.start_node("ant", env=theirs.env)
        client = network.client()
        (tmp_path / "package").mkdir()
        sent = client.content.send(tmp_path / "package")
        kept = client.jobs.run(["sh", "-c", "echo kept > file"], package=sent.manifest, **SMALL, timeout_s=READY_S)
        early = client.tokens.create(ttl_ms=DAY_MS, note="early")
        job = client.jobs.submit(HELD, **SMALL).id
        wait_for(lambda: any("begun" in line.text for line in client.jobs.logs(job)), "its output")

        # When both wall clocks are set, again and again
        for count, ahead_s in enumerate(JUMPS_S, start=1):
            theirs.set(-ahead_s)
            mine.set(ahead_s)
            wait_for(lambda count=count: len(told(client, "orchestrator.clock")) == count, f"jump {count}")
            # Then what is dated now has the date that the clock shows
            assert abs(told(client, "orchestrator.clock")[-1].at_ms - mine.ms()) < 60_000
            # And a token that is made now lives as long as was asked
            made = client.tokens.create(ttl_ms=DAY_MS, uses=1)
            assert DAY_MS - 60_000 < (made.left_ms or 0) <= DAY_MS
            assert abs(made.expires_ms - DAY_MS - mine.ms()) < 60_000

        # Then the work goes on where it is and succeeds, and nobody was blamed
        let_go(network, job)
        ended = client.jobs.wait(job, timeout_s=READY_S)
        assert ended.verdict == "succeeded"
        assert told(client, *BLAMED) == []
        assert all((late.facts or {})["ms"] < 60_000 for late in told(client, "orchestrator.late")), (
            "a jump is no delay"
        )

        # And when the orchestrator starts with a clock that is a month ahead, as after a month in which it was down
        mine.set(31 * 86_400)
        network.restart_orchestrator(env=mine.env)
        # Then no token has expired, an old one and one that is made now let machines join
        tokens = {token.note: token for token in client.tokens.list()}
        assert tokens["early"].state == "good" and DAY_MS - 600_000 < (tokens["early"].left_ms or 0) < DAY_MS
        network.start_node("bee", token=early.token)
        network.start_node("cow", token=client.tokens.create().token)
        # And the result is still there, and the job's dates are those of its day
        assert kept.files is not None
        client.content.fetch(kept.files.manifest, tmp_path / "down")
        assert (tmp_path / "down" / "file").read_text() == "kept\n"
        shown = client.jobs.get(kept.id)
        assert abs(shown.submitted_ms - time.time() * 1_000) < 300_000
        assert shown.ended_ms is not None and shown.submitted_ms <= shown.ended_ms
        late = client.jobs.submit(["true"], **SMALL)
        assert abs(late.submitted_ms - mine.ms()) < 60_000
        assert client.jobs.wait(late.id, timeout_s=READY_S).verdict == "succeeded"
        assert told(client, *BLAMED) == []
