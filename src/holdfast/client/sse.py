"""Server-sent events, read from bytes: what the standard says, and no more than that.

Lines are split at newlines only. Splitting as Python's `splitlines` does would cut a line of a job's output
at every Unicode line separator in it.
"""

from collections.abc import Iterable, Iterator

import msgspec

EVENT_BYTES_MAX = 4 * 1024 * 1024
"""No event comes near this; without a bound a faulty server could fill the memory of its reader."""


class ServerEvent(msgspec.Struct, frozen=True):
    data: bytes
    name: str = "message"
    id: str | None = None


class TooLong(Exception):
    """One event grew beyond every bound."""


def read_events(chunks: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The complete events in a stream of bytes. What was cut off before its blank line does not count."""
    data: list[bytes] = []
    size = 0
    name, event_id = "message", None
    for line in _lines(chunks):
        if not line:
            if data or name != "message":
                yield ServerEvent(b"\n".join(data), name, event_id)
            data, size, name, event_id = [], 0, "message", None
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            size += len(value)
            if size > EVENT_BYTES_MAX:
                raise TooLong
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id":
            event_id = value.decode("utf-8", "replace")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        rest += first
        if len(rest) > EVENT_BYTES_MAX:
            raise TooLong
        for line in more:
            yield rest.removesuffix(b"\r")
            rest = line
