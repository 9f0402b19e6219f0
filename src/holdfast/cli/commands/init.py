"""`init`: writes a job file for the current folder, based on its content. Sends nothing, and asks only the person at
the terminal, if there is one.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.flags import Json
from holdfast.cli.job_file import NAME

LOOKED_AT_MAX = 20_000
"""How many files are added up to get the size of the folder; further ones are not counted."""
SCRIPTS = ("train*.py", "main.py", "run.py", "app.py", "*.py", "run.sh", "*.sh")
DATA = ("data", "dataset", "datasets", "input")
LARGE = frozenset({"torch", "tensorflow", "jax", "jaxlib", "transformers", "vllm", "xgboost", "pyspark"})
"""Packages that need more room than a job gets by default."""
FROM_PROJECT = "requirements.holdfast.txt"


def register(app: typer.Typer) -> None:
    app.command("init", context_settings={"allow_interspersed_args": False})(init)


def init(
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD…]", help="The command; else what the folder suggests.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing job file.")] = False,
    json: Json = False,
) -> None:
    """Write a job file for this folder.

    The file is holdfast.toml, which `holdfast run` reads if no command is given. It is based on what is in the folder:
    a script to run, requirements.txt or pyproject.toml, a Dockerfile, training that should resume, data. Every line
    says why it is there. Nothing is sent.

    Examples:
      holdfast init
      holdfast init -- python3 train.py --epochs 3
      holdfast init --force
    """
    from holdfast.errors import Misuse

    folder = Path()
    if (folder / NAME).exists() and not force:
        raise Misuse(f"there is a {NAME} here already", hint="--force replaces it.", code="job_file_exists")
    found = look(folder)
    command = argv or found["command"]
    if not argv and not json:
        command = _asked(command)
    written = [NAME]
    if found["from_project"]:
        if (folder / FROM_PROJECT).exists() and not force:
            raise Misuse(f"there is a {FROM_PROJECT} here already", hint="--force replaces it.", code="job_file_exists")
        (folder / FROM_PROJECT).write_text("".join(f"{line}\n" for line in found["from_project"]))
        written.append(FROM_PROJECT)
    _write(folder / NAME, page(command, found))
    if json:
        import json as writer

        typer.echo(writer.dumps({"written": written, "command": command, "found": found["why"]}))
        return
    for why in found["why"]:
        typer.echo(f"found {why}")
    typer.echo(f"wrote {' and '.join(written)}; look at it, then: holdfast run")


def _asked(command: list[str]) -> list[str]:
    import shlex

    from holdfast.cli import prompts
    from holdfast.errors import Misuse

    try:
        return shlex.split(prompts.line("Which command should run", shlex.join(command))) or command
    except ValueError as wrong:
        raise Misuse(f"that cannot be split into words: {wrong}", hint="Close every quote.") from None


def _write(path: Path, text: str) -> None:
    from holdfast.durable import durable_write

    durable_write(path, text.encode())


# --- what lies in the folder ---


def look(folder: Path) -> dict[str, Any]:
    """What the job file of this folder should say, and why, in words."""
    found: dict[str, Any] = {"why": [], "from_project": [], "requirements": "", "dockerfile": "", "input": {}}
    why: list[str] = found["why"]
    script = _script(folder)
    found["command"] = ["echo", "hello"]
    if script is not None:
        found["command"] = ["sh" if script.suffix == ".sh" else "python3", str(script)]
        why.append(f"{script}: the command runs it")
    _look_for_packages(folder, found, why)
    found["training"] = script is not None and script.name.startswith("train")
    if found["training"]:
        why.append(f"{script} trains: what it saves in $HOLDFAST_CHECKPOINT_DIR outlives the machine")
    for name in DATA:
        if (folder / name).is_dir():
            found["input"][name] = name
            why.append(f"{name}/: the job finds it in inputs/{name}/")
    found["mib"] = _size_mib(folder)
    return found


def _script(folder: Path) -> Path | None:
    for pattern in SCRIPTS:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.name.startswith(("test_", "conftest", "setup.")):
                return path
    return None


def _look_for_packages(folder: Path, found: dict[str, Any], why: list[str]) -> None:
    names: set[str] = set()
    if (folder / "Dockerfile").is_file():
        found["dockerfile"] = "Dockerfile"
        why.append("Dockerfile: the image is built from it")
    if (folder / "requirements.txt").is_file():
        names = _packages(_lines(folder / "requirements.txt"))
        if not found["dockerfile"]:
            found["requirements"] = "requirements.txt"
            why.append("requirements.txt: it is installed first")
    elif not found["dockerfile"] and (listed := _project(folder / "pyproject.toml")):
        names = _packages(listed)
        found["from_project"], found["requirements"] = listed, FROM_PROJECT
        why.append(f"pyproject.toml: what it depends on is copied to {FROM_PROJECT}")
    found["large"] = sorted(names & LARGE)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[:1_000]
    except OSError:
        # The job file names it anyway; `run` says what is wrong with it.
        return []


def _packages(lines: list[str]) -> set[str]:
    return {match[0].lower() for line in lines if (match := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip()))}


def _project(path: Path) -> list[str]:
    """The dependencies of a project; none if they cannot be read."""
    try:
        listed = tomllib.loads(path.read_text()).get("project", {}).get("dependencies", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, AttributeError):
        return []
    return [line for line in listed if isinstance(line, str) and line.isprintable()] if isinstance(listed, list) else []


def _size_mib(folder: Path) -> int:
    total = count = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {".git", "results", "node_modules", "__pycache__"}]
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
            count += 1
        if count > LOOKED_AT_MAX:
            break
    return total >> 20


# --- the file ---


def page(command: list[str], found: dict[str, Any]) -> str:
    """The job file: every line with its reason, and further keys as comments."""
    import json

    def line(key: str, value: object, on: bool = True) -> str:
        return f"{'' if on else '# '}{key} = {json.dumps(value, ensure_ascii=False)}"

    large, docker = found["large"], found["dockerfile"]
    room = max(1, -(-found["mib"] * 3 // 1024) + 1) + (8 if large else 0)
    blocks = [
        ["# A job for `holdfast run`. Keys are its flags without their dashes; typed flags override this file."],
        ["# What runs, in a copy of this folder. The files it makes come back to results/.", line("command", command)],
        ["# The image is built from this Dockerfile, with all that the command needs.", line("dockerfile", docker)]
        if docker
        else [
            "# Installed before it runs, once for all jobs that need the same.",
            line("requirements", found["requirements"] or "requirements.txt", bool(found["requirements"])),
        ],
        ["# What it may use. More than it needs makes it wait longer for a machine.", line("cpu", 1),
         line("memory", "4GiB" if large else "512MiB") + (f"  # for {', '.join(large)}" if large else ""),
         line("disk", f"{room}GiB") + "  # this folder, its inputs, what is installed and what it makes",
         line("gpu", 1, False)],
        ["# What it saves in $HOLDFAST_CHECKPOINT_DIR is kept, and the next attempt finds it there.",
         line("checkpoint", True, found["training"]), line("checkpoint-every", "5m", found["training"])],
        ["# The job is stopped after this long; else it may run for ever.", line("time-limit", "12h", False)],
        ["# Without this, the job has no network.", line("network", True, False)],
        ["# What it reads, by the name it has in inputs/: a path here, an http(s):// or s3:// address, or job:ID.",
         "[input]" if found["input"] else "# [input]",
         *([line(name, path) for name, path in found["input"].items()] or [line("data", "data", False)])],
        ["# Environment variables of the job.", "# [env]", line("EPOCHS", "3", False)],
    ]  # fmt: skip
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"
