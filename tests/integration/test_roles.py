"""Roles: every route, by every role, with somebody else's ids. Over real HTTP with real processes, and on
`holdfast.testing.Network`.

Two users (ann, bob) and two node operators (north, south). Ann's job runs on north's node.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from holdfast.client.client import Client
from holdfast.model import Role
from holdfast.orchestrator.api.call import OWNER_HEADER
from holdfast.orchestrator.api.routes import ROUTES, Route
from holdfast.orchestrator.api.streams import END
from holdfast.testing import Network
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = pytest.mark.spec("A12")

JOB = {"argv": ["sleep", "600"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16}
SECRET = "the-name-that-ann-gave"
UNKNOWN = {
    "job": "job_00000000000000",
    "attempt": "att_00000000000000.1",
    "array": "arr_00000000000000",
    "name": "0" * 64,
    "token": "tok_000000000000",
    "access": "acc_000000000000",
    "node": "node_" + "0" * 32,
    "stream": "stdout",
}
BODIES: dict[str, Any] = {
    "POST /v1/jobs": JOB,
    "POST /v1/jobs/batch": [JOB],
    "POST /v1/jobs/{job}/move": {"to": "nobody"},
    "POST /v1/check": JOB,
    "POST /v1/check/watch": JOB,
    "POST /v1/arrays": {"job": JOB, "items": ["1"]},
    "POST /v1/blobs/missing": {"blobs": [["0" * 64, 5]]},
    "POST /v1/blobs/links": {"blobs": [["0" * 64, 5]]},
    "POST /v1/manifests": {"manifest": "0" * 64},
    "POST /v1/manifests/{name}/links": {"blobs": []},
    "POST /v1/tokens": {"ttl_ms": 60_000},
    "POST /v1/access": {"role": "user", "owner": "carl"},
}


class Caller(NamedTuple):
    name: str
    role: Role | None


CALLERS = (
    Caller("ann", Role.USER),
    Caller("bob", Role.USER),
    Caller("north", Role.NODE_OPERATOR),
    Caller("south", Role.NODE_OPERATOR),
    Caller("chief", Role.NETWORK_OPERATOR),
    Caller("former", None),
    Caller("nobody", None),
)
"""`former`: a network operator whose token was revoked."""


class World:
    """The network, with a token for every caller and something of everybody's."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {"nobody": "hfr_0000000000000000000000000000000000000000000000000000000"}
        self.ids: dict[str, str] = {**UNKNOWN}

    def http(self, token: str) -> httpx.Client:
        raise AssertionError

    def client(self, token: str) -> Client:
        raise AssertionError

    def join(self, name: str, token: str) -> str:
        """A node with this name joins with the token; returns its id."""
        raise AssertionError

    def begin(self, job: str) -> None:
        """Wait until the job runs."""
        raise AssertionError

    def furnish(self, folder: Path) -> None:
        admin = self.client("")
        for caller in CALLERS[:-1]:
            role = caller.role or Role.NETWORK_OPERATOR
            self.tokens[caller.name] = admin.access.create(role, owner=caller.name).token
        former = next(one for one in admin.access.list() if one.owner == "former")
        admin.access.revoke(former.id)
        self.ids["access"] = next(one for one in admin.access.list() if one.owner == "ann").id
        made = self.client(self.tokens["north"]).tokens.create(uses=5, note=SECRET)
        self.ids["token"], self.ids["node"] = made.id, self.join("polar", made.token)
        self.other_node = self.join("desert", self.client(self.tokens["south"]).tokens.create().token)
        ann = self.client(self.tokens["ann"])
        (folder / "data.txt").write_text("what only ann may read")
        self.ids["name"] = ann.content.send(folder).manifest
        job = {"name": SECRET, "cpu": 0.1, "memory": "16MiB", "disk": "16MiB"}
        # older than ann's: what a page after hers would show
        self.client(self.tokens["bob"]).jobs.submit(["sleep", "600"], cpu=0.1, memory="16MiB", disk="16MiB")
        self.ids["job"] = ann.jobs.submit(["sleep", "600"], **job).id
        self.ids["attempt"] = f"att_{self.ids['job'].removeprefix('job_')}.1"
        self.begin(self.ids["job"])
        self.ids["array"] = ann.arrays.submit(["sleep", "600"], ["1", "2"], **job).id

    def ask(self, caller: str, route: Route, ids: dict[str, str], **asked: Any) -> httpx.Response:
        """The answer; of a stream, only its beginning."""
        asked.setdefault("json", BODIES.get(f"{route.method} {route.path}"))
        path = route.path.format(**ids)
        with self.http(self.tokens[caller]) as http, http.stream(route.method, path, **asked) as answer:
            if not route.path.endswith("/watch") or answer.status_code != 200:
                answer.read()
            return answer


