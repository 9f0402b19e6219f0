"""Runs one call of a function inside a job, and stores its return value. One file, standard library only.

`holdfast.client.functions` puts a copy of this file beside the call, so it needs nothing from the node; its Python may
differ from the caller's.

    inputs/call/callee.py     this file
    inputs/call/call.json     where the function is: {"module": …} or {"file": …}, its name, how many calls there are
    inputs/call/0/            the arguments of call 0, as a value: [[positional …], {named …}]
    holdfast-value/           its return value

A value is stored as data and never as code: reading one runs no code, even if it is hostile. `value.json` has the
value, with markers for what JSON cannot express; large bytes and NumPy arrays are in files of their own beside it.
"""

# Images have their own Python: nothing here needs more than 3.8.
from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import decimal
import importlib
import importlib.util
import json
import math
import os
import sys
import traceback
import types
import uuid
from collections.abc import Callable
from typing import Any

VALUE = "value.json"
RETURNED = "holdfast-value"
CALL = "call.json"
INLINE_BYTES_MAX = 4096
JSON_BYTES_MAX = 256 << 20
FILES_MAX = 100_000
DEPTH_MAX = 200
_MARK = "$"


class NotAValue(TypeError):
    """A value holds something that cannot be stored, or the stored data is not a valid value. The message says where,
    and what to do."""


# --- writing ---


def write(value: Any, folder: str, own_module: str = "") -> None:
    """Write a value to a folder, which is created. `own_module`: dataclasses of this module are allowed in it."""
    os.makedirs(folder, exist_ok=True)
    text = json.dumps(_Writer(folder, own_module).plain(value, "it", 0), allow_nan=False)
    with open(os.path.join(folder, VALUE), "w", encoding="utf-8") as file:
        file.write(text)


def check(value: Any) -> None:
    """Raise NotAValue if the value cannot be written. Writes nothing."""
    _Writer("", "").plain(value, "it", 0)


