"""Both clients ask again when that is safe, and never send a job twice or show a line twice."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.cli import completion_values
from holdfast.client import Client, Endpoint
from holdfast.client.async_client import AsyncClient
from holdfast.client.async_transport import AsyncTransport
from holdfast.client.retry import Patience
from holdfast.client.transport import Transport
from holdfast.diagnostics.reach import Reached
from holdfast.errors import Busy, Garbled, Misconfigured, NotAllowed, NotFound, Refused, Unreachable
from holdfast.wire.errors import ErrorView, FailureView
from holdfast.wire.http import JobView, LogLine

pytest_plugins = ["both_clients"]
pytestmark = pytest.mark.spec("J14")

JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="queued", waiting="", recovery="restart",
    priority=5,
    submitted_ms=1, ended_ms=None, verdict=None, failure=None, result_sha256=None, result_bytes=None,
    exit_code=None, attempts_made=0,
)  # fmt: skip


class Time:
    """A clock that only moves when someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def pass_by(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


ClientOf = Callable[..., Any]


@pytest.fixture
def client_of(either: Any) -> ClientOf:
    def made(answer: Callable[[httpx.Request], httpx.Response], time: Time, give_up_s: float = 10) -> Any:
        endpoint, patience = Endpoint("http://127.0.0.1:1", "secret"), Patience(give_up_s=give_up_s)
        how: dict[str, Any] = {"wire": httpx.MockTransport(answer), "clock": lambda: time.now, "draw": lambda: 1.0}

        async def sleep(seconds: float) -> None:
            time.pass_by(seconds)

        return either(
            lambda: Client.over(Transport(endpoint, patience, sleep=time.pass_by, **how)),
            lambda: AsyncClient.over(AsyncTransport(endpoint, patience, sleep=sleep, **how)),
        )

    return made


def json(value: object, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, content=msgspec.json.encode(value), headers=headers)


def test_a_submit_whose_answer_was_lost_is_repeated_under_the_same_key(client_of: ClientOf) -> None:
    # given an orchestrator that takes the job, and whose answer is lost twice on the way
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["Idempotency-Key"], msgspec.json.decode(request.content)["key"]))
        if len(seen) == 1:
            raise httpx.ReadError("connection reset", request=request)
        if len(seen) == 2:
            return json(ErrorView("try_again", "a new leader is being chosen"), 503)
        return json(JOB)

    # when it is submitted
    job = client_of(answer, Time()).jobs.submit(["true"])

    # then all three tries carried one key, in header and body
    assert job.id == "job_1"
    assert len(seen) == 3
    assert len({key for pair in seen for key in pair}) == 1


def test_two_submits_are_two_jobs_and_a_key_of_ones_own_is_kept(client_of: ClientOf) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return json(JOB)

    client = client_of(answer, Time())
    client.jobs.submit(["true"])
    client.jobs.submit(["true"])
    client.jobs.submit(["true"], key="nightly-7")

    assert len(set(keys)) == 3
    assert keys[2] == "nightly-7"


def test_waits_grow_to_a_ceiling_and_patience_has_an_end(client_of: ClientOf) -> None:
    # given nobody who answers
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    time = Time()

    # when something is asked, then the error names the place and says what to do
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1") as caught:
        client_of(answer, time, give_up_s=10).jobs.get("job_1")
    assert "holdfast up" in caught.value.hint

    # and the waits doubled to their ceiling and ended with the patience
    assert time.slept[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(time.slept) == 2.0
    assert sum(time.slept) == pytest.approx(10)


def test_retry_after_is_respected(client_of: ClientOf) -> None:
    answers = [json(ErrorView("busy", "too many"), 429, **{"Retry-After": "3"}), json(JOB)]
    time = Time()

    client_of(lambda _: answers.pop(0), time).jobs.get("job_1")

    assert time.slept == [3.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, NotAllowed), (403, NotAllowed), (404, NotFound), (400, Refused), (409, Refused), (500, Garbled),
        (503, Busy),
    ],
)  # fmt: skip
def test_an_error_answer_becomes_the_exception_with_its_code(
    client_of: ClientOf, status: int, kind: type[Exception]
) -> None:
    client = client_of(lambda _: json(ErrorView("some_code", "it is so", "do this"), status), Time(), give_up_s=0)

    with pytest.raises(kind) as caught:
        client.jobs.get("job_1")

    assert (caught.value.code, caught.value.says, caught.value.hint) == ("some_code", "it is so", "do this")  # type: ignore[attr-defined]


