"""Reads the blobs of a manifest again, from the folder it was made from or from a stash.

Every blob is hashed as it is read: content that was overwritten since the scan is never sent under its old name.
"""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Protocol

from holdfast.blobs.beneath import Beneath, read_exactly
from holdfast.blobs.errors import BlobMissing, FolderChanged
from holdfast.blobs.keys import sha_of
from holdfast.blobs.manifest import File, Manifest
from holdfast.blobs.paths import shown

_MANY = 8
"""A blob of at least this many files is read by one thread at a time."""


class Source(Protocol):
    """Where blobs are read from. Called from threads."""

    def read(self, sha: str) -> bytes | bytearray: ...


class BytesSource:
    """Blobs that are in memory already, such as a manifest."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs

    def read(self, sha: str) -> bytes:
        if sha not in self._blobs:
            raise BlobMissing(f"blob {sha} is not in memory")
        return self._blobs[sha]


class FirstOf:
    """Several sources in order of preference, for example a stash and then the folder itself."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def read(self, sha: str) -> bytes | bytearray:
        for source in self._sources[:-1]:
            try:
                return source.read(sha)
            except BlobMissing:
                continue
        return self._sources[-1].read(sha)


class FolderSource:
    """The blobs of a manifest, from the files it names."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root = root
        self._many_turn = Lock()
        self._sizes = {b.sha: b.size for b in manifest.blobs}
        self._parts: dict[str, dict[int, tuple[str, int, int]]] = {b.sha: {} for b in manifest.blobs}
        """Hash -> offset in the blob -> (path, offset in the file, length). One file for each range is enough."""
        for entry in manifest.entries:
            if isinstance(entry, File):
                offset = 0
                for piece in entry.pieces:
                    parts = self._parts[manifest.blobs[piece.blob].sha]
                    # A file that is the whole blob saves opening all those that share it.
                    if piece.offset not in parts or piece.length > parts[piece.offset][2]:
                        parts[piece.offset] = (entry.path, offset, piece.length)
                    offset += piece.length

    def read(self, sha: str) -> bytearray:
        parts = self._parts.get(sha)
        if parts is None:
            raise BlobMissing(f"blob {sha} is not in {self._root}")
        data = bytearray(self._sizes[sha])
        # Threads that open many small files slow each other down more than they gain.
        with self._many_turn if len(parts) > _MANY else nullcontext(), Beneath(self._root) as tree:
            self._fill(tree, parts, memoryview(data))
        if sha_of(data) != sha:
            raise _changed(self._root, next(iter(parts.values()))[0], "its content has changed")
        return data

    def _fill(self, tree: Beneath, parts: dict[int, tuple[str, int, int]], data: memoryview) -> None:
        end = 0
        for start, (path, offset, length) in sorted(parts.items()):
            if start < end:
                continue
            end = start + length
            try:
                fd = tree.open_file(path)
                try:
                    read_exactly(fd, offset, data[start:end])
                finally:
                    os.close(fd)
            except OSError as error:
                raise _changed(self._root, path, error.strerror or str(error)) from None


def _changed(root: Path, path: str, why: str) -> FolderChanged:
    return FolderChanged(
        f"{shown(path)} in {root} is not as it was when the folder was read: {why}",
        hint="Wait until nothing writes there any more and send the folder again; what arrived is not sent twice.",
    )
