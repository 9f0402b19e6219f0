"""One API: an orchestrator and `holdfast.testing.Network` give the same answers, for they serve one table of routes.

The orchestrator is the product's own app, asked in this process with nothing but a socket left out.
"""

import asyncio
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from glue_house import STEADY, HandNode, House

from holdfast import codes
from holdfast.blobs.keys import client_uploader
from holdfast.identity.admin import AdminToken
from holdfast.model import Role
from holdfast.orchestrator.api import app as litestar_app
from holdfast.orchestrator.api.authentication import Authentication
from holdfast.orchestrator.api.call import OWNER_HEADER, Principal
from holdfast.orchestrator.api.dispatch import ApiRequest, answered, found
from holdfast.orchestrator.api.routes import ROUTES, Route
from holdfast.orchestrator.api_error import ApiError
from holdfast.testing import Network
from holdfast.testing.network_api import finished

pytestmark = pytest.mark.spec("J3", "H5")

JOB = {"argv": ["wait"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16}
LARGE = {**JOB, "cpu_milli": 999_000}
SHA = "0" * 64


class World:
    """One of the two, with a node, a job that goes on, an array of two such jobs and a join token."""

    name = ""
    token = ""

    def ask(self, method: str, path: str, **asked: Any) -> httpx.Response:
        raise AssertionError

    def ask_as(self, authorization: str | None, method: str, path: str) -> httpx.Response:
        """With this header, or with none."""
        raise AssertionError

    def begin(self, job: str) -> None:
        """The node runs it."""

    def furnish(self) -> None:
        def post(path: str, body: Any) -> Any:
            answer = self.ask("POST", path, json=body, headers={"Idempotency-Key": "first"})
            assert answer.status_code == 201, answer.text
            return answer.json()["id"]

        job = post("/v1/jobs", {**JOB, "name": "mine"})
        self.begin(job)
        self.ids = {
            "job": job,
            "attempt": f"att_{job.removeprefix('job_')}.1",
            "array": post("/v1/arrays", {"job": {**JOB, "name": "sweep"}, "items": ["1", "2"]}),
            "token": post("/v1/tokens", {"ttl_ms": 60_000}),
            "access": post("/v1/access", {"role": "user", "owner": "ann"}),
            "node": self.ask("GET", "/v1/nodes").json()[0]["id"],
        }


class Virtual(World):
    name = "network"

    def __init__(self) -> None:
        machine = {"cpu": 8, "memory": "16000MiB", "disk": "100000MiB"}
        self.network = Network(nodes=[machine], settings={"newcomer_attempts": 256})
        self.network.when("wait", takes="10h")
        self.token = self.network.token
        self.http = self._client()
        self.http.headers["Authorization"] = f"Bearer {self.token}"

    def _client(self) -> httpx.Client:
        return httpx.Client(transport=self.network.door, base_url="http://127.0.0.1")

    def begin(self, job: str) -> None:
        self.network.until(lambda: job in self.network.nodes[0].running)

    def ask(self, method: str, path: str, **asked: Any) -> httpx.Response:
        return self.http.request(method, path, **asked)

    def ask_as(self, authorization: str | None, method: str, path: str) -> httpx.Response:
        with self._client() as http:
            return http.request(method, path, headers=_sent(authorization))

    def close(self) -> None:
        self.http.close()
        self.network.close()


class Real(World):
    name = "orchestrator"

    def __init__(self, data: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.house = House(data, STEADY)
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self.house.open(wire=False)
        self.token = self.house.built._token.text
        self.node = await HandNode(self.house).join()
        await self.house.until(lambda: [n for n in self.house.store.nodes() if n.state.value == "ready"], "a node")

    def begin(self, job: str) -> None:
        self.loop.run_until_complete(self.node.started(job))

    def ask(self, method: str, path: str, **asked: Any) -> httpx.Response:
        return self.loop.run_until_complete(self.house.people.request(method, path, **asked))

    def ask_as(self, authorization: str | None, method: str, path: str) -> httpx.Response:
        async def asked() -> httpx.Response:
            async with self.house.http(self.house._people, "") as http:
                del http.headers["Authorization"]
                return await http.request(method, path, headers=_sent(authorization))

        return self.loop.run_until_complete(asked())

    def close(self) -> None:
        self.loop.run_until_complete(self.house.people.aclose())
        self.loop.run_until_complete(self.house.close())
        self.loop.close()


def _sent(authorization: str | None) -> dict[str, str]:
    return {} if authorization is None else {"Authorization": authorization}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    world = Real(tmp_path_factory.mktemp("one-api") / "data")
    world.furnish()
    yield world
    world.close()


@pytest.fixture(scope="module")
def virtual() -> Iterator[Virtual]:
    world = Virtual()
    world.furnish()
    yield world
    world.close()


@pytest.fixture(params=["orchestrator", "network"])
def world(request: pytest.FixtureRequest, real: Real, virtual: Virtual) -> World:
    return {"orchestrator": real, "network": virtual}[request.param]


# --- case by case ---


def said(world: World, text: str) -> str:
    """An answer without what differs from run to run: ids, times, and what the one node is called."""
    for name, id in world.ids.items():
        text = text.replace(id, name.upper())
    text = re.sub(r"\w+ \(NODE\)", "NODE", text)
    return re.sub(r"(job|arr|tok|acc)_[0-9a-z]{8,}", r"\1_ID", text)


def headers(answer: httpx.Response) -> dict[str, str]:
    told = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length", "allow")}
    if answer.status_code == 204:
        told.pop("content-type", None)
    return told


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/jobs", {"json": {**JOB, "name": "another"}, "headers": {"Idempotency-Key": "first"}}),
    ("POST", "/v1/jobs", {"json": LARGE}),
    ("POST", "/v1/jobs", {"json": {**JOB, "workload": "nope"}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "argv": []}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "what": 1}}),
    ("POST", "/v1/jobs", {"json": {"name": "x"}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "argv": 5}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "inputs": [{"name": 5}]}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "inputs": [{"name": "i"}]}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "inputs": [{"name": "i", "job": "{job}"}]}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "inputs": [{"name": "i", "job": "nope"}]}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "inputs": [{"name": "i", "url": "s3://bucket/key"}]}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "package": SHA}}),
    ("POST", "/v1/jobs", {"json": {**JOB, "package": "zz"}}),
    ("POST", "/v1/jobs", {"content": b"{no JSON"}),
    ("POST", "/v1/jobs", {"content": b"\xff\xfe"}),
    ("POST", "/v1/jobs", {"content": b"[]"}),
    ("POST", "/v1/jobs", {"content": b""}),
    ("POST", "/v1/jobs", {"content": b"x" * (17 << 20)}),
    ("POST", "/v1/jobs", {"json": JOB, "headers": {OWNER_HEADER: "x" * 200}}),
    ("POST", "/v1/jobs", {"json": JOB, "headers": {"Idempotency-Key": "x" * 300}}),
    ("POST", "/v1/jobs/batch", {"json": []}),
    ("POST", "/v1/jobs/batch", {"json": {}}),
    ("POST", "/v1/jobs/batch", {"json": [JOB] * 1_001}),
    ("GET", "/v1/jobs?limit=0", {}),
    ("GET", "/v1/jobs?limit=1001", {}),
    ("GET", "/v1/jobs?limit=some", {}),
    ("GET", "/v1/jobs?limit=", {}),
    ("GET", "/v1/jobs?phase=nope", {}),
    ("GET", "/v1/jobs/nope", {}),
    ("GET", "/v1/jobs/job_", {}),
    ("GET", "/v1/jobs/{job}?live=maybe", {}),
    ("GET", "/v1/jobs/{job}", {"headers": {OWNER_HEADER: "somebody"}}),
    ("GET", "/v1/jobs/nope/explain", {}),
    ("POST", "/v1/jobs/nope/stop", {}),
    ("POST", "/v1/jobs/sweep/stop", {}),
    ("POST", "/v1/jobs/nope/rerun", {}),
    ("POST", "/v1/jobs/{job}/move", {"json": {}}),
    ("POST", "/v1/jobs/{job}/move", {"json": {"to": "nobody"}}),
    ("POST", "/v1/jobs/{job}/move", {"json": {"to": "{node}"}}),
    ("POST", "/v1/jobs/{job}/received", {}),
    ("GET", "/v1/jobs/{job}/output/att_x/stdout", {}),
    ("GET", "/v1/jobs/{job}/output/{attempt}/stdin", {}),
    ("GET", "/v1/jobs/{job}/output/{attempt}/stdout?offset=-1", {}),
    ("GET", "/v1/jobs/{job}/logs?stream=sideways", {}),
    ("GET", "/v1/jobs/{job}/logs", {"headers": {"Last-Event-ID": "made up"}}),
    ("GET", "/v1/jobs/nope/logs", {}),
    ("GET", "/v1/events", {"headers": {"Last-Event-ID": "made up"}}),
    ("GET", "/v1/events?tail=-1", {}),
    ("GET", "/v1/events?tail=1001", {}),
    ("GET", "/v1/events?job=nope", {}),
    ("GET", "/v1/events?node=nobody", {}),
    ("POST", "/v1/check", {"json": {**JOB, "argv": []}}),
    ("POST", "/v1/check?node=nobody", {"json": JOB}),
    ("POST", "/v1/check/watch?node=nobody", {"json": JOB}),
    ("POST", "/v1/arrays", {"json": {"job": JOB, "items": []}}),
    ("POST", "/v1/arrays", {"json": {"job": LARGE, "items": ["1"]}}),
    ("POST", "/v1/arrays", {"json": {"job": JOB, "items": ["x" * 5_000]}}),
    ("GET", "/v1/arrays/arr_nothing", {}),
    ("GET", "/v1/arrays/{array}", {"headers": {OWNER_HEADER: "somebody"}}),
    ("POST", "/v1/arrays/arr_nothing/stop", {}),
    ("POST", "/v1/arrays/arr_nothing/retry", {}),
    ("GET", "/v1/nodes/nobody", {}),
    ("GET", "/v1/nodes/node_", {}),
    ("POST", "/v1/nodes/nobody/drain", {}),
    ("POST", "/v1/nodes/{node}/drain?on=maybe", {}),
    ("POST", "/v1/tokens", {"json": {"ttl_ms": 70_000}, "headers": {"Idempotency-Key": "first"}}),
    ("POST", "/v1/tokens", {"json": {"ttl_ms": 1}}),
    ("POST", "/v1/tokens", {"json": {"uses": 0}}),
    ("DELETE", "/v1/tokens/nope", {}),
    ("POST", "/v1/access", {"json": {"role": "user"}}),
    ("POST", "/v1/access", {"json": {"role": "root", "owner": "ann"}}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "admin"}}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "ann", "ttl_ms": 1}}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "ann", "note": "\n"}}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "bob"}, "headers": {"Idempotency-Key": "first"}}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "bob"}, "headers": {OWNER_HEADER: "bob"}}),
    ("DELETE", "/v1/access/nope", {}),
    ("DELETE", "/v1/access/acc_", {}),
    ("GET", "/v1/jobs", {"headers": {OWNER_HEADER: "admin"}}),
    ("GET", "/v1/tokens", {"headers": {OWNER_HEADER: "somebody"}}),
    ("GET", "/v1/doctor", {"headers": {OWNER_HEADER: "somebody"}}),
    ("POST", "/v1/nodes/{node}/drain", {"headers": {OWNER_HEADER: "somebody"}}),
    ("POST", "/v1/blobs/missing", {"json": {"blobs": [["0", 5]]}}),
    ("POST", "/v1/blobs/missing", {"json": {"blobs": [[SHA, 5]] * 5_000}}),
    ("POST", "/v1/blobs/links", {"json": {"blobs": [[SHA, 0]]}}),
    ("POST", "/v1/manifests", {"json": {"manifest": SHA}}),
    ("POST", "/v1/manifests", {"json": {"manifest": "0"}}),
    ("GET", f"/v1/manifests/{SHA}", {}),
    ("GET", "/v1/manifests/0", {}),
    ("POST", f"/v1/manifests/{SHA}/links", {"json": {"blobs": []}}),
    ("GET", "/nothing", {}),
    ("GET", "/v1/jobs/a%2Fb", {}),
    ("GET", "/v1/jobs/batch", {}),
    ("DELETE", "/v1/jobs", {}),
    ("PUT", "/v1/jobs/x", {}),
]


