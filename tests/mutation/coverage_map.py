"""Which tests execute which lines of a room, and how long each takes: measured once for a state of the tree."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import coverage
import pytest
from tests.mutation.rooms import LEFT_OUT, ROOT, SOURCE, Room

KEPT = ROOT / "build" / "mutation"
SCRIPTS = ("record_worlds.py", "drawn_network.py")
"""Beside the tests, but used by none."""


class CoverageMap:
    def __init__(self, seconds: dict[str, float], lines: dict[str, dict[int, list[str]]]) -> None:
        self.seconds = seconds
        self._lines = lines
        breadth = Counter(test for by_line in lines.values() for tests in by_line.values() for test in tests)
        self._rank = {test: (took * breadth[test], test) for test, took in seconds.items()}

    def tests_of(self, path: Path, first_line: int, last_line: int) -> list[str]:
        """The tests that execute any of these lines: first those that are quick and execute little else."""
        by_line = self._lines.get(path.relative_to(SOURCE).as_posix(), {})
        found = {test for line in range(first_line, last_line + 1) for test in by_line.get(line, ())}
        return sorted((test for test in found if test in self._rank), key=self._rank.__getitem__)


class OutOfTime(Exception):
    """The measuring run did not end in time."""


def measure(room: Room, until: float | None = None) -> CoverageMap:
    """The map of a room for the present tree. What `build/` has is used: all of it if only tests changed since, except
    for the files of those. Raises OutOfTime at `until`, by the monotonic clock."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"coverage-{room.name}.json"
    code, tests = _hash_of_code(room), {_name(file): _hash_of_test(file) for file in room.test_files()}
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("code") != code:
        known = {"code": code, "tests": {}, "seconds": {}, "lines": {}}
    changed = [file for file in tests if known["tests"].get(file) != tests[file]]
    gone = [file for file in known["tests"] if file not in tests]
    if changed or gone:
        _forget(known, {*changed, *gone})
    if changed:
        print(f"{room.name}: measuring what {len(changed)} files of tests execute", flush=True)
        _measure_into(known, room, changed, until)
    known["tests"] = tests
    kept.write_text(json.dumps(known))
    return _map(known)


def _forget(known: dict[str, Any], files: set[str]) -> None:
    def stays(test: str) -> bool:
        return test.partition("::")[0] not in files

    known["seconds"] = {test: took for test, took in known["seconds"].items() if stays(test)}
    for by_line in known["lines"].values():
        for line in by_line:
            by_line[line] = [test for test in by_line[line] if stays(test)]


def _measure_into(known: dict[str, Any], room: Room, files: list[str], until: float | None) -> None:
    data = KEPT / f"coverage-{os.getpid()}.data"
    seconds = KEPT / f"seconds-{os.getpid()}.json"
    config = KEPT / f"coverage-{room.name}.ini"
    included = "\n".join(f"  {path}" for path in room.files())
    config.write_text(f"[run]\ncore = ctrace\ninclude =\n{included}\n")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", f"--data-file={data}",
             "-m", "pytest", *files, *_options(), "-p", "tests.mutation.coverage_plugin", "-x"],
            cwd=ROOT, env={**environment(), "HOLDFAST_MUTATION_SECONDS": str(seconds)}, capture_output=True, text=True,
            timeout=None if until is None else max(0.1, until - time.monotonic()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OutOfTime from None
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(done.stdout[-3_000:], done.stderr[-2_000:])
        raise SystemExit("mutation: the tests do not pass on the tree as it is")
    known["seconds"] |= json.loads(seconds.read_text())
    for file, by_line in _by_line(data).items():
        lines = known["lines"].setdefault(file, {})
        for line, tests in by_line.items():
            lines[str(line)] = sorted({*lines.get(str(line), ()), *tests})
    data.unlink()
    seconds.unlink()


def pytest_arguments(room: Room) -> list[str]:
    return [*map(_name, room.test_files()), *_options()]


def _options() -> list[str]:
    plugins = [
        word
        for name in ("pytest_timeout", "no:cacheprovider", "no:faker", "tests.mutation.hypothesis_profile")
        for word in ("-p", name)
    ]
    return ["-k", LEFT_OUT, "-q", "--timeout=0", "-W", "ignore", *plugins]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {
        **kept, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }  # fmt: skip


def _by_line(data: Path) -> dict[str, dict[int, list[str]]]:
    found: dict[str, dict[int, list[str]]] = {}
    read = coverage.CoverageData(str(data))
    read.read()
    for file in read.measured_files():
        by_line = read.contexts_by_lineno(file)
        name = Path(file).relative_to(SOURCE).as_posix()
        found[name] = {line: sorted(filter(None, contexts)) for line, contexts in by_line.items()}
    return found


def _map(read: dict[str, object]) -> CoverageMap:
    lines = {
        file: {int(line): tests for line, tests in by_line.items()}
        for file, by_line in read["lines"].items()  # type: ignore[attr-defined]
    }
    return CoverageMap(read["seconds"], lines)  # type: ignore[arg-type]


def _hash_of_code(room: Room) -> str:
    """Of the code, of what lies beside the tests, and of which tests are left out."""
    folders = {file.parent for file in room.test_files()} | {ROOT / "tests"}
    beside = [file for folder in folders for file in folder.glob("*.py") if not file.name.startswith("test_")]
    helpers = [file for file in beside if file.name not in SCRIPTS]
    return _hash([*SOURCE.rglob("*.py"), *helpers], LEFT_OUT)


def _hash_of_test(file: Path) -> str:
    return _hash([file, *file.parent.glob("recorded*/*.gz")] if "recorded" in file.name else [file])


def _hash(files: list[Path], more: str = "") -> str:
    summed = sha256(more.encode())
    for file in sorted(files):
        summed.update(_name(file).encode() + b"\0" + file.read_bytes())
    return summed.hexdigest()


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()