@pytest.mark.spec("J13")
def test_a_refused_job_carries_its_failure(client_of: ClientOf) -> None:
    failure = FailureView("no_fit", "no machine could", "64 GPUs asked, 8 are the most", "user", False, False)
    client = client_of(lambda _: json(ErrorView("no_fit", "refused", "", failure), 422), Time())

    with pytest.raises(Refused) as caught:
        client.jobs.submit(["true"], gpus=64)

    assert caught.value.failure == failure


def test_an_answer_of_another_shape_is_said_to_be_garbled(client_of: ClientOf) -> None:
    with pytest.raises(Garbled, match="makes no sense"):
        client_of(lambda _: json({"what": "ever"}), Time()).jobs.get("job_1")


# --- streams ---


def line(number: int) -> bytes:
    data = msgspec.json.encode(LogLine("att_1.1", "stdout", number, f"line {number}\n"))
    return b"id: %d\ndata: %s\n\n" % (number, data)


END = b"event: end\ndata: {}\n\n"


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that comes in these pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def cut(*pieces: bytes) -> httpx.Response:
    """A body that breaks off after its pieces."""

    def body() -> Iterator[bytes]:
        yield from pieces
        raise httpx.ReadError("connection reset")

    return httpx.Response(200, stream=Pieces(body()))


class Log:
    """An orchestrator with five lines of output, which behaves as told at each connection."""

    def __init__(self, *connections: Callable[[int], httpx.Response]) -> None:
        self._connections = list(connections)
        self.resumed_at: list[str | None] = []
        self.job = JOB

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/logs"):
            return json(self.job)
        self.resumed_at.append(request.headers.get("Last-Event-ID"))
        return self._connections.pop(0)(int(self.resumed_at[-1] or 0) + 1)


def whole(first: int) -> httpx.Response:
    return httpx.Response(200, stream=Pieces([*(line(n) for n in range(first, 6)), END]))


@pytest.mark.spec("J4")
def test_a_stream_cut_within_an_event_goes_on_behind_the_last_whole_one(client_of: ClientOf) -> None:
    # given a connection that breaks in the middle of line 3, and one that is refused
    torn = line(3)[:-9]
    log = Log(
        lambda _: cut(line(1), line(2) + torn),
        lambda _: json(ErrorView("busy", "restarting"), 503),
        whole,
    )

    # when the log is read to its end
    texts = [piece.text for piece in client_of(log, Time()).jobs.logs("job_1")]

    # then every line came once, and the stream was resumed by the last id
    assert texts == [f"line {n}\n" for n in range(1, 6)]
    assert log.resumed_at == [None, "2", "2"]


@pytest.mark.spec("J4")
def test_an_orchestrator_that_stops_in_good_order_does_not_end_what_is_followed(client_of: ClientOf) -> None:
    # given an orchestrator that closes its streams as it shuts down, with the job still running
    def shutting_down(first: int) -> httpx.Response:
        return httpx.Response(200, stream=Pieces([line(first), line(first + 1)]))

    log = Log(shutting_down, shutting_down, whole)

    # when the log is followed
    texts = [piece.text for piece in client_of(log, Time()).jobs.logs("job_1", follow=True)]

    # then it goes on until the stream itself says that it ended
    assert texts == [f"line {n}\n" for n in range(1, 6)]


