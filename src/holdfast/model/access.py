"""Access tokens: who may call the API, in which role, for which owner. Only the hash of a token's secret is kept."""

from enum import StrEnum

from holdfast.model.ids import AccessId
from holdfast.model.stored import StoredRow
from holdfast.model.time import Instant


class Role(StrEnum):
    """What a caller is to the network. Each route of the API names the roles that may use it."""

    USER = "user"
    """Submits jobs, and sees its own."""
    NODE_OPERATOR = "node-operator"
    """Makes join tokens, and sees and drains the nodes that joined with them."""
    NETWORK_OPERATOR = "network-operator"
    """Sees and does everything. The admin token has this role."""


class AccessToken(StoredRow, frozen=True, gc=False, omit_defaults=True):
    id: AccessId
    secret_sha256: str
    role: Role
    owner: str = ""
    """The owner that the caller is. Empty: a network operator without a name of its own."""
    made_ms: Instant = Instant(0)
    expires_ms: Instant = Instant(0)
    """Kernel time, as is `made_ms`."""
    revoked: bool = False
    note: str = ""
    made_by: str = ""
    """Name of the network operator that made it."""
    seq: int = 0
    """Grows with each change of any access token: of many, those that changed last are kept."""

    def valid(self, now_ms: int) -> bool:
        return not self.revoked and self.expires_ms > now_ms


RESERVED_OWNERS = frozenset(
    {"admin", "administrator", "anonymous", "everyone", "holdfast", "network", "nobody", "operator", "orchestrator",
     "owner", "platform", "root", "system", *Role}
)  # fmt: skip
"""Names that a reader of the journal would take for the network's own. `admin` is the owner of what the admin token
submits."""


def is_reserved(owner: str) -> bool:
    """In any spelling: case, and spaces or underscores in place of a hyphen, make no other name."""
    return owner.casefold().replace("_", "-").replace(" ", "-") in RESERVED_OWNERS
