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
    JoinToken,
    Meta,
    Node,
    NodeId,
    Owner,
    Pace,
    Recovery,
    Resources,
    Result,
    Settings,
    job_id,
)
from holdfast.model.messages import Held, HeldPhase, Hello, Report, Welcome

ROOM = Resources(4_000, 4_096, 10_000, 0)
SETTINGS = replace(Settings.test(), open_join=True)
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
            if isinstance(row, Job | Attempt | Node | JoinToken | Pace | Meta):
                self.rows[str(getattr(row, "id", "meta"))] = row
        self.sends = list(decision.sends)
        return decision

    def restart(self, epoch: int, away_ms: int = 0) -> None:
        """A new leader, from the rows alone."""
        rows = list(self.rows.values())
        self.kernel = Kernel.load(
            self.settings,
            next((r for r in rows if isinstance(r, Meta)), None),
            [r for r in rows if isinstance(r, Node)],
            [r for r in rows if isinstance(r, Job) and r.live],
            [r for r in rows if isinstance(r, Attempt) and r.live],
            [r for r in rows if isinstance(r, JoinToken)],
            [r for r in rows if isinstance(r, Pace)],
        )
        self.now += away_ms
        self.tell(Led(epoch, 7))

    def wait(self, ms: int, step: int = 50, report: dict[str, list[Held]] | None = None) -> None:
        """Time passes; these nodes go on reporting what they hold."""
        for _ in range(0, ms, step):
            self.now += step
            for node, held in (report or {}).items():
                self.report(node, *held)
            self.tell(Tick())

    def join(self, node: str, **more: Any) -> None:
        """Dial in; a node that is welcome then reports what it holds, as every node does."""
        self.sessions[node] = session = max(self.sessions.values(), default=0) + 1
        self.seqs[node] = 0
        known = {"instance": "first", "public_key": "k" * 64, "version": "0.1.0", "hardware": Hardware(total=ROOM)}
        hello = Hello(NodeId(node), isolation="bubblewrap", **{"offered": ROOM, **known, **more})
        self.tell(NodeJoined(session, hello))
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
