"""The machines and the orchestrator of a test network: those of the simulator, with bodies that a test defines.

Kernel, leader core, node core and attempt lifecycle are the production ones; links, clocks, disks and stores are
virtual. Nothing is decided here. Periodic work (progress, logs, load) runs less often than in the simulator, which
looks for faults: hours should pass in milliseconds.
"""

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from holdfast.blobs import FolderSource, Unpacking, scan
from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.blobs.manifest import Manifest
from holdfast.blobs.verified import verify
from holdfast.kernel.decision import Done
from holdfast.kernel.events import Checkpointed, ContentDelivered
from holdfast.model import AttemptId, Job, Recovery
from holdfast.model.messages import Load, Progress
from holdfast.node.core.events import Delivered, DeliveredFiles, LoadMeasured, Progressed
from holdfast.node.core.order import Order
from holdfast.orchestrator.leader.core import LeaderCore
from holdfast.sim.delivery import LogsKept
from holdfast.sim.network import Stream
from holdfast.sim.node import Machine, SimAgent
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.shim import SimProgram, SimShim
from holdfast.sim.store import SimStore
from holdfast.testing.network_bodies import Bodies, Body, Run, as_bytes

LOOK_EVERY_MS = 10_000
LOAD_EVERY_MS = 30_000
PULSE_MS = 10_000
"""How often the orchestrator looks at its clock, in milliseconds. It never freezes, so it need not look more often;
deadlines are still met in time."""


def owned_by(owner: str, sha: str) -> str:
    """The key of an owner's blob."""
    return owned_key(owner_hash(owner), sha)


