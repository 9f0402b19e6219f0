"""Records a terminal session as one SVG that plays by itself.

The program runs in a pseudo-terminal; its output is stored with its time. A terminal in memory replays it; each row is
kept for as long as it looked the same, so a recording of half a minute is a small file. The picture needs no script:
style sheets show and hide rows. If motion is unwanted or unsupported, the last screen is shown.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from html import escape
from itertools import pairwise

import msgspec
import pyte

from holdfast.sim.svg import MONO

CELL_WIDTH, CELL_HEIGHT, SIZE = 8.4, 18.0, 14.0
MARGIN, BAR = 14.0, 30.0
PAUSE_S_MAX = 1.2
"""Longer pauses are shortened to this."""
END_S = 7.0
"""How long the last screen is shown."""
STEP_S = 0.2
PLAY_S_MAX = 24.0
"""A longer session is played faster, and labelled so."""
COLOURS = {
    "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "yellow": "#d29922",
    "blue": "#58a6ff", "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#b1bac4", "default": "#e6edf3",
    "brightblack": "#6e7681", "brightred": "#ffa198", "brightgreen": "#56d364", "brightyellow": "#e3b341",
    "brightbrown": "#e3b341", "brightblue": "#79c0ff", "brightmagenta": "#d2a8ff", "brightcyan": "#56d4dd",
    "brightwhite": "#ffffff",
}  # fmt: skip
PAPER, EDGE = "#0d1117", "#30363d"

Said = list[tuple[float, bytes]]
"""The output of a program, each piece with its time in seconds."""
Run = tuple[str, str, bool, bool]
"""Text, colour, bold, dim."""


class Row(msgspec.Struct, frozen=True):
    """One line of the screen, with the period in which it looked like this."""

    line: int
    runs: tuple[Run, ...]
    since: float
    until: float


class Tape(msgspec.Struct, frozen=True):
    columns: int
    lines: int
    rows: tuple[Row, ...]
    seconds: float
    faster: float = 1.0
    """The playback speed as a multiple of the real one."""


def record(words: list[str], columns: int, lines: int, env: dict[str, str], limit_s: float) -> tuple[int, Said]:
    """Run a program in a terminal of this size. Returns its exit code and its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    program = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    began = time.monotonic()
    said: Said = []
    try:
        while time.monotonic() - began < limit_s:
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            said.append((time.monotonic() - began, piece))
    finally:
        if time.monotonic() - began >= limit_s:
            program.kill()
        os.close(ours)
    return program.wait(10), said


def played(said: Said, columns: int, lines: int) -> Tape:
    """The rows of a screen with this output, with long pauses shortened."""
    pauses = [min(at - before, PAUSE_S_MAX) for (before, _), (at, _) in pairwise(said)]
    faster = max(1.0, sum(pauses) / PLAY_S_MAX)
    screen = _Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    open_rows: dict[int, tuple[tuple[Run, ...], float]] = {}
    rows: list[Row] = []
    now, last, shown = 0.0, said[0][0] if said else 0.0, -STEP_S

    def look(at: float) -> None:
        for line in range(lines):
            runs = _runs(screen, line, columns)
            before = open_rows.get(line)
            if before is not None and before[0] == runs:
                continue
            if before is not None and before[0]:
                rows.append(Row(line, before[0], before[1], at))
            open_rows[line] = (runs, at)

    for at, piece in said:
        now += min(at - last, PAUSE_S_MAX) / faster
        last = at
        if now - shown >= STEP_S:
            look(round(now, 2))  # the state until now, before this piece changes it
            shown = now
        stream.feed(piece)
    now = round(now + STEP_S, 2)
    look(now)
    end = round(now + END_S, 2)
    rows += [Row(line, runs, since, end) for line, (runs, since) in sorted(open_rows.items()) if runs]
    return Tape(columns, lines, tuple(rows), end, faster)


