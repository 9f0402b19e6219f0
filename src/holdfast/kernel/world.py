"""What the kernel knows: rows that are stored, and what follows from them.

Rows change only through `put`, which also records the change and keeps every derived view in step: what each
node holds and has free, each owner's share, each job's contenders, the deadlines. Rebuilding is putting the
stored rows into an empty world. What is not in rows (sessions, rhythm, load, when something was last sent) is
*ephemeral*: losing it costs a repeated message, never a wrong decision.
"""

from typing import TypeVar

import msgspec

from holdfast.kernel.deadlines import Deadlines
from holdfast.kernel.decision import Row, Send
from holdfast.kernel.placement import Free, Index, Kind
from holdfast.kernel.queue import Queue
from holdfast.model import (
    Attempt,
    AttemptId,
    Entry,
    Instant,
    Job,
    JobId,
    JoinToken,
    Meta,
    Node,
    NodeId,
    NodeState,
    Owner,
    Resources,
    Settings,
    TokenId,
)
from holdfast.model.messages import Load
from holdfast.policy.chance import mix
from holdfast.policy.suspicion import Rhythm

K = TypeVar("K")


class Pulse(msgspec.Struct):
    """What is known of a node only while it is connected. Ephemeral."""

    session: int | None = None
    instance: str = ""
    heard_ms: Instant = Instant(0)
    """On the patience clock."""
    watched_ms: Instant = Instant(0)
    """When it was last given work while it held none: silence counts from then at the earliest."""
    rhythm: Rhythm = Rhythm()
    seq: int = 0
    load: Load = Load()
    pings: int = 0
    """Answered in this probation."""
    nonce: int = 0
    answered: int = 0
    """The latest probe that was answered: on a slow link an answer may come after the next probe went out."""
    late_at_join_ms: int = 0
    excused_ms: Instant | None = None
    """Since when its sessions have ended without a report: excused for a while, not for ever."""
    contested_ms: Instant | None = None
    """Another machine claimed the same identity; the present one was pinged then."""
    grace_until_ms: Instant = Instant(0)
    """After the orchestrator's own start: not suspected before this."""


class Claim(msgspec.Struct):
    """What is remembered of an attempt between messages. Ephemeral."""

    sent_ms: Instant = Instant(0)
    verifying: bool = False
    lease_from_ms: Instant | None = None
    refused: bool = False
    """The node was told once in the journal why its result does not count."""


def weight(holds: Resources) -> int:
    """How much an attempt counts in its owner's share."""
    return holds.cpu_milli + 8_000 * holds.gpus + 1


