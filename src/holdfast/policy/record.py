"""Formulas over a machine's record: how its last attempts ended, one mark for each, oldest first."""

ENDS_KEPT = 64
"""Ends that a record keeps: enough to tell one failure in twenty from one in ten."""
RECENT = 10
"""Ends among which faults are counted."""

SUCCEEDED = "s"
BLAMED = "u"
"""The machine blamed the job's owner."""
FORGIVEN = "."
"""A fault before the machine last proved itself."""
POINTS_MAX = 9
"""A fault's mark is the digit of its points."""


def with_end(ends: str, mark: str) -> str:
    return (ends + mark)[-ENDS_KEPT:]


def fault_mark(points: int) -> str:
    return str(min(points, POINTS_MAX))


def fault_points(ends: str) -> int:
    """Points of the faults among the last `RECENT` ends."""
    return sum(int(mark) for mark in ends[-RECENT:] if mark.isdigit())


def forgiven(ends: str) -> str:
    """The record of a machine that has proven itself: its faults no longer count."""
    return "".join(FORGIVEN if mark.isdigit() else mark for mark in ends)


def without_last_blame(ends: str) -> str:
    """The record without the last time that the machine blamed an owner."""
    before, _, after = ends.rpartition(BLAMED)
    return before + after


def blames_as_usual(ends: str, others_ended: int, others_blamed: int, ends_min: int, factor: int) -> bool:
    """Whether the machine blames owners about as often as the others do: with at least `ends_min` ends on both sides,

    blamed / ended  <=  factor * others_blamed / others_ended
    """
    if len(ends) < ends_min or others_ended < ends_min:
        return False
    return ends.count(BLAMED) * others_ended <= factor * others_blamed * len(ends)


def attempts_at_once(good: int, first: int, most: int) -> int:
    """How many attempts a machine may hold: `first` without a record, doubled with each `first` good ends."""
    return min(most, first << min(good // first, most.bit_length()))
