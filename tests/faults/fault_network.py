"""A network to break: every life of its orchestrator is recorded, and its jobs run until they are let go.

A job made by `hold` prints `begun`, waits for a file in its scratch folder, prints `done`. So a test decides which
attempt may end and when, and two attempts of a job print the same.
"""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psutil
from warm import SETTINGS, WarmOrchestrator

from holdfast.model import Settings
from holdfast.node.attempt.attempt_folders import read_identity
from holdfast.node.linux import is_alive
from holdfast.orchestrator.leader import record
from holdfast.testing.processes import READY_S, LocalNetwork, NodeProcesses, OrchestratorProcess, wait_for
from holdfast.wire.http import EventView, JobView

HELD = ["sh", "-c", "echo begun; while [ ! -e release ]; do sleep 0.05; done; echo done"]
PRINTED = "begun\ndone\n"
COUNTING = """
cd "$HOLDFAST_CHECKPOINT_DIR"
n=$(cat count 2>/dev/null || echo 0)
echo "from $n"
while [ ! -e "$OLDPWD/release" ]; do
  n=$((n + 1)); echo $n > .count.new; mv .count.new count; sleep 0.05
done
"""
"""Counts until it is let go, goes on from the number that was saved, and saves every number whole."""
Fleet = Callable[..., "FaultNetwork"]
"""Starts an orchestrator and nodes of these names, once for a module (conftest.py)."""
SMALL: dict[str, Any] = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}
"""So that any node has room for several."""
PATIENT: dict[str, int] = {
    "silence_floor_ms": 15_000,
    "silence_ceiling_ms": 20_000,
    "idle_silence_ms": 30_000,
    "lease_ms": 30_000,
    "reconnect_grace_ms": 20_000,
    "offer_ms_max": 10_000,
    "prepare_ms_max": 60_000,
    "upload_ms_max": 60_000,
    "save_ms_max": 30_000,
    "orphan_ms_max": 60_000,
    "suspect_ms_max": 90_000,
}
"""What holds in a network of the preset `test` here, unless it says otherwise. What that preset itself takes for a
fault is at times no more than a busy machine, on which for a second or two nothing was run of a node that is well.
Whoever is killed is missed at once: a connection ends."""
QUICK: dict[str, int] = {"silence_floor_ms": 2_000, "silence_ceiling_ms": 4_000, "lease_ms": 7_000}
"""For stories of machines that stand still or are cut off, where silence is all there is to notice."""
QUICK_RULES = msgspec.structs.replace(Settings.test(), **{**PATIENT, **QUICK})


