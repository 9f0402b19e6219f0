"""Content reaches the store and comes back, whatever the store, the line and the neighbours do meanwhile."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from blob_stores import OWNER, CutTheLine, FolderDoor, StoreDoor, held_up, rclone

import holdfast
from holdfast.blobs import (
    CHUNK_BYTES,
    Blob,
    BlobCache,
    BytesSource,
    FirstOf,
    FolderSource,
    Source,
    Unpacking,
    owned_key,
    scan,
    sha_of,
)
from holdfast.blobs.errors import BlobError, BlobMissing, FolderChanged, Mismatch, TransferExpired
from holdfast.blobs.lines import ThreadTransport
from holdfast.blobs.s3 import S3Store
from holdfast.blobs.transfer import TransferPatience, TransferProgress, download, upload
from holdfast.blobs.verified import VerifiedBytes
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("J1", "N13", "J10")

T = TypeVar("T")
QUICK = TransferPatience(give_up_s=60, first_wait_s=0.01, longest_wait_s=0.05, blob_s=20)
CHUNKS = 3


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderDoor]:
    server = FolderDoor(tmp_path / "store")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def door(server: FolderDoor) -> StoreDoor:
    return StoreDoor(server.store)


class Package:
    """A folder with a few chunks and packs, ready to be sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "large").write_bytes(os.urandom(CHUNKS * CHUNK_BYTES - 100))
        (folder / "sub").mkdir()
        for i in range(50):
            (folder / "sub" / f"{i:02}").write_bytes(os.urandom(100))
        self.manifest = scan(folder).manifest
        data = self.manifest.to_bytes()
        self.name = sha_of(data)
        self.blobs = (*self.manifest.blobs, Blob(self.name, len(data)))
        self.source: Source = FirstOf(BytesSource({self.name: data}), FolderSource(folder, self.manifest))


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path / "package")


async def send(package: Package, door: StoreDoor, source: Source | None = None, **more: Any) -> TransferProgress:
    async with httpx.AsyncClient(transport=ThreadTransport()) as http:
        return await upload(package.blobs, source or package.source, door, http, **{"patience": QUICK, **more})


async def bring(package: Package, door: StoreDoor, into: Path, **more: Any) -> TransferProgress:
    unpacking = Unpacking(into, package.manifest)
    async with httpx.AsyncClient(transport=ThreadTransport()) as http:
        done = await download(unpacking.prepare(), unpacking.put, door, http, **{"patience": QUICK, **more})
    unpacking.finish()
    return done


async def delivered(package: Package, door: StoreDoor) -> None:
    await send(package, door)
    assert (await door.accept(package.name)).missing == ()


def same(package: Package, folder: Path) -> bool:
    return scan(folder).manifest == package.manifest


# --- the plain way ---


