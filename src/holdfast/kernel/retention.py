"""Decides what is forgotten: departed nodes, expired tokens, jobs that ended long ago, old journal entries.

A row that goes is replaced by a small one (`model.deleted`) in the same commit, so that its id is never used for
anything else. Nodes and tokens are in memory and have deadlines. Ended jobs and the journal are not: the shell looks
for the oldest in the store and asks (`DeletionAsked`); what may be deleted is decided here, on the kernel's clock. A
crash before the commit leaves everything in the store, where the next look finds it (docs/decisions/0029).
"""

from hashlib import sha256

from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Deletions
from holdfast.kernel.events import DeletionAsked, OldJob
from holdfast.kernel.moving import Moving
from holdfast.kernel.reservation import Reservations
from holdfast.kernel.world import DEPARTED, World, node_label
from holdfast.model import DeletedJob, DeletedNode, DeletedToken, Facts, Instant, NodeId, TokenId

NEEDED_AGAIN_MS = 60_000
"""When a node that something still refers to is looked at again."""


def fingerprint(public_key: str) -> str:
    """What stays of the key of a node that was forgotten."""
    return sha256(public_key.encode()).hexdigest()


# --- nodes and tokens ---


def node_due(w: World, node_id: NodeId) -> None:
    """A departed node was remembered for long enough, or there are too many of them: forget it."""
    node = w.nodes.get(node_id)
    if node is None or node.state not in DEPARTED:
        return
    if node.state_until_ms > w.patience and not _crowds(w, node_id):
        w.deadlines.add(node.state_until_ms, "forget", node_id)
    elif _needed(w, node_id):
        w.deadlines.add(w.soon(NEEDED_AGAIN_MS), "forget", node_id)
    else:
        key = fingerprint(node.public_key)
        w.put(DeletedNode(node_id, key))
        w.remember_deleted(node_id, key)
        w.note("node.forgotten", Facts(label=node_label(node), node_cause=node.cause_code), node=node_id)
        w.bound_departed()


def _crowds(w: World, node_id: NodeId) -> bool:
    """Whether too many departed nodes are remembered, and this one left first."""
    return len(w.departed) > w.settings.departed_nodes_max and next(iter(w.departed)) == node_id


def _needed(w: World, node_id: NodeId) -> bool:
    """Whether an attempt or a live job still refers to it."""
    of = w.lifecycle.of
    member = w.fleet[node_id]
    return bool(member.held or member.doubted) or node_id in of(Reservations).held or node_id in of(Moving).pinned


def date_departed(w: World) -> None:
    """Departed nodes of earlier releases have no deadline: their time begins now."""
    for node_id in list(w.departed):
        if not w.nodes[node_id].state_until_ms:
            w.put(replace(w.nodes[node_id], state_until_ms=w.soon(w.settings.nodes_keep_ms)))


def token_due(w: World, token_id: TokenId) -> None:
    token = w.tokens.get(token_id)
    if token is None:
        return
    left_ms = token.expires_ms + w.settings.tokens_keep_ms - w.now
    if left_ms > 0:
        w.deadlines.add(w.soon(left_ms), "token", token_id)
    else:
        w.put(DeletedToken(token_id))


# --- jobs and the journal ---


def delete(w: World, asked: DeletionAsked) -> Answer:
    """Replace the jobs that may go, and say up to where the journal may be deleted."""
    gone = [old for old in asked.jobs if may_go(w, old)]
    for old in gone:
        job = old.job
        w.put(DeletedJob(job.id, job.owner, job.spec_hash, job.verdict, job.ended_ms or Instant(0)))
        w.remember_ended(job.id, job.spec_hash)
        w.remember_deleted(job.id, job.spec_hash)
    w.meta = replace(w.meta, now_ms=w.now)  # also while nothing else happens: output is kept for a time that is stored
    stale = asked.entry_seq > 0 and w.now - asked.entry_ms >= w.settings.journal_keep_ms
    return Deletions(len(gone), asked.entry_seq if stale else 0)


def may_go(w: World, old: OldJob) -> bool:
    """Whether an ended job may be deleted: its time is over, and everything that it left went before."""
    job, keep = old.job, old.keep
    if job.live or job.id in w.jobs or job.ended_ms is None or old.group_ended_ms is None:
        return False
    if any(job.nth_attempt(count) in w.attempts for count in range(1, job.attempts_made + 1)):
        return False
    if old.output or (keep is not None and keep.until_ms > w.now):
        return False
    return w.now - max(job.ended_ms, old.group_ended_ms) >= w.settings.jobs_keep_ms
