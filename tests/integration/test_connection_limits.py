"""What a stranger can send to an HTTP listener, and when it is refused: a real server on loopback, byte by byte."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from holdfast.blobs.folder import FolderStore
from holdfast.blobs.keys import incoming_key
from holdfast.blobs.signing import LinkSigner
from holdfast.identity.admin import AdminToken
from holdfast.orchestrator.api import app as people
from holdfast.orchestrator.api.node_files_api import NodeFilesApi, make_data_app
from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.orchestrator.connections import http_protocol, http_server
from holdfast.orchestrator.connections.bodies import BodyBudget
from holdfast.orchestrator.connections.early_answers import Early, EarlyAnswers, no_answers
from holdfast.orchestrator.connections.first_bytes import FirstBytes
from holdfast.orchestrator.connections.http_server import HttpServer
from holdfast.orchestrator.connections.node_port import NodePort
from holdfast.orchestrator.connections.recognition import recognized
from holdfast.orchestrator.content.blob_http import PREFIX, BlobTransferApp
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.sessions import Sessions
from holdfast.testing.processes import wait_for

ANSWER_S = 30.0
LARGE = 64 << 20
"""More than the kernel keeps of an answer that nobody reads."""
HEAD = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


async def _answer(send: Any, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _lifespan(receive: Any, send: Any) -> None:
    for _ in range(2):
        message = await receive()
        await send({"type": message["type"] + ".complete"})


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; `/known` is authenticated; `/read` reads the body first; `/large` is answered at length."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if scope["path"] in ("/known", "/read"):
        recognized(scope)
    if scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        await send({"type": "http.response.body", "body": bytes(LARGE)})
        return
    if scope["path"] == "/read":
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
    await _answer(send)


@asynccontextmanager
async def serving(app: App = hello, early: Early = no_answers, **limits: int) -> AsyncIterator[tuple[HttpServer, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    begun = asyncio.Event()

    class Served(HttpServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            begun.set()

    chosen = ConnectionLimits(**limits)
    server = Served("test", app, None, chosen, Metrics(), early)  # pyright: ignore[reportArgumentType]
    running = asyncio.create_task(server.serve([listening]), name="serve")
    async with asyncio.timeout(ANSWER_S):
        await begun.wait()
    try:
        yield server, listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def said(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes the connection, or resets it."""
    heard = b""
    async with asyncio.timeout(ANSWER_S):
        try:
            while part := await reader.read(65_536):
                heard += part
        except ConnectionError:
            return heard
    return heard


