"""`results`: fetches the files and output of a job to this machine."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import JobOrArray, Json, TokenFile, Url, connect_for_long

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.results import Synced


def register(app: typer.Typer) -> None:
    app.command("results")(results)


def results(
    job: JobOrArray,
    to: Annotated[
        str | None, typer.Option(metavar="DIR", help="Put them into this folder, if it is empty or this job's own.")
    ] = None,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Fetch a job's files and output.

    They are verified and go to results/<its name or id>/; for an array, those of every item. An interrupted transfer
    continues where it was. The network keeps the files until they have arrived once.

    Examples:
      holdfast results train
      holdfast results job_3f --to elsewhere
    """
    from holdfast.cli import job_names
    from holdfast.cli.array_items import is_array
    from holdfast.cli.commands import arrays
    from holdfast.cli.render import jobs as render_jobs

    with connect_for_long(url, token_file) as client:
        if is_array(found := job_names.meant(client, job)):
            arrays.results(client, found, to, json=json)
            return
        synced = bring(client, found, to)
    render_jobs.print_json(synced) if json else typer.echo(says(synced))


def bring(client: "Client", job: str, to: str | None = None) -> "Synced":
    """Fetch the results, with a bar. Ctrl-C prints how to continue."""
    from holdfast.cli.render.progress_bars import Bar

    try:
        with Bar("fetching", "the results") as bar:
            return client.jobs.results(job, to=to, told=bar.told)
    except KeyboardInterrupt:
        raise cut(job, to) from None


def cut(what: str, to: str | None) -> typer.Exit:
    """Print how to continue what was interrupted."""
    from shlex import quote

    from holdfast.cli import error_output

    elsewhere = f" --to {quote(to)}" if to is not None else ""
    error_output.say(f"\nnot everything has arrived; continue with: holdfast results {what}{elsewhere}")
    return typer.Exit(error_output.EXIT_INTERRUPTED)


def says(synced: "Synced") -> str:
    """Where the results are, in one line."""
    from holdfast.quantities import counted, spoken_bytes

    logs = ", ".join(output.file for output in synced.output.values())
    files = f"{counted(synced.files, 'file')} ({spoken_bytes(synced.bytes)})" if synced.files else "no files"
    return f"{synced.folder}/: {files}" + (f", {logs}" if logs else "")
