"""The agent: feeds events on this machine to the node core and carries out what the core decides.

Decides nothing itself. Does not import gRPC: the link does, after the launcher was started (see run.py).
"""

import asyncio
import logging
import secrets
import shutil
import signal
import time
from collections import deque
from typing import Any, Protocol

import msgspec

from holdfast import __version__
from holdfast.blobs import BlobCache
from holdfast.boottime import boottime_ms
from holdfast.identity.keys import NodeKey, node_id
from holdfast.identity.tokens import Ticket
from holdfast.model import AttemptId, Failure, Hardware, Instant, Resources
from holdfast.model.messages import (
    Discard,
    Drained,
    Go,
    Held,
    Hello,
    Leaving,
    Load,
    Offers,
    Ping,
    Pong,
    Renewed,
    Report,
    Save,
    Start,
    Welcome,
)
from holdfast.node.attempt import attempt_folders
from holdfast.node.attempt.attempt_runner import AttemptRunner, Services
from holdfast.node.attempt.disk_room import CACHES_FREE_BYTES_MIN, DiskRoom
from holdfast.node.attempt.preparation import Preparer
from holdfast.node.attempt.transfer import ContentTransfer
from holdfast.node.attempt.venvs import MIB_MAX, Venvs
from holdfast.node.benchmark import Benchmark
from holdfast.node.config import NodeConfig
from holdfast.node.core.admission import Means
from holdfast.node.core.core import NodeCore
from holdfast.node.core.events import (
    AttemptInputs,
    CaptureCheckpoint,
    CommandReceived,
    Connected,
    Disconnected,
    HangUp,
    LeaveAsked,
    LoadMeasured,
    NodeAction,
    NodeEvent,
    NodeTick,
    Recovered,
    RememberEpoch,
    Remove,
    Removed,
    Say,
    Spawn,
    Tell,
)
from holdfast.node.core.order import Order
from holdfast.node.hardware import cache_mib, measure_load
from holdfast.node.health import HealthWatch
from holdfast.node.home import NodeHome
from holdfast.node.images.image_cache import Images
from holdfast.node.launcher import Launcher
from holdfast.node.log_sender import Courier
from holdfast.node.node_files_client import NodeFilesClient, NodeFilesEndpoint
from holdfast.node.runtimes import container
from holdfast.node.runtimes.runtime import runtime_named
from holdfast.tasks import OwnedTasks, TaskScope

LOAD_S = 5.0
"""How often the load is measured. The orchestrator decides how often it is reported."""
IDLE_PERMILLE = 200
"""A processor load below this counts as idle."""
HUNG_S = 60.0
"""A disk under heavy load is slow; one that does not answer for this long counts as hung."""
FAILURES_SHOWN = 20
CACHE_BYTES_MAX = 4 << 30
"""Size of the cache of fetched content, for packages that many jobs share."""
REMOVE_AGAIN_S = 1.0

log = logging.getLogger("holdfast.node")


class OrchestratorLink(Protocol):
    """What the agent needs from its link to the orchestrator."""

    @property
    def up(self) -> bool: ...
    @property
    def trouble(self) -> str: ...
    def say(self, message: Report | Pong | Leaving | Offers) -> None: ...
    def hang_up(self, why: str) -> None: ...
    def say_goodbye(self) -> None: ...
    async def run(self) -> None: ...


