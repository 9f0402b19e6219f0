"""Clocks that are set while real processes run: seconds to years, ahead and back, on the orchestrator and on a node.

The clock of one process is set, never the system's: libfaketime, which reads the difference from a file every
second. CLOCK_BOOTTIME and CLOCK_MONOTONIC stay real, as on a machine whose wall clock is set.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fault_network import PATIENT
from warm import SETTINGS

from holdfast.client import Client
from holdfast.model import DAY_MS
from holdfast.testing.processes import READY_S, LocalNetwork, wait_for
from holdfast.wire.http import EventView

pytestmark = pytest.mark.timeout(300)

HELD = ["sh", "-c", "echo begun; while [ ! -e release ]; do sleep 0.05; done; echo done > made; echo done"]
SMALL: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}
YEAR_S = 365 * 86_400
JUMPS_S = (
    (30 * 86_400, 0), (30 * 86_400, 3600), (-20 * YEAR_S, 10 * YEAR_S), (10 * YEAR_S, -20 * YEAR_S), (90, -90),
    (75, 75), (-75, -15), (0, 0),
)  # fmt: skip
"""How far the clocks of orchestrator and node are ahead. One of them is set alone, both, and both alike."""
BLAMED = ("node.suspect", "node.lost", "node.strike", "node.quarantined", "attempt.failed", "attempt.revoked")
LATE_MS_MAX = 10_000
"""A busy machine is late by no more than that, and no jump is as short."""
SITECUSTOMIZE = """
import os, threading, time

# libfaketime refuses the absolute deadlines of clock_nanosleep, which `time.sleep` uses, if CLOCK_MONOTONIC is real.
time.sleep = lambda seconds: threading.Event().wait(seconds) and None

if changed := os.environ.get("HOLDFAST_TEST_SETTINGS"):
    import msgspec
    from holdfast.model import Settings

    settings = msgspec.structs.replace(Settings.test(), **msgspec.json.decode(changed))
    Settings.test = staticmethod(lambda: settings)
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
            SETTINGS: json.dumps(PATIENT),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # With it every wait for the interpreter's lock ends at once, and threads that wait take whole cores.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
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


def lives_a_day_from(clock: WallClock, client: Client) -> bool:
    made = client.tokens.create(ttl_ms=DAY_MS)
    assert DAY_MS - LATE_MS_MAX < (made.left_ms or 0) <= DAY_MS
    return abs(made.expires_ms - DAY_MS - clock.ms()) < 5_000


def ran_at(clock: WallClock, network: LocalNetwork, package: str) -> bool:
    """A job with files runs; whether its node dated its start by this clock."""
    job = network.client().jobs.run(["sh", "-c", "echo > file"], package=package, **SMALL, timeout_s=READY_S)
    assert job.files is not None
    (line,) = [line for line in network.nodes["ant"].log.read_text().splitlines() if f"of {job.id} starts" in line]
    return abs(time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S")) * 1_000 - clock.ms()) < 5_000


def let_go(network: LocalNetwork, job: str) -> None:
    for work in network.folder.glob(f"node-*/attempts/att_{job.removeprefix('job_')}.*/work"):
        (work / "release").touch()


def check_nobody_blamed(client: Client) -> None:
    """Nobody was suspected, lost or struck, no attempt was made twice or failed, and no jump was taken for a delay."""
    assert told(client, *BLAMED) == []
    assert {job.id: job.attempts_made for job in client.jobs.list(limit=1000).jobs if job.attempts_made > 1} == {}
    late_ms = [(entry.facts or {})["ms"] for entry in told(client, "orchestrator.late")]
    assert max(late_ms, default=0) < LATE_MS_MAX, "a jump is no delay"


@pytest.mark.spec("H2", "J1", "J5", "J10", "J14", "N5")
def test_clocks_that_jump_by_years_delete_expire_suspect_and_blame_nothing(tmp_path: Path) -> None:
    mine, theirs = WallClock(tmp_path / "mine"), WallClock(tmp_path / "theirs")
    with LocalNetwork(tmp_path / "net") as network:
        # Given a network with running work, some of it with a lease, a result that is kept, and a join token
        network.start_orchestrator(env=mine.env)
        network.start_node("ant", env=theirs.env)
        client = network.client()
        (tmp_path / "package").mkdir()
        sent = client.content.send(tmp_path / "package").manifest
        kept = client.jobs.run(["sh", "-c", "echo kept > file"], package=sent, **SMALL, timeout_s=READY_S)
        early = client.tokens.create(ttl_ms=DAY_MS, note="early")
        held = [client.jobs.submit(HELD, recovery=kind, **SMALL).id for kind in ("restart", "never")]
        for job in held:
            wait_for(lambda job=job: any("begun" in line.text for line in client.jobs.logs(job)), "its output")

        # When the wall clocks are set, again and again
        for number, (my_s, their_s) in enumerate(JUMPS_S):
            theirs.set(their_s)
            mine.set(my_s)
            # Then a token that is made now has the date that the clock shows, and lives as long as was asked
            wait_for(lambda: lives_a_day_from(mine, client), f"jump {number}")
            # And files go to the node and come back
            wait_for(lambda: ran_at(theirs, network, sent), f"jump {number} of the node")

        # Then jumps of a minute and more are in the journal, by as much as the clock was set
        set_s = [
            after - before for (before, _), (after, _) in pairwise(((0, 0), *JUMPS_S)) if abs(after - before) >= 60
        ]
        told_s = [(entry.facts or {})["ms"] / 1000 for entry in told(client, "orchestrator.clock")]
        assert told_s == [pytest.approx(by_s, abs=2) for by_s in set_s]
        # And the work went on where it was and succeeds, and nobody was blamed
        for job in held:
            let_go(network, job)
        assert [client.jobs.wait(job, timeout_s=READY_S).verdict for job in held] == ["succeeded"] * 2
        check_nobody_blamed(client)

        # And when the orchestrator starts with a clock that is a month ahead, as after a month in which it was down
        mine.set(31 * 86_400)
        network.restart_orchestrator(env=mine.env)
        # Then no token has expired, an old one and one that is made now let machines join
        tokens = {token.note: token for token in client.tokens.list()}
        assert tokens["early"].state == "good" and DAY_MS - 600_000 < (tokens["early"].left_ms or 0) < DAY_MS
        for name, token in (("bee", early.token), ("cow", client.tokens.create().token)):
            network.start_node(name, token=token, wait=False)
        for name in ("ant", "bee", "cow"):
            network.wait_node(name)
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
        check_nobody_blamed(client)
