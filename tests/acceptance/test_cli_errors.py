"""Every error that a person can cause, caused: what it says, its code, what to do, its exit code, and no traceback.

The table is `holdfast.codes`; docs/errors.md is written from it. A code in the source without a row, a row without a
cause and a cause without a row all fail here.
"""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_causes import CAUSES, ELSEWHERE
from error_world import World

import holdfast
from holdfast.cli.commands.help import EXIT_CODES
from holdfast.cli.error_output import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from holdfast.client.answers import error_of
from holdfast.codes import failed, http_status, rows
from holdfast.errors import exit_code_of, verdict_error
from holdfast.model import MEANINGS, Blame, FailureCode
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = [pytest.mark.spec("J7", "J3"), pytest.mark.xdist_group("cli-errors")]

TESTS = Path(__file__).parent.parent
SOURCE = Path(holdfast.__file__).parent
CODE_AT = {"ErrorView": 0, "Rejected": 0, "Unavailable": 0, "Refusal": 0, "ApiError": 0}
"""Which argument of a call is the code."""
CAUSABLE = sorted(code for code, row in rows().items() if not row.inside and code not in ELSEWHERE)
STATUS = {
    400: "ambiguous bad_cursor bad_request",
    401: "not_allowed",
    403: "forbidden link_expired link_refused",
    404: "blob_missing no_such_access no_such_node no_such_token not_found",
    405: "method_not_allowed",
    409: "already_there incomplete key_reused move_under_way moved_too_often must_not_repeat no_files no_room "
    "node_not_ready not_ended not_live revoked too_late",
    410: "cursor_expired job_deleted output_gone",
    413: "too_large",
    422: "blob_damaged blob_mismatch manifest_refused no_fit",
    429: "access_limit network_full over_quota owner_limit token_limit",
    500: "internal",
    503: "busy stopping store_failed store_gone store_refused store_slow store_unavailable",
    507: "store_full",
}
"""The HTTP status of the codes that programs know: it does not change."""
USERS = sorted(c.value for c in FailureCode if MEANINGS[c].blame in (Blame.USER, Blame.PLATFORM))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with LocalNetwork(tmp_path_factory.mktemp("errors")) as network:
        network.start_orchestrator(preset="lan")
        once = network.client().tokens.create(uses=1).token
        network.start_node("ant", wait=False)
        network.start_node("bee", wait=False, token=once)
        for name in ("ant", "bee"):
            network.wait_node(name)
        made = World(network, tmp_path_factory.mktemp("things"), once)
        yield made
        made.close()


# --- the table is whole ---