def filled(world: World, path: str, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """With the ids that this world gave out."""

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: put(one) for name, one in value.items()}
        if isinstance(value, list):
            return [put(one) for one in value]
        return value.format(**world.ids) if isinstance(value, str) and value.startswith("{") else value

    return path.format(**world.ids), {**asked, "json": put(asked["json"])} if "json" in asked else asked


@pytest.mark.parametrize(("method", "path", "asked"), REFUSED, ids=lambda value: str(value)[:60])
def test_both_refuse_the_same_in_the_same_words(
    real: Real, virtual: Virtual, method: str, path: str, asked: dict[str, Any]
) -> None:
    answers: list[Any] = []
    for world in (real, virtual):
        where, what = filled(world, path, asked)
        answer = world.ask(method, where, **what)
        assert answer.status_code >= 400 and set(answer.json()) == {"code", "says", "hint", "failure", "oldest"}, (
            answer.text
        )
        answers.append((answer.status_code, headers(answer), said(world, answer.text)))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("method", "path", "asked"), REFUSED, ids=lambda value: str(value)[:60])
def test_every_refusal_is_one_that_the_table_of_routes_and_the_openapi_document_name(
    real: Real, document: dict[str, Any], method: str, path: str, asked: dict[str, Any]
) -> None:
    where, what = filled(real, path, asked)
    answer = real.ask(method, where, **what)
    if answer.status_code == 405 or answer.json()["says"].startswith("there is nothing at"):
        with pytest.raises(ApiError):
            found(method, where.partition("?")[0].replace("%2F", "/"))
        return
    route, _ = found(method, where.partition("?")[0])
    assert answer.json()["code"] in route.errors[answer.status_code]
    documented = document["paths"][route.path][method.lower()]["responses"][str(answer.status_code)]
    assert documented["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorView"}
    assert f"`{answer.json()['code']}`" in documented["description"]


