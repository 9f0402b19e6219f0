"""A scrub reads everything once in a round, as slowly as it is told to. What cannot be read stops nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from holdfast.blobs.errors import StoreGone
from holdfast.blobs.keys import Stored
from holdfast.blobs.store import Condition
from holdfast.orchestrator.content import scrub
from holdfast.orchestrator.content.damage import DamageRecord
from holdfast.orchestrator.content.scrub import Scrubber
from holdfast.orchestrator.metrics import Metrics

pytestmark = pytest.mark.spec("J6")

RATE = 1_000


class FakeStore:
    def __init__(self, sizes: dict[str, int], gone: str = "") -> None:
        self.read: list[str] = []
        self._sizes = sizes
        self._gone = gone

    async def list(self, prefix: str) -> AsyncIterator[list[Stored]]:
        assert prefix == "owned/"
        for key, size in self._sizes.items():
            yield [Stored(key, size, 0)]

    async def scrub(self, key: str) -> Condition:
        if key == self._gone:
            raise StoreGone("the disk is away")
        self.read.append(key)
        return Condition.SOUND


class FakeLeader:
    trouble = ""


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(scrub.asyncio, "sleep", sleep)
    return pauses


def scrubber(store: FakeStore, leader: FakeLeader | None = None) -> Scrubber:
    metrics = Metrics()
    return Scrubber(cast(Any, store), DamageRecord(metrics), cast(Any, leader or FakeLeader()), metrics, RATE)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_everything_is_read_once_at_the_rate_that_was_set(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(scrub.random, "randrange", lambda _: first)
    store = FakeStore({"a": 500, "b": 2_000, "c": 10})
    asyncio.run(scrubber(store).round())
    assert store.read == ["abc"[(first + n) % 3] for n in range(3)]
    assert sorted(slept) == [0.01, 0.5, 2.0]


def test_an_empty_store_is_read_at_once(slept: list[float]) -> None:
    reader = scrubber(FakeStore({}))
    asyncio.run(reader.round())
    assert slept == [] and "0 of 0 read again, last round 0 min ago" in reader.finding().says


def test_what_cannot_be_read_now_is_passed_over(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub.random, "randrange", lambda _: 0)
    store = FakeStore({"a": 500, "b": 2_000}, gone="a")
    asyncio.run(scrubber(store).round())
    assert store.read == ["b"]
    assert slept == [scrub.AGAIN_S, 0.5, 2.0]


def test_only_a_leader_scrubs(slept: list[float]) -> None:
    store, leader = FakeStore({"a": 500}), FakeLeader()
    leader.trouble = "not leading"
    asyncio.run(scrubber(store, leader).round())
    assert store.read == []
