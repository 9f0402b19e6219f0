"""Whatever README, docs/ and the example tell a person to type works as printed, on a real network, page by page.

`make test` types the README and parses every command of the other pages; `make pages` types all of them. A block that
cannot be run says so to its reader, with the reason; those are counted. Commands in running text and in the examples of
`--help` are not run, but must parse.
"""

import ast
import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
import typer.main
from tests.acceptance.docs_pages import (
    COMMAND,
    ROOT,
    RUN_ELSEWHERE,
    Block,
    blocks_of,
    inline_commands,
    is_typed,
    pages,
)

from holdfast.cli.app import app
from holdfast.node.attempt import attempt_folders
from holdfast.testing.processes import LocalNetwork, end, free_port

pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.timeout(400)]  # one network serves all pages
NOT_RUN_MAX = 20
"""Blocks that say that they are not run. A page that needs more should show less that needs what nobody here has."""
BLOCK_S = 240
ALL_PAGES = "HOLDFAST_TEST_ALL_PAGES"
"""Set by `make pages`."""
CELLS = """
import linecache, sys, traceback
names = {"__name__": "__main__"}
sys.modules["__main__"].__dict__.update(names)
for path in sys.stdin:
    path = path.strip()
    text = open(path).read()
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    try:
        exec(compile(text, path, "exec"), sys.modules["__main__"].__dict__)
    except BaseException:
        traceback.print_exc()
        print("\\nCELL FAILED", flush=True)
        sys.exit(1)
    print("\\nCELL DONE", flush=True)
"""
"""The Python blocks of a page are the cells of one notebook."""


def typed(page: Path) -> list[Block]:
    if name_of(page) in RUN_ELSEWHERE:
        return []
    return [block for block in blocks_of(page) if is_typed(block) and not block.not_run]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def typed_pages() -> list[Path]:
    """The pages that are run: all that have something to type, or the one that everybody types first."""
    return [page for page in pages() if typed(page)] if os.environ.get(ALL_PAGES) else [ROOT / "README.md"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("docs")) as network:
        network.start_orchestrator(preset="lan")
        for name in ("ant", "bee"):
            network.start_node(name, wait=False)
        for name in ("ant", "bee"):
            network.wait_node(name, "ready")
        yield network


