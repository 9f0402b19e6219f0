"""A job's output comes as whole lines, however it was cut on its way, and goes on behind any of them."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client import Client, Endpoint, log_lines
from holdfast.client.async_client import AsyncClient
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.log_lines import Lines, LogLine
from holdfast.client.sse import ServerEvent
from holdfast.client.transport import Transport
from holdfast.errors import Misuse
from holdfast.orchestrator.api.streams import END, Cursor, sse, whole_text
from holdfast.wire.http import LogLine as Piece

pytest_plugins = ["both_clients"]
pytestmark = pytest.mark.spec("J4")


class Story:
    """A job's output on a server: what each attempt printed, and what the platform saw before each."""

    def __init__(self, *printed: dict[str, bytes]) -> None:
        self._printed = printed

    def told(self, begin: str, sizes: Iterator[int]) -> Iterator[tuple[str, Piece]]:
        """As the server tells it from a cursor on, in pieces of these sizes; streams take turns."""
        cursor = Cursor(begin)
        for number, printed in enumerate(self._printed, start=1):
            attempt = f"att_x.{number}"
            if cursor.entry < number:
                cursor.entry = number
                yield str(cursor), Piece(attempt, "platform", number, f"attempt {number} goes to a machine")
            at = cursor.of(number)
            while any(at[stream] < len(printed[stream]) for stream in printed):
                for stream in sorted(printed):
                    data = printed[stream][at[stream] :][: next(sizes)]
                    text, size = whole_text(data, final=at[stream] + len(data) == len(printed[stream]))
                    if size:
                        offset, at[stream] = at[stream], at[stream] + size
                        yield str(cursor), Piece(attempt, stream, offset, text)

    def lines(self, after: Any, sizes: Iterator[int], stream: str = "both") -> Iterator[LogLine]:
        lines = Lines(after, stream)
        for id, piece in self.told(lines.begin, sizes):
            yield from lines.heard(ServerEvent(msgspec.json.encode(piece), id=id))
        yield from lines.rest()


def of(size: int) -> Iterator[int]:
    while True:
        yield size


def drawn(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


def test_a_line_that_came_in_parts_is_one_line_and_streams_are_told_apart() -> None:
    story = Story({"stdout": "first\nsécond\nno end".encode(), "stderr": b"oh\nno\n"})
    told = [(line.stream, line.text) for line in story.lines(None, of(4))]
    assert [text for stream, text in told if stream == "stdout"] == ["first\n", "sécond\n", "no end"]
    assert [text for stream, text in told if stream == "stderr"] == ["oh\n", "no\n"]
    assert told[0] == ("platform", "attempt 1 goes to a machine")


def test_who_wants_one_stream_gets_nothing_but_that() -> None:
    story = Story({"stdout": b"a\nb\n"}, {"stdout": b"c\n"})
    told = list(story.lines(None, of(3), "stdout"))
    assert [line.text for line in told] == ["a\n", "b\n", "c\n"]
    # and can go on behind any of it, with what the platform saw since
    assert [line.stream for line in story.lines(told[1], of(3))] == ["platform", "stdout"]


def test_many_lines_in_one_piece_come_one_by_one_with_their_places() -> None:
    story = Story({"stdout": "ä\n\nb\u2028c\n".encode()})
    told = [line for line in story.lines(None, of(1000)) if line.stream == "stdout"]
    # an empty line is one, and nothing but a newline ends one
    assert [(line.offset, line.text) for line in told] == [(0, "ä\n"), (3, "\n"), (4, "b\u2028c\n")]


def test_what_an_attempt_left_without_an_end_comes_before_the_next_attempt() -> None:
    story = Story({"stdout": b"half a li"}, {"stdout": b"whole\n"})
    told = [(line.attempt, line.text) for line in story.lines(None, of(3))]
    assert told[1:] == [("att_x.1", "half a li"), ("att_x.2", "attempt 2 goes to a machine"), ("att_x.2", "whole\n")]


def test_output_without_any_end_of_a_line_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LINE_MAX", 10)
    story = Story({"stdout": b"x" * 25 + b"\n"})
    assert [line.text for line in story.lines(None, of(4)) if line.stream == "stdout"] == [
        "x" * 10,
        "x" * 10,
        "xxxxx\n",
    ]


def test_who_looks_now_and_then_gets_the_rest_of_a_line_that_had_no_end_yet() -> None:
    # given somebody who read what was there, in the middle of a line
    early = list(Story({"stdout": b"one\nhal"}).lines(None, of(100)))
    assert [line.text for line in early[1:]] == ["one\n", "hal"]

    # when they look again behind it, then they get what came since; and once all is read, nothing
    late = list(Story({"stdout": b"one\nhalf\ntwo"}).lines(early[-1], of(100)))
    assert [line.text for line in late] == ["f\n", "two"]
    assert list(Story({"stdout": b"one\nhalf\ntwo"}).lines(late[-1].cursor, of(100))) == []


OUTPUT = st.lists(st.sampled_from([b"a", b"\n", b"\xff", "é".encode(), b"word", b"\r"]), max_size=12).map(b"".join)
SIZES = st.lists(st.integers(4, 9), min_size=1, max_size=4)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.fixed_dictionaries({"stdout": OUTPUT, "stderr": OUTPUT}), min_size=1, max_size=3), SIZES, SIZES)
def test_a_reader_goes_on_behind_any_line_and_misses_and_repeats_nothing(
    attempts: list[dict[str, bytes]], sizes: list[int], other_sizes: list[int]
) -> None:
    # given a story that was read to its end
    story = Story(*attempts)
    whole = list(story.lines(None, drawn(sizes)))
    assert "".join(line.text for line in whole if line.stream == "stdout") == "".join(
        attempt["stdout"].decode("utf-8", "replace") for attempt in attempts
    )

    # when another begins behind any of its lines, and what it gets is cut elsewhere; and a third behind its first
    for number, line in enumerate(whole, start=1):
        rest = list(story.lines(line.cursor, drawn(other_sizes)))
        last = list(story.lines(rest[0].cursor, drawn(sizes))) if rest else []

        # then all together read everything once: each stream of each attempt in order
        for stream in {(one.attempt, one.stream) for one in whole}:
            assert texts(whole[:number], stream) + texts(rest, stream) == texts(whole, stream)
            assert texts(whole[:number] + rest[:1] + last, stream) == texts(whole, stream)


