"""Parties that do not trust each other take turns, and none works for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content import fair_queue
from holdfast.orchestrator.content.fair_queue import FairQueue, WorkBudget

pytestmark = pytest.mark.spec("A12", "N13")


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(story(), 30))  # type: ignore[arg-type]


class Work:
    """Requests of parties, each of which ends when it is told to."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, name: str) -> None:
        """`a1`: request 1 of party a."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._do(name))

    async def _do(self, name: str) -> None:
        async with self.queue.turn(name[0]):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> list[str]:
        """What has begun after this one has ended."""
        self._ends[name].set()
        await self.tasks[name]
        return await self.settled()

    async def settled(self) -> list[str]:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.began


def test_parties_take_turns_however_much_one_of_them_asks_for() -> None:
    async def story() -> None:
        work = Work(FairQueue(1))
        for name in ("a1", "a2", "a3", "b1", "c1"):
            work.ask(name)
        assert await work.settled() == ["a1"]
        assert await work.end("a1") == ["a1", "b1"]
        assert await work.end("b1") == ["a1", "b1", "c1"]
        assert await work.end("c1") == ["a1", "b1", "c1", "a2"]
        assert await work.end("a2") == ["a1", "b1", "c1", "a2", "a3"]
        await work.end("a3")
        assert not work.queue._waiting and not work.queue._running

    run(story)


def test_a_party_has_no_more_slots_than_its_share_although_others_are_free() -> None:
    async def story() -> None:
        work = Work(FairQueue(3, each=2))
        for name in ("a1", "a2", "a3", "b1", "b2"):
            work.ask(name)
        assert await work.settled() == ["a1", "a2", "b1"]
        assert await work.end("b1") == ["a1", "a2", "b1", "b2"]
        assert await work.end("a2") == ["a1", "a2", "b1", "b2", "a3"]

        for name in ("a1", "a3", "b2"):
            await work.end(name)

    run(story)


def test_a_request_that_is_given_up_leaves_its_slot_and_its_place_to_others() -> None:
    async def story() -> None:
        work = Work(FairQueue(1))
        for name in ("a1", "a2", "b1"):
            work.ask(name)
        await work.settled()
        work.tasks["b1"].cancel()
        assert await work.settled() == ["a1"]
        work.tasks["a1"].cancel()
        assert await work.settled() == ["a1", "a2"]
        await work.end("a2")
        assert not work.queue._waiting and not work.queue._running

    run(story)


def test_a_request_that_is_given_up_in_the_moment_of_its_turn_holds_no_slot() -> None:
    async def story() -> None:
        work = Work(FairQueue(1))
        for name in ("a1", "b1", "c1"):
            work.ask(name)
        await work.settled()
        work._ends["a1"].set()
        await asyncio.sleep(0)  # a1 has ended, and b1 has the slot and has not begun
        work.tasks["b1"].cancel()
        assert await work.settled() == ["a1", "c1"]
        await work.end("c1")
        assert not work.queue._running

    run(story)


def test_no_party_has_more_requests_waiting_than_it_may() -> None:
    async def story() -> None:
        work = Work(FairQueue(1, waiting_max=2))
        for name in ("a1", "a2", "a3", "a4", "b1"):
            work.ask(name)
        await work.settled()
        with pytest.raises(Unavailable) as refused:
            await work.tasks["a4"]
        assert (refused.value.code, refused.value.status) == ("busy", 503)
        assert await work.end("a1") == ["a1", "b1"]
        for name in ("b1", "a2", "a3"):
            await work.end(name)

    run(story)


def test_a_budget_is_used_up_and_refills_slowly() -> None:
    now = [100.0]
    budget = WorkBudget(lambda: now[0], burst_s=10.0, refill=0.5)
    budget.need("a")
    budget.spend("a", 9.0)
    budget.need("a")
    assert budget.left_s("a") == 1.0
    budget.spend("a", 3.0)
    with pytest.raises(Unavailable) as refused:
        budget.need("a")
    assert (refused.value.code, refused.value.retry_after_s) == ("busy", 7)
    budget.need("b")
    now[0] += 4
    with pytest.raises(Unavailable):
        budget.need("a")  # exactly nothing is left
    now[0] += 1
    assert budget.left_s("a") == 0.5
    budget.need("a")
    now[0] += 1_000
    assert budget.left_s("a") == 10.0


def test_budgets_of_those_who_used_most_are_remembered_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "PARTIES_MAX", 4)
    budget = WorkBudget(lambda: 0.0, burst_s=10.0)
    for number, name in enumerate("abcde"):
        budget.spend(name, 5.0 - number)
    assert [budget.left_s(name) for name in "abcde"] == [5.0, 6.0, 10.0, 10.0, 10.0]
