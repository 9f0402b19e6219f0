"""Access tokens: a text that lets its holder call the API in one role.

    hfr_<id><secret>    id: 12 letters of base 32; secret: 32 random bytes, base64url, no padding

The id in the text finds the row; the secret is compared by its hash, which is all that the orchestrator stores.
"""

import base64
import hmac
import re
import secrets
from hashlib import sha256
from typing import NamedTuple

from holdfast.identity.tokens import Drawn
from holdfast.model import AccessId, AccessToken, Role
from holdfast.model.ids import readable

PREFIX = "hfr_"
ID_PREFIX = "acc_"
_ID_CHARS = 12
_parts = re.compile(rf"{PREFIX}([0-9a-z]{{{_ID_CHARS}}})([A-Za-z0-9_-]{{43}})").fullmatch


class AccessSecret(NamedTuple):
    """A parsed access token."""

    id: AccessId
    secret: str

    @property
    def sha256(self) -> str:
        return sha256(self.secret.encode()).hexdigest()

    @property
    def text(self) -> str:
        return f"{PREFIX}{self.id.removeprefix(ID_PREFIX)}{self.secret}"

    def matches(self, token: AccessToken) -> bool:
        """Compares digests in constant time."""
        return hmac.compare_digest(self.sha256, token.secret_sha256)

    def __repr__(self) -> str:
        return f"AccessSecret({self.id})"  # the secret must not reach a log


def make(
    role: Role, owner: str, note: str, made_by: str, drawn: Drawn | None = None
) -> tuple[AccessSecret, AccessToken]:
    """A new token: the secret, which is shown once, and the row to store, without its dates."""
    if drawn is None:
        drawn = Drawn(secrets.token_bytes(32), secrets.token_bytes(32))
    id = AccessId(ID_PREFIX + readable(drawn.id[:8], _ID_CHARS))
    secret = AccessSecret(id, base64.urlsafe_b64encode(drawn.secret).rstrip(b"=").decode())
    return secret, AccessToken(id, secret.sha256, role, owner, note=note, made_by=made_by)


def parse(text: str) -> AccessSecret | None:
    """None: this is no access token."""
    found = _parts(text)
    return None if found is None else AccessSecret(AccessId(ID_PREFIX + found[1]), found[2])
