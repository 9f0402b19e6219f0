"""What all commands have in common: they are in the table, say how they are used, load little, and complete."""

import ast
import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer.main

from holdfast.cli.app import app
from holdfast.cli.command_table import COMMANDS, front_page
from holdfast.cli.commands import help as help_command
from holdfast.errors import HoldfastError

COLUMNS = 80
HEAVY = (
    "typer",
    "httpx",
    "grpc",
    "rich",
    "pydantic",
    "numpy",
    "litestar",
    "sqlalchemy",
    "uvicorn",
    "msgspec",
    "psutil",
)
MAY_LOAD: dict[tuple[str, ...], set[str]] = {
    ("--help",): set(),
    ("help",): set(),
    ("version",): {"typer"},
    ("jobs", "--help"): {"typer"},
    ("help", "exit-codes"): {"typer"},
    ("neural", "--help"): {"typer"},
    ("context", "list"): {"typer", "msgspec"},
    ("init", "--force", "--", "true"): {"typer", "msgspec"},
    ("node", "--name", "ant"): {"typer", "msgspec"},
    ("jobs", "--url", "URL"): {"typer", "msgspec", "httpx", "rich"},
    ("nodes", "--url", "URL"): {"typer", "msgspec", "httpx", "rich"},
    ("run", "--no-folder", "--url", "URL", "--", "true"): {"typer", "msgspec", "httpx"},
}
"""What each may load of what is heavy, up to the point where it is refused or a setting is missing."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if path:
        yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*path, name))


ROOT: Any = typer.main.get_command(app)
ALL = dict(commands(ROOT))


def holdfast(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Any:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    environ = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, cwd=cwd)


# --- the table ---


@pytest.mark.spec("J3")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_front_page_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    says = ALL[(name,)].help.partition("\n")[0]
    assert says == COMMANDS[name].says


@pytest.mark.spec("J3")
def test_the_front_page_fits_a_terminal_and_is_the_same_with_and_without_typer() -> None:
    assert max(map(len, front_page().splitlines())) <= COLUMNS
    assert holdfast("--help").stdout == front_page()
    # When nothing is typed it is an error, told by the slower way.
    nothing = holdfast()
    assert nothing.returncode == 2
    assert nothing.stderr.strip() == front_page().strip()


@pytest.mark.spec("J3")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_page_is_not_cut_off_at_80_columns(path: tuple[str, ...]) -> None:
    context = typer.Context(ALL[path], info_name=" ".join(path), terminal_width=COLUMNS)
    page = context.get_help()
    assert max(map(len, page.splitlines())) <= COLUMNS
    assert "..." not in page.replace("[ARGS]...", "")


@pytest.mark.spec("J3")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_examples_that_can_be_typed(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    # given what its page shows under "Examples:"
    _, found, after = ALL[path].help.partition("Examples:\n")
    lines = [line.strip() for line in after.partition("\n\n")[0].splitlines()]
    assert found, f"holdfast {' '.join(path)} has no examples"
    assert lines
    monkeypatch.setenv("HOLDFAST_CONTEXT", "")

    for line in lines:
        # then each calls a command that there is, this one or one below it
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "holdfast"
        assert tuple(words[1 : 1 + len(path)]) == path or len(path) == 1
        command, rest = ROOT, words[1:]
        while getattr(command, "commands", {}) and rest and not rest[0].startswith("-"):
            command, rest = command.commands[rest[0]], rest[1:]
        # and with words that it understands
        command.make_context("holdfast", rest)


@pytest.mark.spec("J3")
def test_every_command_that_prints_data_can_print_it_for_programs() -> None:
    serve = {("up",), ("down",), ("node",)}
    say_one_word = {("help",), ("completion",), ("context", "add"), ("context", "use"), ("context", "remove")}
    groups = {path for path, command in ALL.items() if getattr(command, "commands", {})}
    without = {path for path, command in ALL.items() if not any("--json" in one.opts for one in command.params)}
    assert without == (groups | serve | say_one_word)


@pytest.mark.spec("J3")
def test_a_network_can_be_named_wherever_its_address_can() -> None:
    for path, command in ALL.items():
        flags = {flag: one for one in command.params for flag in one.opts}
        assert ("--context" in flags) == ("--url" in flags and not flags["--url"].required), path


@pytest.mark.spec("J3")
def test_help_shows_any_page_and_what_exit_codes_mean() -> None:
    assert holdfast("help", "node", "drain").stdout == holdfast("node", "drain", "--help").stdout
    assert holdfast("help", "exit-codes").stdout == help_command.exit_codes()
    assert holdfast("help", "flying").returncode == 2

    # and every code that an error has is explained
    kinds = [HoldfastError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} <= set(help_command.EXIT_CODES)


# --- what is loaded ---


def loaded_by(words: tuple[str, ...], folder: Path) -> set[str]:
    """What of the heavy is loaded when a command ends, however it ends."""
    hear, say = os.pipe()
    code = (
        "import atexit, json, os, sys\n"
        f"atexit.register(lambda: os.write({say}, json.dumps([m for m in {HEAVY} if m in sys.modules]).encode()))\n"
        f"sys.argv = ['holdfast', *{list(words)!r}]\n"
        "from holdfast.cli.main import main\n"
        "main()\n"
    )
    env = {**os.environ, "HOLDFAST_HOME": str(folder / "home")}
    program = [sys.executable, "-c", code]
    subprocess.run(program, cwd=folder, env=env, pass_fds=(say,), capture_output=True, timeout=120)
    os.close(say)
    with open(hear, "rb") as answer:
        return set(json.loads(answer.read()))


class Refuses(BaseHTTPRequestHandler):
    """Answers at once, with what no command tries again."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.spec("J3")
@pytest.mark.parametrize("words", MAY_LOAD, ids=" ".join)
def test_a_command_loads_what_it_needs_and_no_more(words: tuple[str, ...], tmp_path: Path, refusing: str) -> None:
    typed = tuple(refusing if word == "URL" else word for word in words)
    assert loaded_by(typed, tmp_path) <= MAY_LOAD[words]


@pytest.mark.spec("J3")
def test_the_modules_of_all_commands_together_load_nothing_heavy_but_typer() -> None:
    code = (
        "import sys; from holdfast.cli.app import made; from holdfast.cli.command_table import COMMANDS\n"
        f"[made(name) for name in COMMANDS]; print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert set(ast.literal_eval(done.stdout)) <= {"typer", "msgspec"}, done.stderr


# --- colours ---


@pytest.mark.spec("J3")
def test_no_colours_where_nobody_wants_them(tmp_path: Path) -> None:
    # given a terminal
    env = {"HOLDFAST_HOME": str(tmp_path), "TERM": "xterm-256color"}

    def in_a_terminal(**more: str) -> str:
        ours, theirs = pty.openpty()
        kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        command = [sys.executable, "-m", "holdfast.cli", "jobs"]
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, **env, **more}, start_new_session=True
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody is at its other end
            while data := os.read(ours, 65_536):
                shown += data
        os.close(ours)
        process.wait(60)
        return shown.decode()

    # then an error is red there, not with NO_COLOR, and not in a pipe
    assert "\x1b[31m" in in_a_terminal()
    assert "\x1b[" not in in_a_terminal(NO_COLOR="1")
    assert "\x1b[" not in holdfast("jobs", env=env).stderr
