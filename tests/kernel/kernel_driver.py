"""A kernel driven by hand, for stories about single rules: events go in, the rows it decided are looked at."""

from typing import Any

from msgspec.structs import replace

from holdfast.kernel.decision import Decision, ToSession
from holdfast.kernel.events import AnyEvent, Led, NodeBroke, NodeJoined, NodeSaid, Submitted, Tick
from holdfast.kernel.kernel import Kernel
from holdfast.model import (
    Attempt,
    Failure,
    Hardware,
    Instant,
    Job,
    JobSpec,
    Need,
    Node,
    NodeId,
    NodeRecord,
    Owner,
    Recovery,
    Resources,
    Result,
    Settings,
    job_id,
)
from holdfast.model.messages import Held, HeldPhase, Hello, Progress, Report, Welcome
from holdfast.model.rows import BY_TYPE, Live

ROOM = Resources(4_000, 4_096, 10_000, 0)
SETTINGS = replace(Settings.test(), open_join=True, newcomer_attempts=256)
"""For stories about rules other than records: every machine is given as much work as fits."""
GOOD = Result("aa" * 32, 3)


class Network:
    """A kernel and the rows it decided, driven by hand. Every decision is committed at once."""

    def __init__(self, settings: Settings = SETTINGS, epoch: int = 1) -> None:
        self.settings = settings
        self.kernel = Kernel(settings)
        self.now = 1_000_000
        self.rows: dict[str, Any] = {}
        self.sends: list[Any] = []
        self.sessions: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        self.tell(Led(epoch, 7))

    def tell(self, event: AnyEvent) -> Decision:
        decision = self.kernel.apply(event, Instant(self.now))
        for row in decision.changes:
            if BY_TYPE[type(row)].live is not Live.NONE:
                place = getattr(row, "id", "meta")
                self.rows[f"record of {place}" if isinstance(row, NodeRecord) else place] = row
            if BY_TYPE[type(row)].replaces is not None:
                for place in (row.id, f"record of {row.id}"):  # pyright: ignore[reportAttributeAccessIssue]
                    self.rows.pop(place, None)
        self.sends = list(decision.sends)
        return decision

    def restart(self, epoch: int, away_ms: int = 0) -> None:
        """A new leader, from the rows alone."""
        self.kernel = Kernel.load(self.settings, self.rows.values())
        self.now += away_ms
        self.tell(Led(epoch, 7))

    def wait(self, ms: int, step: int = 50, report: dict[str, list[Held]] | None = None) -> None:
        """Time passes; these nodes go on reporting what they hold."""
        for _ in range(0, ms, step):
            self.now += step
            for node, held in (report or {}).items():
                self.report(node, *held)
            self.tell(Tick())

    def join(self, node: str, address: str = "", key_sha256: str = "", **more: Any) -> None:
        """Dial in; a node that is welcome then reports what it holds, as every node does."""
        self.sessions[node] = session = max(self.sessions.values(), default=0) + 1
        self.seqs[node] = 0
        known = {"instance": "first", "public_key": "k" * 64, "version": "0.1.0", "hardware": Hardware(total=ROOM)}
        hello = Hello(NodeId(node), isolation="bubblewrap", **{"offered": ROOM, **known, **more})
        self.tell(NodeJoined(session, hello, address, key_sha256))
        if self.said(Welcome):
            sends = self.sends
            self.report(node, *hello.held)
            self.sends = sends + self.sends

    def leave(self, node: str) -> Decision:
        return self.tell(NodeBroke(self.sessions[node], NodeId(node), "cut"))

    def report(self, node: str, *held: Held, renew: tuple[Any, ...] = (), full: bool = True) -> Decision:
        self.seqs[node] += 1
        report = Report(self.seqs[node], full, held, renew=renew)
        return self.tell(NodeSaid(self.sessions[node], NodeId(node), report))

    def submit(self, key: str = "k", recovery: Recovery = Recovery.RESTART, owner: str = "ann", **more: Any) -> Any:
        spec = JobSpec(("true",), recovery=recovery, **more)
        job = job_id(owner, key)
        return self.tell(Submitted(job, Owner(owner), spec, f"hash of {sorted(more.items())}")).answer

    def job(self, key: str = "k", owner: str = "ann") -> Job:
        return self.rows[job_id(owner, key)]

    def attempts(self, key: str = "k", owner: str = "ann") -> list[Attempt]:
        mine = (r for r in self.rows.values() if isinstance(r, Attempt) and r.job == job_id(owner, key))
        return sorted(mine, key=lambda a: a.fence)

    def node(self, node: str) -> Node:
        return self.rows[node]

    def record(self, node: str) -> NodeRecord:
        return self.rows.get(f"record of {node}") or NodeRecord(NodeId(node))

    def said(self, kind: type) -> list[Any]:
        """Messages of this kind in the last decision."""
        return [s.message for s in self.sends if isinstance(s, ToSession) and isinstance(s.message, kind)]


def seen(attempt: Attempt, phase: HeldPhase, result: Result | None = None, failure: Failure | None = None) -> Held:
    return Held(attempt.id, attempt.fence, phase, result, failure)


def with_two_nodes(settings: Settings = SETTINGS) -> Network:
    network = Network(settings)
    network.join("node_a")
    network.join("node_b")
    return network


# --- bodies that run ---

EAGER = replace(
    SETTINGS,
    stall_ms=3_000,
    slow_ms_min=3_000,
    slow_peers_min=2,
    suspect_ms_max=60_000,
    lease_ms=60_000,
    reserve_ms=60_000,
)
WHOLE = Need(Resources(4_000, 512, 100, 0))
"""A whole machine."""
HALF = Need(Resources(2_000, 512, 100, 0))


def network_of(*nodes: str) -> Network:
    network = Network(EAGER)
    for node in nodes:
        network.join(node)
    return network


def at(attempt: Attempt, cpu_ms: int = 10, printed: int = 0) -> Held:
    """Its body runs and has got so far."""
    return replace(seen(attempt, HeldPhase.RUNNING), progress=Progress("run", cpu_ms=cpu_ms, printed=printed))


def stand_still(network: Network, *attempts: Attempt, ms: int = EAGER.stall_ms + 1_000) -> None:
    """These bodies run and do nothing for so long."""
    held: dict[str, list[Held]] = {}
    for attempt in attempts:
        held.setdefault(attempt.node, []).append(at(attempt))
    network.wait(ms, step=200, report=held)
