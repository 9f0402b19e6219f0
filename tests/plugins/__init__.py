"""Pytest plugins of this repository, loaded by name with `-p`."""