@pytest.fixture(scope="module")
def document(real: Real) -> dict[str, Any]:
    return real.ask("GET", "/schema/openapi.json").json()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_the_document_names_every_status_of_a_route(document: dict[str, Any], route: Route) -> None:
    responses = document["paths"][route.path][route.method.lower()]["responses"]
    assert set(responses) == {str(status) for status in (route.status, *route.errors)}
    assert not route.roles or {400, 401, 403, 503} <= set(route.errors)
    # and a code that the table names is one that exists, with a status of its own
    assert all(codes.rows()[code].status == status for status, found in route.errors.items() for code in found)


ANSWERED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/jobs", {"json": {**JOB, "name": "mine"}, "headers": {"Idempotency-Key": "first"}}),
    ("POST", "/v1/jobs/batch", {"json": [{**JOB, "key": "b"}, {**JOB, "cpu_milli": 0}, LARGE]}),
    ("GET", "/v1/jobs?limit=2", {}),
    ("GET", "/v1/jobs/", {}),
    ("GET", "/v1/jobs?after=nope", {}),
    ("GET", "/v1/jobs?owner=nobody", {}),
    ("GET", "/v1/jobs/{job}", {}),
    ("GET", "/v1/jobs/mine?live=1&estimate=false", {}),
    ("GET", "/v1/jobs/{job}/explain", {}),
    ("POST", "/v1/jobs/{job}/rerun", {"headers": {"Idempotency-Key": "again"}}),
    ("GET", "/v1/jobs/{job}/output/{attempt}/stdout", {}),
    ("GET", "/v1/jobs/{job}/logs", {}),
    ("GET", "/v1/events?tail=3", {}),
    ("GET", "/v1/events?after=-5&tail=0", {}),
    ("POST", "/v1/check", {"json": JOB}),
    ("POST", "/v1/check", {"json": LARGE}),
    ("GET", "/v1/estimates", {}),
    ("GET", "/v1/arrays/{array}", {}),
    ("GET", "/v1/nodes", {}),
    ("GET", "/v1/nodes/{node}", {}),
    ("POST", "/v1/nodes/{node}/drain?on=false", {}),
    ("GET", "/v1/tokens", {}),
    ("POST", "/v1/tokens", {"json": {"ttl_ms": 60_000}, "headers": {"Idempotency-Key": "first"}}),
    ("GET", "/v1/access", {}),
    ("POST", "/v1/access", {"json": {"role": "user", "owner": "ann"}, "headers": {"Idempotency-Key": "first"}}),
    ("POST", "/v1/blobs/missing", {"json": {"blobs": [[SHA, 5]]}}),
    ("POST", "/v1/blobs/links", {"json": {"blobs": [[SHA, 5]]}}),
    ("GET", "/v1/doctor", {}),
    ("GET", "/healthz", {}),
    ("GET", "/metrics", {}),
]


