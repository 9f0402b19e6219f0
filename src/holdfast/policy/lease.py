"""Leases for work that must not run twice. The margins absorb clocks that run at different rates.

The node counts from *sending* the renewal and must be done at 0.9 L; the orchestrator counts from its
*answer*, which is later, and waits 1.1 L. So the body is dead before anyone thinks of giving up on it,
as long as two clocks differ by less than a tenth.
"""


def node_part_ms(lease_ms: int) -> int:
    """0.9 L: the body must be dead by then, counted from sending the renewal."""
    return lease_ms * 9 // 10


def orchestrator_part_ms(lease_ms: int) -> int:
    """1.1 L: the orchestrator does not give up the attempt before then, counted from its answer."""
    return -(-lease_ms * 11 // 10)
