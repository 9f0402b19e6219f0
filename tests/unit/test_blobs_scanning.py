"""A folder becomes a manifest: the same folder the same one, little is read twice, and what moves is noticed."""

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import pytest

from holdfast.blobs import (
    CHUNK_BYTES,
    BlobCache,
    BlobIndex,
    EmptyFolder,
    File,
    FirstOf,
    FolderSource,
    Manifest,
    ManifestLimits,
    Symlink,
    scan,
    sha_of,
    unpack,
)
from holdfast.blobs.errors import BlobMissing, FolderChanged, FolderRefused
from holdfast.blobs.manifest import PACKED_BELOW_BYTES
from holdfast.blobs.scanning import packs_of

pytestmark = pytest.mark.spec("J1")

BIG = CHUNK_BYTES + 1234


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for path, data in {
        "train.py": b"print('hello')\n",
        "data/big.bin": noise(BIG),
        "data/middle.bin": noise(PACKED_BELOW_BYTES, 2),
        "data/small.txt": b"small",
        "nothing.txt": b"",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "empty").mkdir()
    (root / "latest").symlink_to("data/small.txt")
    return root


def aged(root: Path, monkeypatch: pytest.MonkeyPatch, seconds: int = 60) -> None:
    """As if a minute had passed since the last write: what an index then says is trusted."""
    import time

    real = time.time_ns
    monkeypatch.setattr("holdfast.blobs.scanning.time.time_ns", lambda: real() + seconds * 1_000_000_000)


class Meddler:
    """Does something to the folder in the moment when the first bytes of it were read."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.times = 0
        self.turn = Lock()

    def __call__(self, count: int) -> None:
        with self.turn:
            self.times += 1
            self.do()


def paths(manifest: Manifest) -> list[str]:
    return [e.path for e in manifest.entries]


# --- what is found ---


def test_every_kind_of_entry_is_found_and_comes_back_the_same(folder: Path, tmp_path: Path) -> None:
    scanned = scan(folder)
    there = {e.path: e for e in scanned.manifest.entries}
    assert isinstance(there["empty"], EmptyFolder)
    assert isinstance(there["latest"], Symlink)
    run, big, nothing = there["run.sh"], there["data/big.bin"], there["nothing.txt"]
    assert isinstance(run, File) and run.executable and run.sha == sha_of(b"#!/bin/sh\n")
    assert isinstance(big, File) and [p.length for p in big.pieces] == [CHUNK_BYTES, 1234]
    assert isinstance(nothing, File) and nothing.pieces == ()
    assert scanned.left_out == ()

    unpack(scanned.manifest, tmp_path / "copy", FolderSource(folder, scanned.manifest))
    again = scan(tmp_path / "copy")
    assert again.manifest == scanned.manifest
    assert again.manifest.name == scanned.manifest.name


def test_equal_folders_have_equal_manifests_whatever_their_times(folder: Path) -> None:
    before = scan(folder).manifest
    for file in folder.rglob("*"):
        os.utime(file, (1, 1), follow_symlinks=False)
    assert scan(folder).manifest == before


def test_small_files_share_a_blob_and_large_ones_do_not(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / f"{i:02}").write_bytes(noise(100, i))
    (tmp_path / "large").write_bytes(noise(PACKED_BELOW_BYTES))
    manifest = scan(tmp_path).manifest
    assert len(manifest.blobs) <= 3
    assert manifest.blob_bytes == 5000 + PACKED_BELOW_BYTES


def test_a_hole_costs_one_chunk(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 * CHUNK_BYTES)
    manifest = scan(tmp_path).manifest
    assert len(manifest.blobs) == 1
    assert manifest.total_bytes == 64 * CHUNK_BYTES


def test_one_file_more_leaves_other_packs_as_they_were() -> None:
    """Given many packs, when a file is put among them, then only the pack it falls into differs."""
    files = [(f"d/{i:05}", 40_000) for i in range(2_000)]
    before = {tuple(pack) for pack in packs_of(files)}
    after = {tuple(pack) for pack in packs_of(sorted([*files, ("d/00777x", 50_000)]))}
    assert len(before) > 20
    assert len(after - before) <= 4
    sizes = dict(files)
    assert max(sum(sizes[p] for p in pack) for pack in before) <= CHUNK_BYTES


def test_a_hard_link_is_a_file_like_any_other(folder: Path) -> None:
    os.link(folder / "train.py", folder / "twin.py")
    assert "twin.py" in paths(scan(folder).manifest)


# --- what is left out ---


def test_special_files_and_links_out_are_left_out_by_name(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "sock"))
        (folder / "abroad").symlink_to("/etc/passwd")
        (folder / "up").symlink_to("../elsewhere")
        (folder / "TRAIN.PY").write_bytes(b"")
        os.mkdir(os.fsencode(folder) + b"/bad\xff")
        scanned = scan(folder)
        reasons = {left.path: left.why for left in scanned.left_out}
        assert reasons["pipe"] == "is a pipe"
        assert reasons["sock"] == "is a socket"
        assert "leads out" in reasons["abroad"] and "leads out" in reasons["up"]
        assert "TRAIN.PY" in reasons or "train.py" in reasons
        assert "control" in reasons["bad\udcff"]
        assert not set(reasons) & set(paths(scanned.manifest))

        with pytest.raises(FolderRefused) as refused:
            scan(folder, strict=True)
    assert "cannot be sent" in refused.value.says and "5 more" in refused.value.says
    assert ".holdfastignore" in refused.value.hint


def test_a_device_is_never_opened(tmp_path: Path) -> None:
    os.mknod(tmp_path / "zero", 0o600 | 0o020000, os.makedev(1, 5))
    scanned = scan(tmp_path)
    assert [left.why for left in scanned.left_out] == ["is a device"]
    assert scanned.manifest.entries == ()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (folder / "way").symlink_to(outside)
    assert not [p for p in paths(scan(folder).manifest) if "secret" in p]


def test_a_folder_swapped_for_a_link_is_not_entered(folder: Path, tmp_path: Path) -> None:
    """Given a walk has seen data/, when it becomes a link to the very same files outside, then none is read there."""
    (folder / "a-first").write_bytes(noise(PACKED_BELOW_BYTES, 3))

    def swap() -> None:
        if not (folder / "data").is_symlink():
            (folder / "data").rename(tmp_path / "outside")
            (folder / "data").symlink_to(tmp_path / "outside")

    scanned = scan(folder, progress=Meddler(swap))
    assert not [p for p in paths(scanned.manifest) if p.startswith("data/")]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match="No such file"):
        scan(tmp_path / "nowhere")


def test_a_folder_over_its_limits_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A hole costs nothing to make and for ever to read."""
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(FolderRefused, match="more than 1000 bytes"):
        scan(tmp_path, limits=ManifestLimits(total_bytes=1000))
    for i in range(5):
        (tmp_path / f"f{i}").touch()
    with pytest.raises(FolderRefused, match="more than 5 files"):
        scan(tmp_path, limits=ManifestLimits(entries=5))


