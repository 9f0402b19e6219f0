"""Many small files and one very large one go the whole way; memory does not grow with them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from blob_stores import OWNER, UPLOADER

from holdfast.blobs import (
    CHUNK_BYTES,
    Blob,
    FolderSource,
    FolderStore,
    Manifest,
    Unpacking,
    accept,
    incoming_key,
    owned_key,
    scan,
)
from holdfast.blobs.store import each

pytestmark = pytest.mark.spec("J1", "J10")

SMALL_FILES = 20_000
"""A fifth of what is measured in bench/blobs.py: enough for everything that grows with their number to show."""


async def there_and_back(folder: Path, manifest: Manifest, store: FolderStore, into: Path) -> None:
    await store.probe()
    source = FolderSource(folder, manifest)

    async def send(blob: Blob) -> None:
        data = await asyncio.to_thread(source.read, blob.sha)
        await store.put(incoming_key(UPLOADER, blob.sha), bytes(data))

    async def fetch(blob: Blob) -> None:
        data = await store.get(owned_key(OWNER, blob.sha), bytes_max=blob.size)
        await asyncio.to_thread(unpacking.put, blob.sha, data)

    await each(manifest.blobs, send)
    await store.put(incoming_key(UPLOADER, manifest.name), manifest.to_bytes())
    accepted = await accept(store, UPLOADER, OWNER, manifest.name)
    assert accepted.missing == ()
    unpacking = Unpacking(into, manifest)
    await each(unpacking.prepare(), fetch)
    unpacking.finish()


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """Making and deleting so many files on a disk takes longer than anything that is tested here."""
    place = tmp_path / "memory"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=0700", "holdfast-test", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_many_small_files_are_a_few_blobs(memory_disk: Path) -> None:
    folder = memory_disk / "many"
    for number in range(SMALL_FILES):
        if number % 200 == 0:
            (folder / f"d{number // 200:03}").mkdir(parents=True)
        (folder / f"d{number // 200:03}" / f"{number:05}").write_bytes(b"%d " % number * 30)
    manifest = scan(folder).manifest
    assert len(manifest.entries) == SMALL_FILES
    assert len(manifest.blobs) <= 8, "one request for each would take minutes"
    assert len(manifest.to_bytes()) < 150 * SMALL_FILES
    asyncio.run(there_and_back(folder, manifest, FolderStore(memory_disk / "store"), memory_disk / "down"))
    assert scan(memory_disk / "down").manifest == manifest
    kept = Unpacking(memory_disk / "down", manifest)
    assert kept.prepare() == (), "all of it is there already"


def test_a_large_file_with_holes_keeps_them(tmp_path: Path) -> None:
    """A gigabyte that is nearly all hole, as checkpoints and disk images are."""
    size = 256 * CHUNK_BYTES + 5
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "image").open("wb") as file:
        file.write(os.urandom(1000))
        file.seek(100 * CHUNK_BYTES - 10)
        file.write(os.urandom(20))
        file.truncate(size)
    manifest = scan(folder).manifest
    assert manifest.total_bytes == size and len(manifest.blobs) == 5
    asyncio.run(there_and_back(folder, manifest, FolderStore(tmp_path / "store"), tmp_path / "down"))
    down = tmp_path / "down/image"
    assert down.stat().st_size == size and down.stat().st_blocks * 512 < 20 * CHUNK_BYTES
    assert subprocess.run(["cmp", str(down), str(folder / "image")]).returncode == 0


def test_memory_is_bounded_by_chunks_in_flight(memory_disk: Path, tmp_path: Path) -> None:
    """Given a file of 100 chunks, then reading, hashing, reading again and unpacking it need a dozen at a time."""
    with (memory_disk / "large").open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(64) * (CHUNK_BYTES // 64))
    program = """
        import json, resource, sys
        from pathlib import Path
        from holdfast.blobs import FolderSource, scan, unpack

        def peak_mib():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        folder = Path(sys.argv[1])
        before = peak_mib()
        manifest = scan(folder).manifest
        scanned = peak_mib()
        unpack(manifest, Path(sys.argv[2]), FolderSource(folder, manifest))
        print(json.dumps([len(manifest.blobs), scanned - before, peak_mib() - before]))
    """
    command = [sys.executable, "-c", dedent(program), str(memory_disk), str(tmp_path / "down")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    blobs, scanning, both = json.loads(done.stdout)
    assert blobs == 100
    assert scanning < 60 and both < 80