@pytest.mark.parametrize(("method", "path", "asked"), ANSWERED, ids=lambda value: str(value)[:60])
def test_both_answer_with_the_same_status_headers_and_fields(
    real: Real, virtual: Virtual, method: str, path: str, asked: dict[str, Any]
) -> None:
    answers: list[Any] = []
    for world in (real, virtual):
        where, what = filled(world, path, asked)
        answer = world.ask(method, where, **what)
        assert answer.status_code < 300, answer.text
        answers.append((answer.status_code, headers(answer), _fields(answer)))
    assert answers[0] == answers[1]


def _fields(answer: httpx.Response) -> Any:
    kind = answer.headers["content-type"]
    if kind.startswith("text/event-stream"):
        first, *_, last, rest = answer.text.split("\n\n")
        return first, last, rest
    if not kind.startswith("application/json"):
        return None
    found = answer.json()
    return [sorted(one) for one in found] if isinstance(found, list) else sorted(found)


# --- where the two had drifted ---


def test_a_list_after_a_job_that_is_not_there_is_empty(world: World) -> None:
    answer = world.ask("GET", "/v1/jobs?after=job_00000000000000")
    assert (answer.status_code, answer.json()) == (200, {"jobs": [], "next": None})


def test_a_check_names_the_machine_without_its_id(world: World) -> None:
    found = world.ask("POST", "/v1/check", json=JOB).json()
    assert found["node"] == world.ids["node"]
    assert "(" not in found["name"]


