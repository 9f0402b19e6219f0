"""Content goes into a folder whole, verified, and nowhere else, whatever lies there or is swapped in meanwhile."""

import contextlib
import os
import random
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.blobs import (
    CHUNK_BYTES,
    Blob,
    BytesSource,
    EmptyFolder,
    File,
    Manifest,
    Piece,
    Symlink,
    Unpacking,
    scan,
    sha_of,
    unpack,
)
from holdfast.blobs.errors import BlobError, BlobMissing, DiskFull, InTheWay, Mismatch
from holdfast.blobs.unpacking import part_name

pytestmark = pytest.mark.spec("J10", "N13")


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


CHUNKS = [noise(CHUNK_BYTES, 1), noise(CHUNK_BYTES, 2), noise(1000, 3)]
SMALL = {"a/one": b"one", "a/two": b"twotwo", "b/three": b"333"}


class Content:
    """A manifest and its blobs, put together by hand."""

    def __init__(self) -> None:
        self.entries: list[File | EmptyFolder | Symlink] = []
        self.blobs: list[Blob] = []
        self.bytes: dict[str, bytes] = {}

    def blob(self, data: bytes) -> int:
        self.blobs.append(Blob(sha_of(data), len(data)))
        self.bytes[sha_of(data)] = data
        return len(self.blobs) - 1

    def large(self, path: str, chunks: list[bytes], executable: bool = False) -> None:
        pieces = tuple(Piece(self.blob(c), 0, len(c)) for c in chunks)
        self.entries.append(File(path, sum(map(len, chunks)), executable, pieces))

    def packed(self, files: dict[str, bytes]) -> None:
        number, offset = self.blob(b"".join(files.values())), 0
        for path, data in files.items():
            self.entries.append(File(path, len(data), False, (Piece(number, offset, len(data)),), sha_of(data)))
            offset += len(data)

    @property
    def manifest(self) -> Manifest:
        return Manifest.of(self.entries, self.blobs)

    @property
    def source(self) -> BytesSource:
        return BytesSource(self.bytes)


@pytest.fixture
def content() -> Content:
    content = Content()
    content.large("big.bin", CHUNKS, executable=True)
    content.packed(SMALL)
    content.entries += [File("nothing", 0, False, ()), EmptyFolder("empty/deep"), Symlink("a/link", "../b/three")]
    return content


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_text("untouched")
    return place


def snapshot(folder: Path) -> dict[str, str]:
    """Everything in a folder, as text."""
    return {
        p.relative_to(folder).as_posix(): os.readlink(p)
        if p.is_symlink()
        else p.read_bytes().hex()
        if p.is_file()
        else "/"
        for p in sorted(folder.rglob("*"))
    }


def put_all(unpacking: Unpacking, blobs: tuple[Blob, ...], content: Content) -> None:
    for blob in blobs:
        unpacking.put(blob.sha, content.bytes[blob.sha])


def assert_whole(root: Path) -> None:
    assert (root / "big.bin").read_bytes() == b"".join(CHUNKS)
    assert {path: (root / path).read_bytes() for path in SMALL} == SMALL
    assert (root / "nothing").read_bytes() == b""
    assert (root / "empty/deep").is_dir()
    assert os.readlink(root / "a/link") == "../b/three"
    assert not [p for p in root.rglob("*") if p.name.endswith("holdfast-part")]


# --- the plain way ---


def test_blobs_in_any_order_make_the_same_folder(content: Content, tmp_path: Path) -> None:
    for seed in range(4):
        root = tmp_path / f"r{seed}"
        unpacking = Unpacking(root, content.manifest)
        blobs = list(unpacking.prepare())
        random.Random(seed).shuffle(blobs)
        for blob in blobs:
            unpacking.put(blob.sha, content.bytes[blob.sha])
        unpacking.finish(durable=True)
        assert_whole(root)
        assert scan(root).manifest == scan(tmp_path / "r0").manifest


