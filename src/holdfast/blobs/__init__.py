"""Content: chunks, manifests, content addresses, safe unpacking, stores. Used by client, node and orchestrator.

Sending a folder (client; a node sends results and checkpoints the same way):

    scanned = scan(folder, ignore=Ignore(["*.log"]), index=index, strict=True)
    data = scanned.manifest.to_bytes();  name = sha_of(data)               # the name that travels
    blobs = (*scanned.manifest.blobs, Blob(name, len(data)))
    source = FirstOf(BytesSource({name: data}), FolderSource(folder, scanned.manifest))
    http = httpx.AsyncClient(transport=lines.ThreadTransport(context))     # for bulk data
    await transfer.upload(blobs, source, door, http, progress=...)         # door: the orchestrator, as a BlobBroker
    keep(scanned.index.to_bytes())                                         # unchanged files are not read next time

Results are `scan(work, base=what_was_put_there, index=what_unpacking_returned)`. A checkpoint is
`scan(checkpoint, steady=True, index=..., stash=BlobCache(...))`, sent from `FirstOf(cache, FolderSource(...))`.

Fetching (node, or a client getting results):

    manifest = Manifest.from_bytes(data, ManifestLimits(total_bytes=disk), name=name)
    unpacking = Unpacking(folder, manifest, bytes_max=disk, owner=(uid, gid))
    await transfer.download(unpacking.prepare(), unpacking.put, door, http, cache=cache, progress=...)
    index = unpacking.finish(durable=True)                                 # prepare, put and finish block: use threads

The orchestrator:

    store = FolderStore(root, LinkSigner(secret, base_url)) or S3Store(place);  await store.probe()
    await missing(store, uploader, owner_hash(owner), blobs)               # answers a BlobBroker's `missing`
    await store.sign("PUT", incoming_key(uploader, sha), size=..., expires_s=600)
    grant = signer.check(method, key, query, now_s);  await store.receive(grant, body)      # folder store only
    accepted = await accept(store, uploader, owner_hash(owner), name)      # verified and promoted, or the missing blobs
    Collector(...)                                                         # garbage: its module lists the duties

All errors are `BlobError`s with stable codes; see `blobs.errors`. `transfer` and `lines` (httpx) and `s3` (obstore) are
not imported here, so that their dependencies are loaded only if they are needed.
"""

from holdfast.blobs import errors
from holdfast.blobs.cache import BlobCache
from holdfast.blobs.folder import FolderStore
from holdfast.blobs.garbage import Collector, Root
from holdfast.blobs.ignore import Ignore
from holdfast.blobs.index import BlobIndex
from holdfast.blobs.keys import Stored, client_uploader, incoming_key, owned_key, owner_hash, parse_key, sha_of
from holdfast.blobs.manifest import (
    CHUNK_BYTES,
    Blob,
    EmptyFolder,
    Entry,
    File,
    Manifest,
    ManifestLimits,
    Outline,
    Piece,
    Symlink,
)
from holdfast.blobs.scanning import Scan, scan
from holdfast.blobs.signing import Grant, LinkSigner, shown_link
from holdfast.blobs.source import BytesSource, FirstOf, FolderSource, Source
from holdfast.blobs.store import Abilities, Accepted, BlobStore, accept, missing
from holdfast.blobs.unpacking import Unpacking, unpack
from holdfast.blobs.walk import LeftOut

__all__ = [
    "CHUNK_BYTES",
    "Abilities",
    "Accepted",
    "Blob",
    "BlobCache",
    "BlobIndex",
    "BlobStore",
    "BytesSource",
    "Collector",
    "EmptyFolder",
    "Entry",
    "File",
    "FirstOf",
    "FolderSource",
    "FolderStore",
    "Grant",
    "Ignore",
    "LeftOut",
    "LinkSigner",
    "Manifest",
    "ManifestLimits",
    "Outline",
    "Piece",
    "Root",
    "Scan",
    "Source",
    "Stored",
    "Symlink",
    "Unpacking",
    "accept",
    "client_uploader",
    "errors",
    "incoming_key",
    "missing",
    "owned_key",
    "owner_hash",
    "parse_key",
    "scan",
    "sha_of",
    "shown_link",
    "unpack",
]
