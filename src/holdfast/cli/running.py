"""`run` and `rerun`: send a job or an array, show it live, bring back what it made, give its verdict.

Ctrl-C leaves it running, and says so.
"""

from typing import TYPE_CHECKING

import typer

from holdfast.cli import job_flags as flags
from holdfast.cli.flags import JobOrArray, TokenFile, Url, connect_for_long

if TYPE_CHECKING:
    from holdfast.cli.packing import Packing
    from holdfast.client import Client
    from holdfast.client.results import Synced
    from holdfast.errors import HoldfastError
    from holdfast.wire.http import ArrayView, JobRequest, JobView

CHECKPOINT_EVERY = "5m"


def register(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
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
    """Run a command somewhere in the network, show its output, bring back its files, and end with its exit code.

    The current folder goes along, and the command runs in a copy of it. What it makes there comes back to
    results/<name or id>/, together with its output.

    The exit code is the job's own when the job itself failed (137: out of memory, 124: time limit); 75 when
    machines or the network failed it and trying again may help; 65 when it was refused; 69 when nobody
    answers. Of an array it is 0 when every item succeeded, 75 when all that failed may be tried again, else 1.
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
    try:
        fields = packing.send(client)
        if items is None:
            return client.jobs.submit(request, **fields), None
        return None, client.arrays.submit(request, items, **fields)
    except KeyboardInterrupt:
        typer.echo("\nno job was sent; what has arrived of its files will not be sent again", err=True)
        raise typer.Exit(130) from None


def rerun(
    job: JobOrArray,
    detach: flags.Detach = False,
    no_results: flags.NoResults = False,
    json: flags.JsonAtEnd = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a job once more: the same command, files and limits, as a new job. Of an array, the items that did not
    succeed."""
    from holdfast.cli.array_items import is_array
    from holdfast.cli.arrays import see_array_through

    with connect_for_long(url, token_file) as client:
        if is_array(job):
            see_array_through(client, client.arrays.retry(job), [], detach=detach, results=not no_results, json=json)
        else:
            _see_through(client, client.jobs.rerun(job), detach=detach, results=not no_results, json=json)


def _see_through(client: "Client", job: "JobView", *, detach: bool, results: bool, json: bool) -> None:
    """Show the job until it has ended, and bring its results; or, detached, say its id."""
    from holdfast.cli import show
    from holdfast.cli.watching import Watch

    if detach:
        show.print_json(job) if json else typer.echo(job.id)
        return
    try:
        ended = Watch(client, job, aside=json).until_ended()
    except KeyboardInterrupt:
        typer.echo(
            f"\n{job.id} goes on without you.\n"
            f"  follow it:  holdfast logs -f {job.id}\n"
            f"  stop it:    holdfast stop {job.id}\n"
            f"  its files:  holdfast results {job.id}",
            err=True,
        )
        raise typer.Exit(130) from None
    _conclude(client, ended, results=results, json=json)


def _conclude(client: "Client", job: "JobView", *, results: bool, json: bool) -> None:
    from holdfast.cli.show import print_json, verdict_line
    from holdfast.errors import verdict_error

    error = verdict_error(job)
    synced, trouble = _brought(client, job) if results and job.verdict != "cancelled" and job.attempts else (None, None)
    typer.secho(verdict_line(job), err=True, fg="green" if error is None else "red")
    if json:
        print_json({"job": job, "results": synced})
    if error is not None:
        raise typer.Exit(error.exit_code)
    if trouble is not None:
        raise trouble


def _brought(client: "Client", job: "JobView") -> "tuple[Synced | None, HoldfastError | None]":
    """The results of a job that ended, or why they are not here. The verdict is said in either case."""
    from holdfast.cli.results import bring, says
    from holdfast.errors import HoldfastError

    try:
        synced = bring(client, job.id)
    except HoldfastError as trouble:
        trouble.hint = f"{trouble.hint} Then get them with: holdfast results {job.id}".strip()
        typer.echo(f"-- its results did not arrive: {trouble.says} [{trouble.code}]", err=True)
        return None, trouble
    typer.echo(f"-- {says(synced)}", err=True)
    return synced, None
