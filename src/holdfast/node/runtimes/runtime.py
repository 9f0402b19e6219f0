"""The interface of a runtime, and their names. A runtime confines a body; when it starts and ends is the warden's.

A new runtime is a module here and a line in `_MODULES`; the shim does not change.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from holdfast.node.core.warden import Order

_MODULES = {
    "container": "holdfast.node.runtimes.container",
    "bubblewrap": "holdfast.node.runtimes.bubblewrap",
    "process": "holdfast.node.runtimes.process",
}


@dataclass(frozen=True)
class Ended:
    """How a body ended; `fault` is set where it was the runtime that failed, not the body."""

    exit_code: int | None = None
    signal: int | None = None
    fault: str = ""
    code: str = ""
    """The failure's code where the runtime has evidence for one: `oom_job`, `disk_quota` … Exit 137 alone is none."""


@dataclass(frozen=True)
class Usage:
    """What a body uses now; 0 where that cannot be known."""

    cpu_ms: int = 0
    memory_mib: int = 0
    memory_peak_mib: int = 0
    disk_mib: int = 0
    pids: int = 0
    throttled_permille: int = 0
    """How much of the last second it was held back by its own processor limit."""
    oom_kills: int = 0
    """Processes of it that the kernel ended for exceeding the body's own memory limit."""


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

    def usage(self) -> Usage:
        """Cheap: asked every second."""
        ...


class Runtime(Protocol):
    """Each module of this package named in `_MODULES` has these."""

    def warm(self) -> None:
        """Find out now what every start would need to know, for a process whose forks inherit it."""
        ...

    def works(self) -> tuple[bool, str]:
        """Whether it can be used on this machine, tried for real; if not, why, in words for the operator."""
        ...

    def capabilities(self) -> dict[str, str]:
        """How each limit is held on this machine, for the node's listing: the limit's name, then `kernel`, `measured`
        or `none`, and behind it by what, or why not (`none: the node is not root`). Never raises."""
        ...

    def prepare(self, order: Order, folder: str) -> None:
        """Make `work/` (and `checkpoint/` where asked) in the attempt's folder, within the disk limit, owned by the
        user the body will be. Blocking; may be repeated. OSError where that fails."""
        ...

    def start(self, order: Order, folder: str, stdout: int, stderr: int) -> Body:
        """Start the body in `work/` of the attempt's folder. OSError where that fails. The descriptors stay the
        caller's."""
        ...

    def end(self, folder: str) -> None:
        """End what of the attempt in `folder` may still hold its folders: containers, processes of its control groups.
        May be repeated. OSError while something is left."""
        ...

    def clean(self, folder: str) -> None:
        """Leave no process, mount, cgroup or container of the attempt in `folder`, however it came to its end. May be
        repeated. OSError while something is left."""
        ...


def runtime_named(name: str) -> Runtime:
    """Import a runtime by its name; ValueError lists those that exist."""
    if name not in _MODULES:
        raise ValueError(f"there is no runtime {name!r}; there are {', '.join(sorted(_MODULES))}")
    module = import_module(_MODULES[name])
    runtime: Runtime = module.RUNTIME
    return runtime


def clean(folder: str) -> None:
    """Leave nothing of the attempt in `folder`, whichever runtime it had: its order may be unreadable. So all of them
    end what is theirs before the first takes the folders away, which somebody of the next might hold."""
    runtimes = [runtime_named(name) for name in _MODULES]
    for runtime in runtimes:
        runtime.end(folder)
    for runtime in runtimes:
        runtime.clean(folder)


def preload() -> None:
    """Import and warm every runtime now, for a process whose forks should find them so."""
    for name in _MODULES:
        runtime_named(name).warm()
