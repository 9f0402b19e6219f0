"""Who is speaking: node keys and their proofs, join tokens, certificates and pins, the local admin token."""
