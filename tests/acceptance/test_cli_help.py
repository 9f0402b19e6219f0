"""The command line as a whole: quick, complete, tested flag by flag, and never with a traceback."""

import ast
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from holdfast.cli.app import app

HERE = Path(__file__).parent
HELP_CPU_S = 0.15
"""About 0.04 on a free machine; busy neighbours make every cycle dearer."""
HEAVY = ("typer", "grpc", "litestar", "sqlalchemy", "httpx", "uvicorn", "rich", "pydantic", "numpy", "msgspec")
SERVED = {
    "start_orchestrator": ["up", "--data-dir", "--http", "--listen", "--files", "--preset", "--store"],
    "start_node": ["node", "--orchestrator", "--token", "--name", "--home"],
}
"""What the process kit types by itself."""
THE_SAME_FOR_ALL = {"-h", "--help", "--context"}
"""Given to every command by the frame, and tested there."""


def holdfast(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
    """Every command with the options that its help shows, each a list of its spellings."""
    options = [p for p in command.params if p.param_type_name == "option"]  # type: ignore[attr-defined]
    yield path, [list(p.opts) for p in options if not p.hidden]
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


def tree() -> dict[tuple[str, ...], list[list[str]]]:
    return dict(commands(typer.main.get_command(app)))


def typed_in_tests() -> set[tuple[tuple[str, ...], str]]:
    """Every (command, flag) that an acceptance test of the command line types, read from their source."""
    known = tree()
    typed: set[tuple[tuple[str, ...], str]] = set()
    for path in HERE.glob("test_cli*.py"):
        for call in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if called not in {"cli", "start_cli", "holdfast", "parsed", "well", *SERVED}:
                continue
            constants = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            words = SERVED.get(called, []) + constants
            command = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in known), ())
            typed |= {(command, word) for word in words if word.startswith("-")} | {(command, "")}
    # Flags that a test takes from its parameters or from the constant for small jobs.
    return typed | {(("run",), flag) for flag in ("--memory", "--disk")}


@pytest.mark.spec("J3")
def test_every_command_and_flag_has_an_acceptance_test() -> None:
    typed = typed_in_tests()
    missing = [
        f"holdfast {' '.join(path)} {spelling}".strip()
        for path, options in tree().items()
        if path not in {(), ("job",), ("token",), ("access",), ("context",)}
        for spelling in ["", *(s for option in options for s in option)]
        if spelling not in THE_SAME_FOR_ALL and (path, spelling) not in typed
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.spec("J3")
def test_every_command_explains_itself() -> None:
    for path, options in tree().items():
        done = CliRunner().invoke(app, [*path, "--help"])
        assert done.exit_code == 0, done.output
        assert CliRunner().invoke(app, [*path, "-h"]).stdout == done.stdout
        for spelling in (s for option in options for s in option):
            assert spelling in done.stdout, f"{path}: {spelling}"


@pytest.mark.spec("J3")
def test_help_is_quick_and_imports_nothing_heavy() -> None:
    # given the modules that serving and rendering need
    code = f"import sys, holdfast.cli.main; print([m for m in {HEAVY} if m in sys.modules])"

    # then none of them is imported by the front door
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"

    # and help takes little: the best of several in processor time, for other work may run beside it
    def spent() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        holdfast("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(spent() for _ in range(5)) < HELP_CPU_S


@pytest.mark.spec("N1")
def test_version_says_which_and_on_what() -> None:
    import holdfast as package

    assert package.__version__ in holdfast("version").stdout
    assert json.loads(holdfast("version", "--json").stdout)["version"] == package.__version__
    assert holdfast("--version").stdout == holdfast("version").stdout


@pytest.mark.spec("J3")
@pytest.mark.parametrize("words", [("fly",), ("jobs", "--wings"), ("job", "show"), ("run",), ("jobs", "--limit", "0")])
def test_misuse_ends_with_2_and_no_traceback(words: tuple[str, ...]) -> None:
    done = holdfast(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.spec("J7")
def test_an_error_is_told_in_words_and_with_a_trace_only_on_request(tmp_path: Path) -> None:
    # given a home whose endpoint is a folder
    (tmp_path / "orchestrator" / "endpoint.json").mkdir(parents=True)
    env = {"HOLDFAST_HOME": str(tmp_path)}

    quiet = holdfast("jobs", env=env)
    loud = holdfast("jobs", env={**env, "HOLDFAST_DEBUG": "1"})

    assert quiet.returncode == 78
    assert quiet.stderr.startswith("error: ")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.spec("A6")
def test_sim_replays_the_same_world_for_the_same_seed() -> None:
    once = holdfast("sim", "--seed", "7", "--json")
    again = holdfast("sim", "--seed", "7", "--json")
    story = holdfast("sim", "--seed", "7", "--story")

    assert once.returncode == story.returncode == 0, once.stderr + story.stderr
    assert once.stdout == again.stdout
    assert json.loads(once.stdout.splitlines()[-1])
    assert len(story.stdout.splitlines()) > 10


@pytest.mark.spec("J3")
def test_a_shell_can_complete_commands(tmp_path: Path) -> None:
    shown = holdfast("completion", "bash", "--show")
    written = holdfast("completion", "bash", env={"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)})
    asked = holdfast(env={"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast no", "COMP_CWORD": "1"})

    assert "Traceback" not in shown.stderr + asked.stderr
    assert f"wrote {tmp_path}/holdfast/completion.bash" in written.stdout
    assert (tmp_path / "holdfast" / "completion.bash").read_text() == shown.stdout
    assert {"node", "nodes"} <= set(asked.stdout.split())
