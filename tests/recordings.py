"""What the kernel and the node core were told in simulated worlds, and what they decided: a format, and its replay.

A recording is a gzip file of JSON lines. `{"begin": …}` starts a core from a state; every other line is one input with
the time, the whole decision, when the core next wants a tick, and now and then a hash of its state. The tags of inputs
and decisions are words of this file, not class names, so a rename leaves every recording valid.

A replay that decides otherwise is either a mistake or meant. If it is meant:

    python tests/record_worlds.py

and look at what changed before you commit it.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from holdfast.kernel import decision as decisions
from holdfast.kernel import events
from holdfast.kernel.decision import Decision
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    AccessToken,
    Attempt,
    DurationHistory,
    Instant,
    Job,
    JoinToken,
    Meta,
    Node,
    NodeRecord,
    Settings,
    WallTimes,
)
from holdfast.node.core import events as core_events
from holdfast.node.core.admission import Means, NodeLimits
from holdfast.node.core.core import NodeCore

WORLDS = Path(__file__).parent / "kernel" / "recorded"
NODES = Path(__file__).parent / "unit" / "recorded_nodes"

ROWS: dict[str, type] = {
    "meta": Meta, "node": Node, "record": NodeRecord, "token": JoinToken, "access": AccessToken,
    "pace": DurationHistory, "job": Job, "attempt": Attempt, "wall_times": WallTimes,
}  # fmt: skip
KERNEL_WORDS: dict[str, type] = {
    "led": events.Led, "tick": events.Tick, "submitted": events.Submitted, "cancel_asked": events.CancelAsked,
    "move_asked": events.MoveAsked, "node_joined": events.NodeJoined, "node_said": events.NodeSaid,
    "node_broke": events.NodeBroke, "drain_asked": events.DrainAsked, "verified": events.Verified,
    "inspected": events.Inspected, "delivery_refused": events.DeliveryRefused,
    "checkpointed": events.Checkpointed, "delivered": events.ContentDelivered,
    "files_received": events.FilesReceived, "token_made": events.TokenMade,
    "token_revoked": events.TokenRevoked, "explain_asked": events.ExplainAsked, "check_asked": events.CheckAsked,
    "estimates_asked": events.EstimatesAsked,
    "access_made": events.AccessMade, "access_revoked": events.AccessRevoked,
    "to_session": decisions.ToSession, "close_session": decisions.CloseSession, "verify": decisions.Verify,
    "inspect": decisions.Inspect,
    "taken": decisions.Taken, "rejected": decisions.Rejected, "done": decisions.Done,
    "explanation": decisions.Explanation, "checked": decisions.Checked, "foretold": decisions.Predicted,
}  # fmt: skip
NODE_WORDS: dict[str, type] = {
    "recovered": core_events.Recovered, "connected": core_events.Connected, "disconnected": core_events.Disconnected,
    "told": core_events.CommandReceived, "shim_said": core_events.ShimSaid, "shim_died": core_events.ShimDied,
    "spawn_failed": core_events.SpawnFailed, "delivered": core_events.Delivered,
    "undeliverable": core_events.Undeliverable,
    "progressed": core_events.Progressed, "removed": core_events.Removed, "load_measured": core_events.LoadMeasured,
    "leave_asked": core_events.LeaveAsked, "offer_asked": core_events.OfferAsked, "tick": core_events.NodeTick,
    "say": core_events.Say, "spawn": core_events.Spawn, "tell": core_events.Tell,
    "capture": core_events.CaptureCheckpoint,
    "remove": core_events.Remove, "remember_epoch": core_events.RememberEpoch, "hang_up": core_events.HangUp,
}  # fmt: skip

raw = msgspec.Raw
_encode = msgspec.json.Encoder(order="deterministic").encode


class Tags:
    """Between the class names that msgspec writes and the words of a recording."""

    _WRITTEN = re.compile(rb'\{"type":"(~?\w+)"')

    def __init__(self, words: dict[str, type]) -> None:
        names = {word: str(kind.__struct_config__.tag) for word, kind in words.items()}  # type: ignore[attr-defined]
        self._words = {name.encode(): f"~{word}".encode() for word, name in names.items()}
        self._names = {word: name for name, word in self._words.items()}

    def recorded(self, data: bytes) -> bytes:
        return self._with(self._words, data)

    def present(self, data: bytes) -> bytes:
        return self._with(self._names, data)

    def _with(self, names: dict[bytes, bytes], data: bytes) -> bytes:
        return self._WRITTEN.sub(lambda found: b'{"type":"%s"' % names.get(found[1], found[1]), data)


KERNEL_TAGS, NODE_TAGS = Tags(KERNEL_WORDS), Tags(NODE_WORDS)
_kernel_event = msgspec.json.Decoder(events.AnyEvent)
_node_event = msgspec.json.Decoder(core_events.NodeEvent)


class Line(msgspec.Struct, omit_defaults=True):
    begin: msgspec.Raw = msgspec.Raw(b"")
    now: int = 0
    event: msgspec.Raw = msgspec.Raw(b"")
    decided: msgspec.Raw = msgspec.Raw(b"")
    due: int | None = None
    state: str = ""


_line = msgspec.json.Decoder(Line)


def write(path: Path, lines: list[Line]) -> None:
    """The same lines give the same file."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(gzip.compress(b"\n".join(map(_encode, lines)) + b"\n", 9, mtime=0))
    new.replace(path)