class Virtual(World):
    def __init__(self) -> None:
        super().__init__()
        self.network = Network(nodes=1)
        self.network.when("sleep", takes="10h")
        self.network.nodes[0].kill()

    def http(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(transport=self.network.door, base_url="http://127.0.0.1", headers=headers)

    def client(self, token: str) -> Client:
        return self.network.client(token)

    def join(self, name: str, token: str) -> str:
        return self.network.join(token).id

    def begin(self, job: str) -> None:
        self.network.until(lambda: any(job in node.running for node in self.network.nodes if node.up))


class Real(World):
    def __init__(self, network: LocalNetwork) -> None:
        super().__init__()
        self.network = network
        self.url = network.start_orchestrator().url

    def http(self, token: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def client(self, token: str) -> Client:
        return Client(self.url, token, patience_s=30) if token else self.network.client()

    def join(self, name: str, token: str) -> str:
        self.network.start_node(name, token=token)
        return self.network.wait_node(name)

    def begin(self, job: str) -> None:
        self.network.node_running(job)


@pytest.fixture(scope="module")
def virtual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = Virtual()
    world.furnish(tmp_path_factory.mktemp("virtual"))
    yield world
    world.network.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("real")
    with LocalNetwork(folder / "network") as network:
        world = Real(network)
        (folder / "content").mkdir()
        world.furnish(folder / "content")
        yield world


@pytest.fixture(params=["real", "virtual"])
def world(request: pytest.FixtureRequest) -> World:
    return request.getfixturevalue(request.param)


# --- every route, every role ---


def test_every_route_is_open_to_the_roles_that_it_names_and_to_no_other(world: World) -> None:
    for caller in CALLERS:
        for route in ROUTES:
            answer = world.ask(caller.name, route, UNKNOWN)
            where = f"{caller.name}: {route.method} {route.path}"
            if not route.roles:
                assert answer.status_code == 200, where
            elif caller.role is None:
                assert (answer.status_code, answer.json()["code"]) == (401, "not_allowed"), where
            elif caller.role not in route.roles:
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), where
                assert all(role in answer.json()["says"] for role in route.roles), where
            else:
                assert answer.status_code not in (401, 403, 500), where


OWN = {"user": ("job", "attempt", "array", "name"), "node-operator": ("node", "token")}
"""What a role has of its own: parameters of paths."""


def test_an_id_of_somebody_else_is_answered_as_one_that_does_not_exist(world: World) -> None:
    walked = 0
    for caller in (Caller("bob", Role.USER), Caller("south", Role.NODE_OPERATOR)):
        owned = OWN[str(caller.role)]
        for route in ROUTES:
            named = re.findall(r"\{(\w+)\}", route.path)
            if caller.role not in route.roles or not set(named) & set(owned):
                continue
            walked += 1
            theirs = world.ask(caller.name, route, {**UNKNOWN, **{name: world.ids[name] for name in named}})
            unknown = world.ask(caller.name, route, UNKNOWN)
            assert theirs.status_code == unknown.status_code == 404, f"{caller.name}: {route.method} {route.path}"
            assert _blank(world, theirs.text) == _blank(world, unknown.text)
    assert walked == 16


def _blank(world: World, text: str) -> str:
    for name in UNKNOWN:
        text = text.replace(world.ids[name], f"<{name}>").replace(UNKNOWN[name], f"<{name}>")
    return text


def test_an_id_of_somebody_else_in_a_query_or_a_body_is_answered_as_one_that_does_not_exist(world: World) -> None:
    def asked(ids: dict[str, str]) -> list[tuple[str, str, str, dict[str, Any]]]:
        job, node = ids["job"], ids["node"]
        inputs = [[{"name": "i", "job": job}], [{"name": "i", "manifest": ids["name"]}]]
        return [
            *(("bob", "POST", "/v1/jobs", {"json": {**JOB, "inputs": one}}) for one in inputs),
            *(("bob", "POST", "/v1/check", {"json": {**JOB, "inputs": one}}) for one in inputs),
            ("bob", "POST", "/v1/jobs", {"json": {**JOB, "package": ids["name"]}}),
            ("bob", "GET", f"/v1/jobs?after={job}", {}),
            ("bob", "GET", f"/v1/jobs/{job[:12]}", {}),
            ("bob", "GET", f"/v1/events?job={job}", {}),
            ("bob", "GET", f"/v1/jobs?owner={'ann' if job != UNKNOWN['job'] else 'zoe'}&phase=running", {}),
            ("south", "GET", f"/v1/events?node={node}", {}),
            ("south", "GET", f"/v1/nodes/{node[:20]}", {}),
            ("south", "DELETE", f"/v1/tokens/{ids['token'][:9]}", {}),
        ]  # fmt: skip

    for theirs, unknown in zip(asked(world.ids), asked(UNKNOWN), strict=True):
        answers: list[tuple[int, str]] = []
        for caller, method, path, what in (theirs, unknown):
            with world.http(world.tokens[caller]) as http:
                answer = http.request(method, path, **what)
                said = _blank(world, answer.text).replace(world.ids["node"][:20], "<node>")
                said = said.replace(UNKNOWN["node"][:20], "<node>").replace(world.ids["job"][:12], "<job>")
                answers.append((answer.status_code, said.replace(UNKNOWN["job"][:12], "<job>")))
        assert answers[0] == answers[1], theirs


def test_no_answer_shows_a_caller_what_is_somebody_elses(world: World) -> None:
    theirs = {
        "bob": [world.ids["job"][4:], world.ids["array"], SECRET, world.ids["name"], '"north"', '"south"'],
        "south": [world.ids["job"][4:], world.ids["array"], SECRET, world.ids["node"], world.ids["token"], '"ann"'],
        "north": [world.ids["job"][4:], world.ids["array"], world.other_node, '"ann"', '"south"'],
    }
    for caller, words in theirs.items():
        for route in ROUTES:
            if route.method == "GET" and route.path != "/healthz":
                mine = {**UNKNOWN, "node": world.ids["node"] if caller != "south" else world.other_node}
                said = world.ask(caller, route, mine).text
                assert not [word for word in words if word in said], f"{caller}: {route.method} {route.path}"
    # and what is their own is shown
    assert world.ids["job"] in world.ask("ann", _route("GET", "/v1/jobs"), UNKNOWN).text
    assert world.ids["job"] in world.ask("ann", _route("GET", "/v1/events"), UNKNOWN).text
    seen = world.ask("north", _route("GET", "/v1/nodes"), UNKNOWN).json()
    assert [node["id"] for node in seen] == [world.ids["node"]] and seen[0]["operator"] == "north"
    assert world.ids["node"] in world.ask("north", _route("GET", "/v1/events"), UNKNOWN).text


def test_a_user_sees_machines_without_their_private_facts(world: World) -> None:
    seen = {one["id"]: one for one in world.ask("bob", _route("GET", "/v1/nodes"), UNKNOWN).json()}
    all_of_it = {one["id"]: one for one in world.ask("chief", _route("GET", "/v1/nodes"), UNKNOWN).json()}
    assert set(seen) == set(all_of_it) and any(one["hostname"] for one in all_of_it.values())
    for node in seen.values():
        private = {name: node[name] for name in ("hostname", "cause", "load", "operator", "draining_because", "events")}
        assert not any(private.values()) and node["silent_ms"] is None
        assert world.ids["attempt"] not in node["attempts"]
    busy = next(one for one in all_of_it.values() if world.ids["attempt"] in one["attempts"])
    # the room that others take is a fact of the network; who takes it is not
    assert seen[busy["id"]]["holds"] == busy["holds"] > 0
    mine = {one["id"]: one for one in world.ask("ann", _route("GET", "/v1/nodes"), UNKNOWN).json()}
    assert world.ids["attempt"] in mine[busy["id"]]["attempts"]


def test_a_node_operator_drains_its_own_node(world: World) -> None:
    drain = _route("POST", "/v1/nodes/{node}/drain")
    mine = {**UNKNOWN, "node": world.other_node}
    assert world.ask("south", drain, mine).json()["drained"] is True
    assert world.ask("south", drain, mine, params={"on": "false"}).json()["drained"] is False


def test_whoever_acts_for_an_owner_does_what_that_owner_may_do(world: World) -> None:
    for caller in ("", "chief"):
        token = world.tokens.get(caller) or world.client("")._transport.endpoint.token
        with world.http(token) as http:
            http.headers[OWNER_HEADER] = "bob"
            assert http.get(f"/v1/jobs/{world.ids['job']}").status_code == 404
            for method, path in (
                ("POST", "/v1/tokens"),
                ("POST", f"/v1/nodes/{world.ids['node']}/drain"),
                ("GET", "/metrics"),
                ("GET", "/v1/doctor"),
                ("GET", "/v1/access"),
            ):
                assert http.request(method, path).status_code == 403, path
            assert '"hostname":""' in http.get("/v1/nodes").text
            http.headers[OWNER_HEADER] = "ann"
            assert http.get(f"/v1/jobs/{world.ids['job']}").status_code == 200
    # and nobody else acts for others
    with world.http(world.tokens["bob"]) as http:
        assert http.get("/v1/jobs", headers={OWNER_HEADER: "ann"}).json()["code"] == "forbidden"
        assert http.get("/v1/jobs", headers={OWNER_HEADER: "bob"}).status_code == 200


@pytest.mark.parametrize("name", ["admin", "Admin", "ADMIN", "root", "network operator", "node_operator", "holdfast"])
def test_no_owner_has_a_name_of_the_networks_own(world: World, name: str) -> None:
    with world.http(world.tokens["chief"]) as http:
        for answer in (
            http.post("/v1/access", json={"role": "user", "owner": name}),
            http.post("/v1/access", json={"role": "node-operator", "owner": name}),
            http.post("/v1/jobs", json=JOB, headers={OWNER_HEADER: name}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
            assert "reserved" in answer.json()["says"]


def _route(method: str, path: str) -> Route:
    return next(one for one in ROUTES if (one.method, one.path) == (method, path))


# --- tokens ---


def test_a_stream_ends_when_the_token_of_its_reader_is_revoked(world: World) -> None:
    admin = world.client("")
    made = admin.access.create("user", owner="ann")
    with ExitStack() as stack:
        http: httpx.Client = stack.enter_context(world.http(made.token))
        opened: AbstractContextManager[httpx.Response] = http.stream("GET", "/v1/events", params={"follow": "true"})
        lines = stack.enter_context(opened).iter_raw()
        assert next(lines)
        admin.access.revoke(made.id)
        rest = b"".join(lines)
        assert END not in rest
        assert http.get("/v1/jobs").status_code == 401


def test_a_revoked_token_takes_its_join_tokens_with_it(world: World) -> None:
    admin = world.client("")
    made = admin.access.create("node-operator", owner="west")
    joins = world.client(made.token).tokens.create()
    assert [one.state for one in admin.tokens.list() if one.id == joins.id] == ["good"]
    admin.access.revoke(made.id)
    assert [one.state for one in admin.tokens.list() if one.id == joins.id] == ["revoked"]


def test_a_join_token_is_good_for_no_longer_than_the_token_that_made_it(world: World) -> None:
    made = world.client("").access.create("node-operator", owner="west", ttl_ms=60_000)
    client = world.client(made.token)
    long, short = client.tokens.create(ttl_ms=3_600_000), client.tokens.create(ttl_ms=1_000)
    assert long.left_ms is not None and long.left_ms <= 60_000
    assert short.left_ms is not None and short.left_ms <= 1_000


def test_the_journal_says_to_network_operators_who_made_and_revoked_a_token(world: World) -> None:
    admin = world.client("")
    made = admin.access.create("user", owner="zoe", ttl_ms=60_000)
    admin.access.revoke(made.id)
    told = [(event.kind, event.text) for event in admin.events() if made.id in event.text]
    assert told == [
        ("access.made", f"access token {made.id} of zoe (user) was made by admin, for 60 s"),
        ("access.revoked", f"access token {made.id} of zoe (user) was revoked by admin"),
    ]
    for name in ("ann", "north"):
        assert not [event for event in world.client(world.tokens[name]).events() if event.kind.startswith("access.")]


def test_two_callers_with_one_key_get_two_tokens(world: World) -> None:
    made = {name: world.client(world.tokens[name]).tokens.create(key="the same").token for name in ("north", "south")}
    assert made["north"] != made["south"]
    again = world.client(world.tokens["north"]).tokens.create(key="the same").token
    assert again == made["north"]


def test_a_token_ends_with_its_lifetime() -> None:
    with Network(nodes=1) as network:
        made = network.client().access.create("user", owner="ann", ttl_ms=3_600_000)
        with httpx.Client(
            transport=network.door, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {made.token}"}
        ) as http:
            network.pass_time(3_500)
            assert http.get("/v1/jobs").status_code == 200
            network.pass_time(101)
            assert http.get("/v1/jobs").status_code == 401
        listed = network.client().access.list()[0]
        assert (listed.state, listed.left_ms) == ("expired", 0)


def test_tokens_are_kept_by_their_hash_and_outlive_the_process(tmp_path: Path) -> None:
    with LocalNetwork(tmp_path) as network:
        url = network.start_orchestrator().url
        admin = network.client()
        good = admin.access.create("user", owner="ann")
        bad = admin.access.create("user", owner="bob")
        admin.access.revoke(bad.id)
        network.restart_orchestrator()

        def status(token: str) -> int:
            return httpx.get(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {token}"}, timeout=30).status_code

        wait_for(lambda: status(good.token) == 200, "the token to be known again")
        assert status(bad.token) == 401
        # one letter less, one more, another one
        for wrong in (good.token[:-1], good.token + "A", good.token[:-1] + ("A" if good.token[-1] != "A" else "B")):
            assert status(wrong) == 401
        secret = good.token[len("hfr_") + 12 :].encode()
        for kept in (*tmp_path.rglob("*.log"), *(tmp_path / "home" / "orchestrator").rglob("*")):
            assert not kept.is_file() or secret not in kept.read_bytes(), kept


# --- the document ---


def test_the_openapi_document_names_the_roles_of_each_route(world: World) -> None:
    with world.http(world.tokens["bob"]) as http:
        answer = http.get("/schema/openapi.json")
    if answer.status_code == 404:
        return  # a virtual network serves no document
    document = answer.json()
    for route in ROUTES:
        found = document["paths"][route.path][route.method.lower()].get("security")
        assert found == [{"token": [role]} for role in sorted(route.roles)] or (not route.roles and not found)
