"""The functions of a room, each with a hash that a rename does not change."""

import ast
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from tests.mutation.operators import Function, Mutant, mutants
from tests.mutation.rooms import ROOT, Room


@dataclass(frozen=True)
class Target:
    """An outermost function or method: what is inside of it is mutated with it."""

    path: Path
    qualname: str
    first_line: int
    """Where its code object begins: at its first decorator."""
    function: Function

    @property
    def name(self) -> str:
        below = self.path.is_relative_to(ROOT / "src")
        place = self.path.relative_to(ROOT / "src") if below else Path(self.path.name)
        return f"{place.with_suffix('').as_posix().replace('/', '.')}:{self.qualname}"

    @cached_property
    def hash(self) -> str:
        return normalised_hash(self.function)

    @cached_property
    def mutants(self) -> list[Mutant]:
        return mutants(self.function)


def targets(room: Room) -> list[Target]:
    return [target for path in room.files() for target in targets_in(path)]


def targets_in(path: Path) -> list[Target]:
    return targets_of(ast.parse(path.read_text(encoding="utf-8")), path)


def targets_of(tree: ast.Module, path: Path) -> list[Target]:
    found: list[Target] = []
    _collect(tree, path, "", found)
    return found


def _collect(node: ast.AST, path: Path, prefix: str, found: list[Target]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            line = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            if not _is_abstract(child):
                found.append(Target(path, prefix + child.name, line, child))
        elif isinstance(child, ast.ClassDef):
            if not _is_protocol(child):
                _collect(child, path, f"{prefix}{child.name}.", found)
        elif isinstance(child, ast.If | ast.Try):
            _collect(child, path, prefix, found)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def _is_abstract(node: Function) -> bool:
    return any(ast.unparse(decorator).endswith(("abstractmethod", "overload")) for decorator in node.decorator_list)


def normalised_hash(function: Function) -> str:
    """A hash of what the function does: names stand for the order in which they occur, prose and types for nothing."""
    return sha256(_shape(function, {}).encode()).hexdigest()[:16]


NAMED = {"id", "attr", "arg", "name", "asname", "rest", "module"}
"""Fields of nodes that hold identifiers."""
FIELDS = {"attr": "a", "kwd_attrs": "a"}
"""A field of a row and a variable may have the same name; one of them may be renamed without the other."""
PASSED_OVER = {"returns", "annotation", "type_comment", "ctx", "kind"}


def _shape(node: ast.AST, names: dict[str, int]) -> str:
    parts = [type(node).__name__]
    for field, value in ast.iter_fields(node):
        if field in PASSED_OVER:
            continue
        if isinstance(node, Function) and field == "body":
            value = [s for s in value if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        parts.append(_part(field, value, names))
    return f"({' '.join(parts)})"


def _part(field: str, value: object, names: dict[str, int]) -> str:
    if isinstance(value, ast.AST):
        return _shape(value, names)
    if isinstance(value, list):
        return "[" + " ".join(_part(field, item, names) for item in value) + "]"
    if isinstance(value, str) and (field in NAMED or field in ("names", "kwd_attrs")):
        sort = FIELDS.get(field, "n")
        return f"{sort}{names.setdefault(f'{sort} {value}', len(names))}"
    if isinstance(value, str) and (" " in value or not value):
        return "text"
    return repr(value)
