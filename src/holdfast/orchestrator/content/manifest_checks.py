"""Checks manifests of strangers without letting one sender hold up another.

A small manifest is checked in a thread. A large one is checked by a process of its own, with limits on its memory and
time (holdfast.blobs.check_manifest): it would occupy the interpreter for seconds, and take many times its size.
Senders take turns, and each has a budget of seconds. Judges no sender: a refusal is reported as an error.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from holdfast.blobs.check_manifest import ManifestTask, ManifestVerdict
from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.manifest import Manifest, ManifestLimits, Outline, blobs_in
from holdfast.blobs.store import CheckManifest, ManifestTurn
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content.fair_queue import FairQueue, WorkBudget

IN_THREAD_BYTES_MAX = 256 * 1024
"""A manifest up to this size is checked in some milliseconds, and within 16 MiB."""
THREADS = 2
PROCESSES = 1
CHECK_S_MAX = 600.0
"""For a process that gets no processor time. Its limit of processor time ends it sooner."""
_PROGRAM = ("-m", "holdfast.blobs.check_manifest")


class ManifestChecks:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "check-manifest")
        self._small = FairQueue(THREADS)
        self._large = FairQueue(PROCESSES)
        self.budget = WorkBudget(time.monotonic)

    def turns_of(self, party: str) -> ManifestTurn:
        """Turns that count against this party."""

        @asynccontextmanager
        async def turn(size: int) -> AsyncIterator[CheckManifest]:
            self.budget.need(party)
            small = size <= IN_THREAD_BYTES_MAX
            async with (self._small if small else self._large).turn(party):
                began = time.monotonic()
                try:
                    yield self._in_thread if small else _in_process
                finally:
                    self.budget.spend(party, time.monotonic() - began)

        return turn

    async def _in_thread(self, data: bytes, limits: ManifestLimits) -> Outline:
        check = partial(_outline, data, limits)
        return await asyncio.get_running_loop().run_in_executor(self._threads, check)


def _outline(data: bytes, limits: ManifestLimits) -> Outline:
    return Manifest.from_bytes(data, limits).outline


async def _in_process(data: bytes, limits: ManifestLimits) -> Outline:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as wrong:
        raise Unavailable("busy", f"no manifest can be checked now: {wrong.strerror}", 5) from None
    task = msgspec.json.encode(ManifestTask(limits, len(data))) + b"\n"
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            said, _ = await process.communicate(task + data)
    except TimeoutError:
        said = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        verdict = msgspec.json.decode(said, type=ManifestVerdict)
    except msgspec.DecodeError:
        raise ManifestTooLarge("a manifest takes too long or too much memory to check") from None
    if verdict.refused:
        raise (ManifestTooLarge if verdict.too_large else ManifestRefused)(verdict.refused)
    return Outline(blobs_in(data), verdict.files, verdict.total_bytes)
