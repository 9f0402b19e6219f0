"""The runtimes that confine a body. Imports nothing: see `runtimes.runtime` for the interface and the list of names."""
