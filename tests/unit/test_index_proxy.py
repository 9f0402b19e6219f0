"""The proxy of a build: it connects to the hosts on its list and to nothing else (SPEC A12, N5)."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from holdfast.node.attempt.index_proxy import IndexProxy, ParentProxy, target_of

pytestmark = pytest.mark.spec("A12", "N5")

ME = "me:s%20t"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Far:
    """A server that keeps what it is told, and answers the same to everybody."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.heard = b""
        self.guests = 0
        self._answer = answer

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._guest, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.guests += 1
        self.heard += await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        await writer.drain()
        writer.close()


async def ask(proxy: IndexProxy, *parts: bytes) -> bytes:
    """What a guest of the proxy gets for these bytes."""
    door = socket.create_server(("127.0.0.1", 0))
    server = await proxy.serve(door)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()
        server.close()


def played(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await story()

    asyncio.run(run())


def test_a_request_for_an_index_is_passed_on_alone_and_without_what_concerns_the_proxy() -> None:
    async def story() -> None:
        far = Far()
        port = await far.start()
        proxy = IndexProxy(frozenset({("127.0.0.1", port)}))
        request = f"GET http://127.0.0.1:{port}/simple/?a=b HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
        request += b"Proxy-Authorization: Basic eA==\r\nConnection: keep-alive\r\nAccept: text/html\r\n\r\n"
        assert await ask(proxy, request) == ANSWER
        lines = far.heard.decode().split("\r\n")
        assert lines[0] == "GET /simple/?a=b HTTP/1.1"
        assert set(lines[1:]) == {f"Host: 127.0.0.1:{port}", "Accept: text/html", "Connection: close", ""}
        assert proxy.refused == proxy.unreachable == []

    played(story)


def test_a_tunnel_to_an_index_carries_bytes_both_ways() -> None:
    async def story() -> None:
        far = Far()
        port = await far.start()
        proxy = IndexProxy(frozenset({("localhost", port)}), kib_s=1_000_000)
        said = await ask(proxy, f"CONNECT LOCALHOST.:{port} HTTP/1.1\r\n\r\n".encode(), b"hello\r\n\r\n")
        assert said == b"HTTP/1.1 200 Connection established\r\n\r\n" + ANSWER
        assert far.heard == b"hello\r\n\r\n"

    played(story)


@pytest.mark.parametrize("form", ["CONNECT 127.0.0.1:{port}", "GET http://127.0.0.1:{port}/"])
def test_any_other_host_or_port_is_refused_and_noted_without_a_connection(form: str) -> None:
    async def story() -> None:
        far = Far()
        port = await far.start()
        proxy = IndexProxy(frozenset({("127.0.0.1", port + 1), ("localhost", port)}))
        said = await ask(proxy, f"{form.format(port=port)} HTTP/1.1\r\n\r\n".encode())
        assert said.startswith(b"HTTP/1.1 403 ")
        assert proxy.refused == [f"127.0.0.1:{port}"] and proxy.unreachable == []
        assert far.guests == 0

    played(story)


@pytest.mark.parametrize(
    "request_line",
    ["POST http://HOST/ HTTP/1.1", "GET https://HOST/ HTTP/1.1", "GET / HTTP/1.1", "CONNECT a@HOST HTTP/1.1",
     "CONNECT HOST/x HTTP/1.1", "GET http://HOST/", "GET ftp://HOST/ HTTP/1.1"],
)  # fmt: skip
def test_what_is_neither_a_tunnel_nor_a_plain_fetch_is_refused(request_line: str) -> None:
    async def story() -> None:
        far = Far()
        port = await far.start()
        proxy = IndexProxy(frozenset({("127.0.0.1", port)}))
        said = await ask(proxy, request_line.replace("HOST", f"127.0.0.1:{port}").encode() + b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert far.guests == 0

    played(story)


def test_an_index_that_cannot_be_reached_is_noted() -> None:
    async def story() -> None:
        with socket.socket() as taken:  # bound, and not listening
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            proxy = IndexProxy(frozenset({("127.0.0.1", port)}))
            said = await ask(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            assert said.startswith(b"HTTP/1.1 502 ")
            assert proxy.unreachable == [f"127.0.0.1:{port}"] and proxy.refused == []

    played(story)


def test_a_head_without_end_is_cut_off() -> None:
    async def story() -> None:
        proxy = IndexProxy(frozenset())
        assert await ask(proxy, b"GET http://x.example/ HTTP/1.1\r\n" + b"a: b\r\n" * 20_000) == b""

    played(story)


@pytest.mark.parametrize("tunnel", [True, False])
def test_where_the_machine_has_a_proxy_that_one_is_asked(tunnel: bool) -> None:
    async def story() -> None:
        far = Far(b"HTTP/1.1 200 OK\r\n\r\nfar" if tunnel else ANSWER)
        port = await far.start()
        parent = ParentProxy(f"http://{ME}@127.0.0.1:{port}")
        proxy = IndexProxy(frozenset({("a.example", 80), ("::1", 443)}), lambda _: parent)
        if tunnel:
            said = await ask(proxy, b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n")
            assert said.endswith(b"established\r\n\r\nfar")
            assert far.heard.startswith(b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n")
        else:
            assert await ask(proxy, b"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n") == ANSWER
            assert far.heard.startswith(b"GET http://a.example/x HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic bWU6cyB0\r\n" in far.heard

    played(story)


def test_a_parent_that_refuses_a_tunnel_is_an_index_that_cannot_be_reached() -> None:
    async def story() -> None:
        far = Far(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        port = await far.start()
        proxy = IndexProxy(frozenset({("a.example", 443)}), lambda _: ParentProxy(f"http://127.0.0.1:{port}"))
        assert (await ask(proxy, b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
        assert proxy.unreachable == ["a.example:443"]

    played(story)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://A.example/simple", ("a.example", 443)),
        ("http://A.example/", ("a.example", 80)),
        ("https://u.example:p@a.example:8443/x", ("a.example", 8443)),
        ("file:///x", None),
        ("/x", None),
        ("https:///x", None),
        ("https://a.example:b:c/", None),
    ],
)
def test_the_target_of_an_address(url: str, target: tuple[str, int] | None) -> None:
    assert target_of(url) == target
