"""Asking before sending: what a check says over HTTP, and that the machine it names was really asked."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from orchestrators import PATIENT, OrchestratorProcess
from wire_node import OFFER, WireNode

from holdfast.client import Client
from holdfast.client.async_client import AsyncClient
from holdfast.errors import NotFound
from holdfast.kernel.decision import Checked
from holdfast.kernel.events import CheckAsked
from holdfast.model import NodeId
from holdfast.orchestrator.api import checks
from holdfast.orchestrator.nodes.probing import PROBE_S, Checks, Probe
from holdfast.testing.processes import wait_for
from holdfast.wire.http import CheckView, JobRequest

pytestmark = pytest.mark.spec("H5")
SILENCE_MS = 10_000
"""After so long a silence a machine is no longer believed in: time for several checks before that, however slow."""


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    settings = msgspec.structs.replace(PATIENT, idle_silence_ms=SILENCE_MS)
    with OrchestratorProcess(tmp_path_factory.mktemp("check"), settings=settings, open_join=True) as running:
        yield running.start()
        assert running.stop() == 0


@pytest.fixture(scope="module")
def client(orchestrator: OrchestratorProcess) -> Client:
    return orchestrator.client()


@pytest.fixture
def node(orchestrator: OrchestratorProcess, client: Client) -> Iterator[WireNode]:
    with WireNode(orchestrator.listen, name="worker") as node:
        node.wait_welcome()
        wait_for(lambda: client.check(["true"]).verdict == "now", "the node to be ready")
        yield node
    client.nodes.drain(node.id)


def answered(client: Client, *command: str, **wishes: Any) -> CheckView:
    """What a check says once the machine answers: one that has other things to do takes more than its time at times."""
    seen: list[CheckView] = []

    def asked() -> bool:
        seen.append(client.check(list(command), **wishes))
        probe = seen[-1].probe
        return probe is not None and probe.answered and (probe.round_trip_ms or 0) < PROBE_S * 1000

    wait_for(asked, lambda: f"the machine to answer; {seen[-1]}")
    return seen[-1]


def test_a_check_names_the_machine_and_asks_it_and_leaves_nothing_behind(client: Client, node: WireNode) -> None:
    # given a machine with room
    jobs = len(client.jobs.list().jobs)
    last = max(event.seq for event in client.events())
    # when a check is asked
    view = answered(client, "train", name="asked", cpu=0.5)
    # then it names the machine, what speaks against it, and the machine answered just now
    assert (view.verdict, view.node, view.state) == ("now", node.id, "ready")
    assert view.probe is not None and view.probe.answered
    assert view.probe.round_trip_ms is not None and view.probe.round_trip_ms < 1_500
    assert view.probe.silent_ms is not None and view.probe.silent_ms <= 1_500
    assert set(view.cost) == {"load", "leftover", "waste", "spread", "avoid"}
    assert view.free["cpu_milli"] >= 500
    # and no job, attempt or event came of it
    assert len(client.jobs.list().jobs) == jobs and not node.starts
    assert not [event for event in client.events(after=last) if event.job or event.node == node.id]


def test_a_machine_that_says_nothing_is_found_out_within_two_seconds(client: Client, node: WireNode) -> None:
    # given a machine that froze a moment ago, and that the orchestrator still believes in
    node.mute()
    # when a check is asked
    begun = time.monotonic()
    view = client.check(["train"])
    # then it waits for an answer no longer than a person would, and silence alone did not give the machine away yet
    assert PROBE_S < 2 and time.monotonic() - begun < SILENCE_MS / 1000
    # and it says that the machine does not answer, and how old its last word is
    assert (view.verdict, view.node) == ("unhealthy", node.id)
    assert view.probe is not None and not view.probe.answered and view.probe.silent_ms is not None
    assert view.says.endswith("does not answer now; no other machine has room now") and view.instead is None


def test_of_one_machine_nothing_is_said_of_others(client: Client, node: WireNode) -> None:
    node.mute()
    view = client.check(["train"], node=node.id)
    assert view.verdict == "unhealthy" and view.says.endswith("does not answer now; no other was asked")


class Mute:
    """An orchestrator with so many machines, none of which answers."""

    def __init__(self, machines: int) -> None:
        self.leader = self.probes = self
        self.checks = Checks()
        self.question_s: dict[type, float] = {}
        self.epoch = 1
        self._machines = machines

    async def ask(self, what: CheckAsked | str, epoch: int = 0) -> Checked | Probe:
        if isinstance(what, str):
            return Probe(False, None, None)
        if len(what.without) >= self._machines:
            return Checked("waits", "")
        return Checked("now", "", node=NodeId(f"node_{len(what.without)}"))


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        (1, "no other machine has room now"),
        (2, "nor does the other one that was asked"),
        (3, "nor do the 2 others that were asked"),
        (9, "nor do the 2 others that were asked"),
    ],
)
def test_no_more_is_said_of_others_than_was_asked(machines: int, says: str) -> None:
    first = Checked("now", "", node=NodeId("node_0"))
    event: Any = SimpleNamespace(owner="me", spec=None)
    front: Any = Mute(machines)
    assert checks._after(*asyncio.run(checks._another(front, event, first))) == says


def test_another_machine_that_answers_is_named(
    client: Client, node: WireNode, orchestrator: OrchestratorProcess
) -> None:
    with WireNode(orchestrator.listen, name="other") as other:
        other.wait_welcome()
        answered(client, "true", node=other.id)
        # given two machines, of which the one froze that would be chosen: that is drawn by lot, and stays until a job
        # is placed
        chosen = answered(client, "train").node
        frozen, lively = (other, node) if chosen == other.id else (node, other)
        frozen.mute()
        # when a check is asked, then the other is named, which answers
        seen: list[CheckView] = []

        def found() -> bool:
            seen.append(client.check(["train"]))
            assert (seen[-1].verdict, seen[-1].node) == ("unhealthy", frozen.id)
            return seen[-1].instead is not None

        wait_for(found, "the machine that did not freeze to answer")
        assert lively.name in str(seen[-1].instead)
        assert answered(client, "train", node=lively.id).verdict == "now"
        assert client.check(["train"], node=frozen.id).verdict in ("unhealthy", "waits")
        client.nodes.drain(other.id)


def test_what_would_wait_and_what_can_never_run_are_told_apart(client: Client, node: WireNode) -> None:
    # given a machine that is full
    node.released.clear()
    full = client.jobs.submit(JobRequest(["full"], cpu_milli=OFFER.cpu_milli, memory_mib=1))
    wait_for(lambda: client.jobs.get(full.id).phase == "running", "the machine to be full")
    # then what would fit if it were idle waits, and what never would is told so
    waits = client.check(JobRequest(["big"], cpu_milli=4_000, memory_mib=1))
    assert waits.verdict == "waits" and "cpu" in waits.nearest
    never = client.check(["huge"], memory="900GiB")
    assert never.verdict == "never" and never.code == "no_fit" and "memory" in never.nearest
    assert client.check(["huge"], memory="900GiB", node=node.id).verdict == "never"
    node.let_go()
    client.jobs.wait(full.id, timeout_s=60)
    # and one that drains is waited for as well
    client.nodes.drain(node.id)
    drained = client.check(["small"], node=node.id)
    assert (drained.verdict, drained.nearest) == ("waits", "draining")
    assert client.check(["small"]).gates.get("draining", 0) >= 1
    with pytest.raises(NotFound):
        client.check(["small"], node="nobody")


def test_a_check_that_makes_no_sense_is_refused_like_a_submission(client: Client, orchestrator) -> None:
    with orchestrator.http() as http:
        answer = http.post("/v1/check", json={"argv": [], "cpu_milli": -5})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    with orchestrator.http(Authorization="") as stranger:
        assert stranger.post("/v1/check", json={"argv": ["x"]}).status_code == 401


def test_a_watch_says_when_the_machine_falls_silent_and_when_it_is_gone(client: Client, node: WireNode) -> None:
    seen: list[CheckView] = []
    muted = threading.Event()

    def watched() -> None:
        for view in client.watch_check(["train"], node=node.id):
            seen.append(view)
            if view.verdict == "now" and not muted.is_set():
                node.mute()
                muted.set()
            if view.verdict == "waits":
                return

    watcher = threading.Thread(target=watched, daemon=True)
    watcher.start()
    watcher.join(60)
    assert not watcher.is_alive(), [view.verdict for view in seen]
    # It answered, then it did not, then it was not believed in any more; before it froze it may have been slow once.
    since = seen[[view.verdict for view in seen].index("now") :]
    verdicts = [view.verdict for view in since]
    assert "unhealthy" in verdicts and verdicts[-1] == "waits"
    # How old its last word is cannot be said of one that was given up while it was being asked.
    silent = [view.probe.silent_ms or 0 for view in since if view.verdict == "unhealthy" and view.probe]
    assert max(silent) >= 1_400
    assert "suspect" in seen[-1].nearest


def test_the_async_client_checks_and_watches_as_well(client: Client, node: WireNode, orchestrator) -> None:
    async def story() -> tuple[CheckView, CheckView]:
        token = client._transport.endpoint.token
        async with AsyncClient(orchestrator.url, token) as asked:
            once = await asked.check(["train"])
            while once.verdict == "unhealthy":  # it did not answer in time
                once = await asked.check(["train"])
            async for view in asked.watch_check(["train"]):
                if view.verdict != "unhealthy":
                    return once, view
        raise AssertionError("the watch ended")

    once, first = asyncio.run(asyncio.wait_for(story(), 60))
    assert (once.verdict, first.verdict) == ("now", "now")


@pytest.mark.spec("J15")
def test_estimates_are_given_before_and_while_it_runs_and_their_score_is_shown(
    client: Client, node: WireNode, orchestrator: OrchestratorProcess
) -> None:
    # given nothing like it has run
    assert client.check(["sum"], name="summing").estimate is not None
    first = client.check(["sum"], name="summing").estimate
    assert first is not None and first.end is None and "no estimate" in first.says
    # when some have run
    for _ in range(4):
        client.jobs.run(["sum"], name="summing", timeout_s=60)
    view = client.check(["sum"], name="summing")
    # then start and end are foretold, from what they took
    assert view.estimate is not None and view.estimate.runs == 4 and view.estimate.end is not None
    assert view.estimate.end[0] <= view.estimate.end[1]
    # and while one runs, its end is
    node.released.clear()
    job = client.jobs.submit(["sum"], name="summing")
    wait_for(lambda: client.jobs.get(job.id).phase == "running", "the job to run")
    shown, explained = client.jobs.get(job.id).estimate, client.jobs.explain(job.id).estimate
    listed = next(one for one in client.jobs.list().jobs if one.id == job.id).estimate
    assert shown is not None and explained is not None and listed is not None
    assert shown.runs == 4
    node.let_go()
    client.jobs.wait(job.id, timeout_s=60)
    # and how often it was right is counted, in the API, in checks, and in the metrics

    def judged() -> bool:
        client.jobs.run(["sum"], name="summing", timeout_s=60)
        found = client.estimates().scores
        return "end" in found and "start" in found and "end_running" in found

    wait_for(judged, "every sort to be judged: of a few jobs a second it is")
    scores = client.estimates().scores
    end = scores["end"]
    assert end.judged == end.right + end.early + end.late
    assert client.check(["sum"]).scores == scores
    with orchestrator.http() as http:
        text = http.get("/metrics").text
    assert f'holdfast_estimates_judged{{came="right",sort="end"}} {scores["end"].right}.0' in text


def test_a_watch_is_a_stream_of_events_and_stands_in_the_description(orchestrator: OrchestratorProcess) -> None:
    with orchestrator.http() as http:
        paths = http.get("/schema/openapi.json").json()["paths"]
        assert {"/v1/check", "/v1/check/watch", "/v1/estimates"} <= set(paths)
        with http.stream("POST", "/v1/check/watch", json={"argv": ["x"]}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            first = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert '"verdict"' in first
