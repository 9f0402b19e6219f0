"""A folder is packed for a build: equal folders give equal bytes, and nothing outside of it comes along."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from holdfast.node.images.build_context import BadContext, BuildContext, pack


def made(folder: Path, content: str = "hello") -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "sub" / "file").write_text(content)
    (folder / "sub" / "run").write_text("#!/bin/sh\n")
    (folder / "sub" / "run").chmod(0o700)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def packed(folder: Path, dockerfile: str = "Dockerfile", bytes_max: int = 1 << 20) -> tuple[BuildContext, bytes]:
    out = io.BytesIO()
    return pack(folder, dockerfile, out, bytes_max), out.getvalue()


@pytest.mark.spec("J1")
def test_equal_folders_give_equal_bytes_whatever_their_dates_and_owners(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    os.utime(other / "sub" / "file", (1, 1))
    (other / "sub" / "file").chmod(0o600)
    assert packed(one) == packed(other)
    assert packed(one)[0] != packed(made(tmp_path / "third", "bye"))[0]


@pytest.mark.spec("J1")
def test_the_whole_folder_is_there_and_links_stay_links(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(made(tmp_path / "one"))[1])) as tar:
        entries = {entry.name: entry for entry in tar}
    assert set(entries) == {"Dockerfile", "sub", "sub/file", "sub/run", "empty", "link"}
    assert entries["link"].issym() and entries["link"].linkname == "/etc/passwd"
    assert entries["sub/run"].mode & 0o111 and not entries["sub/file"].mode & 0o111


@pytest.mark.spec("N5")
@pytest.mark.parametrize("dockerfile", ["", "/etc/passwd", "../x", "sub/../Dockerfile", "link", "missing", "sub"])
def test_a_dockerfile_is_a_plain_file_of_the_folder(tmp_path: Path, dockerfile: str) -> None:
    with pytest.raises(BadContext):
        packed(made(tmp_path / "one"), dockerfile)


@pytest.mark.spec("N5")
def test_a_dockerfile_behind_a_link_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "Dockerfile").write_text("FROM scratch\n")
    (folder / "there").symlink_to(tmp_path / "outside")
    with pytest.raises(BadContext):
        packed(folder, "there/Dockerfile")


@pytest.mark.spec("N13")
def test_a_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "one", "x" * 100_000)
    with pytest.raises(BadContext):
        packed(folder, bytes_max=50_000)


@pytest.mark.spec("N5")
def test_what_is_neither_file_nor_folder_nor_link_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadContext):
        packed(folder)


@pytest.mark.spec("J1")
def test_what_the_folder_ignores_stays_out_and_its_dockerfile_never_does(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    (folder / ".dockerignore").write_text("*\n!sub\nsub/run\n")
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as tar:
        assert set(tar.getnames()) == {"Dockerfile", "sub", "sub/file"}


@pytest.mark.spec("N5")
def test_an_ignore_file_that_leads_elsewhere_or_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    (folder / ".dockerignore").write_bytes(b"\xff\xfe")
    with pytest.raises(BadContext):
        packed(folder)
    (folder / ".dockerignore").unlink()
    (folder / ".dockerignore").symlink_to("/etc/passwd")
    with pytest.raises(BadContext):
        packed(folder)
