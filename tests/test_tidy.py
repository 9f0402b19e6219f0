"""House rules that a machine can check: purity, size, words, links, marks. Failures name file and line.

These tests carry no SPEC id: they guard the code, not a behaviour.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from holdfast.model import MEANINGS, FailureCode, Settings

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"
OLDEST = "3.11.2"
STATUS = ROOT / "docs" / "status.md"
"""Written at the end of a run, so it may be missing during the first."""
SHARED_SPEC = ROOT.parent / "shared" / "SPEC.md"

BUILT = {".venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache", "build", "dist"}

SHOWN_TO_USERS = {
    "Body": ("testing/network_bodies.py", "what a job does in a virtual network; a node's is a running process"),
    "Job": ("client/objects.py", "the SDK's handle to a job, with methods; the model's is a row"),
    "LogLine": ("client/log_lines.py", "a line as the SDK yields it; the wire's is one as it is sent"),
    "Node": ("client/objects.py", "the SDK's view of a node; the model's is a row"),
}
"""Classes that the SDK or the test kit show under the name that users know; another room has one of that name."""

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

PURE_ROOMS = (
    "model", "policy", "kernel", "node/core", "gateway/core", "orchestrator/leader/core.py",
    "orchestrator/leader/dedupe.py",
)  # fmt: skip
PURE_IMPORTS = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq",
    "itertools", "json", "math", "operator", "re", "string", "struct", "types", "typing", "msgspec",
}  # fmt: skip
"""What a decider may import besides Holdfast. A list of what is allowed, since what is harmful has no end."""
PURE_ROOMS_OF = {
    "model": {"model"},
    "policy": {"model", "policy"},
    "kernel": {"model", "policy", "kernel"},
    "node/core": {"model", "policy", "node.core"},
    "gateway/core": {"model", "policy", "gateway.core"},
    "orchestrator/leader/core.py": {"model", "kernel", "orchestrator.leader.dedupe"},
    "orchestrator/leader/dedupe.py": {"model"},
}
PURE_BUILTINS_BANNED = {"open", "print", "input", "eval", "exec", "hash", "id", "breakpoint", "__import__"}
"""`hash` of a string and `id` differ from process to process: a replay would not give the same decisions."""

STDLIB_ONLY = ("node.shim", "node.launcher", "node.runtimes", "node.core.attempt_lifecycle", "callee", "checkpoint")
"""Children of the agent: small, and started by a process that never imported gRPC. And what jobs import."""

WITHOUT_SPEC = {
    "tests/test_tidy.py": "guards the code, not a behaviour",
    "tests/test_suite.py": "guards the tests, not a behaviour",
    "tests/integration/test_glue_tree.py": "guards the tests, not a behaviour",
    "tests/integration/test_new_endpoint.py": "guards a worked example of CONTRIBUTING, not a behaviour",
    "tests/integration/test_new_row.py": "guards a worked example of CONTRIBUTING, not a behaviour",
    "tests/kernel/test_lifecycle.py": "guards the order of the mechanisms; the one test of a decision names its ids",
    "tests/kernel/test_recorded_worlds.py": "guards against unintended changes: a recording shows no rule",
    "tests/unit/test_recorded_nodes.py": "guards against unintended changes: a recording shows no rule",
    "tests/unit/test_glossary.py": "guards a page of the documentation, not a behaviour",
    "tests/acceptance/test_bench.py": "guards the programs of bench/, and says of two what they show",
    "tests/unit/test_pictures.py": "guards the pictures of the documentation, not a behaviour",
    "tests/integration/test_shake.py": "guards a tool for whoever writes tests, not a behaviour",
}
SLEEPS_ALLOWED: dict[str, str] = {}
"""`file::function` -> why a sleep outside of a polling loop is right there."""

HOSTS_ALLOWED = re.compile(
    r"(127\\?\.0\\?\.0\\?\.1|localhost|\[::1\]|0\.0\.0\.0|10\.\d+\.\d+\.\d+|HOST|[\w.-]*example(\.\w+)?|www\.w3\.org|engine|[{<$%].*)(:.*)?$",
)
"""Loopback, private and placeholder addresses; an interpolation; the name of the SVG namespace; a container engine
behind its socket, where the name means nothing."""
READ_THERE = {"docs/comparison.md": re.compile(r"\[[a-z-]+\]: https://(docs|developer|distributed)\.[\w.-]+/\S+$")}
"""Where a page cites what others document: a reference at the foot of it, of which nothing is fetched."""
REGISTRIES = re.compile(
    r"(pypi\.org|pythonhosted|npmjs\.|ghcr\.io|quay\.io|gcr\.io|hub\.docker|docker\.io/|deb\.debian|"
    r"github\.com|githubusercontent|huggingface\.co)"
)


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is or would be committed. Where this is no repository: every file that was not built."""
    if not (ROOT / ".git").exists():
        files = (p for p in ROOT.rglob("*") if p.is_file() and not BUILT & set(p.relative_to(ROOT).parts))
        return tuple(sorted(p for p in files if not p.parent.name.endswith(".egg-info")))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(ROOT / name for name in sorted(listing.split("\0")) if name and (ROOT / name).is_file())


