"""A real way to cause each error that a person can cause: a command, a file, a request. See test_cli_errors.py.

Commands run in this process, through the same front door as from a shell; what starts a machine's own process, or
would leave something of it behind in this one, runs in a process of its own.
"""

import contextlib
import io
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
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
from holdfast.identity import tokens
from holdfast.identity.certificates import Certificate
from holdfast.model import Settings
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.testing.processes import LocalNetwork, free_port, wait_for

SMALL = {"memory_mib": 64, "disk_mib": 16, "cpu_milli": 100}
SMALL_FLAGS = ("--memory", "64MiB", "--disk", "16MiB", "--cpu", "100m")


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
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=30, trust_env=False
        )
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
        process.join(60)
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
        self.network.client().jobs.wait(job, timeout_s=60, check=False)
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
_fork.set_forkserver_preload(["error_causes", "holdfast.orchestrator.serve", "holdfast.node.run", "holdfast.node.link"])


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


Cause = Callable[[World], Said]
CAUSES: dict[str, Cause] = {}


def causes(code: str) -> Callable[[Cause], Cause]:
    def keep(cause: Cause) -> Cause:
        CAUSES[code] = cause
        return cause

    return keep


# --- the call ---

CAUSES["usage"] = lambda w: w.typed("run", "--memroy", "1GiB", "--", "true")
CAUSES["config"] = lambda w: w.typed("jobs", "--token-file", "nowhere")
CAUSES["no_context"] = lambda w: w.typed("jobs", env={"HOLDFAST_CONTEXT": "nowhere"})
CAUSES["no_endpoint"] = lambda w: w.typed("jobs", env={"HOLDFAST_HOME": str(w.fresh())})
CAUSES["unreachable"] = lambda w: w.typed("jobs", "--url", f"http://127.0.0.1:{free_port()}")


@causes("bad_contexts")
def _(w: World) -> Said:
    home = w.fresh()
    (home / "contexts.json").write_text("{")
    (home / "contexts.json").chmod(0o600)
    return w.typed("jobs", env={"HOLDFAST_HOME": str(home)})


CAUSES["file_unusable"] = lambda w: w.typed("init", "--", "true", cwd=Path("/proc"))


@causes("job_file_exists")
def _(w: World) -> Said:
    desk = w.fresh()
    w.typed("init", "--", "true", cwd=desk)
    return w.typed("init", "--", "true", cwd=desk)


@causes("bad_job_file")
def _(w: World) -> Said:
    (desk := w.fresh()).joinpath("holdfast.toml").write_text("comand = ['true']")
    return w.typed("run", cwd=desk)


@causes("context_exists")
def _(w: World) -> Said:
    env = {"HOLDFAST_HOME": str(w.fresh())}
    w.typed("context", "add", "lab", "--url", w.url, env=env)
    return w.typed("context", "add", "lab", "--url", w.url, env=env)


@causes("missing_part")
def _(w: World) -> Said:
    # given a Python that has no NumPy
    (folder := w.fresh()).joinpath("numpy.py").write_text("raise ModuleNotFoundError('no numpy', name='numpy')")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "network", "show", "any.yaml"],
        env=w.network.environment({"PYTHONPATH": str(folder)}), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return of_text(done.returncode, done.stdout + done.stderr)


@causes("untrusted")
def _(w: World) -> Said:
    ours = certificate(w.fresh()) / "certificate.pem"
    with tls_door(w.fresh()) as port:
        return w.typed("jobs", "--url", f"https://127.0.0.1:{port}", env={"HOLDFAST_CERTIFICATE": str(ours)})


CAUSES["garbled"] = lambda w: w.typed("jobs", "--url", w.liar.answers(200, b"hello"))
CAUSES["server_fault"] = lambda w: w.typed("jobs", "--url", w.liar.answers(500, b"oh"))
CAUSES["refused"] = lambda w: w.typed("jobs", "--url", w.liar.answers(418, b"a teapot"))
CAUSES["busy"] = lambda w: w.typed("jobs", "--url", w.liar.answers(503, b"later"))
CAUSES["store_unavailable"] = lambda w: w.typed(
    "jobs", "--url", w.liar.answers(503, b'{"code":"store_unavailable","says":"the store is away"}')
)


