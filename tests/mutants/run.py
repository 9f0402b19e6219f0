"""Shows that the tests guard the safety rules: each patch here breaks one rule, and the tests must notice.

    python tests/mutants/run.py [--quick] [NAME…]

A patch `NAME.patch` is a unified diff under two lines that say which rule it breaks and what must notice:

    # rule: nothing is accepted from a revoked attempt (J5)
    # tests: tests/kernel/test_contenders.py tests/kernel/test_leases.py::test_a_lease_alone_starts_nothing

Each patch is applied to a copy of the tree and the named tests run there; the tests must fail, and by failing,
not by being unable to start. First the copy without a patch must pass the same tests. Examples are drawn alike in
every run, so that a mutant dies by the same one every time. With `--quick` that is all; otherwise a mutant that the
named tests missed is also shown to the whole unit and simulation suite, and the report says that its line wants a
better test. Exit 0 only if every mutant was killed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MUTANTS = Path(__file__).resolve().parent
COPIED = ("src", "tests", "scripts", "pyproject.toml")
WIDE = ("tests/unit", "tests/kernel", "tests/simulation")
PARALLEL = 2
TEST_S = 180
"""For one test, with a mutation or without: else a test that is merely slow would count as one that noticed."""
LIMIT_S, SOUND_LIMIT_S = 600, 1200
"""For one mutant's tests, and for all of them on the sound tree. What hangs instead of failing was shown to nobody."""

CANARY = '''
"""Ends a run that would test another tree than its own copy, and draws the same examples in every run."""

import os
from pathlib import Path

from hypothesis import Phase, settings

import holdfast

# What tests/conftest.py says comes on top. Nobody asks for the smallest example that kills.
settings.register_profile("mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutants")

if not Path(holdfast.__file__).is_relative_to(Path(__file__).parent):
    print(f"the tests would import {holdfast.__file__}, not the mutated copy", flush=True)
    os._exit(97)
'''
PYTEST_FAILED = 1
"""Pytest's exit status for "tests ran and some failed": the only one that kills a mutant."""


@dataclass(frozen=True)
class Mutant:
    name: str
    patch: Path
    rule: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    word: str
    """killed | survived | stale | broken"""
    says: str
    seconds: float

    @property
    def good(self) -> bool:
        return self.word == "killed"


def read(patch: Path) -> Mutant:
    text = patch.read_text(encoding="utf-8")
    rule = re.search(r"^# rule: (.+\([A-Z]\d+(?:, [A-Z]\d+)*\))$", text, re.MULTILINE)
    tests = re.search(r"^# tests: (.+)$", text, re.MULTILINE)
    if not rule or not tests:
        raise SystemExit(f"{patch.name}: needs `# rule: … (SPEC id)` and `# tests: …` lines")
    return Mutant(patch.stem, patch, rule[1], tuple(tests[1].split()))


def copy_tree(into: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("*.egg-info"))
        else:
            shutil.copy2(source, into / name)
    (into / "src" / "mutant_canary.py").write_text(CANARY, encoding="utf-8")


def link_tree(sound: Path, into: Path) -> None:
    """A tree of other names for the same files: a patch puts a new file in the place of the one that it changes.
    Compiled files come along: only what a patch touches is compiled anew."""
    for name in COPIED:
        if (sound / name).is_dir():
            shutil.copytree(sound / name, into / name, copy_function=os.link)
        else:
            os.link(sound / name, into / name)


def looks(tree: Path) -> dict[Path, tuple[int, int]]:
    """Every file of a tree by its size and when it was written."""
    found = ((path, path.stat()) for path in tree.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path: (status.st_size, status.st_mtime_ns) for path, status in found}


def apply(patch: Path, tree: Path) -> str:
    """Apply a patch; the empty string, or why it does not fit any more."""
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch)],
        cwd=tree, capture_output=True, text=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
    )  # fmt: skip
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[0] if done.stderr.strip() else "git apply failed"
    for touched in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE):
        cache = tree / Path(touched).parent / "__pycache__"
        for compiled in cache.glob(f"{Path(touched).stem}.*.pyc"):
            compiled.unlink()
        if (tree / touched).read_bytes() == (ROOT / touched).read_bytes():
            return f"{touched} is the same after the patch"
    return ""


