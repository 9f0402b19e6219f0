"""A file that is replaced holds the old content or the new, whole, wherever the process or the machine dies."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import durable

OLD, NEW = b"old" * 1000, b"new!" * 1000
STEPS = ("unlink", "open", "write", "fchmod", "fsync", "replace", "link", "close")
"""Every call by which a write changes the disk, or makes sure of it."""
WRITES: dict[str, Callable[[Path], None]] = {
    "durable_write": lambda path: durable.durable_write(path, NEW),
    "durable_write keeping the mode": lambda path: durable.durable_write(path, NEW, keep_mode=True),
    "durable_write under another name": lambda path: durable.durable_write(path, NEW, draft=f"{path}.draft"),
    "durable_write without its folder": lambda path: durable.durable_write(path, NEW, folder=False),
    "durable_write_all": lambda path: durable.durable_write_all({path: NEW}),
    "atomic_write": lambda path: durable.atomic_write(path, NEW),
}


class Died(BaseException):
    """The process is no more. No `except OSError` or `finally` may do anything: `Fault` lets no call through."""


class Fault:
    """Counts the steps, and makes one of them fail or be the last thing that happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int = -1, how: str = "") -> None:
        self.seen: list[str] = []
        self._at, self._how, self._dead = at, how, False
        for name in STEPS:
            monkeypatch.setattr(durable.os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            if self._dead:
                raise Died
            here = len(self.seen) == self._at
            self.seen.append(name)
            if here and self._how == "fails":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if here and self._how == "half" and name == "write":
                real(words[0], bytes(words[1])[:7])
            if here and self._how in ("dies before", "half"):
                self._die()
            done = real(*words, **named)
            if here and self._how == "dies after":
                self._die()
            return done

        return call

    def _die(self) -> None:
        self._dead = True
        raise Died


def steps_of(write: Callable[[Path], None], path: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        fault = Fault(patched)
        write(path)
        return fault.seen


@pytest.mark.spec("J14", "N9")
@pytest.mark.parametrize("how", ["fails", "dies before", "dies after", "half"])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_cut_at_any_step_leaves_the_old_content_or_the_new(name: str, how: str, tmp_path: Path) -> None:
    # given a file, and what one write of it does, step by step
    path = tmp_path / "kept"
    path.write_bytes(OLD)
    steps = steps_of(WRITES[name], path)
    assert steps, "a write that does nothing cannot be cut"
    for at in range(len(steps)):
        path.write_bytes(OLD)
        # when one of its steps fails, or is the last thing that happens
        with pytest.MonkeyPatch.context() as patched:
            Fault(patched, at, how)
            try:
                WRITES[name](path)
            except OSError:
                assert how == "fails"
                failed = True
            except Died:
                failed = False
            else:
                failed = False
        # then the file is whole
        assert path.read_bytes() in (OLD, NEW), steps[at]
        # and one that failed has left nothing that takes room, unless removing it is what failed
        if failed and steps[at] != "unlink":
            assert [left.name for left in tmp_path.iterdir()] == ["kept"], steps[at]
        # and the next write does not mind what the last one left
        WRITES[name](path)
        assert path.read_bytes() == NEW
        assert [left.name for left in tmp_path.iterdir()] == ["kept"], steps[at]


@pytest.mark.spec("J14", "N9")
def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a record of what is synced and named, in order
    happened: list[str] = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def synced(descriptor: int) -> None:
        happened.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def named(give: Callable[..., None]) -> Callable[..., None]:
        def call(draft: Any, path: Any) -> None:
            happened.append(f"name {os.path.basename(path)}")
            give(draft, path)

        return call

    monkeypatch.setattr(durable.os, "fsync", synced)
    monkeypatch.setattr(durable.os, "replace", named(replace))
    monkeypatch.setattr(durable.os, "link", named(link))
    home = tmp_path.name

    # when files are written in each way, then every byte precedes its name, and the folder comes last
    durable.durable_write(tmp_path / "a", NEW)
    assert happened == ["sync a.new", "name a", f"sync {home}"]
    happened.clear()
    durable.durable_write(tmp_path / "a", NEW, folder=False)
    assert happened == ["sync a.new", "name a"]
    happened.clear()
    durable.durable_create(tmp_path / "b", NEW)
    assert happened == ["sync b.new", "name b", f"sync {home}"]
    happened.clear()
    durable.durable_write_all({tmp_path / "c": NEW, tmp_path / "d": OLD})
    assert happened == ["sync c.new", "sync d.new", "name c", "name d", f"sync {home}"]
    happened.clear()
    durable.atomic_write(tmp_path / "e", NEW)
    assert happened == ["name e"]


@pytest.mark.spec("J14", "N9")
@pytest.mark.parametrize("how", ["fails", "dies before", "dies after"])
def test_files_written_together_get_their_names_in_order(how: str, tmp_path: Path) -> None:
    # given two files, of which the second one's name says that both are there
    first, second = tmp_path / "first", tmp_path / "second"
    seen = steps_of(lambda _: durable.durable_write_all({first: NEW, second: NEW}), first)
    for at in range(len(seen)):
        for path in (first, second):
            path.write_bytes(OLD)
        # when the write is cut anywhere
        with pytest.MonkeyPatch.context() as patched:
            Fault(patched, at, how)
            with contextlib.suppress(OSError, Died):
                durable.durable_write_all({first: NEW, second: NEW})
        # then a new second file never stands beside an old first one
        assert (first.read_bytes(), second.read_bytes()) in ((OLD, OLD), (NEW, OLD), (NEW, NEW)), seen[at]


@pytest.mark.spec("J14", "N4")
def test_a_file_is_created_once_and_never_replaced(tmp_path: Path) -> None:
    # given a file that is there
    path = tmp_path / "claimed"
    durable.durable_create(path, OLD, draft=tmp_path / "draft-1")
    # when another one wants to create it
    with pytest.raises(FileExistsError):
        durable.durable_create(path, NEW, draft=tmp_path / "draft-2")
    # then it stays what it was, and no draft of either is left
    assert path.read_bytes() == OLD
    assert [left.name for left in tmp_path.iterdir()] == ["claimed"]


@pytest.mark.spec("N4")
def test_a_draft_that_lies_there_decides_neither_who_may_read_nor_where_the_bytes_go(tmp_path: Path) -> None:
    # given a draft that anybody may read, and another that leads somewhere else
    path, elsewhere = tmp_path / "secret", tmp_path / "elsewhere"
    elsewhere.write_bytes(OLD)
    (tmp_path / "secret.new").write_bytes(b"")
    (tmp_path / "secret.new").chmod(0o666)
    # when a secret is written over the first
    durable.durable_write(path, NEW, mode=0o600)
    # then only its owner can read it
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # when it is written over the second, then what that one led to is as it was
    (tmp_path / "secret.new").symlink_to(elsewhere)
    durable.durable_write(path, NEW, mode=0o600)
    assert elsewhere.read_bytes() == OLD and not path.is_symlink()


@pytest.mark.spec("N4")
def test_a_file_keeps_its_permission_bits_where_asked(tmp_path: Path) -> None:
    # given a file with permission bits that no umask would give
    path = tmp_path / "rc"
    path.write_bytes(OLD)
    path.chmod(0o647)
    # when it is replaced with and without keeping them
    durable.durable_write(path, NEW, keep_mode=True)
    kept = stat.S_IMODE(path.stat().st_mode)
    durable.durable_write(path, NEW, mode=0o640)
    # then it has them, and then those asked for
    assert (kept, stat.S_IMODE(path.stat().st_mode)) == (0o647, 0o640)
