"""The connections for bulk bytes: they behave as httpx's own do, and whoever stops waiting gets the thread back."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from holdfast.blobs.lines import PART_BYTES, ThreadTransport
from holdfast.identity.certificates import Certificate, https_context
from holdfast.testing.processes import wait_for

pytestmark = pytest.mark.spec("N13")

T = TypeVar("T")
Serve = Callable[[socket.socket, bytes], bool]
"""Answers one request that was read up to the end of its head; whether the line stays open."""


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


@contextmanager
def server(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[int]]]:
    """A port, and how many requests each line had."""
    lines: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(line: socket.socket) -> None:
        number = len(lines)
        lines.append(0)
        with line:
            try:
                while True:
                    head = b""
                    while b"\r\n\r\n" not in head:
                        got = line.recv(65536)
                        if not got:
                            return
                        head += got
                    lines[number] += 1
                    if not serve(line, head):
                        return
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            if context is not None:
                try:
                    line = context.wrap_socket(line, server_side=True)
                except (ssl.SSLError, OSError):
                    continue
            threading.Thread(target=talk, args=(line,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], lines
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def ok(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%s\r\n" % (len(body), more) + body


def say(body: bytes) -> Serve:
    def serve(line: socket.socket, head: bytes) -> bool:
        line.sendall(ok(body))
        return True

    return serve


def lines_in_use() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("holdfast-line")}


def test_bytes_of_any_length_come_whole_and_the_line_is_used_again() -> None:
    for size in (0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 17):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

        async def story(port: int, body: bytes = body) -> None:
            async with httpx.AsyncClient(transport=ThreadTransport()) as http:
                for _ in range(3):
                    answer = await http.get(f"http://127.0.0.1:{port}/a?b=c")
                    assert answer.status_code == 200 and answer.content == body

        with server(say(body)) as (port, lines):
            run(story(port))
            assert lines == [3]


def test_a_request_goes_out_as_it_was_made() -> None:
    seen: list[bytes] = []

    def serve(line: socket.socket, head: bytes) -> bool:
        while not head.endswith(b"END"):
            head += line.recv(1 << 20)
        seen.append(head)
        line.sendall(ok(b""))
        return True

    async def story(port: int) -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            data = bytes(3_000_000) + b"END"
            assert (
                await http.put(f"http://127.0.0.1:{port}/k%C3%A9y?signature=1%2F2", content=data)
            ).status_code == 200

    with server(serve) as (port, _):
        run(story(port))
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /k%C3%A9y?signature=1%2F2 HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{port}".encode() in head.lower() and head.lower().count(b"host:") == 1
    assert b"content-length: 3000003" in head.lower() and len(body) == 3_000_003


def test_a_line_that_the_server_dropped_between_two_requests_is_opened_anew() -> None:
    def once(line: socket.socket, head: bytes) -> bool:
        line.sendall(ok(b"x"))
        return False

    async def story(port: int) -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            for _ in range(3):
                assert (await http.get(f"http://127.0.0.1:{port}/")).content == b"x"

    with server(once) as (port, lines):
        run(story(port))
        assert lines == [1, 1, 1]


def cut_in_the_middle(line: socket.socket, head: bytes) -> bool:
    line.sendall(ok(bytes(1000))[:-500])
    return False


def nonsense(line: socket.socket, head: bytes) -> bool:
    line.sendall(b"220 smtp.example ready\r\n\r\n")
    return False


def hang_up(line: socket.socket, head: bytes) -> bool:
    return False


@pytest.mark.parametrize("serve", [cut_in_the_middle, nonsense, hang_up])
def test_what_goes_wrong_is_an_error_of_the_line(serve: Serve) -> None:
    async def story(port: int) -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{port}/")

    with server(serve) as (port, _):
        run(story(port))


def test_nobody_there_is_an_error_of_the_line() -> None:
    async def story() -> None:
        async with httpx.AsyncClient(transport=ThreadTransport()) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("http://127.0.0.1:1/")

    run(story())


def test_whoever_stops_waiting_gets_the_thread_back() -> None:
    """Given a server that says nothing, and one that stops in the middle, when time is up, then no thread stays."""
    over = threading.Event()
    before = lines_in_use()  # some other test's, which nobody closed

    def silent(line: socket.socket, head: bytes) -> bool:
        over.wait(30)
        return False

    def halting(line: socket.socket, head: bytes) -> bool:
        line.sendall(ok(bytes(1000))[:-500])
        over.wait(30)
        return False

    async def story(port: int) -> None:
        transport = ThreadTransport()
        async with httpx.AsyncClient(transport=transport) as http:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(http.get(f"http://127.0.0.1:{port}/"), 0.2)

    for serve in (silent, halting):
        over.clear()
        with server(serve) as (port, _):
            run(story(port))
            wait_for(lambda: lines_in_use() <= before, "the threads to end", timeout_s=25)
            over.set()


def test_https_trusts_whom_it_was_told_to_and_nobody_else(tmp_path: Path) -> None:
    own = Certificate.load_or_make(tmp_path / "own", ["127.0.0.1"])
    other = Certificate.load_or_make(tmp_path / "other", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert_path, own.key_path)

    async def ask(port: int, trusted: ssl.SSLContext | None) -> bytes:
        async with httpx.AsyncClient(transport=ThreadTransport(trusted)) as http:
            return (await http.get(f"https://127.0.0.1:{port}/")).content

    with server(say(b"in private"), context) as (port, lines):
        assert run(ask(port, https_context(own.pem))) == b"in private"
        for trusted in (https_context(other.pem), None):
            with pytest.raises(httpx.TransportError):
                run(ask(port, trusted))
        assert sum(lines) == 1
