"""Remembers which content each attempt sent, so that it may name it again without sending it again.

Kept in memory only: what is forgotten is sent again. Rows hold what an attempt delivered in whole.
"""

from collections import OrderedDict
from collections.abc import Collection

SENT_MAX = 200_000
"""Hashes that are remembered, of all attempts together, unless one attempt alone has more."""


class SentHashes:
    def __init__(self, sent_max: int = SENT_MAX) -> None:
        self._sent_max = sent_max
        self._sent: OrderedDict[str, set[str]] = OrderedDict()
        """By uploader, the one that sent last at the end."""
        self._total = 0

    def of(self, uploader: str) -> Collection[str]:
        return self._sent.get(uploader, frozenset[str]())

    def add(self, uploader: str, sha: str) -> None:
        known = self._sent.setdefault(uploader, set())
        self._sent.move_to_end(uploader)
        self._total += sha not in known
        known.add(sha)
        while self._total > self._sent_max and len(self._sent) > 1:
            _, oldest = self._sent.popitem(last=False)
            self._total -= len(oldest)
