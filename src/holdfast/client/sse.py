"""A parser for server-sent events, as the standard defines them.

Lines are split at newlines only. Splitting as Python's `splitlines` does would cut a line of a job's output
at every Unicode line separator in it.
"""

from collections.abc import Iterator

import msgspec

EVENT_BYTES_MAX = 4 * 1024 * 1024
"""Far larger than any event. Without a bound, a faulty server could fill the reader's memory."""


class ServerEvent(msgspec.Struct, frozen=True):
    data: bytes
    name: str = "message"
    id: str | None = None


class TooLong(Exception):
    """An event exceeded the size limit."""


class EventReader:
    """Parses the complete events of one connection. An event that is cut off before its blank line is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._begin()

    def _begin(self) -> None:
        self._data: list[bytes] = []
        self._size = 0
        self._name = "message"
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        first, *more = chunk.split(b"\n")
        self._rest += first
        if len(self._rest) > EVENT_BYTES_MAX:
            raise TooLong
        for line in more:
            whole, self._rest = self._rest.removesuffix(b"\r"), line
            event = self._line(whole)
            if event is not None:
                yield event

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            data, name, event_id = self._data, self._name, self._id
            self._begin()
            return ServerEvent(b"\n".join(data), name, event_id) if data or name != "message" else None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value)
            if self._size > EVENT_BYTES_MAX:
                raise TooLong
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id":
            self._id = value.decode("utf-8", "replace")
        return None