async def exchange(port: int, *parts: bytes) -> bytes:
    """Send the parts, each after an answer to the one before. Returns the rest until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(ANSWER_S):
        for part in parts[:-1]:
            writer.write(part)
            await reader.readuntil(b"ok")
    writer.write(parts[-1])
    heard = await said(reader)
    writer.close()
    return heard


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    return int(found[1]) if found else 0


# --- heads ---


@pytest.mark.spec("A12")
@pytest.mark.parametrize("before", [(), (HEAD + b"\r\n",)], ids=["first request", "second request"])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (HEAD + b"X: y\r\n" * 12 + b"\r\n", 431),
        (HEAD + b"X: " + b"y" * 2_000 + b"\r\n\r\n", 431),
        (HEAD + b"X: " + b"y" * 200_000, 431),
        (b"GET /" + b"y" * 200_000, 431),
        (b"\r\n" * 100_000, 431),
        (HEAD + b"X: y\r\n", 408),
        (b"G", 408),
        (b"\r\n", 408),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", 411),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=["many", "large", "endless", "endless url", "empty lines", "half", "a byte", "an empty line", "chunked", "no"],
)
def test_a_head_that_is_too_large_or_too_slow_is_refused_by_name(
    before: tuple[bytes, ...], sent: bytes, expected: int
) -> None:
    async def story() -> bytes:
        async with serving(head_ms_max=300, head_bytes_max=1_000, headers_max=10) as (_, port):
            return await exchange(port, *before, sent)

    answer = asyncio.run(story())
    assert status(answer) == expected
    body = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
    assert body["code"] == "bad_request" and body["hint"]


@pytest.mark.spec("A12")
@pytest.mark.parametrize("sent", [b"", HEAD[:5]], ids=["silent", "half"])
def test_a_head_within_the_limits_is_answered_however_it_is_cut(sent: bytes) -> None:
    async def story() -> bytes:
        async with serving(head_bytes_max=1_000, headers_max=10) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole = HEAD + b"X: y\r\n" * 8 + b"Connection: close\r\n\r\n"
            writer.write(sent)
            for at in range(len(sent), len(whole)):
                await writer.drain()
                writer.write(whole[at : at + 1])
            return await said(reader)

    assert status(asyncio.run(story())) == 200


@pytest.mark.spec("A12")
@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first request", "second request"])
def test_a_head_that_trickles_is_refused(before: bytes) -> None:
    async def story() -> bytes:
        async with serving(head_ms_max=300) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(before)
            if before:
                await reader.readuntil(b"ok")
            ended = asyncio.create_task(said(reader), name="hear")
            for at in range(1_000):
                writer.write(HEAD[at : at + 1] or b"x")
                if (await asyncio.wait({ended}, timeout=0.05))[0]:
                    break
            return await ended

    assert status(asyncio.run(story())) == 408


@pytest.mark.spec("A12")
@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first request", "second request"])
@pytest.mark.parametrize("sent", [HEAD, HEAD + b"X: " + b"y" * 2_000], ids=["slow", "large"])
def test_a_client_that_goes_on_sending_gets_the_reason(
    monkeypatch: pytest.MonkeyPatch, before: bytes, sent: bytes
) -> None:
    """A reset would overtake the answer."""
    for module in (http_protocol, http_server):
        monkeypatch.setattr(module, "LINGER_S", ANSWER_S)

    def refused(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as line:
            if before:
                line.sendall(before)
                while b"ok" not in line.recv(65_536):
                    pass
            line.sendall(sent)
            assert line.recv(1, socket.MSG_PEEK)
            for _ in range(3):
                line.sendall(b"y")
            return b"".join(iter(lambda: line.recv(65_536), b""))

    async def story() -> bytes:
        async with serving(head_ms_max=300, head_bytes_max=1_000) as (_, port):
            return await asyncio.to_thread(refused, port)

    assert status(asyncio.run(story())) in (408, 431)


@pytest.mark.spec("A12")
def test_of_many_that_were_refused_the_first_ones_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LINGER_S", ANSWER_S)
    monkeypatch.setattr(http_server, "LINGERING_MAX", 2)

    async def story() -> int:
        async with serving(head_bytes_max=1_000) as (server, port):
            for _ in range(5):
                assert status(await exchange(port, HEAD + b"X: " + b"y" * 2_000)) == 431
            return len(server.admission)

    assert asyncio.run(story()) == 2


@pytest.mark.spec("A12")
def test_a_refused_client_is_closed_soon() -> None:
    async def story(*before: bytes) -> None:
        async with serving(head_bytes_max=1_000) as (server, port):
            assert status(await exchange(port, *before, HEAD + b"X: " + b"y" * 2_000)) == 431
            await asyncio.to_thread(wait_for, lambda: not len(server.admission), "it to be closed", ANSWER_S)

    asyncio.run(story())
    asyncio.run(story(HEAD + b"\r\n"))


@pytest.mark.spec("A12")
def test_a_client_that_does_not_read_its_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "STALLED_S_MAX", 1.5)

    async def story() -> None:
        async with serving() as (server, port):
            # given a client that asks for much, and reads nothing of it
            with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as line:
                line.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
                await asyncio.to_thread(wait_for, lambda: len(server.admission), "it to be served", ANSWER_S)
                # then it is closed, and the answer is no longer kept in memory
                await asyncio.to_thread(wait_for, lambda: not len(server.admission), "it to be closed", ANSWER_S)
            # and one that reads slowly, and takes longer for all of it, gets all of it
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            heard = 0
            while part := await reader.read(1 << 20):
                heard += len(part)
                await asyncio.sleep(0.03)
            assert heard > LARGE

    asyncio.run(story())


@pytest.mark.spec("A12")
def test_too_many_requests_before_the_first_answer_end_the_connection() -> None:
    async def story() -> bytes:
        async with serving() as (_, port):
            return await exchange(port, (HEAD + b"\r\n") * (http_protocol.PIPELINED_MAX + 5))

    assert asyncio.run(story()).count(b"HTTP/1.1 200") <= http_protocol.PIPELINED_MAX


# --- bodies ---


@pytest.mark.spec("A12")
def test_a_body_is_not_read_before_it_is_asked_for() -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["method"] == "POST":
            asked.set()
            await answered.wait()
        await _answer(send, 200)

    async def story() -> int:
        async with serving(waits) as (server, port):
            # given a request whose body arrives while nobody has asked for it
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n")
            await asked.wait()
            [posting] = server.server_state.connections
            writer.write(bytes(10_000))
            # when others are served meanwhile
            for _ in range(3):
                assert status(await exchange(port, HEAD + b"Connection: close\r\n\r\n")) == 200
            read = len(posting.cycle.body)  # pyright: ignore
            answered.set()
            return read

    assert asyncio.run(story()) == 0


@pytest.mark.spec("A12")
def test_what_follows_an_early_answer_is_bounded_and_less_is_let_pass() -> None:
    async def story() -> tuple[bytes, bytes]:
        async with serving() as (_, port):
            head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
            short = await exchange(port, head % 50_000 + bytes(50_000), HEAD + b"Connection: close\r\n\r\n")
            long = await exchange(port, head % (64 << 20) + bytes(64 << 20))
            return short, long

    short, long = asyncio.run(story())
    # then a short body is dropped, and the connection serves the next request
    assert status(short) == 200
    # and a long one ends it
    assert long.count(b"HTTP/1.1") <= 1


@pytest.mark.spec("A12")
def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "PACE_S", 0.2)

    async def story() -> bytes:
        async with serving() as (_, port):
            return await exchange(port, b"POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{")

    assert status(asyncio.run(story())) == 408


@pytest.mark.spec("A12")
def test_bodies_in_memory_are_bounded_together() -> None:
    holding = asyncio.Event()

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        holding.set()
        try:
            while (await receive()).get("more_body"):
                pass
        except people.ApiError as wrong:
            await people.turn_away(wrong, send)
            return
        await _answer(send)

    async def story() -> tuple[bytes, bytes, bytes]:
        async with serving(BodyBudget(reads, 1_000)) as (_, port):  # pyright: ignore[reportArgumentType]
            head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % 1_000 + b"x")
            await holding.wait()
            second = await exchange(port, head % 1 + b"x")
            writer.write(b"x" * 999)
            first = await said(reader)
            return first, second, await exchange(port, head % 1_000 + bytes(1_000))

    first, second, third = asyncio.run(story())
    assert (status(first), status(second), status(third)) == (200, 503, 200)
    assert b"retry-after" in second.lower()


# --- connections ---


@pytest.mark.spec("A12")
def test_strangers_make_room_for_new_ones_and_known_callers_stay() -> None:
    async def story() -> tuple[list[bytes], bytes]:
        async with serving(strangers_per_address_max=4) as (server, port):
            known, ask = await asyncio.open_connection("127.0.0.1", port)
            ask.write(b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n")
            await known.readuntil(b"ok")
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            ends = [await said(reader) for reader, _ in strangers[:6]]
            assert server.admission.strangers == 4
            # and a new caller is served, and so is the known one
            assert status(await exchange(port, HEAD + b"Connection: close\r\n\r\n")) == 200
            ask.write(b"GET /known HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return ends, await said(known)

    ends, known = asyncio.run(story())
    assert ends == [b""] * 6
    assert status(known) == 200


@pytest.mark.spec("A12")
def test_one_address_cannot_take_all_places_with_a_token() -> None:
    async def story() -> list[int]:
        async with serving(connections_per_address_max=2) as (_, port):
            answers: list[int] = []
            lines: list[Any] = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n")
                answers.append(status(await reader.readuntil(b"\r\n")))
                lines.append(writer)
            return answers

    *first, last = asyncio.run(story())
    assert first == [200, 200] and last >= 500


@pytest.mark.spec("A12")
def test_a_full_listener_says_so() -> None:
    async def story() -> bytes:
        async with serving(connections_max=1) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"ok")
            return await exchange(port, b"")

    answer = asyncio.run(story())
    assert status(answer) == 503 and b"retry-after: 1" in answer


# --- early answers ---


EARLY = EarlyAnswers(lambda: (200, b"ok"), (401, {}, b"refused"))


@pytest.mark.spec("A12")
def test_early_answers_and_those_of_the_application_follow_each_other_on_one_connection() -> None:
    async def story() -> tuple[list[bytes], bytes]:
        async with serving(early=EARLY) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            heard: list[bytes] = []
            for head in (HEAD, HEAD, b"GET /large HTTP/1.1\r\n", HEAD):
                writer.write(head + b"\r\n")
                begin = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", begin)
                assert length is not None
                heard.append(begin[:12] + length[1])
                await reader.readexactly(int(length[1]))
            writer.close()
            return heard, await exchange(port, HEAD + b"\r\n", b"GET /v1/jobs HTTP/1.1\r\n\r\n")

    heard, refused = asyncio.run(story())
    assert heard == [b"HTTP/1.1 2002", b"HTTP/1.1 2002", b"HTTP/1.1 200%d" % LARGE, b"HTTP/1.1 2002"]
    assert status(refused) == 401 and refused.endswith(b"\r\n\r\nrefused")


@pytest.mark.spec("A12")
def test_after_an_early_answer_the_next_head_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "KEEP_ALIVE_S", 1.0)

    async def story() -> tuple[bytes, bytes]:
        async with serving(early=EARLY, head_ms_max=300) as (_, port):
            # given one that sends a byte of its next request, and one that sends nothing
            return await exchange(port, HEAD + b"\r\n", b"G"), await exchange(port, HEAD + b"\r\n", b"")

    half, silent = asyncio.run(story())
    assert status(half) == 408 and silent == b""


@pytest.mark.spec("A12")
def test_whoever_has_sent_its_request_is_not_closed_for_others() -> None:
    class Line:
        def __init__(self, line: socket.socket) -> None:
            self.line = line
            self.stood: list[str] = []

        def answered(self, found: bytes) -> bool:
            return False

        def half_sent(self) -> None:
            self.stood.append("half sent")

        def too_large(self) -> None:
            self.stood.append("too large")

        def gone(self) -> None:
            self.stood.append("gone")

    async def story() -> None:
        ready: list[Line] = []
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            waiting = FirstBytes[Line](False, 1_000, ready.append)
            line = Line(ours)
            waiting.add(line)
            assert not waiting.spared(line)
            theirs.sendall(HEAD)
            assert not waiting.spared(line) and ready == []
            theirs.sendall(b"\r\n")
            assert waiting.spared(line) and ready == [line]
            assert not waiting.spared(line), "it is served already"
            waiting.close()

    asyncio.run(story())


# --- authentication comes first ---


async def _asked(app: Any, path: str, method: str = "POST") -> int:
    """The status of the answer to a request whose body must not be read."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"12582912")]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"fence=1",
        "headers": headers, "root_path": "", "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.spec("A12")
