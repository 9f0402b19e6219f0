"""The simulator: the production kernel and node core with a virtual clock, network and disk. Every bug is a seed."""
