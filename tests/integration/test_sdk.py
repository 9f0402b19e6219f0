"""The SDK against a real network: the same stories with `Client` and with `AsyncClient`."""

import asyncio
import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import sdk_page
from nbclient import NotebookClient

import holdfast
from holdfast.client.transport import Transport
from holdfast.errors import JobCancelled, JobFailed, NotFound, Refused, WaitExpired
from holdfast.testing.processes import LocalNetwork, wait_for

pytest_plugins = ["both_clients"]
pytestmark = pytest.mark.xdist_group("sdk")

SMALL: dict[str, Any] = {"cpu": 0.5, "memory": "64MiB", "disk": "64MiB"}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("sdk")) as network:
        network.start_orchestrator(preset="lan")  # a machine that is held up for two seconds is not given up
        network.start_node("ant")
        network.start_node("bee")
        yield network


@pytest.fixture
def client(either: Any, network: LocalNetwork) -> Any:
    url, token = where(network)
    return either(lambda: holdfast.Client(url, token), lambda: holdfast.AsyncClient(url, token))


def where(network: LocalNetwork) -> tuple[str, str]:
    endpoint = network.client()._transport.endpoint
    return endpoint.url, endpoint.token


@pytest.mark.spec("J1", "J3", "J10")
def test_a_job_from_submission_to_results(client: Any, tmp_path: Path) -> None:
    # given a folder with a program in it
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "work.sh").write_text("echo hello $WHO; mkdir out; echo 42 > out/answer; echo oh >&2")

    # when it is submitted with the words a person would use
    job = client.jobs.submit(
        ["sh", "work.sh"], name="greeting", folder=tmp_path / "code", env={"WHO": "world"}, time_limit="1m", **SMALL
    )

    # then it can be waited for, asked about, and its output and files are here
    done = job.wait(timeout_s=120)
    assert (done.state, done.ended, done.exit_code) == ("succeeded", True, 0)
    assert done.took_s > 0
    assert "".join(line.text for line in done.logs(stream="stdout") if line.stream == "stdout") == "hello world\n"
    synced = done.results(tmp_path / "here")
    assert (tmp_path / "here" / "out" / "answer").read_text() == "42\n"
    assert (tmp_path / "here" / "stderr.log").read_text() == "oh\n"
    assert synced.files == 1
    assert client.jobs.get("greeting").files.received
    assert any(one.id == job.id for one in client.jobs.list(limit=5))


@pytest.mark.spec("J7", "J12")
def test_a_job_that_fails_raises_and_says_why(client: Any) -> None:
    with pytest.raises(JobFailed) as caught:
        client.jobs.run(["sh", "-c", "exit 7"], timeout_s=120, **SMALL)
    assert (caught.value.code, caught.value.exit_code, caught.value.job.exit_code) == ("exit_code", 7, 7)

    unchecked = client.jobs.run(["sh", "-c", "exit 7"], timeout_s=120, check=False, **SMALL)
    assert unchecked.state == "failed"
    again = unchecked.rerun()
    assert again.wait(check=False, timeout_s=120).exit_code == 7
    assert again.id != unchecked.id


@pytest.mark.spec("J4", "J12", "H6")
def test_a_job_is_followed_and_stopped(client: Any) -> None:
    # given a job that prints and goes on
    job = client.jobs.submit(["sh", "-c", "echo one; sleep 60"], **SMALL)

    # when its output is followed, then it is here while the job runs
    lines = job.logs(follow=True)
    assert next(line.text for line in lines if line.stream == "stdout") == "one\n"
    wait_for(lambda: job.refresh().state == "running", "it to be known to run")
    with pytest.raises(WaitExpired, match="still running"):
        job.wait(timeout_s=0.1)
    assert "running" in job.explain().phase

    # and it can be stopped; stopping again is no error
    job.stop()
    with pytest.raises(JobCancelled):
        job.wait(timeout_s=120)
    assert job.stop().state == "cancelled"
    assert job.refresh().ended


@pytest.mark.spec("J3", "H4")
def test_events_tell_the_story_and_go_on_where_they_were(client: Any) -> None:
    job = client.jobs.run(["true"], timeout_s=120, **SMALL)
    told = list(client.events(job=job.id))
    assert [told[0].kind, told[-1].kind] == ["job.queued", "job.ended"]

    # what comes behind a number comes without what came before it
    rest = list(client.events(job=job.id, after=told[2].seq))
    assert [event.seq for event in rest] == [event.seq for event in told[3:]]

    # and what happens later comes to who follows
    following = client.events(after=told[-1].seq, follow=True)
    later = client.jobs.submit(["true"], **SMALL)
    assert next(event for event in following if event.job == later.id).kind == "job.queued"
    later.wait(timeout_s=120)


