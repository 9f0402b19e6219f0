"""Which folders go along with a job: what was surely taken by accident is refused before anything is read or sent."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.blobs.errors import FolderRefused
from holdfast.blobs.ignore import Ignore
from holdfast.client import folders
from holdfast.client.folder_keys import refuse_keys
from holdfast.client.selection import Selection
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
            with pytest.raises(FolderRefused, match="would be sent, which is surely a mistake") as caught:
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
    with pytest.raises(FolderRefused, match=r"more than 20 files would be sent .* \(20 in data/\)"):
        folders.check(tmp_path, "")

    # and what is left out does not count
    (tmp_path / ".holdfastignore").write_text("data/\n")
    folders.check(tmp_path, "")


def test_whoever_is_in_the_wrong_folder_does_not_wait_until_all_of_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FILES_MAX", 5)
    for number in range(9):
        (tmp_path / str(number)).mkdir()
        for name in "abc":
            (tmp_path / str(number) / name).touch()
    looked: list[str] = []
    usual = Selection.leaves_out

    def watched(self: Selection, path: str, folder: bool) -> bool:
        looked.append(path)
        return usual(self, path, folder)

    monkeypatch.setattr(Selection, "leaves_out", watched)
    with pytest.raises(FolderRefused, match=r"more than 5 files .* \(3 in 0/\)"):
        folders.check(tmp_path, "")
    assert looked[-1] == "1/c", "the walk went on"


def test_a_user_without_a_home_sends_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.setattr(Path, "home", none)
    folders.check(tmp_path, "")
    assert not Selection(tmp_path).leaves_out("code.py", False)


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
        assert [(one.path, one.why) for one in sent.left_out] == [("state", "holds Holdfast's own data")]


NODE_KEY = "-----BEGIN PRIVATE KEY-----\nMC4…"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which somebody also keeps an orchestrator, a copy of one and a node, under names of their own."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    files = {
        "network/admin.token": "secret", "network/state.db": "", "network/blobs/ab": "", "backups/monday/blobs.key": "",
        "backups/monday/state.db": "", "mine/key": NODE_KEY, "mine/attempts/1/made/x": "", "tls/certificate.key": "",
        "code.py": "pass", "data/key": "of a song", "data/state.db": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    return tmp_path / "project"


@pytest.mark.spec("J1", "N5")
@pytest.mark.parametrize("ignore", [None, Ignore(()), Ignore(["code.py"])])
def test_no_folder_with_keys_goes_along_and_it_is_said_which(project: Path, ignore: Ignore | None) -> None:
    (project / ".holdfastignore").write_text("!network/\n")
    with Network(nodes=1) as network:
        client = network.client()
        # when it is sent, whatever is said to be left out
        sent = client.content.send(project, ignore=ignore)
        # then what has keys in it stays here
        paths = {entry.path for entry in client.content.manifest(sent.manifest).entries}
    assert paths - {"code.py"} == {".holdfastignore", "data/key", "data/state.db", "backups", "tls/certificate.key"}
    assert {one.path: one.why for one in sent.left_out} == {
        "mine": "holds a key of Holdfast (key)",
        "network": "holds a key of Holdfast (admin.token)",
        "backups/monday": "holds a key of Holdfast (blobs.key)",
    }


@pytest.mark.spec("J1", "N5")
def test_whoever_sends_a_job_is_warned_of_what_stays_here(project: Path) -> None:
    with Network(nodes=1) as network, pytest.warns(UserWarning, match="^not sent: ") as warned:
        network.client().jobs.submit(["true"], folder=project)
    (said,) = [str(one.message) for one in warned]
    assert "network/ (6 B; holds a key of Holdfast (admin.token))" in said


@pytest.mark.spec("J1", "N5")
@pytest.mark.parametrize("place", ["network", "network/blobs", "backups/monday", "mine", "../home", "../home/cache"])
def test_a_folder_of_keys_is_not_sent_however_it_is_asked_for(project: Path, place: str) -> None:
    (folder := project / place).mkdir(parents=True, exist_ok=True)
    with Network(nodes=1) as network:
        client = network.client()
        asks: list[Callable[[], Any]] = [
            lambda: client.content.send(folder),
            lambda: client.content.send(folder, ignore=Ignore(())),
            lambda: client.jobs.submit(["true"], folder=folder),
        ]
        for ask in asks:
            with pytest.raises(FolderRefused, match="that is never sent") as caught:
                ask()
            assert caught.value.hint
        assert network.belongings.blobs == {}


def test_a_pipe_by_the_name_of_a_key_is_not_waited_for(project: Path) -> None:
    (project / "piped").mkdir()
    os.mkfifo(project / "piped" / "key")
    assert not Selection(project).leaves_out("piped", True)


def test_a_job_sends_what_is_its_own_also_where_a_node_keeps_it(project: Path) -> None:
    # nor does a token that somebody copied make all that lies below it an orchestrator's
    (project / "admin.token").write_text("secret")
    for folder in (project / "mine" / "attempts" / "1" / "work", project / "data"):
        refuse_keys(folder)
