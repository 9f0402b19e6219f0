"""Commit, then act: holds back the effects of decisions until the decisions are durable.

Events are applied to the kernel as they come; their changes gather into a batch. One batch at a time is
being committed; meanwhile the next one gathers (group commit). Only when a batch is durable are its
sends released and its questions answered, in the order in which they were decided.

Crash points and what holds at each:

    before commit     nothing was sent or answered: as if the events never came
    during commit     the store has all of the batch or none; nothing was sent
    after commit      the batch stands; unsent messages are derivable again by reconciliation
    commit failed     the caller drops this object with its kernel, rebuilds from the store, and every
                      unanswered question is answered with "try again"
    commit refused    as failed, and certainly nothing is durable: the batch changed a row that has ended
                      (docs/decisions/0022)

Within a batch the last version of a row counts, and of a row and the one that replaces it (`model.deleted`), the later
one. A row that ended is no longer replaced there either: the store,
which sees one version, could not tell.

The production shell and the simulator drive this same object. It knows no store and no clock.
"""

from collections.abc import Hashable

import msgspec

from holdfast.kernel.decision import Answer, Row, Send
from holdfast.kernel.events import AnyEvent
from holdfast.kernel.kernel import Kernel
from holdfast.model import Instant
from holdfast.model.rows import counterpart_key, row_key


class CommitBatch(msgspec.Struct):
    """What one commit makes durable, and what may happen after it."""

    rows: dict[tuple[str, Hashable], Row]
    """Last version of each row, in the order of first change."""
    sends: list[Send]
    answers: list[tuple[Hashable, Answer | None]]
    """(ticket, answer) for every event that came with a ticket."""
    events: int = 0


class CommitLoop:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._gathering = CommitBatch({}, [], [])
        self._in_flight: CommitBatch | None = None

    def offer(self, event: AnyEvent, now: Instant, ticket: Hashable = None) -> None:
        """Apply an event. Its effects wait for the commit of the batch it falls into."""
        decision = self.kernel.apply(event, now)
        batch = self._gathering
        batch.events += 1
        for row in decision.changes:
            key = row_key(row)
            before = batch.rows.get(key)
            if before is not None and not before.live and before != row:
                raise AssertionError(f"{key} has ended, and was changed in the same batch: {before} became {row}")
            if (other := counterpart_key(row)) is not None:
                batch.rows.pop(other, None)
            batch.rows[key] = row
        batch.sends.extend(decision.sends)
        if ticket is not None:
            batch.answers.append((ticket, decision.answer))

    @property
    def waiting(self) -> int:
        """Events applied but not yet handed to a commit. Backpressure is based on this number."""
        return self._gathering.events

    def next_batch(self) -> CommitBatch | None:
        """The batch to commit now, or None: one is in flight, or there is nothing to do."""
        if self._in_flight is not None or not (
            self._gathering.rows or self._gathering.sends or self._gathering.answers
        ):
            return None
        self._in_flight, self._gathering = self._gathering, CommitBatch({}, [], [])
        return self._in_flight

    def committed(self, batch: CommitBatch) -> CommitBatch:
        """The batch is durable: its sends and answers may go out now."""
        if batch is not self._in_flight:
            raise AssertionError("the batch to mark as committed is not in flight")
        self._in_flight = None
        return batch

    def unanswered(self) -> list[Hashable]:
        """Tickets without an answer. They are refused when this loop is dropped."""
        batches = [b for b in (self._in_flight, self._gathering) if b is not None]
        return [ticket for batch in batches for ticket, _ in batch.answers]
