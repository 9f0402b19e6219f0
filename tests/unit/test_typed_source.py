"""The text of a function that was typed at the prompt is taken from the terminal's history, and only if it is the very
function (SPEC J8)."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client.typed_source import typed_source

pytestmark = pytest.mark.spec("J8")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def history(*lines: str) -> None:
        readline = types.ModuleType("readline")
        readline.get_current_history_length = lambda: len(lines)  # type: ignore[attr-defined]
        readline.get_history_item = lambda number: lines[number - 1]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "readline", readline)

    return history


def made(text: str, name: str = "f") -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, "<stdin>", "exec"), names)
    return names[name]


TWO = ("def f(x):", "    y = x + 1", "    return y * 2")


def test_the_newest_block_that_is_the_function_is_its_text(typed: Callable[..., None]) -> None:
    typed("def f(x):", "    return x", "import os", "@one", "@two(3)", *TWO, "f(3)")
    assert typed_source(made("\n".join(TWO))) == "\n".join(["@one", "@two(3)", *TWO, ""])
    assert typed_source(made("def f(x):\n    return x")) == "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    y = x + 2\n    return y * 2",
        "def f(x):\n    y = x + 1.0\n    return y * 2",
        "def f(x):\n    y = x + True\n    return y * 2",
        "def f(z):\n    y = z + 1\n    return y * 2",
        "def f(x, *, k=1):\n    y = x + 1\n    return y * 2",
        "def f(x):\n    y = g(x)\n    return y * 2",
        "async def f(x):\n    y = x + 1\n    return y * 2",
        "def g(x):\n    y = x + 1\n    return y * 2\nf = g",
    ],
)
def test_a_block_that_only_resembles_the_function_is_not_its_text(typed: Callable[..., None], other: str) -> None:
    typed(*TWO)
    assert typed_source(made(other)) == ""


def test_what_is_inside_counts_too(typed: Callable[..., None]) -> None:
    text = "def f(x):\n    def inner(y):\n        return y + {}\n    return inner(x)"
    typed(*text.format(1).splitlines())
    assert typed_source(made(text.format(1))) and not typed_source(made(text.format(2)))


def test_blank_and_odd_lines_in_the_history_do_no_harm(typed: Callable[..., None]) -> None:
    typed("def f(", "def f(x):", "    y = x + 1", "", "    return y * 2", "", "# done", "f(2", ")")
    assert "return y * 2" in typed_source(made("\n".join(TWO)))


def test_without_a_history_there_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "readline", raising=False)
    assert typed_source(made("\n".join(TWO))) == ""