class _Screen(pyte.Screen):
    """Pyte has no faint text. Underlining is not used in these recordings, so it stands for faint."""

    def select_graphic_rendition(self, *attributes: int, **more: object) -> None:
        super().select_graphic_rendition(*(4 if a == 2 else a for a in attributes), **more)


def _runs(screen: pyte.Screen, line: int, columns: int) -> tuple[Run, ...]:
    runs: list[Run] = []
    for column in range(columns):
        cell = screen.buffer[line][column]
        style = (COLOURS.get(cell.fg, f"#{cell.fg}"), cell.bold, cell.underscore)
        if runs and runs[-1][1:] == style:
            runs[-1] = (runs[-1][0] + cell.data, *style)
        else:
            runs.append((cell.data, *style))
    while runs and not runs[-1][0].strip():
        runs.pop()
    return tuple(runs)


def text(tape: Tape, at: float | None = None) -> str:
    """The content of the screen at a time; None: at the end."""
    moment = tape.seconds - 0.01 if at is None else at
    shown = {row.line: "".join(run[0] for run in row.runs) for row in tape.rows if row.since <= moment < row.until}
    return "\n".join(shown.get(line, "").rstrip() for line in range(tape.lines))


def svg(tape: Tape, title: str, says: str) -> str:
    width = tape.columns * CELL_WIDTH + 2 * MARGIN
    height = tape.lines * CELL_HEIGHT + 2 * MARGIN + BAR
    label = title if tape.faster < 1.05 else f"{title}   (played {tape.faster:.1f} times as fast)"
    times: dict[tuple[float, float], str] = {}
    drawn: list[str] = []
    for row in tape.rows:
        name = times.setdefault((row.since, row.until), f"t{len(times)}")
        last = row.until >= tape.seconds
        drawn.append(f'<g class="{name}{"" if last else " o"}">{_line(row)}</g>')
    frames = "".join(_keyframes(name, since, until, tape.seconds) for (since, until), name in times.items())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="{MONO}" font-size="{SIZE:g}">',
        f"<title>{escape(title)}</title><desc>{escape(says)}</desc>",
        f"<style>text{{white-space:pre;dominant-baseline:text-before-edge}}.b{{font-weight:700}}.d{{opacity:.6}}"
        f".o{{visibility:hidden}}@media(prefers-reduced-motion:no-preference){{"
        f"g[class]{{animation:{tape.seconds:g}s step-end infinite}}{frames}}}</style>",
        f'<rect width="100%" height="100%" rx="9" fill="{PAPER}" stroke="{EDGE}"/>',
        *(f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{colour}"/>'
          for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))),
        f'<text x="{width / 2:.0f}" y="9" text-anchor="middle" fill="#9198a1" font-size="12">{escape(label)}</text>',
        *drawn,
        "</svg>",
        "",
    ])  # fmt: skip


def _line(row: Row) -> str:
    column, parts = 0, []
    for words, colour, bold, dim in row.runs:
        style = " ".join(word for word, wanted in (("b", bold), ("d", dim)) if wanted)
        stripped = words.lstrip(" ")
        at = column + len(words) - len(stripped)
        column += len(words)
        if stripped.strip():
            shown = stripped.rstrip(" ")
            parts.append(
                f'<text x="{MARGIN + at * CELL_WIDTH:.1f}" y="{MARGIN + BAR + row.line * CELL_HEIGHT:.0f}" '
                f'textLength="{len(shown) * CELL_WIDTH:.1f}" fill="{colour}"'
                + (f' class="{style}"' if style else "")
                + f">{escape(shown)}</text>"
            )
    return "".join(parts)


def _keyframes(name: str, since: float, until: float, total: float) -> str:
    start, end = f"{100 * since / total:.2f}%", f"{100 * until / total:.2f}%"
    steps = ["0%{visibility:hidden}" if since > 0 else "0%{visibility:visible}"]
    if since > 0:
        steps.append(f"{start}{{visibility:visible}}")
    if until < total:
        steps.append(f"{end}{{visibility:hidden}}")
    return f"g.{name}{{animation-name:{name}}}@keyframes {name}{{{''.join(steps)}}}"
