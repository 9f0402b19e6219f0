"""The line at the door for nodes: bounded, fair between addresses, and not thrown by those who give up."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.orchestrator.nodes.handshake_queue import HandshakeQueue, HandshakeQueueFull

pytestmark = pytest.mark.spec("A11", "J5")


async def everybody_had_a_turn() -> None:
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await turned.wait()


class Crowd:
    """Dials, and the order in which they were let in. Each holds its place until it is told to go."""

    def __init__(self, line: HandshakeQueue) -> None:
        self.line = line
        self.let_in: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self._dials: dict[str, asyncio.Task[None]] = {}

    async def dials(self, *names: str) -> None:
        """A name is `<address><number>`, as in `a1`."""
        for name in names:
            self._go[name] = asyncio.Event()
            self._dials[name] = asyncio.create_task(self._dial(name))
        await everybody_had_a_turn()

    async def _dial(self, name: str) -> None:
        async with self.line.turn(name[0]):
            self.let_in.append(name)
            await self._go[name].wait()

    async def leaves(self, name: str) -> None:
        self._go[name].set()
        await self._dials[name]
        await everybody_had_a_turn()

    async def hangs_up(self, name: str) -> None:
        self._dials[name].cancel()
        await asyncio.gather(self._dials[name], return_exceptions=True)
        await everybody_had_a_turn()

    async def everybody_leaves(self) -> None:
        for go in self._go.values():
            go.set()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)


def told(story: Callable[[Crowd], Awaitable[None]], at_once: int, per_address: int, waiting: int = 100) -> None:
    async def run() -> None:
        crowd = Crowd(HandshakeQueue(at_once, per_address, waiting, waiting_per_address=waiting // 2))
        await asyncio.wait_for(story(crowd), 10)
        await crowd.everybody_leaves()
        assert (crowd.line.at_it, crowd.line.waiting) == (0, 0), "a place was lost"

    asyncio.run(run())


def test_only_so_many_are_at_it_and_the_others_come_in_the_order_they_dialled() -> None:
    async def story(crowd: Crowd) -> None:
        # Given two places, when five dial
        await crowd.dials("a1", "a2", "a3", "a4", "a5")
        # Then two are let in, and each that leaves makes room for the one who waited longest
        assert crowd.let_in == ["a1", "a2"] and crowd.line.waiting == 3
        await crowd.leaves("a2")
        await crowd.leaves("a1")
        assert crowd.let_in == ["a1", "a2", "a3", "a4"]

    told(story, at_once=2, per_address=2)


def test_one_address_cannot_hold_up_another() -> None:
    async def story(crowd: Crowd) -> None:
        # Given an address that takes all the places it can have and fills the line behind them
        await crowd.dials(*(f"a{n}" for n in range(1, 9)))
        assert crowd.let_in == ["a1", "a2"]
        # When another address dials, then it is let in at once
        await crowd.dials("b1")
        assert crowd.let_in[-1] == "b1"
        # And when places become free, the addresses take turns
        await crowd.dials("b2", "b3", "b4")
        await crowd.leaves("a1")
        await crowd.leaves("b1")
        await crowd.leaves("a2")
        assert sorted(crowd.let_in[4:]) == ["a3", "a4", "b3"]

    told(story, at_once=4, per_address=2)


def test_addresses_take_turns_when_all_places_are_taken() -> None:
    async def story(crowd: Crowd) -> None:
        await crowd.dials("a1", "a2", "a3", "b1", "b2", "c1")
        for gone in ("a1", "a2", "b1", "c1", "a3"):
            await crowd.leaves(gone)
        assert crowd.let_in == ["a1", "a2", "b1", "c1", "a3", "b2"]

    told(story, at_once=1, per_address=1)


def test_who_gives_up_leaves_no_hole() -> None:
    async def story(crowd: Crowd) -> None:
        await crowd.dials("a1", "a2", "a3", "a4")
        # When one in the line hangs up, and so does the one who is at it
        await crowd.hangs_up("a2")
        await crowd.hangs_up("a1")
        # Then the next in line is let in
        assert crowd.let_in == ["a1", "a3"] and crowd.line.waiting == 1

    told(story, at_once=1, per_address=1)


def test_who_hangs_up_in_the_moment_it_is_let_in_gives_its_place_on() -> None:
    async def story(crowd: Crowd) -> None:
        async with crowd.line.turn("a"):
            await crowd.dials("a1", "a2")
        # When the place was given to the first in line, and it gives up before it has noticed
        assert crowd.line.waiting == 1
        await crowd.hangs_up("a1")
        # Then the second is let in
        assert crowd.let_in == ["a2"]

    told(story, at_once=1, per_address=1)


def test_a_line_that_is_full_says_so() -> None:
    async def story(crowd: Crowd) -> None:
        # Given an address with all of its places in the line taken
        await crowd.dials("a1", "a2", "a3")
        assert crowd.line.waiting == 2
        # Then it gets no more, another address still does, and once all are taken nobody does
        with pytest.raises(HandshakeQueueFull):
            async with crowd.line.turn("a"):
                pass
        await crowd.dials("b1", "b2")
        assert crowd.line.waiting == 4
        with pytest.raises(HandshakeQueueFull):
            async with crowd.line.turn("c"):
                pass

    told(story, at_once=1, per_address=1, waiting=4)