def test_blobs_may_come_from_several_threads(content: Content, tmp_path: Path) -> None:
    unpacking = Unpacking(tmp_path / "r", content.manifest)
    blobs = unpacking.prepare()
    threads = [
        threading.Thread(target=unpacking.put, args=(blob.sha, content.bytes[blob.sha]))
        for blob in blobs
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unpacking.finish()
    assert_whole(tmp_path / "r")


def test_modes_are_plain_and_owners_are_given(content: Content, tmp_path: Path) -> None:
    root = tmp_path / "r"
    root.mkdir()
    unpack(content.manifest, root, content.source, owner=(12345, 12346))
    for path in root.rglob("*"):
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (12345, 12346), path
        if not path.is_symlink():
            assert stat.S_IMODE(status.st_mode) in (0o644, 0o755)
            assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
    assert (root / "big.bin").stat().st_mode & 0o111


def test_unfinished_is_never_called_finished(content: Content, tmp_path: Path) -> None:
    unpacking = Unpacking(tmp_path / "r", content.manifest)
    first, *rest = unpacking.prepare()
    for blob in rest:
        unpacking.put(blob.sha, content.bytes[blob.sha])
    with pytest.raises(BlobMissing):
        unpacking.finish()
    assert first in unpacking.wanted()


def test_holes_stay_holes(tmp_path: Path) -> None:
    content = Content()
    content.large("sparse", [bytes(CHUNK_BYTES)] * 20 + [b"end"])
    unpack(content.manifest, tmp_path / "r", content.source)
    status = (tmp_path / "r/sparse").stat()
    assert status.st_size == 20 * CHUNK_BYTES + 3
    assert status.st_blocks * 512 < CHUNK_BYTES


# --- verification ---


def test_a_tampered_blob_is_refused_and_its_bytes_go_nowhere(content: Content, tmp_path: Path) -> None:
    unpacking = Unpacking(tmp_path / "r", content.manifest)
    for blob in unpacking.prepare():
        before = snapshot(tmp_path / "r")
        evil = bytearray(content.bytes[blob.sha])
        evil[-1] ^= 1
        for data in (bytes(evil), content.bytes[blob.sha] + b"x", content.bytes[blob.sha][:-1], b""):
            with pytest.raises(Mismatch):
                unpacking.put(blob.sha, data)
        assert snapshot(tmp_path / "r") == before
        unpacking.put(blob.sha, content.bytes[blob.sha])
    unpacking.finish()
    with pytest.raises(Mismatch):
        unpacking.put(sha_of(b"stranger"), b"stranger")


def test_a_manifest_that_lies_about_a_file_is_found_out(tmp_path: Path) -> None:
    content = Content()
    content.packed(SMALL)
    liar = content.entries[0]
    assert isinstance(liar, File)
    content.entries[0] = File(liar.path, liar.size, False, liar.pieces, sha_of(b"something else"))
    with pytest.raises(Mismatch, match="hash in its manifest"):
        unpack(content.manifest, tmp_path / "r", content.source)
    assert not (tmp_path / "r" / liar.path).exists()


# --- going on ---


def test_whole_files_are_kept_and_whole_chunks_of_large_ones(content: Content, tmp_path: Path) -> None:
    """Given a try that was cut after each blob, when it is taken up again, then only the rest is asked for."""
    order = [b.sha for b in content.manifest.blobs]
    for done in range(len(order) + 1):
        root = tmp_path / f"r{done}"
        first = Unpacking(root, content.manifest)
        first.prepare()
        for sha in order[:done]:
            first.put(sha, content.bytes[sha])
        second = Unpacking(root, content.manifest)
        assert [b.sha for b in second.prepare()] == order[done:]
        for sha in order[done:]:
            second.put(sha, content.bytes[sha])
        second.finish()
        assert_whole(root)


def test_a_damaged_chunk_of_an_unfinished_file_is_fetched_again(content: Content, tmp_path: Path) -> None:
    root = tmp_path / "r"
    first = Unpacking(root, content.manifest)
    first.prepare()
    first.put(sha_of(CHUNKS[0]), CHUNKS[0])
    with (root / part_name("big.bin")).open("r+b") as file:
        file.write(b"damage")
    assert sha_of(CHUNKS[0]) in [b.sha for b in Unpacking(root, content.manifest).prepare()]
    unpack(content.manifest, root, content.source)
    assert_whole(root)


def test_a_hole_in_an_unfinished_file_that_holds_something_is_filled_with_zeros(tmp_path: Path) -> None:
    content = Content()
    content.large("sparse", [bytes(CHUNK_BYTES), b"end"])
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / part_name("sparse")).write_bytes(noise(CHUNK_BYTES) + b"end")
    unpack(content.manifest, tmp_path / "r", content.source)
    assert (tmp_path / "r/sparse").read_bytes() == bytes(CHUNK_BYTES) + b"end"


