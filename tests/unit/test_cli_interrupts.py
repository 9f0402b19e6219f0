"""Whoever leaves work that they watched, or is made to, is told that it goes on and how to find it again."""

from collections.abc import Callable
from typing import NoReturn

import pytest
import typer

from holdfast.cli.watch import interrupts
from holdfast.cli.watch.interrupts import Choice, seen_through
from holdfast.errors import Unreachable

pytestmark = pytest.mark.spec("J3", "J5")

LATER = {"follow it": "holdfast logs -f job_1"}


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def does() -> NoReturn:
        raise error

    return does


def test_a_network_that_falls_silent_ends_the_watching_and_not_the_work() -> None:
    with pytest.raises(Unreachable) as caught:
        seen_through("job_1", raising(Unreachable("nobody there")), lambda: None, LATER)
    assert caught.value.hint.splitlines() == [
        "job_1 goes on all the same. When the network answers again:",
        "  follow it:  holdfast logs -f job_1",
    ]
    assert caught.value.exit_code == 69


def test_whoever_reads_no_more_is_told_elsewhere_that_the_work_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokenPipeError):
        seen_through("job_1", raising(BrokenPipeError()), lambda: None, LATER)
    assert "job_1 goes on, though nobody reads" in (said := capsys.readouterr().err)
    assert "holdfast logs -f job_1" in said


def test_a_stop_that_nobody_confirmed_is_not_called_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given somebody who asks for it to be stopped, of a network that does not answer
    monkeypatch.setattr(interrupts, "asked", lambda: Choice.STOP)

    # when they lose patience
    with pytest.raises(typer.Exit) as caught:
        seen_through("job_1", raising(KeyboardInterrupt()), raising(KeyboardInterrupt()), LATER)

    # then they are not told that it stops
    assert caught.value.exit_code == 130
    said = capsys.readouterr().err
    assert "the network has not confirmed yet that job_1 is stopped: it may go on" in said
    assert "is being stopped" not in said
