"""The front door of the command line: what a person sees when something fails that nobody foresaw."""

import pytest

from holdfast.cli import frame
from holdfast.cli import main as door
from holdfast.errors import NotFound


def failing_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code when the command raises this."""

    def command(**_: str) -> None:
        raise error

    monkeypatch.setattr(frame, "app", command)
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
