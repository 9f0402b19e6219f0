"""Applies a worked example of CONTRIBUTING to a copy of the tree, and runs scripts there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"in `(src/[^`]+)`.*?```py\n(.*?)```", re.DOTALL)
END_OF_LIST = re.compile(r'(?<=\n)(?=\)(?:  # fmt: skip)?\n(?:"""In the order|\Z))')


def with_example(folder: Path, title: str) -> Path:
    """A copy of the tree to which everything was added that the section says."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path, block in blocks(title):
        target = folder / path
        target.write_text(add_lines(target.read_text(), block) if target.exists() else block)
    return folder / "src"


def blocks(title: str) -> list[tuple[str, str]]:
    """Files and what is added to each."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


def add_lines(source: str, block: str) -> str:
    """A class goes before the module's list, or to its end; imports to the imports, and any other line to the end of
    the list."""
    if block.startswith("class "):
        before_list = re.compile(r"(?=^[A-Z]+: tuple)", re.MULTILINE)
        if before_list.search(source) is None:
            return f"{source}\n\n{block}"
        return before_list.sub(lambda _: f"{block}\n\n", source, count=1)
    imports = "".join(line for line in block.splitlines(True) if line.startswith("from "))
    lines = "".join(line for line in block.splitlines(True) if line.startswith("    "))
    source = re.sub(r"(?=^from holdfast)", imports, source, count=1, flags=re.MULTILINE)
    return END_OF_LIST.sub(lambda _: lines, source, count=1)


def run_in(tree: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script sees the tree, the driver of the kernel's tests and the scripts that write the pages."""
    paths = (tree, ROOT / "tests" / "kernel", ROOT / "scripts")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run([sys.executable, "-c", script, *words], env=env, capture_output=True, text=True, timeout=120)
