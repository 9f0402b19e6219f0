"""Identity and trust: node keys and their proofs, join tokens, certificates and pins, the local admin token."""
