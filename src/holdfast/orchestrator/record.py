"""A record of everything the kernel was told, with a hash of each decision; and its replay (issue: sim and real agree).

With HOLDFAST_RECORD=FILE the orchestrator appends to FILE, one JSON value a line:

    {"begin": {settings, rows}}        at every rebuild: what the kernel was built from
    {"now": …, "event": …, "hash": …}  for every event applied

Replaying builds the same kernels, applies the same events and compares the hashes. A last line cut by a crash is
no mismatch: its decision was never committed, so nobody heard of it.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import Instant, Settings
from holdfast.state import Snapshot

ENVIRONMENT = "HOLDFAST_RECORD"

_encode = msgspec.json.Encoder(order="deterministic").encode


class Begin(msgspec.Struct, frozen=True):
    settings: Settings
    rows: Snapshot


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    begin: Begin | None = None
    now: Instant = Instant(0)
    event: AnyEvent | None = None
    hash: str = ""


_decode = msgspec.json.Decoder(Line).decode


def decision_hash(decision: Decision) -> str:
    return hashlib.sha256(_encode(decision)).hexdigest()


class Recorder:
    def __init__(self, path: Path) -> None:
        # What people submit is in it, their environment variables as well: for the owner's eyes only.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file: IO[bytes] = os.fdopen(descriptor, "ab", buffering=0)

    def begin(self, settings: Settings, snapshot: Snapshot) -> None:
        self._file.write(_encode(Line(begin=Begin(settings, snapshot))) + b"\n")

    def applied(self, event: AnyEvent, now: Instant, decision: Decision) -> None:
        self._file.write(_encode(Line(now=now, event=event, hash=decision_hash(decision))) + b"\n")

    def close(self) -> None:
        self._file.close()


class RecordedKernel(Kernel):
    """The kernel with a record of what it was told."""

    recorder: Recorder

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        decision = super().apply(event, now)
        self.recorder.applied(event, now, decision)
        return decision


def rebuilt(settings: Settings, snapshot: Snapshot, recorder: Recorder | None = None) -> Kernel:
    """A kernel with the state that the store holds; recorded from here on where a recorder is given."""
    rows = snapshot
    parts = (rows.meta, list(rows.nodes), list(rows.jobs), list(rows.attempts), list(rows.tokens), rows.paces)
    if recorder is None:
        return Kernel.load(settings, *parts)
    recorder.begin(settings, snapshot)
    kernel = RecordedKernel.load(settings, *parts)
    assert isinstance(kernel, RecordedKernel)
    kernel.recorder = recorder
    return kernel


class Mismatch(msgspec.Struct, frozen=True):
    line: int
    event: str
    says: str


def replay(path: Path) -> list[Mismatch]:
    """Where a replay decides otherwise than the record; empty: nowhere."""
    found: list[Mismatch] = []
    kernel: Kernel | None = None
    for number, line in _lines(path):
        if line.begin is not None:
            kernel = rebuilt(line.begin.settings, line.begin.rows)
        elif line.event is not None:
            name = type(line.event).__name__
            if kernel is None:
                found.append(Mismatch(number, name, "an event before the first beginning"))
                continue
            decided = decision_hash(kernel.apply(line.event, line.now))
            if decided != line.hash:
                found.append(Mismatch(number, name, f"decided {decided[:12]}, recorded {line.hash[:12]}"))
    return found


def _lines(path: Path) -> Iterator[tuple[int, Line]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.endswith(b"\n"):
                yield number, _decode(raw)