@cache
def text_of(path: Path) -> str:
    """The text of a file, or nothing where it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*rooms: Path) -> Iterator[Path]:
    """Python that a person wrote, in these rooms or anywhere."""
    for path in tracked():
        wanted = not rooms or any(path.is_relative_to(room) for room in rooms)
        if wanted and path.suffix == ".py" and "_pb2" not in path.name:
            yield path


def files_of_tests() -> Iterator[Path]:
    return (p for p in python_files(TESTS) if p.name.startswith("test_"))


def none(findings: list[str]) -> None:
    """Fail with one line for each finding."""
    if findings:
        pytest.fail("\n".join(sorted(findings)), pytrace=False)


def functions_in(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


# --- purity ---


def imports_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import, those inside functions as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_the_deciders_import_nothing_that_reads_the_world(room: str) -> None:
    findings: list[str] = []
    for path in python_files(SRC / room):
        for line, module in imports_in(tree_of(path)):
            top, _, rest = module.partition(".")
            if top == "holdfast":
                own = any(rest == r or rest.startswith(r + ".") for r in PURE_ROOMS_OF[room])
                if not own:
                    findings.append(f"{name_of(path)}:{line} imports {module}, which {room} must not know")
            elif top not in PURE_IMPORTS:
                findings.append(f"{name_of(path)}:{line} imports {module}, which is not on the list of the pure")
    none(findings)


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_the_deciders_call_nothing_that_differs_between_runs(room: str) -> None:
    none(
        [
            f"{name_of(path)}:{node.lineno} calls {node.func.id}()"
            for path in python_files(SRC / room)
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PURE_BUILTINS_BANNED
        ]
    )


@pytest.mark.parametrize("module", STDLIB_ONLY)
def test_what_stands_beside_a_job_needs_the_standard_library_only(module: str) -> None:
    """Imported without site-packages: anything foreign, however deep, is missing there."""
    path = os.pathsep.join([str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import holdfast.{module}"],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]


# --- a wall clock decides nothing ---

WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
READS_WALL_CLOCK = {
    "blobs/folder.py": "a store without an orchestrator; with one, served time is passed in",
    "blobs/s3.py": "the bucket's clock cannot be read; counts for content that nobody refers to",
    "blobs/scanning.py": "compared with change times of files: what just changed is read again",
    "blobs/signing.py": "for programs without an orchestrator; with one, served time is passed in",
    "blobs/unpacking.py": "compared with change times of files: what just changed is read again",
    "cli/job_upload.py": "clears a cache",
    "cli/render/estimate_text.py": "shown",
    "cli/render/jobs.py": "shown",
    "cli/watch/job_watch.py": "shown",
    "diagnostics/reach.py": "shows how far two clocks are apart",
    "node/agent.py": "shown",
    "node/attempt/venvs.py": "the order in which a cache is emptied",
    "node/images/image_cache.py": "the order in which a cache is emptied",
    "node/operator/operator_socket.py": "the hours of a machine's owner are local time",
    "node/runtimes/container_supervisor.py": "until when the engine, on the same clock, tells its events",
    "orchestrator/leader/clock.py": "shown; the one place of the orchestrator",
    "sim/__main__.py": "a seed",
    "state/migrations/versions/v0006_served_time.py": "dates of the release before",
    "testing/rehearsal.py": "compared with dates that the API shows, on one machine",
}
"""Modules that read a clock which anybody can set, and why nothing is deleted, expired or blamed by it."""


def test_only_listed_modules_read_a_clock_that_can_be_set() -> None:
    reading = {
        path.relative_to(SRC).as_posix()
        for path in python_files(SRC)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node).removeprefix("datetime.") in WALL_CLOCKS
    }
    none([f"{path} reads a wall clock and is not listed" for path in reading - READS_WALL_CLOCK.keys()])
    none([f"{path} is listed and reads no wall clock" for path in READS_WALL_CLOCK.keys() - reading])


# --- an enum decides, one renderer makes the sentence ---

SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;.]? [A-Za-z]{2,}")
"""Two words in a row: prose, not a code or a key."""
PROSE = {
    "cause", "detail", "draining_because", "leaving_why", "nearest", "says", "straggling", "text", "waiting",
    "waiting_for",
}  # fmt: skip
"""Fields of rows and views that hold sentences."""
SEARCHES = {
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "split",
    "startswith",
}  # fmt: skip
QUEUES = {"loop", "queue", "self"}
"""Whose `waiting` is those who wait."""
MAKES_OR_MIGRATES = {"model/cause_text.py", "model/old_sentences.py"}
WORDS_OF_OTHERS = {
    "callee.py": "kinds of files as they are named in what is sent",
    "cli/commands/completion.py": "the mark behind a line in a file of the shell",
    "cli/error_output.py": "says the parser of the command line",
    "identity/tokens.py": "a token",
    "node/hardware.py": "says /proc/cpuinfo",
    "node/images/image_names.py": "says the container engine",
    "node/images/image_cache.py": "says the container engine",
    "node/link.py": "says gRPC",
    "node/runtimes/container_trial.py": "what the trial printed",
    "node/runtimes/engine_api.py": "says the container engine",
    "node/runtimes/container_supervisor.py": "says the container engine",
    "node/attempt/venvs.py": "says pip",
    "sim/__main__.py": "the name of a rule, before the colon",
    "testing/runtimes.py": "checks that a runtime names the amount",
}
"""Modules that read words which are not ours, or no prose; and why."""


@cache
def constants_of(path: Path) -> dict[str, set[str]]:
    """Words by the name of the constant of a module that holds them."""
    found: dict[str, set[str]] = {}
    for node in tree_of(path).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant | ast.Tuple | ast.List | ast.Set):
            found[target.id] = {
                c.value for c in ast.walk(value) if isinstance(c, ast.Constant) and type(c.value) is str
            }
    return found


def constants_seen(path: Path) -> dict[str, set[str]]:
    """Its own, those it imports by name, and those of modules that it imports, as `module.NAME`."""
    seen = dict(constants_of(path))
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("holdfast"):
            continue
        folder = SRC.joinpath(*(node.module or "").split(".")[1:])
        for alias in node.names:
            name = alias.asname or alias.name
            if folder.with_suffix(".py").exists() and alias.name in (held := constants_of(folder.with_suffix(".py"))):
                seen[name] = held[alias.name]
            if (module := folder / f"{alias.name}.py").exists():
                seen |= {f"{name}.{constant}": words for constant, words in constants_of(module).items()}
    return seen


def words_in(expression: ast.expr, constants: dict[str, set[str]]) -> set[str]:
    match expression:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.JoinedStr(values=parts):
            return {word for part in parts for word in words_in(part, constants)}
        case ast.FormattedValue(value=value):
            return words_in(value, constants)
        case ast.Name() | ast.Attribute():
            return constants.get(ast.unparse(expression), set())
        case _:
            return set()


def compared(node: ast.AST) -> list[ast.expr]:
    """What is compared with something, or searched in or for."""
    match node:
        case ast.Compare() if any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
            return [node.left, *node.comparators]
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in SEARCHES:
            return [text, *node.args]
        case ast.MatchValue():
            return [node.value]
        case _:
            return []


def is_prose(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Attribute) or expression.attr not in PROSE:
        return False
    owner = ast.unparse(expression.value).rpartition(".")[2]
    return not (expression.attr == "waiting" and owner in QUEUES)


def prose_decisions(path: Path) -> Iterator[str]:
    constants = constants_seen(path)
    for node in ast.walk(tree_of(path)):
        parts = compared(node)
        spoken = {word for part in parts for word in words_in(part, constants) if SENTENCE.search(word)}
        if spoken or any(map(is_prose, parts)):
            yield f"{name_of(path)}:{parts[0].lineno}: decides by words: {ast.unparse(node)}"


def test_no_module_decides_by_a_sentence() -> None:
    rooms = [path for path in python_files(SRC) if path.relative_to(SRC).parts[0] != "neural"]
    read = {path: list(prose_decisions(path)) for path in rooms}
    allowed = MAKES_OR_MIGRATES | set(WORDS_OF_OTHERS)
    none([line for path, lines in read.items() if path.relative_to(SRC).as_posix() not in allowed for line in lines])
    # and who is on the list has a reason to be
    used = {path.relative_to(SRC).as_posix() for path, lines in read.items() if lines}
    assert set(WORDS_OF_OTHERS) <= used, f"need not be listed any more: {set(WORDS_OF_OTHERS) - used}"


@pytest.mark.parametrize(
    "code",
    [
        "AWAY = 'it is away'\ndef f(job): return job.reason == AWAY",
        "def f(job): return job.waiting == x",
        "def f(attempt): return attempt.straggling.startswith(STALLED)",
        "def f(cause): return 'quarantined for good' in cause",
        "def f(gate): return gate in ('held free', 'too many attempts')",
        "from holdfast.node.runtimes import container_trial\ndef f(event, line): return event.text != line.text",
        "def f(text):\n    match text:\n        case 'it joined': return 1",
    ],
)
def test_a_decision_by_a_sentence_is_noticed(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(code)
    assert list(prose_decisions(tmp_path / "module.py"))


# --- tasks ---

STARTS_TASKS = {"create_task", "ensure_future"}
OWNER_OF_TASKS = SRC / "tasks.py"


def nameless_tasks(path: Path) -> Iterator[str]:
    """Tasks that are started without a name. `ensure_future` cannot give one."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in STARTS_TASKS and not any(keyword.arg == "name" for keyword in node.keywords):
            yield f"{name_of(path)}:{node.lineno} {called} without a name; see holdfast/tasks.py"