@pytest.mark.spec("J14")
def test_one_key_is_one_job_and_a_key_for_something_else_is_refused(client: Any) -> None:
    key = f"nightly {type(client).__name__}"
    first = client.jobs.submit(["true"], key=key, **SMALL)
    assert client.jobs.submit(["true"], key=key, **SMALL).id == first.id
    with pytest.raises(Refused) as caught:
        client.jobs.submit(["false"], key=key, **SMALL)
    assert caught.value.code == "key_reused"
    with pytest.raises(NotFound):
        client.jobs.get("job_nobody")


@pytest.mark.spec("N7", "N8")
def test_machines_are_listed_drained_and_taken_back(client: Any) -> None:
    names = {node.name: node for node in client.nodes.list()}
    assert set(names) == {"ant", "bee"}
    assert client.nodes.drain("bee").draining
    assert client.nodes.get("bee").refresh().draining
    assert not names["bee"].drain(on=False).draining
    wait_for(lambda: client.nodes.get("bee").state == "ready", "bee to be back")
    token = client.tokens.create(note="sdk", key=f"sdk {type(client).__name__}")
    assert token.token.startswith("hf1_")
    client.tokens.revoke(token.id[:-1])
    listed = next(one for one in client.tokens.list() if one.id == token.id)
    assert (listed.state, listed.note) == ("revoked", "sdk") and not hasattr(listed, "token")


@pytest.mark.spec("J10")
def test_folders_travel_there_and_back(client: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "data").write_bytes(data)
    sent = client.content.send(tmp_path / "a")
    assert sent.files == 1
    assert client.content.send(tmp_path / "a").moved == 0
    client.content.fetch(sent.manifest, tmp_path / "b")
    assert hashlib.sha256((tmp_path / "b" / "deep" / "data").read_bytes()).digest() == hashlib.sha256(data).digest()
    job = client.jobs.run(["sh", "-c", "wc -c < inputs/x/deep/data"], inputs={"x": sent}, timeout_s=120, **SMALL)
    assert "5120000" in "".join(line.text for line in job.logs(stream="stdout") if line.stream == "stdout")


@pytest.mark.spec("J16")
def test_an_array_is_one_thing(client: Any, tmp_path: Path) -> None:
    array = client.arrays.submit(["sh", "-c", "echo {item} > made"], ["a", "b", "c"], name="letters", **SMALL)
    ended = array.wait(timeout_s=120)
    assert ended.counts == {"succeeded": 3}
    collected = ended.results(tmp_path / "all")
    assert (collected.items, collected.missing) == (3, {})
    assert [(tmp_path / "all" / str(n) / "made").read_text() for n in range(3)] == ["a\n", "b\n", "c\n"]


# --- where a program and a notebook differ ---


@pytest.mark.spec("J1")
def test_the_plain_client_works_where_an_event_loop_runs(network: LocalNetwork, tmp_path: Path) -> None:
    # given code that runs inside an event loop, as every cell of a notebook does
    (tmp_path / "f").write_text("x")

    async def cell() -> str:
        with holdfast.Client(*where(network)) as client:
            job = client.jobs.run(["cat", "f"], folder=tmp_path, timeout_s=120, **SMALL)
            return "".join(line.text for line in job.logs(stream="stdout") if line.stream == "stdout")

    # when the plain client is used there, folders and all, then it works as everywhere
    assert asyncio.run(cell()) == "x"


@pytest.mark.spec("J12")
def test_ctrl_c_while_waiting_leaves_the_job_running_and_says_so(network: LocalNetwork) -> None:
    with holdfast.Client(*where(network)) as client:
        job = client.jobs.submit(["sleep", "60"], **SMALL)
        wait_for(lambda: job.refresh().state == "running", "it to run")

        # when whoever waits is interrupted between two looks
        def interrupted(_: float) -> None:
            signal.raise_signal(signal.SIGINT)

        waiting = holdfast.Client.over(Transport(client._transport.endpoint, sleep=interrupted))
        with waiting, pytest.raises(KeyboardInterrupt, match=f"{job.id} goes on"):
            waiting.jobs.wait(job.id, timeout_s=120)

        # then the job runs on
        assert job.refresh().state == "running"
        job.stop()


