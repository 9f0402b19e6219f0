"""What can go wrong with content: one class for each kind of trouble, each with a stable code. Knows no transport.

    BlobError
    ├── ManifestRefused     manifest_refused    a list of content breaks a rule; never used in part
    ├── FolderRefused       folder_refused      a folder holds something that cannot be sent, or its rules make no sense
    ├── FolderChanged       folder_changed      files were written to while they were read
    ├── InTheWay            in_the_way          something that is not ours lies where content belongs
    ├── DiskFull            disk_full           this machine has no room, or the content is over its limit
    ├── DiskRefused         disk_refused        this machine does not let us write there
    ├── Mismatch            blob_mismatch       bytes do not have the hash or size that names them
    ├── LinkRefused         link_refused        a signed address is wrong, altered or for something else
    │   └── LinkExpired     link_expired        it was right once; ask for a new one
    ├── StoreError                              the store did not do what was asked
    │   ├── BlobMissing     blob_missing        it holds nothing under that key
    │   ├── BlobExists      blob_exists         a create-only write found something there
    │   ├── StoreFull       store_full          it has no room
    │   ├── StoreSlow       store_slow          it did not answer in time
    │   ├── StoreGone       store_gone          it cannot be reached, or answers with faults
    │   └── StoreRefused    store_refused       it does not let us: credentials, bucket, permissions
    └── TransferExpired     transfer_expired    moving content took longer than was given; what arrived is kept

No text here ever holds a signature or a credential.
"""

from holdfast.errors import HoldfastError


class BlobError(HoldfastError):
    """Something is wrong with content or with where it is kept."""

    code = "blob_error"
    exit_code = 1
    passing = False
    """Whether the same thing may work later without anybody doing anything."""


class ManifestRefused(BlobError):
    code = "manifest_refused"
    exit_code = 65


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


class LinkRefused(BlobError):
    code = "link_refused"
    exit_code = 77


class LinkExpired(LinkRefused):
    code = "link_expired"
    exit_code = 75
    passing = True


class StoreError(BlobError):
    """The store did not do what was asked."""

    code = "store_error"
    exit_code = 75


class BlobMissing(StoreError):
    code = "blob_missing"
    exit_code = 66


class BlobExists(StoreError):
    code = "blob_exists"


class StoreFull(StoreError):
    code = "store_full"
    passing = True


class StoreSlow(StoreError):
    code = "store_slow"
    passing = True


class StoreGone(StoreError):
    code = "store_gone"
    passing = True


class StoreRefused(StoreError):
    code = "store_refused"
    exit_code = 77


class TransferExpired(BlobError):
    code = "transfer_expired"
    exit_code = 75
    passing = True