def run_tests(
    tree: Path, tests: tuple[str, ...], test_s: int = TEST_S, limit_s: int = LIMIT_S, compiles: bool = False
) -> tuple[int, str]:
    """Pytest's exit status and output, with the copy as the tree under test."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=line", "-W", "ignore", f"--timeout={test_s}", *tests]
    for plugin in ("mutant_canary", "pytest_timeout", "xdist.plugin", "no:cacheprovider"):
        command += ["-p", plugin]
    env = {
        # Where pytest is told that a build server reads along, it writes the whole difference of what was compared.
        # For two random 100 kB that takes longer than the limit, and the run ends without the name of the test.
        **{name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")},
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "" if compiles else "1",
        # Only the plugins named above: finding and importing all that are installed takes longer than most tests.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
    }
    try:
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=limit_s, env=env)
    except subprocess.TimeoutExpired:
        return -1, f"not finished after {limit_s} s"
    return done.returncode, done.stdout + done.stderr


def killer(status: int, output: str) -> str:
    """The test that failed, from pytest's summary; empty if the run ended in any other way."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::\w+)", output, re.MULTILINE)
    return failed[1] if failed and status == PYTEST_FAILED else ""


def try_mutant(mutant: Mutant, quick: bool, sound: Path) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"holdfast-mutant-{mutant.name}-") as scratch:
        tree = Path(scratch)
        link_tree(sound, tree)
        if why := apply(mutant.patch, tree):
            return Outcome(mutant, "stale", why, time.monotonic() - began)
        status, output = run_tests(tree, mutant.tests)
        if status == 0 and not quick:
            status, output = run_tests(tree, WIDE)
            if by := killer(status, output):
                return Outcome(mutant, "killed", f"{by} (its own line did not)", time.monotonic() - began)
    took = time.monotonic() - began
    if by := killer(status, output):
        return Outcome(mutant, "killed", by, took)
    if status == 0:
        return Outcome(mutant, "survived", "no test noticed", took)
    return Outcome(mutant, "broken", f"pytest ended with {status}: {last_words(output)}", took)


def last_words(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1][:120] if lines else "no output"


def baseline(mutants: list[Mutant], sound: Path) -> None:
    """The tree without a mutation passes what is asked of the mutants, else their deaths mean nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})

    def run(part: int) -> tuple[int, str]:
        return run_tests(sound, tuple(tests[part::PARALLEL]), TEST_S, SOUND_LIMIT_S, compiles=True)

    with ThreadPoolExecutor(PARALLEL) as pool:
        ended = list(pool.map(run, range(min(PARALLEL, len(tests)))))
    for status, output in ended:
        if status != 0:
            print(output)
            raise SystemExit("mutants: the unmutated tree does not pass the tests that should kill them")


def report(outcomes: list[Outcome], seconds: float) -> None:
    width = max(len(o.mutant.name) for o in outcomes)
    for o in outcomes:
        print(f"{o.word:<9}{o.mutant.name:<{width}}  {o.seconds:5.1f} s  {o.mutant.rule}")
        print(f"{'':<9}{'':<{width}}           {'by ' if o.good else ''}{o.says}")
    for o in outcomes:
        if not o.good:
            print(f"NOT KILLED: {o.mutant.name}: {o.word}: {o.says}")
    killed = sum(o.good for o in outcomes)
    print(f"mutants: {killed} of {len(outcomes)} killed in {seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="apply each mutant to a copy and require that the tests kill it")
    parser.add_argument("--quick", action="store_true", help="only the tests each mutant names")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    chosen = parser.parse_args()
    mutants = [read(patch) for patch in sorted(MUTANTS.glob("*.patch"))]
    if unknown := set(chosen.names) - {m.name for m in mutants}:
        raise SystemExit(f"mutants: there is no {', '.join(sorted(unknown))}")
    mutants = [m for m in mutants if not chosen.names or m.name in chosen.names]
    if not mutants:
        raise SystemExit("mutants: there is none, so nothing is shown")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-none-") as scratch:
        sound = Path(scratch)
        copy_tree(sound)
        before = looks(sound)
        baseline(mutants, sound)
        with ThreadPoolExecutor(PARALLEL) as pool:
            outcomes = list(pool.map(lambda m: try_mutant(m, chosen.quick, sound), mutants))
        if {path: was for path, was in looks(sound).items() if path in before} != before:
            raise SystemExit("mutants: a test wrote into the files that all mutants share; their deaths mean nothing")
    report(outcomes, time.monotonic() - began)
    return 0 if all(o.good for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
