"""The local admin token: anyone who can read one file on the orchestrator's machine may administer it."""

import hmac
import secrets
from hashlib import sha256
from pathlib import Path

from holdfast.errors import Misconfigured
from holdfast.identity import private_files

PREFIX = "hfa_"


class AdminToken:
    """`text` is the token itself; it is not part of the object's repr."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._digest = sha256(text.encode()).digest()

    @staticmethod
    def load_or_make(path: Path) -> "AdminToken":
        """The token in the file, mode 0600; generated at the first start."""
        content = private_files.make_once(
            path, "admin token", lambda: f"{PREFIX}{secrets.token_urlsafe(32)}\n".encode()
        )
        text = content.decode("ascii", "replace").strip()
        # An empty or short token would let anyone in.
        if len(text) < 24 or not text.isascii() or not text.isprintable():
            raise Misconfigured(
                f"the admin token {path} holds no usable token",
                hint="Delete the file; a new token is made at the next start.",
                code="bad_admin_token",
            )
        return AdminToken(text)

    def matches(self, presented: str) -> bool:
        """Compares in constant time, and compares digests, so that not even the length of the token leaks."""
        digest = sha256(presented.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, self._digest)

    def derived(self, purpose: str, *parts: str) -> bytes:
        """32 bytes that only a holder of the token can compute; the same for the same arguments."""
        words = "".join(f"{len(part)}:{part}" for part in (purpose, *parts))
        return hmac.digest(self.text.encode(), words.encode("utf-8", "surrogatepass"), "sha256")

    def __repr__(self) -> str:
        return "AdminToken(…)"