@cache
def read(path: Path) -> tuple[Line, ...]:
    return tuple(_line.decode(raw) for raw in gzip.decompress(path.read_bytes()).splitlines())


# --- the kernel ---


class KernelBegin(msgspec.Struct):
    settings: Settings
    rows: list[tuple[str, msgspec.Raw]]


def kernel_begin(kernel: Kernel) -> Line:
    words = {kind: word for word, kind in ROWS.items()}
    rows = [(words[type(row)], raw(_encode(row))) for row in kernel.rows()]
    return Line(begin=raw(_encode(KernelBegin(kernel.settings, rows))))


def begun_kernel(line: Line) -> Kernel:
    begin = msgspec.json.decode(line.begin, type=KernelBegin)
    return Kernel.load(begin.settings, [msgspec.json.decode(raw, type=ROWS[word]) for word, raw in begin.rows])


def kernel_event(line: Line) -> events.AnyEvent:
    return _kernel_event.decode(KERNEL_TAGS.present(bytes(line.event)))


def kernel_step(kernel: Kernel, event: events.AnyEvent, now: int, look: bool) -> tuple[Line, Decision]:
    """Tell the kernel, and write down what came of it. `look`: at its state as well."""
    told = raw(KERNEL_TAGS.recorded(_encode(event)))
    decided = kernel.apply(event, Instant(now))
    state = kernel.digest()[:16] if look else ""
    line = Line(
        now=now, event=told, decided=raw(KERNEL_TAGS.recorded(_encode(decided))), due=kernel.next_due(), state=state
    )
    return line, decided


def replay_world(lines: Sequence[Line]) -> str:
    """Where the kernel decides otherwise than it was recorded, in words; empty: nowhere."""
    kernel: Kernel | None = None
    for number, line in enumerate(lines, 1):
        if bytes(line.begin):
            kernel = begun_kernel(line)
            continue
        assert kernel is not None
        again, _ = kernel_step(kernel, kernel_event(line), line.now, bool(line.state))
        if says := difference(line, again):
            return f"line {number}, {bytes(line.event).decode()} at {line.now}: {says}"
    return ""


# --- the node core ---


class NodeBegin(msgspec.Struct):
    node: str
    instance: str
    epoch_seen: int
    offered: Any
    means: Means
    limits: NodeLimits


def node_begin(core: NodeCore) -> Line:
    begin = NodeBegin(core.node, core.instance, core.epoch_seen, core.offered, core.means, core.limits)
    return Line(begin=raw(_encode(begin)))


def begun_node(line: Line) -> NodeCore:
    kinds = NodeCore.__init__.__annotations__
    begin = msgspec.json.decode(line.begin, type=NodeBegin)
    offered = msgspec.convert(begin.offered, type=kinds["offered"])
    return NodeCore(kinds["node"](begin.node), begin.instance, begin.epoch_seen, offered, begin.means, begin.limits)


def node_event(line: Line) -> core_events.NodeEvent:
    return _node_event.decode(NODE_TAGS.present(bytes(line.event)))


def node_step(core: NodeCore, event: core_events.NodeEvent, now: int) -> Line:
    told = raw(NODE_TAGS.recorded(_encode(event)))
    actions = core.apply(event, Instant(now))
    seen = (core.held(), core.in_use, core.alive, core.epoch_seen, core.connected, core.leaving, core.left,
            core.paused, core.drained)  # fmt: skip
    return Line(
        now=now, event=told, decided=raw(NODE_TAGS.recorded(_encode(actions))),
        due=core.next_due(), state=sha256(_encode(seen)).hexdigest()[:8],
    )  # fmt: skip


def replay_node(lines: Sequence[Line]) -> str:
    core: NodeCore | None = None
    for number, line in enumerate(lines, 1):
        if bytes(line.begin):
            core = begun_node(line)
            continue
        assert core is not None
        again = node_step(core, node_event(line), line.now)
        if says := difference(line, again):
            return f"line {number}, {bytes(line.event).decode()} at {line.now}: {says}"
    return ""


# --- differences ---


def difference(recorded: Line, again: Line) -> str:
    if bytes(recorded.decided) != bytes(again.decided):
        before, after = msgspec.json.decode(recorded.decided), msgspec.json.decode(again.decided)
        return next(_unlike(before, after, "decided"), "the decision is written in another order")
    if recorded.due != again.due:
        return f"wants a tick at {again.due}, recorded {recorded.due}"
    if recorded.state != again.state:
        return "decided the same, but its state is another one"
    return ""


def _unlike(before: Any, after: Any, where: str) -> Iterator[str]:
    """The places where two values differ, the first one first."""
    match before, after:
        case dict(), dict():
            for key in [*before, *(k for k in after if k not in before)]:
                yield from _unlike(before.get(key), after.get(key), f"{where}.{key}")
        case list(), list():
            for index in range(max(len(before), len(after))):
                sides = [side[index] if index < len(side) else None for side in (before, after)]
                yield from _unlike(sides[0], sides[1], f"{where}[{index}]")
        case _:
            if before != after:
                yield f"{where} is {after!r}, recorded {before!r}"
