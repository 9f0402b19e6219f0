"""Decides which connecting nodes may do their handshake now, and which wait. It knows addresses, not nodes.

When a whole fleet connects at once (this orchestrator was restarted, a network came back), serving all handshakes at
once would let every one of them time out, and the next try would find the same crowd. So only some run at a time, and
the others wait with a connection that costs little. Addresses take turns, and none can take all places: a stranger that
fills its part of the queue, or is silent when its turn comes, delays only its own address.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HandshakeQueueFull(Exception):
    """Too many nodes wait already."""


_Place = asyncio.Future[None]


class HandshakeQueue:
    def __init__(self, at_once: int, at_once_per_address: int, waiting: int, waiting_per_address: int) -> None:
        self._at_once, self._at_once_per_address = at_once, at_once_per_address
        self._waiting_max, self._waiting_per_address_max = waiting, waiting_per_address
        self._of_address: Counter[str] = Counter()
        self._waiting: OrderedDict[str, dict[_Place, None]] = OrderedDict()
        """By address in the order of their turns; within an address, in the order of arrival."""
        self.at_it = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a place and hold it. Raises HandshakeQueueFull if the queue is full."""
        if address not in self._waiting and self._place_for(address):
            self._take(address)
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._leave(address)

    async def _wait(self, address: str) -> None:
        line = self._waiting.get(address, {})
        if self.waiting >= self._waiting_max or len(line) >= self._waiting_per_address_max:
            raise HandshakeQueueFull
        place: _Place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, line)[place] = None
        self.waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(address, place)
            else:
                self._leave(address)  # it got its place and hung up at the same moment
            raise

    def _place_for(self, address: str) -> bool:
        return self.at_it < self._at_once and self._of_address[address] < self._at_once_per_address

    def _take(self, address: str) -> None:
        self.at_it += 1
        self._of_address[address] += 1

    def _leave(self, address: str) -> None:
        self.at_it -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        self._let_in()

    def _let_in(self) -> None:
        """Give the free places to waiting nodes, address by address."""
        passed = 0
        while passed < len(self._waiting) and self.at_it < self._at_once:
            address = next(iter(self._waiting))
            self._waiting.move_to_end(address)
            if not self._place_for(address):
                passed += 1
                continue
            passed = 0
            first = next(iter(self._waiting[address]))
            self._forget(address, first)
            if not first.done():
                first.set_result(None)
                self._take(address)

    def _forget(self, address: str, place: _Place) -> None:
        line = self._waiting.get(address, {})
        if place in line:
            del line[place]
            self.waiting -= 1
            if not line:
                del self._waiting[address]
