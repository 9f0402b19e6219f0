"""Serializes submissions: those under one idempotency key are decided one at a time. Knows no store and no task.

Only the store knows a job that has ended, and only the kernel knows one that is being submitted. The request that has
the turn looks in the store and then asks the kernel; no other request does so for the same jobs meanwhile. Otherwise
two requests with one key could both miss the job, and it would run twice.

    enter   the turn is given at once if no other ticket has a turn, or waits for one, for any of these jobs
    leave   after the answer, a refusal, a lost lead or a cancelled request; also for a ticket that still waits
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
        """Whether it is this ticket's turn. If not, a later `leave` of another ticket returns it when it is."""
        if ticket in self._wanted:
            raise AssertionError(f"{ticket!r} is in the queue already")
        self._wanted[ticket] = frozenset(jobs)
        return ticket in self._next()

    def leave(self, ticket: Hashable) -> list[Hashable]:
        """Remove a ticket that is done, or no longer waits. Returns the tickets whose turn it is now, in order."""
        self._deciding.discard(ticket)
        return self._next() if self._wanted.pop(ticket, None) is not None else []

    def _next(self) -> list[Hashable]:
        """Give a turn to all tickets that share no job with an earlier one."""
        before: set[JobId] = set()
        given: list[Hashable] = []
        for ticket, jobs in self._wanted.items():
            if ticket not in self._deciding and before.isdisjoint(jobs):
                self._deciding.add(ticket)
                given.append(ticket)
            before |= jobs
        return given