# --- reading again ---


def test_unchanged_files_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aged(folder, monkeypatch)
    first = scan(folder)
    assert first.bytes_read >= BIG
    kept = BlobIndex.from_bytes(first.index.to_bytes())
    second = scan(folder, index=kept)
    assert second.bytes_read == 0
    assert second.manifest == first.manifest

    (folder / "train.py").write_bytes(b"print('hallo')\n")
    third = scan(folder, index=second.index)
    assert third.bytes_read < 1000, "only the pack of small files"
    assert third.manifest == scan(folder).manifest != first.manifest


def test_a_file_that_was_just_written_is_not_vouched_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write in the same tick of the clock would leave size and times as they are."""
    # given a folder of which the oldest file is a second old, however long it took to get here
    now_ns = min(path.lstat().st_ctime_ns for path in folder.rglob("*") if path.is_file()) + 1_000_000_000
    monkeypatch.setattr("holdfast.blobs.scanning.time.time_ns", lambda: now_ns)
    # then the next look reads all of it again
    first = scan(folder)
    assert scan(folder, index=first.index).bytes_read == first.bytes_read


def test_an_index_that_cannot_be_read_is_an_empty_one() -> None:
    assert BlobIndex.from_bytes(b"\xc1nonsense") == BlobIndex()


# --- what differs ---


@pytest.mark.spec("J10")
def test_only_what_is_new_or_different_is_a_result(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    package = scan(folder).manifest
    index = unpack(package, work, FolderSource(folder, package))
    (work / "out").mkdir()
    (work / "out/model.bin").write_bytes(noise(BIG, 9))
    (work / "data/small.txt").write_bytes(b"SMALL")
    (work / "train.py").write_bytes(b"print('hello')\n")
    (work / "run.sh").chmod(0o644)
    (work / "data/middle.bin").unlink()
    (work / "shortcut").symlink_to("out/model.bin")

    result = scan(work, base=package, index=index)
    assert paths(result.manifest) == ["data/small.txt", "out/model.bin", "run.sh", "shortcut"]
    assert scan(work, base=package).manifest == result.manifest, "an index saves reading and changes nothing"

    nothing = scan(folder, base=package)
    assert nothing.manifest.entries == () and nothing.manifest.blobs == ()


@pytest.mark.spec("J10")
def test_what_was_put_there_and_not_touched_is_not_read(folder: Path, tmp_path: Path) -> None:
    import time

    package = scan(folder).manifest
    index = unpack(package, tmp_path / "work", FolderSource(folder, package))
    settled = BlobIndex(time.time_ns() + 10**9, index.files, index.packs, index.settled_ns)
    assert scan(tmp_path / "work", base=package, index=settled).bytes_read == 0
    assert scan(tmp_path / "work", index=settled).manifest == package
    assert scan(tmp_path / "work", index=settled).bytes_read == 0


# --- what moves meanwhile ---


def test_a_file_written_once_while_it_is_read_is_read_again(folder: Path) -> None:
    def append() -> None:
        if meddler.times == 1:
            with (folder / "data/big.bin").open("ab") as file:
                file.write(b"more")

    meddler = Meddler(append)
    scanned = scan(folder, strict=True, progress=meddler)
    there = {e.path: e for e in scanned.manifest.entries}
    big = there["data/big.bin"]
    assert isinstance(big, File) and big.size == BIG + 4
    assert scanned.manifest == scan(folder).manifest


def restless(folder: Path) -> Meddler:
    def append() -> None:
        with (folder / "data/big.bin").open("ab") as file:
            file.write(b"x")

    return Meddler(append)


def test_a_file_that_never_rests_refuses_the_folder_or_is_left_out(folder: Path) -> None:
    with pytest.raises(FolderChanged, match=r"big\.bin") as refused:
        scan(folder, strict=True, progress=restless(folder))
    assert refused.value.code == "folder_changed"
    scanned = scan(folder, progress=restless(folder))
    assert ("data/big.bin", "was being written to") in [(left.path, left.why) for left in scanned.left_out]
    assert "data/small.txt" in paths(scanned.manifest)


def test_a_file_that_vanishes_is_not_there(folder: Path) -> None:
    scanned = scan(folder, progress=Meddler(lambda: (folder / "train.py").unlink(missing_ok=True)))
    assert "train.py" not in paths(scanned.manifest)


def test_a_file_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the kernel's answer is given by hand."""
    real = os.open

    def deny(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if path == "train.py":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr("holdfast.blobs.beneath.os.open", deny)
    assert [left.why for left in scan(folder).left_out] == ["cannot be read: Permission denied"]
    with pytest.raises(FolderRefused, match=r"train\.py.*Permission denied"):
        scan(folder, strict=True)


@pytest.mark.spec("J6")
def test_a_steady_scan_is_of_one_moment(folder: Path) -> None:
    """Given a writer that replaces one file while another is read, then the two are never taken for one state."""

    def replace_the_other() -> None:
        if meddler.times == 1:
            (folder / "new").write_bytes(b"2")
            (folder / "new").rename(folder / "nothing.txt")

    meddler = Meddler(replace_the_other)
    scanned = scan(folder, steady=True, progress=meddler)
    assert meddler.times > 1, "it looked again"
    assert scanned.manifest == scan(folder).manifest

    def never_rest() -> None:
        (folder / f"file{other.times}").write_bytes(b"x")

    other = Meddler(never_rest)
    with pytest.raises(FolderChanged):
        scan(folder, steady=True, progress=other)


@pytest.mark.spec("J6")
def test_what_was_laid_aside_survives_the_next_write(folder: Path, tmp_path: Path) -> None:
    stash = BlobCache(tmp_path / "stash", 1 << 30)
    scanned = scan(folder, steady=True, stash=stash)
    originals = {b.sha: bytes(FolderSource(folder, scanned.manifest).read(b.sha)) for b in scanned.manifest.blobs}
    for name in ("data/big.bin", "data/middle.bin", "data/small.txt", "train.py"):
        (folder / name).write_bytes(b"overwritten")
    source = FirstOf(stash, FolderSource(folder, scanned.manifest))
    assert {sha: source.read(sha) for sha in originals} == originals


# --- reading blobs for sending ---


def test_a_blob_is_read_again_from_its_files_and_checked(folder: Path) -> None:
    manifest = scan(folder).manifest
    source = FolderSource(folder, manifest)
    assert all(sha_of(source.read(b.sha)) == b.sha and len(source.read(b.sha)) == b.size for b in manifest.blobs)
    with pytest.raises(BlobMissing):
        source.read("00" * 32)
    for overwrite in (b"x", noise(BIG, 5)):
        (folder / "data/big.bin").write_bytes(overwrite)
        with pytest.raises(FolderChanged, match="not as it was"):
            source.read(manifest.blobs[0].sha)
    (folder / "data/big.bin").unlink()
    (folder / "data/big.bin").symlink_to("small.txt")
    with pytest.raises(FolderChanged):
        source.read(manifest.blobs[0].sha)