def texts(lines: list[LogLine], stream: tuple[str, str]) -> list[str]:
    return [line.text for line in lines if (line.attempt, line.stream) == stream]


@pytest.mark.parametrize("after", ["not a place", "1| x", 7, Piece("a", "stdout", 0, "x\n")])
def test_what_is_no_place_is_refused(after: Any) -> None:
    with pytest.raises(Misuse, match="not a line to continue after"):
        Lines(after)


def served(either: Any, answer: Callable[[httpx.Request], httpx.Response]) -> Any:
    endpoint, wire = Endpoint("http://127.0.0.1:1"), httpx.MockTransport(answer)

    async def sleep(seconds: float) -> None:
        return None

    return either(
        lambda: Client.over(Transport(endpoint, wire=wire, sleep=lambda seconds: None)),
        lambda: AsyncClient.over(AsyncTransport(endpoint, wire=wire, sleep=sleep)),
    )


def test_both_clients_hand_out_lines_and_go_on_behind_one(either: Any) -> None:
    # given a server whose connection breaks in the middle of a line
    story, begins = Story({"stdout": b"one\ntwo\nthree\n"}), []

    def answer(request: httpx.Request) -> httpx.Response:
        begins.append(request.headers.get("Last-Event-ID", ""))
        told = [sse(piece, id) for id, piece in story.told(begins[-1], of(6))]
        cut = len(begins) == 1
        return httpx.Response(200, content=b"".join(told[:2] if cut else [*told, END]))

    client = served(either, answer)

    # when a job's output is read, then every line is whole
    lines = list(client.jobs.logs("job_1"))
    assert [line.text for line in lines[1:]] == ["one\n", "two\n", "three\n"]
    assert len(begins) == 2 and begins[0] == ""

    # and another reader goes on behind the first line, which lies within what came at once
    assert [line.text for line in client.jobs.logs("job_1", after=lines[1])] == ["two\n", "three\n"]
    assert begins[-1] == begins[1].partition("|")[0] + "|"
    # and whoever wants it as it arrives gets that
    pieces = [piece.text for piece in client.jobs.logs("job_1", pieces=True) if piece.stream == "stdout"]
    assert pieces == ["one\ntw", "o\nthre", "e\n"]
    # but nobody goes on behind a line with pieces, which would repeat what came before it
    with pytest.raises(Misuse, match="`pieces` and `after` do not go together"):
        list(client.jobs.logs("job_1", after=lines[1], pieces=True))
