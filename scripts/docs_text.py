"""What the generators of pages share: tables, text made safe for Markdown, docstrings under attributes."""

import ast
import inspect
import re
from itertools import pairwise

NOTE = "Written by `make docs` from the code; edit the code, not this page.\n"


def reasons(of: type) -> dict[str, str]:
    """The docstring under each attribute of a class, as one line."""
    module = inspect.getmodule(of)
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    body = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == of.__name__).body
    found: dict[str, str] = {}
    for field, following in pairwise(body):
        target = field.target if isinstance(field, ast.AnnAssign) else None
        if isinstance(field, ast.Assign):
            target = field.targets[0]
        match following:
            case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(target, ast.Name):
                found[target.id] = " ".join(text.split())
            case _:
                pass
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("\\|", "|").replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def safe(text: str) -> str:
    """Text that is no Markdown: what would be read as a tag or as emphasis is escaped, outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*_|])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    pieces[::2] = plain
    return "".join(pieces)
