"""The base of all rows that a commit writes."""

import msgspec


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the orchestrator's state. Each kind of row has one line in `model.rows`."""

    @property
    def live(self) -> bool:
        """Whether the row can still change. Kinds of row that end override this."""
        return True
