"""The cache gives back what was put in or nothing, and never grows beyond its bound."""

from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from holdfast.blobs import BlobCache, sha_of
from holdfast.blobs.errors import BlobMissing

pytestmark = pytest.mark.spec("J1", "N13")


def blobs(count: int, size: int = 100) -> dict[str, bytes]:
    made = [bytes([i]) * size for i in range(count)]
    return {sha_of(data): data for data in made}


def test_what_is_put_in_comes_back_also_in_another_process(tmp_path: Path) -> None:
    some = blobs(3)
    for sha, data in some.items():
        BlobCache(tmp_path, 1_000).put(sha, data)
    again = BlobCache(tmp_path, 1_000)
    assert again.total_bytes == 300
    assert {sha: again.get(sha) for sha in some} == some
    assert again.get(sha_of(b"stranger")) is None
    with pytest.raises(BlobMissing):
        again.read(sha_of(b"stranger"))


def test_a_damaged_blob_is_a_missing_one(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1_000)
    (sha, data), *_ = blobs(1).items()
    cache.put(sha, data)
    (tmp_path / sha).write_bytes(b"\xff" + data[1:])
    assert cache.get(sha) is None
    assert sha not in cache and cache.total_bytes == 0 and not (tmp_path / sha).exists()
    cache.put(sha, data)
    assert cache.get(sha) == data
    (tmp_path / sha).unlink()
    assert cache.get(sha) is None


def test_the_least_recently_used_goes_first_and_the_order_is_remembered(tmp_path: Path) -> None:
    some = blobs(4)
    first, second, third, fourth = some
    cache = BlobCache(tmp_path, 300)
    for sha in (first, second, third):
        cache.put(sha, some[sha])
    assert cache.get(first) is not None
    cache.put(fourth, some[fourth])
    assert [sha in cache for sha in (first, second, third, fourth)] == [True, False, True, True]
    smaller = BlobCache(tmp_path, 200)
    assert [sha in smaller for sha in (first, third, fourth)] == [True, False, True]
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) == 200


def test_what_is_larger_than_the_whole_cache_is_not_kept(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 50)
    (sha, data), *_ = blobs(1).items()
    cache.put(sha, data)
    assert cache.get(sha) is None and cache.total_bytes == 0


def test_remains_of_a_killed_process_are_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".new-0123").write_bytes(b"half")
    (tmp_path / "README").write_bytes(b"not ours")
    assert BlobCache(tmp_path, 50).total_bytes == 0
    assert [f.name for f in tmp_path.iterdir()] == ["README"]


def test_a_cache_that_cannot_write_is_slow_and_not_broken(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "c", 1_000)
    (tmp_path / "c").rmdir()
    (sha, data), *_ = blobs(1).items()
    cache.put(sha, data)
    assert cache.get(sha) is None


def test_a_cache_that_is_made_smaller_shrinks_at_once(tmp_path: Path) -> None:
    some = blobs(3)
    cache = BlobCache(tmp_path, 300)
    for sha, data in some.items():
        cache.put(sha, data)
    cache.limit(200)
    assert [sha in cache for sha in some] == [False, True, True]
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) == 200


@pytest.mark.parametrize(("free_blocks", "kept"), [(11, True), (10, False)])
def test_a_cache_leaves_the_rest_of_the_disk_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_blocks: int, kept: bool
) -> None:
    cache = BlobCache(tmp_path, 1_000, bytes_free_min=1_000)
    disk = SimpleNamespace(f_bavail=free_blocks, f_frsize=100)
    monkeypatch.setattr("holdfast.blobs.cache.os.statvfs", lambda _: disk)
    (sha, data), *_ = blobs(1).items()
    cache.put(sha, data)
    assert (sha in cache) is kept


def test_several_threads_keep_the_bound(tmp_path: Path) -> None:
    some = blobs(60)
    cache = BlobCache(tmp_path, 1_000)
    wrong: list[str] = []

    def work() -> None:
        for sha, data in some.items():
            cache.put(sha, data)
            if cache.get(sha) not in (None, data):
                wrong.append(sha)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.total_bytes == sum(f.stat().st_size for f in tmp_path.iterdir()) <= 1_000
