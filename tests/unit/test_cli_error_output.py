"""How a command speaks of itself: what is hostile is cleaned, what is coloured is not coloured for everybody."""

import errno
import io
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli import error_output
from holdfast.cli.commands import arrays
from holdfast.cli.commands import run as run_command
from holdfast.errors import NotFound

pytestmark = pytest.mark.spec("J7")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_error_that_quotes_a_stranger_draws_nothing_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code = error_output.told(NotFound("there is no job '\x1b[2J\x07\u202eevil'", hint="look\x1b[31m\nelsewhere\r"))

    assert code == 66
    said = capsys.readouterr().err
    assert not {c for c in said if not c.isprintable()} - {"\n"}, repr(said)
    assert "  elsewhere\n" in said, "each line of a hint stands below the other"


@pytest.mark.parametrize("what", [run_command, arrays])
def test_why_results_did_not_arrive_draws_nothing_on_the_screen(
    what: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a node that refuses to hand its results out, in words of its own
    def refuse(*_: object) -> None:
        raise NotFound("ant\x1b[2J\u202eydaer has none")

    monkeypatch.setattr(arrays, "bring", refuse)
    monkeypatch.setattr("holdfast.cli.commands.results.bring", refuse)

    what._brought(None, SimpleNamespace(id="it", jobs=[SimpleNamespace(verdict="failed")]))

    said = capsys.readouterr().err
    assert "its results did not arrive: ant[2Jydaer has none [not_found]\n" in said


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EACCES, "file_unusable"), (errno.EROFS, "file_unusable")]
)
def test_what_the_machine_refuses_is_told_with_what_to_do(
    number: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_output.told(OSError(number, "the system's words", "a/file")) == 74
    first, hint = capsys.readouterr().err.splitlines()
    assert first == f"error: a/file: the system's words [{code}]"
    assert hint.startswith("  ") and hint.strip()


@pytest.mark.parametrize(
    ("environ", "coloured", "live"),
    [({}, True, True), ({"NO_COLOR": "1"}, False, True), ({"TERM": "dumb"}, False, False)],
)
def test_colours_and_live_lines_are_for_terminals_that_want_them(
    environ: dict[str, str], coloured: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert (error_output.coloured(Screen()), error_output.live(Screen())) == (coloured, live)
    assert not error_output.coloured(io.StringIO()) and not error_output.live(io.StringIO())