class Belongings:
    """Everything that is not a row: blobs, the output and files of attempts, the progress that jobs saved."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        """By key, as in a blob store, incoming and owned. See `holdfast.blobs.keys`."""
        self.printed: dict[tuple[str, str], bytes] = {}
        self.left: dict[str, DeliveredFiles] = {}
        self.saved_ms: dict[str, int] = {}
        """By job: work that a checkpoint has saved."""
        self.begun_ms: dict[str, int] = {}
        """By attempt: work that was already done when it started."""

    def keep(self, attempt: str, owner: str, body: Body) -> None:
        self.printed[attempt, "stdout"] = as_bytes(body.prints)
        self.printed[attempt, "stderr"] = as_bytes(body.complains)
        if body.files:
            self.left[attempt] = self._delivered(owner, body)

    def _delivered(self, owner: str, body: Body) -> DeliveredFiles:
        with tempfile.TemporaryDirectory(prefix="holdfast-made-") as name:
            folder = Path(name)
            for path, data in body.files.items():
                place = folder / path
                if not place.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"a body cannot write {path!r}: the path is outside its folder")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(as_bytes(data))
            manifest = scan(folder).manifest
            source = FolderSource(folder, manifest)
            for blob in manifest.blobs:
                self.blobs[owned_by(owner, blob.sha)] = bytes(source.read(blob.sha))
        data = manifest.to_bytes()
        name = sha256(data).hexdigest()
        self.blobs[owned_by(owner, name)] = data
        return DeliveredFiles(name, len(body.files), manifest.total_bytes)

    def unpack(self, owner: str, manifest: str, folder: Path) -> None:
        found = Manifest.from_bytes(self.blobs[owned_by(owner, manifest)], name=manifest)
        folder.mkdir(parents=True, exist_ok=True)
        unpacking = Unpacking(folder, found)
        for blob in unpacking.prepare():
            unpacking.put(blob.sha, verify(blob.sha, blob.size, self.blobs[owned_by(owner, blob.sha)]))
        unpacking.finish()


class VirtualMachine(Machine):
    store: SimStore
    bodies: Bodies
    belongings: Belongings

    def start_agent(self) -> None:
        if self.up and self.agent is None:
            self.boots += 1
            self.agent = VirtualAgent(self, f"{self.spec.id}#{self.boots}")
            self.agent.begin()


class VirtualAgent(SimAgent):
    machine: VirtualMachine

    def begin(self) -> None:
        super().begin()
        for attempt in sorted(self.machine.shims):
            self._save_later(attempt)

    def _save_later(self, attempt: AttemptId) -> None:
        """As the production agent does: the checkpoint is captured at the interval that the job requests."""
        shim = self.machine.shims.get(attempt)
        job = self.machine.store.rows.get(("job", shim.job)) if shim is not None else None
        if isinstance(job, Job) and job.spec.checkpoint_ms:
            self.later(job.spec.checkpoint_ms, self._save, attempt)

    def _save(self, attempt: AttemptId) -> None:
        self._captured(attempt)
        self._save_later(attempt)

    def _start_shim(self, order: Order) -> None:
        machine = self.machine
        job = machine.store.rows["job", order.job]
        assert isinstance(job, Job)
        resumes = job.spec.recovery is Recovery.RESUME and job.checkpoint is not None
        saved_ms = machine.belongings.saved_ms.get(order.job, 0) if resumes else 0
        number = int(order.attempt.rpartition(".")[2])

        def lay_out(folder: Path) -> None:
            if job.spec.package:
                machine.belongings.unpack(job.owner, job.spec.package, folder)
            for item in job.spec.inputs:
                if item.manifest:
                    machine.belongings.unpack(job.owner, item.manifest, folder / "inputs" / item.name)

        run = Run(
            order.job, job.spec.name, job.spec.argv, dict(job.spec.env), machine.spec.id, number, saved_ms / 1_000,
            lay_out,
        )  # fmt: skip
        body = machine.bodies.of(run)
        machine.belongings.keep(order.attempt, job.owner, body)
        machine.belongings.begun_ms[order.attempt] = saved_ms
        printed = as_bytes(body.prints)
        takes_ms = max(0, body.takes_ms - saved_ms)
        program = SimProgram(
            takes_ms,
            body.exit_code,
            sha256(printed).hexdigest(),
            len(printed),
            ignores_term=body.ignores_stop,
            fells_machine_at_ms=takes_ms if body.fells_node else None,
        )
        shim = SimShim(machine, order, program)
        if shim.alive:
            machine.shims[shim.attempt] = shim
            self._save_later(shim.attempt)

    def _heard(self, stream: Stream, message: Any) -> None:
        if isinstance(message, LogsKept) and message.attempt in self.machine.belongings.left:
            # Logs and files arrive together.
            if stream is self._stream and message.attempt in self._undelivered:
                self._deliver_files(message.attempt)
            return
        super()._heard(stream, message)

    def _deliver_files(self, attempt: AttemptId) -> None:
        """The orchestrator records that the attempt sent its files; until then the logs are sent again."""
        machine = self.machine
        folder, left = machine.folders.get(attempt), machine.belongings.left[attempt]
        orchestrator = machine.find(self._random) if machine.link.whole else None

        def recorded() -> None:
            if self._undelivered.pop(attempt, None) is not None:
                self._feed(Delivered(attempt, left))

        def answered(answer: Any) -> None:
            if answer == Done():
                self.run(recorded)

        if folder is not None and orchestrator is not None:
            orchestrator.ask(ContentDelivered(attempt, folder.order.fence, left.manifest), answered)

    def _captured(self, attempt: AttemptId) -> None:
        machine = self.machine
        folder, shim = machine.folders.get(attempt), machine.shims.get(attempt)
        orchestrator = machine.find(self._random) if machine.link.whole else None
        if folder is None or orchestrator is None or shim is None or shim.body is None:
            return
        job, kept = folder.order.job, machine.belongings
        done_ms = kept.begun_ms.get(attempt, 0) + shim.body.computed_ms

        def answered(answer: Any) -> None:
            if answer == Done():
                kept.saved_ms[job] = max(kept.saved_ms.get(job, 0), done_ms)

        name = sha256(f"{attempt} {done_ms}".encode()).hexdigest()
        orchestrator.ask(Checkpointed(attempt, folder.order.fence, name, 4_096), answered)

    def _look(self) -> None:
        for shim in self.machine.running:
            if shim.body is not None:
                self._feed(Progressed(shim.attempt, Progress("run", cpu_ms=shim.body.computed_ms)))
        self.later(LOOK_EVERY_MS, self._look)

    def _deliver_logs(self) -> None:
        if self._welcomed:
            for attempt in sorted(self._undelivered):
                self._say(self._undelivered[attempt])
        self.later(LOOK_EVERY_MS, self._deliver_logs)

    def _measure(self) -> None:
        full = "disk full" if self.machine.disk_full else ""
        self._feed(LoadMeasured(Load(cpu_permille=100 * min(9, len(self.machine.running)), sick=full)))
        self.later(LOAD_EVERY_MS, self._measure)


class VirtualOrchestrator(SimOrchestrator):
    def new_core(self) -> LeaderCore:
        return LeaderCore(self.settings, pulse_ms=PULSE_MS)
