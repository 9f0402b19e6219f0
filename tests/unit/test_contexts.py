"""Networks by name: the file they are kept in, and to whom a token is given."""

import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.client import contexts
from holdfast.client.contexts import Context
from holdfast.client.endpoint import find, known_as, name_of
from holdfast.errors import Misconfigured, Misuse

pytestmark = pytest.mark.spec("N3", "N6")

LOCAL = "http://127.0.0.1:8420"
LAB = "https://lab.example:7420"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home with a local orchestrator and one context."""
    folder = tmp_path / "orchestrator"
    folder.mkdir()
    (folder / "endpoint.json").write_bytes(msgspec.json.encode({"url": LOCAL, "certificate": "PEM"}))
    (folder / "admin.token").write_text("local-secret\n")
    with contexts.changing(tmp_path) as known:
        known.contexts["lab"] = Context(url=LAB, token="lab-secret", certificate="LAB-PEM")
    return {"HOLDFAST_HOME": str(tmp_path)}


def test_the_first_that_is_said_counts(environ: dict[str, str], tmp_path: Path) -> None:
    assert find(environ=environ).context == "local"
    named = find(environ={**environ, "HOLDFAST_CONTEXT": "lab"})
    assert (named.url, named.token, named.certificate, named.context) == (LAB, "lab-secret", "LAB-PEM", "lab")

    with contexts.changing(tmp_path) as known:
        known.current = "lab"
    assert find(environ=environ).url == LAB
    assert find(environ={**environ, "HOLDFAST_CONTEXT": "local"}).url == LOCAL
    assert (
        find(environ={**environ, "HOLDFAST_CONTEXT": "lab", "HOLDFAST_URL": "http://x.example"}).url
        == "http://x.example"
    )
    assert find("http://y.example", environ={**environ, "HOLDFAST_URL": "http://x.example"}).url == "http://y.example"
    assert (name_of(LAB, environ), name_of(LOCAL, environ), name_of("http://z.example", environ)) == (
        "lab",
        "local",
        "",
    )


def test_a_token_is_given_to_its_own_network_only(environ: dict[str, str]) -> None:
    # given an environment with a token that was meant for some other network
    meant_for_another = {**environ, "HOLDFAST_ADMIN_TOKEN": "other-secret", "HOLDFAST_CERTIFICATE": "/nowhere"}

    # then a context does not get it, nor does an address get the token of a context
    assert find(environ={**meant_for_another, "HOLDFAST_CONTEXT": "lab"}).token == "lab-secret"
    assert find("https://elsewhere.example", environ=environ).token == ""
    assert find(LAB, environ=environ).token == "lab-secret"


def test_the_token_of_the_environment_goes_to_the_address_of_the_environment(
    environ: dict[str, str], tmp_path: Path
) -> None:
    # given an environment that names a network, its token and its certificate
    (tmp_path / "a.pem").write_text("A-PEM")
    of_a = {"HOLDFAST_ADMIN_TOKEN": "a-secret", "HOLDFAST_CERTIFICATE": str(tmp_path / "a.pem")}
    at_a = {**environ, **of_a, "HOLDFAST_URL": "https://a.example/"}

    # then they go there, also where the same address is typed
    for typed in (None, "https://a.example", "https://a.example/"):
        assert (find(typed, environ=at_a).token, find(typed, environ=at_a).certificate) == ("a-secret", "A-PEM")

    # and to no other that is typed: not to a stranger's, not to a context's, not to this machine's
    for typed, token, certificate in (
        ("https://b.example", "", ""),
        (LAB, "lab-secret", "LAB-PEM"),
        (LOCAL, "local-secret", "PEM"),
    ):
        assert (find(typed, environ=at_a).token, find(typed, environ=at_a).certificate) == (token, certificate)
    in_a_file = {**environ, "HOLDFAST_URL": "https://a.example", "HOLDFAST_ADMIN_TOKEN_FILE": str(tmp_path / "a.pem")}
    assert find("https://b.example", environ=in_a_file).token == ""

    # and where the environment names no network, they are for the one that is typed, but a context has its own
    nowhere = {**environ, **of_a}
    assert (find("https://b.example", environ=nowhere).token, find(LAB, environ=nowhere).token) == (
        "a-secret",
        "lab-secret",
    )
    assert find(LAB, environ=nowhere).certificate == "LAB-PEM"


def test_the_file_is_private_and_one_that_is_not_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / contexts.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    for rights in (0o640, 0o604, 0o620):
        file.chmod(rights)
        with pytest.raises(Misconfigured, match="others on this machine") as caught:
            find(environ=environ)
        assert "chmod 600" in caught.value.hint


def test_what_cannot_be_understood_is_named_and_left_alone(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / contexts.FILE
    file.write_text('{"current": 7}')
    with pytest.raises(Misconfigured, match="cannot be understood"):
        contexts.read(tmp_path)
    with pytest.raises(Misconfigured), contexts.changing(tmp_path):
        pass
    assert file.read_text() == '{"current": 7}'


def test_a_change_that_fails_changes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    before = (tmp_path / contexts.FILE).read_bytes()

    def forget_two() -> None:
        with contexts.changing(tmp_path) as known:
            del known.contexts["lab"]
            del known.contexts["attic"]

    with pytest.raises(KeyError):
        forget_two()
    assert (tmp_path / contexts.FILE).read_bytes() == before


def test_two_who_add_at_once_both_do(environ: dict[str, str], tmp_path: Path) -> None:
    def add(number: int) -> None:
        with contexts.changing(tmp_path) as known:
            known.contexts[f"n{number}"] = Context(url=f"http://127.0.0.1:{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"n{number}" for number in range(8)} < set(contexts.read(tmp_path).contexts)


def test_names_are_words_and_a_context_shows_no_token(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("", "../x", "-x", "a b", "x" * 65, "é"):
        with pytest.raises(Misuse):
            contexts.checked_name(name)
    known = contexts.read(tmp_path)
    assert "lab-secret" not in repr(known)
    assert "lab-secret" not in repr(known_as("lab", environ))
    with pytest.raises(Misconfigured, match="known are: lab, local"):
        known.get("attic")


def test_an_orchestrator_in_another_folder_is_the_local_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "endpoint.json").write_bytes(msgspec.json.encode({"url": LOCAL}))
    (data / "admin.token").write_text("secret\n")
    home = tmp_path / "home"
    with contexts.changing(home) as known:
        known.contexts["local"] = Context(folder=str(data))
    assert (find(environ={"HOLDFAST_HOME": str(home)}).token, os.stat(home).st_mode & 0o077) == ("secret", 0)


def test_this_machines_own_network_is_not_said_to_be_forgotten(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    nothing = CliRunner().invoke(app, ["context", "remove", "local"])
    assert isinstance(nothing.exception, Misuse) and "nothing to remove" in str(nothing.exception)
    assert find(environ=environ).context == "local"

    # but where `up` wrote down another folder, that is forgotten
    with contexts.changing(tmp_path) as known:
        known.contexts["local"] = Context(folder="/elsewhere")
    assert CliRunner().invoke(app, ["context", "remove", "local"]).exit_code == 0
    assert "local" not in contexts.read(tmp_path).contexts


def test_a_token_file_that_others_can_read_is_named_when_it_is_copied(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "far.token"
    file.write_text("far-secret")
    ways = {*tmp_path.parents, tmp_path}  # a test's own folder lets nobody through
    monkeypatch.setattr(
        "holdfast.diagnostics.machine._mode", lambda path: 0o755 if path in ways else path.stat().st_mode
    )
    for mode, who in ((0o600, ""), (0o644, "others on this machine"), (0o640, "its group")):
        file.chmod(mode)
        words = ["context", "add", "far", "--url", "https://far.example", "--token-file", str(file), "--force"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 and "far-secret" not in done.output
        assert [line.partition(f" can read {file}")[0] for line in done.stderr.splitlines() if "can read" in line] == (
            [who] if who else []
        )
    assert contexts.read(tmp_path).contexts["far"].token == "far-secret"
