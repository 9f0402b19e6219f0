"""The network's files: the blob store, verification, retention and deletion."""
