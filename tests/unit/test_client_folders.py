"""Which folders go along with a job: what was surely taken by accident is refused before anything is read or sent."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.blobs.errors import FolderRefused
from holdfast.client import folders
from holdfast.testing import Network

pytest_plugins = ["both_clients"]
pytestmark = pytest.mark.spec("J1")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's home, with what a home holds; and the keys of Holdfast where they usually are."""
    place = tmp_path / "homes" / "me"
    (place / ".holdfast" / "orchestrator").mkdir(parents=True)
    (place / ".holdfast" / "orchestrator" / "admin.token").write_text("secret")
    (place / "letters").mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    return place


def test_a_home_and_what_has_it_inside_are_refused_and_what_is_in_it_is_not(home: Path) -> None:
    with Network(nodes=1) as network:
        client = network.client()
        for folder in (home, home / "letters" / "..", home.parent, Path("/")):
            with pytest.raises(FolderRefused, match="would be sent: surely not all of that is meant") as caught:
                client.jobs.submit(["true"], folder=folder)
            assert caught.value.code == "folder_is_home"
            assert "client.content.send(folder)" in caught.value.hint
        assert network.belongings.blobs == {}, "nothing was sent"
        assert client.jobs.submit(["true"], folder=home / "letters").wait().state == "succeeded"


def test_a_function_in_a_file_in_somebodys_home_takes_no_home_along(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file that was saved right there
    (home / "saved_at_home.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(home)
    import saved_at_home  # type: ignore[import-not-found]

    with Network(nodes=1) as network:
        double = holdfast.function(client=network.client())(saved_at_home.double)

        # when its function is called over there, then it says why not, and what to do
        with pytest.raises(FolderRefused, match="all of your home folder would be sent") as caught:
            double.remote(1)
        assert (caught.value.code, "folder=" in caught.value.hint) == ("folder_is_home", True)
        assert network.belongings.blobs == {}


def test_too_much_is_refused_with_how_much_it_is_and_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "BYTES_MAX", 10_000)
    monkeypatch.setattr(folders, "FILES_MAX", 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "code.py").write_text("pass")
    (tmp_path / "data" / "large").write_bytes(bytes(20_480))
    with pytest.raises(FolderRefused) as caught:
        folders.check(tmp_path, "Or so.")
    assert caught.value.code == "folder_too_large"
    assert f"2 files, 20.0 KiB, would be sent from {tmp_path} (20.0 KiB in data/)" in caught.value.says
    assert ".holdfastignore" in caught.value.hint and caught.value.hint.endswith("Or so.")

    # many files are too much, too
    (tmp_path / "data" / "large").unlink()
    for number in range(30):
        (tmp_path / "data" / str(number)).touch()
    with pytest.raises(FolderRefused, match=r"31 files, .* \(30 in data/\)"):
        folders.check(tmp_path, "")

    # and what is left out does not count
    (tmp_path / ".holdfastignore").write_text("data/\n")
    folders.check(tmp_path, "")


def test_what_is_too_much_by_accident_can_still_be_sent_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "BYTES_MAX", 10)
    (tmp_path / "large").write_text("more than ten bytes")
    with Network(nodes=1) as network:
        client = network.client()
        with pytest.raises(FolderRefused):
            client.jobs.run(["true"], folder=tmp_path)
        package = client.content.send(tmp_path).manifest
        assert client.jobs.run(["true"], package=package).state == "succeeded"


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "odd")


def a_socket(folder: Path) -> None:
    os.mknod(folder / "odd", stat.S_IFSOCK | 0o600)


def a_way_out(folder: Path) -> None:
    (folder / "odd").symlink_to("../../elsewhere")


def a_way_to_the_top(folder: Path) -> None:
    (folder / "odd").symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("lay", "says"),
    [
        (a_pipe, "it is a pipe"),
        (a_socket, "it is a socket"),
        (a_way_out, "it leads out of the folder, to '../../elsewhere'"),
        (a_way_to_the_top, "it leads out of the folder, to '/etc/passwd'"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(
    either: Any, tmp_path: Path, lay: Callable[[Path], None], says: str
) -> None:
    (tmp_path / "along" / "deep").mkdir(parents=True)
    lay(tmp_path / "along" / "deep")
    with Network(nodes=1) as network:
        client = either(network.client, network.async_client)
        with pytest.raises(FolderRefused, match=f"'deep/odd' in .* cannot be sent: {says}") as caught:
            client.jobs.submit(["true"], folder=tmp_path / "along")
    assert caught.value.code == "folder_refused"
    assert ".holdfastignore" in caught.value.hint


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").write_text("mine")
    usual = os.open

    def refusing(path: Any, *args: Any, **how: Any) -> int:
        if os.fspath(path) == "closed":
            raise PermissionError(13, "Permission denied")
        return usual(path, *args, **how)

    # as for somebody who is not root
    monkeypatch.setattr(os, "open", refusing)
    with Network(nodes=1) as network, pytest.raises(FolderRefused, match=r"'closed' in .* cannot be read: Perm"):
        network.client().jobs.submit(["true"], folder=tmp_path)


def test_a_folder_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Network(nodes=1) as network:
        client = network.client()
        with pytest.raises(FolderRefused, match=r"there is no folder .*nowhere"):
            client.jobs.submit(["true"], folder=tmp_path / "nowhere")
        with pytest.raises(FolderRefused, match="is a file, not a folder"):
            client.content.send(tmp_path / "file")


@pytest.mark.spec("J1", "N5")
def test_the_keys_of_this_machine_never_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a folder in which somebody keeps what Holdfast keeps, under a name of their own
    keys = tmp_path / "project" / "state"
    (keys / "orchestrator").mkdir(parents=True)
    (keys / "orchestrator" / "admin.token").write_text("secret")
    (tmp_path / "project" / "code.py").write_text("pass")
    monkeypatch.setenv("HOLDFAST_HOME", str(keys))

    # when the folder is sent, then they stay here
    with Network(nodes=1) as network:
        client = network.client()
        sent = client.content.send(tmp_path / "project")
        assert [entry.path for entry in client.content.manifest(sent.manifest).entries] == ["code.py"]
