"""Questions: only to who can answer, and no answer does harm."""

import io
import os
import pty
import sys
from collections.abc import Callable, Iterator

import pytest

from holdfast.cli import connection_monitor, prompts

pytestmark = pytest.mark.spec("J3")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


Typed = Callable[[bytes], Screen]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    """Somebody sits there, and answers so as soon as they are asked."""
    ours, theirs = pty.openpty()
    with open(theirs) as keys:

        def typed(answer: bytes) -> Screen:
            class Asked(Screen):
                def write(self, text: str) -> int:
                    if text:
                        os.write(ours, answer)
                    return super().write(text)

            monkeypatch.setattr(sys, "stdin", keys)
            monkeypatch.setattr(sys, "stderr", screen := Asked())
            return screen

        yield typed
        monkeypatch.undo()
    os.close(ours)


@pytest.mark.parametrize(
    ("keys", "answer"), [(b"xy", "yes"), (b"N", "no"), (b"\x04", "nothing")], ids=["another first", "capital", "ctrl-d"]
)
def test_one_key_answers_and_what_is_no_answer_is_not_heard(at_a_terminal: Typed, keys: bytes, answer: str) -> None:
    screen = at_a_terminal(keys)
    assert prompts.key("Well? ", {b"y": "yes", b"n": "no"}, "nothing") == answer
    assert screen.getvalue() == "Well? "


@pytest.mark.parametrize(
    ("keys", "answer"), [(b" python3 x.py \n", "python3 x.py"), (b"\n", "echo hi"), (b"\x04", "echo hi")]
)
def test_a_line_answers_and_none_is_what_was_offered(at_a_terminal: Typed, keys: bytes, answer: str) -> None:
    screen = at_a_terminal(keys)
    assert prompts.line("Which", "echo hi") == answer
    assert screen.getvalue().startswith("Which [echo hi]: ")


@pytest.mark.parametrize("missing", ["stdin", "stderr"])
def test_nobody_is_asked_where_nobody_can_answer(
    at_a_terminal: Typed, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(b"y")
    monkeypatch.setattr(sys, missing, nobody := io.StringIO("y\n"))

    assert prompts.key("Well? ", {b"y": "yes"}, "nothing") == "nothing"
    assert prompts.line("Which", "echo hi") == "echo hi"
    assert nobody.getvalue() == "y\n" and nobody.tell() == 0, "neither read nor written"


@pytest.mark.parametrize("ask", [lambda: prompts.key("Well? ", {b"\n": 1}, 0), lambda: prompts.line("Which", "echo")])
def test_nothing_is_said_in_the_middle_of_a_question(
    at_a_terminal: Typed, ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a network that falls silent while somebody is asked something
    said: list[str] = []
    screen = at_a_terminal(b"\n")
    shown = screen.write

    def write(text: str) -> int:
        connection_monitor._voices[-1].say("no answer")
        return shown(text)

    monkeypatch.setattr(screen, "write", write)

    # then they read the question, and nothing else
    with connection_monitor.through(said.append):
        ask()
        assert not said
        connection_monitor._voices[-1].say("no answer")
    assert said == ["no answer"]