@causes("wait_expired")
def _(w: World) -> Said:
    job, _ = w.running("sleep", "60")
    try:
        w.network.client().jobs.wait(job, timeout_s=0.1)
        raise AssertionError("it ended")
    except HoldfastError as expired:
        return of_error(expired)
    finally:
        w.stop(job)


# --- folders and results ---

CAUSES["folder_is_home"] = lambda w: w.typed("run", "--", "true", cwd=Path("/"), env={"HOME": "/root"})


@causes("folder_too_large")
def _(w: World) -> Said:
    with (desk := w.fresh()).joinpath("large").open("wb") as file:
        file.truncate(2 << 30)
    return w.typed("run", "--", "true", cwd=desk)


@causes("folder_refused")
def _(w: World) -> Said:
    desk = w.fresh()
    (desk / "x").write_text("")
    Path(os.fsdecode(os.fsencode(desk) + b"/\xff")).touch()
    return w.typed("run", "--", "true", cwd=desk)


@causes("not_ended")
def _(w: World) -> Said:
    job, _ = w.running("sleep", "60")
    try:
        return w.typed("results", job)
    finally:
        w.stop(job)


@causes("in_the_way")
def _(w: World) -> Said:
    (other := w.fresh()).joinpath("mine").write_text("mine")
    return w.typed("results", w.maker, "--to", str(other))


@causes("disk_full")
def _(w: World) -> Said:
    small = w.fresh()
    job = w.maker
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=True)
    try:
        return w.typed("results", job, "--to", str(small / "results"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


CAUSES["disk_refused"] = lambda w: w.typed("results", w.maker, "--to", "/proc/results")


# --- neural networks ---


CAUSES["neural"] = lambda w: w.typed("network", "show", "nowhere.yaml")


@causes("topology")
def _(w: World) -> Said:
    (file := w.fresh() / "wrong.yaml").write_text("operators: 3\n")
    return w.typed("network", "show", str(file))


# --- what an orchestrator refuses ---

CAUSES["bad_request"] = lambda w: w.typed("run", "--class", "sometimes", "--", "true")
CAUSES["bad_cursor"] = lambda w: of_answer(w.http.get("/v1/events", headers={"Last-Event-ID": "none"}))
CAUSES["not_allowed"] = lambda w: w.typed("jobs", env={"HOLDFAST_ADMIN_TOKEN": "wrong"})
CAUSES["not_found"] = lambda w: w.typed("logs", "nothing-of-this-name")
CAUSES["no_such_token"] = lambda w: w.typed("token", "revoke", "tok_nothing")
CAUSES["method_not_allowed"] = lambda w: of_answer(w.http.delete("/v1/jobs"))
CAUSES["too_large"] = lambda w: of_answer(w.http.post("/v1/jobs", content=b" " * (17 << 20)))
CAUSES["no_fit"] = lambda w: w.typed("run", "--gpu", "64", "--", "true")
CAUSES["bucket_not_allowed"] = lambda w: w.typed("run", "--input", "a=s3://bucket/key", "--", "true")


@causes("ambiguous")
def _(w: World) -> Said:
    # given so many jobs that two ids begin with the same letter
    firsts: set[str] = set()
    while (job := w.job("true"))[4] not in firsts:
        firsts.add(job[4])
    return w.typed("job", "show", job[:5])


@causes("key_reused")
def _(w: World) -> Said:
    w.typed("run", *SMALL_FLAGS, "--detach", "--key", "once", "--", "true")
    return w.typed("run", *SMALL_FLAGS, "--detach", "--key", "once", "--", "false")


CAUSES["not_live"] = lambda w: w.typed("move", w.ended("true"), "--to", "ant")


def _moved(w: World, to: Callable[[str], str], **fields: Any) -> Said:
    job, node = w.running("sleep", "60", **fields)
    try:
        return w.typed("move", job, "--to", to(node))
    finally:
        w.stop(job)


def _other(node: str) -> str:
    return "bee" if node == "ant" else "ant"


CAUSES["already_there"] = lambda w: _moved(w, lambda node: node)
CAUSES["must_not_repeat"] = lambda w: _moved(w, _other, recovery="never")


@causes("node_not_ready")
def _(w: World) -> Said:
    nodes = w.network.client().nodes

    def drained(node: str) -> str:
        nodes.drain(_other(node))
        return _other(node)

    try:
        return _moved(w, drained)
    finally:
        for node in ("ant", "bee"):
            nodes.drain(node, on=False)


@causes("no_room")
def _(w: World) -> Said:
    # given a machine of which all cores are taken
    node = w.network.client().nodes.get("bee")
    filler, there = w.running("sleep", "60", cpu_milli=node.free["cpu_milli"])
    job = w.job("sleep", "60", cpu_milli=1_000)
    try:
        wait_for(lambda: w.network.node_running(job).name != there, "it to run on the other machine")
        return w.typed("move", job, "--to", there)
    finally:
        w.stop(filler)
        w.stop(job)


CAUSES["no_files"] = lambda w: w.typed("run", "--input", f"a=job:{w.ended('true')}", "--", "true")


# --- content ---


def _sent(w: World, content: bytes, claimed: bytes | None = None) -> httpx.Response:
    """Bytes as a blob, under the hash of `claimed`."""
    from hashlib import sha256

    name = sha256(claimed or content).hexdigest()
    urls = w.http.post("/v1/blobs/links", json={"blobs": [[name, len(content)]]}).json()["urls"]
    return w.http.put(urls[name], content=content)


@causes("blob_mismatch")
def _(w: World) -> Said:
    return of_answer(_sent(w, b"these bytes", b"other bytes"))


@causes("manifest_refused")
def _(w: World) -> Said:
    from hashlib import sha256

    assert _sent(w, b"no manifest").status_code < 300
    return of_answer(w.http.post("/v1/manifests", json={"manifest": sha256(b"no manifest").hexdigest()}))


CAUSES["link_refused"] = lambda w: of_answer(w.http.get("/blobs/owned/x?e=1&s=2"))


# --- starting an orchestrator ---

CAUSES["already_running"] = lambda w: w.up(w.network.home / "orchestrator")
CAUSES["port_taken"] = lambda w: w.up(w.fresh(), "--http", w.url.removeprefix("http://"))


@causes("bad_admin_token")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "admin.token").write_text("short")
    file.chmod(0o600)
    return w.up(data)


@causes("secret_exposed")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "admin.token").write_text("x" * 40)
    file.chmod(0o644)
    return w.up(data)


