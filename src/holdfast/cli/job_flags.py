"""The flags that describe a job, their help, and the request that is built from them. What happens to the request is
decided by `run`."""

import inspect
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from holdfast.cli.flags import one_of

if TYPE_CHECKING:
    from holdfast.wire.http import JobRequest

CHECKPOINT_EVERY = "5m"

Argv = Annotated[list[str], typer.Argument(metavar="[-- CMD…]", help="The command; else holdfast.toml.")]
Name = Annotated[str, typer.Option(help="A name for people to read; its results go to results/NAME/.")]

# --- what it runs in ---

Image = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Run in this container image; best with its digest: NAME@sha256:…")
]
Dockerfile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Build the image from this Dockerfile in the folder.")
]
Requirements = Annotated[
    str | None, typer.Option(metavar="FILE", help="Install this Python requirements file in the folder first.")
]

# --- what it needs ---

Cpu = Annotated[str, typer.Option(metavar="CORES", help="Cores: 2, 0.5 or 250m.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory, such as 512MiB or 2GiB.")]
Disk = Annotated[str, typer.Option(metavar="SIZE", help="Scratch disk: its folder, its inputs and what it makes.")]
Gpu = Annotated[int, typer.Option(min=0, help="Whole GPUs.")]
GpuMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory that each GPU must have, such as 24GiB.")]
GpuModel = Annotated[str, typer.Option(metavar="MODEL", help="Model that each GPU must have.")]
Network = Annotated[bool, typer.Option("--network", help="Let it use the network; by default it cannot.")]

# --- how long, how often ---

TimeLimit = Annotated[str | None, typer.Option(metavar="DURATION", help="Stop it after this long: 90s, 2h.")]
QueueLimit = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Give up if no machine is free for this long.")
]
Class = Annotated[
    str | None,
    typer.Option(
        "--class",
        help="If its machine dies: restart, resume, or never (must not run twice). [default: restart]",
        autocompletion=one_of("restart", "resume", "never"),
    ),
]
Attempts = Annotated[int | None, typer.Option(min=1, help="Failed attempts before it is given up.")]
Priority = Annotated[int, typer.Option(min=0, max=9, help="0 (last) to 9 (first).")]
Checkpoint = Annotated[
    bool,
    typer.Option(
        "--checkpoint", help="Keep what it writes to $HOLDFAST_CHECKPOINT_DIR; the next attempt continues from it."
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Checkpoint interval; implies --checkpoint. [default: 5m]"),
]

# --- what goes along ---

Folder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Send this folder, of any size; else the current one. .gitignore and .holdfastignore apply.",
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Send this file of the folder all the same, ignored or secret. Repeatable; patterns as in .gitignore.",
    ),
]
NoGitignore = Annotated[bool, typer.Option("--no-gitignore", help="Send what .gitignore names, too.")]
NoFolder = Annotated[bool, typer.Option("--no-folder", help="Send no folder: it starts in an empty one.")]
Input = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WHAT",
        help="Let it read inputs/NAME: an http(s):// or s3:// address (#sha256=HEX pins it), job:ID (the files of that "
        "job), or a local file or folder, which is put into inputs/NAME/. Repeatable.",
    ),
]
Array = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Run it once for each line of FILE (- is stdin), up to 10,000. In the command, {item} is replaced by the "
        "line, {index} by its index, and {F} by the field F of a line that is a JSON object.",
    ),
]
Env = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for the job; repeatable.")]

# --- how it is watched ---

Detach = Annotated[bool, typer.Option("--detach", help="Print the id of the job, or of the array, and return at once.")]
NoResults = Annotated[bool, typer.Option("--no-results", help="Leave its results on the network.")]
Key = Annotated[
    str | None, typer.Option(help="Idempotency key: the same key is the same job, however often it is sent.")
]
JsonAtEnd = Annotated[
    bool, typer.Option("--json", help="Print JSON at the end; what the job prints goes to stderr instead.")
]

# --- all of it ---


@dataclass(frozen=True)
class JobFlags:
    """A job as typed. Commands that take a job have these flags: see `taking`."""

    argv: Argv
    name: Name = ""
    image: Image = None
    dockerfile: Dockerfile = None
    requirements: Requirements = None
    cpu: Cpu = "1"
    memory: Memory = "512MiB"
    disk: Disk = "1GiB"
    gpu: Gpu = 0
    gpu_memory: GpuMemory = None
    gpu_model: GpuModel = ""
    network: Network = False
    time_limit: TimeLimit = None
    queue_limit: QueueLimit = None
    recovery: Class = None
    attempts: Attempts = None
    priority: Priority = 5
    checkpoint: Checkpoint = False
    checkpoint_every: CheckpointEvery = None
    folder: Folder = None
    no_folder: NoFolder = False
    include: Include = None
    no_gitignore: NoGitignore = False
    input: Input = None
    array: Array = None
    env: Env = None

    def request(self, key: str | None = None) -> "JobRequest":
        """The request, without what is uploaded first: the folder, the inputs, the build files."""
        from holdfast.client.job_options import requested_by_flags
        from holdfast.quantities import assignments

        options = {
            "name": self.name,
            "env": assignments(self.env or []),
            "cpu": self.cpu,
            "memory": self.memory,
            "disk": self.disk,
            "gpu": self.gpu,
            "gpu_memory": self.gpu_memory or None,
            "gpu_model": self.gpu_model,
            "network": self.network,
            "image": self.image,
            "recovery": self.recovery,
            "priority": self.priority,
            "time_limit": self.time_limit or None,
            "queue_limit": self.queue_limit or None,
            "attempts": self.attempts,
            "checkpoint": self.checkpoint_every or (CHECKPOINT_EVERY if self.checkpoint else None),
            "key": key,
        }
        return requested_by_flags(self.argv, options)


def taking(command: Callable[..., None], *, hidden: Collection[str] = ()) -> Callable[..., None]:
    """Turn a command whose first parameter is a `JobFlags` into one for Typer, with a flag for each field. Flags in
    `hidden` are accepted, but not shown."""

    @wraps(command)
    def called(**given: Any) -> None:
        command(JobFlags(**{field.name: given.pop(field.name) for field in fields(JobFlags)}), **given)

    typed = get_type_hints(JobFlags, include_extras=True)
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_hidden(typed[field.name]) if field.name in hidden else typed[field.name],
        )
        for field in fields(JobFlags)
    ]
    own = list(inspect.signature(command).parameters.values())[1:]
    flags += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    called.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    return called


def _hidden(typed: Any) -> Any:
    kind, says = get_args(typed)
    says = copy(says)
    says.hidden = True
    return Annotated[kind, says]
