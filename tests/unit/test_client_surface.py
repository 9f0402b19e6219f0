"""Both clients have one surface; what they hand out can be shown anywhere, whatever strangers put into it."""

import ast
import asyncio
import inspect
import json
import signal
import threading
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pytest

import holdfast
from holdfast.cli.job_flags import JobFlags
from holdfast.client import async_client, client, html, job_options, objects, requests
from holdfast.client.functions import _PYTHON as PYTHON
from holdfast.client.functions import Options
from holdfast.client.objects import Array, AsyncArray, AsyncJob, AsyncNode, Job, Node, NodeList, Page, bound
from holdfast.client.steps import MoveContent, Steps
from holdfast.client.transport import Transport
from holdfast.errors import Misuse
from holdfast.model import Recovery, Workload
from holdfast.wire.errors import FailureView
from holdfast.wire.http import ArrayView, InputRequest, JobRequest, JobView, NodeView

pytestmark = pytest.mark.spec("J1")

NASTY = "<script>alert('x')</script>&\"'\n"
JOB = JobView(
    id="job_1", name=NASTY, owner=NASTY, argv=["echo", NASTY], phase="ended", waiting=NASTY, recovery="restart",
    priority=5, submitted_ms=1_700_000_000_000, ended_ms=1_700_000_009_000, verdict="failed",
    failure=FailureView("exit_code", NASTY, NASTY, "user", False, True, exit_code=3), result_sha256=None,
    result_bytes=None, exit_code=3, attempts_made=2, node=NASTY,
)  # fmt: skip
NODE = NodeView(
    id=NASTY, name=NASTY, state=NASTY, cause=NASTY, draining=True, connected=True, isolation=NASTY, version=NASTY,
    arch=NASTY, cpu_model=NASTY, hostname=NASTY, site=NASTY, total={"cpu_milli": 4_000}, free={"cpu_milli": 500},
    gpus=[NASTY], attempts=["a"], load={}, joined_ms=1, state_since_ms=1,
)  # fmt: skip


# --- one surface ---


def public(thing: type) -> dict[str, Any]:
    return {name: one for name, one in vars(thing).items() if inspect.isfunction(one) and not name.startswith("_")}


def shape(function: Any) -> list[str]:
    """Names, kinds and defaults. Functions given as defaults are alike if they are named alike."""
    parameters = inspect.signature(function).parameters.values()
    return [
        f"{p.kind.name} {p.name} {getattr(p.default, '__name__', p.default)!r}" for p in parameters if p.name != "self"
    ]


@pytest.mark.parametrize("name", ["Jobs", "Arrays", "Nodes", "Tokens", "Content"])
def test_what_one_client_has_the_other_has_too(name: str) -> None:
    plain, awaited = public(getattr(client, name)), public(getattr(async_client, f"Async{name}"))
    assert set(plain) == set(awaited)
    for method in plain:
        assert shape(plain[method]) == shape(awaited[method]), f"{name}.{method}"
        assert plain[method].__doc__ == awaited[method].__doc__, f"{name}.{method}"
        waits = inspect.iscoroutinefunction(awaited[method]) or inspect.isasyncgenfunction(awaited[method])
        assert waits, f"{name}.{method} of AsyncClient would hold up the loop"


@pytest.mark.parametrize(
    ("plain", "awaited"),
    [(client.Client, async_client.AsyncClient), (Job, AsyncJob), (Array, AsyncArray), (Node, AsyncNode)],
)
def test_what_they_hand_out_is_alike(plain: type, awaited: type) -> None:
    assert set(public(plain)) == set(public(awaited))
    for method, one in public(plain).items():
        assert shape(one) == shape(public(awaited)[method]), method


def test_no_client_holds_up_the_other() -> None:
    # the logic is written once: neither surface does anything but ask
    for module in (client, async_client):
        assert "while " not in inspect.getsource(module)
        assert "sleep" not in inspect.getsource(module)
    assert "Thread" not in inspect.getsource(async_client)


def test_everything_a_person_needs_is_found_by_one_import() -> None:
    for name in ("Client", "AsyncClient", "Job", "Node", "Event", "LogLine", "function", "errors", "testing"):
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = holdfast.nonsense  # type: ignore[attr-defined]


# --- shown ---