@causes("bad_certificate")
def _(w: World) -> Said:
    (file := (data := w.fresh()) / "certificate.key").write_text("no key")
    file.chmod(0o600)
    return w.up(data, "--http", "0.0.0.0:0")


CAUSES["bad_host"] = lambda w: w.up(w.fresh(), "--http", "höst.example:0")


@causes("store_failed")
def _(w: World) -> Said:
    (data := w.fresh()).joinpath("state.db").write_bytes(b"this is no database" * 100)
    return w.up(data)


# --- starting a node ---

CAUSES["missing_setting"] = lambda w: w.typed("node")
CAUSES["bad_setting"] = lambda w: w.typed("node", "--orchestrator", "nowhere")
CAUSES["bad_file"] = lambda w: w.typed("node", "--config", "nowhere.toml")
CAUSES["token_mistyped"] = lambda w: w.node("--token", "hfj1_nonsense")
CAUSES["no_pin"] = lambda w: w.node("--orchestrator", "192.0.2.1:7421")
CAUSES["no_isolation"] = lambda w: w.node("--engine", "none")
CAUSES["no_engine"] = lambda w: w.node("--engine", str(w.fresh() / "no.sock"), "--unsafe-process-runtime")
CAUSES["home_unusable"] = lambda w: w.node("--home", "/proc/node")
CAUSES["home_busy"] = lambda w: w.node("--home", str(w.network.nodes["ant"].home))


@causes("bad_key")
def _(w: World) -> Said:
    (file := (home := w.fresh()) / "key").write_text("no key")
    file.chmod(0o600)
    return w.node("--home", str(home))


@causes("port_unusable")
def _(w: World) -> Said:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return w.node("--port", str(taken.getsockname()[1]), "--token", _token(w))


# --- joining ---


def _token(w: World, **wishes: Any) -> str:
    return w.network.client().tokens.create(**wishes).token


