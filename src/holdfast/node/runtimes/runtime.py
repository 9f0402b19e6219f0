"""The interface of a runtime, and their names. A runtime confines a body; when it starts and ends is the warden's.

A new runtime is a module here and a line in `_MODULES`; the shim does not change.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from holdfast.node.core.warden import Order

_MODULES = {
    "bubblewrap": "holdfast.node.runtimes.bubblewrap",
    "process": "holdfast.node.runtimes.process",
}


@dataclass(frozen=True)
class Ended:
    """How a body ended; `fault` is set where it was the runtime that failed, not the body."""

    exit_code: int | None = None
    signal: int | None = None
    fault: str = ""


class Body(Protocol):
    """A body that was started."""

    @property
    def pid(self) -> int:
        """A child of the shim that lives exactly as long as the body."""
        ...

    def signal(self, number: int) -> None:
        """To everything the body consists of; SIGKILL also to what holds it."""
        ...

    def ended(self, wait_status: int, last_words: str) -> Ended:
        """Read the wait status of `pid`; `last_words` is the end of stderr."""
        ...


class Runtime(Protocol):
    """Each module of this package named in `_MODULES` has these."""

    def warm(self) -> None:
        """Find out now what every start would need to know, for a process whose forks inherit it."""
        ...

    def works(self) -> tuple[bool, str]:
        """Whether it can be used on this machine, tried for real; if not, why, in words for the operator."""
        ...

    def start(self, order: Order, work: str, stdout: int, stderr: int) -> Body:
        """Start the body in folder `work`. OSError where that fails. The descriptors stay the caller's."""
        ...


def runtime_named(name: str) -> Runtime:
    """Import a runtime by its name; ValueError lists those that exist."""
    if name not in _MODULES:
        raise ValueError(f"there is no runtime {name!r}; there are {', '.join(sorted(_MODULES))}")
    module = import_module(_MODULES[name])
    runtime: Runtime = module.RUNTIME
    return runtime


def preload() -> None:
    """Import and warm every runtime now, for a process whose forks should find them so."""
    for name in _MODULES:
        runtime_named(name).warm()
