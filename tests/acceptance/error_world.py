"""Where errors are caused (error_causes.py): a network with two machines, servers that lie, and what a person was told.

Commands run in this process, through the same front door as from a shell; what starts a machine's own process, or
would leave something of it behind in this one, runs in a process of its own.
"""

import contextlib
import io
import multiprocessing
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx
from msgspec.structs import replace

from holdfast.cli import main
from holdfast.client import Client
from holdfast.errors import HoldfastError
from holdfast.identity.certificates import Certificate
from holdfast.model import Settings
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.testing.processes import LocalNetwork, free_port, wait_for

SMALL = {"memory_mib": 64, "disk_mib": 16, "cpu_milli": 100}
ONE_BY_ONE = httpx.Limits(max_keepalive_connections=0)
"""Each request has a line of its own: one that both sides keep for as long may be closed just as it is used again."""


class Said(NamedTuple):
    """What a person was told."""

    code: str
    says: str
    hint: str
    exit_code: int | None
    """None: it was said over HTTP."""
    status: int | None
    whole: str


def of_text(exit_code: int, text: str) -> Said:
    """From what a command printed: the last line that ends with a code in brackets, and what stands indented below."""
    lines = text.splitlines()
    at = max((n for n, line in enumerate(lines) if line.rstrip().endswith("]") and "[" in line), default=None)
    if at is None:
        return Said("", text, "", exit_code, None, text)
    says, _, code = lines[at].rstrip().rpartition("[")
    hint = lines[at + 1].strip() if at + 1 < len(lines) and lines[at + 1].startswith("  ") else ""
    return Said(code.rstrip("]"), says.strip(), hint, exit_code, None, text)


def of_answer(answer: httpx.Response) -> Said:
    view = answer.json()
    return Said(view["code"], view["says"], view["hint"], None, answer.status_code, answer.text)


def of_error(error: HoldfastError) -> Said:
    return Said(error.code, error.says, error.hint, error.exit_code, None, str(error))


