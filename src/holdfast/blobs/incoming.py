"""Counts what each uploader has in the incoming area of a folder store, including what is arriving.

A count is never too low: what is replaced, promoted or deleted stays counted until the folder is measured again, which
happens before anything is refused. Used in one thread, apart from `measure`.
"""

from collections.abc import Callable

import msgspec

UPLOADERS_MAX = 4_096
"""Counts that are remembered; a forgotten one is measured again."""


class _Count(msgspec.Struct):
    stored: int = 0
    arriving: int = 0


class IncomingBytes:
    def __init__(self, measure: Callable[[str], int]) -> None:
        """`measure`: the bytes that are stored for an uploader now."""
        self.measure = measure
        self._counts: dict[str, _Count] = {}

    def known(self, uploader: str) -> bool:
        return uploader in self._counts

    def measured(self, uploader: str, stored: int) -> None:
        """What is arriving is not stored yet."""
        self._counts.setdefault(uploader, _Count()).stored = stored

    def begin(self, uploader: str, size: int, most: int) -> bool:
        """Count an upload that begins, unless its uploader would have more than `most`."""
        count = self._counts.setdefault(uploader, _Count())
        if count.stored + count.arriving + size > most:
            return False
        count.arriving += size
        return True

    def end(self, uploader: str, size: int, *, stored: bool) -> None:
        """The upload has ended."""
        count = self._counts[uploader]
        count.arriving -= size
        count.stored += size if stored else 0
        if len(self._counts) > UPLOADERS_MAX:
            self._counts = {key: each for key, each in self._counts.items() if each.arriving}
