"""What goes along with a job: what is meant is sent, what cannot be meant is refused before anything is."""

import os
import time
from pathlib import Path

import pytest

from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.walk import walk
from holdfast.cli import job_upload
from holdfast.cli.job_upload import OnlyOne, Packing, given
from holdfast.client import folders
from holdfast.client.selection import Selection
from holdfast.errors import Misuse
from holdfast.testing import Network

pytestmark = pytest.mark.spec("J1")

HASH = "ab" * 32


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; the home folder is elsewhere."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return folder


def packed(
    folder: str | None = None,
    no_folder: bool = False,
    image: str | None = None,
    dockerfile: str | None = None,
    requirements: str | None = None,
    inputs: tuple[str, ...] = (),
) -> Packing:
    return Packing(folder, no_folder, image, dockerfile, requirements, list(inputs))


def test_the_current_folder_goes_along_unless_another_or_none_is_named(desk: Path) -> None:
    (desk / "other").mkdir()
    assert packed().folder == desk
    assert packed("other").folder == desk / "other"
    assert packed(no_folder=True).folder is None


@pytest.mark.parametrize("where", ["home", "above"])
def test_nobody_means_their_whole_home(desk: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("HOME", str(desk if where == "home" else desk / "me"))
    (desk / "me").mkdir()

    with pytest.raises(FolderRefused) as caught:
        packed()

    assert caught.value.code == "folder_is_home"
    for way_out in ("a folder of its own", "--folder", "--no-folder"):
        assert way_out in caught.value.hint
    assert packed(str(desk)).folder == desk, "who says so means it"


def test_nobody_means_the_root() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        with pytest.raises(FolderRefused, match="home folder"):
            packed()


def test_too_many_files_are_sent_only_if_named(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "FILES_MAX", 3)
    for number in range(4):
        (desk / f"{number}").touch()

    with pytest.raises(FolderRefused) as caught:
        packed()
    assert caught.value.code == "folder_too_large"
    assert "more than 3 files" in caught.value.says
    for way_out in (".holdfastignore", "--folder", "--no-folder"):
        assert caught.value.hint.count(way_out) == 1

    assert packed(".").folder == desk
    (desk / ".holdfastignore").write_text("[01]\n")
    assert packed().folder == desk, "what is left out does not count"


def test_too_many_bytes_are_sent_only_if_named(desk: Path) -> None:
    with (desk / "big").open("wb") as file:
        file.truncate(folders.BYTES_MAX + 1)
    with pytest.raises(FolderRefused, match=r"1\.0 GiB"):
        packed()
    assert packed(".").folder == desk


def test_keys_of_this_machine_never_go_along(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a home of Holdfast inside the folder, under a name that no pattern would match as it stands
    own = desk / "de[ep] *" / "hold fast"
    (own / "orchestrator").mkdir(parents=True)
    (own / "orchestrator" / "admin.token").write_text("secret")
    (own.parent / "kept").touch()
    monkeypatch.setenv("HOLDFAST_HOME", str(own))

    found = walk(desk, Selection(desk))

    assert list(found.files) == ["de[ep] */kept"]


@pytest.mark.spec("J1", "N5")
def test_a_network_that_was_started_in_the_folder_stays_here_and_that_is_said(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given what `holdfast up --data-dir network` leaves
    (desk / "network").mkdir()
    for name in ("network/admin.token", "network/state.db", "network/Dockerfile", "code.py"):
        (desk / name).touch()

    # when the folder is sent, then all but that goes, and a line says so
    with Network(nodes=1) as network:
        client = network.client()
        fields = packed().send(client)
        assert [entry.path for entry in client.content.manifest(fields["package"]).entries] == ["code.py"]
    assert capsys.readouterr().err.count("-- not sent: network/ (holds a key of Holdfast (admin.token))\n") == 1

    # and by itself it does not go either: which is said before anything is sent
    for words in ({"folder": "network"}, {"inputs": ("a=network",)}, {"inputs": ("a=network/admin.token",)}):
        with pytest.raises(FolderRefused, match="never sent"):
            packed(**words)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match=r"network holds a key of Holdfast \(admin.token\)"):
        packed(dockerfile="network/Dockerfile")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"requirements": "../away.txt"}, "outside"),
        ({"dockerfile": "missing"}, "is not a file"),
        ({"requirements": "sub"}, "is not a file"),
        ({"requirements": "secret/r.txt"}, "secret is ignored"),
        ({"requirements": "r.txt", "no_folder": True}, "--no-folder"),
        ({"requirements": "r.txt", "image": "debian"}, "exclude each other"),
        ({"folder": "r.txt"}, "is not a folder"),
        ({"folder": ".", "no_folder": True}, "contradict"),
    ],
)
def test_what_contradicts_itself_is_named(desk: Path, words: dict[str, str], says: str) -> None:
    for folder in ("sub", "secret"):
        (desk / folder).mkdir()
    for name in ("../away.txt", "r.txt", "secret/r.txt"):
        (desk / name).touch()
    (desk / ".holdfastignore").write_text("secret/\n")

    with pytest.raises(Misuse, match=says) as caught:
        packed(**words)  # type: ignore[arg-type]
    assert caught.value.hint


def test_files_to_build_from_are_found_here_and_in_the_folder(desk: Path) -> None:
    (desk / "sub" / "deep").mkdir(parents=True)
    (desk / "sub" / "deep" / "Dockerfile").touch()

    assert packed(dockerfile="sub/deep/Dockerfile").built_from == {"dockerfile": "sub/deep/Dockerfile"}
    assert packed("sub", dockerfile="sub/deep/Dockerfile").built_from == {"dockerfile": "deep/Dockerfile"}
    assert packed("sub", dockerfile="deep/Dockerfile").built_from == {"dockerfile": "deep/Dockerfile"}


def test_inputs_are_understood(desk: Path) -> None:
    (desk / "data.csv").touch()

    assert given("a=https://example/x?y=z") == ("a", "https://example/x?y=z", "", "", None)
    assert given(f"a=s3://bucket/key#sha256={HASH.upper()}") == ("a", "s3://bucket/key", HASH, "", None)
    assert given("a=job:job_1") == ("a", "", "", "job_1", None)
    assert given("a=data.csv").path == desk / "data.csv"


@pytest.mark.parametrize(
    "text",
    ["data.csv", "=x", "a=", ".a=data.csv", "a/b=data.csv", "a=missing", "a=job:", "a=ftp://example/x",
     "a=https://example/x#sha256=abc"],
)  # fmt: skip
def test_an_input_that_cannot_be_meant_is_named(desk: Path, text: str) -> None:
    with pytest.raises(Misuse) as caught:
        given(text)
    assert caught.value.hint


def test_of_a_single_file_its_neighbours_stay_at_home(desk: Path) -> None:
    (desk / "sub").mkdir()
    for name in ("data.csv", "other.csv", "sub/data.csv"):
        (desk / name).touch()
    assert list(walk(desk, OnlyOne("data.csv")).files) == ["data.csv"]


def test_what_is_remembered_of_folders_is_forgotten_when_nobody_sends_them_any_more(tmp_path: Path) -> None:
    # Given what was read of three folders, the last of which was sent months ago, and a file that is not ours
    names = ("new.index", "month.index", "old.index", "old.txt")
    for name, days in zip(names, (0, 59, 61, 99), strict=True):
        (tmp_path / name).write_bytes(b"x")
        at = time.time() - days * 86_400
        os.utime(tmp_path / name, (at, at))
    # When another folder has been sent, then only that one is forgotten
    job_upload.forget_old(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names) - {"old.index"}
    job_upload.forget_old(tmp_path / "not there")