@causes("pin_mismatch")
def _(w: World) -> Said:
    with tls_door(w.fresh()) as port:
        return w.node("--orchestrator", f"127.0.0.1:{port}", "--token", tokens.invitation("0" * 64).text)


CAUSES["not_tls"] = lambda w: w.node("--token", tokens.invitation("0" * 64).text)
CAUSES["token_needed"] = lambda w: w.node()


@causes("token_wrong")
def _(w: World) -> Said:
    good = tokens.parse(_token(w))
    return w.node("--token", tokens.Ticket(good.id, bytes(len(good.secret)), good.pin).text)


@causes("token_revoked")
def _(w: World) -> Said:
    made = w.network.client().tokens.create()
    w.network.client().tokens.revoke(made.id)
    return w.node("--token", made.token)


@causes("token_expired")
def _(w: World) -> Said:
    made = w.network.client().tokens.create(ttl_ms=1_000)
    wait_for(lambda: made.expires_ms < _now_ms(), "its time to be over")
    return w.node("--token", made.token)


def _now_ms() -> int:
    import time

    return round(time.time() * 1000)


CAUSES["token_used"] = lambda w: w.node("--token", w.used)


@causes("uuid_taken")
def _(w: World) -> Said:
    return w.node("--uuid", w.network.nodes["ant"].id.removeprefix("node_"), "--token", _token(w))


# --- an orchestrator with other settings ---


class Crowded:
    """One that takes two jobs in all, and one of an owner; and that reads from a bucket which does not let it."""

    def __init__(self, w: World) -> None:
        port, data = free_port(), w.fresh()
        keys = {"AWS_ENDPOINT_URL": w.liar.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        self._process = _fork.Process(target=serve_crowded, args=(data, port, w.network.environment(keys)))
        self._process.start()
        wait_for((data / "endpoint.json").exists, "it to serve", 30)
        token = (data / "admin.token").read_text().strip()
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )

    def send(self, owner: str, **fields: Any) -> httpx.Response:
        return self._http.post("/v1/jobs", json={"argv": ["true"], **fields}, headers={"X-Holdfast-Owner": owner})

    def close(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.join(20)


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


CAUSES["owner_limit"] = lambda w: of_answer([w.crowded.send(owner) for owner in "aa"][-1])
CAUSES["network_full"] = lambda w: of_answer([w.crowded.send(owner) for owner in "abc"][-1])


@causes("bucket_refused")
def _(w: World) -> Said:
    w.liar.answers(403, b"")
    return of_answer(w.crowded.send("d", inputs=[{"name": "a", "url": "s3://shut/key"}]))


ELSEWHERE: dict[str, tuple[str, str]] = {
    "folder_changed": ("unit/test_blobs_scanning.py", "FolderChanged"),
    "incomplete": ("acceptance/test_cli_arrays.py", "did not arrive"),
    "transfer_expired": ("integration/test_blobs_transfer.py", "TransferExpired"),
    "not_moved": ("faults/test_moves.py", '"not_moved"'),
    "not_finite": ("neural/test_training.py", "NotFinite"),
    "network_state": ("neural/test_training.py", "StateError"),
    "training_data": ("neural/test_training.py", "DataError"),
    "moved_too_often": ("mutants/test_beside.py", "a_job_is_not_moved_for_ever"),
    "uuid_in_use": ("integration/test_orchestrator_nodes.py", '"uuid_in_use"'),
    "move_under_way": ("scenarios/move.txt", "refused move_under_way"),
    "output_gone": ("integration/test_shelf.py", '"output_gone"'),
    "blob_missing": ("integration/test_blobs_stores.py", "BlobMissing"),
    "link_expired": ("unit/test_blobs_signing.py", '"link_expired"'),
    "store_full": ("unit/test_blobs_folder.py", '"store_full"'),
    "store_slow": ("unit/test_blobs_folder.py", "StoreSlow"),
    "store_gone": ("integration/test_blobs_transfer.py", '"store_gone"'),
    "store_refused": ("integration/test_blobs_stores.py", "StoreRefused"),
    "leadership_lost": ("integration/test_orchestrator_faults.py", "leadership_lost"),
    "version": ("migration/test_version_skew.py", "version"),
}
"""Codes that take more than a command: a store that fails, a month that passes, two orchestrators. The test that causes
it, and what it says of it."""
