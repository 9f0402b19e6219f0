"""The pictures of the concepts, drawn from data structures of the code and from staged worlds. Writes no file."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import get_args

from pictures_worlds import Bar, Timeline, fence, lease, steps, takeover

from holdfast.blobs.keys import incoming_key, owned_key, owner_hash, sha_of
from holdfast.blobs.manifest import CHUNK_BYTES, File
from holdfast.blobs.scanning import scan
from holdfast.model import JobPhase, Settings, Verdict
from holdfast.model.messages import FromNode, ToNode
from holdfast.policy.lease import node_part_ms, orchestrator_part_ms
from holdfast.quantities import spoken_bytes
from holdfast.sim.svg import Drawing

SEEN_LEAST = 3
BARS = {"computing": "green", "again": "red", "saving": "blue", "preparing": "violet"}


# --- the way of the data ---


def _box(
    d: Drawing, x: float, y: float, width: float, height: float, name: str, *lines: str, line: str = "line"
) -> None:
    d.rect(x, y, width, height, "fill", line)
    d.text(x + width / 2, y + 21, name, bold=True, anchor="middle")
    for number, words in enumerate(lines):
        d.text(x + width / 2, y + 40 + 16 * number, words, "faint", 11.5, "middle")


def data_way() -> str:
    said = [kind.__name__ for kind in get_args(FromNode)]
    told = [kind.__name__ for kind in get_args(ToNode)]
    sha = sha_of(b"")
    incoming = incoming_key("client", sha).split("/")[0]
    owned = owned_key(owner_hash("owner"), sha).split("/")[0]
    d = Drawing(
        910, 420, "The way of the data", "From the person through orchestrator and node to the program, and back"
    )
    _box(d, 20, 60, 150, 84, "you", "holdfast run …", "SDK, HTTP")
    _box(d, 300, 30, 230, 144, "orchestrator", line="blue")
    d.rect(322, 64, 186, 40, "paper", "line", 5)
    d.text(415, 89, "kernel: decides", size=12.5, anchor="middle")
    d.rect(322, 118, 186, 40, "paper", "line", 5)
    d.text(415, 143, "store: commits, then acts", size=12.5, anchor="middle")
    d.rect(676, 12, 214, 234, "paper", "green")
    d.text(783, 31, "node", "green", 13, "middle", bold=True)
    for top, name, words in (
        (42, "agent", "reports what it holds"), (112, "shim, one per attempt", "survives the agent"),
        (182, "your program", "isolated"),
    ):  # fmt: skip
        _box(d, 690, top, 186, 54, name, words)
    for top in (96, 166):
        d.line([(783, top), (783, top + 15)], "green", arrow=True)
    d.line([(170, 88), (298, 88)], "ink", arrow=True)
    d.text(234, 80, "job, questions", "faint", 11, "middle")
    d.line([(300, 122), (172, 122)], "ink", arrow=True)
    d.text(234, 138, "events, logs", "faint", 11, "middle")
    d.line([(676, 56), (532, 56)], "green", arrow=True)
    _words(d, 603, 49, said, "green", up=True)
    d.line([(530, 78), (674, 78)], "blue", arrow=True)
    _words(d, 603, 94, told, "blue", up=False)
    d.rect(20, 288, 870, 92, "fill", "line")
    d.text(455, 369, "blob store: a folder or S3; every name is the hash of its content", bold=True, anchor="middle")
    d.rect(36, 302, 340, 44, "paper", "amber", 5)
    d.text(206, 329, f"{incoming}/<uploader>/<sha256>   hostile", size=12, anchor="middle", mono=True)
    d.rect(534, 302, 340, 44, "paper", "green", 5)
    d.text(704, 329, f"{owned}/<owner>/<sha256>   verified", size=12, anchor="middle", mono=True)
    d.line([(376, 324), (532, 324)], "blue", arrow=True)
    d.text(454, 316, "hashed again", "faint", 11, "middle")
    d.line([(48, 144), (48, 300)], "amber", arrow=True)
    d.text(56, 222, "PUT folder", "faint", 11)
    d.line([(620, 300), (620, 216), (154, 216), (154, 146)], "green", arrow=True)
    d.text(162, 208, "GET results", "faint", 11)
    d.line([(415, 174), (415, 286)], "blue", arrow=True)
    d.text(423, 240, "takes over what is whole,", "faint", 11)
    d.text(423, 255, "deletes what nothing names", "faint", 11)
    d.line([(780, 300), (780, 248)], "green", arrow=True)
    d.text(788, 278, "GET", "faint", 11)
    d.line([(700, 246), (700, 272), (330, 272), (330, 300)], "amber", arrow=True)
    d.text(432, 284, "PUT checkpoints, results", "faint", 11)
    d.text(
        20,
        404,
        "PUT and GET are signed for one hash each. Rows and messages carry hashes; content never passes the kernel.",
        "faint",
        12,
    )
    return d.svg()


def _words(d: Drawing, x: float, y: float, names: list[str], colour: str, up: bool) -> None:
    """Names in lines of three."""
    lines = [", ".join(names[start : start + 3]) for start in range(0, len(names), 3)]
    for number, words in enumerate(reversed(lines) if up else lines):
        d.text(x, y + (-13 if up else 13) * number, words, colour, 10.5, "middle")


# --- the life of a job ---


def job_states() -> str:
    seen = {edge for edge, count in steps().items() if count >= SEEN_LEAST}
    phases = [phase.value for phase in JobPhase if phase is not JobPhase.ENDED]
    verdicts = [verdict.value for verdict in Verdict]
    ends = {verdict: f"{JobPhase.ENDED.value} {verdict}" for verdict in verdicts}
    d = Drawing(
        900, 402, "The life of a job", "The states of a job and the changes between them, seen in simulated worlds"
    )
    width, gap, top, high = 108, 34, 96, 48
    left = {phase: 44 + number * (width + gap) for number, phase in enumerate(phases)}
    for phase in phases:
        d.rect(left[phase], top, width, high, "fill", "blue")
        d.text(left[phase] + width / 2, top + 29, phase, bold=True, anchor="middle")
    d.dot(18, top + high / 2, 5, "ink")
    d.line([(24, top + high / 2), (left[phases[0]] - 2, top + high / 2)], "ink", arrow=True)
    drawn = {("", phases[0])}
    for one, other in pairwise(phases):
        if (one, other) in seen:
            drawn.add((one, other))
            d.line([(left[one] + width, top + high / 2), (left[other] - 2, top + high / 2)], "ink", arrow=True)
    if ("", phases[1]) in seen:
        drawn.add(("", phases[1]))
        d.curve(f"M18,{top + 18} C30,44 {left[phases[1]]},44 {left[phases[1]] + 40},{top - 2}", "ink", arrow=True)
        d.text(left[phases[0]] + 48, 50, "room at once", "faint", 11, "middle")
    colours = {"succeeded": "green", "failed": "red", "cancelled": "amber"}
    for number, verdict in enumerate(verdicts):
        y = top + 68 * number
        d.rect(770, y, 112, high, "fill", colours[verdict])
        d.text(826, y + 21, JobPhase.ENDED.value, "faint", 11.5, "middle")
        d.text(826, y + 38, verdict, colours[verdict], 13, "middle", bold=True)
        from_ = [phase for phase in phases if (phase, ends[verdict]) in seen]
        drawn |= {(phase, ends[verdict]) for phase in from_}
        if number == 0:
            for phase in from_:
                d.line([(left[phase] + width, top + 24), (768, top + 24)], colours[verdict], arrow=True)
        elif from_:
            _rail(d, [left[phase] + 66 + 16 * number for phase in from_], top + high, y + 28, 768, colours[verdict])
    back = [phase for phase in phases[1:] if (phase, phases[0]) in seen]
    drawn |= {(phase, phases[0]) for phase in back}
    rail = top + high + 170
    for phase in back:
        d.line([(left[phase] + 30, top + high), (left[phase] + 30, rail)], "violet")
        d.dot(left[phase] + 30, rail, 2.5, "violet")
    if back:
        home = left[phases[0]] + 30
        d.line([(left[back[-1]] + 30, rail), (home, rail), (home, top + high + 2)], "violet", arrow=True)
        d.text(
            home + 10, rail + 17, "its attempt was lost and none is left: it waits for another machine", "violet", 12
        )
    rest = sorted(seen - drawn)
    words = ", ".join(f"{one or 'new'} → {other}" for one, other in rest)
    if words:
        d.text(
            44,
            rail + 48,
            "A job stands where the furthest of its attempts stands, so a takeover also makes:",
            "faint",
            12,
        )
        d.text(44, rail + 66, words, "faint", 12)
    return d.svg()


def _rail(d: Drawing, xs: list[float], top: float, y: float, right: float, colour: str) -> None:
    for x in xs:
        d.line([(x, top), (x, y)], colour)
        d.dot(x, y, 2.5, colour)
    d.line([(min(xs), y), (right, y)], colour, arrow=True)


# --- timelines ---


class Timeline:
    """Lanes under one axis of seconds."""

    def __init__(self, d: Drawing, top: float, lanes: list[str], seconds: float, names: dict[str, str]) -> None:
        self.d, self.top, self.seconds = d, top, seconds
        self.left, self.right, self.pitch = 144.0, d.width - 28.0, 62.0
        self.lanes = {lane: top + 8 + self.pitch * number for number, lane in enumerate(lanes)}
        self.bottom = top + self.pitch * len(lanes) + 6
        for lane, y in self.lanes.items():
            d.text(20, y + 22, names.get(lane, lane), bold=True, size=12.5)
            d.line([(self.left, y + 17), (self.right, y + 17)], "line", 1)
        step = 10 if seconds > 30 else 5
        for second in range(0, int(seconds) + 1, step):
            x = self.x(second)
            d.line([(x, self.bottom), (x, self.bottom + 5)], "faint", 1)
            d.text(x, self.bottom + 19, f"{second} s", "faint", 11, "middle")

    def x(self, second: float) -> float:
        return self.left + (self.right - self.left) * second / self.seconds

    def bar(self, lane: str, since: float, until: float, colour: str, words: str = "") -> None:
        y, wide = self.lanes[lane] + 5, self.x(until) - self.x(since)
        self.d.rect(self.x(since), y, max(1.5, wide), 24, colour, "", 3)
        if words and wide > 6.4 * len(words):
            self.d.text(self.x(since) + wide / 2, y + 16, words, "paper", 11, "middle", bold=True)

    def mark(
        self, lane: str, second: float, words: str, colour: str, anchor: str = "start", under: bool = False
    ) -> None:
        x, y = self.x(second), self.lanes[lane]
        self.d.line([(x, y - 3), (x, y + 37)], colour, 1.5, dashed=True)
        at = x + (4 if anchor == "start" else -4 if anchor == "end" else 0)
        self.d.text(at, y + (43 if under else -2), words, colour, 11, anchor)

    def bars(self, tale: Timeline, words: dict[str, str]) -> None:
        for bar in tale.bars:
            self.bar(bar.node, bar.since, bar.until, BARS[bar.what], words.get(bar.what, ""))
        for attempt, node in tale.where.items():
            first = next((bar for bar in tale.bars if bar.attempt == attempt), None)
            offered = next((s for s, kind, where in tale.marks if kind == "offered" and where == node), None)
            if first is not None and offered is not None:
                self.bar(node, offered, first.since, BARS["preparing"])


def _legend(d: Drawing, y: float, entries: list[tuple[str, str]], x: float = 144) -> None:
    for colour, words in entries:
        d.rect(x, y - 10, 12, 12, colour, "", 2)
        d.text(x + 18, y, words, "faint", 11.5)
        x += 34 + 6.3 * len(words)


def takeover_picture() -> str:
    tale = takeover()
    first, second = (tale.where[attempt] for attempt in sorted(tale.where))
    end = tale.at("ended")
    d = Drawing(900, 300, "A takeover", "A machine loses its power; another goes on from the last checkpoint")
    d.text(
        20, 28, "A machine loses its power under a job; another goes on from the last checkpoint", bold=True, size=14
    )
    line = Timeline(d, 50, [first, "kernel", second], max(60.0, end + 4), {
        first: "first machine", second: "second machine", "kernel": "orchestrator"})  # fmt: skip
    line.bars(tale, {"computing": "computes", "again": "does it again"})
    fell, found, ran = tale.at("power lost"), tale.at("suspect"), tale.at("offered", second)
    started = next(bar.since for bar in tale.bars if bar.node == second)
    back = tale.at("gone", first)
    line.mark(first, fell, "power lost", "red")
    line.mark(first, back, "back: on probation, then trusted again", "faint")
    line.bar("kernel", fell, found, "amber")
    line.mark("kernel", found, f"silence found after {found - fell:.1f} s; taken over", "amber")
    line.mark("kernel", end, "result accepted", "green", "end", under=True)
    line.mark(second, started, f"runs again {started - fell:.1f} s after the loss", "green", "start")
    assert ran >= found
    _legend(d, line.bottom + 44, [("violet", "preparing"), ("green", "useful work"), ("blue", "writes a checkpoint"),
                                  ("red", "work redone"), ("amber", "not yet noticed")])  # fmt: skip
    return d.svg()


def fences() -> str:
    d = Drawing(
        900,
        490,
        "Fences and leases",
        "What is cut off cannot do harm: a revoked fence, a lease that ends on both sides",
    )
    _fence(d, fence())
    _lease(d, lease())
    return d.svg()


def _fence(d: Drawing, tale: Timeline) -> None:
    old, new = sorted(tale.where)
    first, second = tale.where[old], tale.where[new]
    d.text(
        20, 28, "Work that may repeat: each attempt has a fence, and the first verified result wins", bold=True, size=14
    )
    line = Timeline(
        d, 52, [first, second], 52, {first: f"fence {tale.fences[old]}", second: f"fence {tale.fences[new]}"}
    )
    line.bars(tale, {"computing": "computes", "again": "the same once more"})
    cut, healed, end = tale.at("cut off"), tale.at("healed"), tale.at("ended")
    line.mark(first, cut, "cut off: it computes on", "red")
    line.mark(first, tale.at("revoked", first), "revoked, for ever", "amber")
    line.mark(first, tale.at("gone", first), "back with a result: refused, told why", "red", "end", under=True)
    line.mark(second, end, f"fence {tale.fences[new]} accepted", "green")
    line.mark(second, tale.at("offered", second), "taken over", "violet", "end")
    assert healed > end


def _lease(d: Drawing, tale: Timeline) -> None:
    settings = Settings.lan()
    (attempt,) = tale.where
    node = tale.where[attempt]
    d.text(20, 272, f"Work that must not run twice: a lease of {settings.lease_ms // 1000} s, renewed by every report",
           bold=True, size=14)  # fmt: skip
    line = Timeline(d, 298, [node, "kernel"], 36, {node: f"fence {tale.fences[attempt]}", "kernel": "orchestrator"})
    line.bars(tale, {"computing": "computes"})
    cut, stopped, over = tale.at("cut off"), tale.at("body ended"), tale.at("revoked", node)
    part = node_part_ms(settings.lease_ms) / settings.lease_ms
    theirs = orchestrator_part_ms(settings.lease_ms) / settings.lease_ms
    line.mark(node, cut, "cut off", "red", "end")
    line.mark(node, stopped, f"the node stops it, {part:g} of the lease after its last renewal", "red")
    line.bar("kernel", cut, over, "amber", "waits: a second one must not start")
    line.mark("kernel", over, f"{theirs:g} of it: certainly over", "amber")
    gap = over - stopped
    assert gap > 0
    d.text(144, line.bottom + 44, f"The node stops {gap:.1f} s before the orchestrator gives up: "
           f"{tale.says}, and never two bodies at once.", "faint", 12)  # fmt: skip


# --- content ---


def _folder(root: Path) -> None:
    (root / "data").mkdir()
    (root / "train.py").write_bytes(b"# a program\n" * 180)
    (root / "data" / "north.csv").write_bytes(b"1,2,3\n" * 60_000)
    (root / "data" / "south.csv").write_bytes(b"4,5,6\n" * 90_000)
    half = bytes(range(256)) * (CHUNK_BYTES // 256)
    (root / "weights.bin").write_bytes(half + half + b"\x01" * (CHUNK_BYTES // 4))


def content() -> str:
    with tempfile.TemporaryDirectory() as folder:
        _folder(Path(folder))
        manifest = scan(Path(folder)).manifest
    files = [entry for entry in manifest.entries if isinstance(entry, File)]
    d = Drawing(900, 346, "Content", "A folder becomes a manifest and blobs; each is named by the hash of its bytes")
    for x, words in ((20, "folder"), (330, "manifest"), (640, "blobs")):
        d.text(x, 30, words, bold=True, size=14)
    d.text(330, 48, f"itself a blob: {manifest.name[:12]}…", "faint", 11.5, mono=True)
    blobs_y = {number: 70 + 58 * number for number in range(len(manifest.blobs))}
    for number, blob in enumerate(manifest.blobs):
        d.rect(640, blobs_y[number], 240, 44, "fill", "green", 5)
        d.text(652, blobs_y[number] + 19, f"{blob.sha[:16]}…", size=12, mono=True)
        users = {file.path for file in files for piece in file.pieces if piece.blob == number}
        times = sum(piece.blob == number for file in files for piece in file.pieces)
        shared = f", shared by {len(users)} files" if len(users) > 1 else f", used {times} times" if times > 1 else ""
        d.text(652, blobs_y[number] + 36, f"{spoken_bytes(blob.size)}{shared}", "faint", 11.5)
    for number, file in enumerate(files):
        y = 70 + 62 * number
        d.rect(20, y, 200, 46, "fill", "blue", 5)
        d.text(32, y + 20, file.path, size=12.5, mono=True)
        d.text(32, y + 37, spoken_bytes(file.size), "faint", 11.5)
        d.line([(220, y + 23), (328, y + 23)], "blue", arrow=True)
        d.rect(330, y, 190, 46, "paper", "line", 5)
        d.text(342, y + 20, file.path, size=12, mono=True)
        d.text(342, y + 37, f"{len(file.pieces)} piece{'s' if len(file.pieces) != 1 else ''}", "faint", 11.5)
        for place, piece in enumerate(file.pieces):
            end = blobs_y[piece.blob] + 14 + 8 * (number % 3)
            start = y + 12 + 11 * place
            d.curve(f"M520,{start} C580,{start} 580,{end} 638,{end}", "green", 1.3, arrow=True)
    d.text(20, 332, f"Small files share a blob; large ones are cut every {spoken_bytes(CHUNK_BYTES)}. What is there "
           "already is not sent again.", "faint", 12)  # fmt: skip
    return d.svg()


PICTURES = {
    "data-way": data_way,
    "job-states": job_states,
    "takeover": takeover_picture,
    "fences": fences,
    "content": content,
}
__all__ = ["PICTURES", "Bar"]
