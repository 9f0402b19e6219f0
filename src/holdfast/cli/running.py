"""`run` and `rerun`: send a job or an array, show it live, bring back what it made, give its verdict.

Ctrl-C asks whether it shall go on or be stopped; where nobody can be asked, it goes on.
"""

from typing import TYPE_CHECKING

import typer

from holdfast.cli import job_flags as flags
from holdfast.cli.flags import JobOrArray, TokenFile, Url, connect_for_long
from holdfast.cli.from_file import FromFile

if TYPE_CHECKING:
    from holdfast.cli.packing import Packing
    from holdfast.client import Client
    from holdfast.client.results import Synced
    from holdfast.errors import HoldfastError
    from holdfast.wire.http import ArrayView, JobRequest, JobView

CHECKPOINT_EVERY = "5m"


def register(app: typer.Typer) -> None:
    app.command("run", cls=FromFile, context_settings={"allow_interspersed_args": False})(run)
    app.command("rerun")(rerun)


def run(
    argv: flags.Argv,
    name: flags.Name = "",
    image: flags.Image = None,
    dockerfile: flags.Dockerfile = None,
    requirements: flags.Requirements = None,
    cpu: flags.Cpu = "1",
    memory: flags.Memory = "512MiB",
    disk: flags.Disk = "1GiB",
    gpu: flags.Gpu = 0,
    gpu_memory: flags.GpuMemory = None,
    gpu_model: flags.GpuModel = "",
    network: flags.Network = False,
    time_limit: flags.TimeLimit = None,
    queue_limit: flags.QueueLimit = None,
    recovery: flags.Class = None,
    attempts: flags.Attempts = None,
    priority: flags.Priority = 5,
    checkpoint: flags.Checkpoint = False,
    checkpoint_every: flags.CheckpointEvery = None,
    folder: flags.Folder = None,
    no_folder: flags.NoFolder = False,
    input: flags.Input = None,
    array: flags.Array = None,
    env: flags.Env = None,
    detach: flags.Detach = False,
    no_results: flags.NoResults = False,
    key: flags.Key = None,
    json: flags.JsonAtEnd = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a command somewhere in the network.

    The current folder goes along, and the command runs in a copy of it. Its output is shown as it comes; what it makes
    comes back to results/<name or id>/. Without a command, holdfast.toml says what runs: see `holdfast init`.

    The exit code is the job's own when the job itself failed; `holdfast help exit-codes` lists the others. Of an array
    it is 0 when every item succeeded, 75 when all that failed may be tried again, else 1.

    Examples:
      holdfast run -- python3 train.py
      holdfast run --no-folder --detach -- echo hello
      holdfast run --array lines.txt -- python3 one.py {item}
    """
    from holdfast.cli.array_items import read_items
    from holdfast.cli.arrays import see_array_through
    from holdfast.cli.packing import Packing
    from holdfast.quantities import assignments, cpu_milli, duration_ms, size_mib
    from holdfast.wire.http import JobRequest

    every = checkpoint_every or (CHECKPOINT_EVERY if checkpoint else None)
    request = JobRequest(
        argv=argv,
        name=name,
        env=assignments(env or []),
        cpu_milli=cpu_milli(cpu),
        memory_mib=size_mib(memory),
        disk_mib=size_mib(disk),
        gpus=gpu,
        gpu_memory_mib=size_mib(gpu_memory) if gpu_memory else 0,
        gpu_model=gpu_model,
        network=network,
        image=image or "",
        recovery=recovery,
        priority=priority,
        time_limit_ms=duration_ms(time_limit) if time_limit else None,
        queue_limit_ms=duration_ms(queue_limit) if queue_limit else None,
        attempts_max=attempts,
        checkpoint_ms=duration_ms(every) if every else 0,
        key=key,
    )
    items = read_items(array) if array is not None else None
    packing = Packing(folder, no_folder, image, dockerfile, requirements, input or [])
    with connect_for_long(url, token_file) as client:
        job, many = _sent(client, request, packing, items)
        if job is not None:
            _see_through(client, job, detach=detach, results=not no_results, json=json)
        if many is not None:
            see_array_through(client, many, items or [], detach=detach, results=not no_results, json=json)


def _sent(
    client: "Client", request: "JobRequest", packing: "Packing", items: list[str] | None
) -> "tuple[JobView | None, ArrayView | None]":
    """What goes along, and then the job; or, where there are items, the array of them."""
    from secrets import token_hex
    from shlex import quote

    from msgspec.structs import replace

    # Drawn here and not by the client: whoever interrupts the sending is told it, to ask again with it.
    key = request.key or token_hex(16)
    request = replace(request, key=key)
    try:
        fields = packing.send(client)
    except KeyboardInterrupt:
        typer.echo("\nno job was sent; what has arrived of its files will not be sent again", err=True)
        raise typer.Exit(130) from None
    try:
        if items is None:
            return client.jobs.submit(request, **fields), None
        return None, client.arrays.submit(request, items, **fields)
    except KeyboardInterrupt:
        what = "job" if items is None else "array"
        typer.echo(
            f"\nit may have been sent: no answer came yet. The same command with --key {quote(key)} asks again, "
            f"and there will be one {what}, not two",
            err=True,
        )
        raise typer.Exit(130) from None


def rerun(
    job: JobOrArray,
    detach: flags.Detach = False,
    no_results: flags.NoResults = False,
    json: flags.JsonAtEnd = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a job once more, as a new job.

    With the same command, files and limits. Of an array, the items that did not succeed.

    Examples:
      holdfast rerun train
      holdfast rerun job_3f --detach
    """
    from holdfast.cli.array_items import is_array
    from holdfast.cli.arrays import see_array_through

    with connect_for_long(url, token_file) as client:
        if is_array(job):
            see_array_through(client, client.arrays.retry(job), [], detach=detach, results=not no_results, json=json)
        else:
            _see_through(client, client.jobs.rerun(job), detach=detach, results=not no_results, json=json)


def _see_through(client: "Client", job: "JobView", *, detach: bool, results: bool, json: bool) -> None:
    """Show the job until it has ended, and bring its results; or, detached, say its id."""
    from holdfast.cli import show, telling
    from holdfast.cli.leaving import seen_through
    from holdfast.cli.watching import Watch

    if detach:
        show.print_json(job) if json else typer.echo(job.id)
        return
    telling.say(f"-- sent as {job.id}", dim=True)
    ended = seen_through(
        job.id,
        Watch(client, job, aside=json).until_ended,
        lambda: client.jobs.stop(job.id),
        {
            "follow it": f"holdfast logs -f {job.id}",
            "stop it": f"holdfast stop {job.id}",
            "its files": f"holdfast results {job.id}",
        },
    )
    _conclude(client, ended, results=results, json=json)


def _conclude(client: "Client", job: "JobView", *, results: bool, json: bool) -> None:
    from holdfast.cli.show import print_json, verdict_line
    from holdfast.cli.telling import say
    from holdfast.errors import verdict_error

    error = verdict_error(job)
    synced, trouble = _brought(client, job) if results and job.verdict != "cancelled" and job.attempts else (None, None)
    say(verdict_line(job), colour="green" if error is None else "red")
    if error is not None and job.verdict == "failed":
        say(f"  {error.hint.replace(' ID', f' {job.id}')}")
    if json:
        print_json({"job": job, "results": synced})
    if error is not None:
        raise typer.Exit(error.exit_code)
    if trouble is not None:
        raise trouble


def _brought(client: "Client", job: "JobView") -> "tuple[Synced | None, HoldfastError | None]":
    """The results of a job that ended, or why they are not here. The verdict is said in either case."""
    from holdfast.cleaning import clean
    from holdfast.cli import telling
    from holdfast.cli.results import bring, says
    from holdfast.errors import HoldfastError

    try:
        synced = bring(client, job.id)
    except HoldfastError as trouble:
        trouble.hint = f"{trouble.hint} Then get them with: holdfast results {job.id}".strip()
        telling.say(f"-- its results did not arrive: {clean(trouble.says)} [{trouble.code}]")
        return None, trouble
    telling.say(f"-- {says(synced)}")
    return synced, None
