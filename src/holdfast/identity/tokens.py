"""Join tokens: a text that lets a node join and pins the orchestrator's certificate.

    hf1_<base64url, no padding>  of  field(token id) ‖ field(secret) ‖ field(pin) ‖ checksum
    field(x) = length of x as 1 byte ‖ x
    pin      = SHA-256 of the orchestrator's certificate, 32 bytes; empty for plain loopback
    checksum = first 4 bytes of SHA-256("holdfast join token v1" ‖ everything before it)

The checksum distinguishes a mistyped token (reported at once, nothing is sent) from a wrong one (which is refused). An
invitation is a token without id and secret: it only carries the pin, for networks that are open to anyone.
Orchestrators store model.JoinToken, which has the hash of the secret and not the secret.
"""

import base64
import binascii
import re
import secrets
from hashlib import sha256
from typing import NamedTuple

import msgspec

from holdfast.errors import Misconfigured
from holdfast.model import Instant, JoinToken, TokenId
from holdfast.model.ids import readable

PREFIX = "hf1_"
TEXT_CHARS_MAX = 256
_SECRET_BYTES = 24
_CONTEXT = b"holdfast join token v1"
_CHECKSUM_BYTES = 4
_SECRET_TEXT = re.compile(r"(hf1|hfa|hfr)(?:_|%5f)[\w%+/=-]{4,}", re.IGNORECASE)
_is_token_id = re.compile(r"tok_[0-9a-z]{8,32}").fullmatch


class Ticket(msgspec.Struct, frozen=True):
    """A parsed join token."""

    id: TokenId
    """Empty for an invitation."""
    secret: bytes
    pin: str
    """SHA-256 of the orchestrator's certificate in hex; empty: plain, loopback only."""

    @property
    def secret_sha256(self) -> str:
        """The value of Hello.token_sha256 and JoinToken.secret_sha256; empty for an invitation."""
        return sha256(self.secret).hexdigest() if self.secret else ""

    @property
    def text(self) -> str:
        fields = (self.id.encode(), self.secret, bytes.fromhex(self.pin))
        body = b"".join(bytes([len(field)]) + field for field in fields)
        return PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return f"Ticket({self.id or 'invitation'})"  # the secret must not reach a log


class Drawn(NamedTuple):
    """The random parts of a token, 32 bytes each: random, or derived, so that a repeated call gives the same token."""

    id: bytes
    secret: bytes


def make(
    pin: str, made_ms: Instant, expires_ms: Instant, uses: int = 1, note: str = "", drawn: Drawn | None = None
) -> tuple[Ticket, JoinToken]:
    """A new token: the ticket, which is shown once, and the row to store."""
    if drawn is None:
        drawn = Drawn(secrets.token_bytes(32), secrets.token_bytes(32))
    ticket = Ticket(TokenId("tok_" + readable(drawn.id[:8], 12)), drawn.secret[:_SECRET_BYTES], pin)
    return ticket, JoinToken(ticket.id, ticket.secret_sha256, made_ms, expires_ms, uses, note=note)


def invitation(pin: str) -> Ticket:
    """The pin of an open network, as a text for anyone."""
    return Ticket(TokenId(""), b"", pin)


def parse(text: str) -> Ticket:
    """Parse a token. Raises Misconfigured, code `token_mistyped`; the error never contains the token."""
    text = text.strip()
    if not text.startswith(PREFIX) or len(text) > TEXT_CHARS_MAX:
        raise _mistyped(f"it does not start with {PREFIX}" if len(text) <= TEXT_CHARS_MAX else "it is too long")
    encoded = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _mistyped("it contains an invalid character, or one is missing") from None
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if not body or not secrets.compare_digest(checksum, _checksum(body)):
        raise _mistyped("its checksum does not match: a letter is missing or changed")
    fields = _fields(body)
    if len(fields) != 3:
        raise _mistyped("its structure is invalid")
    id, secret, pin = fields
    name = id.decode("ascii", "replace")
    if bool(id) != bool(secret) or len(pin) not in (0, 32) or (id and not _is_token_id(name)):
        raise _mistyped("its structure is invalid")
    ticket = Ticket(TokenId(name), secret, pin.hex())
    # Base64 can encode the same bytes in several ways (unused bits at the end); only one of them is valid.
    if ticket.text != text:
        raise _mistyped("its last letter is changed")
    return ticket


def redacted(text: str) -> str:
    """The text without join, access and admin tokens in it, for errors and logs that quote what somebody sent. A token
    that was cut short is still recognized."""
    return _SECRET_TEXT.sub(lambda found: f"{found[1]}_…", text)


def _fields(body: bytes) -> list[bytes]:
    fields: list[bytes] = []
    at = 0
    while at < len(body):
        end = at + 1 + body[at]
        if end > len(body):
            return []
        fields.append(body[at + 1 : end])
        at = end
    return fields


def _checksum(body: bytes) -> bytes:
    return sha256(_CONTEXT + body).digest()[:_CHECKSUM_BYTES]


def _mistyped(why: str) -> Misconfigured:
    return Misconfigured(
        f"the join token is mistyped: {why}",
        hint="Copy it again, whole, from where it was made; nothing was sent.",
        code="token_mistyped",
    )
