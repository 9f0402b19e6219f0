"""What was typed for a job is one job or an array, whoever asks; and where only one of them makes sense, it is said."""

from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.cli.job_names import meant
from holdfast.errors import Misuse
from holdfast.wire.http import ArrayView, JobView

pytestmark = pytest.mark.spec("J12", "J16")

JOB = JobView(
    id="job_1", name="alone", owner="me", argv=["true"], phase="ended", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=100, verdict="succeeded", failure=None, result_sha256="0", result_bytes=0, exit_code=0,
    attempts_made=1,
)  # fmt: skip
ITEM = msgspec.structs.replace(JOB, id="job_2", name="sweep", array="arr_1")
ARRAY = ArrayView("arr_1", "sweep", "me", 0, {}, True, 0, [])


class Network:
    """Knows a job and an array by their names, and notes what is done to which id."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.jobs, self.arrays = Kind(self, "job", JOB), Kind(self, "array", ARRAY)

    def events(self, *, job: str, **_: object) -> list[object]:
        self.did.append(("job", "events", job))
        return []

    def ping(self, patience_s: float | None = None) -> None:
        return None

    def close(self) -> None:
        return None

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Kind:
    def __init__(self, network: Network, name: str, answer: object) -> None:
        self._network, self._name, self._answer = network, name, answer

    def get(self, what: str, *, live: bool = False) -> object:
        if what in ("alone", "sweep"):
            self._network.did.append(("found", what, live))
            return {"alone": JOB, "sweep": ITEM}[what]
        return self._answer

    def __getattr__(self, verb: str) -> Any:
        def do(what: str, *_: object, **__: object) -> object:
            self._network.did.append((self._name, verb, what))
            return self._answer

        return do


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(holdfast.Client, "find", lambda *_, **__: made)
    return made


@pytest.mark.parametrize(
    ("words", "live", "did"),
    [(["stop", "sweep", "--json"], True, ("array", "stop", "arr_1")),
     (["stop", "alone", "--json"], True, ("job", "stop", "job_1")),
     (["results", "sweep", "--json"], False, ("array", "results", "arr_1")),
     (["results", "alone", "--json"], False, ("job", "results", "job_1")),
     (["rerun", "sweep", "--detach"], False, ("array", "retry", "arr_1")),
     (["rerun", "alone", "--detach"], False, ("job", "rerun", "job_1")),
     (["move", "alone", "--to", "ant", "--json"], True, ("job", "move", "job_1")),
     (["events", "--job", "alone", "--json"], False, ("job", "events", "job_1"))],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_name_is_looked_up_once_and_its_id_is_used(
    network: Network, words: list[str], live: bool, did: tuple[str, str, str]
) -> None:
    CliRunner().invoke(app, words)
    name = next(word for word in words if word in ("alone", "sweep"))
    assert network.did == [("found", name, live), did], "what is done harm to has to be what has not ended"


@pytest.mark.parametrize("word", ["sweep", "arr_1"])
@pytest.mark.parametrize(
    "words", [["logs", "-f"], ["job", "explain"], ["move", "--to", "ant"], ["events", "--job"]], ids=" ".join
)
def test_what_makes_sense_for_one_job_only_names_the_list_of_an_array(
    network: Network, words: list[str], word: str
) -> None:
    done = CliRunner().invoke(app, [*words, word])
    assert isinstance(done.exception, Misuse)
    assert "holdfast jobs --array arr_1" in done.exception.hint and word in done.exception.says
    assert not [one for one in network.did if one[0] == "job"]


def test_what_makes_sense_for_an_array_only_says_what_it_was_given(network: Network) -> None:
    done = CliRunner().invoke(app, ["jobs", "--array", "alone"])
    assert isinstance(done.exception, Misuse) and "holdfast job show job_1" in done.exception.hint


@pytest.mark.parametrize("word", ["job_", "job_1f", "arr_1"])
def test_the_beginning_of_an_id_is_left_to_who_knows_them(network: Network, word: str) -> None:
    assert meant(network, word) == word  # type: ignore[arg-type]
    assert not network.did
