"""What stays of a row that was deleted: enough that its id is never used for anything else (docs/decisions/0029).

A commit that writes one of these deletes the row that it replaces, in the same transaction (`RowType.replaces`).
"""

from holdfast.model.ids import JobId, NodeId, Owner, TokenId
from holdfast.model.job import Verdict
from holdfast.model.stored import StoredRow
from holdfast.model.time import Instant


class DeletedJob(StoredRow, frozen=True, gc=False, omit_defaults=True):
    """A job that ended long ago. Its idempotency key stays used: nothing runs under it again."""

    id: JobId
    owner: Owner
    spec_hash: str
    verdict: Verdict | None
    ended_ms: Instant

    @property
    def live(self) -> bool:
        return False


class DeletedNode(StoredRow, frozen=True, gc=False):
    """A node that was forgotten. Its id stays bound to its key."""

    id: NodeId
    key_sha256: str
    """Fingerprint of its public key."""


class DeletedToken(StoredRow, frozen=True, gc=False):
    """A join token that expired long ago. The key under which it was made gives no second one."""

    id: TokenId
