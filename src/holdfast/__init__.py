"""Holdfast runs work on machines nobody controls, and gets it finished.

import holdfast

@holdfast.function
def double(x):
    return 2 * x

double.remote(21)            # runs on a machine of the network and returns its value

with holdfast.Client() as client:
    client.jobs.run(["echo", "hello"])
"""

__version__ = "0.1.0"
DISTRIBUTION = "holdfast-compute"
"""The name of its distribution: a package that is called `holdfast` on an index is not ours."""

# Their types are in __init__.pyi: an import here, even for types only, would make every package depend on them.
_FOUND_IN = {
    "Array": "holdfast.client.objects",
    "AsyncArray": "holdfast.client.objects",
    "AsyncClient": "holdfast.client.async_client",
    "AsyncJob": "holdfast.client.objects",
    "AsyncNode": "holdfast.client.objects",
    "Client": "holdfast.client.client",
    "Event": "holdfast.client.objects",
    "Job": "holdfast.client.objects",
    "LogLine": "holdfast.client.log_lines",
    "Node": "holdfast.client.objects",
    "function": "holdfast.client.functions",
}
_ROOMS = ("errors", "testing")


def __getattr__(name: str) -> object:
    """Import it at its first use, so that the command line and the nodes start without it."""
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"holdfast.{name}")
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
