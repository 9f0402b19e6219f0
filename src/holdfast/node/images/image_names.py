"""Parses image names, and assigns the blame when an engine cannot provide an image. Pure.

Names are untrusted. Those that would give access to the node's own images are refused here: image ids, and the names
that Holdfast gives to images it built for other owners.
"""

import re

import msgspec

from holdfast.model import Failure, FailureCode

OWN = "holdfast-"
"""Prefix of the name of every image that Holdfast built here."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?")
_NAME_MAX = 255

_PASSING = (
    "connection refused", "connection reset", "no such host", "i/o timeout", "timeout awaiting", "deadline exceeded",
    "tls handshake", "unexpected eof", "server misbehaving", "network is unreachable", "no route to host",
    "too many requests", "toomanyrequests", "internal server error", "bad gateway", "service unavailable",
    "gateway timeout", "received unexpected http status: 5", "invalid status code from registry 5", ": eof",
)  # fmt: skip
_WRONG = (
    "manifest unknown", "not found", "name unknown", "denied", "unauthorized", "authentication required", "forbidden",
    "verification failed", "did not match", "does not match", "invalid reference", "no matching manifest",
    "image operating system", "no such image", "repository does not exist", "requested access",
    "invalid checksum", "invalid tar header", "unexpected end of", "gzip:", "archive/tar",
)  # fmt: skip


REASONS = {
    FailureCode.NETWORK: "the registry could not be reached, or did not give the image for now",
    FailureCode.IMAGE: "the registry has no such image for this node, or the image is not what its digest says",
    FailureCode.NODE_DISK_FULL: "the machine's disk is full",
    FailureCode.RUNTIME_FAULT: "the container engine failed",
}
"""What an owner is told if an engine cannot provide an image. Its own words name addresses and ports of what it
reached, so they stay in the node's log."""


class NoImage(Exception):
    """The image is unavailable; `failure` has the reason and the blame."""

    def __init__(self, code: FailureCode, says: str) -> None:
        super().__init__(says)
        self.failure = Failure(code, says[:2000])


class BadName(ValueError):
    """Not a name of an image that a job may use. The text explains why."""


class ImageName(msgspec.Struct, frozen=True):
    """A parsed name."""

    name: str
    """Including its registry, if it names one."""
    tag: str = ""
    digest: str = ""

    @property
    def host(self) -> str:
        """The registry it names, with its port; empty: the engine's default."""
        first, slash, _ = self.name.partition("/")
        return first if slash and ("." in first or ":" in first or first == "localhost") else ""

    def __str__(self) -> str:
        """The form used for the engine: by digest if there is one, because a registry cannot change that."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(text: str) -> ImageName:
    """`[HOST[:PORT]/]NAME[:TAG][@sha256:…]`; without tag and digest the tag is `latest`."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise BadName(f"{text[:200]!r} has a digest that is not of the form sha256:… with 64 hex digits")
    if _DIGEST.fullmatch(rest) or re.fullmatch(r"[0-9a-f]{64}", rest):
        raise BadName("an image is named as its registry names it, not by its id")
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        name, tag = rest, ""
    elif not _TAG.fullmatch(tag):
        raise BadName(f"{text[:200]!r} has a tag that no registry takes")
    found = ImageName(name, "" if digest and not tag else tag or "latest", digest)
    parts = name.split("/")
    own = parts[1:] if found.host else parts
    fits = 0 < len(name) <= _NAME_MAX and own and all(_PART.fullmatch(part) for part in own)
    if not fits or (found.host and not _HOST.fullmatch(found.host)):
        raise BadName(f"{text[:200]!r} is not an image name; one looks like registry.example/team/name:tag")
    if own[0].startswith(OWN):
        raise BadName(f"names that start with {OWN} are this network's own")
    return found


def blame(says: str) -> FailureCode:
    """The failure code for an engine's error message about a pull. An unknown message is blamed on the node: then the
    job is tried elsewhere, where a fault of the user's would show again."""
    said = says.lower()
    if "permission denied" in said:
        return FailureCode.RUNTIME_FAULT
    if "no space left" in said or "disk quota" in said:
        return FailureCode.NODE_DISK_FULL
    if any(word in said for word in _PASSING):
        return FailureCode.NETWORK
    if any(word in said for word in _WRONG):
        return FailureCode.IMAGE
    return FailureCode.RUNTIME_FAULT
