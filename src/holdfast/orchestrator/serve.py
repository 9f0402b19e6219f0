"""The orchestrator's process: creates the parts, opens the servers, and shuts them down in order on SIGTERM."""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import grpc.aio
import msgspec
import uvloop
from litestar.types import ASGIApp

import holdfast
from holdfast.durable import atomic_write
from holdfast.errors import Misconfigured
from holdfast.identity.admin import AdminToken
from holdfast.identity.certificates import Certificate, needs_tls, server_credentials
from holdfast.orchestrator.access_directory import AccessDirectory
from holdfast.orchestrator.api.access import AccessService
from holdfast.orchestrator.api.app import early_answers, make_app
from holdfast.orchestrator.api.context import ApiContext, RealTime
from holdfast.orchestrator.api.node_files_api import NodeFilesApi, make_data_app
from holdfast.orchestrator.api.self_check import examine
from holdfast.orchestrator.api.submissions import Submissions
from holdfast.orchestrator.api.tokens import TokenService
from holdfast.orchestrator.backup import begin_from
from holdfast.orchestrator.config import OrchestratorConfig, host_and_port, joined
from holdfast.orchestrator.connections.bodies import BodyBudget
from holdfast.orchestrator.connections.early_answers import Early, no_answers
from holdfast.orchestrator.connections.http_server import HttpServer
from holdfast.orchestrator.connections.node_port import NodePort
from holdfast.orchestrator.content.blob_store import open_content, try_out
from holdfast.orchestrator.content.damage import DamageRecord, Inspector
from holdfast.orchestrator.content.disk_watch import DiskWatch
from holdfast.orchestrator.content.scrub import Scrubber
from holdfast.orchestrator.content.sweep import Sweeper
from holdfast.orchestrator.content.verify import Verifier
from holdfast.orchestrator.effects import Effects
from holdfast.orchestrator.leader import record
from holdfast.orchestrator.leader.loop import Leader
from holdfast.orchestrator.logs.log_files import LogStore
from holdfast.orchestrator.logs.log_retention import LogRetention
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.link_service import NodeLinkService
from holdfast.orchestrator.nodes.log_receiver import LogIntake
from holdfast.orchestrator.nodes.sessions import Sessions
from holdfast.orchestrator.process_log import log_to_stderr
from holdfast.orchestrator.queries import Queries
from holdfast.orchestrator.retention import Retention
from holdfast.orchestrator.wakeups import Wakeups
from holdfast.state import Store
from holdfast.state.reserve import StoreReserve
from holdfast.tasks import TaskScope
from holdfast.wire.limits import server_options
from holdfast.wire.node_pb2_grpc import add_NodeLinkServicer_to_server

log = logging.getLogger("holdfast.serve")

ANNOUNCED_AGAIN_S = 1.0
OPEN_S_MAX = 1.0
BACKLOG = 4_096
"""Connections that wait to be accepted: beyond this, a caller tries again only after a second."""


def run_orchestrator(config: OrchestratorConfig) -> int:
    """Serve until SIGTERM or SIGINT. Raises HoldfastError if it cannot start."""
    log_to_stderr(config.log_level)
    _allow_many_connections()
    _look_for_garbage_less_often()
    try:
        config.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as cause:
        raise Misconfigured(
            f"the data folder {config.data} cannot be created: {cause.strerror}", hint="Choose another with --data-dir."
        ) from None
    with _alone(config.store_url()):
        (config.data / "endpoint.json").unlink(missing_ok=True)
        store = Store.open(config.store_url())
        try:
            begin_from(config.data, store)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(Orchestrator(config, store).run())
        finally:
            store.close()
    log.info("stopped")
    return 0


def _allow_many_connections() -> None:
    """Every node is an open file. The usual soft limit of 1,024 is meant for programs that poll with select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _look_for_garbage_less_often() -> None:
    """Collect garbage less often. Most objects here live as long as a node's session, and each collection walks over
    all of them: while thousands of nodes joined, it took a fifth of the loop's time. Reference counts free nearly
    everything else at once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@contextlib.contextmanager
