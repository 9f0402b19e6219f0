"""The processes that the test kits start run the tree under test, not an installed package.

Else a mutant, or the change of somebody who runs the tests from a copy, never reaches them.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCE = Path(holdfast.__file__).resolve().parent

NOTE = """
def _note(what):
    import os
    with open({log!r}, "a") as file:
        file.write(f"{{what}} {{os.getpid()}}\\n")

"""
MARKED = {
    "cli/main.py": "_note('cli')\n",
    "node/run.py": "_note('agent')\n",
    "node/launcher.py": "__name__ == '__main__' and _note('launcher')\n",
}
"""Put before a module that only one kind of process imports (or runs)."""
WRAPPED = {
    "node/shim.py": ("stand_by", "shim"),
    "orchestrator/serve.py": ("run_orchestrator", "orchestrator"),
}
"""Modules that others import as well: the function that makes a process what it is."""

BENCH = """
import asyncio, sys
from pathlib import Path
from agent_bench import stage, start
from holdfast.model import AttemptId
from holdfast.model.messages import HeldPhase

async def story(home):
    async with stage(home) as (orchestrator, agent):
        await orchestrator.until(lambda: orchestrator.sessions, "a session")
        orchestrator.say(start(AttemptId("att_00000000000000.1"), "true"))
        await orchestrator.until_phase(AttemptId("att_00000000000000.1"), HeldPhase.FINISHED)

asyncio.run(story(Path(sys.argv[1])))
"""
FORKED = """
import sys
from pathlib import Path
from orchestrators import OrchestratorProcess

if __name__ == "__main__":
    with OrchestratorProcess(Path(sys.argv[1])) as orchestrator:
        orchestrator.start()
"""
TYPED = """
import sys
from pathlib import Path
from holdfast.testing.processes import LocalNetwork

with LocalNetwork(Path(sys.argv[1])) as network:
    network.start_orchestrator()
    network.start_node("ant")
    network.client().jobs.run(["true"], cpu_milli=100, memory_mib=16, disk_mib=16)
"""


def marked_copy(folder: Path, log: Path) -> Path:
    """A copy of the source in which every kind of process leaves a note."""
    tree = folder / "tree"
    shutil.copytree(SOURCE, tree / "holdfast")  # compiled files as well: they save a second a process
    note = NOTE.format(log=str(log))
    for name, line in MARKED.items():
        path = tree / "holdfast" / name
        path.write_text(note + line + path.read_text())
    for name, (function, what) in WRAPPED.items():
        path = tree / "holdfast" / name
        wrapped = f"\n_{function} = {function}\n\n\ndef {function}(*words):\n    _note({what!r})\n"
        path.write_text(path.read_text() + note + wrapped + f"    return _{function}(*words)\n")
    return tree


@pytest.mark.parametrize(
    ("kit", "started"),
    [
        pytest.param(BENCH, {"agent", "launcher", "shim"}, id="agent_bench"),
        pytest.param(FORKED, {"orchestrator"}, id="orchestrators"),
        pytest.param(TYPED, {"cli", "orchestrator", "agent", "launcher", "shim"}, id="processes"),
    ],
)
def test_whatever_a_test_kit_starts_runs_the_tree_under_test(tmp_path: Path, kit: str, started: set[str]) -> None:
    """Given tests that run from a copy of the source, then every process they start imports that copy."""
    log = tmp_path / "notes"
    tree = marked_copy(tmp_path, log)
    script = tmp_path / "kit.py"
    script.write_text(kit)
    env = {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{HERE}"}
    # Not by its path: this folder would stand first among those that are imported from.
    words = [sys.executable, "-P", str(script), str(tmp_path / "home")]
    (tmp_path / "home").mkdir()
    with subprocess.Popen(words, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as runs:
        _, said = runs.communicate(timeout=120)
    assert runs.returncode == 0, said
    notes = [line.split() for line in log.read_text().splitlines()]
    assert {what for what, pid in notes if int(pid) != runs.pid} >= started


def test_no_environment_is_made_that_forgets_the_tree_under_test() -> None:
    """An environment that is written from scratch, with this process's PATH, must say where to import from."""
    forgetful = [
        f"{path.name}:{node.lineno}"
        for folder in (ROOT / "tests", SOURCE / "testing")
        for path in sorted(folder.rglob("*.py"))
        if "environ" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Dict) and _from_scratch(node)
    ]
    assert forgetful == []


def _from_scratch(node: ast.Dict) -> bool:
    said = {ast.literal_eval(key): ast.unparse(value) for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)}  # fmt: skip
    return said.get("PATH") == "os.environ['PATH']" and "PYTHONPATH" not in said