@pytest.mark.spec("J7")
def test_nothing_a_stranger_wrote_becomes_markup() -> None:
    job, node = bound(Job, JOB, None), bound(Node, NODE, None)
    shown = [
        job._repr_html_(),
        bound(AsyncJob, JOB, None)._repr_html_(),
        Page([job], "next")._repr_html_(),
        node._repr_html_(),
        NodeList([node])._repr_html_(),
        bound(Array, ArrayView("arr_1", NASTY, "", 3, {NASTY: 3}, True, 1, []), None)._repr_html_(),
    ]
    for page in shown:
        assert "<script" not in page
        assert "alert(&#x27;" in page
        assert page.count("<table") == page.count("</table>") == 1
    assert "and more" in shown[2]


def test_a_long_list_is_cut_and_says_so() -> None:
    page = html.job_table([JOB] * 250)
    assert page.count("<tr>") == html.ROWS_MAX + 1
    assert "and 50 more" in page


def test_a_job_reads_as_one_line_and_is_written_as_the_api_writes_it() -> None:
    job = bound(Job, msgspec.structs.replace(JOB, name="fit", waiting=""), None)
    assert repr(job) == "<Job job_1 'fit' failed after 9.0 s: exit_code>"
    assert (job.state, job.ended, job.took_s) == ("failed", True, 9.0)
    assert json.loads(msgspec.json.encode(job)) == json.loads(
        msgspec.json.encode(msgspec.structs.replace(JOB, name="fit", waiting=""))
    )
    assert (
        repr(bound(Node, msgspec.structs.replace(NODE, name="ant", state="ready"), None)) == "<Node ant ready, holds 1>"
    )
    assert objects.Event is holdfast.Event


# --- wishes ---


def test_wishes_are_in_the_words_of_the_command_line() -> None:
    asked = job_options.requested(
        ["python", "train.py"], {"cpu": 0.5, "memory": "2GiB", "gpu": 1, "time_limit": "1h30m", "attempts": 3}
    )
    assert asked == JobRequest(
        ["python", "train.py"], cpu_milli=500, memory_mib=2048, gpus=1, time_limit_ms=5_400_000, attempts_max=3
    )
    assert job_options.requested(asked, {"name": "again"}).name == "again"
    assert job_options.requested(["x"], {"cpu_milli": 250}).cpu_milli == 250


def test_flags_options_and_functions_make_the_same_request() -> None:
    options: dict[str, Any] = {"cpu": "2", "memory": "4GiB", "disk": "10GiB", "gpu": 1, "gpu_memory": "24GiB"}
    options |= {"network": True, "time_limit": "2h", "queue_limit": "5m", "recovery": "resume", "attempts": 3}
    options |= {"priority": 7, "image": "debian", "name": "mine"}
    asked = job_options.requested(PYTHON, {**options, "env": {"SEED": "7"}})
    assert JobFlags(asked.argv, **options, env=["SEED=7"]).request() == asked
    assert Options(**options, env={"SEED": "7"}).request("fallback") == asked


def test_a_flag_that_only_the_orchestrator_can_judge_is_left_to_it() -> None:
    assert JobFlags(["x"], recovery="sometimes").request().recovery == "sometimes"
    with pytest.raises(Misuse, match=r"^'lots' is not a size"):
        JobFlags(["x"], memory="lots").request()


def test_requests_are_made_in_one_module() -> None:
    source = Path(holdfast.__file__).parent
    made = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "JobRequest"
    }
    assert made == {"client/job_options.py"}


def test_inputs_are_addresses_jobs_and_what_was_sent() -> None:
    class Sent:
        manifest = "ab"

    given = {"a": "https://example.org/x", "b": bound(Job, JOB, None), "c": Sent(), "d": "job_7"}
    assert job_options.requested(["x"], {"inputs": given}).inputs == [
        InputRequest("a", url="https://example.org/x"),
        InputRequest("b", job="job_1"),
        InputRequest("c", manifest="ab"),
        InputRequest("d", job="job_7"),
    ]


