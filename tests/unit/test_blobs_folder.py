"""The folder store by itself: whole or not there, verified before it is owned, synced before it is called so."""

import asyncio
import errno
import os
import subprocess
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from holdfast.blobs import FolderStore, Grant, folder, incoming_key, owned_key, owner_hash, sha_of
from holdfast.blobs import folder as folder_module
from holdfast.blobs.errors import (
    BlobMissing,
    Damaged,
    LinkRefused,
    Mismatch,
    OverQuota,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreSlow,
)
from holdfast.blobs.folder import STALE_S
from holdfast.blobs.signing import LinkSigner
from holdfast.blobs.store import Condition
from holdfast.blobs.verified import verify
from holdfast.orchestrator.logs.log_files import DISK_RESERVE_BYTES

pytestmark = pytest.mark.spec("J1", "N13")

T = TypeVar("T")
OWNER = owner_hash("ann")
UPLOADER = "att_0123456789abcd.1"


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


def fresh(size: int = 1000) -> tuple[str, bytes]:
    data = os.urandom(size)
    return sha_of(data), data


@pytest.mark.spec("J10")
def test_only_verified_bytes_are_promoted(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    sha, data = fresh()
    source, target = incoming_key(UPLOADER, sha), owned_key(OWNER, sha)
    for evil in (bytes(1000), data[:-1], data + b"x", b""):
        run(store.put(source, evil))
        with pytest.raises(Mismatch):
            run(store.promote(source, target, len(data)))
        assert run(store.head(target)) is None
    run(store.put(source, data))
    run(store.promote(source, target, len(data)))
    assert run(store.get(target, bytes_max=1000)) == data
    with pytest.raises(BlobMissing):
        run(store.get(source, bytes_max=1000))


def test_bytes_are_what_their_name_says_or_a_mismatch() -> None:
    sha, data = fresh()
    assert verify(sha, 1000, data).data == data
    for size, evil in ((1000, bytes(1000)), (999, data), (1001, data), (1000, data[:-1])):
        with pytest.raises(Mismatch):
            verify(sha, size, evil)


async def parts(*data: bytes) -> AsyncIterator[bytes]:
    for part in data:
        yield part


def test_what_comes_in_is_verified_as_it_comes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    sha, data = fresh()
    grant = Grant("PUT", incoming_key(UPLOADER, sha), len(data), 0)
    for body in ([data, b"x"], [data[:-1]], [], [bytes(1000)]):
        with pytest.raises(Mismatch):
            run(store.receive(grant, parts(*body)))
    with pytest.raises(LinkRefused):
        run(store.receive(replace(grant, method="GET"), parts(data)))
    assert run(store.head(grant.key)) is None
    run(store.receive(grant, parts(data[:300], data[300:])))
    assert run(store.get(grant.key, bytes_max=1000)) == data
    assert list((tmp_path / "s/tmp").iterdir()) == []


def test_what_is_owned_is_synced_before_it_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, then name, then folder: in the order in which a loss of power could take them."""
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    steps: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(fd: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")
        real_sync(fd)

    def rename(source: Path, target: Path) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr("holdfast.blobs.folder.os.fsync", sync)
    monkeypatch.setattr("holdfast.blobs.folder.os.replace", rename)
    sha, data = fresh()
    run(store.put(incoming_key("probe", sha), data))
    steps.clear()
    run(store.promote(incoming_key("probe", sha), owned_key(OWNER, sha), len(data)))
    assert steps[0] == "sync file" and steps[-2:] == ["rename", "sync folder"]
    assert steps.count("sync folder") == 4, "the names of new folders as well"
    steps.clear()
    run(store.put(owned_key(OWNER, sha), data))
    assert steps == ["sync file", "rename", "sync folder"]


@pytest.mark.spec("J14")
def test_old_remains_of_a_killed_process_are_cleared_away_whatever_date_their_files_have(tmp_path: Path) -> None:
    served = [3 * STALE_S]
    store = FolderStore(tmp_path / "s", LinkSigner(bytes(32), "", lambda: served[0]))
    run(store.probe())

    def left() -> Path:
        path = store._draft(served[0])  # pyright: ignore[reportPrivateUsage]
        path.write_bytes(b"half")
        return path

    first = left()
    served[0] += 1
    second = left()
    os.utime(second, (0, 0))
    for name in ("0123456789abcdef", "later-0123", "77"):
        (tmp_path / "s/tmp" / name).write_bytes(b"of an earlier release")
    served[0] += STALE_S
    run(store.probe())
    assert [p.name for p in (tmp_path / "s/tmp").iterdir()] == [second.name]
    assert not first.exists()


@pytest.mark.spec("J14")
def test_what_is_stored_is_dated_by_the_time_that_was_served(tmp_path: Path) -> None:
    served = [1_000.0]
    store = FolderStore(tmp_path / "s", LinkSigner(bytes(32), "", lambda: served[0]))
    sha, data = fresh(10)
    run(store.probe())
    run(store.put(incoming_key(UPLOADER, sha), data))
    there = run(store.head(incoming_key(UPLOADER, sha)))
    assert there is not None and there.modified_ms == store.now_ms() == 1_000_000
    served[0] = 2_000.5
    run(store.promote(incoming_key(UPLOADER, sha), owned_key(OWNER, sha), 10))
    there = run(store.head(owned_key(OWNER, sha)))
    assert there is not None and there.modified_ms == store.now_ms() == 2_000_500


def test_a_store_without_a_signer_signs_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused):
        run(FolderStore(tmp_path).sign("GET", incoming_key(UPLOADER, sha_of(b"")), size=1, expires_s=1))


def test_a_full_disk_is_called_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "holdfast-test", str(disk)], check=True)
    try:
        store = FolderStore(disk / "s")
        run(store.probe())
        small = fresh()
        run(store.put(incoming_key(UPLOADER, small[0]), small[1]))
        sha, data = fresh(3_000_000)
        with pytest.raises(StoreFull) as caught:
            run(store.put(incoming_key(UPLOADER, sha), data))
        assert caught.value.code == "store_full" and caught.value.passing
        with pytest.raises(StoreFull):
            run(store.receive(Grant("PUT", incoming_key(UPLOADER, sha), len(data), 0), parts(data)))
        assert list((disk / "s/tmp").iterdir()) == [], "what did not fit takes no room"
        assert run(store.get(incoming_key(UPLOADER, small[0]), bytes_max=1000)) == small[1]
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def granted(size: int, most: int, uploader: str = UPLOADER) -> tuple[Grant, bytes]:
    sha, data = fresh(size)
    return Grant("PUT", incoming_key(uploader, sha), size, 0, most), data


@pytest.mark.spec("A12")
def test_an_uploader_stores_as_much_as_its_urls_say_and_no_more(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    first, data = granted(600, 1000)
    run(store.receive(first, parts(data)))
    second, more = granted(401, 1000)
    with pytest.raises(OverQuota) as caught:
        run(store.receive(second, parts(more)))
    assert caught.value.passing
    assert run(store.head(second.key)) is None and not list((tmp_path / "s/tmp").iterdir())
    # another one has its own, and what was sent twice counts once
    run(store.receive(*told(granted(1000, 1000, "att_other.1"))))
    third, small = granted(200, 1000)
    for _ in range(5):
        run(store.receive(third, parts(small)))
    run(store.receive(*told(granted(200, 1000))))
    # and what was accepted does not count any more, also for a store that is opened later
    sha = first.key.rpartition("/")[2]
    run(store.promote(first.key, owned_key(OWNER, sha), 600))
    later = FolderStore(tmp_path / "s")
    with pytest.raises(OverQuota):
        run(later.receive(*told(granted(601, 1000))))
    run(later.receive(*told(granted(600, 1000))))


def told(grant: tuple[Grant, bytes]) -> tuple[Grant, AsyncIterator[bytes]]:
    return grant[0], parts(grant[1])


@pytest.mark.spec("A12")
def test_uploads_at_the_same_time_count_before_they_end(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s")
    grant, data = granted(600, 1000)

    async def story() -> None:
        await store.probe()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            begun.set()
            await go_on.wait()
            yield data

        first = asyncio.create_task(store.receive(grant, slowly()))
        await begun.wait()
        # when the same URL is used again meanwhile, then there is no second copy beside the first
        with pytest.raises(OverQuota):
            await store.receive(grant, parts(data))
        go_on.set()
        await first
        assert await store.get(grant.key, bytes_max=600) == data

    run(story())


@pytest.mark.spec("A12")
def test_files_leave_room_on_the_disk_for_logs_and_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk = namedtuple("Disk", "f_bavail f_frsize f_blocks")
    store = FolderStore(tmp_path / "s")
    run(store.probe())
    for free, total in ((folder.FREE_BYTES_MIN, 100 * folder.FREE_BYTES_MIN), (150, 1_000)):
        monkeypatch.setattr(folder.os, "statvfs", lambda _, free=free, total=total: Disk(free, 1, total))
        run(store.receive(*told(granted(100, 0))))
        monkeypatch.setattr(folder.os, "statvfs", lambda _, free=free, total=total: Disk(free - 1, 1, total))
        with pytest.raises(StoreFull):
            run(store.receive(*told(granted(100, 0))))
    assert not list((tmp_path / "s/tmp").iterdir())
    assert folder.FREE_BYTES_MIN > DISK_RESERVE_BYTES, "logs come after files"


def test_a_folder_that_is_no_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreGone):
        run(FolderStore(tmp_path / "file").probe())


def test_a_slow_disk_is_called_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    store = FolderStore(tmp_path / "s", timeout_s=0.2)
    over = threading.Event()
    monkeypatch.setattr(store, "_get", lambda key, bytes_max: over.wait(20))

    async def story() -> None:
        with pytest.raises(StoreSlow) as caught:
            await store.get(incoming_key(UPLOADER, sha_of(b"")), bytes_max=1)
        over.set()
        assert caught.value.code == "store_slow"

    run(story())


# --- content that changes by itself ---


def owned(tmp_path: Path) -> tuple[FolderStore, str, bytes, list[str]]:
    store = FolderStore(tmp_path)
    sha, data = fresh()
    key = owned_key(owner_hash("ada"), sha)
    found: list[str] = []
    store.on_damage = found.append
    run(store.probe())
    run(store.put(key, data))
    return store, key, data, found


@pytest.mark.spec("J6", "J7")
def test_damaged_content_is_set_aside_named_and_replaced(tmp_path: Path) -> None:
    store, key, data, found = owned(tmp_path)
    assert run(store.scrub(key)) is Condition.SOUND and run(store.get(key, bytes_max=1000)) == data
    (tmp_path / key).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Damaged):
        run(store.get(key, bytes_max=1000))
    # then its key is free, everybody is told why, and the bytes are kept aside for a person
    assert run(store.head(key)) is None and found == [key]
    assert run(store.scrub(key)) is Condition.DAMAGED
    with pytest.raises(Damaged):
        run(store.get(key, bytes_max=1000))
    assert [path.stat().st_size for path in (tmp_path / "damaged").iterdir()] == [1000]
    run(store.put(key, data))
    assert run(store.get(key, bytes_max=1000)) == data and list((tmp_path / "damaged").iterdir()) == []
    assert found == [key]


def test_content_that_is_not_there_is_absent_and_incoming_content_is_not_scrubbed(tmp_path: Path) -> None:
    store, key, _, _ = owned(tmp_path)
    run(store.delete([key]))
    assert run(store.scrub(key)) is Condition.ABSENT
    with pytest.raises(BlobMissing):
        run(store.get(key, bytes_max=1000))
    with pytest.raises(LinkRefused):
        run(store.scrub(incoming_key("probe", "a" * 64)))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_read_that_fails_in_passing_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    store, key, data, found = owned(tmp_path)
    hashes, failures = folder_module._hash, [OSError(errno.EIO, "input/output error")] * times

    def failing(file: int) -> str:
        if failures:
            raise failures.pop()
        return hashes(file)

    monkeypatch.setattr(folder_module, "_hash", failing)
    assert run(store.scrub(key)) is (Condition.SOUND if times == 1 else Condition.DAMAGED)
    assert found == ([] if times == 1 else [key])
    assert data


def test_another_error_of_the_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, key, data, found = owned(tmp_path)

    def failing(file: int) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(folder_module, "_hash", failing)
    with pytest.raises(StoreGone):
        run(store.scrub(key))
    assert run(store.get(key, bytes_max=1000)) == data and found == []


def test_what_is_damaged_is_kept_for_a_month(tmp_path: Path) -> None:
    store, key, _, _ = owned(tmp_path)
    (tmp_path / key).write_bytes(b"x")
    run(store.scrub(key))
    (aside,) = (tmp_path / "damaged").iterdir()
    run(store.probe())
    assert aside.exists()
    old = time.time() - folder_module.DAMAGED_S
    os.utime(aside, (old + 60, old + 60))
    run(store.probe())
    assert aside.exists()
    os.utime(aside, (old - 60, old - 60))
    run(store.probe())
    assert not aside.exists()
