"""The door for people: who may ask, what is refused and how, and that the same key is the same job."""

import threading
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from orchestrators import OrchestratorProcess
from wire_node import WireNode

from holdfast.client import Client
from holdfast.errors import NotFound
from holdfast.identity.tokens import parse
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import JobRequest, JobView


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrchestratorProcess]:
    with OrchestratorProcess(tmp_path_factory.mktemp("http"), open_join=True) as running:
        yield running.start()
        assert running.stop() == 0


@pytest.fixture(scope="module")
def node(orchestrator: OrchestratorProcess) -> Iterator[WireNode]:
    with WireNode(orchestrator.listen, name="worker") as node:
        node.wait_welcome()
        yield node


@pytest.fixture(scope="module")
def client(orchestrator: OrchestratorProcess, node: WireNode) -> Client:
    return orchestrator.client()


@pytest.fixture
def http(orchestrator: OrchestratorProcess) -> Iterator[httpx.Client]:
    with orchestrator.http() as http:
        yield http


# --- who may ask ---


@pytest.mark.spec("J4")
@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", "Basic YWRtaW46YWRtaW4=", "Bearer " + "x" * 5_000]
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/events", "/metrics", "/schema/openapi.json", "/nowhere"])
def test_without_the_token_nothing_is_shown(orchestrator: OrchestratorProcess, authorization: str, path: str) -> None:
    with orchestrator.http(Authorization=authorization) as stranger:
        answer = stranger.get(path)
    assert (answer.status_code, answer.json()["code"]) == (401, "not_allowed")


@pytest.mark.spec("H1")
def test_health_needs_no_token_and_names_nobody(orchestrator: OrchestratorProcess) -> None:
    with orchestrator.http(Authorization="") as stranger:
        assert stranger.get("/healthz").json() == {"ok": True, "epoch": 1, "says": "leading"}


@pytest.mark.spec("A5")
def test_metrics_and_the_description_of_the_api(http: httpx.Client, client: Client) -> None:
    client.jobs.run(["say", "metrics"], timeout_s=60)
    text = http.get("/metrics").text
    assert 'holdfast_jobs_ended_total{failure="none",verdict="succeeded"}' in text
    assert "holdfast_commit_seconds_bucket" in text and "holdfast_sessions 1.0" in text
    paths = http.get("/schema/openapi.json").json()["paths"]
    for path in ("/v1/jobs", "/v1/jobs/batch", "/v1/jobs/{job}/logs", "/v1/nodes/{node}/drain", "/v1/tokens/{token}"):
        assert path in paths


# --- what is refused, and how ---

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no argv": ({}, "argv"),
    "empty argv": ({"argv": []}, "nothing to run"),
    "argv of numbers": ({"argv": [1]}, "argv"),
    "unknown field": ({"argv": ["x"], "cpus": 4}, "cpus"),
    "priority": ({"argv": ["x"], "priority": 10}, "priority is 10"),
    "memory": ({"argv": ["x"], "memory_mib": 0}, "needs some of both"),
    "negative cpu": ({"argv": ["x"], "cpu_milli": -5}, "needs some of both"),
    "negative disk": ({"argv": ["x"], "disk_mib": -1}, "disk_mib is -1"),
    "huge gpus": ({"argv": ["x"], "gpus": 10**30}, "gpus"),
    "workload": ({"argv": ["x"], "workload": "magic"}, "batch, training, inference, service"),
    "recovery": ({"argv": ["x"], "recovery": "always"}, "restart, resume, never"),
    "time limit": ({"argv": ["x"], "time_limit_ms": 0}, "time_limit_ms is 0"),
    "attempts": ({"argv": ["x"], "attempts_max": 0}, "attempts_max is 0"),
    "long argv": ({"argv": ["x" * 40_000]}, "bytes"),
    "NUL": ({"argv": ["a\0b"]}, "NUL"),
    "env name": ({"argv": ["x"], "env": {"A=B": "c"}}, "A=B"),
    "terminal escape in the name": ({"argv": ["x"], "name": "\u001b[2J"}, "printable"),
    "empty key": ({"argv": ["x"], "key": "k" * 201}, "idempotency key"),
}


@pytest.mark.spec("J13")
@pytest.mark.parametrize("name", BAD)
def test_a_request_that_makes_no_sense_is_told_what_is_wrong(http: httpx.Client, name: str) -> None:
    body, expected = BAD[name]
    answer = http.post("/v1/jobs", json=body)
    error = answer.json()
    assert (answer.status_code, error["code"]) == (400, "bad_request"), error
    assert expected in error["says"]