def test_a_job_that_goes_on_is_no_input_and_a_list_says_where_it_runs(world: World) -> None:
    asked = {**JOB, "inputs": [{"name": "before", "job": world.ids["job"]}]}
    assert world.ask("POST", "/v1/jobs", json=asked).json()["code"] == "no_files"
    listed = world.ask("GET", "/v1/jobs?limit=1000").json()["jobs"]
    mine = next(job for job in listed if job["id"] == world.ids["job"])
    assert mine["node"] == world.ids["node"]


@pytest.mark.spec("A12")
def test_an_owner_sees_their_own_jobs_files_and_events_only(world: World) -> None:
    ann, bob = {OWNER_HEADER: "ann"}, {OWNER_HEADER: "bob"}
    made = world.ask("POST", "/v1/jobs", json={**JOB, "name": "secret"}, headers=ann).json()
    assert made["owner"] == "ann"
    for name in (made["id"], "secret"):
        assert world.ask("GET", f"/v1/jobs/{name}", headers=ann).json()["id"] == made["id"]
        assert world.ask("GET", f"/v1/jobs/{name}", headers=bob).status_code == 404
        assert world.ask("POST", f"/v1/jobs/{name}/stop", headers=bob).status_code == 404
    assert world.ask("GET", "/v1/jobs", headers=bob).json()["jobs"] == []
    assert [job["id"] for job in world.ask("GET", "/v1/jobs", headers=ann).json()["jobs"]] == [made["id"]]
    assert made["id"] not in world.ask("GET", "/v1/events", headers=bob).text
    assert made["id"] in world.ask("GET", "/v1/events", headers=ann).text
    stopped = world.ask("POST", "/v1/jobs/secret/stop", headers=ann).json()
    assert "stopped by ann" in msgspec.json.encode(stopped).decode()
    where = world.ask("POST", "/v1/blobs/links", json={"blobs": [[SHA, 5]]}, headers=bob).json()["urls"][SHA]
    assert client_uploader("bob") in where