def test_every_task_has_a_name() -> None:
    """A task that hangs or fails is found by it. Most are started by an owner, which also ends them."""
    none([line for path in python_files(SRC) if path != OWNER_OF_TASKS for line in nameless_tasks(path)])


@pytest.mark.parametrize(
    "code",
    [
        "task = asyncio.create_task(work())",
        "task = asyncio.get_running_loop().create_task(work())",
        "task = create_task(work(), context=there)",
        "async def f(): await asyncio.shield(asyncio.ensure_future(work()))",
    ],
)
def test_a_task_without_a_name_is_noticed(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "module.py").write_text(code)
    assert list(nameless_tasks(tmp_path / "module.py"))


# --- size and words ---


def test_every_module_says_what_it_is_for() -> None:
    none([f"{name_of(p)} has no docstring" for p in python_files() if not ast.get_docstring(tree_of(p))])


def test_modules_and_functions_are_short_enough_to_hold_in_mind() -> None:
    findings: list[str] = []
    for path in python_files(SRC):
        lines = text_of(path).count("\n")
        if lines > MODULE_LINES_MAX:
            findings.append(f"{name_of(path)} has {lines} lines (at most {MODULE_LINES_MAX})")
        for function in functions_in(tree_of(path)):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES_MAX:
                where = f"{name_of(path)}:{function.lineno} {function.name}"
                findings.append(f"{where} has {length} lines (at most {FUNCTION_LINES_MAX})")
    none(findings)


