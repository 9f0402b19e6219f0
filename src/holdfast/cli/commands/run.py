"""`run` and `rerun`: send a job or an array, show it live, fetch its results, print its verdict.

Ctrl-C asks whether it should go on or be stopped; where nobody can be asked, it goes on.
"""

from typing import TYPE_CHECKING

import typer

from holdfast.cli import error_output
from holdfast.cli import job_flags as flags
from holdfast.cli.flags import JobOrArray, TokenFile, Url, connect_for_long
from holdfast.cli.from_file import FromFile

if TYPE_CHECKING:
    from holdfast.cli.job_upload import Packing
    from holdfast.cli.watch.job_watch import JobWatch
    from holdfast.client import Client
    from holdfast.client.results import Synced
    from holdfast.errors import HoldfastError
    from holdfast.wire.http import ArrayView, JobRequest, JobView


def register(app: typer.Typer) -> None:
    app.command("run", cls=FromFile, context_settings={"allow_interspersed_args": False})(flags.taking(run))
    app.command("rerun")(rerun)


def run(
    job: flags.JobFlags,
    detach: flags.Detach = False,
    no_results: flags.NoResults = False,
    key: flags.Key = None,
    json: flags.JsonAtEnd = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a command somewhere in the network.

    The current folder is sent along, and the command runs in a copy of it. Its output is shown as it comes; the files
    it makes come back to results/<name or id>/. Without a command, holdfast.toml says what runs: see `holdfast init`.

    The exit code is the job's own if the job itself failed; `holdfast help exit-codes` lists the others. For an array
    it is 0 if every item succeeded, 75 if all items that failed may be tried again, else 1.

    Examples:
      holdfast run -- python3 train.py
      holdfast run --no-folder --detach -- echo hello
      holdfast run --array lines.txt -- python3 one.py {item}
    """
    from holdfast.cli.array_items import read_items
    from holdfast.cli.commands.arrays import see_array_through
    from holdfast.cli.job_upload import Packing
    from holdfast.client.selection import FolderRules

    request = job.request(key)
    items = read_items(job.array) if job.array is not None else None
    rules = FolderRules(job.include or (), not job.no_gitignore)
    packing = Packing(job.folder, job.no_folder, job.image, job.dockerfile, job.requirements, job.input or [], rules)
    try:
        connected = connect_for_long(url, token_file)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("no job was sent") from None
    with connected as client:
        sent, many = _sent(client, request, packing, items)
        if sent is not None:
            _see_through(client, sent, detach=detach, results=not no_results, json=json)
        if many is not None:
            see_array_through(client, many, items or [], detach=detach, results=not no_results, json=json)


def _sent(
    client: "Client", request: "JobRequest", packing: "Packing", items: list[str] | None
) -> "tuple[JobView | None, ArrayView | None]":
    """Send the files, and then the job; or, if there are items, the array."""
    from secrets import token_hex
    from shlex import quote

    from msgspec.structs import replace

    # Drawn here and not by the client: a person who interrupts the sending gets it for another try.
    key = request.key or token_hex(16)
    request = replace(request, key=key)
    try:
        fields = packing.send(client)
    except KeyboardInterrupt:
        error_output.say("\nno job was sent; what has arrived of its files will not be sent again")
        raise typer.Exit(error_output.EXIT_INTERRUPTED) from None
    try:
        if items is None:
            return client.jobs.submit(request, **fields), None
        return None, client.arrays.submit(request, items, **fields)
    except KeyboardInterrupt:
        what = "job" if items is None else "array"
        error_output.say(
            f"\nit may have been sent: no answer came yet. The same command with --key {quote(key)} asks again, "
            f"and there will be one {what}, not two"
        )
        raise typer.Exit(error_output.EXIT_INTERRUPTED) from None


def rerun(
    job: JobOrArray,
    detach: flags.Detach = False,
    no_results: flags.NoResults = False,
    json: flags.JsonAtEnd = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Run a job once more, as a new job.

    Uses the same command, files and limits. For an array, runs the items that did not succeed.

    Examples:
      holdfast rerun train
      holdfast rerun job_3f --detach
    """
    from holdfast.cli.array_items import is_array
    from holdfast.cli.commands.arrays import see_array_through
    from holdfast.cli.job_names import meant
    from holdfast.wire.http import ArrayView

    with connect_for_long(url, token_file) as client:
        found = meant(client, job)
        try:
            again = client.arrays.retry(found) if is_array(found) else client.jobs.rerun(found)
        except KeyboardInterrupt:
            error_output.say("\nit may have been sent: no answer came yet. `holdfast jobs` shows whether it was")
            raise typer.Exit(error_output.EXIT_INTERRUPTED) from None
        if isinstance(again, ArrayView):
            see_array_through(client, again, [], detach=detach, results=not no_results, json=json)
        else:
            _see_through(client, again, detach=detach, results=not no_results, json=json)


def _see_through(client: "Client", job: "JobView", *, detach: bool, results: bool, json: bool) -> None:
    """Show the job until it has ended, and fetch its results; or, if detached, print its id."""
    if detach and not json:
        typer.echo(job.id)
        return
    if detach:
        from holdfast.cli.render.jobs import print_json

        print_json(job)
        return
    # Before anything else is imported: a person who leaves now knows what was sent.
    error_output.say(f"-- sent as {job.id}", dim=True)
    from holdfast.cli.watch.interrupts import seen_through

    watches: list[JobWatch] = []

    def until_ended() -> "JobView":
        from holdfast.cli.watch.job_watch import JobWatch

        if not watches:
            watches.append(JobWatch(client, job, aside=json))
        return watches[0].until_ended()

    ended = seen_through(
        job.id,
        until_ended,
        lambda: client.jobs.stop(job.id),
        {
            "follow it": f"holdfast logs -f {job.id}",
            "stop it": f"holdfast stop {job.id}",
            "its files": f"holdfast results {job.id}",
        },
        lambda: any(watch.confirming for watch in watches),
    )
    _conclude(client, ended, results=results, json=json)


def _conclude(client: "Client", job: "JobView", *, results: bool, json: bool) -> None:
    from holdfast.cli.render.jobs import print_json, verdict_line
    from holdfast.errors import verdict_error

    error = verdict_error(job)
    synced, trouble = _brought(client, job) if results and job.verdict != "cancelled" and job.attempts else (None, None)
    error_output.say(verdict_line(job), colour="green" if error is None else "red")
    if error is not None and job.verdict == "failed":
        error_output.say(f"  {error.hint.replace(' ID', f' {job.id}')}")
    if json:
        print_json({"job": job, "results": synced})
    if error is not None:
        raise typer.Exit(error.exit_code)
    if trouble is not None:
        raise trouble


def _brought(client: "Client", job: "JobView") -> "tuple[Synced | None, HoldfastError | None]":
    """The results of a job that has ended, or why they are missing. The verdict is shown in either case."""
    from holdfast.cleaning import clean
    from holdfast.cli.commands.results import bring, says
    from holdfast.errors import HoldfastError

    try:
        synced = bring(client, job.id)
    except HoldfastError as trouble:
        trouble.hint = f"{trouble.hint} Then get them with: holdfast results {job.id}".strip()
        error_output.say(f"-- its results did not arrive: {clean(trouble.says)} [{trouble.code}]")
        return None, trouble
    error_output.say(f"-- {says(synced)}")
    return synced, None
