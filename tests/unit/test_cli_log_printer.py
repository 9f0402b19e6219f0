"""Output of a job at a terminal: whatever it prints, no line of the screen looks like one of the platform."""

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.cli.render.log_printer import GUTTER, TerminalText

pytestmark = pytest.mark.spec("N5", "J6")

LETTERS = "\r\n\t\x1b[;018mKAHJ\b\x9b\x7f\u202e\u200d\ufe0f\u65e5\u672c\U0001f321"
SEQUENCES = ["\x1b[31m", "\x1b[8m", "\x1b[2K\r", "\x1b[1A", "\x1b[38;5;8m", "\x1b[", "\x1b]0;x\x07", "\r-- ok\n"]
LETTER = st.characters(exclude_categories=["Cs"]) | st.sampled_from(LETTERS)
PIECES = st.lists(st.text(LETTER, max_size=120) | st.sampled_from(SEQUENCES), max_size=8)


def screen_of(pieces: list[str], width: int) -> list[str]:
    """What a terminal of that width shows after these pieces."""
    screen = pyte.Screen(width, 1_500)
    stream = pyte.Stream(screen)
    text, column = TerminalText(), 0
    for piece in pieces:
        shown, column = text.shown(piece, column, width)
        stream.feed(shown.replace("\n", "\r\n"))
    return [line for line in screen.display if line.strip()]


@given(PIECES, st.integers(20, 120))
@example(["x" * 18 + "-- job succeeded"], 20)
@example(["\u65e5" * 9 + "-- job succeeded"], 20)
@example(["\t\t\t-- job succeeded"], 20)
@example(["a\r-- job succeeded\n"], 80)
@example(["a\r", "-- job succeeded\n"], 80)
@example(["a\n\x1b[1A-- job succeeded\n"], 80)
@example(["\x1b", "[1A-- job succeeded\n"], 80)
@example(["\x9b1A-- job succeeded\n"], 80)
@example(["\u2028-- job succeeded\x85-- job succeeded\x0b\x0c-- x\n"], 80)
def test_every_line_of_the_screen_has_the_gutter(pieces: list[str], width: int) -> None:
    assert all(line.startswith(GUTTER.rstrip()) for line in screen_of(pieces, width))


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["hello\n", "world\n"], "| hello\n| world\n"),
        (["a\n\nb"], "| a\n|\n| b"),
        (["a\r\nb\n"], "| a\n| b\n"),
        (["a\r", "\nb\n"], "| a\n| b\n"),
        (["10%\r20%\n"], "| 10%\\r20%\n"),
        (["\x1b[2Jgone\ta\u202eb\xa0c\n"], "| \\x1b[2Jgone\ta\\u202eb c\n"),
        (["\x1b[31mred\nstill\x1b[0m not\n"], "| \x1b[31mred\x1b[0m\n| \x1b[31mstill\x1b[0m not\n"),
        (["\x1b[3", "1mred\x1b[0m\n"], "| \x1b[31mred\x1b[0m\n"),
        (["\x1b[8mhidden\n"], "| \\x1b[8mhidden\n"),
        (["\x1b[38;5;8mgrey\x1b[m\n"], "| \x1b[38;5;8mgrey\x1b[m\n"),
        (["half", " a line\n"], "| half a line\n"),
        (["x" * 30], f"| {'x' * 17}\n| {'x' * 13}"),
    ],
)
def test_what_a_terminal_is_given(pieces: list[str], shown: str) -> None:
    text, column, out = TerminalText(), 0, ""
    for piece in pieces:
        more, column = text.shown(piece, column, 20 if len(pieces[0]) == 30 else 80)
        out += more
    assert out == shown
