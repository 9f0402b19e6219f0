"""The HTTP types for files: which blobs are missing, where they are uploaded to and fetched from, what was accepted.

Shared by the API for clients (`wire/http.py`) and the files endpoint for nodes, so that a node does not load the rest.
"""

import msgspec


class BlobRef(msgspec.Struct, frozen=True, array_like=True):
    sha256: str
    size: int


class BlobsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most 4,096 per request."""

    blobs: list[BlobRef]


class Missing(msgspec.Struct, frozen=True):
    missing: list[str]
    """Hashes of the blobs that must be sent."""


class Urls(msgspec.Struct, frozen=True):
    """Signed URLs, one for each requested blob. Without a host: of the endpoint that answered."""

    urls: dict[str, str]


class LinksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    blobs: list[str]


class TakeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest: str
    """Its name. It was uploaded like any blob, and so was everything that it names."""


class ManifestView(msgspec.Struct, frozen=True):
    name: str
    files: int
    bytes: int
    missing: list[str] = []
    """Blobs that did not arrive complete. While there are any, nothing is accepted."""


class SavedView(msgspec.Struct, frozen=True):
    says: str = ""
    """Empty: it is now the job's checkpoint. Otherwise why another one is."""
