"""What a job leaves behind is removed, however it was made (SPEC N9)."""

import os
from pathlib import Path

import pytest

from holdfast.node.attempt import attempt_folders

pytestmark = pytest.mark.spec("N9", "N5")


def nest(folder: Path, levels: int) -> None:
    """Folders deeper than a path, a stack or a table of open files reaches."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_folders_nested_by_the_thousand_are_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "att"
    scratch.mkdir()
    nest(scratch, 3_000)
    attempt_folders.remove(scratch)
    assert not scratch.exists()


def test_what_lies_behind_a_link_is_left_alone_and_rights_taken_away_do_not_help(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    scratch = tmp_path / "att"
    (scratch / "locked" / "inner").mkdir(parents=True)
    (scratch / "locked" / "inner" / "file").write_text("gone")
    (scratch / "link").symlink_to(precious)
    (scratch / "locked").chmod(0)
    attempt_folders.remove(scratch)
    assert not scratch.exists()
    assert (precious / "file").read_text() == "kept"
