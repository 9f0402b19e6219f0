"""Keeps the record of each node: how its last attempts ended. Decides whether its word alone counts.

A record is a row of its own (`NodeRecord`), so that it survives a rebuild. It is written only when it changes: a
machine whose last attempts all succeeded has the same record after the next success.
"""

from msgspec.structs import replace

from holdfast.kernel.world import World
from holdfast.model import NodeId, NodeRecord
from holdfast.policy import record


def add_end(w: World, node_id: NodeId, mark: str) -> None:
    """An attempt on the node ended in this way."""
    known = _of(w, node_id)
    _put(w, known, replace(known, ends=record.with_end(known.ends, mark)))


def add_good(w: World, node_id: NodeId) -> None:
    """An end that nobody doubts. Counted until the node may hold as many attempts as any."""
    known = _of(w, node_id)
    s = w.settings
    if record.attempts_at_once(known.good, s.newcomer_attempts, s.attempts_per_node_max) < s.attempts_per_node_max:
        _put(w, known, replace(known, good=known.good + 1))


def refute(w: World, node_id: NodeId) -> None:
    """It blamed an owner wrongly: that does not count as a blame, and its record starts anew."""
    known = _of(w, node_id)
    _put(w, known, replace(known, ends=record.without_last_blame(known.ends), good=0))


def forgive(w: World, node_id: NodeId) -> None:
    """It proved itself: its earlier faults no longer count."""
    known = _of(w, node_id)
    _put(w, known, replace(known, ends=record.forgiven(known.ends)))


def fault_points(w: World, node_id: NodeId) -> int:
    return record.fault_points(_of(w, node_id).ends)


def is_proven(w: World, node_id: NodeId) -> bool:
    """Whether the node's word alone counts against the owner of a job."""
    ends = _of(w, node_id).ends
    others_ended, others_blamed = w.ends - len(ends), w.blamed - ends.count(record.BLAMED)
    s = w.settings
    return record.blames_as_usual(ends, others_ended, others_blamed, s.record_ends_min, s.record_share_factor)


def _of(w: World, node_id: NodeId) -> NodeRecord:
    return w.records.get(node_id) or NodeRecord(node_id)


def _put(w: World, before: NodeRecord, after: NodeRecord) -> None:
    if after != before:
        w.put(after)
