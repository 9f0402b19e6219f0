"""Decides which connections stay when there are too many. Knows neither sockets nor protocols nor time.

A new connection is not refused because strangers hold all places: an attacker may stand behind the same address as an
honest caller. Instead a stranger is closed that does what most strangers do at the time, and that has done so for
longest: an attack makes many alike, and an honest caller says who it is soon after it connects. Connections that have
shown who they are, and those whose request is being answered, are never closed.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Generic, TypeVar

import msgspec

C = TypeVar("C")


class Standing(IntEnum):
    """What a connection has shown so far."""

    HALF_SENT = 0
    """A part of a request has arrived, and not the rest."""
    SILENT = 1
    """Nothing has arrived yet."""
    IDLE = 2
    """A stranger whose requests were answered, or who waits for its turn."""
    BUSY = 3
    """A stranger whose request is being answered."""
    KNOWN = 4
    """It showed a valid token, key or signature."""


MAY_BE_CLOSED = (Standing.HALF_SENT, Standing.SILENT, Standing.IDLE)


class ConnectionBounds(msgspec.Struct, frozen=True):
    """0: no limit."""

    all: int = 0
    known_per_network: int = 0
    strangers: int = 0
    strangers_per_network: int = 0


class _Network(Generic[C]):
    def __init__(self) -> None:
        self.by_standing: tuple[dict[C, None], ...] = tuple({} for _ in Standing)
        """In the order in which they got it."""

    @property
    def known(self) -> int:
        return len(self.by_standing[Standing.KNOWN])

    @property
    def strangers(self) -> int:
        return sum(map(len, self.by_standing)) - self.known

    def first_closed(self, new: C) -> C | None:
        """The oldest of those with the commonest standing. None: there is none but the new one. Silent ones count half:
        every honest caller is silent for a moment after it connected."""

        def weight(standing: Standing) -> int:
            count = len(self.by_standing[standing]) - (new in self.by_standing[standing])
            return count if standing is Standing.SILENT else 2 * count

        most = max(MAY_BE_CLOSED, key=weight)
        return next((connection for connection in self.by_standing[most] if connection is not new), None)


class Admission(Generic[C]):
    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._networks: dict[str, _Network[C]] = {}
        self._of: dict[C, tuple[str, Standing]] = {}
        self.strangers = 0
        self.busy = 0
        """Strangers whose requests are being answered."""

    def __len__(self) -> int:
        return len(self._of)

    def opened(self, connection: C, network: str, spared: Callable[[C], bool] = lambda _: False) -> C | None:
        """Counts a new connection. Returns the one to close for it, which is no longer counted: an older one, or this
        one itself if no other can be closed. `spared`: whether one that would be closed has meanwhile done what it was
        waited for, and has another standing now, or is gone."""
        ours = self._networks.setdefault(network, _Network())
        ours.by_standing[Standing.SILENT][connection] = None
        self._of[connection] = (network, Standing.SILENT)
        self.strangers += 1
        victim = self._excess(ours, connection)
        while victim is not None and victim is not connection and spared(victim):
            victim = self._excess(ours, connection)
        if victim is not None:
            self.closed(victim)
        return victim

    def _excess(self, ours: _Network[C], new: C) -> C | None:
        """The one to close, if there are too many."""
        if _over(ours.strangers, self._bounds.strangers_per_network):
            return ours.first_closed(new) or new
        if _over(self.strangers, self._bounds.strangers) or _over(len(self._of), self._bounds.all):
            return max(self._networks.values(), key=lambda one: one.strangers).first_closed(new) or new
        return None

    def stands(self, connection: C, standing: Standing) -> None:
        """A connection has another standing now. One that is known stays known."""
        network, before = self._of.get(connection, ("", Standing.KNOWN))
        if before is Standing.KNOWN or before is standing:
            return
        self._move(connection, network, before, standing)

    def known(self, connection: C) -> bool:
        """The connection showed who it is. False: its network has too many known connections; it stays a stranger."""
        network, before = self._of.get(connection, ("", Standing.KNOWN))
        if before is Standing.KNOWN:
            return True
        if _over(self._networks[network].known + 1, self._bounds.known_per_network):
            return False
        self._move(connection, network, before, Standing.KNOWN)
        return True

    def unknown(self, connection: C) -> None:
        """What the connection showed is no longer valid: it is a silent stranger again."""
        network, before = self._of.get(connection, ("", Standing.SILENT))
        if before is Standing.KNOWN:
            self._move(connection, network, before, Standing.SILENT)

    def closed(self, connection: C) -> None:
        """The connection is gone, if it was counted."""
        network, standing = self._of.pop(connection, ("", Standing.KNOWN))
        ours = self._networks.get(network)
        if ours is None:
            return
        del ours.by_standing[standing][connection]
        self.strangers -= standing is not Standing.KNOWN
        self.busy -= standing is Standing.BUSY
        if not any(ours.by_standing):
            del self._networks[network]

    def _move(self, connection: C, network: str, before: Standing, after: Standing) -> None:
        places = self._networks[network].by_standing
        del places[before][connection]
        places[after][connection] = None
        self._of[connection] = (network, after)
        self.strangers += (before is Standing.KNOWN) - (after is Standing.KNOWN)
        self.busy += (after is Standing.BUSY) - (before is Standing.BUSY)


def _over(count: int, limit: int) -> bool:
    return 0 < limit < count
