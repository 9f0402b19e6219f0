"""Streams of events and of output: resumed where they were left, whole, in order, and ended when there is no more."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from orchestrators import OrchestratorProcess
from wire_node import WireNode

from holdfast.client import Client
from holdfast.client.sse import EventReader, ServerEvent
from holdfast.orchestrator.api.streams import Cursor, whole_text
from holdfast.testing.processes import wait_for


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path_factory.mktemp("streams"), open_join=True) as running:
        yield running.start()


@pytest.fixture(scope="module")
def client(orchestrator: OrchestratorProcess) -> Client:
    return orchestrator.client()


def read(http: httpx.Client, path: str, last: str | None = None, take: int | None = None) -> list[ServerEvent]:
    """The events of a stream: all of them, or the first few and then hang up."""
    headers = {"Last-Event-ID": last} if last is not None else {}
    events: list[ServerEvent] = []
    with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        reader = EventReader()
        for event in (event for chunk in answer.iter_raw() for event in reader.feed(chunk)):
            events.append(event)
            if len(events) == take:
                break
    return events


def data(events: list[ServerEvent]) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in events if event.name == "message"]


@pytest.mark.spec("J3", "H4")
def test_events_are_resumed_after_the_last_one_seen(orchestrator: OrchestratorProcess, client: Client) -> None:
    with WireNode(orchestrator.listen) as node, orchestrator.http() as http:
        node.wait_welcome()
        job = client.jobs.run(["say", "events"], timeout_s=60).id
        path = f"/v1/events?job={job}"
        # Given all events of a job
        whole = read(http, path)
        assert whole[-1].name == "end"
        kinds = [event["kind"] for event in data(whole)]
        assert kinds[0] == "job.queued" and kinds[-1] == "job.ended"
        # When a reader leaves after each of them and comes back, then it gets exactly the rest
        for seen in range(1, len(kinds) + 1):
            part = read(http, path, take=seen)
            rest = read(http, path, last=part[-1].id)
            assert data(part) + data(rest) == data(whole)
        # And a place that no stream gave out is refused
        for nonsense in ("x", "-1", "9" * 40, "²"):
            assert http.get(path, headers={"Last-Event-ID": nonsense.encode()}).json()["code"] == "bad_cursor"


@pytest.mark.spec("J3")
def test_a_follower_sees_what_happens_after_it_came(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given somebody who follows from now on
    seen: list[str] = []
    after = max((event.seq for event in client.events()), default=0)
    follower = orchestrator.client()

    def follow() -> None:
        for event in follower.events(follow=True, after=after):
            seen.append(event.kind)
            if event.kind == "job.ended":
                return

    watching = threading.Thread(target=follow)
    watching.start()
    # When a job runs, then all of its way is seen, as it happens
    with WireNode(orchestrator.listen) as node:
        node.wait_welcome()
        client.jobs.run(["say", "follow"], timeout_s=60)
        watching.join(60)
    wanted = ["job.queued", "job.assigned", "attempt.running", "job.running", "job.accepted", "job.ended"]
    assert [kind for kind in seen if kind in wanted] == wanted


@pytest.mark.spec("J4")
def test_output_is_resumed_by_offset_and_kept_apart(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given a job that printed some hundred kilobytes, with letters of several bytes, on both streams
    printed = "".join(f"Zeile {n} – ünïcödé 😀\n" for n in range(8_000)).encode()
    with WireNode(orchestrator.listen, output=lambda _: printed, hold_back=True) as node, orchestrator.http() as http:
        node.wait_welcome()
        job = client.jobs.submit(["print", "much"]).id
        wait_for(lambda: node.starts, "the job to start")
        node.deliver(node.starts[0], b"a warning\n", stream="stderr")
        node.let_go()
        client.jobs.wait(job, timeout_s=60)
        path = f"/v1/jobs/{job}/logs"
        whole = data(read(http, path))
        # Then stdout is whole, stderr apart, offsets in bytes, and what the platform saw is marked
        out = [line for line in whole if line["stream"] == "stdout"]
        assert "".join(line["text"] for line in out).encode() == printed
        assert [line["offset"] for line in out] == offsets(out)
        assert [line["text"] for line in whole if line["stream"] == "stderr"] == ["a warning\n"]
        assert whole[-1]["stream"] == "platform" and whole[-1]["text"] == "succeeded"
        only = data(read(http, f"{path}?stream=stderr"))
        assert {line["stream"] for line in only} == {"stderr", "platform"}
        # And a reader who comes back after any piece gets exactly the rest
        for seen in (1, 4, len(whole) // 2, len(whole)):
            part = read(http, path, take=seen)
            assert data(part) + data(read(http, path, last=part[-1].id)) == whole
        for nonsense in ("x|", "1|2", "1|a:b:c", "-1|", "1|1:-5:0"):
            assert http.get(path, headers={"Last-Event-ID": nonsense}).json()["code"] == "bad_cursor"


def offsets(lines: list[dict[str, Any]]) -> list[int]:
    at, expected = 0, []
    for line in lines:
        expected.append(at)
        at += len(line["text"].encode())
    return expected


@pytest.mark.spec("J4", "J5")
def test_output_goes_on_over_attempts_and_restarts(orchestrator: OrchestratorProcess, client: Client) -> None:
    # Given somebody who follows a job from its first line
    with WireNode(orchestrator.listen, output=lambda _: b"partial result", hold_back=True) as first:
        first.wait_welcome()
        job = client.jobs.submit(["work"]).id
        wait_for(lambda: any(first.acked.values()), "half the output of the first attempt")
        wait_for(lambda: client.jobs.get(job).phase == "running", "the first attempt to run")
        lines: list[tuple[str, str, str]] = []
        follower = orchestrator.client(patience_s=60)
        watching = threading.Thread(
            target=lambda: lines.extend(
                (line.attempt, line.stream, line.text) for line in follower.jobs.logs(job, follow=True, pieces=True)
            )
        )
        watching.start()
    # When the node is lost, the orchestrator is killed and started again, and a second node ends the job
    wait_for(lambda: "job.takeover" in [e.kind for e in client.jobs.get(job).events], "the loss to be seen")
    orchestrator.kill()
    orchestrator.start()
    with WireNode(orchestrator.listen, output=lambda _: b"whole result\n"):
        assert client.jobs.wait(job, timeout_s=60).verdict == "succeeded"
        watching.join(60)
    # Then the follower read one story: the first attempt's half, what the platform saw, the second's whole
    attempts = list(dict.fromkeys(attempt for attempt, stream, _ in lines if stream == "stdout"))
    assert [a.rpartition(".")[2] for a in attempts] == ["1", "2"]
    texts = ["".join(text for a, s, text in lines if a == attempt and s == "stdout") for attempt in attempts]
    assert texts == ["partial", "whole result\n"]
    kinds = [(stream, text) for _, stream, text in lines]
    lost = next(i for i, (stream, text) in enumerate(kinds) if stream == "platform" and "takes over" in text)
    second = next(i for i, (attempt, stream, _) in enumerate(lines) if (attempt, stream) == (attempts[1], "stdout"))
    assert kinds.index(("stdout", "partial")) < lost < second
    assert kinds[-1] == ("platform", "succeeded") and len(set(lines)) == len(lines)


@pytest.mark.spec("J4")
def test_a_letter_cut_by_the_end_waits_for_its_rest() -> None:
    text = "añ😀".encode()
    for cut in range(len(text) + 1):
        shown, size = whole_text(text[:cut], final=False)
        assert "�" not in shown and text[:size].decode() == shown
        rest, _ = whole_text(text[size:], final=True)
        assert shown + rest == "añ😀"
    assert whole_text(b"\xff\xfe", final=False) == ("��", 2)
    assert whole_text("ñ".encode()[:1], final=True) == ("�", 1)


@pytest.mark.spec("J4")
def test_a_place_in_the_output_is_written_and_read_back() -> None:
    cursor = Cursor("17|1:10:0,3:0:5")
    assert str(cursor) == "17|1:10:0,3:0:5"
    cursor.of(2)["stdout"] = 4
    assert str(Cursor(str(cursor))) == "17|1:10:0,2:4:0,3:0:5"
