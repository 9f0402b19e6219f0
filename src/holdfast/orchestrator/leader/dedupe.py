"""Which submissions may be decided now: of those under one idempotency key, one at a time. Knows no store and no task.

A job that has ended is known to the store only, and one that is being submitted to the kernel only. Whoever has the
turn looks in the store and then asks the kernel; nobody else does so for the same jobs meanwhile. Otherwise two
requests with one key could fall between the two, and the job would run twice.

    enter   the turn is given at once if nobody has a turn, or waits for one, for any of these jobs
    leave   after the answer, a refusal, a lost lead or a cancelled request; also of one that still waits
"""

from collections.abc import Hashable, Set

from holdfast.model import JobId


class SubmissionQueue:
    def __init__(self) -> None:
        self._wanted: dict[Hashable, frozenset[JobId]] = {}
        """Jobs by ticket, in the order in which they came."""
        self._deciding: set[Hashable] = set()
        """Tickets that have their turn."""

    def __len__(self) -> int:
        return len(self._wanted)

    def enter(self, ticket: Hashable, jobs: Set[JobId]) -> bool:
        """Whether it is this ticket's turn. If not, `leave` of an earlier one returns it when it is."""
        if ticket in self._wanted:
            raise AssertionError(f"{ticket!r} is in the queue already")
        self._wanted[ticket] = frozenset(jobs)
        return ticket in self._next()

    def leave(self, ticket: Hashable) -> list[Hashable]:
        """This ticket is done with, or no longer waits. Returns those whose turn it is now, in order."""
        self._deciding.discard(ticket)
        return self._next() if self._wanted.pop(ticket, None) is not None else []

    def _next(self) -> list[Hashable]:
        """Give a turn to all that share no job with one that came before them."""
        before: set[JobId] = set()
        given: list[Hashable] = []
        for ticket, jobs in self._wanted.items():
            if ticket not in self._deciding and before.isdisjoint(jobs):
                self._deciding.add(ticket)
                given.append(ticket)
            before |= jobs
        return given
