"""What a person can ask of a job, flag by flag. Says what each means; what becomes of it is the business of `run`."""

from typing import Annotated

import typer

from holdfast.cli.flags import one_of

Argv = Annotated[list[str], typer.Argument(metavar="[-- CMD…]", help="The command; else holdfast.toml.")]
Name = Annotated[str, typer.Option(help="A name for people to read; its results go to results/NAME/.")]

# --- what it runs in ---

Image = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Run in this container image; best with its digest: NAME@sha256:…")
]
Dockerfile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Build the image from this Dockerfile of the folder.")
]
Requirements = Annotated[
    str | None, typer.Option(metavar="FILE", help="Install this Python requirements file of the folder first.")
]

# --- what it needs ---

Cpu = Annotated[str, typer.Option(metavar="CORES", help="Cores: 2, 0.5 or 250m.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory, as 512MiB or 2GiB.")]
Disk = Annotated[str, typer.Option(metavar="SIZE", help="Scratch disk: its folder, its inputs and what it makes.")]
Gpu = Annotated[int, typer.Option(min=0, help="Whole GPUs.")]
GpuMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory that each GPU must have, as 24GiB.")]
GpuModel = Annotated[str, typer.Option(metavar="MODEL", help="Model that each GPU must be of.")]
Network = Annotated[bool, typer.Option("--network", help="Let it use the network; without this it has none.")]

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
        "--checkpoint", help="Keep what it writes to $HOLDFAST_CHECKPOINT_DIR; the next attempt goes on from there."
    ),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How often that is captured; implies --checkpoint. [default: 5m]"),
]

# --- what goes along ---

Folder = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Send this folder, however large; else the current one. .holdfastignore counts."),
]
NoFolder = Annotated[bool, typer.Option("--no-folder", help="Send no folder: it starts in an empty one.")]
Input = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WHAT",
        help="Let it read inputs/NAME: an http(s):// or s3:// address (#sha256=HEX pins it), job:ID (what that made), "
        "or a file or folder here, which goes into inputs/NAME/. Repeatable.",
    ),
]
Array = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Run it once for each line of FILE (- is stdin), up to 10,000: the line stands for {item} in the command, "
        "its place for {index}, the field F of a line that is a JSON object for {F}.",
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
