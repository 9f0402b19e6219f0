"""Shares a limited amount of work between parties that do not trust each other. Knows nothing of the work.

A party is a node or an owner. Parties take turns, so the wait of one does not depend on how much another asks for; and
each has a budget of seconds that refills slowly, so that no party keeps a slot for ever.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.orchestrator.api_error import Unavailable

WAITING_MAX = 64
"""Requests of one party that may wait. More are refused."""
BURST_S = 60.0
"""Seconds of work that a party may use at once."""
REFILL = 0.05
"""Seconds of work that a party gets back in each second: a twentieth of a core."""
PARTIES_MAX = 4_096
"""Budgets that are remembered. Those that are nearly full are forgotten first."""


class FairQueue:
    """At most `slots` at a time, at most `each` of one party; parties take turns."""

    def __init__(self, slots: int, each: int = 1, waiting_max: int = WAITING_MAX) -> None:
        self._slots = slots
        self._each = each
        self._waiting_max = waiting_max
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By party, in the order of their next turns; also parties of which nothing waits and something runs."""
        self._running: dict[str, int] = {}

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Hold a slot. Raises Unavailable if too many of the party's requests wait already."""
        waiting = self._waiting.setdefault(party, deque())
        if len(waiting) >= self._waiting_max:
            raise Unavailable("busy", f"{len(waiting)} of your requests are waiting already; nothing was done")
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(given)
        self._give()
        try:
            await given
            yield
        finally:
            if given.done() and not given.cancelled():
                self._running[party] -= 1
                self._waiting.move_to_end(party)
            else:
                waiting.remove(given)
            if not waiting and not self._running.get(party):
                del self._waiting[party]
                self._running.pop(party, None)
            self._give()

    def _give(self) -> None:
        """Give free slots to the parties whose turns are next."""
        free = self._slots - sum(self._running.values())
        for party in list(self._waiting):
            ready = [one for one in self._waiting[party] if not one.done()]  # a caller may have just given up
            for given in ready[: min(free, self._each - self._running.get(party, 0))]:
                self._waiting[party].remove(given)
                self._running[party] = self._running.get(party, 0) + 1
                given.set_result(None)
                free -= 1


class WorkBudget:
    """Seconds of work by party."""

    def __init__(self, now_s: Callable[[], float], burst_s: float = BURST_S, refill: float = REFILL) -> None:
        self._now_s = now_s
        self._burst_s = burst_s
        self._refill = refill
        self._left: dict[str, tuple[float, float]] = {}
        """Party -> seconds left, and when that was."""

    def left_s(self, party: str) -> float:
        if party not in self._left:
            return self._burst_s
        left_s, at_s = self._left[party]
        return min(self._burst_s, left_s + (self._now_s() - at_s) * self._refill)

    def need(self, party: str) -> None:
        """Raises Unavailable if the party has used up its budget."""
        left_s = self.left_s(party)
        if left_s <= 0:
            wait_s = int(1 + (1 - left_s) / self._refill)
            raise Unavailable("busy", "checking what was sent has taken too long already; nothing was done", wait_s)

    def spend(self, party: str, seconds: float) -> None:
        self._left[party] = (self.left_s(party) - seconds, self._now_s())
        if len(self._left) > PARTIES_MAX:
            by_budget = sorted(self._left, key=self.left_s)
            self._left = {one: self._left[one] for one in by_budget[: PARTIES_MAX // 2]}
