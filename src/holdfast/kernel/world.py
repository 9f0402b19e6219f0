"""The state of the kernel: the stored rows, and the views derived from them.

Rows change only through `put`, which also records the change and keeps every derived view in step: what each
node holds and has free, each owner's share, each job's contenders, the deadlines. A rebuild loads the
stored rows into an empty world. State that is not in rows (sessions, rhythm, load, when something was last sent) is
*ephemeral*: losing it costs a repeated message, never a wrong decision.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from holdfast.kernel.deadlines import Deadlines
from holdfast.kernel.decision import Row, Send
from holdfast.kernel.joining import JoinLimits
from holdfast.kernel.members import Claim, Member, Presence
from holdfast.kernel.newest_rows import NewestRows
from holdfast.kernel.placement import Free, NodeIndex, NodeKind, Seat, plain_kind
from holdfast.kernel.queue import Queue
from holdfast.model import (
    Attempt,
    AttemptId,
    AttemptPhase,
    DeletedJob,
    DeletedNode,
    DeletedToken,
    DurationHistory,
    Entry,
    Facts,
    Gate,
    Instant,
    Job,
    JobId,
    JobPhase,
    JoinToken,
    Meta,
    Node,
    NodeId,
    NodeRecord,
    NodeState,
    Owner,
    Resources,
    Settings,
    TokenId,
    WallTimes,
)
from holdfast.model.cause_text import entry_text
from holdfast.model.rows import ROWS, Live, is_live, key_of
from holdfast.policy import record
from holdfast.policy.chance import mix
from holdfast.policy.versions import parts

if TYPE_CHECKING:
    from holdfast.kernel.lifecycle import Lifecycle

K = TypeVar("K")

# Every decision uses these enum members; a module constant saves the lookup through the class.
_JOB_ENDED = JobPhase.ENDED
_ATTEMPT_ENDED = AttemptPhase.ENDED
_OFFERED = AttemptPhase.OFFERED
_READY = NodeState.READY

NO_FACTS = Facts()
NO_WALL_TIMES = WallTimes()
KINDS_MAX = 512
"""How many kinds of nodes are told apart; a node of a further kind counts as a plain one. Nodes choose what they say of
themselves, and every new need is compared with all kinds."""
ENDED_MAX = 20_000
"""How many ended jobs are remembered. The store knows all of them: one that is forgotten here and submitted again costs
a refused commit (docs/decisions/0022)."""
DEPARTED = (NodeState.LOST, NodeState.GONE)
"""The states of a node that is away for good, unless it joins again."""
_CLOSED = {
    NodeState.SUSPECT: Gate.SUSPECT,
    NodeState.QUARANTINED: Gate.QUARANTINED,
    NodeState.LOST: Gate.LOST,
    NodeState.GONE: Gate.GONE,
}
"""The states in which a node gets no work, with their gates."""


def weight(holds: Resources) -> int:
    """How much an attempt counts in its owner's share."""
    return holds.cpu_milli + 8_000 * holds.gpus + 1