class Desk:
    """Where one page is typed: a folder, a home and a shell of its own, on the network that all pages share."""

    def __init__(self, network: LocalNetwork, folder: Path) -> None:
        self.folder = folder / "desk"
        self.state = folder / "state"
        (folder / "bin").mkdir(parents=True)
        self.state.mkdir()
        self.folder.mkdir()
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        stand_in = folder / "bin" / "holdfast"
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -S {ROOT}/tests/acceptance/docs_typist.py "$@"\n')
        stand_in.chmod(0o755)
        assert network.orchestrator is not None
        self.env = network.environment(
            {
                "HOLDFAST_HOME": str(folder / "home"),
                "HOLDFAST_URL": network.orchestrator.url,
                "HOLDFAST_ADMIN_TOKEN": (network.home / "orchestrator" / "admin.token").read_text().strip(),
                "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "DOCS_STATE": str(self.state),
                "DOCS_LISTEN": network.orchestrator.listen,
                "DOCS_TOKEN": network.client().tokens.create().token,
                "DOCS_PORTS": " ".join(str(free_port()) for _ in range(3)),
                **({"DOCS_UNSAFE": "1"} if network.unsafe else {}),
            }
        )
        self._network = network
        self._home = folder / "home"
        self._cells: subprocess.Popen[str] | None = None
        self._number = 0

    def run(self, block: Block) -> None:
        (self._python if block.language == "python" else self._shell)(block)

    def _shell(self, block: Block) -> None:
        script = f"set -euo pipefail\ncd {shlex.quote(str(self.folder))}\n{block.commands}\npwd > {self.state}/cwd\n"
        log = self.state / "shell.log"
        with log.open("wb") as out:  # not a pipe: what a block leaves running would hold it open
            done = subprocess.run(
                ["bash", "-c", script], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=BLOCK_S
            )
        said = log.read_text(errors="replace")
        assert done.returncode == 0, f"{block.where} ended with {done.returncode}:\n{block.text}\n{said[-3000:]}"
        assert "Traceback" not in said, f"{block.where}:\n{said[-3000:]}"
        self.folder = Path((self.state / "cwd").read_text().strip())  # a `cd` holds for what follows on the page

    def _python(self, block: Block) -> None:
        self._number += 1
        cell = self.state / f"cell-{self._number}.py"
        cell.write_text(block.text)
        if self._cells is None:
            self._cells = subprocess.Popen(
                [sys.executable, "-c", CELLS], env=self.env, cwd=self.folder, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        assert self._cells.stdin is not None and self._cells.stdout is not None
        self._cells.stdin.write(f"{cell}\n")
        self._cells.stdin.flush()
        said, verdict = "", ""
        for line in self._cells.stdout:
            if line.startswith("CELL "):
                verdict = line.strip()
                break
            said += line
        assert verdict == "CELL DONE", f"{block.where}:\n{block.text}\n{said[-3000:]}"

    def close(self) -> None:
        """End what the page left running, and nothing else: the next page finds the network as this one did."""
        client = self._network.client()
        left = [job.id for job in client.jobs.list(limit=100).jobs if job.phase != "ended"]
        for job in left:
            client.jobs.stop(job)
        for job in left:
            client.jobs.wait(job, timeout_s=60, check=False)
        if self._cells is not None:
            self._cells.kill()
            self._cells.wait(10)
        if (self._home / "orchestrator" / "supervisor.json").exists():
            self._network.cli("down", "--now", env={"HOLDFAST_HOME": str(self._home)}, check=0)
        for note in self.state.glob("serving-*"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(note.name.rpartition("-")[2]))
                process.send_signal(signal.SIGTERM)
                if psutil.wait_procs([process], timeout=15)[1]:
                    end([process, *process.children(recursive=True)])
        for attempt in self._home.glob("node/attempts/*"):
            attempt_folders.clean(attempt)


@pytest.mark.spec("N1", "J3", "J12", "H6")
@pytest.mark.parametrize("page", typed_pages(), ids=name_of)
def test_a_page_runs_as_printed(network: LocalNetwork, page: Path, tmp_path: Path) -> None:
    # given the network, and a person with the page before them
    desk = Desk(network, tmp_path)
    try:
        # when each block is typed in turn, then each works
        for block in typed(page):
            desk.run(block)
    finally:
        desk.close()


@pytest.mark.spec("N1")
def test_the_first_commands_of_the_readme_are_what_a_network_says(network: LocalNetwork) -> None:
    # given the first block that the README has people type
    first = next(block for block in typed(ROOT / "README.md"))
    up, run = [shlex.split(line, comments=True)[1:] for line in first.text.splitlines()]
    # then it starts a network, and the second line prints what its program prints, and no more, also in somebody's home
    assert up == ["up", "--node", "--detach"]
    home = network.desk / "home"
    home.mkdir()
    assert network.cli(*run, cwd=home, env={"HOME": str(home)}, check=0).stdout == "42\n"


@pytest.mark.spec("J8")
def test_the_python_of_the_readme_runs_as_a_file_and_typed_at_the_prompt(network: LocalNetwork, tmp_path: Path) -> None:
    (block,) = [block for block in typed(ROOT / "README.md") if block.language == "python"]
    assert network.orchestrator is not None
    env = network.environment(
        {"HOLDFAST_URL": network.orchestrator.url, "TERM": "dumb", "HOME": str(tmp_path / "home")}
    )
    (tmp_path / "home").mkdir()
    # saved as a file
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "snippet.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "snippet.py"], cwd=tmp_path / "code", env=env, capture_output=True, text=True, timeout=BLOCK_S
    )
    assert done.stdout == "[0, 1, 4]\n", done.stderr
    # typed into `python`
    with pexpect.spawn(
        sys.executable, ["-q"], cwd=str(tmp_path / "home"), env=env, encoding="utf-8", timeout=120
    ) as python:
        python.expect(">>> ")
        for line in block.text.splitlines():
            python.sendline(line)
            python.expect(r"(>>>|\.\.\.) ")
        python.sendline("")
        python.expect_exact("[0, 1, 4]")


