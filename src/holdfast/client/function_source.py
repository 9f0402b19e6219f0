"""Turns a function typed into a notebook into source: its own text and the text of what it uses, in one small file.

Every name it uses is resolved here and now: modules become imports, functions and classes that were also typed in are
included as text, data is included as data. Anything else is rejected by name. Nothing is compiled or pickled, so
another Python version can read the file, and so can a person.
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from holdfast.callee import DEPTH_MAX, NotAValue, check
from holdfast.client.typed_source import typed_source
from holdfast.errors import Misuse


class Cell(msgspec.Struct, frozen=True):
    FILE: ClassVar[str] = "cell.py"

    source: str
    values: dict[str, Any]
    """Data that the function refers to; set before its first line runs."""


def cell_of(body: Callable[..., Any], arguments: Any = ()) -> Cell:
    """The function and everything it needs, including the classes of its arguments. Raises Misuse if a part cannot be
    sent.
    """
    names = inspect.unwrap(body).__globals__
    gathering = _Gathering(names)
    gathering.take(body.__name__, body)
    for kind in _kinds(arguments):
        # A nested class is included with the class around it, as it was typed.
        first = kind.__qualname__.partition(".")[0]
        if kind.__module__ == body.__module__:
            gathering.take(first, names.get(first, kind))
    source = "\n".join([*sorted(gathering.imports), "", *gathering.texts.values()])
    return Cell(source, gathering.values)


class _Gathering:
    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self.imports: set[str] = set()
        self.texts: dict[str, str] = {}
        """By name, dependencies first."""
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
                    f"the function uses {name}, which cannot be sent: {wrong}",
                    hint="Create it inside the function, or put both into a file.",
                ) from None
            self.values[name] = thing

    def _text(self, name: str, thing: Any) -> None:
        try:
            text = textwrap.dedent(_class_text(thing) if isinstance(thing, type) else inspect.getsource(thing))
        except (OSError, TypeError):
            text = typed_source(thing) if isinstance(thing, types.FunctionType) else ""
        if not text:
            raise Misuse(
                f"the source of {name} is not available: Python keeps it only for files and notebook cells",
                hint="Put it into a file, and run or import that.",
            )
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(tree, ast.FunctionDef):
            tree.decorator_list = [one for one in tree.decorator_list if not _ours(one, self._names)]
        self.texts[name] = ""  # it may refer to itself
        for used in sorted(_used(tree)):
            if used in self._names and not hasattr(builtins, used):
                self.take(used, self._names[used])
        del self.texts[name]
        self.texts[name] = ast.unparse(tree) + "\n"


def _class_text(kind: type) -> str:
    """The class as it was typed. Python finds the text of a function by its lines, but that of a class only by its
    file. So the cell is that of the class's methods; if it has none, the newest cell with a matching class."""
    files = {code.co_filename for code in _codes(kind)}
    for name, cached in reversed(list(linecache.cache.items())):
        # Entries without a modification time were typed in; they were never on a disk.
        if len(cached) < 3 or cached[1] is not None or (files and name not in files):
            continue
        text = "".join(cached[2])
        try:
            found = [one for one in ast.parse(text, name).body if isinstance(one, ast.ClassDef)]
        except SyntaxError:
            continue
        for one in reversed(found):
            if one.name == kind.__qualname__ and (files or _fields(one) == set(inspect.get_annotations(kind))):
                first = min([one.lineno, *(decorator.lineno for decorator in one.decorator_list)])
                return "".join(cached[2][first - 1 : one.end_lineno])
    return inspect.getsource(kind)


def _codes(kind: type) -> Iterator[types.CodeType]:
    """Code of the methods typed in the class itself. Methods generated by decorators and dataclasses have no cell."""
    for thing in vars(kind).values():
        if isinstance(thing, property):
            thing = thing.fget
        elif isinstance(thing, classmethod | staticmethod):
            thing = thing.__func__
        body = inspect.unwrap(thing) if isinstance(thing, types.FunctionType) else None
        if isinstance(body, types.FunctionType) and body.__qualname__.startswith(f"{kind.__qualname__}."):
            cached = linecache.cache.get(body.__code__.co_filename, ())
            if len(cached) > 2 and cached[1] is None:
                yield body.__code__


def _fields(tree: ast.ClassDef) -> set[str]:
    """With Python's name mangling: a name with two leading underscores is private to the class."""
    names = [one.target.id for one in tree.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    own = f"_{tree.name.lstrip('_')}"
    return {f"{own}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names}


_PLAIN = (int, float, str, bytes, type(None))


def _kinds(value: Any) -> list[type]:
    """The dataclasses in a value. Values nested too deeply to be sent are rejected when they are written."""
    seen: set[int] = set()
    found: dict[type, None] = {}
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, _PLAIN) or id(one) in seen or depth > DEPTH_MAX:
            continue
        seen.add(id(one))
        inside: Iterable[Any] = ()
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            found[type(one)] = None
            inside = [getattr(one, field.name, None) for field in dataclasses.fields(one)]
        elif isinstance(one, dict):
            inside = [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            inside = one
        waiting.extend((part, depth + 1) for part in inside)
    return list(found)


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
