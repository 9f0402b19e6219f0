"""A function that was typed into a notebook, as source: its own text and that of what it uses, in one small file.

Whatever it names is looked up here, now: modules become imports, functions and classes that were typed in too come
along as text, data comes along as data. What is none of these is refused by name. Nothing is compiled or pickled, so
the Python that reads it may be another one, and a person can read it too.
"""

import ast
import builtins
import dataclasses
import inspect
import linecache
import os
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from holdfast.callee import NotAValue, check
from holdfast.errors import Misuse


class Cell(msgspec.Struct, frozen=True):
    FILE: ClassVar[str] = "cell.py"

    source: str
    values: dict[str, Any]
    """Data that it names, which is set before its first line is run."""


def cell_of(body: Callable[..., Any], arguments: Any = ()) -> Cell:
    """The function and all that it needs, the classes of its arguments too. Misuse where something cannot come."""
    gathering = _Gathering(inspect.unwrap(body).__globals__)
    gathering.take(body.__name__, body)
    for kind in _kinds(arguments, set()):
        if kind.__module__ == body.__module__:
            gathering.take(kind.__qualname__.partition(".")[0], kind)
    source = "\n".join([*sorted(gathering.imports), "", *gathering.texts.values()])
    return Cell(source, gathering.values)


class _Gathering:
    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self.imports: set[str] = set()
        self.texts: dict[str, str] = {}
        """By name, what is needed first standing first."""
        self.values: dict[str, Any] = {}

    def take(self, name: str, thing: Any) -> None:
        if name in self.texts or name in self.values:
            return
        thing = inspect.unwrap(thing) if callable(thing) else thing
        if isinstance(thing, types.ModuleType):
            self.imports.add(_import_of(thing, name))
        elif isinstance(thing, type | types.FunctionType) and _typed_in(thing):
            self._text(name, thing)
        elif _importable(thing):
            self.imports.add(f"from {thing.__module__} import {thing.__qualname__} as {name}")
        else:
            try:
                check(thing)
            except NotAValue as wrong:
                raise Misuse(
                    f"the function uses {name}, which cannot come along: {wrong}",
                    hint="Make it inside of the function, or put both into a file.",
                ) from None
            self.values[name] = thing

    def _text(self, name: str, thing: Any) -> None:
        try:
            text = textwrap.dedent(_class_text(thing) if isinstance(thing, type) else inspect.getsource(thing))
        except (OSError, TypeError):
            raise Misuse(
                f"the source of {name} is not to be found: Python keeps that of files and of notebooks' cells only",
                hint="Put it into a file, and run or import that.",
            ) from None
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = [one for one in tree.decorator_list if not _ours(one, self._names)]
        self.texts[name] = ""  # it may name itself
        for used in sorted(_used(tree)):
            if used in self._names and not hasattr(builtins, used):
                self.take(used, self._names[used])
        del self.texts[name]
        self.texts[name] = ast.unparse(tree) + "\n"


def _class_text(kind: type) -> str:
    """As it was typed last. Python knows the text of a function by its lines, but that of a class by its file only."""
    for name, cached in reversed(list(linecache.cache.items())):
        # What never was on a disk was typed: it has no time.
        if len(cached) < 3 or cached[1] is not None:
            continue
        text = "".join(cached[2])
        try:
            found = [one for one in ast.parse(text, name).body if isinstance(one, ast.ClassDef)]
        except SyntaxError:
            continue
        for one in found:
            if one.name == kind.__qualname__:
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                return "".join(cached[2][first - 1 : one.end_lineno])
    return inspect.getsource(kind)


_PLAIN = (int, float, str, bytes, type(None))


def _kinds(value: Any, seen: set[int]) -> set[type]:
    """The dataclasses in a value."""
    if id(value) in seen:
        return set()
    seen.add(id(value))
    found: set[type] = set()
    inside: list[Any] = []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found.add(type(value))
        inside = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = list(value)
    return found.union(*(_kinds(one, seen) for one in inside if not isinstance(one, _PLAIN)))


def _import_of(module: types.ModuleType, name: str) -> str:
    parent, _, last = module.__name__.rpartition(".")
    return f"from {parent} import {last} as {name}" if parent else f"import {last} as {name}"


def _typed_in(thing: Any) -> bool:
    """Whether its module has no file that another process could import."""
    module = sys.modules.get(thing.__module__)
    file = getattr(module, "__file__", None)
    return module is None or (module.__name__ == "__main__" and (file is None or not os.path.exists(file)))


def _importable(thing: Any) -> bool:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return bool(module) and isinstance(name, str) and getattr(sys.modules.get(str(module)), name, None) is thing


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _ours(decorator: ast.expr, names: dict[str, Any]) -> bool:
    """`@function`, `@holdfast.function`, with or without options."""
    word = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(word, ast.Attribute):
        owner = names.get(word.value.id) if isinstance(word.value, ast.Name) else None
        return getattr(owner, "__name__", "") == "holdfast" and word.attr == "function"
    found = names.get(word.id) if isinstance(word, ast.Name) else None
    return getattr(found, "__module__", "") == "holdfast.client.functions"
