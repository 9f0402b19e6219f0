"""Runs the Python of a page of the docs as a reader would: block after block, in one place."""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_FILE = re.compile(r"# (\w+\.py)\n")


def blocks(page: str) -> list[str]:
    return _BLOCK.findall(page)


def run(page: str, folder: Path) -> None:
    """Blocks that begin with the name of a file become that file: tests are run by pytest, the others as programs. All
    others are run in one namespace, with `await` as a notebook allows it."""
    names: dict[str, Any] = {"__name__": "page"}
    with asyncio.Runner() as loop:
        for block in blocks(page):
            named = _FILE.match(block)
            if named is None:
                code = compile(block, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                loop.run(_cell(code, names))
                continue
            (folder / named[1]).write_text(block)
            if not named[1].startswith(("conftest", "test_")):
                _done([sys.executable, named[1]], folder)
    tests = [path.name for path in folder.glob("test_*.py")]
    if tests:
        _done(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *tests], folder
        )


async def _cell(code: Any, names: dict[str, Any]) -> None:
    said = eval(code, names)
    if inspect.isawaitable(said):
        await said


def _done(words: list[str], folder: Path) -> None:
    # Other plugins of whoever runs this are no part of the page, and take longer to load than it takes.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
