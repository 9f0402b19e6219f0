"""YAML with positions: every value has its line and column, so that an error can point at it.

Hostile input is rejected early: size, depth, duplicate keys, anchors (a small file could expand into a huge one). The
meaning of the values is not known here.
"""

import importlib
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from holdfast.neural.refusals import MissingPart, TopologyError
from holdfast.parts import install_hint

SIZE_MAX = 4 * 1024 * 1024
DEPTH_MAX = 20
_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
_KINDS = {
    dict: "a mapping",
    list: "a list",
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
}


class Marked:
    """A value, its position, and (for mappings) which of its keys were read."""

    def __init__(self, value: Any, source: str, line: int, column: int) -> None:
        self.value = value
        self.source = source
        self.line = line
        self.column = column
        self.keys: dict[str, Marked] = {}
        """For mappings: the position of each key."""
        self._asked: set[str] = set()

    def refuse(self, says: str, hint: str = "") -> NoReturn:
        raise TopologyError(says, source=self.source, line=self.line, column=self.column, hint=hint)

    def is_kind(self, kind: type) -> bool:
        if kind is float:
            return isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if kind is int:
            return isinstance(self.value, int) and not isinstance(self.value, bool)
        return isinstance(self.value, kind)

    def take(self, kind: type, what: str) -> Any:
        """The value, which must be of this kind."""
        if not self.is_kind(kind):
            self.refuse(f"{what} must be {_KINDS[kind]}")
        return float(self.value) if kind is float else self.value

    def has(self, key: str) -> bool:
        return key in self.value and self.value[key].value is not None

    def get(self, key: str) -> "Marked | None":
        self._asked.add(key)
        return self.value[key] if self.has(key) else None

    def need(self, key: str, what: str) -> "Marked":
        found = self.get(key)
        if found is None:
            self.refuse(f"{what} needs `{key}`")
        return found

    def entries(self) -> Iterator[tuple[str, "Marked"]]:
        yield from self.value.items()

    def refuse_others(self, what: str) -> None:
        """Reject the first key that was not read: a typing error must not pass unnoticed."""
        for key in self.value:
            if key not in self._asked:
                near = _nearest(key, self._asked)
                self.keys[key].refuse(f"{what} has no `{key}`", f"Did you mean `{near}`?" if near else "")


def _nearest(word: str, known: set[str]) -> str:
    import difflib

    found = difflib.get_close_matches(word, sorted(known), n=1)
    return found[0] if found else ""


def read(text: str, source: str = "") -> Marked:
    """The document as a tree of marked values. Raises TopologyError."""
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as missing:
        raise MissingPart(
            "reading a neural network needs PyYAML, which is not installed", hint=install_hint("neural")
        ) from missing
    if len(text) > SIZE_MAX:
        raise TopologyError(f"the file has {len(text)} characters; at most {SIZE_MAX} are read", source=source)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                hint = "Write the value out, or use `repeat`."
                Marked(None, source, *_place(event)).refuse("aliases (*name) are not read here", hint)
            # Counted before the tree is built: the parser's time grows with the square of the depth.
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                Marked(None, source, *_place(event)).refuse(f"nested deeper than {DEPTH_MAX} levels")
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        says = str(getattr(error, "problem", None) or error)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise TopologyError(f"this is not YAML: {says}", source=source, line=line, column=column) from None
    if root is None:
        raise TopologyError("the file is empty", source=source, line=1, column=1)
    return _marked(root, source)


def _place(thing: Any) -> tuple[int, int]:
    return thing.start_mark.line + 1, thing.start_mark.column + 1


def _marked(node: Any, source: str) -> Marked:
    made = Marked(None, source, *_place(node))
    if node.id == "scalar":
        made.value = _scalar(node)
    elif node.id == "sequence":
        made.value = [_marked(n, source) for n in node.value]
    else:
        values: dict[str, Marked] = {}
        made.value = values
        for key_node, value_node in node.value:
            key = _marked(key_node, source)
            if not isinstance(key.value, (str, int)) or isinstance(key.value, bool):
                key.refuse("a key must be a word")
            name = str(key.value)
            if name in values:
                key.refuse(f"`{name}` is given twice")
            values[name] = _marked(value_node, source)
            made.keys[name] = key
    return made


def _scalar(node: Any) -> Any:
    text: str = node.value
    if node.style in ("'", '"', "|", ">"):
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text) and len(text) < 20:
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text) and len(text) < 40:
        return float(text.replace("_", ""))
    return text