@pytest.mark.parametrize(
    ("command", "given", "says"),
    [
        ("echo hi", {}, "one string"),
        (b"echo hi", {}, "one string"),
        (None, {}, "None is not a command"),
        ([], {}, "not a command"),
        (["echo", None], {}, "word 2 of the command is None"),
        (["x"], {"cpus": 2}, "no option 'cpus'"),
        (["x"], {"memory": "lots"}, "memory: 'lots' is not a size"),
        (["x"], {"gpu": "one"}, "gpu is 'one'"),
        (["x"], {"gpu": True}, "gpu is True"),
        (["x"], {"priority": "high"}, "priority is 'high'"),
        (["x"], {"network": "yes"}, "network is 'yes'"),
        (["x"], {"name": 3}, "name is 3"),
        (["x"], {"env": {"SEED": 7}}, "env is {'SEED': 7}"),
        (["x"], {"recovery": "sometimes"}, "recovery is 'sometimes'"),
        (["x"], {"inputs": "https://example.org/x"}, "inputs: they are"),
        (["x"], {"argv": ["y"]}, "no option 'argv'"),
        (["x"], {"cpu": 1, "cpu_milli": 1}, "the same option"),
        (["x"], {"memory": "much"}, "not a size"),
        (["x"], {"inputs": {"data": "/some/folder"}}, "neither an address"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_before_anything_is_sent(
    command: Any, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        job_options.requested(command, given)
    assert caught.value.hint


@pytest.mark.parametrize(("word", "meant"), [("memmory", "memory"), ("cpus", "cpu"), ("timeout", "time_limit")])
def test_a_wish_that_is_nearly_one_is_named(word: str, meant: str) -> None:
    with pytest.raises(Misuse) as caught:
        job_options.requested(["x"], {word: 1})
    assert caught.value.hint.startswith(f"Did you mean {meant!r}? There are arch, attempts,")


def test_a_wish_of_none_is_no_wish_and_words_of_a_command_may_be_numbers_and_paths() -> None:
    assert job_options.requested(["x", 7, Path("y")], {"memory": None, "time_limit": None}) == JobRequest(
        ["x", "7", "y"]
    )  # type: ignore[list-item]


def test_editors_are_shown_every_wish_and_what_it_can_be() -> None:
    fields = {field for field, _ in job_options._WORDS.values()}
    words = set(job_options._WORDS) | set(job_options.FIELDS) - fields - {"argv"} | set(job_options.FOLDER_OPTIONS)
    assert set(job_options.JobOptions.__annotations__) == words
    assert set(job_options.CommonOptions.__annotations__) == set(Options.__struct_fields__)
    assert {"recovery": tuple(Recovery), "workload": tuple(Workload)} == job_options._CHOICES
    for ask in (client.Jobs.submit, client.Jobs.run, client.Arrays.submit, client.Client.check):
        assert inspect.signature(ask).parameters["options"].annotation == Unpack[job_options.JobOptions]
    assert inspect.signature(holdfast.function).parameters["options"].annotation == Unpack[job_options.CommonOptions]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda asked: asked.jobs.run(["x"], timeout_s="5s"), "timeout_s is '5s'"),
        (lambda asked: asked.jobs.wait("job_1", timeout_s=True), "timeout_s is True"),
        (lambda asked: asked.arrays.submit(["x"], "ab"), "'ab' is not a list of items"),
        (lambda asked: asked.arrays.submit(["x"], ["a", None]), "item 1 of the array is None"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_sent(ask: Any, says: str) -> None:
    with holdfast.Client("http://127.0.0.1:9", patience_s=0) as asked, pytest.raises(Misuse, match=says):
        ask(asked)


def test_numbers_and_paths_are_items_as_they_are_written() -> None:
    assert requests._items(range(2)) == ["0", "1"]
    assert requests._items([Path("a"), 0.5]) == ["a", "0.5"]


def test_a_job_is_as_good_as_its_id_and_what_is_no_id_is_said_to_be_none() -> None:
    assert requests.segment(bound(Job, JOB, None)) == "job_1"
    for wrong in ("", ".", "..", None, 7):
        with pytest.raises(Misuse, match="is not an id"):
            requests.segment(wrong)


def test_a_client_that_was_closed_says_so() -> None:
    plain = holdfast.Client("http://127.0.0.1:9")
    assert isinstance(plain._transport, Transport)
    plain.close()
    with pytest.raises(Misuse, match="closed"):
        plain.jobs.get("job_1")
    with pytest.raises(Misuse, match="closed"):
        next(plain.events())


@pytest.mark.spec("J12")
def test_ctrl_c_ends_the_moving_of_files_also_where_a_loop_runs() -> None:
    # given a notebook's cell, inside of a running loop, that moves files without end
    began, ended = threading.Event(), threading.Event()

    async def moving(line: Any) -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    def steps() -> Steps[None]:
        yield MoveContent(moving)

    async def cell() -> None:
        with holdfast.Client("http://127.0.0.1:9") as plain:
            plain._transport.run(steps())

    # when it is interrupted
    def interrupt() -> None:
        assert began.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presses = threading.Thread(target=interrupt)
    presses.start()
    with pytest.raises(KeyboardInterrupt), asyncio.Runner() as loop:
        loop.get_loop().run_until_complete(cell())
    presses.join(20)

    # then the moving ends as well
    assert ended.wait(20)