@pytest.mark.spec("J13")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/jobs/job_00000000000000", 404, "not_found"),
        ("GET", "/v1/jobs/nothing-of-this-name", 404, "not_found"),
        ("GET", "/v1/nodes/node_00", 404, "not_found"),
        ("DELETE", "/v1/tokens/tok_unknown00000", 404, "no_such_token"),
        ("GET", "/v1/nowhere", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/jobs?limit=0", 400, "bad_request"),
        ("GET", "/v1/jobs?limit=many", 400, "bad_request"),
        ("GET", "/v1/jobs?phase=dreaming", 400, "bad_request"),
        ("GET", "/v1/events?after=soon", 400, "bad_request"),
        ("GET", "/v1/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd/logs", 404, "not_found"),
    ],
)
def test_errors_have_one_shape_and_a_stable_code(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path)
    error = answer.json()
    assert (answer.status_code, error["code"]) == (status, code), error
    assert error["says"] and "Traceback" not in answer.text


@pytest.mark.spec("J13")
def test_a_body_that_is_not_json_or_too_large_is_refused(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    broken = http.post("/v1/jobs", content=b'{"argv": [', headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (400, "bad_request")
    large = http.post("/v1/jobs", content=b'{"argv": ["' + b"x" * 17_000_000 + b'"]}', headers=headers)
    assert (large.status_code, large.json()["code"]) == (413, "too_large")


@pytest.mark.spec("A12", "J13")
@pytest.mark.parametrize("opened", [b"[", b'{"argv":', b'{"argv":["x"],"env":{"a":'])
def test_a_body_that_is_nested_too_deeply_is_refused_and_not_logged(
    orchestrator: OrchestratorProcess, http: httpx.Client, node: WireNode, opened: bytes
) -> None:
    logged = orchestrator.log.stat().st_size
    deep = opened * 100_000
    for path in ("/v1/jobs", "/v1/jobs/batch", "/v1/check"):
        answer = http.post(path, content=deep, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
        assert len(answer.content) < 1_000
    assert orchestrator.log.stat().st_size - logged < 1_000


@pytest.mark.spec("J13")
def test_a_job_that_can_never_fit_is_refused_with_the_nearest_miss(http: httpx.Client, client: Client) -> None:
    answer = http.post("/v1/jobs", json={"argv": ["x"], "gpus": 8})
    error = answer.json()
    assert (answer.status_code, error["code"], error["failure"]["blame"]) == (422, "no_fit", "user")
    assert "gpus 0 of 8" in error["says"]


# --- the same key, the same job ---


@pytest.mark.spec("J14")
def test_the_same_key_is_the_same_job_also_after_it_ended(http: httpx.Client, client: Client) -> None:
    headers = {"Idempotency-Key": "once"}
    # Given a job that was submitted under a key and has ended
    first = http.post("/v1/jobs", json={"argv": ["say", "once"]}, headers=headers)
    assert (first.status_code, first.json()["again"]) == (201, False)
    ended = client.jobs.wait(first.json()["id"], timeout_s=60)
    # When the same is sent again, then the first answer comes back and nothing runs
    again = http.post("/v1/jobs", json={"argv": ["say", "once"]}, headers=headers).json()
    assert (again["id"], again["again"], again["verdict"]) == (ended.id, True, "succeeded")
    assert client.jobs.get(ended.id).attempts_made == 1
    # And when something else is sent under the key, then it is refused
    other = http.post("/v1/jobs", json={"argv": ["say", "twice"]}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")


@pytest.mark.spec("J14")
def test_the_same_key_at_the_same_moment_is_one_job(orchestrator: OrchestratorProcess, client: Client) -> None:
    seen: list[JobView] = []
    threads = [
        threading.Thread(target=lambda: seen.append(client.jobs.submit(["say", "now"], key="at-once")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({view.id for view in seen}) == 1
    assert sorted(view.again for view in seen) == [False] + [True] * 7


@pytest.mark.spec("J13")
def test_keys_of_different_owners_are_different_jobs(orchestrator: OrchestratorProcess, client: Client) -> None:
    ids = set()
    for owner in ("ann", "bob"):
        with orchestrator.http(X_Holdfast_Owner=owner) as acting:
            view = acting.post("/v1/jobs", json={"argv": ["x"], "name": "mine", "key": "k"}).json()
            assert view["owner"] == owner
            assert acting.get("/v1/jobs/mine").json()["id"] == view["id"]
            ids.add(view["id"])
    assert len(ids) == 2


@pytest.mark.spec("J4")
def test_who_acts_for_an_owner_sees_nothing_of_others(orchestrator: OrchestratorProcess, client: Client) -> None:
    with orchestrator.http(X_Holdfast_Owner="carol") as carol, orchestrator.http(X_Holdfast_Owner="dave") as dave:
        job = carol.post("/v1/jobs", json={"argv": ["secret"]}).json()["id"]
        for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/logs", f"/v1/jobs/{job}/explain", f"/v1/events?job={job}"):
            assert dave.get(path).status_code == 404, path
        assert dave.post(f"/v1/jobs/{job}/stop").status_code == 404
        assert dave.get("/v1/jobs").json()["jobs"] == []
        assert job not in dave.get("/v1/events").text and job in carol.get("/v1/events").text
        assert [j["id"] for j in carol.get("/v1/jobs").json()["jobs"]] == [job]
    assert client.jobs.get(job).owner == "carol"
    with orchestrator.http(X_Holdfast_Owner="x" * 200) as nobody:
        assert nobody.get("/v1/jobs").json()["code"] == "bad_request"


# --- batches and lists ---


@pytest.mark.spec("J13")
def test_a_batch_stands_or_falls_one_by_one_and_in_order(client: Client) -> None:
    requests = [
        JobRequest(["say", "one"], key="b1"),
        JobRequest([], key="b2"),
        JobRequest(["say", "three"], key="b3", gpus=3),
        JobRequest(["say", "one"], key="b1"),
        JobRequest(["say", "other"], key="b1"),
    ]
    one, empty, unfit, repeated, reused = client.jobs.submit_many(requests)
    assert isinstance(one, JobView) and not one.again
    assert isinstance(empty, ErrorView) and empty.code == "bad_request"
    assert isinstance(unfit, ErrorView) and unfit.code == "no_fit"
    assert isinstance(repeated, JobView) and repeated.again and repeated.id == one.id
    assert isinstance(reused, ErrorView) and reused.code == "key_reused"
    assert client.jobs.wait(one.id, timeout_s=60).verdict == "succeeded"


@pytest.mark.spec("J13")
def test_a_thousand_at_once(tmp_path: Path) -> None:
    # Given a network without a node yet
    with OrchestratorProcess(tmp_path, open_join=True).start() as orchestrator:
        client = orchestrator.client()
        requests = [JobRequest(["say", str(n)], key=f"many-{n}") for n in range(1_000)]
        # When a thousand jobs are sent in one go, then all stand, durably
        views = client.jobs.submit_many(requests)
        assert {view.phase for view in views if isinstance(view, JobView)} == {"queued"}
        orchestrator.kill()
        orchestrator.start()
        again = client.jobs.submit_many(requests)
        assert [view.id for view in again if isinstance(view, JobView) and view.again] == [
            view.id for view in views if isinstance(view, JobView)
        ]
        # And one more is too many
        with orchestrator.http() as http:
            too_many = http.post("/v1/jobs/batch", json=[{"argv": ["x"]}] * 1_001)
        assert (too_many.status_code, too_many.json()["code"]) == (400, "bad_request")


@pytest.mark.spec("J3")
def test_pages_list_every_job_once_newest_first(orchestrator: OrchestratorProcess, client: Client) -> None:
    with orchestrator.http(X_Holdfast_Owner="pager") as pager:
        for number in range(7):
            pager.post("/v1/jobs", json={"argv": ["x"], "name": f"p{number}"})
        names: list[str] = []
        after = None
        while True:
            page = pager.get("/v1/jobs", params={"limit": 3, **({"after": after} if after else {})}).json()
            names += [job["name"] for job in page["jobs"]]
            after = page["next"]
            if after is None:
                break
    assert sorted(names, reverse=True) == names and len(names) == 7


@pytest.mark.spec("J12")
def test_an_id_may_be_shortened_while_it_is_unique(client: Client) -> None:
    view = client.jobs.submit(["x"], name="short-one")
    assert client.jobs.get(view.id[:12]).id == view.id
    assert client.jobs.get("short-one").id == view.id
    assert client.nodes.get("worker").id == client.nodes.list()[0].id
    with pytest.raises(NotFound):
        client.jobs.get("job_zzzz")


# --- stopping, explaining, draining ---


@pytest.mark.spec("J12", "H6", "N7")
def test_what_waits_says_why_and_can_be_stopped(client: Client, node: WireNode) -> None:
    # Given a network whose only node is being drained
    assert client.nodes.drain("worker").draining
    view = client.jobs.submit(["wait"], name="waiting")
    # When it is asked what the job waits for, then the gate has a name and the wait has an end
    explained = client.jobs.explain(view.id)
    assert explained.phase == "queued" and explained.until_ms is not None and "draining" in str(explained.gates)
    # And it can be stopped; stopping twice is no error
    for _ in range(2):
        stopped = client.jobs.stop(view.id)
        assert (stopped.phase, stopped.verdict) == ("ended", "cancelled")
    assert "ended" in client.jobs.explain(view.id).then
    assert not client.nodes.drain("worker", on=False).draining
    assert client.jobs.run(["again"], timeout_s=60).verdict == "succeeded"


@pytest.mark.spec("N6")
def test_a_token_is_shown_once_and_can_be_revoked(http: httpx.Client, client: Client) -> None:
    made = client.tokens.create(uses=2, note="for the lab")
    assert made.token.startswith("hf1_") and made.uses_left == 2
    # In the list of them there is nothing by which anyone could join, not even the hash that is stored
    secret = parse(made.token).secret_sha256
    shown = http.get("/v1/tokens").text
    assert made.id in shown and "for the lab" in shown
    assert made.token not in shown and secret not in shown
    for _ in range(2):
        assert http.delete(f"/v1/tokens/{made.id[:-1]}").status_code == 204
    assert next(one for one in http.get("/v1/tokens").json() if one["id"] == made.id)["state"] == "revoked"
    assert http.delete("/v1/tokens/tok_").json()["code"] == "no_such_token"
    # Of 37 ids two begin alike: there are 36 letters. What fits several ends none of them
    twice = Counter(client.tokens.create().id[:5] for _ in range(37)).most_common(1)[0][0]
    assert http.delete(f"/v1/tokens/{twice}").json()["code"] == "ambiguous"
    assert sum(one["state"] == "good" for one in http.get("/v1/tokens").json()) >= 37
    for wrong in ({"ttl_ms": 0}, {"uses": 0}, {"uses": -2}, {"note": "x" * 300}, {"days": 1}):
        assert http.post("/v1/tokens", json=wrong).json()["code"] == "bad_request"


@pytest.mark.spec("N6")
@pytest.mark.parametrize("cut", [None, -1, 40], ids=["whole", "mistyped", "half"])
def test_no_answer_and_no_log_repeats_a_token_that_was_sent_in_the_wrong_place(
    orchestrator: OrchestratorProcess, http: httpx.Client, client: Client, cut: int | None
) -> None:
    for token in (client.tokens.create().token[:cut], orchestrator.admin_token()[:cut]):
        answers = [
            http.request(method, path.replace("TOKEN", token))
            for method in ("GET", "DELETE", "POST")
            for path in (
                "/v1/tokens/TOKEN", "/v1/jobs/TOKEN", "/v1/nodes/TOKEN", "/v1/arrays/TOKEN", "/v1/TOKEN",
                "/v1/jobs/TOKEN/stop", "/v1/nodes/TOKEN/drain", "/v1/manifests/TOKEN", "/v1/jobs?limit=TOKEN",
                "/v1/jobs?cursor=TOKEN", "/v1/jobs?phase=TOKEN", "/v1/events?after=TOKEN",
            )
        ]  # fmt: skip
        wrong = ({"note": [token]}, {token: 1}, {"ttl_ms": token}, token)
        answers += [http.post(path, json=body) for path in ("/v1/tokens", "/v1/jobs") for body in wrong]
        answers.append(http.get("/v1/events", headers={"Last-Event-ID": token}))
        assert len([answer for answer in answers if answer.status_code >= 400]) > 30
        for answer in answers:
            assert token[4:] not in answer.text and token[4:20] not in answer.text, answer.text
        assert token[4:20] not in orchestrator.tail(10_000)


@pytest.mark.spec("J14")
def test_the_doctor_finds_that_memory_equals_the_store(client: Client) -> None:
    findings = {finding.name: finding for finding in client.doctor().findings}
    assert findings["rebuild equals memory"].ok and "both are" in findings["rebuild equals memory"].says
    assert findings["leads"].ok and findings["store answers"].ok


@pytest.mark.spec("H2")
def test_a_silent_connection_is_ended_by_clients_first(orchestrator: OrchestratorProcess) -> None:
    # Given for how long clients keep a connection, and one that was used
    kept_s = httpx.Limits().keepalive_expiry
    assert kept_s is not None
    address = httpx.URL(orchestrator.url)
    line = HTTPConnection(address.host, address.port, timeout=60)
    line.request("GET", "/healthz")
    assert line.getresponse().read()
    # When it was silent for longer than that, then it was not hung up
    line.sock.settimeout(kept_s + 1)
    with pytest.raises(TimeoutError):
        line.sock.recv(1)
    # And is still heard
    line.sock.settimeout(60)
    line.request("GET", "/healthz")
    assert line.getresponse().status == 200
    line.close()