class Agent:
    def __init__(
        self,
        config: NodeConfig,
        home: NodeHome,
        launcher: Launcher,
        key: NodeKey,
        ticket: Ticket | None,
        hardware: Hardware,
        offered: Resources,
        isolation: str,
        means: Means,
    ) -> None:
        self._config = config
        self._home = home
        self._key = key
        self._ticket = ticket
        self._hardware = hardware
        self._isolation = isolation
        node = node_id(home.uuid(config.uuid))
        self.core = NodeCore(node, secrets.token_hex(8), home.epoch_seen(), offered, means)
        self.courier = Courier(self._logs_delivered)
        self.door = NodeFilesClient()
        free_mib = shutil.disk_usage(home.path).free >> 20
        cache = BlobCache(home.path / "cache", CACHE_BYTES_MAX, bytes_free_min=CACHES_FREE_BYTES_MIN)
        cache.limit(cache_mib(free_mib, offered.disk_mib, cache.total_bytes >> 20, CACHE_BYTES_MAX >> 20) << 20)
        carrier = ContentTransfer(self.door, cache)
        hosts = frozenset(config.index_hosts)
        venvs = Venvs(home.path / "venvs", home.attempts, in_place=isolation == "none", hosts=hosts)
        venvs.sweep()
        venvs.limit(cache_mib(free_mib, offered.disk_mib, venvs.held_mib(), MIB_MAX))
        images = None
        if means.engine:
            images = Images(means.engine, home.path, private=config.private_inputs, local=config.local_images)
        preparer = Preparer(carrier, venvs, DiskRoom(home.attempts), images, private_inputs=config.private_inputs)
        self._chores = OwnedTasks(self._chore_failed)
        self._services = Services(launcher, self.courier, carrier, self.door, preparer, self.feed, self._chores.start)
        self._line: OrchestratorLink | None = None
        self._runners: dict[AttemptId, AttemptRunner] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._left = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failures: deque[dict[str, Any]] = deque(maxlen=FAILURES_SHOWN)
        self._watch = HealthWatch(len(hardware.gpus) if offered.gpus else 0)
        self._cpu_permille = 1000
        self._benchmark = Benchmark(home.path, hardware.cpu_model, self._idle)

    # --- events into the core, actions out of it ---

    def feed(self, event: NodeEvent) -> None:
        for action in self.core.apply(event, Instant(boottime_ms())):
            self._do(action)
        if self.core.left:
            self._left.set()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.core.next_due()
        if due is not None:
            wait_s = max(0, due - boottime_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.feed, NodeTick())

    def _do(self, action: NodeAction) -> None:
        match action:
            case Say(message):
                if isinstance(message, Report):
                    self._note_failures(message)
                if self._line is not None:
                    self._line.say(message)
            case Tell(attempt, do, at_ms, reason):
                if attempt in self._runners:
                    self._runners[attempt].tell(do, at_ms, reason)
            case Spawn(order, attempt_inputs):
                self._spawn(order, attempt_inputs)
            case CaptureCheckpoint(attempt):
                if attempt in self._runners:
                    self._runners[attempt].capture()
            case Remove(attempt):
                self._chores.start(f"remove {attempt}", self._remove(attempt))
            case RememberEpoch(epoch):
                self._remember(epoch)
            case HangUp(why):
                if self._line is not None:
                    self._line.hang_up(why)

    def _remember(self, epoch: int) -> None:
        try:
            self._home.remember_epoch(epoch)
        except OSError as wrong:
            # It is safe to continue while this agent lives, because the core knows the epoch. The load report shows the
            # disk error.
            log.error("epoch %s could not be stored: %s", epoch, wrong.strerror)

    def _logs_delivered(self, attempt: AttemptId) -> None:
        if attempt in self._runners:
            self._runners[attempt].logs_delivered()

    def _chore_failed(self, task: "asyncio.Task[Any]", wrong: BaseException) -> None:
        if not self._broken.done():
            # Fail the agent: a restarted agent finds the attempt, while an attempt without a runner would be stuck.
            self._broken.set_exception(wrong)

    # --- called by the link ---

    def hello(self) -> Hello:
        ticket = self._ticket
        return Hello(
            node=self.core.node,
            instance=self.core.instance,
            public_key=self._key.public_hex,
            version=__version__,
            hardware=self._hardware,
            offered=self.core.offered,
            isolation=self._isolation,
            token_id=ticket.id if ticket else "",
            token_sha256=ticket.secret_sha256 if ticket else "",
            name=self._config.name,
            site=self._config.site,
            features=self.core.means.features,
            held=self.core.held(),
            epoch_seen=self.core.epoch_seen,
        )

    def connected(self, welcome: Welcome, door: NodeFilesEndpoint | None) -> None:
        self.door.open(door)
        self.feed(Connected(welcome))

    def told(self, command: Start | Go | Discard | Renewed | Ping | Save | Drained) -> None:
        held = self.core.holding(command.attempt) if isinstance(command, Discard) else None
        wanted = held is not None and not held.unwanted
        self.feed(CommandReceived(command))
        if held is not None and wanted and held.unwanted and isinstance(command, Discard) and not command.accepted:
            log.info("%s is no longer wanted: %s", held.attempt, held.unwanted)

    def disconnected(self, why: str) -> None:
        self.door.shut()
        self.feed(Disconnected())

    # --- attempts ---

    def _spawn(self, order: Order, attempt_inputs: AttemptInputs) -> None:
        # The arguments are not logged: they may contain a secret.
        log.info("%s of %s starts", order.attempt, order.job)
        runner = self._runner(order, attempt_inputs)
        self._chores.start(f"begin {order.attempt}", runner.begin())

    def _runner(self, order: Order, attempt_inputs: AttemptInputs) -> AttemptRunner:
        attempt = AttemptId(order.attempt)
        runner = self._runners[attempt] = AttemptRunner(
            order, attempt_inputs, self._home.attempts / attempt, self._services
        )
        return runner

    async def _remove(self, attempt: AttemptId) -> None:
        runner = self._runners.get(attempt)
        if runner is not None:
            await runner.end(patient=self._line is not None and self._line.up)
            del self._runners[attempt]
        await self._sweep(attempt)
        await self._services.preparer.release(attempt)
        self.feed(Removed(attempt))

    async def _sweep(self, name: str) -> None:
        folder = self._home.attempts / name
        while True:
            try:
                await attempt_folders.until_removed(folder)
                return
            except OSError as wrong:
                log.error("%s cannot be removed yet: %s", folder, wrong)
                await asyncio.sleep(REMOVE_AGAIN_S)

    def _recover(self) -> None:
        """Report the attempts that survived; the orchestrator decides what happens to them (SPEC N9)."""
        found, litter = attempt_folders.scan(self._home.attempts)
        for left in found:
            self.feed(Recovered(left.order, left.status))
            self._services.preparer.adopt(left.order)
            self._runner(left.order, left.attempt_inputs).stand_by(fresh=False)
        for folder in litter:
            self._chores.start(f"sweep {folder.name}", self._sweep(folder.name))
        if self.core.means.engine:
            self._chores.start("sweep containers", self._sweep_containers(self.core.means.engine))
        if found:
            log.info("found %s attempt(s) of an earlier run", len(found))

    async def _sweep_containers(self, engine: str) -> None:
        """Remove containers of attempts whose folders are gone: nothing else would find them."""
        try:
            await asyncio.to_thread(container.sweep, engine, str(self._home.attempts))
        except OSError as wrong:
            log.warning("containers of earlier attempts cannot be listed: %s", wrong)

    # --- running and leaving ---

    async def run(self, line: OrchestratorLink) -> None:
        """Run until the node has left. Raises errors that make it pointless to continue."""
        self._line = line
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave)
        self._recover()
        self._chores.start("measure the load", self._measure())
        self._chores.start("benchmark", self._benchmark.run())
        try:
            async with TaskScope() as tasks:
                linking = tasks.start("link", line.run())
                leaving = tasks.start("wait until the node has left", self._left.wait())
                try:
                    await self._until_left(line, linking, leaving)
                finally:
                    # Together with the link: no chore goes on while that ends.
                    self.door.shut()
                    self._chores.cancel()
        finally:
            await self._chores.close()
            await self._services.preparer.close()
            await self.door.close()
        await self._put_away()

    async def _until_left(
        self, line: OrchestratorLink, linking: "asyncio.Task[None]", leaving: "asyncio.Task[bool]"
    ) -> None:
        await asyncio.wait((linking, leaving, self._broken), return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()
        if not linking.done():
            line.say_goodbye()
            await asyncio.wait((linking,), timeout=5.0)
        if linking.done():
            linking.result()

    def leave(self) -> None:
        """Handle a request to leave: finish within the grace period, or at once if asked a second time."""
        grace_ms = 0 if self.core.leaving else self._config.grace_ms
        log.info("leaving within %s ms", grace_ms)
        self.feed(LeaveAsked(grace_ms))

    async def _put_away(self) -> None:
        """End shims that only serve the status of an ended attempt: it is on disk as well."""
        for held in self.core.held():
            folder = self._home.attempts / held.attempt
            if held.attempt not in self.core.alive and folder.exists():
                await attempt_folders.until_ended(folder)

    async def _measure(self) -> None:
        last = Load()
        while True:
            async with TaskScope() as tasks:
                reading = tasks.start("read the load", asyncio.to_thread(measure_load, self._home.path, self._watch))
                if not (await asyncio.wait((reading,), timeout=HUNG_S))[0]:
                    # A hung disk blocks the thread that reads it: no further one is started until that one returns.
                    sick = f"the node's disk or its GPUs have not answered for {HUNG_S:g} s"
                    self.feed(LoadMeasured(msgspec.structs.replace(last, sick=sick)))
                    await asyncio.wait((reading,))
            try:
                last = reading.result()
                self._cpu_permille = last.cpu_permille
                self.feed(LoadMeasured(last))
            except OSError as wrong:
                log.error("the load cannot be measured: %s", wrong)
            await asyncio.sleep(LOAD_S)

    def _idle(self) -> bool:
        return not self.core.held() and self._cpu_permille < IDLE_PERMILLE

    # --- local status ---

    def _note_failures(self, report: Report) -> None:
        for held in report.held:
            known = any(shown["attempt"] == held.attempt for shown in self._failures)
            if isinstance(held.failure, Failure) and not known:
                code, at_ms = held.failure.code.value, round(time.time() * 1000)
                self._failures.append(
                    {"attempt": held.attempt, "code": code, "detail": held.failure.detail, "at_ms": at_ms}
                )

    def _shown(self, held: Held) -> dict[str, Any]:
        """One attempt with its limits."""
        holding = self.core.holding(held.attempt)
        limits = {} if holding is None else {**msgspec.to_builtins(holding.need), "gpu_ids": list(holding.gpu_ids)}
        return {**msgspec.to_builtins(held), "limits": limits, "unwanted": "" if holding is None else holding.unwanted}

    def snapshot(self) -> dict[str, Any]:
        """The local status. Contains no secrets."""
        core = self.core
        return {
            "node": core.node,
            "name": self._config.name,
            "version": __version__,
            "orchestrator": self._config.orchestrator,
            "connected": core.connected,
            "trouble": self._line.trouble if self._line is not None else "",
            "leaving": core.leaving,
            "paused": core.paused,
            "drained": core.drained,
            "epoch_seen": core.epoch_seen,
            "isolation": self._isolation,
            "features": list(core.means.features),
            "limits": runtime_named(core.means.runtime).capabilities(),
            "s3_bucket": self._config.s3_bucket or None,
            "hardware": msgspec.to_builtins(self._hardware),
            "offered": msgspec.to_builtins(core.offered),
            "in_use": msgspec.to_builtins(core.in_use),
            "health": {
                "sick": self._watch.health.sick,
                "warnings": [*self._watch.health.warnings, *self._benchmark.yardstick.warnings()],
                "readings": msgspec.to_builtins(self._watch.readings),
                "speeds": msgspec.to_builtins(self._benchmark.yardstick),
            },
            "held": [self._shown(held) for held in core.held()],
            "recent_failures": list(self._failures),
            "settings_from": self._config.origins,
        }
