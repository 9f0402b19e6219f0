"""The client finds its network: flags before environment before what `holdfast up` left on this machine."""

from pathlib import Path

import msgspec
import pytest

from holdfast.client.endpoint import find
from holdfast.errors import Misconfigured

pytestmark = pytest.mark.spec("N3")

LOCAL = "http://127.0.0.1:8420"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose home holds a local orchestrator's endpoint."""
    folder = tmp_path / "orchestrator"
    folder.mkdir()
    (folder / "endpoint.json").write_bytes(msgspec.json.encode({"url": LOCAL, "certificate": "PEM"}))
    (folder / "admin.token").write_text("local-secret\n")
    (tmp_path / "other.token").write_text("other-secret\n")
    return {"HOLDFAST_HOME": str(tmp_path)}


def test_without_a_word_it_is_the_local_one(home: dict[str, str]) -> None:
    found = find(environ=home)
    assert (found.url, found.token, found.certificate) == (LOCAL, "local-secret", "PEM")


def test_environment_wins_over_local_and_flags_over_environment(home: dict[str, str]) -> None:
    environ = {**home, "HOLDFAST_URL": "http://127.0.0.1:2/", "HOLDFAST_ADMIN_TOKEN": "from-env"}
    assert (find(environ=environ).url, find(environ=environ).token) == ("http://127.0.0.1:2", "from-env")

    file = Path(home["HOLDFAST_HOME"]) / "other.token"
    flagged = find("http://127.0.0.1:3", file, environ=environ)
    assert (flagged.url, flagged.token) == ("http://127.0.0.1:3", "other-secret")


def test_the_token_may_come_from_a_file_named_in_the_environment(home: dict[str, str]) -> None:
    environ = {**home, "HOLDFAST_ADMIN_TOKEN_FILE": str(Path(home["HOLDFAST_HOME"]) / "other.token")}
    assert find(environ=environ).token == "other-secret"


def test_the_local_secret_is_never_given_to_another_address(home: dict[str, str]) -> None:
    elsewhere = find("http://127.0.0.1:9", environ=home)
    assert (elsewhere.token, elsewhere.certificate) == ("", "")
    assert find(LOCAL, environ=home).token == "local-secret"


def test_what_is_missing_or_broken_is_named(tmp_path: Path, home: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="no orchestrator is known here") as caught:
        find(environ={"HOLDFAST_HOME": str(tmp_path / "nowhere")})
    assert "holdfast up" in caught.value.hint

    with pytest.raises(Misconfigured, match=r"missing\.token"):
        find(token_file=tmp_path / "missing.token", environ=home)

    (tmp_path / "orchestrator" / "endpoint.json").write_text("{")
    with pytest.raises(Misconfigured, match=r"endpoint\.json"):
        find(environ=home)
