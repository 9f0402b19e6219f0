"""The network's files: the store of blobs, what is verified and kept, what is deleted."""
