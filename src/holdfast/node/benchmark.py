"""Compares a machine with its own best: how fast it computes, copies memory and writes to disk (SPEC H1).

Measured while the machine hosts nothing, for a fraction of a second per hour. A machine that has become slow
(throttling, a dying disk, a noisy neighbour) is shown as such to its operator. It keeps its work: whether an attempt
makes progress is judged per attempt.
"""

import asyncio
import contextlib
import logging
import mmap
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from holdfast.durable import durable_write

FILE = "speeds.json"
FIRST_S = 60.0
"""Right after boot a machine is busy with starting."""
EVERY_S = 3600.0
BUSY_S = 300.0
SLOW_PERMILLE = 600
SLOW_IN_A_ROW = 3
"""A single slow measurement can have any cause."""
BLOCK_BYTES, PIECE_BYTES = 8 << 20, 1 << 16
TRIES = 3
"""The best of these counts: interference can only make a measurement slower."""

log = logging.getLogger("holdfast.node")


class Speeds(msgspec.Struct, frozen=True):
    """In MiB per second."""

    hashing: int = 0
    copying: int = 0
    writing: int = 0


NAMES = {"hashing": "it computes", "copying": "it moves memory", "writing": "its disk writes"}


class Yardstick(msgspec.Struct, frozen=True):
    """The known speeds of a machine. A different processor counts as a different machine."""

    machine: str = ""
    best: Speeds = Speeds()
    last: Speeds = Speeds()
    slow: dict[str, int] = {}
    """Number of consecutive slow measurements."""

    def after(self, machine: str, now: Speeds) -> "Yardstick":
        if machine != self.machine:
            return Yardstick(machine, now, now)
        best = Speeds(**{name: max(getattr(self.best, name), getattr(now, name)) for name in NAMES})
        slow = {
            name: self.slow.get(name, 0) + 1
            for name in NAMES
            if getattr(now, name) * 1000 < getattr(best, name) * SLOW_PERMILLE
        }
        return Yardstick(machine, best, now, slow)

    def warnings(self) -> list[str]:
        return [
            f"{says} at {getattr(self.last, name)} MiB/s; its best was {getattr(self.best, name)} MiB/s"
            for name, says in NAMES.items()
            if self.slow.get(name, 0) >= SLOW_IN_A_ROW
        ]


def measure(home: Path) -> Speeds:
    """Measure for some tenths of a second. Raises OSError if the disk does not work."""
    # An mmap is returned to the system when it is closed; the allocator would keep the memory, and an agent stays
    # small.
    with mmap.mmap(-1, BLOCK_BYTES) as block, mmap.mmap(-1, BLOCK_BYTES) as target:
        for place in range(0, BLOCK_BYTES, PIECE_BYTES):
            block[place : place + PIECE_BYTES] = os.urandom(PIECE_BYTES)
        return _measured(home / "speed", block, target)


def _measured(probe: Path, block: mmap.mmap, target: mmap.mmap) -> Speeds:
    def copy() -> None:
        target[:] = block  # pyright: ignore[reportArgumentType]  # any buffer is accepted

    def write() -> None:
        with probe.open("wb") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())

    try:
        return Speeds(_speed(lambda: sha256(block).digest()), _speed(copy), _speed(write))
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _speed(work: Callable[[], object]) -> int:
    best_s = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        best_s = min(best_s, time.perf_counter() - began)
    return round((BLOCK_BYTES >> 20) / max(best_s, 1e-6))


class Benchmark:
    def __init__(self, home: Path, machine: str, idle: Callable[[], bool]) -> None:
        """`machine`: a description of it. `idle`: whether the machine hosts nothing and is otherwise idle."""
        self._home = home
        self._machine = machine
        self._idle = idle
        self.yardstick = Yardstick()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.yardstick = msgspec.json.decode((home / FILE).read_bytes(), type=Yardstick)

    async def run(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            measured = await self.look()
            await asyncio.sleep(EVERY_S if measured else BUSY_S)

    async def look(self) -> bool:
        """Measure once, unless the machine is busy: then it would be slow for a good reason."""
        if not self._idle():
            return False
        try:
            speeds = await asyncio.to_thread(measure, self._home)
            if not self._idle():
                return False
            self.yardstick = self.yardstick.after(self._machine, speeds)
            durable_write(self._home / FILE, msgspec.json.encode(self.yardstick))
        except OSError as wrong:
            log.warning("the machine's speed cannot be measured: %s", wrong)
        return True
