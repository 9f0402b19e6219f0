"""Signs and checks URLs that give access to one key, for one method, for a short time. For stores that cannot sign.

The signature covers method, key, size, expiry and the uploader's quota: changing any of them makes the URL invalid.
Nothing here is logged; `shown_link` returns a URL in a form that may be shown.
"""

import hmac
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from holdfast.blobs.errors import LinkExpired, LinkRefused
from holdfast.blobs.keys import parse_key

KEY_BYTES_MIN = 32
METHODS = ("GET", "PUT")


class Grant(msgspec.Struct, frozen=True):
    """What a URL allows."""

    method: str
    key: str
    size: int
    """For PUT: the exact number of bytes that must be sent. For GET: the number of bytes that there are."""
    expires_s: int
    incoming_max: int = 0
    """For PUT: the bytes that its uploader may have in the incoming area; 0: any number."""


class LinkSigner:
    """Holds the secret. Anyone who has it can sign URLs, so only the orchestrator does."""

    def __init__(self, secret: bytes, base_url: str, now_s: Callable[[], float] = time.time) -> None:
        """`base_url`: the endpoint that checks these URLs; the key is appended. `now_s`: the clock that URLs expire by,
        in seconds; an orchestrator counts by served time."""
        if len(secret) < KEY_BYTES_MIN:
            raise ValueError(f"a signing secret needs {KEY_BYTES_MIN} bytes")
        self._secret = secret
        self._base = base_url.rstrip("/")
        self.now_s = now_s

    def make(self, method: str, key: str, size: int, expires_s: int, incoming_max: int = 0) -> str:
        grant = Grant(method, key, size, expires_s, incoming_max)
        query = urlencode(
            {"size": size, "expires": expires_s, "most": incoming_max, "signature": self._signature(grant)}
        )
        return f"{self._base}/{quote(key)}?{query}"

    def check(self, method: str, key: str, query: Mapping[str, str], now_s: float) -> Grant:
        """What this request may do. Raises LinkRefused, or LinkExpired for a URL that was valid once."""
        size, expires = _number(query.get("size", "")), _number(query.get("expires", ""))
        grant = Grant(method, key, size, expires, _number(query.get("most", "")))
        right = self._signature(grant)
        given = query.get("signature", "")
        # The signature first: a forged URL must not reveal whether its expiry would have been valid.
        if not hmac.compare_digest(right.encode(), given.encode("utf-8", "replace")):
            raise LinkRefused("this URL was not signed here, or was changed", hint="Ask for a new one.")
        if method not in METHODS or parse_key(key) is None:
            raise LinkRefused("this URL names nothing that may be accessed")
        if now_s >= expires:
            raise LinkExpired("this URL has expired", hint="Ask for a new one.")
        return grant

    def _signature(self, grant: Grant) -> str:
        said = "holdfast blob link 2\n" + "\n".join(map(str, msgspec.structs.astuple(grant)))
        return hmac.new(self._secret, said.encode("utf-8", "replace"), sha256).hexdigest()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1


def shown_link(url: str) -> str:
    """A URL without its signature, for messages and logs."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"
