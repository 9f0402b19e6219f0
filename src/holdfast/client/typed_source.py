"""Finds the text of a function that was typed at Python's prompt.

Python keeps the text of files and of notebook cells; of what is typed at the prompt it keeps none before 3.13. The
terminal's history has the lines. A block of them counts only if it compiles to the very code of the function, so a line
that the history lacks, or an older function of the same name, is never taken for it.
"""

import re
import sys
import types
from collections.abc import Iterator
from typing import Any


def typed_source(function: types.FunctionType) -> str:
    """Its text with its decorators; empty if the history does not have it."""
    lines = _history()
    begins = re.compile(rf"(?:async )?def {re.escape(function.__name__)}\(")
    for start in reversed(range(len(lines))):
        if begins.match(lines[start]):
            for text in _blocks(lines, start):
                if _is_text_of(text, function):
                    return "\n".join([*_decorators(lines, start), text, ""])
    return ""


def _history() -> list[str]:
    readline: Any = sys.modules.get("readline")
    if readline is None:
        return []
    return [readline.get_history_item(number + 1) or "" for number in range(readline.get_current_history_length())]


def _blocks(lines: list[str], start: int) -> Iterator[str]:
    """The lines that may be the function, the most first: it ends where a line is not indented, at the latest."""
    end = start + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t)#"):
        end += 1
    for last in range(end, start, -1):
        yield "\n".join(lines[start:last])


def _decorators(lines: list[str], start: int) -> list[str]:
    first = start
    while first and lines[first - 1].startswith("@"):
        first -= 1
    return lines[first:start]


def _is_text_of(text: str, function: types.FunctionType) -> bool:
    try:
        module = compile(text, "<typed>", "exec")
    except SyntaxError:
        return False
    made = [one for one in module.co_consts if isinstance(one, types.CodeType) and one.co_name == function.__name__]
    return len(made) == 1 and _alike(made[0], function.__code__)


def _alike(one: types.CodeType, other: types.CodeType) -> bool:
    def facts(code: types.CodeType) -> tuple[Any, ...]:
        return (
            code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
            code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount,
        )  # fmt: skip

    if facts(one) != facts(other) or len(one.co_consts) != len(other.co_consts):
        return False
    for here, there in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(here, types.CodeType) and isinstance(there, types.CodeType):
            if not _alike(here, there):
                return False
        elif repr(here) != repr(there):  # not ==, by which 1, 1.0 and True are the same
            return False
    return True
