"""What the pages tell a person to type: blocks of commands and of Python, in the order of the page. Runs nothing."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATED = {"docs/reference/cli.md", "docs/status.md"}
"""Pages whose commands are examples from the help of the commands; those are parsed, not run."""
RUN_ELSEWHERE = {"docs/sdk.md": "tests/integration/test_sdk.py"}
"""Pages that another test runs from beginning to end."""
FENCE = re.compile(r"^( *)(```+|~~~+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^ *\*Not run by the tests: ([^*]+)\*\s*\Z", re.MULTILINE)
SHELL = ("sh", "console")
COMMAND = re.compile(
    r"^ *(\$ )?(holdfast|make|pip|python3?|curl|docker|podman|helm|kubectl|systemctl|apt-get) ", re.MULTILINE
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    not_run: str
    """Why the tests leave it out, as the reader sees it; empty: it is run."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> str:
        """What is typed. Of a session that is shown with its output, the lines behind a prompt."""
        if self.language != "console":
            return self.text
        typed: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ ") or (typed and typed[-1].endswith("\\")):
                typed.append(line.removeprefix("$ "))
        return "\n".join(typed) + "\n"


def pages() -> list[Path]:
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/train/README.md")]
    named += sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in named if page.relative_to(ROOT).as_posix() not in GENERATED]


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for fence in FENCE.finditer(text):
        indent, _, language, body = fence.groups()
        said = NOT_RUN.search(text[: fence.start()])
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        line = text.count("\n", 0, fence.start()) + 1
        reason = " ".join(said[1].split()) if said else ""
        found.append(Block(page.relative_to(ROOT).as_posix(), line, language, body, reason))
    return tuple(found)


def is_typed(block: Block) -> bool:
    return block.language in (*SHELL, "python")


def inline_commands(page: Path) -> list[tuple[str, str]]:
    """Every `holdfast …` in running text or a table: where, and the words."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    name = page.relative_to(ROOT).as_posix()
    return [
        (f"{name}:{text.count(chr(10), 0, found.start()) + 1}", " ".join(found[1].split()))
        for found in re.finditer(r"(?<!`)`(holdfast [^`]+)`", text)
    ]
