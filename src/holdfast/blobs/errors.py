"""Errors about content: one class for each kind, each with a stable code. Knows no transport.

    BlobError
    ├── ManifestRefused     manifest_refused    a manifest breaks a rule; never used in part
    │   └── ManifestTooLarge                    it names more than is allowed here; it may be valid elsewhere
    ├── FolderRefused       folder_refused      a folder cannot be sent, or its ignore rules are invalid
    ├── FolderChanged       folder_changed      files were written to while they were read
    ├── InTheWay            in_the_way          something else is in the place of content
    ├── DiskFull            disk_full           not enough space here, or the content is over its limit
    ├── DiskRefused         disk_refused        this machine does not let us write there
    ├── Mismatch            blob_mismatch       bytes do not have the hash or size that names them
    │   └── Damaged         blob_damaged        the store's own copy changed after it was verified
    ├── LinkRefused         link_refused        a signed URL is wrong, altered or for something else
    │   └── LinkExpired     link_expired        it was valid once; ask for a new one
    ├── OverQuota           over_quota          its sender has as much content waiting as it may have
    ├── BlobStoreError                          the store did not do what was asked
    │   ├── BlobMissing     blob_missing        it has nothing under that key
    │   ├── BlobExists      blob_exists         a create-only write found something there
    │   ├── StoreFull       store_full          it has no space left
    │   ├── StoreSlow       store_slow          it did not answer in time
    │   ├── StoreGone       store_gone          it cannot be reached, or answers with errors
    │   └── StoreRefused    store_refused       it denies access: credentials, bucket, permissions
    └── TransferExpired     transfer_expired    a transfer exceeded its time limit; what arrived is kept

No message here ever contains a signature or a credential.
"""

from holdfast.errors import HoldfastError


class BlobError(HoldfastError):
    """Something is wrong with content or with its store."""

    code = "blob_error"
    exit_code = 1
    passing = False
    """Whether the same request may succeed later without anybody doing anything."""


class ManifestRefused(BlobError):
    code = "manifest_refused"
    exit_code = 65


class ManifestTooLarge(ManifestRefused):
    """Names more, or takes longer to check, than is allowed here. Every other refusal means that its author broke a
    rule that holds everywhere."""


class FolderRefused(BlobError):
    code = "folder_refused"
    exit_code = 65


class FolderChanged(BlobError):
    code = "folder_changed"
    exit_code = 75
    passing = True


class InTheWay(BlobError):
    code = "in_the_way"
    exit_code = 73


class DiskFull(BlobError):
    code = "disk_full"
    exit_code = 74


class DiskRefused(BlobError):
    code = "disk_refused"
    exit_code = 74


class Mismatch(BlobError):
    code = "blob_mismatch"
    exit_code = 65


class Damaged(Mismatch):
    """Content that was verified when it was stored, and is not any more what its name says: the network's fault."""

    code = "blob_damaged"
    exit_code = 74


class LinkRefused(BlobError):
    code = "link_refused"
    exit_code = 77


class LinkExpired(LinkRefused):
    code = "link_expired"
    exit_code = 75
    passing = True


class OverQuota(BlobError):
    code = "over_quota"
    exit_code = 75
    passing = True


class BlobStoreError(BlobError):
    """The store did not do what was asked."""

    code = "store_error"
    exit_code = 75


class BlobMissing(BlobStoreError):
    code = "blob_missing"
    exit_code = 66


class BlobExists(BlobStoreError):
    code = "blob_exists"


class StoreFull(BlobStoreError):
    code = "store_full"
    passing = True


class StoreSlow(BlobStoreError):
    code = "store_slow"
    passing = True


class StoreGone(BlobStoreError):
    code = "store_gone"
    passing = True


class StoreRefused(BlobStoreError):
    code = "store_refused"
    exit_code = 77


class TransferExpired(BlobError):
    code = "transfer_expired"
    exit_code = 75
    passing = True
