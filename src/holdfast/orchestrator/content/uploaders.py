"""Who sends content, and how much of it is stored: decides the quotas of an attempt and of an owner. Pure.

A quota has two parts. *Incoming* bytes were sent and are not accepted yet. *Accepted* bytes were verified and belong to
the job's owner; what no row names of them is deleted after some hours, so they count for as long.
"""

import msgspec

from holdfast.blobs.garbage import GRACE_MS
from holdfast.blobs.keys import client_uploader
from holdfast.blobs.manifest import CHUNK_BYTES, ManifestLimits
from holdfast.model import Attempt, AttemptPhase, Settings

ACCEPTED_MS = GRACE_MS
"""How long accepted bytes count: as long as the garbage collector keeps what no row names."""
SENT_AT_ONCE = 2
"""A result and a checkpoint may be sent at the same time."""
ACCEPTED_TIMES = 8
"""How often an attempt may save its whole disk within `ACCEPTED_MS`; more must wait. Chunks that did not change are not
sent again and do not count."""


class Uploader(msgspec.Struct, frozen=True):
    id: str
    """Its part of the incoming area: an attempt's id, or one for all programs of an owner."""
    party: str
    """Whose share of the orchestrator's work it uses: a node, or an owner."""
    limits: ManifestLimits
    incoming_bytes_max: int
    accepted_bytes_max: int
    one_refusal: bool = False
    """Whether nothing of it is accepted once a manifest was refused: a node's attempt ends with that."""

    @property
    def blob_bytes_max(self) -> int:
        """A manifest is a blob too, and may be larger than a chunk."""
        return max(CHUNK_BYTES, self.limits.manifest_bytes)


def attempt_uploader(attempt: Attempt, disk_mib: int) -> Uploader:
    """An attempt may leave what fits on the disk that its job asked for. Its result does not wait for room that
    checkpoints used up."""
    limits = ManifestLimits.of_disk(max(1, disk_mib) << 20)
    whole = limits.total_bytes + limits.manifest_bytes
    times = ACCEPTED_TIMES + (SENT_AT_ONCE if attempt.phase is AttemptPhase.UPLOADING else 0)
    return Uploader(attempt.id, f"node {attempt.node}", limits, SENT_AT_ONCE * whole, times * whole, True)


def owner_uploader(owner: str, settings: Settings) -> Uploader:
    most = settings.owner_incoming_bytes_max
    return Uploader(client_uploader(owner), f"owner {owner}", ManifestLimits(), most, ACCEPTED_TIMES * most)
