"""The list of what a folder holds: names, sizes, and which bytes of which blob make up each file. Pure.

A manifest is itself a blob: its bytes are canonical JSON, and their SHA-256 is its name. `Manifest.from_bytes` trusts
nothing: what it returns satisfies every rule of `check`, and equal content has only one representation.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from holdfast.blobs.errors import ManifestRefused, ManifestTooLarge
from holdfast.blobs.keys import sha_of
from holdfast.blobs.paths import Names, shown, why_not_a_path, why_not_a_target

VERSION = 1
CHUNK_BYTES = 4 * 1024 * 1024
"""The maximum size of a blob. A retry costs little, and four in flight fit into any memory."""
PACKED_BELOW_BYTES = 1024 * 1024
"""Smaller files share a blob with their neighbours."""
ENTRIES_MIN = 4_096
"""Entries that any job may leave, however small its disk is."""
ENTRY_DISK_BYTES = 1024
ENTRY_BYTES = 256
_TOTAL_MAX = 2**50

Sha = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Meta(ge=0, le=_TOTAL_MAX)]
Size = Annotated[int, Meta(ge=1, le=_TOTAL_MAX)]


class ManifestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a manifest may name."""

    manifest_bytes: int = 64 * 1024 * 1024
    """Enough for about 400,000 files; read into memory as a whole."""
    entries: int = 500_000
    """With the folders that they lie in: one that is 64 folders deep takes 64 times as long to check as one that is
    not."""
    blobs: int = 500_000
    """Two TiB in whole chunks."""
    total_bytes: int = _TOTAL_MAX
    """The sum of all file sizes, which is what unpacking writes, however few blobs there are."""

    @classmethod
    def of_disk(cls, disk_bytes: int) -> "ManifestLimits":
        """For the files that fit on a job's disk: an entry for each KiB, and 256 bytes of manifest for each entry."""
        most = cls()
        entries = min(most.entries, ENTRIES_MIN + disk_bytes // ENTRY_DISK_BYTES)
        manifest_bytes = min(most.manifest_bytes, ENTRY_BYTES * entries)
        return cls(manifest_bytes=manifest_bytes, entries=entries, blobs=entries, total_bytes=disk_bytes)


class Blob(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    sha: Sha
    size: Size


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A run of bytes of one blob."""

    blob: Count
    """Its index in the manifest's list."""
    offset: Count
    length: Size


class File(msgspec.Struct, frozen=True, tag="file", array_like=True, forbid_unknown_fields=True, gc=False):
    path: str
    size: Count
    executable: bool
    pieces: tuple[Piece, ...]
    sha: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """Of the content, if the file shares its blob with others. Otherwise empty: its blobs are its hashes."""


class EmptyFolder(msgspec.Struct, frozen=True, tag="folder", array_like=True, forbid_unknown_fields=True, gc=False):
    """A folder without any entries, which no other entry implies."""

    path: str


class Symlink(msgspec.Struct, frozen=True, tag="symlink", array_like=True, forbid_unknown_fields=True, gc=False):
    path: str
    target: str


Entry = File | EmptyFolder | Symlink


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    blobs: tuple[Blob, ...]
    """In the order of their first use; each is used and listed once."""
    entries: tuple[Entry, ...]
    """Sorted by path."""

    @classmethod
    def of(cls, entries: Iterable[Entry], blobs: Iterable[Blob] = ()) -> Self:
        """A manifest in canonical form. The pieces of `entries` index `blobs`; unused blobs are dropped."""
        old = tuple(blobs)
        new: dict[str, int] = {}
        ordered: list[Entry] = []
        for entry in sorted(entries, key=lambda e: e.path):
            if isinstance(entry, File) and entry.pieces:
                pieces = tuple(
                    Piece(new.setdefault(old[p.blob].sha, len(new)), p.offset, p.length) for p in entry.pieces
                )
                entry = File(entry.path, entry.size, entry.executable, pieces, entry.sha)
            ordered.append(entry)
        sizes = {b.sha: b.size for b in old}
        made = cls(VERSION, tuple(Blob(sha, sizes[sha]) for sha in new), tuple(ordered))
        check(made)
        return made

    @classmethod
    def from_bytes(cls, data: bytes, limits: ManifestLimits | None = None, *, name: str = "") -> Self:
        """Parse an untrusted manifest. `name`: its expected hash. Raises ManifestRefused."""
        limits = limits or ManifestLimits()
        if len(data) > limits.manifest_bytes:
            raise ManifestTooLarge(f"a manifest of {len(data)} bytes is over the limit of {limits.manifest_bytes}")
        if name and sha_of(data) != name:
            raise ManifestRefused(f"the bytes of manifest {name[:80]} do not have that hash")
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version != VERSION:
                raise ManifestRefused(
                    f"a manifest has version {version}, and this program reads version {VERSION}",
                    hint="Use the same version of holdfast on both sides.",
                )
            made = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ManifestRefused(f"a manifest cannot be read: {error}") from None
        check(made, limits)
        if made.to_bytes() != data:
            raise ManifestRefused("a manifest is not in its canonical form")
        return made

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def name(self) -> str:
        """Computes a hash of the whole list: keep the result."""
        return sha_of(self.to_bytes())

    @property
    def total_bytes(self) -> int:
        """The total size of its files, which may be more than that of its blobs: equal content is stored once."""
        return sum(e.size for e in self.entries if isinstance(e, File))

    @property
    def blob_bytes(self) -> int:
        return sum(b.size for b in self.blobs)

    @property
    def outline(self) -> "Outline":
        return Outline(self.blobs, sum(isinstance(entry, File) for entry in self.entries), self.total_bytes)

    def content_of(self, file: File) -> str:
        """Equal for files with equal bytes, in any manifest."""
        if file.sha:
            return file.sha
        if len(file.pieces) == 1:
            return self.blobs[file.pieces[0].blob].sha
        return content_name([self.blobs[p.blob].sha for p in file.pieces])


class Outline(msgspec.Struct, frozen=True):
    """What must be known of a manifest to store it: its blobs, and how many files of how many bytes it names."""

    blobs: tuple[Blob, ...]
    files: int
    total_bytes: int


class _Version(msgspec.Struct):
    version: int = 0


class _Blobs(msgspec.Struct):
    blobs: tuple[Blob, ...]


def blobs_in(data: bytes) -> tuple[Blob, ...]:
    """The blobs of a manifest that was checked before. Takes a hundredth of the time of `from_bytes`."""
    return msgspec.json.decode(data, type=_Blobs).blobs


def content_name(shas: list[str]) -> str:
    """One name for content that consists of whole chunks."""
    return shas[0] if len(shas) == 1 else sha256("".join(shas).encode()).hexdigest()


def check(manifest: Manifest, limits: ManifestLimits | None = None) -> None:
    """Raises ManifestRefused unless every rule holds. msgspec has checked types, signs and the form of hashes."""
    limits = limits or ManifestLimits()
    if len(manifest.entries) > limits.entries:
        raise ManifestTooLarge(
            f"a manifest names {len(manifest.entries)} entries; at most {limits.entries} are allowed"
        )
    if len(manifest.blobs) > limits.blobs:
        raise ManifestTooLarge(f"a manifest names {len(manifest.blobs)} blobs; at most {limits.blobs} are allowed")
    total = manifest.total_bytes
    if total > limits.total_bytes:
        raise ManifestTooLarge(f"a manifest names {total} bytes; at most {limits.total_bytes} are allowed")
    _check_names(manifest, limits)
    _check_blobs(manifest, _ranges(manifest))


def _check_names(manifest: Manifest, limits: ManifestLimits) -> None:
    names, last = Names(), ""
    for entry in manifest.entries:
        if why := why_not_a_path(entry.path):
            raise ManifestRefused(f"the name {shown(entry.path)} {why}")
        if entry.path <= last:
            raise ManifestRefused(f"the name {shown(entry.path)} is out of order or a duplicate")
        last = entry.path
        if why := names.add(entry.path, isinstance(entry, EmptyFolder)):
            raise ManifestRefused(f"the name {shown(entry.path)} {why}")
        if len(manifest.entries) + names.folders > limits.entries:
            raise ManifestTooLarge(f"a manifest names more than {limits.entries} entries and folders")
        if isinstance(entry, Symlink) and (why := why_not_a_target(entry.path, entry.target)):
            raise ManifestRefused(f"the link {shown(entry.path)} {why}")


def _ranges(manifest: Manifest) -> list[set[tuple[int, int]]]:
    """The ranges of each blob that files use. Checks the rules for the pieces of a file."""
    blobs = manifest.blobs
    used: list[set[tuple[int, int]]] = [set() for _ in blobs]
    upcoming = 0
    for entry in manifest.entries:
        if not isinstance(entry, File):
            continue
        size = 0
        whole = True
        for piece in entry.pieces:
            if size % CHUNK_BYTES:
                raise ManifestRefused(f"{shown(entry.path)} is not cut at every {CHUNK_BYTES} bytes")
            if piece.blob > upcoming or piece.blob >= len(blobs):
                raise ManifestRefused(f"{shown(entry.path)} uses blob {piece.blob} out of order or out of range")
            upcoming = max(upcoming, piece.blob + 1)
            if piece.offset + piece.length > blobs[piece.blob].size:
                raise ManifestRefused(f"{shown(entry.path)} uses bytes past the end of blob {piece.blob}")
            whole = whole and piece.length == blobs[piece.blob].size
            used[piece.blob].add((piece.offset, piece.length))
            size += piece.length
        if size != entry.size:
            raise ManifestRefused(f"{shown(entry.path)} says {entry.size} bytes and its pieces have {size}")
        if whole is bool(entry.sha) or not (whole or len(entry.pieces) == 1):
            raise ManifestRefused(f"{shown(entry.path)} must be made of whole blobs, or of one piece with a hash")
    return used


def _check_blobs(manifest: Manifest, used: list[set[tuple[int, int]]]) -> None:
    if len({b.sha for b in manifest.blobs}) != len(manifest.blobs):
        raise ManifestRefused("a manifest names a blob twice")
    for blob, ranges in zip(manifest.blobs, used, strict=True):
        if blob.size > CHUNK_BYTES:
            raise ManifestRefused(f"blob {blob.sha} has {blob.size} bytes; at most {CHUNK_BYTES} are allowed")
        # A file may equal the pack of its neighbours: `split` creates such folders.
        shared = ranges - {(0, blob.size)}
        end = blob.size if not shared and ranges else 0
        for offset, length in sorted(shared):
            if offset != end:
                raise ManifestRefused(
                    f"the pieces of blob {blob.sha} overlap or leave a gap at byte {min(offset, end)}"
                )
            end = offset + length
        if end != blob.size:
            raise ManifestRefused(f"the pieces of blob {blob.sha} cover {end} of its {blob.size} bytes")
