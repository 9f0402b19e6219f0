"""Checks the orchestrator: it leads, the store answers, memory equals the store, the disk has room, and no content was
found damaged.

Reports findings; repairs nothing.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Sequence
from pathlib import Path

from holdfast.kernel.kernel import Kernel
from holdfast.model import DAY_MS
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.leader.record import rebuilt
from holdfast.orchestrator.queries import Queries
from holdfast.state import StoreError
from holdfast.wire.http import DoctorView, Finding

DISK_FREE_MIB_MIN = 256
DELETED_JOB_BYTES_MAX = 512
"""What the store grows for each job after it was deleted, with its share of nodes and tokens; measured over a simulated
year (tests/simulation/test_year.py)."""


async def examine(leader: Leader, queries: Queries, data: Path, known: Sequence[Finding] = ()) -> DoctorView:
    """`known`: findings of parts that watch themselves."""
    findings = [
        _leads(leader),
        await _store_answers(leader, queries),
        await _rebuild_equals_memory(leader, queries),
        await _store_is_bounded(leader, queries),
        *(await asyncio.to_thread(_disk, data)),
        *known,
    ]
    return DoctorView(all(finding.ok for finding in findings), findings)


def _leads(leader: Leader) -> Finding:
    if leader.trouble:
        return Finding("leads", False, f"nothing can be decided now: {leader.trouble}")
    return Finding("leads", True, f"leading with epoch {leader.epoch}")


async def _store_answers(leader: Leader, queries: Queries) -> Finding:
    try:
        seq = await queries.ask(leader.store.last_seq)
    except StoreError as error:
        return Finding("store answers", False, error.says)
    return Finding("store answers", True, f"{seq} journal entries")


async def _rebuild_equals_memory(leader: Leader, queries: Queries) -> Finding:
    name = "rebuild equals memory"

    def look(kernel: Kernel) -> Awaitable[tuple[str, str]]:
        memory = kernel.digest()

        async def compare() -> tuple[str, str]:
            snapshot = await queries.ask(leader.store.load_live)
            stored = await asyncio.to_thread(lambda: rebuilt(leader.settings, snapshot).digest())
            return memory, stored

        return compare()

    try:
        memory, stored = await leader.at_quiet_moment(look)
    except TimeoutError:
        return Finding(name, True, "not compared: there was no quiet moment within 5 s; ask again")
    except (StoreError, Unavailable) as error:
        return Finding(name, False, f"cannot be compared: {error}")
    if memory != stored:
        return Finding(name, False, f"memory is {memory[:12]}, the store gives {stored[:12]}: report this as a bug")
    return Finding(name, True, f"both are {memory[:12]}")


async def _store_is_bounded(leader: Leader, queries: Queries) -> Finding:
    """How large the store is, and what it keeps of a job that was deleted."""
    name = "store is bounded"
    try:
        sizes = await queries.ask(leader.store.sizes)
    except StoreError as error:
        return Finding(name, False, error.says)
    rows, s = sizes.rows, leader.settings
    kept = (
        f"{rows['jobs']} jobs, {rows['nodes']} nodes and {rows['entries']} journal entries in "
        f"{sizes.bytes // 1024} KiB; ended jobs are kept for {s.jobs_keep_ms / DAY_MS:g} days, then at most "
        f"{DELETED_JOB_BYTES_MAX} bytes of each ({rows['deleted_jobs']} so far)"
    )
    return Finding(name, True, kept)


def _disk(data: Path) -> list[Finding]:
    free_mib = shutil.disk_usage(data).free // (1024 * 1024)
    writable = os.access(data, os.W_OK)
    return [
        Finding("disk has room", free_mib >= DISK_FREE_MIB_MIN, f"{free_mib} MiB free, {DISK_FREE_MIB_MIN} wanted"),
        Finding("data folder is ours", writable, "it can be written" if writable else "it cannot be written"),
    ]