@pytest.mark.spec("J12")
def test_a_wait_that_is_cancelled_leaves_the_job_running(network: LocalNetwork) -> None:
    async def story() -> str:
        async with holdfast.AsyncClient(*where(network)) as client:
            job = await client.jobs.submit(["sleep", "60"], **SMALL)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job.wait(), 0.2)
            seen = await job.refresh()
            await job.stop()
            return seen.state

    assert asyncio.run(story()) in ("queued", "assigned", "preparing", "running")


@pytest.mark.spec("J16")
def test_many_questions_at_once_in_one_loop(network: LocalNetwork) -> None:
    async def story() -> list[str]:
        async with holdfast.AsyncClient(*where(network)) as client:
            jobs = await asyncio.gather(*(client.jobs.submit(["true"], **SMALL) for _ in range(8)))
            ended = await asyncio.gather(*(job.wait(timeout_s=120) for job in jobs))
            return [job.state for job in ended]

    assert asyncio.run(story()) == ["succeeded"] * 8


# --- the page ---


@pytest.mark.spec("J1")
def test_every_block_of_the_page_runs(network: LocalNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a reader who has a network, and sits in an empty folder
    page = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text()
    for name, value in network.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    # when they try everything, one after the other, then it works
    sdk_page.run(page, tmp_path)
    assert len(sdk_page.blocks(page)) == page.count("```python") > 10
    assert (tmp_path / "model" / "model.txt").read_text().startswith("trained on node_")


# --- a notebook ---

WAITS = """
import time
def leaving_a_mark(seconds):
    open("waits", "w").close()
    time.sleep(seconds)
client._transport._sleep = leaving_a_mark
"""
"""So that it can be seen from outside that the cell has sent its job, and waits."""


@pytest.mark.spec("J1", "J12")
def test_a_notebook_runs_with_both_clients_and_an_interrupted_cell_leaves_its_job(
    network: LocalNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a real kernel of Jupyter, whose cells run inside an event loop
    for name, value in network.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    small = "cpu=0.5, memory='64MiB', disk='64MiB'"
    cells = [
        f"import holdfast\nclient = holdfast.Client()\nclient.jobs.run(['echo', '<b>hi</b>'], {small})",
        "client.nodes.list()",
        f"async with holdfast.AsyncClient() as there:\n    job = await there.jobs.run(['true'], {small})\njob",
        "import dataclasses\n@dataclasses.dataclass\nclass Box:\n    w: int\n    h: int\n\n"
        f"@holdfast.function({small})\ndef area(box):\n    return box.w * box.h\n\narea.remote(Box(6, 7))",
        WAITS + f"client.jobs.submit(['sleep', '600'], name='interrupted', {small}).wait()",
        "client.jobs.get('interrupted').state, client.jobs.stop('interrupted').id[:4]",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    # when its cells are run, and the one that waits for a long job is interrupted
    asyncio.run(_executed(notebook, network, tmp_path, interrupted=4))

    # then jobs, machines and values are shown, with what strangers wrote as text
    shown = [cell["outputs"][-1] for cell in notebook.cells]
    assert "&lt;b&gt;hi" in shown[0]["data"]["text/html"]
    assert "bee" in shown[1]["data"]["text/html"]
    assert shown[2]["data"]["text/plain"].startswith("<AsyncJob job_")
    assert shown[3]["data"]["text/plain"] == "42"
    # and the interrupted one says that its job goes on, which it does
    assert shown[4]["ename"] == "KeyboardInterrupt"
    assert "goes on: only the waiting was interrupted" in shown[4]["evalue"]
    assert shown[5]["data"]["text/plain"] == "('running', 'job_')"


async def _executed(notebook: Any, network: LocalNetwork, folder: Path, interrupted: int) -> None:
    kernel = NotebookClient(notebook, timeout=150, allow_errors=True, resources={"metadata": {"path": str(folder)}})
    async with kernel.async_setup_kernel():
        for place, cell in enumerate(notebook.cells):
            running = asyncio.create_task(kernel.async_execute_cell(cell, place))
            if place == interrupted:
                await asyncio.to_thread(_runs, network, "interrupted")
                await asyncio.to_thread(wait_for, (folder / "waits").exists, "the cell to wait")
                await kernel.km.interrupt_kernel()
            await running


def _runs(network: LocalNetwork, name: str) -> None:
    def running() -> bool:
        return any(job.name == name and job.state == "running" for job in network.client().jobs.list())

    wait_for(running, f"{name} to run")
