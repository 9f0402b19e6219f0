"""The interface of a runtime, and the runtimes by name. A runtime confines a body; the attempt lifecycle decides when
it starts and ends.

A new runtime is a module here and an entry in `_MODULES`; the shim does not change.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from holdfast.node.core.order import Order

_MODULES = {
    "container": "holdfast.node.runtimes.container",
    "bubblewrap": "holdfast.node.runtimes.bubblewrap",
    "process": "holdfast.node.runtimes.process",
}


@dataclass(frozen=True)
class Ended:
    """How a body ended; `fault` is set if the runtime failed, not the body."""

    exit_code: int | None = None
    signal: int | None = None
    fault: str = ""
    code: str = ""
    """The failure code if the runtime has evidence for one: `oom_job`, `disk_quota` … Exit code 137 alone is no
    evidence."""


@dataclass(frozen=True)
class Usage:
    """What a body uses now; 0 if that is unknown."""

    cpu_ms: int = 0
    memory_mib: int = 0
    memory_peak_mib: int = 0
    disk_mib: int = 0
    pids: int = 0
    throttled_permille: int = 0
    """How much of the last second it was throttled by its own processor limit."""
    oom_kills: int = 0
    """How many of its processes the kernel ended because the body's own memory limit was exceeded."""


@dataclass(frozen=True)
class BodyView:
    """What a program sees beside the system: path it sees -> folder of the machine. A runtime without a sandbox shows
    the machine as it is."""

    writable: dict[str, str]
    """Has `/work`, where the program starts."""
    readable: dict[str, str]
    keep: tuple[int, ...] = ()
    """Descriptors that it inherits."""


class Body(Protocol):
    """A started body."""

    @property
    def pid(self) -> int:
        """A child of the shim that lives exactly as long as the body."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the body; SIGKILL also to the processes around it."""
        ...

    def ended(self, wait_status: int, last_words: str) -> Ended:
        """Interpret the wait status of `pid`; `last_words` is the end of stderr."""
        ...

    def usage(self) -> Usage:
        """Cheap: called every second."""
        ...


class Runtime(Protocol):
    """Implemented by each module that `_MODULES` names."""

    def warm(self) -> None:
        """Detect now what every start needs to know, in a process whose forks inherit it."""
        ...

    def works(self) -> tuple[bool, str]:
        """Whether it can be used on this machine, actually tested; if not, why, for the operator."""
        ...

    def capabilities(self) -> dict[str, str]:
        """How each limit is enforced on this machine, for the node's listing: the limit's name, then `kernel`,
        `measured` or `none`, and after that by what, or why not (`none: the node is not root`). Never raises."""
        ...

    def prepare(self, order: Order, folder: str) -> None:
        """Create `work/` (and `checkpoint/` if requested) in the attempt's folder, within the disk limit, owned by the
        body's user. Blocking; idempotent. Raises OSError if that fails."""
        ...

    def start(self, order: Order, folder: str, stdout: int, stderr: int) -> Body:
        """Start the body in `work/` of the attempt's folder. Raises OSError if that fails. The caller keeps the
        descriptors."""
        ...

    def start_build(self, order: Order, folder: str, view: BodyView, stdout: int, stderr: int) -> Body:
        """Start the program that prepares the attempt's environment: as the body's user and within the body's limits,
        but with another view. `order`: that of the body, with the program's argv and env. Raises OSError."""
        ...

    def end(self, folder: str) -> None:
        """End everything of the attempt in `folder` that may still use its folders: containers, processes of its
        control groups. Idempotent. Raises OSError while something is left."""
        ...

    def clean(self, folder: str) -> None:
        """Remove every process, mount, cgroup and container of the attempt in `folder`, however it ended. Idempotent.
        Raises OSError while something is left."""
        ...


def runtime_named(name: str) -> Runtime:
    """Import a runtime by its name. Raises ValueError, with the list of names, if there is none."""
    if name not in _MODULES:
        raise ValueError(f"there is no runtime {name!r}; there are {', '.join(sorted(_MODULES))}")
    module = import_module(_MODULES[name])
    runtime: Runtime = module.RUNTIME
    return runtime


def clean(folder: str) -> None:
    """Remove everything of the attempt in `folder`, for any runtime: its order may be unreadable. All runtimes end
    their processes before the first one removes folders that those of another might use."""
    runtimes = [runtime_named(name) for name in _MODULES]
    for runtime in runtimes:
        runtime.end(folder)
    for runtime in runtimes:
        runtime.clean(folder)


def preload() -> None:
    """Import and warm every runtime now, for a process whose forks inherit it."""
    for name in _MODULES:
        runtime_named(name).warm()
