"""Records every event that the kernel gets, with a hash of each decision; and replays the record.

With HOLDFAST_RECORD=FILE the orchestrator appends to FILE, one JSON value a line:

    {"begin": {settings, rows}}        at every rebuild: what the kernel was built from
    {"now": …, "event": …, "hash": …}  for every event applied

Replaying builds the same kernels, applies the same events and compares the hashes. A last line cut by a crash is
no mismatch: its decision was never committed and had no effect.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.kernel.decision import Decision
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import Instant, Settings
from holdfast.model.rows import ROWS, Live, RowType
from holdfast.model.stored import StoredRow
from holdfast.state import Snapshot

ENVIRONMENT = "HOLDFAST_RECORD"

_encode = msgspec.json.Encoder(order="deterministic").encode


class Begin(msgspec.Struct, frozen=True):
    settings: Settings
    rows: dict[str, msgspec.Raw]
    """By table: the list of its rows, or the row itself if there is only one; and `notes`."""

    @classmethod
    def of(cls, settings: Settings, snapshot: Snapshot) -> "Begin":
        live = [row for row in ROWS if row.live is not Live.NONE]
        listed = {row.table: snapshot.of(row.kind) for row in live if not row.single}
        single = {row.table: next(iter(snapshot.of(row.kind)), None) for row in live if row.single}
        parts = {**listed, **single, "notes": snapshot.notes}
        return cls(settings, {name: msgspec.Raw(_encode(part)) for name, part in parts.items()})

    def snapshot(self) -> Snapshot:
        notes = msgspec.json.decode(self.rows.get("notes", b"{}"), type=dict[str, str])
        return Snapshot.holding((row for row_type in ROWS for row in self._rows_of(row_type)), notes)

    def _rows_of(self, row_type: RowType[Any]) -> list[StoredRow]:
        """The rows of a table. A table that an old record does not have had no rows."""
        raw = self.rows.get(row_type.table, b"null" if row_type.single else b"[]")
        if row_type.single:
            row = msgspec.json.decode(raw, type=row_type.kind | None)
            return [] if row is None else [row]
        return msgspec.json.decode(raw, type=list[row_type.kind])


class RecordLine(msgspec.Struct, frozen=True, omit_defaults=True):
    begin: Begin | None = None
    now: Instant = Instant(0)
    event: AnyEvent | None = None
    hash: str = ""


_decode = msgspec.json.Decoder(RecordLine).decode


def decision_hash(decision: Decision) -> str:
    return hashlib.sha256(_encode(decision)).hexdigest()


class Recorder:
    def __init__(self, path: Path) -> None:
        # It holds what people submit, including environment variables: readable by its owner only.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file: IO[bytes] = os.fdopen(descriptor, "ab", buffering=0)

    def begin(self, settings: Settings, snapshot: Snapshot) -> None:
        self._file.write(_encode(RecordLine(begin=Begin.of(settings, snapshot))) + b"\n")

    def applied(self, event: AnyEvent, now: Instant, decision: Decision) -> None:
        self._file.write(_encode(RecordLine(now=now, event=event, hash=decision_hash(decision))) + b"\n")

    def close(self) -> None:
        self._file.close()


class RecordedKernel(Kernel):
    """A kernel that records its events."""

    recorder: Recorder

    def apply(self, event: AnyEvent, now: Instant) -> Decision:
        decision = super().apply(event, now)
        self.recorder.applied(event, now, decision)
        return decision


def rebuilt(settings: Settings, snapshot: Snapshot, recorder: Recorder | None = None) -> Kernel:
    """A kernel with the state that the store holds. With a recorder, it records from here on."""
    if recorder is None:
        return Kernel.load(settings, snapshot.rows)
    recorder.begin(settings, snapshot)
    kernel = RecordedKernel.load(settings, snapshot.rows)
    kernel.recorder = recorder
    return kernel


class ReplayMismatch(msgspec.Struct, frozen=True):
    line: int
    event: str
    says: str


def replay(path: Path) -> list[ReplayMismatch]:
    """Where a replay decides differently from the record; empty if nowhere."""
    found: list[ReplayMismatch] = []
    kernel: Kernel | None = None
    for number, line in _lines(path):
        if line.begin is not None:
            kernel = rebuilt(line.begin.settings, line.begin.snapshot())
        elif line.event is not None:
            name = type(line.event).__name__
            if kernel is None:
                found.append(ReplayMismatch(number, name, "an event before the first beginning"))
                continue
            decided = decision_hash(kernel.apply(line.event, line.now))
            if decided != line.hash:
                found.append(ReplayMismatch(number, name, f"decided {decided[:12]}, recorded {line.hash[:12]}"))
    return found


def _lines(path: Path) -> Iterator[tuple[int, RecordLine]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.endswith(b"\n"):
                yield number, _decode(raw)