class _Writer:
    """Converts values to JSON. Without a folder it writes nothing."""

    def __init__(self, folder: str, own_module: str) -> None:
        self._folder = folder
        self._own_module = own_module
        self._files = 0

    def plain(self, value: Any, where: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise NotAValue(f"{where} is nested more than {DEPTH_MAX} deep, or contains itself")
        kind = type(value)
        if value is None or kind in (bool, str) or (kind is int and abs(value) < 1 << 63):
            return value
        if kind is int:
            return {_MARK: "int", "v": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {_MARK: "float", "v": repr(value)}
        if kind is list:
            return [self.plain(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
        if kind in (tuple, set, frozenset):
            return {_MARK: kind.__name__, "v": [self.plain(one, f"{where}[…]", depth + 1) for one in value]}
        if kind is dict:
            pairs = [
                [self.plain(k, f"a key of {where}", depth + 1), self.plain(v, f"{where}[{k!r:.40}]", depth + 1)]
                for k, v in value.items()
            ]
            return {_MARK: "dict", "v": pairs}
        if kind in (bytes, bytearray):
            return self._bytes(kind.__name__, bytes(value))
        if kind in _AS_TEXT:
            return {_MARK: kind.__name__, "v": _AS_TEXT[kind][0](value)}
        return self._other(value, kind, where, depth)

    def _other(self, value: Any, kind: type, where: str, depth: int) -> Any:
        if dataclasses.is_dataclass(kind) and self._own_module and kind.__module__ == self._own_module:
            if wrong := _why_not_filled(kind):
                raise NotAValue(f"{where} cannot be sent: {wrong}")
            names = [field.name for field in dataclasses.fields(value)]
            if unset := [name for name in names if not hasattr(value, name)]:
                raise NotAValue(f"{where}.{unset[0]} is not set")
            named = {name: self.plain(getattr(value, name), f"{where}.{name}", depth + 1) for name in names}
            return {_MARK: "dataclass", "name": kind.__qualname__, "v": named}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            if value.dtype.hasobject:
                raise NotAValue(f"{where} is a NumPy array of Python objects: only numbers and text can be in one")
            name = self._new_file(".npy")
            if self._folder:
                with open(os.path.join(self._folder, name), "wb") as file:
                    numpy.save(file, value, allow_pickle=False)
            return {_MARK: "scalar" if isinstance(value, numpy.generic) else "array", "v": name}
        raise NotAValue(
            f"{where} is of the type {kind.__module__}.{kind.__qualname__}, which cannot be sent as data: numbers, "
            "text, bytes, lists, tuples, sets, dicts, dates, NumPy arrays, and dataclasses of the function's file can"
        )

    def _bytes(self, kind: str, data: bytes) -> Any:
        if len(data) <= INLINE_BYTES_MAX:
            return {_MARK: kind, "v": base64.b64encode(data).decode()}
        name = self._new_file(".bytes")
        if self._folder:
            with open(os.path.join(self._folder, name), "wb") as file:
                file.write(data)
        return {_MARK: kind + " file", "v": name}

    def _new_file(self, ending: str) -> str:
        self._files += 1
        if self._files > FILES_MAX:
            raise NotAValue(f"it holds more than {FILES_MAX} arrays and large pieces of bytes")
        return f"{self._files}{ending}"


# --- reading ---


def read(folder: str, own: dict[str, Any] | None = None) -> Any:
    """Read the value in a folder. `own`: the names of the module whose dataclasses are allowed in it. Raises NotAValue
    for anything that `write` would not have written."""
    path = os.path.join(folder, VALUE)
    try:
        if os.path.getsize(path) > JSON_BYTES_MAX:
            raise NotAValue(f"the value is longer than {JSON_BYTES_MAX >> 20} MiB")
        with open(path, encoding="utf-8") as file:
            return _Reader(folder, own or {}).value(json.load(file), 0)
    except NotAValue:
        raise
    except RecursionError:
        raise NotAValue(f"the value is nested more than {DEPTH_MAX} deep") from None
    except OSError as wrong:
        raise NotAValue(f"the value cannot be read: {wrong.strerror or wrong}") from None
    except Exception as wrong:  # untrusted data: any error means that it is not a value
        raise NotAValue(f"this is not a value: {type(wrong).__name__}: {wrong}") from None


class _Reader:
    def __init__(self, folder: str, own: dict[str, Any]) -> None:
        self._folder = folder
        self._own = own

    def value(self, plain: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise NotAValue(f"the value is nested more than {DEPTH_MAX} deep")
        if isinstance(plain, list):
            return [self.value(one, depth + 1) for one in plain]
        if not isinstance(plain, dict):
            return plain
        kind, inside = plain[_MARK], plain["v"]
        if kind in ("tuple", "set", "frozenset"):
            make = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return make(self.value(one, depth + 1) for one in _list(inside))
        if kind == "dict":
            return {self.value(k, depth + 1): self.value(v, depth + 1) for k, v in _list(inside)}
        if kind in ("bytes", "bytearray"):
            data = base64.b64decode(inside, validate=True)
            return bytearray(data) if kind == "bytearray" else data
        if kind in ("bytes file", "bytearray file"):
            with open(self._place(inside), "rb") as file:
                data = file.read()
            return bytearray(data) if kind == "bytearray file" else data
        if kind == "int":
            return int(inside, 16)
        if kind in ("array", "scalar"):
            return self._array(inside, kind == "scalar")
        if kind == "dataclass":
            return self._dataclass(plain["name"], inside, depth)
        for known, (_, back) in _AS_TEXT.items():
            if known.__name__ == kind:
                return back(inside)
        raise NotAValue(f"it holds a {str(kind)[:40]!r}, which is not known here")

    def _place(self, name: Any) -> str:
        if not isinstance(name, str) or os.path.basename(name) != name or name.startswith("."):
            raise NotAValue("it names a file outside of its folder")
        path = os.path.join(self._folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            raise NotAValue(f"it names {name!r}, which does not exist")
        return path

    def _array(self, name: Any, scalar: bool) -> Any:
        try:
            import numpy
        except ImportError:
            raise NotAValue("it holds a NumPy array, and NumPy is not installed here") from None
        from numpy.lib import format as npy

        with open(self._place(name), "rb") as file:
            # The header can claim more data than the file holds, and that much memory would be allocated.
            header = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(file)
            if dtype.hasobject or math.prod(shape) * dtype.itemsize != os.path.getsize(file.name) - file.tell():
                raise NotAValue(f"{name!r} is not an array of numbers or text")
            file.seek(0)
            array = numpy.load(file, allow_pickle=False)
        return array[()] if scalar else array

    def _dataclass(self, name: Any, fields: Any, depth: int) -> Any:
        """Set field by field: neither `__init__` nor any other code of the class runs."""
        kind = self._own_class(str(name))
        if not isinstance(fields, dict) or set(fields) != {field.name for field in dataclasses.fields(kind)}:
            raise NotAValue(f"it holds a {name} with the wrong fields")
        if wrong := _why_not_filled(kind):
            raise NotAValue(wrong)
        made = object.__new__(kind)
        for field, plain in fields.items():
            _fill(made, field, self.value(plain, depth + 1))
        return made

    def _own_class(self, name: str) -> Any:
        """A dataclass of the function's own file, by its qualified name. Imported classes and aliases are refused."""
        names: Any = self._own
        place: Any = None
        for part in name.split("."):
            place = names.get(part)
            if not isinstance(place, type):
                break
            names = vars(place)
        own = isinstance(place, type) and place.__module__ == self._own.get("__name__") and place.__qualname__ == name
        if not own or not dataclasses.is_dataclass(place):
            raise NotAValue(f"it holds a {name[:80]!r}, which is not a dataclass of the function's own file")
        return place


def _why_not_filled(kind: Any) -> str:
    """Why a dataclass cannot be set field by field; empty if it can. The writer and the reader both use this, so that
    nothing is sent that the reader would refuse."""
    try:
        object.__new__(kind)
    except TypeError as wrong:  # an exception, a dict, … has more than its fields; or it is abstract
        return f"{kind.__qualname__} consists of more than its fields ({wrong})"
    acting = [field.name for field in dataclasses.fields(kind) if _acts(_stands(kind, field.name))]
    return f"{acting[0]!r} would replace behaviour of {kind.__qualname__}" if acting else ""


def _stands(kind: Any, field: str) -> Any:
    """The class attribute with the name of a field: a slot, a default, or a descriptor with behaviour."""
    return next((vars(base)[field] for base in kind.__mro__ if field in vars(base)), None)


def _acts(stands: Any) -> bool:
    """Whether setting the field would run code or replace behaviour. A slot is made to be set. A plain function is the
    field's default: it acts as a method only while the field is not set."""
    return hasattr(type(stands), "__get__") and not isinstance(stands, (types.MemberDescriptorType, types.FunctionType))


def _fill(made: Any, field: str, value: Any) -> None:
    stands = _stands(type(made), field)
    if isinstance(stands, types.MemberDescriptorType):
        stands.__set__(made, value)
    else:
        object.__getattribute__(made, "__dict__")[field] = value


def _list(inside: Any) -> list[Any]:
    if not isinstance(inside, list):
        raise NotAValue("a list is missing where one belongs")
    return inside


def _float(text: Any) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise NotAValue(f"{str(text)[:40]!r} is not a number")
    return float(text)


_AS_TEXT: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    float: (repr, _float),
    complex: (lambda one: [repr(one.real), repr(one.imag)], lambda pair: complex(float(pair[0]), float(pair[1]))),
    datetime.datetime: (lambda one: one.isoformat(), lambda text: datetime.datetime.fromisoformat(text)),
    datetime.date: (lambda one: one.isoformat(), lambda text: datetime.date.fromisoformat(text)),
    datetime.time: (lambda one: one.isoformat(), lambda text: datetime.time.fromisoformat(text)),
    datetime.timedelta: (
        lambda one: [one.days, one.seconds, one.microseconds],
        lambda parts: datetime.timedelta(*(int(part) for part in parts)),
    ),
    decimal.Decimal: (str, lambda text: decimal.Decimal(str(text))),
    uuid.UUID: (str, lambda text: uuid.UUID(str(text))),
}


# --- calling ---


def stand_in() -> None:
    """Allow the function's own file to use `import holdfast` and `@holdfast.function(…)`: here, the decorator returns
    the function unchanged. Other names of Holdfast are only placeholders, unless the job brings a Holdfast of its
    own."""
    try:
        package = importlib.import_module("holdfast")
    except ImportError:
        package = sys.modules["holdfast"] = _only_names("holdfast")

    def function(given: Any = None, **_: Any) -> Any:
        return _itself(given) if given is not None else _itself

    package.function = function  # type: ignore[attr-defined]
    if "__getattr__" not in vars(package):
        package.__getattr__ = _placeholder  # type: ignore[method-assign]
    sys.meta_path.append(_OnlyNames())  # type: ignore[arg-type]


def _itself(function: Any) -> Any:
    """The function, with calls over the network that say what is wrong: no job sends another."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "a job imports the file of its function, and this file then calls the function over the network: put that "
            'call under `if __name__ == "__main__":`'
        )

    for name in ("remote", "spawn", "map"):
        with contextlib.suppress(AttributeError, TypeError):
            setattr(function, name, refuse)
    return function


def _placeholder(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Exception,), {})  # so that it works in an `except` clause too


def _only_names(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    module.__getattr__ = _placeholder  # type: ignore[method-assign]
    return module


class _OnlyNames:
    """The last module finder: provides the modules of Holdfast that no other finder has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name.startswith("holdfast.") else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _only_names(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def find(call: dict[str, Any], beside: str) -> tuple[Any, str, dict[str, Any]]:
    """The function, its module's name, and that module's namespace."""
    if call.get("file"):
        path = os.path.join(beside, call["file"]) if call.get("beside") else call["file"]
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        spec = importlib.util.spec_from_file_location("__holdfast_main__", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["__holdfast_main__"] = module
        for name, at in call.get("globals", {}).items():
            setattr(module, name, read(os.path.join(beside, at)))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(call["module"])
    found: Any = module
    for part in call["name"].split("."):
        found = getattr(found, part)
    return found, module.__name__, vars(module)


def main(beside: str, number: str = "0") -> int:
    with open(os.path.join(beside, CALL), encoding="utf-8") as file:
        call = json.load(file)
    stand_in()
    try:
        function, module, names = find(call, beside)
        positional, named = read(os.path.join(beside, str(int(number))), names)
        returned = function(*positional, **named)
        write(returned, RETURNED, module)
    except SystemExit as wrong:
        if wrong.code:
            raise
        print(f"SystemExit: {call['name']} ended its process instead of returning a value", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        raise
    except BaseException as wrong:
        _tell(wrong)
        return 1
    return 0


def _tell(wrong: BaseException) -> None:
    """Print the traceback without the frames of this file, which do not help the caller."""
    shown = traceback.TracebackException.from_exception(wrong)
    seen = {id(shown)}
    waiting = [shown]
    while waiting:
        one = waiting.pop()
        one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if frame.filename != __file__])
        for further in (one.__cause__, one.__context__):
            if further is not None and id(further) not in seen:
                seen.add(id(further))
                waiting.append(further)
    print("".join(shown.format()), file=sys.stderr, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(os.path.dirname(os.path.abspath(__file__)), *sys.argv[1:2]))