def test_neither_listener_reads_a_body_without_a_token(tmp_path: Any) -> None:
    unused: Any = None
    sessions = Sessions(Fleet(), Metrics())
    files = make_data_app(NodeFilesApi(unused, sessions, unused, unused))
    api = people.make_app(unused, AdminToken.load_or_make(tmp_path / "admin.token"))

    async def story() -> set[int]:
        paths = [one.path for one in people.ROUTES if one.method == "POST"]
        found = {await _asked(api, path) for path in [*paths, "/nowhere"]}
        routes = ("missing", "links", "manifests", "checkpoint", "manifests/x/links", "inputs/x/link")
        found |= {await _asked(files, f"/node/v1/attempts/att_x/{route}") for route in routes}
        return found | {await _asked(files, "/nowhere")}

    assert asyncio.run(story()) in ({401}, {403})


def signed(path: Any, declared: bytes) -> list[Any]:
    """What a PUT to a signed URL for 5 bytes is answered. Its body must not be read."""
    signer = LinkSigner(b"s" * 32, PREFIX)
    app = BlobTransferApp(hello, FolderStore(path / "blobs", signer), signer)  # pyright: ignore[reportArgumentType]
    url = urlsplit(signer.make("PUT", incoming_key("att_x", sha256(b"hello").hexdigest()), 5, int(time.time()) + 60))
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    query = url.query.encode() if declared else b"size=5"
    headers = [(b"content-length", declared)] if declared else []
    scope = {"type": "http", "method": "PUT", "path": url.path, "query_string": query, "headers": headers}
    asyncio.run(app(scope, receive, send))  # pyright: ignore[reportArgumentType]
    return sent