def lines_matching(pattern: re.Pattern[str], but: tuple[str, ...] = ()) -> list[str]:
    """`file:line  text` of every line that matches, this file apart."""
    mine = ("tests/test_tidy.py", *but)
    return [
        f"{name_of(path)}:{number}  {line.strip()[:100]}"
        for path in tracked()
        if name_of(path) not in mine and "_pb2" not in path.name
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_put_off() -> None:
    none(lines_matching(re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b|\bNotImplemented\b(?!\))")))


def test_no_test_is_left_out() -> None:
    pattern = re.compile(r"mark\.(skip|skipif|xfail)\b|pytest\.(skip|xfail|importorskip)\(|unittest\.skip|skipTest\(")
    none([hit for hit in lines_matching(pattern) if hit.startswith(("tests/", "src/holdfast/testing/"))])


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports them by it: of two with the same name, a whole run would leave one out."""
    names: dict[str, list[Path]] = {}
    for file in TESTS.rglob("*.py"):
        if file.name not in ("__init__.py", "conftest.py"):
            names.setdefault(file.name, []).append(file.relative_to(ROOT))
    assert not {name: files for name, files in names.items() if len(files) > 1}


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    # /work is also what a body calls its folder, with files of its own in it.
    none(lines_matching(re.compile(r"(?<![\w.}])/(work/(main|shared|\.\w+)|root|home/\w+|Users/\w+)/")))


def test_no_file_names_a_place_to_download_from() -> None:
    """What is installed is named by package and version; where from is the machine's own business."""
    findings = lines_matching(REGISTRIES, but=("LICENSE",))
    for hit in lines_matching(re.compile(r"https?://"), but=("LICENSE",)):
        cited = READ_THERE.get(hit.partition(":")[0])
        if cited and cited.search(hit):
            continue
        for host in re.findall(r"https?://([^/\s\"'`)>,]*)", hit):
            if host and not HOSTS_ALLOWED.match(host):
                findings.append(hit)
    none(findings)


def test_constraints_hold_names_and_versions_only() -> None:
    lines = text_of(ROOT / "constraints.txt").splitlines()
    none([f"constraints.txt: {line}" for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9_.-]+==[\w.+!]+", line)])


def test_what_is_pinned_runs_on_the_oldest_python_that_we_promise() -> None:
    names = [line.partition("==")[0] for line in text_of(ROOT / "constraints.txt").splitlines() if "==" in line]
    found = [found for name in names for found in metadata.distributions(name=name)]
    assert len(found) > 100, "this test reads what is installed"
    none([
        f"constraints.txt: {one.name} {one.version} needs Python {needs}, and Debian 12 has {OLDEST}"
        for one in found
        if (needs := one.metadata.get("Requires-Python")) and OLDEST not in SpecifierSet(needs)
    ])  # fmt: skip


# --- tests ---


def marks_in(decorators: list[ast.expr]) -> set[str]:
    """SPEC ids in `pytest.mark.spec(...)` among these expressions."""
    return {
        arg.value
        for expression in decorators
        for node in ast.walk(expression)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spec"
        for arg in node.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    }


def module_marks(tree: ast.Module) -> set[str]:
    return {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in node.targets)
        for mark in marks_in([node.value])
    }


def spec_ids() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text_of(TESTS / "spec_ids.txt").splitlines() if line)


def test_every_test_names_what_it_covers() -> None:
    findings: list[str] = []
    for path in files_of_tests():
        tree = tree_of(path)
        whole = module_marks(tree)
        owners = {f: c for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in functions_in(c)}
        for function in functions_in(tree):
            if not function.name.startswith("test_"):
                continue
            owner = owners.get(function)
            marks = whole | marks_in(function.decorator_list) | (marks_in(owner.decorator_list) if owner else set())
            where = f"{name_of(path)}:{function.lineno} {function.name}"
            if not marks and name_of(path) not in WITHOUT_SPEC:
                findings.append(f"{where} carries no spec mark")
            findings += [f"{where} names {m}, which SPEC.md does not have" for m in marks - spec_ids().keys()]
    none(findings)


def test_the_list_of_requirements_is_that_of_the_specification() -> None:
    if not SHARED_SPEC.exists():
        assert spec_ids(), "tests/spec_ids.txt is empty"
        return
    theirs = dict(re.findall(r"^- ([A-Z]\d+) (.+)$", SHARED_SPEC.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(spec_ids()) == list(theirs)
    none([f"{i}: {title}" for i, title in spec_ids().items() if not theirs[i].startswith(title)])


def test_the_status_page_says_what_is_covered_of_each_requirement() -> None:
    notes = tomllib.loads(text_of(TESTS / "spec_coverage.toml"))
    trees = [tree_of(path) for path in files_of_tests()]
    marked = {mark for tree in trees for mark in marks_in([n for n in ast.walk(tree) if isinstance(n, ast.expr)])}
    none([f"tests/spec_coverage.toml has no [{wanted}]" for wanted in marked - notes.keys()])
    none([f"tests/spec_coverage.toml: [{wanted}] is marked by no test" for wanted in notes.keys() - marked])


def _yields(call: ast.Call) -> bool:
    """`sleep(0)` lets others run, and waits for nothing."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def test_tests_wait_for_what_happens_and_not_for_the_clock() -> None:
    """A sleep inside a `while` polls a condition; any other one is a guess about time."""
    findings: list[str] = []
    for path in python_files(TESTS):
        tree = tree_of(path)
        polling = {n for loop in ast.walk(tree) if isinstance(loop, ast.While) for n in ast.walk(loop)}
        for function in functions_in(tree):
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or node in polling:
                    continue
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if (
                    called == "sleep"
                    and not _yields(node)
                    and f"{name_of(path)}::{function.name}" not in SLEEPS_ALLOWED
                ):
                    findings.append(f"{name_of(path)}:{node.lineno} sleeps in {function.name}")
    none(findings)


# --- docs ---


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings, as renderers make them."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_links_between_pages_lead_somewhere() -> None:
    findings: list[str] = []
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", text_of(path)):
            file, _, anchor = target.partition("#")
            if "://" in file:
                continue
            there = (path.parent / file).resolve() if file else path
            if there == STATUS:
                continue
            if not there.exists():
                findings.append(f"{name_of(path)} links to {target}, which is not there")
            elif anchor and there.suffix == ".md" and anchor not in anchors_of(there):
                findings.append(f"{name_of(path)} links to {target}, which has no such heading")
    none(findings)


PATH_LIKE = re.compile(r"(?:[\w.*-]+/)+[\w.*-]*|[\w-]+\.(?:py|md|txt|toml|sh|patch|yml)\b")
EXAMPLES_OWN = re.compile("losses|fleet")
"""What the worked examples add."""


def test_contributing_names_files_that_exist() -> None:
    """Every word in code that looks like a path: from the root of the tree, or from src/holdfast."""
    text = text_of(ROOT / "CONTRIBUTING.md")
    code = re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL)
    named = {re.sub(r"^[ab]/(?=src/)", "", word) for span in code for word in PATH_LIKE.findall(span)}
    named = {word for word in named if word.split("/")[0] not in BUILT and not EXAMPLES_OWN.search(word)}
    assert len(named) > 30, "the pattern finds no paths"
    none([f"CONTRIBUTING.md names {word}" for word in named if not any(list(at.glob(word)) for at in (ROOT, SRC))])


def test_every_page_is_in_the_index() -> None:
    index = text_of(ROOT / "docs" / "README.md")
    pages = [p for p in tracked() if p.suffix == ".md" and p.is_relative_to(ROOT / "docs") and p.name != "README.md"]
    none(
        [
            f"docs/README.md does not mention {name_of(p)}"
            for p in pages
            if f"({p.relative_to(ROOT / 'docs').as_posix()})" not in index
        ]
    )


def test_every_setting_gives_its_reason() -> None:
    body = next(
        n for n in tree_of(SRC / "model" / "settings.py").body if isinstance(n, ast.ClassDef) and n.name == "Settings"
    ).body
    reasons = {
        field.target.id
        for field, following in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    fields = {f.name for f in msgspec.structs.fields(Settings)}
    none([f"Settings.{name} gives no reason" for name in fields - reasons])


def test_every_failure_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(FailureCode)
    says = [m.says for m in MEANINGS.values()]
    assert all(says)
    assert len(set(says)) == len(says), "two codes say the same thing: a person could not tell them apart"


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr


def test_the_status_page_was_written_by_a_run() -> None:
    from tests.plugins.status import unbroken

    assert not STATUS.exists() or unbroken(text_of(STATUS)), "docs/status.md was edited by hand; run `make test`"


def test_names_of_public_classes_are_unique() -> None:
    """Whoever searches for a class finds one. Generated code is left out, and what `SHOWN_TO_USERS` lists."""
    places: dict[str, list[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        relative = path.relative_to(SRC)
        if "_pb2" in path.name:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(relative))
    several = {name: files for name, files in places.items() if len(files) > 1}
    shown = {name: file for name, (file, _) in SHOWN_TO_USERS.items()}
    none([
        f"{name} is in {', '.join(files)}"
        for name, files in several.items()
        if len(files) > 2 or shown.get(name) not in files
    ])  # fmt: skip
    assert shown.keys() <= several.keys(), f"need not be listed any more: {shown.keys() - several.keys()}"
