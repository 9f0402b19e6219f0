"""The access tokens in memory, so that a caller is authenticated without a question to the store.

Takes only committed rows: a token counts from its commit, and a revocation too. Known only while this orchestrator
leads: another leader may revoke a token, and this one would not hear of it.
"""

from collections.abc import Callable, Iterable

from holdfast.kernel.commit import CommitBatch
from holdfast.model import AccessId, AccessToken
from holdfast.orchestrator.api_error import Unavailable


class AccessDirectory:
    """`served_ms`: the time by which lifetimes are counted."""

    def __init__(self, served_ms: Callable[[], int]) -> None:
        self._served_ms = served_ms
        self._known: dict[AccessId, AccessToken] | None = None

    def rebuilt(self, tokens: Iterable[AccessToken]) -> None:
        self._known = {token.id: token for token in tokens}

    def committed(self, batch: CommitBatch) -> None:
        if self._known is not None:
            self._known |= {row.id: row for row in batch.rows.values() if isinstance(row, AccessToken)}

    def leadership_ended(self) -> None:
        self._known = None

    def get(self, id: AccessId) -> AccessToken | None:
        return self._tokens().get(id)

    def all(self) -> list[AccessToken]:
        return list(self._tokens().values())

    def valid(self, id: AccessId) -> AccessToken | None:
        token = self.get(id)
        return token if token is not None and token.valid(self._served_ms()) else None

    def _tokens(self) -> dict[AccessId, AccessToken]:
        if self._known is None:
            raise Unavailable("busy", "this orchestrator does not lead now, and cannot check access tokens")
        return self._known