def test_files_that_differ_are_replaced_and_others_left_alone(content: Content, tmp_path: Path) -> None:
    root = tmp_path / "r"
    unpack(content.manifest, root, content.source)
    (root / "a/one").write_bytes(b"two")
    (root / "mine").write_text("not in the manifest")
    kept = (root / "big.bin").stat().st_ino
    assert len(Unpacking(root, content.manifest).prepare()) == 1
    unpack(content.manifest, root, content.source)
    assert_whole(root)
    assert (root / "big.bin").stat().st_ino == kept
    assert (root / "mine").read_text() == "not in the manifest"


def test_the_other_name_of_a_file_is_not_written_to(content: Content, tmp_path: Path, outside: Path) -> None:
    """Given our file is a hard link to one outside, with other or even the same bytes, then that one stays as it is."""
    root = tmp_path / "r"
    (root / "a").mkdir(parents=True)
    os.link(outside / "precious", root / "a/one")
    os.link(outside / "precious", root / part_name("big.bin"))
    (outside / "same").write_bytes(b"twotwo")
    os.link(outside / "same", root / "a/two")
    mode = (outside / "same").stat().st_mode
    unpack(content.manifest, root, content.source, owner=(12345, 12345))
    assert_whole(root)
    assert (outside / "precious").read_text() == "untouched"
    assert (outside / "same").stat().st_mode == mode and (outside / "same").stat().st_uid == os.getuid()


# --- attacks ---


def attack_with_link_for_folder(root: Path, outside: Path) -> None:
    (root / "a").symlink_to(outside)


def attack_with_link_for_deep_folder(root: Path, outside: Path) -> None:
    (root / "empty").symlink_to(outside)


def attack_with_file_for_folder(root: Path, outside: Path) -> None:
    (root / "b").write_text("in the way")


def attack_with_folder_for_file(root: Path, outside: Path) -> None:
    (root / "big.bin").mkdir()


@pytest.mark.parametrize(
    "attack",
    [
        attack_with_link_for_folder,
        attack_with_link_for_deep_folder,
        attack_with_file_for_folder,
        attack_with_folder_for_file,
    ],
)
def test_what_stands_in_the_way_is_not_followed_and_not_removed(
    attack: object, content: Content, tmp_path: Path, outside: Path
) -> None:
    root = tmp_path / "r"
    root.mkdir()
    assert callable(attack)
    attack(root, outside)
    with pytest.raises(InTheWay) as caught:
        unpack(content.manifest, root, content.source)
    assert caught.value.code == "in_the_way" and caught.value.hint
    assert snapshot(outside) == {"precious": b"untouched".hex()}


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(
    content: Content, tmp_path: Path, outside: Path
) -> None:
    root = tmp_path / "r"
    (root / "a").mkdir(parents=True)
    for name in ("a/one", "big.bin", part_name("big.bin"), f"a/{part_name('a/one')}", "nothing"):
        (root / name).symlink_to(outside / "precious")
    unpack(content.manifest, root, content.source)
    assert_whole(root)
    assert snapshot(outside) == {"precious": b"untouched".hex()}