@pytest.mark.parametrize("kind", ["folder", "rclone"])
def test_a_folder_goes_up_and_comes_down(
    kind: str, package: Package, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "folder":
            door = StoreDoor(request.getfixturevalue("server").store)
        else:
            door = StoreDoor(S3Store(stack.enter_context(rclone(tmp_path / "rclone"))))
        told: list[TransferProgress] = []
        done = run(send(package, door, progress=told.append))
        total = sum(b.size for b in package.blobs)
        assert done == TransferProgress(total, total, len(package.blobs), len(package.blobs), total)
        assert [p.bytes_done for p in told] == sorted(p.bytes_done for p in told)
        assert told[0].bytes_done == 0 and told[-1] == done
        assert run(door.accept(package.name)).missing == ()

        again = run(send(package, door))
        assert again.bytes_moved == 0 and again.bytes_done == total, "nothing is uploaded twice"

        told.clear()
        run(bring(package, door, tmp_path / "down", progress=told.append))
        assert told[-1].bytes_done == told[-1].bytes_total == package.manifest.blob_bytes
        assert same(package, tmp_path / "down")


def test_no_more_is_in_flight_than_was_said(server: FolderDoor, door: StoreDoor, package: Package) -> None:
    flying = most = 0
    two = asyncio.Event()

    async def count(method: str, key: str) -> int:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        if flying == 2:
            two.set()
        await asyncio.wait_for(two.wait(), 60)  # the first one is there until the second comes
        await held_up(0.02)
        flying -= 1
        return 0

    server.fault = count
    run(send(package, door, patience=TransferPatience(at_once=2)))
    assert most == 2


# --- cuts ---


class CutAfter:
    """A source whose process dies after so many blobs."""

    def __init__(self, source: Source, blobs: int) -> None:
        self.source = source
        self.left = blobs

    def read(self, sha: str) -> bytes | bytearray:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.source.read(sha)


def test_an_upload_cut_at_every_chunk_goes_on_where_it_was(
    server: FolderDoor, door: StoreDoor, package: Package
) -> None:
    """Given a sender that dies after each single blob, when it starts again, then no blob is sent a second time."""
    for _ in package.blobs:
        with contextlib.suppress(KeyboardInterrupt):
            run(send(package, door, CutAfter(package.source, 1), patience=TransferPatience(at_once=1)))
    sent = Counter(sha for method, sha, status in server.served if method == "PUT" and status == 200)
    assert sent == Counter(b.sha for b in package.blobs)
    assert run(door.accept(package.name)).missing == ()


SENDER = """
import asyncio, sys
from pathlib import Path

import httpx
from blob_stores import StoreDoor

from holdfast.blobs import FolderSource, FolderStore, LinkSigner, scan
from holdfast.blobs.lines import ThreadTransport
from holdfast.blobs.transfer import TransferPatience, upload


async def main(folder, root, secret, port):
    manifest = scan(folder).manifest
    door = StoreDoor(FolderStore(root, LinkSigner(bytes.fromhex(secret), f"http://127.0.0.1:{port}/blobs")))
    async with httpx.AsyncClient(transport=ThreadTransport()) as http:
        await upload(manifest.blobs, FolderSource(folder, manifest), door, http, patience=TransferPatience(at_once=2))


asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
"""


def test_a_sender_killed_at_every_blob_leaves_nothing_half(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    """Given a process that is killed as each of its blobs arrives, then those that arrived stay and are whole."""
    words = [
        sys.executable,
        "-c",
        SENDER,
        str(package.folder),
        str(tmp_path / "store"),
        server.secret.hex(),
        str(server.port),
    ]
    # The sender imports this file, and the package from the same tree as this process.
    tree = Path(holdfast.__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{Path(__file__).parent}"}
    sender: list[subprocess.Popen[bytes]] = []
    killed: set[int] = set()

    async def kill(method: str, key: str) -> int:
        """Of what each had on its way, one comes through, or half of it: or all of it might be here too soon."""
        if method == "PUT" and len(sender) in killed:
            return 503
        if method == "PUT" and len(killed) < len(package.manifest.blobs):
            killed.add(len(sender))
            sender[-1].kill()
        return 0

    server.fault = kill
    for _ in range(3 * len(package.manifest.blobs)):
        sender.append(subprocess.Popen(words, env=env))
        if sender[-1].wait(120) == 0:
            break
    assert sender[-1].returncode == 0 and len(killed) == len(package.manifest.blobs)
    arrived = Counter(sha for method, sha, status in server.served if method == "PUT" and status == 200)
    assert set(arrived) == {b.sha for b in package.manifest.blobs}
    assert run(door.missing(package.manifest.blobs)) == []
    wait_for(lambda: not list((tmp_path / "store/tmp").iterdir()), "what came in half to be cleared away")


def test_a_line_cut_in_the_middle_of_every_blob_is_taken_up_again(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    run(delivered(package, door))
    cut: set[str] = set()

    async def cut_once(method: str, key: str) -> int:
        if method == "BODY" and key not in cut:
            cut.add(key)
            raise CutTheLine
        return 0

    server.fault = cut_once
    run(bring(package, door, tmp_path / "down"))
    assert len(cut) == len(package.manifest.blobs)
    assert same(package, tmp_path / "down")


def test_a_download_cut_at_every_chunk_goes_on_where_it_was(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    run(delivered(package, door))

    async def one_blob() -> None:
        unpacking = Unpacking(tmp_path / "down", package.manifest)
        left = 1

        def put(sha: str, data: VerifiedBytes) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            unpacking.put(sha, data)

        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            await download(unpacking.prepare(), put, door, http, patience=TransferPatience(at_once=1))
        unpacking.finish()

    for _ in package.manifest.blobs:
        with contextlib.suppress(KeyboardInterrupt):
            run(one_blob())
    assert same(package, tmp_path / "down")
    fetched = Counter(sha for method, sha, _ in server.served if method == "GET")
    # The blob in whose middle the process died is fetched again; no other is.
    assert fetched.total() <= 2 * len(package.manifest.blobs) - 1


# --- a store in trouble ---


def test_a_store_that_is_gone_for_a_while_is_waited_for(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    """Given the server stops after the second blob and comes back later, then the upload ends well by itself."""
    gone = threading.Event()

    def told(progress: TransferProgress) -> None:
        if progress.blobs_done >= 2:
            gone.set()

    def restart() -> None:
        assert gone.wait(30)
        server.stop()
        server.start()

    restarter = threading.Thread(target=restart)
    restarter.start()
    run(send(package, door, patience=QUICK, progress=told))
    restarter.join()
    assert run(door.accept(package.name)).missing == ()


@pytest.mark.parametrize("status", [500, 429, 507, 403, 400, 404])
def test_passing_answers_are_tried_again(
    status: int, server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    """Two bad answers for every blob, up and down."""
    bad: Counter[str] = Counter()

    async def twice(method: str, key: str) -> int:
        bad[method + key] += 1
        return status if bad[method + key] <= 2 and method != "BODY" else 0

    server.fault = twice
    run(delivered(package, door))
    run(bring(package, door, tmp_path / "down"))
    assert same(package, tmp_path / "down")


def test_a_full_store_is_waited_for_and_then_called_full(tmp_path: Path, package: Package) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m,mode=0700", "holdfast-test", str(disk)], check=True)
    server = FolderDoor(disk / "store")
    server.start()
    try:
        door = StoreDoor(server.store)
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(1 << 16)):
                pass
        impatient = TransferPatience(give_up_s=2, first_wait_s=0.05, longest_wait_s=0.1)
        with pytest.raises(TransferExpired) as caught:
            run(send(package, door, patience=impatient))
        assert caught.value.code == "store_full"
        assert "0 of" in caught.value.says and caught.value.hint

        def make_room() -> None:
            wait_for(lambda: [s for s in server.served if s[2] == 507][20:], "it to be tried for a while")
            (disk / "filler").unlink()

        freer = threading.Thread(target=make_room)
        freer.start()
        run(send(package, door))
        freer.join()
        assert run(door.accept(package.name)).missing == ()
    finally:
        server.stop()
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_blob_that_hangs_is_given_up_and_tried_again_with_more_time(
    server: FolderDoor, door: StoreDoor, package: Package
) -> None:
    hung: Counter[str] = Counter()

    async def hang_once(method: str, key: str) -> int:
        hung[key] += 1
        if hung[key] == 1:
            await held_up(150)
        return 0

    server.fault = hang_once
    began = time.monotonic()
    run(send(package, door, patience=TransferPatience(give_up_s=120, blob_s=2, first_wait_s=0.01, at_once=4)))
    assert time.monotonic() - began < 120
    assert min(hung.values()) == 2


def test_patience_has_an_end_that_says_why(server: FolderDoor, door: StoreDoor, package: Package) -> None:
    server.stop()
    short = TransferPatience(give_up_s=3, first_wait_s=0.05, longest_wait_s=0.1)
    with pytest.raises(TransferExpired) as caught:
        run(send(package, door, patience=short))
    assert caught.value.code == "store_gone" and caught.value.passing
    assert "signature" not in str(caught.value)


def test_a_whole_transfer_has_a_deadline_however_well_it_goes(
    server: FolderDoor, door: StoreDoor, package: Package
) -> None:
    """A store that takes a blob now and then keeps patience alive, but not for ever."""

    async def slow(method: str, key: str) -> int:
        await held_up(0.3)
        return 0

    server.fault = slow
    with pytest.raises(TransferExpired):
        run(send(package, door, patience=TransferPatience(deadline_s=0.7, at_once=1, first_wait_s=0.01)))


def test_a_transfer_that_ends_for_no_fault_of_the_store_is_called_expired(door: StoreDoor, package: Package) -> None:
    door.expires_s = 0  # whatever address is given opens nothing any more
    with pytest.raises(TransferExpired) as caught:
        run(send(package, door, patience=TransferPatience(give_up_s=3, first_wait_s=0.05, longest_wait_s=0.1)))
    assert caught.value.code == "transfer_expired" and caught.value.hint


# --- hostile answers ---


def test_a_tampered_blob_is_fetched_again_and_never_handed_on(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    run(delivered(package, door))
    victim = package.manifest.blobs[1]
    path = tmp_path / "store" / owned_key(OWNER, victim.sha)
    right = path.read_bytes()
    path.write_bytes(bytes(len(right)))
    handed: list[str] = []

    async def fetch() -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            await download(package.manifest.blobs, lambda sha, _: handed.append(sha), door, http, patience=QUICK)

    with pytest.raises(Mismatch):
        run(fetch())
    assert victim.sha not in handed
    assert [sha for _, sha, _ in server.served].count(victim.sha) <= 2 + 3

    async def mend(method: str, key: str) -> int:
        tries = [sha for m, sha, _ in server.served if m == "GET"].count(victim.sha)
        if key.endswith(victim.sha) and tries >= 4:
            path.write_bytes(right)
        return 0

    server.fault = mend
    handed.clear()
    run(fetch())
    assert sorted(handed) == sorted(b.sha for b in package.manifest.blobs)


def test_a_blob_that_nobody_has_ends_the_download(server: FolderDoor, door: StoreDoor, package: Package) -> None:
    async def fetch() -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            await download(package.manifest.blobs, lambda *_: None, door, http, patience=QUICK)

    with pytest.raises(BlobMissing):
        run(fetch())


# --- addresses ---


def test_addresses_that_expired_are_asked_for_again(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    door.expires_s = 0

    async def heal(method: str, key: str) -> int:
        if len([s for s in server.served if s[2] == 403]) >= 3:
            door.expires_s = 600
        return 0

    server.fault = heal
    run(delivered(package, door))
    assert [s for s in server.served if s[2] == 403]
    assert len(door.asked) < 3 * len(package.blobs), "they are asked for by the dozen"


# --- the source ---


def test_a_file_that_changed_since_the_scan_is_never_sent_under_its_old_name(
    server: FolderDoor, door: StoreDoor, package: Package
) -> None:
    (package.folder / "large").write_bytes(os.urandom(CHUNKS * CHUNK_BYTES - 100))
    with pytest.raises(FolderChanged):
        run(send(package, door))
    stored = {sha for _, sha, status in server.served if status == 200}
    assert not stored & {b.sha for b in package.manifest.blobs[:CHUNKS]}


# --- the cache ---


def test_what_is_cached_is_not_fetched_and_what_is_damaged_is(
    server: FolderDoor, door: StoreDoor, package: Package, tmp_path: Path
) -> None:
    run(delivered(package, door))
    cache = BlobCache(tmp_path / "cache", 1 << 30)
    first = run(bring(package, door, tmp_path / "one", cache=cache))
    assert first.bytes_moved == package.manifest.blob_bytes
    second = run(bring(package, door, tmp_path / "two", cache=cache))
    assert second.bytes_moved == 0 and second.bytes_done == second.bytes_total
    assert same(package, tmp_path / "two")

    victim = package.manifest.blobs[0]
    with (tmp_path / "cache" / victim.sha).open("r+b") as file:
        file.write(b"\0\0\0\0\0\0\0\0")
    third = run(bring(package, door, tmp_path / "three", cache=cache))
    assert third.bytes_moved == victim.size
    assert same(package, tmp_path / "three")


def test_trouble_at_the_door_itself_is_passed_on(server: FolderDoor, door: StoreDoor, package: Package) -> None:
    class Shut(StoreDoor):
        async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
            raise BlobError("the orchestrator says no", code="no")

    with pytest.raises(BlobError, match="says no"):
        run(send(package, Shut(server.store)))