def test_a_quiet_stream_that_lives_keeps_its_patience(client_of: ClientOf) -> None:
    # given a stream that carries nothing but comments for longer than the patience, and then breaks
    time = Time()

    def quiet(_: int) -> httpx.Response:
        def comments() -> Iterator[bytes]:
            for _ in range(10):
                time.now += 9
                yield b": alive\n\n"
            raise httpx.ReadError("connection reset")

        return httpx.Response(200, stream=Pieces(comments()))

    log = Log(quiet, lambda _: json(ErrorView("busy", "restarting"), 503), whole)

    # when it is followed, then it is resumed as if it had broken at once
    texts = [piece.text for piece in client_of(log, time).jobs.logs("job_1", follow=True)]
    assert len(texts) == 5


def test_a_stream_that_never_gets_anywhere_is_given_up(client_of: ClientOf) -> None:
    def empty(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Pieces([]))

    with pytest.raises(Unreachable, match="keeps ending"):
        list(client_of(empty, Time()).jobs.logs("job_1"))


@pytest.mark.spec("J4")
def test_a_line_is_not_cut_at_unicode_line_separators(client_of: ClientOf) -> None:
    text = "one\u2028still one\x85and still\n"
    data = msgspec.json.encode(LogLine("att_1.1", "stdout", 0, text))

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Pieces([b": hello\r\nid: 1\r\ndata:" + data + b"\r\n\r\n", END]))

    assert [piece.text for piece in client_of(answer, Time()).jobs.logs("job_1")] == [text]


def test_the_token_travels_in_the_header_and_never_in_the_address(client_of: ClientOf) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return json([])

    client = client_of(answer, Time())
    client.nodes.list()

    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert "secret" not in str(seen[0].url)
    assert "secret" not in repr(Endpoint("http://127.0.0.1:1", "secret"))


def test_an_id_cannot_name_another_path(client_of: ClientOf) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return json(JOB)

    client_of(answer, Time()).jobs.get("../../v1/nodes?x=1")

    assert seen == ["/v1/jobs/..%2F..%2Fv1%2Fnodes%3Fx%3D1"]


def test_an_address_where_nobody_can_be_is_refused_at_once() -> None:
    for url in ("nonsense", "127.0.0.1:7420", "ftp://127.0.0.1", "http://", ""):
        with pytest.raises(Misconfigured, match="not the address"):
            Client(url)
        with pytest.raises(Misconfigured, match="not the address"):
            AsyncClient(url)


@pytest.mark.spec("N6")
def test_a_token_goes_over_plain_http_to_this_machine_only() -> None:
    for host in ("lab.example", "127.0.0.1.lab.example", "localhost.lab.example", "10.0.0.1", "0.0.0.0", "[fe80::1]"):
        for make in (Client, AsyncClient):
            with pytest.raises(Misconfigured, match="plain HTTP") as caught:
                make(f"http://{host}:7420", "secret")
            assert caught.value.code == "plain_http"
            assert "secret" not in f"{caught.value.says} {caught.value.hint}"
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"):
        Client(f"http://{host}:7420", "secret").close()
    # and nothing is said where nothing could be read
    Client("http://lab.example:7420").close()
    Client("https://lab.example:7420", "secret").close()


@pytest.mark.spec("N6")
def test_neither_doctor_nor_the_shell_sends_a_token_over_plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []
    monkeypatch.setattr("socket.create_connection", lambda *where, **_: dialled.append(where))
    monkeypatch.setenv("HOLDFAST_URL", "http://lab.example:7420")
    monkeypatch.setenv("HOLDFAST_ADMIN_TOKEN", "secret")

    found = Reached(Endpoint("http://lab.example:7420", "secret"))._token()
    assert found.state == "fail" and "plain HTTP" in found.says and "https://" in found.do
    with pytest.raises(Misconfigured, match="plain HTTP"):
        completion_values._asked("/v1/nodes")
    assert dialled == []


def test_bytes_that_cannot_be_read_are_said_to_be_garbled(client_of: ClientOf) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Pieces([b"no gzip"]))

    client = client_of(answer, Time())
    with pytest.raises(Garbled, match="cannot be read"):
        client.jobs.get("job_1")
    with pytest.raises(Garbled, match="cannot be read"):
        list(client.jobs.logs("job_1"))
