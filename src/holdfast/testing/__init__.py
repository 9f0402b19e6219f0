"""The test kit. For users: `Network`, a whole network in virtual time inside one test (docs/sdk.md). For Holdfast's own
tests: conformance suites, and processes to start and kill."""

from typing import Any

_NETWORK = frozenset({"Body", "Network", "NetworkStuck", "Run", "VirtualNode", "really"})


def __getattr__(name: str) -> Any:
    """Import the name at its first use: the rest of the kit does not need the simulator."""
    if name not in _NETWORK:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    from holdfast.testing import network

    return getattr(network, name)