# --- who may ---


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    ("authorization", "known"),
    [
        (None, False),
        ("", False),
        ("Bearer wrong", False),
        ("Bearer ", False),
        ("Basic {token}", False),
        ("{token}", False),
        ("Bearer {token}x", False),
        ("Bearer {token}", True),
        ("bearer  {token}", True),
    ],
)
def test_both_know_a_caller_by_the_token(real: Real, virtual: Virtual, authorization: str | None, known: bool) -> None:
    for method, path, status in (
        ("GET", "/v1/jobs", 200),
        ("POST", "/v1/jobs", 400),
        ("GET", "/healthz/", 200),
        ("GET", "/nothing", 404),
    ):
        answers: list[Any] = []
        for world in (real, virtual):
            sent = None if authorization is None else authorization.format(token=world.token)
            # what needs no token is open to everybody
            assert world.ask_as(sent, "GET", "/healthz").status_code == 200
            answer = world.ask_as(sent, method, path)
            assert answer.status_code == (status if known else 401), f"{world.name}: {method} {path}"
            answers.append((answer.status_code, headers(answer), "" if known else answer.text))
        assert answers[0] == answers[1]


USER = Principal(Role.USER, "ann", "ann")
NOT_FOR_USERS = [
    (one.method, re.sub(r"\{\w+\}", "x", one.path)) for one in ROUTES if one.roles and Role.USER not in one.roles
]


@pytest.mark.spec("A12")
def test_what_a_caller_may_not_do_is_refused_before_its_body_is_read(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread:
        def __len__(self) -> int:
            raise AssertionError("the body was read")

    async def unread() -> Any:
        raise AssertionError("the body was read")

    async def status(method: str, path: str) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        await guarded(scope, unread, send)  # pyright: ignore[reportArgumentType]
        return sent[0]["status"]

    # given a user's token
    monkeypatch.setattr(Authentication, "principal", lambda self, path, headers, routes: USER)
    context = real.house.front()
    guarded = litestar_app.make_app(context, AdminToken("a token that nobody guesses"))
    body: Any = Unread()
    assert len(NOT_FOR_USERS) > 7
    for method, path in NOT_FOR_USERS:
        # then neither Litestar nor the table by itself goes as far as the body
        assert real.loop.run_until_complete(status(method, path)) == 403, path
        refused = finished(answered(context, USER, ApiRequest(method, path, "", {}, body)))
        assert refused.status == 403 and isinstance(refused.body, bytes), path
        assert msgspec.json.decode(refused.body)["code"] == "forbidden"
    assert real.loop.run_until_complete(status("GET", "/v1/jobs")) == 200


def test_a_handler_that_waits_for_what_is_not_virtual_is_told_so() -> None:
    class Elsewhere:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def handler() -> None:
        await Elsewhere()

    with pytest.raises(RuntimeError, match="not in its context"):
        finished(handler())