class World:
    def __init__(self, settings: Settings, lifecycle: "Lifecycle") -> None:
        self.settings = settings
        self.lifecycle = lifecycle
        """The mechanisms, each with its own state."""
        self.now = Instant(0)
        """Served time: it advances while an orchestrator leads, and no clock that can be set moves it."""
        self.patience = Instant(0)
        """The clock of all deadlines. It stands still while the orchestrator itself is late or away."""
        self.meta = Meta()
        self.rows: dict[type[Row], dict[Any, Any]] = {row.kind: {} for row in ROWS if row.live is not Live.NONE}
        """Every live row by kind and key. The kinds that are read most also have an attribute of their own."""
        self.jobs: dict[JobId, Job] = self.rows[Job]
        self.attempts: dict[AttemptId, Attempt] = self.rows[Attempt]
        self.ended: dict[JobId, str] = {}
        """The jobs that ended last, oldest first: id to hash of the specification, or "" where only an attempt of the
        job is known. Ephemeral, at most `ENDED_MAX`."""
        self.deleted: dict[str, str] = {}
        """The ids that were deleted last, oldest first: of a job to the hash of its specification, of a node to the
        fingerprint of its key. Ephemeral, at most `ENDED_MAX`."""
        self.nodes: dict[NodeId, Node] = self.rows[Node]
        self.present: dict[NodeId, None] = {}
        """The nodes that are neither lost nor gone."""
        self.departed: dict[NodeId, None] = {}
        """The nodes that are, in the order in which they left."""
        self.tokens: dict[TokenId, JoinToken] = self.rows[JoinToken]
        self.records: dict[NodeId, NodeRecord] = self.rows[NodeRecord]
        self.ends = self.blamed = 0
        """The sums over all records: ends, and those that a machine blamed on an owner."""
        self.unproven: dict[NodeId, None] = {}
        """Nodes that get no fresh work only because of their record. They may still confirm failures of others."""
        self.unproven_changed = False
        """Whether such a node may have room that it had not before."""

        self.fleet: dict[NodeId, Member] = {}
        """Every node that joined, or tries to."""
        self.shares: dict[Owner, int] = {}
        self.live_of: dict[Owner, int] = {}
        self.shapes: dict[tuple[NodeKind, Resources], int] = {}
        """The number of nodes with exactly this kind and offer. The nearest miss is looked for here."""
        self.kinds: dict[NodeKind, int] = {}
        """The number of nodes of each kind that have not left."""
        self.states: dict[NodeState, int] = {}
        """How many nodes are in each state."""
        self.index = NodeIndex[Member](settings.candidates)
        self.could = NodeIndex[Seat](1)
        """Every node that has not left, as if it were idle. It tells whether a need could ever fit."""
        self.queue = Queue(lambda owner: self.shares.get(owner, 0))
        self.deadlines = Deadlines()

        self.limits = JoinLimits()
        self.claims: dict[AttemptId, Claim] = {}
        self.durations: dict[str, DurationHistory] = self.rows[DurationHistory]
        """Recent durations by kind of job (kernel.duration_history)."""
        self.freed: dict[NodeId, None] = {}
        """Nodes on which room appeared since the queue was last served."""

        self._loading: dict[type[Row], Callable[[Any], None]] = {
            **dict.fromkeys(self.rows, self._load_plain),
            **{row.kind: NewestRows(row.kind, self.rows[row.kind]).load for row in ROWS if row.newest is not None},
            Attempt: self._load_attempt,
            Job: self._load_job,
            Node: self._load_node,
            NodeRecord: self._load_record,
            JoinToken: self._load_token,
            Meta: self._load_meta,
            DeletedJob: lambda _: None,
            DeletedNode: self._drop_node,
            DeletedToken: self._drop_token,
        }
        """By kind of row, the function that updates the views."""
        self.changes: list[Row] = []
        self.sends: list[Send] = []
        self._meta_before = self.meta
        # The running counters; `finish` puts them into the row.
        self._entries = self._fences = self._draws = 0

    # --- time ---

    def soon(self, duration_ms: int) -> Instant:
        """The moment this long from now, on the patience clock."""
        return Instant(self.patience + duration_ms)

    def was_late(self, late_ms: int) -> None:
        """The orchestrator itself was late or away for this long: move every deadline by as much."""
        self.meta = replace(self.meta, late_ms=self.meta.late_ms + late_ms)
        self.patience = Instant(self.now - self.meta.late_ms)

    @property
    def wall_times(self) -> WallTimes:
        return self.rows[WallTimes].get(0, NO_WALL_TIMES)

    # --- one event ---

    def begin(self, now: Instant) -> None:
        if now > self.now:
            self.now = now
            self.patience = Instant(now - self.meta.late_ms)
        self.changes = []
        self.sends = []
        self._meta_before = self.meta

    def finish(self) -> None:
        """Write the row of counters, but only if it or another row changed."""
        m = self.meta
        if self.changes or m is not self._meta_before or self._draws != m.draws:
            self.meta = Meta(
                m.epoch, self._entries, self._fences, self._draws, m.seed, m.late_ms, self.now, m.numbers_skipped,
                m.restored_fence,
            )  # fmt: skip
            self.changes.append(self.meta)

    def draw(self) -> int:
        """64 random bits, the same ones on every replay."""
        self._draws += 1
        return mix(self.meta.seed, self._draws)

    def peek(self) -> int:
        """What `draw` would return next."""
        return mix(self.meta.seed, self._draws + 1)

    def next_fence(self) -> int:
        self._fences += 1
        return self._fences

    @property
    def written(self) -> int:
        """The number of journal entries. It grows with every event that a person may ask about."""
        return self._entries

    def note(
        self,
        kind: str,
        facts: Facts = NO_FACTS,
        job: JobId | None = None,
        attempt: AttemptId | None = None,
        node: NodeId | None = None,
    ) -> None:
        """Add an entry to the journal."""
        self._entries += 1
        self.changes.append(Entry(self._entries, self.now, kind, entry_text(kind, facts), job, attempt, node, facts))

    def send(self, *sends: Send) -> None:
        self.sends.extend(sends)

    # --- rows ---

    def put(self, row: Row) -> None:
        """Store a row and update every view."""
        self.changes.append(row)
        self._loading[type(row)](row)

    def load(self, row: Row) -> None:
        """Load a row that is already stored."""
        self._loading[type(row)](row)

    def _load_meta(self, meta: Meta) -> None:
        self.meta = meta
        self._entries, self._fences, self._draws = meta.entry_seq, meta.fence, meta.draws
        self.now = Instant(max(self.now, meta.now_ms))
        self.patience = Instant(self.now - meta.late_ms)

    def _load_plain(self, row: Row) -> None:
        """Load a row that no view is derived from."""
        if is_live(row):
            self.rows[type(row)][key_of(row)] = row
        else:
            self.rows[type(row)].pop(key_of(row), None)

    def _load_job(self, job: Job) -> None:
        old = self.jobs.get(job.id)
        for changed in self.lifecycle.job_changed:
            changed(self, old, job)
        if job.phase is not _JOB_ENDED:
            self.jobs[job.id] = job
            if old is None:
                self.live_of[job.owner] = self.live_of.get(job.owner, 0) + 1
        elif old is not None:
            del self.jobs[job.id]
            self.remember_ended(job.id, job.spec_hash)
            self.deadlines.drop("job", job.id)
            self.queue.leave(job.id)
            self._less(self.live_of, job.owner, 1)

    def remember_ended(self, job: JobId, spec_hash: str) -> None:
        self.ended[job] = spec_hash
        if len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def remember_deleted(self, id: str, mark: str) -> None:
        self.deleted[id] = mark
        if len(self.deleted) > ENDED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def _load_token(self, token: JoinToken) -> None:
        self.tokens[token.id] = token
        late_ms = self.meta.late_ms
        self.deadlines.add(Instant(token.expires_ms + self.settings.tokens_keep_ms - late_ms), "token", token.id)

    def _drop_token(self, deleted: DeletedToken) -> None:
        self.tokens.pop(deleted.id, None)
        self.deadlines.drop("token", deleted.id)

    def _load_attempt(self, attempt: Attempt) -> None:
        old = self.attempts.get(attempt.id)
        if attempt.phase is _ATTEMPT_ENDED:
            if old is not None:
                self._attempt_went(old)
        elif old is None:
            self._attempt_came(attempt, self.member(attempt.node))
        else:
            self.attempts[attempt.id] = attempt
            if attempt.phase_until_ms:
                self.deadlines.add(attempt.phase_until_ms, "attempt", attempt.id)
            if attempt.revoked is not None and old.revoked is None:
                self._change_share(attempt.owner, -weight(attempt.holds))

    def put_new(self, attempt: Attempt, member: Member) -> None:
        """`put` for a new attempt, when the caller has the member of its node."""
        self.changes.append(attempt)
        self._attempt_came(attempt, member)

    def _attempt_came(self, attempt: Attempt, member: Member) -> None:
        """An attempt occupies its node from now on."""
        id = attempt.id
        self.attempts[id] = attempt
        due = attempt.phase_until_ms
        if attempt.phase is _OFFERED:
            due = min(due, self.soon(self.settings.resend_ms))
        if due:
            self.deadlines.add(due, "attempt", id)
        member.held = held = (*member.held, id)
        if attempt.revoked is None:
            self._change_share(attempt.owner, weight(attempt.holds))
        if member.cell is not None and member.state is _READY and len(held) < _fresh_max(member, self.settings):
            self.index.take(member, attempt.holds)
        else:
            self.reindex(member.node)

    def _attempt_went(self, attempt: Attempt) -> None:
        """An attempt is over, and the room it held is free."""
        id = attempt.id
        del self.attempts[id]
        self.claims.pop(id, None)
        self.lifecycle.closed(attempt)
        self.deadlines.drop("attempt", id)
        self.deadlines.drop("lease", id)
        member = self.fleet[attempt.node]
        member.held = tuple(a for a in member.held if a != id)
        if attempt.revoked is None:
            self._change_share(attempt.owner, -weight(attempt.holds))
        self.freed[member.node] = None
        if member.cell is not None and member.state is _READY:
            self.index.give(member, attempt.holds)
        else:
            self.reindex(member.node)

    def _change_share(self, owner: Owner, by: int) -> None:
        share = self.shares.get(owner, 0) + by
        if share:
            self.shares[owner] = share
        else:
            del self.shares[owner]
        if self.queue.waiting:
            self.queue.share_changed(owner)

    def _load_node(self, node: Node) -> None:
        old = self.nodes.get(node.id)
        self.nodes[node.id] = node
        member = self.member(node.id)
        room = node.offered
        if old is not None:
            self._less(self.states, old.state, 1)
            if old.state is not NodeState.GONE:
                self._less(self.shapes, (member.kind, old.offered), 1)
                self._less(self.kinds, member.kind, 1)
        kind = self._told_apart(kind_of(node))
        self.states[node.state] = self.states.get(node.state, 0) + 1
        if member.kind != kind:
            self.index.close(member)
            member.kind = kind
        member.state, member.label, member.site = node.state, node_label(node), node.site
        member.cpu_total, member.memory_total = room.cpu_milli, room.memory_mib
        self._could(member, kind, amounts(room) if node.state is not NodeState.GONE else None)
        if node.state is not NodeState.GONE:
            self.shapes[kind, room] = self.shapes.get((kind, room), 0) + 1
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if node.state in DEPARTED:
            self.present.pop(node.id, None)
            self.departed[node.id] = None
            if node.state_until_ms:
                self.deadlines.add(node.state_until_ms, "forget", node.id)
            self.bound_departed()
        else:
            self.departed.pop(node.id, None)
            self.present[node.id] = None
            if node.state_until_ms:
                self.deadlines.add(node.state_until_ms, "node", node.id)
        if node.draining and node.drain_until_ms:
            self.deadlines.add(node.drain_until_ms, "drain", node.id)
        self.freed[node.id] = None
        self.reindex(node.id)

    def _load_record(self, row: NodeRecord) -> None:
        old = self.records.get(row.id)
        before = "" if old is None else old.ends
        self.ends += len(row.ends) - len(before)
        self.blamed += row.ends.count(record.BLAMED) - before.count(record.BLAMED)
        self.records[row.id] = row
        self._widen(self.member(row.id), row.good)

    def _widen(self, member: Member, good: int) -> None:
        s = self.settings
        width = record.attempts_at_once(good, s.newcomer_attempts, s.attempts_per_node_max)
        if width != member.width:
            member.width = width
            self.freed[member.node] = None
            self.reindex(member.node)

    def doubt(self, node: NodeId, by: int) -> None:
        """So many more failures that the node blames on owners wait for confirmation."""
        self.member(node).doubted += by
        self.freed[node] = None
        self.reindex(node)

    def _told_apart(self, kind: NodeKind) -> NodeKind:
        """The kind itself, or a plain one if there are too many already."""
        return kind if kind in self.kinds or len(self.kinds) < KINDS_MAX else plain_kind(kind)

    def order_departed(self) -> None:
        """After a rebuild: the order in which the departed nodes left."""
        self.departed = dict.fromkeys(sorted(self.departed, key=lambda id: (self.nodes[id].state_since_ms, id)))
        self.bound_departed()

    def bound_departed(self) -> None:
        """If too many departed nodes are remembered, the one that left first is due."""
        if len(self.departed) > self.settings.departed_nodes_max:
            self.deadlines.add(self.patience, "forget", next(iter(self.departed)))

    def _drop_node(self, deleted: DeletedNode) -> None:
        """A departed node is forgotten."""
        node, member = self.nodes.pop(deleted.id), self.fleet.pop(deleted.id)
        self._less(self.states, node.state, 1)
        if node.state is not NodeState.GONE:
            self._less(self.shapes, (member.kind, node.offered), 1)
            self._less(self.kinds, member.kind, 1)
        self._could(member, member.kind, None)
        known = self.records.pop(node.id, None)
        if known is not None:
            self.ends -= len(known.ends)
            self.blamed -= known.ends.count(record.BLAMED)
        for nodes in (self.departed, self.freed, self.unproven):
            nodes.pop(node.id, None)
        for subject in ("node", "drain", "silence", "ping", "forget"):
            self.deadlines.drop(subject, node.id)

    def _could(self, member: Member, kind: NodeKind, room: Free | None) -> None:
        """Record what the node could hold if it were idle; None removes it."""
        idle = member.idle
        if idle is not None and (room is None or idle.kind != kind):
            self.could.close(idle)
            member.idle = idle = None
        if room is not None:
            if idle is None:
                member.idle = idle = Seat(member.node, kind=kind)
            self.could.open(idle, room)

    @staticmethod
    def _less(counts: dict[K, int], key: K, by: int) -> None:
        left = counts.get(key, 0) - by
        if left:
            counts[key] = left
        else:
            counts.pop(key, None)

    # --- views ---

    def member(self, node: NodeId) -> Member:
        member = self.fleet.get(node)
        if member is None:
            member = self.fleet[node] = Member(node)
            self._widen(member, 0)
        return member

    def presence(self, node: NodeId) -> Presence:
        return self.member(node).presence

    def claim(self, attempt: Attempt) -> Claim:
        """The attempt's claim, created if there is none. In that case an offer was sent once, when it was made."""
        claim = self.claims.get(attempt.id)
        if claim is None:
            claim = self.claims[attempt.id] = Claim()
            if attempt.phase is _OFFERED and attempt.revoked is None:
                claim.sent_ms = Instant(attempt.phase_until_ms - self.settings.offer_ms_max)
        return claim

    def from_backup(self, attempt: Attempt) -> bool:
        """Whether its row may be older than what its node was told: the state was restored from a backup."""
        return attempt.fence <= self.meta.restored_fence

    def held_by(self, node: NodeId) -> Iterator[Attempt]:
        """Live attempts on a node, in the order of their ids. Each row is read when it is reached: what is decided
        about one attempt can quarantine the node, and so revoke or close a later one."""
        for id in sorted(self.fleet[node].held):
            if (attempt := self.attempts.get(id)) is not None:
                yield attempt

    def attempts_of(self, job: JobId) -> list[Attempt]:
        """Live attempts of a live job, oldest first. They are numbered, so no list of them is kept."""
        row = self.jobs.get(job)
        if row is None:
            return []
        found = (self.attempts.get(row.nth_attempt(count)) for count in range(1, row.attempts_made + 1))
        return [attempt for attempt in found if attempt is not None]

    def closed_to_work(self, node: Node, to: JobId | None = None) -> Gate | None:
        """The gate that keeps work from this node now, or None. `to`: for this job, which may have reserved it, or
        which confirms a failure."""
        member = self.fleet[node.id]
        if node.state not in (NodeState.READY, NodeState.PROBATION):
            return _CLOSED[node.state]
        if member.presence.session is None:
            return Gate.DISCONNECTED
        if node.draining:
            return Gate.DRAINING
        if gate := self.lifecycle.gate(self, node, to):
            return gate
        held = len(member.held)
        if node.state is NodeState.PROBATION:
            if member.presence.pings < self.settings.probation_pings:
                return Gate.PROBATION_PROBES
            if held:
                return Gate.PROBATION_BUSY
        if held >= self.settings.attempts_per_node_max:
            return Gate.ATTEMPTS_MAX
        job = self.jobs.get(to) if to is not None else None
        confirms = job is not None and job.pending_verdict is not None
        most = member.width if confirms else _fresh_max(member, self.settings)
        return Gate.UNPROVEN if held >= most else None

    def reindex(self, node_id: NodeId) -> None:
        """Update the placement index from a node's state, session, offer and use."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        member = self.fleet[node_id]
        gate = self.closed_to_work(node)
        if gate is not None:
            self.index.close(member)
        else:
            self.index.open(member, self.free_on(node))
        if gate is Gate.UNPROVEN:
            self.unproven[node_id] = None
            self.unproven_changed = True
        else:
            self.unproven.pop(node_id, None)

    def free_on(self, node: Node) -> Free:
        """What the node offers and no attempt holds."""
        cpu, memory, disk, gpus = amounts(node.offered)
        for id in self.fleet[node.id].held:
            holds = self.attempts[id].holds
            cpu -= holds.cpu_milli
            memory -= holds.memory_mib
            disk -= holds.disk_mib
            gpus -= holds.gpus
        return cpu, memory, disk, gpus


def _fresh_max(member: Member, settings: Settings) -> int:
    """Attempts that the node may hold so that it is given another one that confirms nothing. With as many doubted
    failures as a newcomer may hold attempts, or with any on probation, it is given none."""
    doubted = member.doubted
    if not doubted:
        return member.width
    on_probation = member.state is NodeState.PROBATION
    return 0 if on_probation or doubted >= settings.newcomer_attempts else member.width - doubted


def amounts(of: Resources) -> Free:
    return (of.cpu_milli, of.memory_mib, of.disk_mib, of.gpus)


def node_label(node: Node) -> str:
    return f"{node.name} ({node.id})" if node.name else node.id


def kind_of(node: Node) -> NodeKind:
    """The fixed properties of a node. If its GPUs differ, the lowest values count and it serves only needs that name no
    model, because it is not known here which GPU a job gets."""
    gpus = node.hardware.gpus
    if not gpus:
        return NodeKind(node.hardware.arch, features=node.features)
    models = {g.model for g in gpus}
    return NodeKind(
        node.hardware.arch,
        models.pop() if len(models) == 1 else "",
        min(g.memory_mib for g in gpus),
        min((g.driver for g in gpus), key=parts),
        min((g.cuda for g in gpus), key=parts),
        node.features,
    )