class World:
    """A network with two machines, and things that are no network."""

    def __init__(self, network: LocalNetwork, folder: Path, used: str) -> None:
        """`used`: a token that one machine has joined with, and no other may."""
        self.network = network
        self.used = used
        self.folder = folder
        self.url = network.client().url
        self.token = (network.home / "orchestrator" / "admin.token").read_text().strip()
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=60, limits=ONE_BY_ONE,
            trust_env=False,
        )  # fmt: skip
        self._numbers = iter(range(1_000_000))
        self.liar = Liar()

    @cached_property
    def crowded(self) -> "Crowded":
        return Crowded(self)

    def close(self) -> None:
        self.http.close()
        if "crowded" in vars(self):
            self.crowded.close()
        self.liar.close()

    def fresh(self) -> Path:
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def typed(self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Said:
        return of_text(*typed(words, self.network.environment(env), cwd or self.network.desk))

    def started(self, *words: str, env: dict[str, str] | None = None) -> Said:
        """In a process of its own, for what serves: it must end by itself."""
        out = self.fresh() / "out"
        process = _fork.Process(target=aside, args=(words, self.network.environment(env), self.network.desk, out))
        process.start()
        process.join(100)
        if process.exitcode is None:
            process.kill()
            process.join()
        return of_text(process.exitcode if process.exitcode is not None else -1, out.read_text())

    def node(self, *words: str) -> Said:
        home = ("--home", str(self.fresh())) if "--home" not in words else ()
        where = ("--orchestrator", self.listen) if "--orchestrator" not in words else ()
        # Without a sandbox on its PATH none is tried, which would take longer than all the rest.
        env = {"PATH": str(self.fresh())}
        unsafe = () if "--engine" in words else ("--unsafe-process-runtime", "--engine", "none")
        return self.started("node", *where, *home, *unsafe, *words, env=env)

    @property
    def listen(self) -> str:
        assert self.network.orchestrator is not None
        return self.network.orchestrator.listen

    def up(self, data: Path, *words: str) -> Said:
        ports = [] if "--http" in words else ["--http", "127.0.0.1:0"]
        ports += [] if "--listen" in words else ["--listen", "127.0.0.1:0"]
        return self.started("up", "--data-dir", str(data), *ports, *words)

    def job(self, *argv: str, **fields: Any) -> str:
        answer = self.http.post("/v1/jobs", json={"argv": list(argv), **SMALL, **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def ended(self, *argv: str, **fields: Any) -> str:
        return self.wait(self.job(*argv, **fields))

    def wait(self, job: str) -> str:
        self.network.client().jobs.wait(job, timeout_s=100, check=False)
        return job

    def running(self, *argv: str, **fields: Any) -> tuple[str, str]:
        """A job that runs, and the name of its node."""
        job = self.job(*argv, **fields)
        return job, self.network.node_running(job).name

    def stop(self, job: str) -> None:
        self.http.post(f"/v1/jobs/{job}/stop")
        self.wait(job)

    @cached_property
    def maker(self) -> str:
        """A job that made a megabyte."""
        return self.ended("sh", "-c", "head -c 1000000 /dev/urandom > big")


_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["error_world", "holdfast.orchestrator.serve", "holdfast.node.run", "holdfast.node.link"])


def aside(words: Sequence[str], env: dict[str, str], cwd: Path, out: Path) -> None:
    """A command in this process and no other, its output in a file."""
    file = os.open(out, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["holdfast", *words]
    main.main()


def typed(words: Sequence[str], env: dict[str, str], cwd: Path) -> tuple[int, str]:
    """A command through the front door, in this process; its exit code and what it printed."""
    told = io.StringIO()
    before, arguments, here = dict(os.environ), sys.argv, Path.cwd()
    find = Client.find

    def impatiently(*where: Any, **rest: Any) -> Client:
        return find(*where, **{**rest, "patience_s": 0.2})

    try:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        sys.argv = ["holdfast", *words]
        impatient = patch.object(Client, "find", impatiently)
        with impatient, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            main.main()
    except SystemExit as end:
        return int(end.code or 0), told.getvalue()
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(before)
        os.chdir(here)


class Liar:
    """A server that answers whatever it is told to."""

    def __init__(self, date: str = "") -> None:
        """`date`: what time it says it is; else the right one."""

        class Handler(BaseHTTPRequestHandler):
            answer: tuple[int, bytes] = (200, b"")

            def do_GET(self) -> None:
                status, body = type(self).answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET

            def date_time_string(self, timestamp: float | None = None) -> str:
                return date or super().date_time_string(timestamp)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._handler = Handler
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answers(self, status: int, body: bytes) -> str:
        self._handler.answer = (status, body)
        return self.url

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def tls_door(folder: Path) -> Iterator[int]:
    """A port at which a certificate is shown that nobody pinned."""
    made = certificate(folder / "theirs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "certificate.pem", made / "certificate.key")
    with socket.create_server(("127.0.0.1", 0)) as door:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with (
                    contextlib.suppress(OSError),
                    door.accept()[0] as line,
                    context.wrap_socket(line, server_side=True),
                ):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield door.getsockname()[1]
        finally:
            over.set()
            with contextlib.suppress(OSError):
                socket.create_connection(door.getsockname(), 1).close()


def certificate(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Certificate.load_or_make(folder, ["127.0.0.1"])
    return folder


class Crowded:
    """One that takes two jobs in all, and one of an owner; and that reads from a bucket which does not let it."""

    def __init__(self, w: World) -> None:
        port, data = free_port(), w.fresh()
        keys = {"AWS_ENDPOINT_URL": w.liar.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        self._process = _fork.Process(target=serve_crowded, args=(data, port, w.network.environment(keys)))
        self._process.start()
        wait_for((data / "endpoint.json").exists, "it to serve")
        token = (data / "admin.token").read_text().strip()
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, timeout=60,
            limits=ONE_BY_ONE, trust_env=False,
        )  # fmt: skip

    def send(self, owner: str, **fields: Any) -> httpx.Response:
        return self._http.post("/v1/jobs", json={"argv": ["true"], **fields}, headers={"X-Holdfast-Owner": owner})

    def close(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.join(60)


def serve_crowded(data: Path, port: int, env: dict[str, str]) -> None:
    from holdfast.orchestrator.serve import run_orchestrator

    os.environ.clear()
    os.environ.update(env)
    settings = replace(Settings.test(), owner_live_jobs_max=1, live_jobs_max=2)
    config = OrchestratorConfig(
        data=data, http=f"127.0.0.1:{port}", nodes="127.0.0.1:0", settings=settings, s3_inputs=("s3://shut",),
        log_level="error",
    )  # fmt: skip
    run_orchestrator(config)
