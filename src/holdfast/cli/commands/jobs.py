"""`jobs`, `job show`, `job explain`, `stop`: list, show, explain and stop jobs."""

from typing import Annotated

import typer

from holdfast.cli.flags import JobArg, JobOrArray, Json, TokenFile, Url, connect, one_of

job_group = typer.Typer(
    help="Look at one job.\n\nExamples:\n  holdfast job show train\n  holdfast job explain train",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PHASES = ("queued", "assigned", "preparing", "running", "uploading", "ended")


def register(app: typer.Typer) -> None:
    app.command("jobs")(list_jobs)
    app.add_typer(job_group, name="job")
    app.command("stop")(stop)


def list_jobs(
    phase: Annotated[
        str | None,
        typer.Option(
            help="Only jobs in this phase: queued, assigned, running, ended …", autocompletion=one_of(*PHASES)
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this owner.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many jobs.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this job: the `next` of the previous page.")] = None,
    array: Annotated[
        str | None,
        typer.Option(metavar="ARRAY", help="List the items of this array (id or name), by index, and its progress."),
    ] = None,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """List jobs, newest first.

    Examples:
      holdfast jobs
      holdfast jobs --phase running --limit 10
      holdfast jobs --array arr_1b2c --json
    """
    from holdfast.cli import job_names
    from holdfast.cli.commands import arrays
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.errors import Misuse

    if array is not None and (owner or after):
        raise Misuse("--array lists one array, whoever owns it", hint="Leave --owner and --after out.")
    with connect(url, token_file) as client:
        if array is not None:
            arrays.show_array(client, job_names.one_array(client, array), json=json, phase=phase, limit=limit)
            return
        page = client.jobs.list(owner=owner, phase=phase, limit=limit, after=after)
    if json:
        render_jobs.print_json(page)
        return
    render_jobs.jobs(page.jobs)
    if page.next:
        typer.echo(f"more: holdfast jobs --after {page.next}", err=True)


@job_group.command("show")
def show_job(job: JobOrArray, json: Json = False, url: Url = None, token_file: TokenFile = None) -> None:
    """Show a job: its state, its attempts, what happened to it.

    For an array, shows its items.

    Examples:
      holdfast job show train
      holdfast job show job_3f --json
    """
    from holdfast.cli import job_names
    from holdfast.cli.array_items import is_array
    from holdfast.cli.commands import arrays
    from holdfast.cli.render import jobs as render_jobs

    with connect(url, token_file) as client:
        if is_array(found := job_names.meant(client, job)):
            arrays.show_array(client, found, json=json)
            return
        view = client.jobs.get(found)
    render_jobs.print_json(view) if json else render_jobs.job(view)


@job_group.command("explain")
def explain(job: JobArg, json: Json = False, url: Url = None, token_file: TokenFile = None) -> None:
    """Explain the state of a job, and what it waits for.

    Also says until when it waits, and what happens then.

    Examples:
      holdfast job explain train
      holdfast job explain job_3f --json
    """
    from holdfast.cli import job_names
    from holdfast.cli.render import jobs as render_jobs

    with connect(url, token_file) as client:
        view = client.jobs.explain(job_names.one_job(client, job, "explains"))
    render_jobs.print_json(view) if json else render_jobs.explanation(view)


def stop(job: JobOrArray, json: Json = False, url: Url = None, token_file: TokenFile = None) -> None:
    """Stop a job, or the unfinished items of an array.

    Jobs that have ended are not changed. A name means the job or array that has not ended; if there are several of that
    name, nothing is stopped, and their ids are listed.

    Examples:
      holdfast stop train
      holdfast stop job_3f --json
    """
    from holdfast.cli import job_names
    from holdfast.cli.array_items import is_array
    from holdfast.cli.commands import arrays
    from holdfast.cli.render import jobs as render_jobs

    with connect(url, token_file) as client:
        if is_array(found := job_names.meant(client, job, live=True)):
            arrays.stop(client, found, json=json)
            return
        view = client.jobs.stop(found)
    if json:
        render_jobs.print_json(view)
    elif view.phase == "ended":
        typer.echo(render_jobs.verdict_line(view))
    else:
        typer.echo(f"{view.id} is being stopped")
