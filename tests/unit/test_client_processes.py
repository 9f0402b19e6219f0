"""A client that is used in a forked process, or in a second event loop, gets connections of its own there."""

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import msgspec
import pytest

import holdfast
from holdfast.wire.http import EventView, JobView

pytestmark = pytest.mark.spec("J14")

JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="queued", waiting="", recovery="restart", priority=5,
    submitted_ms=1, ended_ms=None, verdict=None, failure=None, result_sha256=None, result_bytes=None, exit_code=None,
    attempts_made=0,
)  # fmt: skip


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, int]] = []
        """What was asked for, and over which connection."""
        self.resumed = threading.Event()
        """Somebody asked for the rest of a stream, over another connection."""
        self.waited_in_vain = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def lines(self) -> dict[str, int]:
        return dict(self.asked)


class Handler(BaseHTTPRequestHandler):
    """Answers with the job that is asked for; keeps connections, as the orchestrator does."""

    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        if self.path.startswith("/v1/events"):
            return self._stream()
        name = self.path.rpartition("/")[2]
        self.server.asked.append((name, self.client_address[1]))
        body = msgspec.json.encode(msgspec.structs.replace(JOB, id=name))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        """Two events. The second comes to who asks again, and only then to who asked first."""
        first = self.headers["Last-Event-ID"] is None
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        if first:
            self.wfile.write(_event(1))
            self.server.waited_in_vain = not self.server.resumed.wait(10)
        self.wfile.write(_event(2) + b"event: end\ndata: {}\n\n")
        self.close_connection = True
        if not first:
            self.server.resumed.set()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def _event(number: int) -> bytes:
    data = msgspec.json.encode(EventView(number, 0, "job.queued", "", None, None, None))
    return f"id: {number}\n".encode() + b"data: " + data + b"\n\n"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def ran(script: str, url: str) -> list[str]:
    """What a program prints that forks; it is one of its own, for nothing that runs tests may be forked."""
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FORKS = """
import functools, os, sys, httpx, holdfast

found = holdfast.Client
# However long it takes: an idle connection is not given up, as it would be after seconds.
httpx.Client = functools.partial(httpx.Client, limits=httpx.Limits(keepalive_expiry=600))
client = found(sys.argv[1])
client.jobs.get("before")
if (child := os.fork()) == 0:
    client.jobs.get("child")
    client.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
client.jobs.get("after")
"""


def test_a_forked_process_has_its_own_connection_and_leaves_its_parent_the_old_one(server: Server) -> None:
    ran(FORKS, server.url)
    lines = server.lines()
    assert set(lines) == {"before", "child", "after"}
    assert lines["child"] != lines["before"], "two processes read from one connection"
    assert lines["after"] == lines["before"], "the child closed what was its parent's"


FORKS_WHILE_IT_FOLLOWS = """
import os, sys, holdfast

events = holdfast.Client(sys.argv[1]).events(follow=True)
first = next(events).seq
if (child := os.fork()) == 0:
    print("child", first, *(event.seq for event in events), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("parent", first, *(event.seq for event in events))
"""


@pytest.mark.spec("J4")
def test_a_stream_that_was_open_at_a_fork_goes_on_whole_in_both(server: Server) -> None:
    assert ran(FORKS_WHILE_IT_FOLLOWS, server.url) == ["child", "1", "2", "parent", "1", "2"]
    assert not server.waited_in_vain, "the child read what was sent to its parent"


def test_a_client_with_await_works_in_one_event_loop_after_the_other(server: Server) -> None:
    # given a client that an event loop used, which is closed
    client = holdfast.AsyncClient(server.url)
    for name in ("first", "second", "third"):
        # when another asks with it, then there is an answer each time, over a connection of that loop
        assert asyncio.run(client.jobs.get(name)).id == name
    assert len(set(server.lines().values())) == 3
    asyncio.run(client.close())


def test_two_event_loops_at_a_time_do_not_share_connections(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # given two loops in two threads, and one client, which gives up no idle connection however long it takes
    kept = functools.partial(httpx.AsyncClient, limits=httpx.Limits(keepalive_expiry=600))
    monkeypatch.setattr(httpx, "AsyncClient", kept)
    client = holdfast.AsyncClient(server.url)
    both = threading.Barrier(2, timeout=30)

    async def asks(name: str) -> None:
        await client.jobs.get(name)
        both.wait()  # neither loop ends before the other has asked
        await client.jobs.get(f"{name}-again")

    threads = [threading.Thread(target=lambda name=name: asyncio.run(asks(name))) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # then each kept to its own connection, and used that again
    lines = server.lines()
    assert lines["one"] == lines["one-again"] != lines["two"] == lines["two-again"]
    asyncio.run(client.close())
