"""`move`: moves a job to a machine that a person chooses."""

from typing import Annotated

import typer

from holdfast.cli.flags import JobArg, Json, TokenFile, Url, complete_node, connect, connect_for_long


def register(app: typer.Typer) -> None:
    app.command("move")(move)


def move(
    job: JobArg,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="NODE", help="The machine: id, first letters of it, or name.", autocompletion=complete_node
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it runs there, or could not be moved.")] = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Move a job to another machine.

    The job keeps running where it is until it runs there. It takes its checkpoint along.

    Examples:
      holdfast move train --to attic
      holdfast move job_3f --to node_8c --wait
    """
    from holdfast.cli import job_names
    from holdfast.cli.render import jobs as render_jobs

    with (connect_for_long if wait else connect)(url, token_file) as client:
        view = client.jobs.move(job_names.one_job(client, job, "moves", live=True), to)
        if wait:
            view = client.jobs.wait_moved(view.id)
    render_jobs.print_json(view) if json else typer.echo(render_jobs.move_line(view))
