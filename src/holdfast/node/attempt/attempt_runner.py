"""One attempt on this machine, from the agent's side: prepares and starts it, follows its shim, delivers its results.

Carries out what the node core decided and reports events to it. Decides nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from holdfast.model import AttemptId, Failure, FailureCode, Result
from holdfast.model.messages import Progress
from holdfast.node.attempt import attempt_folders
from holdfast.node.attempt.preparation import Preparer, Unprepared, errno_name
from holdfast.node.attempt.result_uploader import ResultUploader, Undelivered
from holdfast.node.attempt.shim_client import ShimClient
from holdfast.node.attempt.transfer import ContentTransfer
from holdfast.node.core.attempt_lifecycle import Phase
from holdfast.node.core.events import (
    AttemptInputs,
    Delivered,
    DeliveredFiles,
    NodeEvent,
    Progressed,
    ShimDied,
    ShimSaid,
    ShimStatus,
    SpawnFailed,
    Undeliverable,
)
from holdfast.node.core.order import Order
from holdfast.node.core.verdicts import spawn_failure, verdict
from holdfast.node.launcher import Launcher, LauncherError
from holdfast.node.log_sender import Courier
from holdfast.node.node_files_client import AttemptAccess, NodeFilesClient

LAST_LOGS_S = 2.0
"""How long the logs of a discarded attempt may still be delivered before they are deleted."""

log = logging.getLogger("holdfast.node")


class Services(msgspec.Struct, frozen=True):
    """What all attempts of an agent share."""

    launcher: Launcher
    courier: Courier
    carrier: ContentTransfer
    door: NodeFilesClient
    preparer: Preparer
    feed: Callable[[NodeEvent], None]
    begin: Callable[[str, Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    """Starts a task under this name. The agent owns it."""


class AttemptRunner:
    def __init__(self, order: Order, attempt_inputs: AttemptInputs, folder: Path, services: Services) -> None:
        self.attempt = AttemptId(order.attempt)
        self._order = order
        self._inputs = attempt_inputs
        self._folder = folder
        self._services = services
        self._preparing: asyncio.Task[Order] | None = None
        self._watch: ShimClient | None = None
        self._chores: list[asyncio.Task[None]] = []
        """Tasks that end with the attempt: captures, the delivery of its files."""
        self._logs_safe = asyncio.Event()
        self._running = self._settling = False
        self._stopped = ""
        """Why it was stopped before it began."""
        at = AttemptAccess(order.attempt, order.fence)
        self._uploader = ResultUploader(at, folder, order.resources.get("disk_mib", 0), services.carrier, services.door)

    # --- start ---

    async def begin(self) -> None:
        """Prepare the attempt and start its shim."""
        try:
            await asyncio.to_thread(attempt_folders.make, self._folder)
            self._preparing = asyncio.create_task(
                self._services.preparer.prepare(self._folder, self._order, self._inputs, self._progressed),
                name=f"prepare {self.attempt}",
            )
            self._order = await self._preparing
            if self._stopped:
                raise asyncio.CancelledError
            await asyncio.to_thread(attempt_folders.write_order, self._folder, self._order, self._inputs)
            await self._services.launcher.spawn(str(self._folder))
        except Unprepared as wrong:
            self._fail(wrong.failure)
        except OSError as wrong:
            self._fail(spawn_failure(errno_name(wrong), f"no shim could be started: {wrong.strerror}"))
        except LauncherError as wrong:
            # The shim may have started all the same; then it has claimed the attempt, and this claim fails.
            if attempt_folders.claim(self._folder):
                self._fail(spawn_failure(wrong.errno_name, str(wrong)))
            else:
                self.stand_by(fresh=True)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            self._fail(Failure(FailureCode.DRAINED, self._stopped))
        else:
            self.stand_by(fresh=True)
        finally:
            self._preparing = None

    def _fail(self, failure: Failure) -> None:
        self._services.feed(SpawnFailed(self.attempt, failure))

    def _progressed(self, progress: Progress) -> None:
        self._services.feed(Progressed(self.attempt, progress))

    # --- following the shim ---

    def stand_by(self, fresh: bool) -> None:
        self._services.courier.follow(self.attempt, self._order.fence, self._folder, fresh)
        self._watch = ShimClient(self.attempt, self._folder, self._said, self._died)
        self._services.begin(f"follow the shim of {self.attempt}", self._watch.run(fresh))

    def tell(self, do: str, at_ms: int, reason: str) -> None:
        """Forward a command to the shim. Before there is a shim, only `stop` has an effect."""
        if self._watch is None:
            if do == "stop" and self._preparing is not None:
                self._stopped = reason or "it was asked to stop"
                self._preparing.cancel()
            return
        details: dict[str, dict[str, Any]] = {
            "lease": {"until_ms": at_ms},
            "contact": {"at_ms": at_ms},
            "stop": {"reason": reason},
        }
        self._watch.tell({"do": do, **details.get(do, {})})

    def _said(self, status: ShimStatus) -> None:
        feed, courier = self._services.feed, self._services.courier
        feed(ShimSaid(self.attempt, status))
        sizes = {"stdout": status.stdout_bytes, "stderr": status.stderr_bytes}
        courier.grew(self.attempt, sizes, final=status.phase is Phase.ENDED)
        if status.phase is Phase.RUNNING and (status.cpu_ms or status.memory_mib):
            printed = status.stdout_bytes + status.stderr_bytes
            self._progressed(Progress("run", cpu_ms=status.cpu_ms, memory_mib=status.memory_mib, printed=printed))
        if status.phase is Phase.RUNNING and not self._running:
            self._running = True
            if self._inputs.checkpoint_ms > 0:
                self._chore("capture checkpoints of", self._uploader.capture_every(self._inputs.checkpoint_ms))
        if status.phase is Phase.ENDED and not self._settling:
            self._settling = True
            self._stop_chores()
            self._chore("settle", self._settle(status))

    def _died(self, why: str) -> None:
        log.error("%s: %s", self.attempt, why)
        self._stop_chores()
        self._services.feed(ShimDied(self.attempt, why))
        self._services.courier.grew(self.attempt, attempt_folders.log_sizes(self._folder), final=False)

    def logs_delivered(self) -> None:
        self._logs_safe.set()

    def capture(self) -> None:
        """Capture the checkpoint folder now, because the node is about to be drained."""
        if self._inputs.checkpoint_ms > 0 and not self._settling:
            self._chore("capture", self._capture())

    async def _capture(self) -> None:
        await self._uploader.capture()

    def _chore(self, what: str, chore: Coroutine[Any, Any, None]) -> None:
        self._chores = [task for task in self._chores if not task.done()]
        self._chores.append(self._services.begin(f"{what} {self.attempt}", chore))

    def _stop_chores(self) -> None:
        for task in self._chores:
            task.cancel()
        self._chores.clear()

    # --- end ---

    async def _settle(self, status: ShimStatus) -> None:
        """After the body has ended: deliver its result files, or its last checkpoint; then report it."""
        files = DeliveredFiles()
        try:
            if isinstance(verdict(status), Result):
                files = await self._uploader.deliver(self._progressed)
            elif self._inputs.checkpoint_ms > 0:
                await self._uploader.capture()
        except Undelivered as wrong:
            await self._logs_safe.wait()
            self._services.feed(Undeliverable(self.attempt, wrong.failure))
            return
        await self._logs_safe.wait()
        self._services.feed(Delivered(self.attempt, files))

    async def end(self, patient: bool) -> None:
        """Detach from it, before its folder is deleted. `patient`: its last logs may still be in flight."""
        self._stop_chores()
        if patient:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_LOGS_S):
                    await self._services.courier.until_delivered(self.attempt)
        self._services.courier.forget(self.attempt)
