"""Holdfast runs work on machines nobody controls, and gets it finished.

import holdfast

@holdfast.function
def double(x):
    return 2 * x

double.remote(21)            # runs on a machine of the network, and returns its value

with holdfast.Client.find() as client:
    client.jobs.run(["echo", "hello"])
"""

from typing import Any

__version__ = "0.1.0"

# Their types stand in __init__.pyi: an import here, even one for types only, would tie every room to them.
_FOUND_IN = {"Client": "holdfast.client.client", "function": "holdfast.client.functions"}


def __getattr__(name: str) -> Any:
    """Imported when it is first used: the command line and the nodes start without them."""
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_FOUND_IN[name]), name)
