"""The front door of the command line: what a person sees when something fails that nobody foresaw."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli import app
from holdfast.cli import main as door
from holdfast.errors import NotFound


def failing_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code when the command raises this."""

    def command(**_: str) -> None:
        raise error

    monkeypatch.setattr(app, "app", command)
    with pytest.raises(SystemExit) as caught:
        door.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.spec("J7")
def test_a_fault_of_our_own_is_one_line_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = failing_with(RuntimeError("what\nnobody foresaw"), monkeypatch)
    told = capsys.readouterr().err

    assert code == 70
    assert told.splitlines()[0] == "error: RuntimeError: what nobody foresaw [internal]"
    assert "Traceback" not in told


@pytest.mark.spec("J7")
def test_the_trace_is_there_for_whoever_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    failing_with(RuntimeError("boom"), monkeypatch)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.spec("J7")
def test_a_known_error_says_what_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = failing_with(NotFound("there is no job 'x'", hint="`holdfast jobs` lists them."), monkeypatch)
    told = capsys.readouterr().err

    assert code == 66
    assert told == "error: there is no job 'x' [not_found]\n  `holdfast jobs` lists them.\n"


# --- Ctrl-C before anything is there ---

AT_IMPORT = """
import sys
wanted, sys.argv = sys.argv[1], ["holdfast", *sys.argv[2:]]

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            raise KeyboardInterrupt

before = set(sys.modules)
import holdfast.cli.main as door
own = {"holdfast", "holdfast.cli", "holdfast.cli.main"}
assert set(sys.modules) - before <= own, "what is loaded before anybody could catch it"
sys.meta_path.insert(0, CtrlC())
door.main()
"""


@pytest.mark.spec("J7")
@pytest.mark.parametrize(
    ("module", "words"),
    [("holdfast.cli.command_table", ["--help"]), ("holdfast.cli.error_output", ["jobs"]), ("typer", ["jobs"]),
     ("holdfast.cli.commands.jobs", ["jobs"]), ("httpx", ["jobs"])],
)  # fmt: skip
def test_ctrl_c_while_a_command_is_being_loaded_is_one_word(module: str, words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT, module, *words],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path), "HOLDFAST_URL": "http://127.0.0.1:9"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.spec("J7")
def test_ctrl_c_that_a_command_says_nothing_of_is_told_with_what_is_known_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("job_1 goes on: only the waiting was interrupted.")

    monkeypatch.setattr("holdfast.cli.commands.jobs.connect", waits)
    monkeypatch.setattr("sys.argv", ["holdfast", "jobs"])
    with pytest.raises(SystemExit) as caught:
        door.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "\njob_1 goes on: only the waiting was interrupted.\n"


@pytest.mark.spec("J7")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_is_closed_is_no_fault(closed: str, tmp_path: Path) -> None:
    line = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-m", "holdfast.cli", "context", "list"],
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, "internal" in done.stderr) == (0, False), done.stderr
