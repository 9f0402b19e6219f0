"""The space that only the store may use, and what is cleared away when space is short."""

import asyncio
from collections import namedtuple
from pathlib import Path

import pytest

from holdfast.blobs import folder
from holdfast.blobs.errors import StoreSlow
from holdfast.blobs.keys import Stored, client_uploader, incoming_key, owned_key, owner_hash
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.content.disk_watch import DiskWatch
from holdfast.orchestrator.content.sweep import abandoned
from holdfast.orchestrator.content.upload_counts import STALE_MS
from holdfast.state import StoreFailed
from holdfast.state import reserve as reserve_module
from holdfast.state.reserve import LOW_BYTES, RESERVE_BYTES, StoreReserve

pytestmark = pytest.mark.spec("A12", "J14")

MIB = 1 << 20
Disk = namedtuple("Disk", "f_bavail f_frsize f_blocks")


class Space:
    """A disk with this much space, of which this much is free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.total = 0, 0
        monkeypatch.setattr(reserve_module.os, "statvfs", lambda _: Disk(self.free, 1, self.total))

    def is_(self, free: int, total: int) -> None:
        self.free, self.total = free, total


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    return Space(monkeypatch)


@pytest.mark.parametrize(
    ("total", "size", "low"), [(20 * MIB, MIB, MIB), (1 << 40, RESERVE_BYTES, LOW_BYTES)], ids=["small", "large"]
)
def test_the_reserve_is_held_while_others_have_space_and_given_up_when_there_is_none(
    space: Space, tmp_path: Path, total: int, size: int, low: int
) -> None:
    reserve, file = StoreReserve(tmp_path / "state.db"), tmp_path / "state.db.reserve"
    space.is_(size + 2 * low - 1, total)
    assert not reserve.hold() and not file.exists()
    space.is_(size + 2 * low, total)
    assert reserve.hold() and file.stat().st_size == size and file.stat().st_blocks * 512 >= size
    # what is held stays held, also when space is short, until a commit fails for lack of it
    space.is_(0, total)
    assert reserve.hold()
    space.is_(low, total)
    assert not reserve.release() and file.exists()
    space.is_(low - 1, total)
    assert reserve.release() and not file.exists()
    assert not reserve.release(), "it is given up once"
    # and one that is too small is made whole
    file.write_bytes(b"x")
    space.is_(size + 2 * low, total)
    assert reserve.hold() and file.stat().st_size == size


def test_nothing_new_is_taken_when_little_space_is_left_and_none_inside_the_store(space: Space, tmp_path: Path) -> None:
    inside = [0]
    reserve = StoreReserve(tmp_path / "state.db", lambda: inside[0])
    space.is_(MIB, 20 * MIB)
    assert reserve.low() == ""
    space.is_(MIB - 1, 20 * MIB)
    assert reserve.low().startswith("0 MiB are left on its disk")
    inside[0] = 1
    assert reserve.low() == ""


def test_what_is_new_needs_its_size_in_the_log_and_in_the_file(space: Space, tmp_path: Path) -> None:
    reserve = StoreReserve(tmp_path / "state.db")
    space.is_(MIB + 200, 20 * MIB)
    assert reserve.low(100) == ""
    assert reserve.low(101) != ""


def test_commits_are_small_while_the_disk_is_short_whatever_is_inside_the_store(space: Space, tmp_path: Path) -> None:
    reserve = StoreReserve(tmp_path / "state.db", lambda: 1 << 40)
    space.is_(MIB, 20 * MIB)
    assert not reserve.short()
    space.is_(MIB - 1, 20 * MIB)
    assert reserve.short() and reserve.low() == ""


def test_a_store_elsewhere_has_no_reserve_here() -> None:
    reserve = StoreReserve(None)
    assert (reserve.hold(), reserve.release(), reserve.low(), reserve.short()) == (False, False, "", False)


def test_only_what_nobody_will_ask_about_is_abandoned() -> None:
    now_ms, sha = 10**12, "a" * 64

    def stored(key: str, age_ms: int = 0) -> Stored:
        return Stored(key, 1, now_ms - age_ms)

    ann, bob = client_uploader("ann"), client_uploader("bob")
    ended, old = stored(incoming_key("att_ended.1", sha)), stored(incoming_key(bob, sha), STALE_MS)
    kept = [
        stored(incoming_key("att_live.1", sha), STALE_MS), stored(incoming_key(ann, sha), STALE_MS),
        stored(incoming_key(bob, "b" * 64), STALE_MS - 1), stored(owned_key(owner_hash("ann"), sha), STALE_MS),
    ]  # fmt: skip
    found = abandoned([ended, old, *kept], {"att_live.1"}, {ann, "att_ended.1"}, now_ms)
    assert found == [ended.key, old.key]


def test_space_is_freed_before_uploads_are_refused_and_only_as_long_as_it_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = [29]
    monkeypatch.setattr(folder.os, "statvfs", lambda _: Disk(space[0], 1, 100))
    cleared: list[str] = []

    async def first() -> int:
        cleared.append("first")
        space[0] = 30
        return 1

    async def second() -> int:
        cleared.append("second")
        return 0

    watch = DiskWatch(tmp_path, StoreReserve(None), {"first": first, "second": second})
    asyncio.run(watch.look())
    assert cleared == ["first"]
    asyncio.run(watch.look())
    assert cleared == ["first"]


@pytest.mark.parametrize(
    "wrong", [OSError("full"), StoreFailed("away"), Unavailable("busy", "later"), StoreSlow("slow")]
)
def test_one_way_to_free_space_that_fails_keeps_no_other_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    monkeypatch.setattr(folder.os, "statvfs", lambda _: Disk(0, 1, 100))
    tried: list[str] = []

    async def first() -> int:
        raise wrong

    async def second() -> int:
        tried.append("second")
        return 1

    asyncio.run(DiskWatch(tmp_path, StoreReserve(None), {"first": first, "second": second}).look())
    assert tried == ["second"]
