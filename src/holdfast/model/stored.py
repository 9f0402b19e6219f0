"""The base of all rows that a commit writes."""

import msgspec


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the orchestrator's state. Each kind of row has one line in `model.rows`."""

    @property
    def live(self) -> bool:
        """Whether something may still become of it. Only kinds of row that end have an answer of their own."""
        return True
