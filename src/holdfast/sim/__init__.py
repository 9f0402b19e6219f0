"""The virtual world: production kernel and node core under a virtual clock, network and disk. Every bug is a seed."""