@contextlib.contextmanager
def small_disk(place: Path, mib: int) -> Iterator[Path]:
    """A file system of its own, with room for little."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "holdfast-test", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class FaultNetwork(LocalNetwork):
    open_ones: ClassVar[list["FaultNetwork"]] = []
    """Those whose records are still to be replayed (conftest.py)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rules: dict[str, int] = {}
        """What is different from `PATIENT` in every life of its orchestrator."""
        self.closed = False
        self._replayed: set[Path] = set()
        """Records of lives that are over, which do not change any more."""
        self.open_ones.append(self)

    @property
    def up(self) -> OrchestratorProcess:
        """The orchestrator's present life."""
        return self._up()

    # --- records ---

    def launch(
        self, words: list[str], env: dict[str, str] | None, log: Path, url: str, listen: str
    ) -> OrchestratorProcess:
        """One record for each life: a line cut by a kill must not be continued by the next one."""
        path = self.folder / f"record-{len(self.records()) + 1:03}.jsonl"
        path.touch()
        env = env or {}
        rules = msgspec.json.encode({**PATIENT, **self.rules, **msgspec.json.decode(env.get(SETTINGS, "{}"))}).decode()
        env = self.environment({record.ENVIRONMENT: str(path), **env, SETTINGS: rules})
        return WarmOrchestrator(words, env, log, url, listen)

    def records(self) -> list[Path]:
        return sorted(self.folder.glob("record-*.jsonl"))

    def check_records(self) -> None:
        """What the kernel was told, told again, gives the same decisions: in every life so far."""
        fresh = [path for path in self.records() if path not in self._replayed]
        wrong = [f"{path.name}: {mismatch}" for path in fresh for mismatch in record.replay(path)]
        assert not wrong, "\n".join(wrong)
        self._replayed.update(fresh[:-1])
        lived = [path for path in self.records() if b'"Led"' in path.read_bytes()]
        assert lived, f"no life of the orchestrator of {self.folder} was recorded"

    def close(self) -> None:
        super().close()
        self.closed = True

    # --- jobs that wait to be let go ---

    def hold(self, **fields: Any) -> str:
        return self.client().jobs.submit(HELD, **{**SMALL, **fields}).id

    def hold_on(self, node: NodeProcesses, **fields: Any) -> str:
        """A held job that runs on this very node: more are made, and stopped, until one falls there."""
        client = self.client()
        elsewhere: list[str] = []
        try:
            while True:
                job = self.hold(**fields)
                if self.node_running(job) is node:
                    return job
                elsewhere.append(job)
                assert len(elsewhere) < 20, f"none of {len(elsewhere)} jobs was placed on {node.name}"
        finally:
            for job in elsewhere:
                client.jobs.stop(job)
                wait_for(lambda job=job: not self.folders(job), f"{job} to be gone")

    def successor(self, job: str, first: NodeProcesses, timeout_s: float = READY_S) -> NodeProcesses:
        """The node on which another attempt of the job runs, once it does."""
        what = f"{job} to run on another node than {first.name}"
        wait_for(lambda: self.node_running(job) is not first, what, timeout_s)
        return self.node_running(job)

    def folders(self, job: str, node: NodeProcesses | None = None) -> list[Path]:
        """What nodes have on disk of a job's attempts."""
        homes = [node.home] if node else [n.home for n in self.nodes.values()]
        return sorted(f for home in homes for f in home.glob(f"attempts/att_{job.removeprefix('job_')}.*"))

    def let_go(self, job: str, node: NodeProcesses | None = None) -> None:
        """Let the attempts end that are there now; on one node only, if one is named."""
        for folder in self.folders(job, node):
            # Its scratch may be mounted where only the shim sees it (a node in a namespace), or be on its way out.
            identity = read_identity(folder)
            seen = Path(f"/proc/{identity[0]}/root{folder}") if identity and is_alive(*identity) else folder
            with contextlib.suppress(OSError):
                if (seen / "work").is_dir():
                    (seen / "work" / "release").touch()

    def finish(self, job: str, timeout_s: float = READY_S) -> JobView:
        """Let every attempt end, also one that starts meanwhile, until the job has; the job as it ended."""

        def ended() -> JobView | None:
            self.let_go(job)
            view = self.client().jobs.get(job)
            return view if view.phase == "ended" else None

        view = wait_for(ended, f"{job} to end", timeout_s)
        assert view is not None
        return view

    def output(self, job: str) -> str:
        """What of its stdout is durable, all attempts together."""
        return "".join(line.text for line in self.client().jobs.logs(job, stream="stdout") if line.stream == "stdout")

    def wait_output(self, job: str, text: str = "begun\n") -> None:
        wait_for(lambda: text in self.output(job), f"{text!r} of {job} to be durable")

    # --- the journal ---

    def journal(self, *kinds: str, job: str | None = None, node: str | None = None, after: int = 0) -> list[EventView]:
        found = self.client().events(job=job, node=node, after=after)
        return [entry for entry in found if not kinds or entry.kind in kinds]

    def entry(
        self, kind: str, job: str | None = None, node: str | None = None, after: int = 0, timeout_s: float = READY_S
    ) -> EventView:
        """The first entry of a kind, once there is one."""
        what = f"{kind} of {job or node or 'anything'} in the journal"
        return wait_for(lambda: self.journal(kind, job=job, node=node, after=after), what, timeout_s)[0]

    def now(self) -> int:
        """The number of the last entry: where a story begins in a network that has a past."""
        return max((entry.seq for entry in self.journal()), default=0)

    # --- nodes ---

    def other(self, node: NodeProcesses) -> NodeProcesses:
        return next(n for n in self.nodes.values() if n is not node)

    def connected(self, node: NodeProcesses) -> bool:
        return any(v.connected for v in self.client().nodes.list() if v.id == node.id)

    def wait_clean(self, node: NodeProcesses, timeout_s: float = READY_S) -> None:
        """Until nothing of any attempt is left on a node: no shim, no body, no folder."""
        wait_for(lambda: not node.bodies() and not node.shims(), f"{node.name} to run nothing", timeout_s)
        attempts = node.home / "attempts"
        wait_for(lambda: not list(attempts.iterdir()), f"{attempts} to be empty", timeout_s)

    def settle(self) -> None:
        """Make a used network fit for the next story: nothing runs, every node is there and takes work."""
        client = self.client()
        for view in client.jobs.list(limit=1000).jobs:
            if view.phase != "ended":
                client.jobs.stop(view.id)
        for node in list(self.nodes.values()):
            if not node.running():
                self.start_again(node)
            else:
                node.thaw_tree()
        for name, node in self.nodes.items():
            identity = self.wait_node(name)
            if client.nodes.get(identity).draining:
                client.nodes.drain(identity, on=False)
            self.wait_clean(node)

    def start_again(self, node: NodeProcesses) -> NodeProcesses:
        """The same machine comes back, with the same flags."""
        node.close()
        after = NodeProcesses(node.name, node.home, node.words, node.env, node.log, node.through)
        self.nodes[node.name] = after
        self._programs.append(after)
        return after


def program_of(node: NodeProcesses) -> psutil.Process:
    """The job's own process: what the person asked to run, not the sandbox around it."""
    found = wait_for(lambda: [p for p in node.bodies() if _words(p)[:2] == HELD[:2]], f"a body on {node.name}")
    return found[0]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def lives(process: psutil.Process) -> bool:
    """Whether this very process lives: neither gone, nor a corpse, nor another one with its number."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
