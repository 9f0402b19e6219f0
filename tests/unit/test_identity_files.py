"""Files that hold secrets, at their edges: how long a token must be, and who may read what."""

import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import Misconfigured
from holdfast.identity import private_files
from holdfast.identity.admin import AdminToken

pytestmark = pytest.mark.spec("N1", "N6")


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_admin_token_of_24_letters_is_one_and_of_23_is_not(tmp_path: Path) -> None:
    assert AdminToken.load_or_make(written(tmp_path / "long", "x" * 24)).text == "x" * 24
    for name, text in (("short", "x" * 23), ("noise", "x" * 20 + "\x07" * 10), ("foreign", "ä" * 30), ("empty", "")):
        with pytest.raises(Misconfigured) as caught:
            AdminToken.load_or_make(written(tmp_path / name, text))
        assert caught.value.code == "bad_admin_token"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_others_can_reach_is_refused_and_what_is_no_secret_is_not(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "file", "content", mode)
    with pytest.raises(Misconfigured) as caught:
        private_files.read(path, "key")
    assert caught.value.code == "secret_exposed"
    assert private_files.read(path, "key", secret=False) == b"content"


def test_files_are_made_once_with_the_rights_that_they_need(tmp_path: Path) -> None:
    secret, public = tmp_path / "deep" / "er" / "secret", tmp_path / "public"
    old = os.umask(0)
    try:
        assert private_files.make_once(secret, "key", lambda: b"one") == b"one"
        assert private_files.make_once(public, "page", lambda: b"two", secret=False) == b"two"
    finally:
        os.umask(old)
    assert private_files.make_once(secret, "key", lambda: b"three") == b"one"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_who_comes_second_gets_what_the_first_one_made(tmp_path: Path) -> None:
    path = tmp_path / "key"

    def late() -> bytes:
        written(path, "first")
        return b"second"

    assert private_files.make_once(path, "key", late) == b"first"


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        private_files.read(tmp_path / "none", "key")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(private_files, "durable_create", full)
    with pytest.raises(Misconfigured, match="cannot be written: No space left"):
        private_files.make_once(tmp_path / "below", "key", lambda: b"")