class World:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = Instant(0)
        self.meta = Meta()
        self.jobs: dict[JobId, Job] = {}
        self.attempts: dict[AttemptId, Attempt] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.tokens: dict[TokenId, JoinToken] = {}

        self.on_node: dict[NodeId, dict[AttemptId, None]] = {}
        self.of_job: dict[JobId, dict[AttemptId, None]] = {}
        self.used: dict[NodeId, Resources] = {}
        self.shares: dict[Owner, int] = {}
        self.live_of: dict[Owner, int] = {}
        self.shapes: dict[tuple[Kind, Resources], int] = {}
        """How many nodes have exactly this kind and offer: where the nearest miss is looked for."""
        self.kinds: dict[NodeId, Kind] = {}
        self.states: dict[NodeState, int] = {}
        """How many nodes are in each state."""
        self.index = Index(settings.candidates)
        self.could = Index(1)
        """Every node that has not said goodbye, as if it were idle: what could ever fit is asked of this."""
        self.queue = Queue(lambda owner: self.shares.get(owner, 0))
        self.deadlines = Deadlines()

        self.pulses: dict[NodeId, Pulse] = {}
        self.claims: dict[AttemptId, Claim] = {}
        self.freed: dict[NodeId, None] = {}
        """Nodes on which room appeared since the queue was last served."""
        self.went: dict[NodeId, Instant] = {}
        """Which nodes were suspected lately, oldest first: tells a felled node from a cut network."""

        self.woke_ms = Instant(0)
        self.forgive_until_ms = Instant(0)
        """After a long freeze of the orchestrator itself: streams that broke meanwhile are nobody's fault."""

        self.changes: list[Row] = []
        self.sends: list[Send] = []
        self._meta_before = self.meta
        # The running counters; `finish` puts them into the row.
        self._entries = self._fences = self._draws = 0

    # --- time ---

    @property
    def patience(self) -> Instant:
        """The clock of all deadlines: stands still while the orchestrator itself was late or away."""
        return Instant(self.now - self.meta.late_ms)

    def soon(self, duration_ms: int) -> Instant:
        return Instant(self.now - self.meta.late_ms + duration_ms)

    # --- one event ---

    def begin(self, now: Instant) -> None:
        self.now = Instant(max(now, self.now, self.meta.now_ms))
        self.changes = []
        self.sends = []
        self._meta_before = self.meta

    def finish(self) -> None:
        """Counters are one row; it is written only if something else is, or if it changed itself."""
        m = self.meta
        if self.changes or m is not self._meta_before or self._draws != m.draws:
            self.meta = Meta(m.epoch, self._entries, self._fences, self._draws, m.seed, m.late_ms, self.now)
            self.changes.append(self.meta)

    def draw(self) -> int:
        """64 random bits, the same ones on every replay."""
        self._draws += 1
        return mix(self.meta.seed, self._draws)

    def next_fence(self) -> int:
        self._fences += 1
        return self._fences

    def note(
        self,
        kind: str,
        text: str,
        job: JobId | None = None,
        attempt: AttemptId | None = None,
        node: NodeId | None = None,
    ) -> None:
        """A line in the journal."""
        self._entries += 1
        self.changes.append(Entry(self._entries, self.now, kind, text, job, attempt, node))

    def send(self, *sends: Send) -> None:
        self.sends.extend(sends)

    # --- rows ---

    def put(self, row: Job | Attempt | Node | JoinToken) -> None:
        """Store a row and bring every view into step."""
        self.changes.append(row)
        if type(row) is Attempt:
            self._load_attempt(row)
        else:
            self.load(row)

    def load(self, row: Job | Attempt | Node | JoinToken | Meta) -> None:
        match row:
            case Attempt():
                self._load_attempt(row)
            case Job():
                self._load_job(row)
            case Node():
                self._load_node(row)
            case JoinToken():
                self.tokens[row.id] = row
            case Meta():
                self.meta = row
                self._entries, self._fences, self._draws = row.entry_seq, row.fence, row.draws
                self.now = Instant(max(self.now, row.now_ms))

    def _load_job(self, job: Job) -> None:
        known = job.id in self.jobs
        if job.live:
            self.jobs[job.id] = job
            if not known:
                self.live_of[job.owner] = self.live_of.get(job.owner, 0) + 1
        elif known:
            del self.jobs[job.id]
            self.deadlines.drop("job", job.id)
            self.queue.leave(job.id)
            self._less(self.live_of, job.owner, 1)

    def _load_attempt(self, attempt: Attempt) -> None:
        old = self.attempts.get(attempt.id)
        before = weight(old.holds) if old is not None and old.revoked is None else 0
        after = weight(attempt.holds) if attempt.may_win else 0
        if attempt.live:
            self.attempts[attempt.id] = attempt
            if attempt.phase_until_ms:
                self.deadlines.add(attempt.phase_until_ms, "attempt", attempt.id)
            if old is None:
                self.on_node.setdefault(attempt.node, {})[attempt.id] = None
                self.of_job.setdefault(attempt.job, {})[attempt.id] = None
                self.claims[attempt.id] = Claim()
                self.used[attempt.node] = self.used.get(attempt.node, Resources()) + attempt.holds
                self.reindex(attempt.node)
        elif old is not None:
            del self.attempts[attempt.id]
            for subject in ("attempt", "offer", "lease"):
                self.deadlines.drop(subject, attempt.id)
            self.claims.pop(attempt.id, None)
            self._drop(self.on_node, attempt.node, attempt.id)
            self._drop(self.of_job, attempt.job, attempt.id)
            self.used[attempt.node] = self.used[attempt.node] - attempt.holds
            self.freed[attempt.node] = None
            self.reindex(attempt.node)
        if before != after:
            self._less(self.shares, attempt.owner, before - after)
            self.queue.share_changed(attempt.owner)

    def _load_node(self, node: Node) -> None:
        old = self.nodes.get(node.id)
        self.nodes[node.id] = node
        self.kinds[node.id] = kind_of(node)
        if old is not None and old.state is not NodeState.GONE:
            self._less(self.shapes, (kind_of(old), old.offered), 1)
        if node.state is NodeState.GONE:
            self.could.remove(node.id)
        else:
            room = node.offered
            self.could.set(node.id, self.kinds[node.id], (room.cpu_milli, room.memory_mib, room.disk_mib, room.gpus))
            shape = (self.kinds[node.id], node.offered)
            self.shapes[shape] = self.shapes.get(shape, 0) + 1
        if old is not None:
            self._less(self.states, old.state, 1)
        self.states[node.state] = self.states.get(node.state, 0) + 1
        if node.state_until_ms:
            self.deadlines.add(node.state_until_ms, "node", node.id)
        if node.draining and node.drain_until_ms:
            self.deadlines.add(node.drain_until_ms, "drain", node.id)
        self.freed[node.id] = None
        self.reindex(node.id)

    @staticmethod
    def _less(counts: dict[K, int], key: K, by: int) -> None:
        left = counts.get(key, 0) - by
        if left:
            counts[key] = left
        else:
            counts.pop(key, None)

    @staticmethod
    def _drop(groups: dict[K, dict[AttemptId, None]], key: K, attempt: AttemptId) -> None:
        group = groups[key]
        del group[attempt]
        if not group:
            del groups[key]

    # --- views ---

    def pulse(self, node: NodeId) -> Pulse:
        pulse = self.pulses.get(node)
        if pulse is None:
            pulse = self.pulses[node] = Pulse()
        return pulse

    def held_by(self, node: NodeId) -> list[Attempt]:
        """Live attempts on a node, in the order of their ids."""
        return [self.attempts[a] for a in sorted(self.on_node.get(node, ()))]

    def attempts_of(self, job: JobId) -> list[Attempt]:
        """Live attempts of a job, oldest first."""
        return sorted((self.attempts[a] for a in self.of_job.get(job, ())), key=lambda a: a.fence)

    def closed_to_work(self, node: Node) -> str:
        """The gate that keeps all work from this node now, by name; empty if there is none."""
        pulse = self.pulses.get(node.id)
        if node.state not in (NodeState.READY, NodeState.PROBATION):
            return node.state.value
        if pulse is None or pulse.session is None:
            return "disconnected"
        if node.draining:
            return "draining"
        held = len(self.on_node.get(node.id, ()))
        if node.state is NodeState.PROBATION:
            if pulse.pings < self.settings.probation_pings:
                return "probation: probing"
            if held:
                return "probation: one at a time"
        if held >= self.settings.attempts_per_node_max:
            return "too many attempts"
        return ""

    def reindex(self, node_id: NodeId) -> None:
        """Bring placement into step with a node's state, session and use."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        if self.closed_to_work(node):
            self.index.remove(node_id)
        else:
            self.index.set(node_id, self.kinds[node_id], self.free_on(node))

    def free_on(self, node: Node) -> Free:
        used = self.used.get(node.id)
        room = node.offered
        if used is None:
            return (room.cpu_milli, room.memory_mib, room.disk_mib, room.gpus)
        return (
            room.cpu_milli - used.cpu_milli,
            room.memory_mib - used.memory_mib,
            room.disk_mib - used.disk_mib,
            room.gpus - used.gpus,
        )


def kind_of(node: Node) -> Kind:
    """Architecture and GPUs. A machine with different models serves only needs that name none: which of them a job
    would get is not known here."""
    gpus = node.hardware.gpus
    if not gpus:
        return (node.hardware.arch, "", 0)
    models = {g.model for g in gpus}
    return (node.hardware.arch, models.pop() if len(models) == 1 else "", min(g.memory_mib for g in gpus))
