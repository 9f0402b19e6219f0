"""A job's output as whole lines: the server sends output as it arrives, which may end in the middle of a line.

A line is held until its end arrives. An unfinished line is returned when another attempt begins or the stream ends.
Each line has a cursor for continuing after it, even in the middle of a piece that the server sent: a position of the
server, and the number of lines seen after it.
"""

import re
from collections import Counter
from collections.abc import Iterator

from holdfast.client.answers import parsed
from holdfast.client.sse import ServerEvent
from holdfast.errors import Misuse
from holdfast.wire.http import LogLine as Piece

LINE_MAX = 1 << 20
"""Characters. Longer lines are returned in parts: a program need not print any newlines."""
_PLACE = re.compile(r"\S*(?: [^\s=]+=\d+)*")
_Stream = tuple[str, str]
"""An attempt and one of its streams."""


class LogLine(Piece, frozen=True):
    """One line of output with its newline, or a message of the platform (stream `platform`)."""

    cursor: str = ""
    """The position after this line: `logs(after=line)`, or `logs(after=line.cursor)` in another program."""

    def __repr__(self) -> str:
        return f"<LogLine {self.stream} {self.text!r}>"


class Lines:
    """Assembles lines from the pieces of one stream. `after`: where an earlier one stopped. `stream`: if it is one of
    the job's own, messages of the platform are left out. `pieces`: return the pieces as they are."""

    def __init__(self, after: "LogLine | str | None" = None, stream: str = "both", *, pieces: bool = False) -> None:
        if pieces and after is not None:
            raise Misuse(
                "`pieces` and `after` do not go together: a line begins and ends within pieces",
                hint="Leave `pieces` out, and get whole lines after that one.",
            )
        self._shows_platform = stream == "both"
        place = after.cursor if isinstance(after, LogLine) else after or ""
        if not isinstance(place, str) or not _PLACE.fullmatch(place):
            raise Misuse(f"{after!r:.60} is not a line to continue after", hint="Give a line that `logs` returned.")
        self.begin, *seen = place.split(" ")
        """The server's position to start at."""
        self._from = self._heard_to = self.begin
        """A position at a line boundary, from which the returned lines are counted; and the newest position."""
        self._since: Counter[str] = Counter()
        self._skip = Counter({name: int(count) for name, _, count in (one.partition("=") for one in seen)})
        self._cut: dict[_Stream, Piece] = {}
        """The beginnings of lines whose ends have not arrived."""
        self._newest = 0

    def heard(self, event: ServerEvent) -> Iterator[LogLine]:
        piece: Piece = parsed(Piece, event)
        if (number := _number(piece.attempt)) > self._newest:
            self._newest = number
            yield from self.rest()
        if piece.stream == "platform":
            yield from self._whole(piece)
        else:
            yield from self._split(piece)
        self._heard_to = event.id or self._heard_to
        if not self._cut:
            self._count_from_here()

    def rest(self) -> Iterator[LogLine]:
        """Unfinished lines. If more of one arrives later, it is a line of its own that directly continues this one."""
        cut = list(self._cut.values())
        self._cut.clear()
        for number, piece in enumerate(cut, start=1):
            if number == len(cut):
                self._count_from_here()
            yield from self._whole(piece, counted=number < len(cut))

    def _count_from_here(self) -> None:
        self._from, self._since = self._heard_to, Counter()

    def _split(self, piece: Piece) -> Iterator[LogLine]:
        stream = piece.attempt, piece.stream
        begun = self._cut.pop(stream, None)
        offset = begun.offset if begun else piece.offset
        for text in _lines(begun.text + piece.text if begun else piece.text):
            line = Piece(piece.attempt, piece.stream, offset, text, piece.at_ms)
            if text.endswith("\n") or len(text) >= LINE_MAX:
                yield from self._whole(line)
            else:
                self._cut[stream] = line
            offset += len(text.encode())

    def _whole(self, line: Piece, counted: bool = True) -> Iterator[LogLine]:
        name = f"{line.attempt or '-'}/{line.stream}"
        self._since[name] += counted
        if self._skip[name] > 0:
            self._skip = self._skip - Counter([name])
            return
        if line.stream == "platform" and not self._shows_platform:
            return
        seen = self._since + self._skip
        place = " ".join([self._from, *(f"{one}={count}" for one, count in sorted(seen.items()))])
        yield LogLine(line.attempt, line.stream, line.offset, line.text, line.at_ms, cursor=place)


def _lines(text: str) -> Iterator[str]:
    """With their newlines; the last may have none. Split at newlines only, as in `sse`."""
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        for begin in range(0, len(line), LINE_MAX):
            yield line[begin : begin + LINE_MAX]


def _number(attempt: str) -> int:
    number = attempt.rpartition(".")[2]
    return int(number) if number.isdigit() else 0
