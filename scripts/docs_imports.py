"""Draws who imports whom, from the imports themselves: the section of docs/architecture.md between two markers."""

import ast
from collections.abc import Iterator
from pathlib import Path

from docs_text import table

SOURCES = Path(__file__).resolve().parent.parent / "src"
BEGIN = "<!-- imports: written by `make docs` from the code -->"
END = "<!-- end of imports -->"
INSIDE = ("orchestrator", "node", "cli")
"""Rooms that are drawn from the inside as well."""

Graph = dict[str, set[str]]


def with_imports(page: str) -> str:
    """The page, with what stands between the markers replaced by the imports of today."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs: architecture.md has lost its markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{section()}\n{END}{after}"


def section() -> str:
    rooms = graph("holdfast")
    lines = [
        "A room imports only rooms on lower lines; rooms in brackets import one another as well.",
        "",
        drawing(rooms),
        table(["room", "imports"], [[f"`{room}`", listed(known)] for room, known in ordered(rooms) if known]),
    ]
    for room in INSIDE:
        inside = graph(f"holdfast.{room}")
        lines += [
            f"Inside `{room}/`, folders and the modules beside them:",
            "",
            drawing(inside),
        ]
    return "\n".join(lines)


def listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


# --- reading the imports ---


def graph(package: str) -> Graph:
    """Each member of a package (a folder or a module in it) and the other members that it imports."""
    root = SOURCES.joinpath(*package.split("."))
    members = {path.name for path in root.iterdir() if (path / "__init__.py").exists()}
    members |= {path.stem for path in root.glob("*.py") if not path.stem.startswith("__")}
    found: Graph = {member: set() for member in members}
    for member in members:
        folder = root / member
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [root / f"{member}.py"]:
            for module in imported(path):
                inner = module.removeprefix(f"{package}.").partition(".")[0]
                if module.startswith(f"{package}.") and inner in members:
                    found[member].add(inner)
        found[member].discard(member)
    return found


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or in a function; what only a type checker reads is left out."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        todo += ast.iter_child_nodes(node)


# --- drawing ---


def reachable(edges: Graph, start: str) -> set[str]:
    seen, todo = set[str](), [start]
    while todo:
        for other in edges[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def levels(edges: Graph) -> dict[str, int]:
    """How many imports lie below each member: the longest way down, where members that import one another are one."""
    reach = {name: reachable(edges, name) for name in edges}
    found: dict[str, int] = {}
    for name in sorted(edges, key=lambda name: len(reach[name] | {name})):
        below = [found[other] + 1 for other in reach[name] if name not in reach[other]]
        found[name] = max(below, default=0)
    return found


def ordered(edges: Graph) -> list[tuple[str, set[str]]]:
    """Whoever imports most comes first."""
    level = levels(edges)
    return [(name, edges[name]) for name in sorted(edges, key=lambda name: (-level[name], name))]


def drawing(edges: Graph) -> str:
    """One line a level. Members that import one another, however far around, stand together in brackets."""
    level = levels(edges)
    reach = {name: reachable(edges, name) for name in edges}
    lines = ["```"]
    for number in range(max(level.values()), -1, -1):
        here = sorted(name for name in edges if level[name] == number)
        words: list[str] = []
        for name in here:
            ring = sorted({other for other in here if other in reach[name] and name in reach[other]} | {name})
            word = name if len(ring) == 1 else f"[{'  '.join(ring)}]"
            words += [word] if word not in words else []
        lines.append(f"{number:>3}  {'   '.join(words)}")
    return "\n".join([*lines, "```", ""])