def test_pipes_and_devices_in_the_place_of_a_file_hold_nobody_up(content: Content, tmp_path: Path) -> None:
    root = tmp_path / "r"
    (root / "a").mkdir(parents=True)
    for name in ("a/one", "big.bin", part_name("big.bin")):
        os.mkfifo(root / name)
    os.mknod(root / "nothing", 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    unpack(content.manifest, root, content.source)
    assert_whole(root)
    assert (root / "nothing").is_file()


def test_a_link_swapped_in_between_two_blobs_leads_nowhere(content: Content, tmp_path: Path, outside: Path) -> None:
    """Given the folders are made, when one of them becomes a link outwards, then nothing is written there."""
    root = tmp_path / "r"
    unpacking = Unpacking(root, content.manifest)
    blobs = unpacking.prepare()
    (root / "a").rmdir()
    (root / "a").symlink_to(outside)
    with pytest.raises(InTheWay):
        put_all(unpacking, blobs, content)
    assert snapshot(outside) == {"precious": b"untouched".hex()}


def test_links_swapped_in_at_random_lead_nowhere(tmp_path: Path, outside: Path) -> None:
    """A second process turns folders into links and back as fast as it can; nothing is ever written outside."""
    content = Content()
    content.packed({f"d{i}/sub/f{j}": f"{i} {j}".encode() for i in range(10) for j in range(10)})
    root = tmp_path / "r"
    root.mkdir()
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for i in range(10):
                for place in (root / f"d{i}", root / f"d{i}" / "sub"):
                    with contextlib.suppress(OSError):
                        place.rename(tmp_path / f"aside{i}")
                        place.symlink_to(outside)
                        place.unlink()
                        (tmp_path / f"aside{i}").rename(place)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(60):
            with contextlib.suppress(BlobError):
                unpack(content.manifest, root, content.source)
    finally:
        over.set()
        swapper.join()
    assert snapshot(outside) == {"precious": b"untouched".hex()}


# --- room ---


def test_content_over_its_limit_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    """A bomb: one small blob, and many gigabytes to write."""
    content = Content()
    content.entries.append(
        File("bomb", 500 * CHUNK_BYTES, False, (Piece(content.blob(CHUNKS[0]), 0, CHUNK_BYTES),) * 500)
    )
    root = tmp_path / "r"
    with pytest.raises(DiskFull, match="may hold"):
        Unpacking(root, content.manifest, bytes_max=100 * CHUNK_BYTES).prepare()
    assert not root.exists()


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "holdfast-test", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_without_room_is_said_to_be_full_at_once(content: Content, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "6m") as disk, pytest.raises(DiskFull, match="the content needs") as caught:
        Unpacking(disk, content.manifest).prepare()
    assert caught.value.code == "disk_full"


def test_room_is_counted_as_it_will_be_written(tmp_path: Path) -> None:
    """Four files of the same four megabytes need sixteen, though only four are fetched."""
    content = Content()
    number = content.blob(CHUNKS[0])
    content.entries += [File(f"f{i}", CHUNK_BYTES, False, (Piece(number, 0, CHUNK_BYTES),)) for i in range(4)]
    with small_disk(tmp_path / "disk", "12m") as disk, pytest.raises(DiskFull, match="the content needs"):
        Unpacking(disk, content.manifest).prepare()


def test_a_disk_that_fills_up_meanwhile_loses_nothing_that_arrived(content: Content, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "12m") as disk:
        unpacking = Unpacking(disk / "r", content.manifest)
        blobs = unpacking.prepare()
        unpacking.put(blobs[0].sha, content.bytes[blobs[0].sha])
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        with pytest.raises(DiskFull):
            put_all(unpacking, blobs[1:], content)
        (disk / "filler").unlink()
        again = Unpacking(disk / "r", content.manifest)
        assert blobs[0].sha not in [b.sha for b in again.prepare()]
        put_all(again, again.wanted(), content)
        again.finish()
        assert_whole(disk / "r")