@pytest.mark.spec("J3")
def test_blocks_that_are_not_run_say_why_and_are_few() -> None:
    left_out = [block for page in pages() for block in blocks_of(page) if block.not_run]
    assert len(left_out) <= NOT_RUN_MAX, "\n".join(f"{b.where}: {b.not_run}" for b in left_out)
    assert all(is_typed(block) and len(block.not_run) > 12 for block in left_out)


@pytest.mark.spec("J3")
def test_pages_that_are_run_elsewhere_are_run_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert (ROOT / page).exists() and Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.spec("J3")
def test_no_command_hides_in_a_block_that_nobody_runs() -> None:
    hidden = [
        f"{block.where} ({block.language or 'no language'})"
        for page in pages()
        for block in blocks_of(page)
        if not is_typed(block) and COMMAND.search(block.text)
    ]
    assert not hidden, "\n".join(hidden)


# --- commands that are shown and not run ---


def parses(words: list[str]) -> str:
    """Empty if the command line takes these words, else what it says."""
    root = typer.main.get_command(app)
    given = [{"HOST:PORT": "127.0.0.1:1", "…": "x"}.get(word, word) for word in words]
    command: Any = root
    path = ["holdfast"]
    while given and given[0] in getattr(command, "commands", {}):
        path.append(given[0])
        command = command.commands[given.pop(0)]
    if given[:1] == ["COMMAND"]:
        return ""
    if hasattr(command, "commands") and given and not given[0].startswith("-"):
        return f"there is no command `{' '.join([*path, given[0]])}`"
    known = {s for p in command.params for s in (*p.opts, *p.secondary_opts) if s.startswith("-")} | {"--help"}
    flags = given[: given.index("--")] if "--" in given else given
    wrong = [w for w in flags if re.match(r"--?[a-z]", w) and w.partition("=")[0] not in known]
    return f"`{' '.join(path)}` has no {', '.join(wrong)}" if wrong else ""


def missing(text: str) -> list[str]:
    """What a block of Python imports from Holdfast that is not there."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    named = [(node.module, alias.name) for node in imports for alias in node.names if node.module]
    return [
        f"{module}.{name}"
        for module, name in named
        if module.partition(".")[0] == "holdfast"
        and not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]


def bare(text: str) -> list[str]:
    """The words of a command, without the brackets of a usage line, pipes and comments."""
    text = re.sub(r"[\[\]]", "", text.split(" | ")[0].split(" > ")[0])
    try:
        return shlex.split(text, comments=True)[1:]
    except ValueError:
        return []


@pytest.mark.spec("J3")
def test_commands_in_blocks_exist_and_python_imports_what_there_is() -> None:
    """On every page, also where the blocks are not run now."""
    wrong: list[str] = []
    for block in (block for page in pages() for block in blocks_of(page) if is_typed(block)):
        if block.language == "python":
            wrong += [f"{block.where}: there is no {name}" for name in missing(block.text)]
            continue
        lines = block.commands.replace("\\\n", " ").splitlines()
        commands = [line.strip() for line in lines if line.strip().startswith("holdfast ")]
        wrong += [f"{block.where}: {says}" for command in commands if (says := parses(bare(command)))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.spec("J3")
def test_commands_in_running_text_exist() -> None:
    wrong = [
        f"{where}: {says}" for page in pages() for where, text in inline_commands(page) if (says := parses(bare(text)))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.spec("J3")
def test_examples_of_the_help_parse() -> None:
    """The page of commands is made from the help; so are the examples on it."""
    examples = [
        line.strip().removeprefix("$ ")
        for block in blocks_of(ROOT / "docs/reference/cli.md")
        for line in block.text.splitlines()
        if re.match(r" *(\$ )?holdfast ", line) and "[OPTIONS]" not in line
    ]
    wrong = [f"{example}: {says}" for example in examples if (says := parses(bare(example)))]
    assert not wrong, "\n".join(wrong)