def codes_in_source() -> dict[str, str]:
    """Every code that some class, call or table of the source names, and where."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if path.is_relative_to(SOURCE / "sim"):
            continue  # a world of its own: what is said there reaches nobody
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("code", *CODE_AT)):
            continue
        for node in ast.walk(ast.parse(text)):
            for code in _codes(node):
                found.setdefault(code, f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}")
    return found


def _codes(node: ast.AST) -> Iterator[str]:
    values: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        values = [a.value for a in node.body if isinstance(a, ast.Assign) and ast.unparse(a.targets[0]) == "code"]
    elif isinstance(node, ast.Call):
        values = [word.value for word in node.keywords if word.arg == "code"]
        at = CODE_AT.get(ast.unparse(node.func).rpartition(".")[2])
        values += node.args[at : at + 1] if at is not None else []
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
            yield value.value


def test_every_code_of_the_source_is_in_the_table_and_every_row_in_the_source() -> None:
    named = codes_in_source()
    failures = {code.value for code in FailureCode}

    missing = [f"{code} ({where})" for code, where in named.items() if code not in rows() and code not in failures]
    unused = set(rows()) - set(named) - {"server_fault", "file_unusable"}

    assert not missing, "codes without a row in holdfast.codes: " + ", ".join(missing)
    assert not unused, f"rows that nothing in the source says: {sorted(unused)}"
    assert set(failed.WHAT_TO_DO) == failures


def names(test: str, code: str) -> bool:
    """Whether there is such a test (`file::function`), and it or a function of its file that it calls has the code as a
    string, alone or in brackets, as a command prints it. A docstring does not count."""
    place, _, function = test.partition("::")
    tree = ast.parse((TESTS / place).read_text(encoding="utf-8"))
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
    reached, ahead, said = set[str](), [function], list[str]()
    while ahead:
        if (name := ahead.pop()) in reached or name not in functions:
            continue
        reached.add(name)
        prose = {id(e.value) for e in ast.walk(functions[name]) if isinstance(e, ast.Expr)}
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                ahead.append(node.func.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                said.append(node.value)
    return any(text == code or f"[{code}]" in text for text in said)


def test_a_cause_elsewhere_is_a_test_that_names_the_code() -> None:
    test = ELSEWHERE["store_slow"]
    assert names(test, "store_slow")
    assert not names(test, "store_full"), "another test of that file does"
    assert not names(test + "_or_not", "store_slow")


def test_every_row_is_whole_and_every_code_has_a_cause() -> None:
    for code, row in rows().items():
        assert all((row.what, row.why, row.do)), code
        assert row.inside or code in CAUSES or code in ELSEWHERE, f"nothing causes {code}"
    assert set(CAUSES) | set(ELSEWHERE) <= set(rows()), "causes of codes that do not exist"
    for code, test in ELSEWHERE.items():
        assert names(test, code), f"{test} is not there, or does not name {code}"


def test_every_exit_code_is_explained() -> None:
    used = {row.exit_code for row in rows().values()} | {EXIT_BROKEN_PIPE, EXIT_INTERRUPTED}
    assert used <= set(EXIT_CODES)


def test_a_code_keeps_its_status() -> None:
    wanted = {code: status for status, codes in STATUS.items() for code in codes.split()}
    assert {code: http_status(code) for code in wanted} == wanted
    assert http_status("of_another_release") == 400


# --- each is caused ---


@pytest.mark.parametrize("code", CAUSABLE)
def test_a_person_who_causes_it_is_told_what_why_and_what_to_do(world: World, code: str) -> None:
    said = CAUSES[code](world)
    row = rows()[code]

    assert said.code == code, said.whole
    assert said.says and said.hint, said.whole
    assert "Traceback" not in said.whole
    if said.exit_code is not None:
        assert said.exit_code == row.exit_code, said.whole
    else:
        assert said.status == row.status
        told = error_of(said.status or 0, said.whole.encode())
        assert told.exit_code == row.exit_code, "what the command line would end with"


@pytest.fixture(scope="module")
def failures(world: World) -> dict[str, str]:
    """A job for each way to fail that is its owner's doing, sent at once; before them, one to hold each machine."""
    jobs = world.network.client().jobs
    holding = [world.job("sleep", "600", cpu_milli=_most(world) * 3 // 5) for _ in world.network.nodes]
    for job in holding:
        wait_for(lambda job=job: jobs.get(job).phase == "running", "a job to hold a machine")
    sent = {
        "cancelled": holding[0],
        "exit_code": world.job("false"),
        "oom_job": world.job("python3", "-c", "x = b'x' * (200 << 20)"),
        "time_limit": world.job("sleep", "600", time_limit_ms=300),
        "disk_quota": world.job("sh", "-c", "head -c 100000000 /dev/zero > big"),
        "data": world.job("true", inputs=[{"name": "a", "url": "http://127.0.0.1:9/nothing"}]),
        "queue_expired": world.job("true", cpu_milli=_most(world), queue_limit_ms=300),
    }
    world.wait(sent["queue_expired"])  # before a machine is free again
    return sent


def _most(world: World) -> int:
    return max(node.total["cpu_milli"] for node in world.network.client().nodes.list())


FAILED_ELSEWHERE = {
    "image": "faults/test_container_network.py::test_an_image_that_is_nowhere_is_the_users",
    "build": "faults/test_container_network.py::test_requirements_that_do_not_resolve_are_the_users_in_pips_words",
    "no_fit": "acceptance/test_cli_run.py::test_what_can_never_fit_is_refused_at_once_with_the_nearest_miss",
    "damaged": "integration/test_bit_rot.py::test_one_flipped_bit_is_named_and_replaced_by_the_next_send",
    "poison": "simulation/test_planning.py::test_a_job_that_cannot_succeed_is_told_as_that",
    "drained": "faults/test_leaving.py::test_a_drained_node_loses_what_does_not_finish_within_the_grace",
    "superseded": "faults/test_stragglers.py::test_a_stalled_body_is_flagged_and_the_job_finishes_on_another_node",
}
"""What takes an engine, or machines that die. All other codes are a machine's or a line's doing, not a person's."""


@pytest.mark.parametrize("code", USERS)
def test_an_owner_whose_job_failed_by_their_own_doing_is_told_what_to_do(
    world: World, failures: dict[str, str], code: str
) -> None:
    if code in FAILED_ELSEWHERE:
        assert names(FAILED_ELSEWHERE[code], code)
        return
    if code == "cancelled":
        world.stop(failures[code])

    job = world.network.client().jobs.wait(failures[code], timeout_s=100, check=False)
    error = verdict_error(job)

    assert error is not None and error.code == code, job
    assert error.says and error.hint and "Traceback" not in str(error)
    assert job.failure is None or error.exit_code == exit_code_of(job.failure)


def test_every_code_can_be_looked_up(world: World) -> None:
    for code in {*CAUSABLE, *USERS} - {"neural", "version"}:  # commands of that name come first
        page = world.typed("help", code).whole
        assert page.startswith(f"[{code}]\n") and len(page.splitlines()) > 2, page
    assert world.typed("help", "no_such_code").code == "usage"


# --- what is no error of the command, and yet ends it ---


def command(network: LocalNetwork, *words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", *words]


def test_a_reader_who_has_read_enough_is_no_error(world: World) -> None:
    # given more output than a pipe holds, by a program's buffer and by rich's tables
    for words in (("events",), ("events", "--json")):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            command(world.network, *words), env=world.network.environment(), stdout=writer, stderr=subprocess.PIPE,
            text=True, timeout=120,
        )  # fmt: skip
        os.close(writer)

        assert done.returncode == EXIT_BROKEN_PIPE
        assert done.stderr == ""


def test_ctrl_c_ends_any_command_without_a_word_too_many(world: World) -> None:
    following = subprocess.Popen(
        command(world.network, "events", "--follow"), env=world.network.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert following.stdout is not None and following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, told = following.communicate(timeout=60)

    assert following.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in told


def test_the_trace_is_added_for_whoever_asks_for_it(world: World) -> None:
    said = world.typed("logs", "nothing-of-this-name", env={"HOLDFAST_DEBUG": "1"})
    assert "Traceback" in said.whole and said.code == "not_found"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("jbos",), "jobs"), (("run", "--memroy", "1", "--", "true"), "--memory"), (("job", "shwo", "x"), "show"),
        (("logs",), "--help"), (("run", "--gpu", "many", "--", "true"), "--gpu"), (("jobs", "--limit"), "--limit"),
    ],
)  # fmt: skip
def test_what_is_mistyped_is_told_with_what_may_have_been_meant(
    world: World, words: tuple[str, ...], meant: str
) -> None:
    said = world.typed(*words)
    assert (said.code, said.exit_code) == ("usage", 2), said.whole
    assert meant in said.says + said.hint


def test_an_orchestrator_that_is_older_or_newer_is_told_apart_from_one_that_fails(world: World) -> None:
    # given one that lacks a field that this version needs, and one that does not know the question at all
    older = world.typed("jobs", "--url", world.liar.answers(200, b'{"jobs":[{"id":"job_1"}]}'))
    newer = world.typed("jobs", "--url", world.liar.answers(404, b"no such path"))

    assert older.code == "garbled" and "holdfast version" in older.hint
    assert newer.code == "not_found" and newer.exit_code == 66