def _alone(store_url: str) -> Iterator[None]:
    """Hold the lock beside a SQLite file: two orchestrators on one file would only depose each other for ever.
    PostgreSQL needs no lock: a second orchestrator is allowed there, and the epoch decides which one leads."""
    prefix = "sqlite:///"
    if not store_url.startswith(prefix):
        yield
        return
    path = Path(store_url.removeprefix(prefix) + ".lock")
    try:
        file: IO[str] = path.open("a+")
    except OSError as cause:
        raise Misconfigured(f"the lock {path} cannot be opened: {cause.strerror}", hint="Check the folder.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise Misconfigured(
                f"another orchestrator (process {holder}) already uses {path.with_suffix('')}",
                hint="Stop that one first, or start this one with another --data-dir.",
                code="already_running",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class _Parts(NamedTuple):
    """The tasks of an orchestrator that serves. All last until it stops, apart from `announcing`."""

    leading: asyncio.Task[Any]
    intake: asyncio.Task[Any]
    serving: asyncio.Task[Any]
    announcing: asyncio.Task[Any]
    waiting: asyncio.Task[Any]
    moving: asyncio.Task[Any]
    sweeping: asyncio.Task[Any]
    scrubbing: asyncio.Task[Any]
    clearing: asyncio.Task[Any]
    watching: asyncio.Task[Any]
    deleting: asyncio.Task[Any]
    watching_disk: asyncio.Task[Any]


class Orchestrator:
    def __init__(self, config: OrchestratorConfig, store: Store) -> None:
        self._config = config
        self._store = store
        self._settings = config.chosen_settings()
        self._limits = config.limits.fitted(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._http_host, self._http_port = host_and_port(config.http, "HTTP")
        self._nodes_host, self._nodes_port = host_and_port(config.nodes, "node")
        self._token = AdminToken.load_or_make(config.data / "admin.token")
        self._files_host, self._files_port = host_and_port(config.files_address(), "files")
        hosts = (self._http_host, self._nodes_host, self._files_host)
        http_tls, nodes_tls, files_tls = (bool(config.tls) or needs_tls(host) for host in hosts)
        self._certificate = (
            Certificate.load_or_make(config.data, [socket.gethostname(), *hosts])
            if http_tls or nodes_tls or files_tls
            else None
        )
        self._http_certificate = self._certificate if http_tls else None
        self._nodes_certificate = self._certificate if nodes_tls else None
        self._files_certificate = self._certificate if files_tls else None
        self._stopping = False

    async def run(self) -> None:
        self._assemble()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await try_out(self._content)
        server = self._node_server()
        api = self._api_server()
        files = self._files_server()
        async with TaskScope() as tasks:
            leading = tasks.start("leader", self._leader.run())
            # A node that connects now waits in the socket and is answered; it is refused only if taking the lead takes
            # long.
            await asyncio.wait({tasks.start("wait for the lead", self._leader.led.wait())}, timeout=OPEN_S_MAX)
            parts = _Parts(
                leading,
                tasks.start("store logs", self._intake.run()),
                tasks.start("serve people", api.serve(sockets=[self._socket])),
                tasks.start("announce", self._announce()),
                tasks.start("wait for a signal", stop.wait()),
                tasks.start("serve files", files.serve(sockets=[self._files_socket])),
                tasks.start("sweep content", self._sweeper.run()),
                tasks.start("scrub content", self._scrubber.run()),
                tasks.start("clear logs", self._log_retention.run(lambda: not self._leader.trouble)),
                tasks.start("watch the node port", self._node_port.run()),
                tasks.start("delete what is old", self._retention.run()),
                tasks.start("watch the disk", self._disk_watch.run()),
            )
            await server.start()
            try:
                lasting = {part for part in parts if part is not parts.announcing}
                ended, _ = await asyncio.wait(lasting, return_when="FIRST_COMPLETED")
                for part in ended:
                    part.result()
            finally:
                await self._close(server, (api, files), parts)

    def _assemble(self) -> None:
        self._metrics = Metrics()
        self._wakeups = Wakeups()
        self._fleet = Fleet()
        self._logs = LogStore(self._config.data / "logs", self._settings.log_bytes_max)
        self._content, self._with_blobs = open_content(self._config, lambda: self._leader.served_ms() / 1000)
        self._verifier = Verifier(self._logs, self._content)
        self._damage = DamageRecord(self._metrics)
        self._content.store.on_damage = self._damage.found
        self._inspector = Inspector(self._content, self._damage)
        self._sessions = Sessions(self._fleet, self._metrics)
        self._node_port = NodePort(self._limits, self._metrics)
        self._queries = Queries(self._store)
        self._log_retention = LogRetention(self._logs, self._store, self._wakeups, self._settings.logs_keep_ms)
        self._intake = LogIntake(self._logs, self._wakeups, self._metrics)
        recording = os.environ.get(record.ENVIRONMENT)
        self._recorder = record.Recorder(Path(recording)) if recording else None
        self._access = AccessDirectory(lambda: self._leader.served_ms())
        world = Effects(
            self._sessions,
            self._fleet,
            self._access,
            self._verifier,
            self._inspector,
            self._wakeups,
            self._content,
        )
        self._leader = world.leader = Leader(
            self._settings, self._store, world, self._wakeups, self._metrics, self._recorder
        )
        self._leader.begin(self._store.meta(), self._store.wall_times())
        self._scrubber = Scrubber(
            self._content.store, self._damage, self._leader, self._metrics, self._settings.scrub_bytes_per_s
        )
        reserve = StoreReserve(self._config.store_file(), self._store.reusable_bytes)
        self._leader.disk_low, self._leader.disk_short = reserve.low, reserve.short
        self._leader.free_disk = reserve.release
        self._sweeper = Sweeper(self._content, self._store, self._leader)
        self._retention = Retention(self._leader, self._logs.has)
        self._disk_watch = DiskWatch(
            self._config.data,
            reserve,
            {
                "uploads that nobody needs": self._sweeper.clear_abandoned,
                "jobs' output that was kept for its time": self._log_retention.clear,
                "jobs that were kept for their time": self._retention.clear,
                "unused bytes of the store": self._leader.shrink_store,
            },
        )

    def _node_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=server_options(self._limits.node_connections_max))
        certificate = self._nodes_certificate
        pin = certificate.pin if certificate else ""
        nodes = NodeLinkService(
            self._leader, self._sessions, self._fleet, self._intake, self._metrics, self._node_port, pin
        )
        self._leader.crowded = nodes.crowded
        add_NodeLinkServicer_to_server(nodes, server)
        address = joined(self._nodes_host, self._nodes_port)
        try:
            if certificate is None:
                self._nodes_port = server.add_insecure_port(address)
            else:
                self._nodes_port = server.add_secure_port(address, server_credentials(certificate))
        except RuntimeError:
            raise _taken(address, "--listen") from None
        self._node_port.listens(self._nodes_port)
        return server

    def _files_server(self) -> HttpServer:
        self._files_socket = _listening(self._files_host, self._files_port, "--files")
        self._files_port = self._files_socket.getsockname()[1]
        scheme = "https" if self._files_certificate else "http"
        # The host by which the node knows this machine: it connected to a name that is not known here.
        host = "" if self._files_host == self._nodes_host else self._files_host
        self._sessions.data_url = f"{scheme}://{joined(host, self._files_port)}"
        app = make_data_app(NodeFilesApi(self._leader, self._sessions, self._queries, self._content))
        return self._http_server("files", app, self._files_certificate)

    def _api_server(self) -> HttpServer:
        self._socket = _listening(self._http_host, self._http_port, "--http")
        self._http_port = self._socket.getsockname()[1]
        context = ApiContext(
            leader=self._leader,
            queries=self._queries,
            fleet=self._fleet,
            logs=self._logs,
            log_retention=self._log_retention,
            content=self._content,
            wakeups=self._wakeups,
            metrics=self._metrics,
            probes=self._sessions.probes,
            submissions=Submissions(),
            tokens=TokenService(self._token),
            access=self._access,
            access_tokens=AccessService(self._token),
            self_check=lambda: examine(self._leader, self._queries, self._config.data, [self._scrubber.finding()]),
            pin=self._nodes_certificate.pin if self._nodes_certificate else "",
            stopping=lambda: self._stopping,
            time=RealTime(),
        )
        app = make_app(context, self._token)
        return self._http_server("people", app, self._http_certificate, early_answers(context))

    def _http_server(
        self, name: str, app: ASGIApp, certificate: Certificate | None, early: Early = no_answers
    ) -> HttpServer:
        bounded = BodyBudget(app, self._limits.bodies_bytes_max)
        return HttpServer(name, self._with_blobs(bounded), certificate, self._limits, self._metrics, early)

    async def _announce(self) -> None:
        """Write endpoint.json once requests can be served. It holds no secret, only the path of the file with the
        secret."""
        await self._leader.led.wait()
        scheme = "https" if self._http_certificate else "http"
        endpoint = {
            "url": f"{scheme}://{joined(_reachable(self._http_host), self._http_port)}",
            "nodes": joined(_reachable(self._nodes_host), self._nodes_port),
            "files": joined(_reachable(self._files_host), self._files_port),
            "pin": self._nodes_certificate.pin if self._nodes_certificate else "",
            "certificate": self._http_certificate.pem.decode() if self._http_certificate else "",
            "token_file": "admin.token",
            "open_join": self._settings.open_join,
            "version": holdfast.__version__,
            "pid": os.getpid(),
        }
        content = msgspec.json.format(msgspec.json.encode(endpoint), indent=2)
        while True:
            try:
                atomic_write(self._config.data / "endpoint.json", content)  # written anew at every start
                break
            except OSError as wrong:
                # Without it, no command on this machine finds the orchestrator, although it serves.
                log.error("endpoint.json cannot be written, trying again: %s", wrong)
                await asyncio.sleep(ANNOUNCED_AGAIN_S)
        log.info("ready: people at %s, nodes at %s", endpoint["url"], endpoint["nodes"])

    async def _close(self, server: grpc.aio.Server, http: tuple[HttpServer, ...], parts: "_Parts") -> None:
        log.info("stopping")
        self._stopping = True
        (self._config.data / "endpoint.json").unlink(missing_ok=True)
        self._wakeups.wake_all()
        for one in http:
            one.should_exit = True
        ending = (parts.sweeping, parts.scrubbing, parts.clearing, parts.deleting, parts.watching, parts.watching_disk)
        for part in (*ending, parts.announcing, parts.waiting, parts.leading):
            part.cancel()
        await self._leader.stop()
        await server.stop(grace=1.0)
        for task in (parts.serving, parts.moving):
            with contextlib.suppress(Exception):
                await task
        parts.intake.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._sessions.probes.close()
        await self._verifier.close()
        await self._inspector.close()
        self._queries.close()
        await asyncio.to_thread(self._logs.close)
        if self._recorder is not None:
            self._recorder.close()


def _listening(host: str, port: int, flag: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(found[4][:2], family=found[0], backlog=BACKLOG)
    except OSError:
        raise _taken(joined(host, port), flag) from None


def _reachable(host: str) -> str:
    """An address that can be connected to, for one that listens on all interfaces."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _taken(address: str, flag: str) -> Misconfigured:
    return Misconfigured(
        f"{address} is not available",
        hint=f"Something else uses it; choose another with {flag}.",
        code="port_taken",
    )
