"""Generates the Python reference from the source: everything public, its signature as written, and its docstring.

Reads syntax trees and imports nothing, so it is fast and shows exactly what the source says.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs_text import NOTE, safe, table

SRC = Path(__file__).resolve().parent.parent / "src" / "holdfast"

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Section(NamedTuple):
    title: str
    module: str
    """Path under src/holdfast."""
    names: tuple[str, ...]
    """Classes and functions, in this order; empty: every public one."""
    says: str = ""
    called: tuple[tuple[str, str], ...] = ()
    """The expression that gives access to a class, if it is not its name: (`Jobs`, `client.jobs`)."""


NAMESPACES = tuple((name, f"client.{name.lower()}") for name in ("Jobs", "Arrays", "Nodes", "Tokens", "Content"))
SECTIONS = (
    Section(
        "Client",
        "client/client.py",
        ("Client", "Jobs", "Arrays", "Nodes", "Tokens", "Content"),
        "`holdfast.Client`. `holdfast.AsyncClient` has the same methods, to be awaited; iterators are used with "
        "`async for`.",
        NAMESPACES,
    ),
    Section(
        "JobOptions",
        "client/job_options.py",
        ("CommonOptions", "JobOptions"),
        "The keyword arguments of `client.jobs.submit`, `run`, `check` and `client.arrays.submit`. An `Amount` is a "
        "number or text with a unit.",
        (("CommonOptions", "By jobs and functions"), ("JobOptions", "By jobs only")),
    ),
    Section(
        "Jobs and nodes as objects",
        "client/objects.py",
        ("JobShown", "Job", "Node"),
        called=(("JobShown", "Job, what it knows"), ("Job", "Job, what it can be asked")),
    ),
    Section("Functions", "client/functions.py", ("function", "Options", "Function", "Call")),
    Section("Checkpoints", "checkpoint.py", (), "`from holdfast import checkpoint`, in a job or anywhere."),
)
ERRORS = "errors.py"


def python_page() -> str:
    lines = [
        "# Python",
        "",
        NOTE,
        "How to use it: [the SDK](../sdk.md), [functions](../functions.md), [checkpoints](../concepts/checkpoints.md).",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", *([section.says, ""] if section.says else [])]
        tree = ast.parse((SRC / section.module).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | Definition)}
        names = section.names or tuple(n for n, node in found.items() if n[0] != "_" and ast.get_docstring(node))
        for name in names:
            if name not in found:
                raise SystemExit(f"docs: {section.module} has no {name}; see SECTIONS in scripts/docs_python.py")
            shown = dict(section.called).get(name, name)
            node = found[name]
            lines += list(class_lines(node, shown) if isinstance(node, ast.ClassDef) else function_lines(node, shown))
    tree = ast.parse((SRC / ERRORS).read_text(encoding="utf-8"))
    lines += ["## Errors", "", "`from holdfast import errors`.", "", *docstring_lines(ast.get_docstring(tree) or "", 0)]
    return "\n".join(lines)


def class_lines(node: ast.ClassDef, shown: str) -> Iterator[str]:
    yield from (f"### {shown}", "")
    yield from docstring_lines(ast.get_docstring(node) or "", 0)
    fields = [[f"`{name}`", f"`{kind}`", why] for name, kind, why in field_rows(node)]
    if fields:
        yield table(["field", "type", "what"], fields)
    for method in node.body:
        if not isinstance(method, Definition) or "overload" in {ast.unparse(d) for d in method.decorator_list}:
            continue
        if method.name == "__init__" and not ast.get_docstring(node):
            continue
        if method.name.startswith("_") and method.name not in ("__init__", "__call__"):
            continue
        if method.name == "__init__" and shown.startswith("client."):
            continue
        yield f"- `{signature(method, shown)}`"
        yield ""
        yield from docstring_lines(ast.get_docstring(method) or "", 4)
    yield ""


def field_rows(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Annotated attributes, with the docstring of each."""
    for place, field in enumerate(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.target.id[0] == "_":
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        kind = ast.unparse(field.annotation).strip("'\"")
        value = f" = {ast.unparse(field.value)}" if field.value is not None else ""
        yield field.target.id, kind + value, " ".join(str(said).split())


def function_lines(node: Definition, shown: str) -> Iterator[str]:
    yield from (f"### {shown}", "", "```text", signature(node, shown), "```", "")
    yield from docstring_lines(ast.get_docstring(node) or "", 0)


def signature(node: Definition, owner: str) -> str:
    """As it is called: without `self`, and with its access path."""
    owner = owner.partition(",")[0]
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(self|cls)(, /)?(, )?", "", arguments)
    arguments = re.sub(r": '([^']*)'", r": \1", arguments)
    decorated = {ast.unparse(d) for d in node.decorator_list}
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    if node.name == "__init__":
        return f"{owner}({arguments})"
    given = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns is not None else ""
    if node.name == owner:
        return f"{node.name}({arguments}){given}"
    name = f"{owner[0].lower()}{owner[1:]}" if "classmethod" not in decorated else owner
    if node.name == "__call__":
        return f"{name}({arguments}){given}"
    if decorated & {"property", "cached_property"}:
        return f"{name}.{node.name}{given}"
    return f"{prefix}{name}.{node.name}({arguments}){given}"


def docstring_lines(text: str, indent: int) -> Iterator[str]:
    """Paragraphs as text; indented or drawn ones as a code block."""
    pad = " " * indent
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)) if text else []:
        rows = paragraph.splitlines()
        if any(row.startswith((" ", "\t")) for row in rows) or re.search(r"[├└│]", paragraph):
            yield from (f"{pad}```text", *(f"{pad}{row}" for row in rows), f"{pad}```", "")
        else:
            yield from (pad + safe(" ".join(row.strip() for row in rows)), "")