@pytest.mark.spec("A12")
@pytest.mark.parametrize(("declared", "expected"), [(b"4", 422), (b"6", 422), (b"0", 422), (b"", 403)])
def test_a_signed_url_takes_the_declared_length_before_the_body(tmp_path: Any, declared: bytes, expected: int) -> None:
    assert signed(tmp_path, declared)[0]["status"] == expected


# --- the node port ---


@pytest.mark.spec("A12")
def test_the_node_port_closes_silent_connections_and_keeps_those_with_a_session() -> None:
    async def story() -> tuple[list[bytes], bool]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            place = listening.getsockname()
            limits = ConnectionLimits(node_connections_max=100, node_strangers_per_address_max=3, head_ms_max=60_000)
            port = NodePort(limits, Metrics())
            port.listens(place[1])
            watching = asyncio.create_task(port.run(), name="watch")
            ours = [await asyncio.open_connection(*place) for _ in range(2)]
            taken = [listening.accept()[0] for _ in ours]
            names = [f"ipv4:127.0.0.1:{writer.get_extra_info('sockname')[1]}" for _, writer in ours]
            with port.stream(names[0]) as proven, port.stream(names[1]):
                proven.recognized()
                strangers = [await asyncio.open_connection(*place) for _ in range(6)]
                taken += [listening.accept()[0] for _ in strangers]
                closing = [asyncio.ensure_future(reader.read()) for reader, _ in strangers]
                async with asyncio.timeout(ANSWER_S):
                    while sum(one.done() for one in closing) < 4:
                        await asyncio.wait(closing, timeout=0.2, return_when="FIRST_COMPLETED")
                alive = not any(reader.at_eof() for reader, _ in ours)
            watching.cancel()
            ended = [one.result() for one in closing if one.done()]
            for one in closing:
                one.cancel()
            for line in taken:
                line.close()
            return ended, alive

    ended, alive = asyncio.run(story())
    # then of the strangers and the one that waits, three are left, and the session and its connection are untouched
    assert ended[:4] == [b""] * 4 and alive


@pytest.mark.spec("A12")
def test_a_connection_without_a_stream_is_closed_after_a_while() -> None:
    async def story() -> tuple[bytes, float]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            place = listening.getsockname()
            port = NodePort(ConnectionLimits(head_ms_max=300), Metrics())
            port.listens(place[1])
            watching = asyncio.create_task(port.run(), name="watch")
            began = time.monotonic()
            reader, _ = await asyncio.open_connection(*place)
            with listening.accept()[0]:
                async with asyncio.timeout(ANSWER_S):
                    heard = await reader.read()
            watching.cancel()
            return heard, time.monotonic() - began

    heard, took_s = asyncio.run(story())
    assert heard == b"" and took_s >= 0.3
