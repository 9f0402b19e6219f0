"""`logs` and `events`: print a stream, once or as it grows."""

from typing import Annotated

import typer

from holdfast.cli import connection_monitor
from holdfast.cli.flags import (
    LONG_PATIENCE_S,
    SHORT_PATIENCE_S,
    JobOrArray,
    Json,
    TokenFile,
    Url,
    complete_job,
    complete_node,
    connect,
    one_of,
)
from holdfast.cli.render.log_printer import LogPrinter, closing_line

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing as more arrives.")]


def register(app: typer.Typer) -> None:
    app.command("logs")(logs)
    app.command("events")(events)


def logs(
    job: JobOrArray,
    follow: Follow = False,
    stream: Annotated[
        str, typer.Option(help="stdout, stderr or both.", autocompletion=one_of("stdout", "stderr", "both"))
    ] = "both",
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print a job's output, over all its attempts.

    Its stdout goes to stdout; its stderr and lines from the platform (marked --) go to stderr. At a terminal, lines of
    the job start with |. For an array, prints the output of one item after the other.

    Examples:
      holdfast logs train
      holdfast logs -f job_3f
      holdfast logs train --stream stdout > out.txt
    """
    from holdfast.cli import job_names
    from holdfast.cli.array_items import is_array
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.errors import Misuse

    if stream not in ("stdout", "stderr", "both"):
        raise Misuse(f"there is no stream {stream!r}", hint="Use --stream stdout, stderr or both.")
    with connect(url, token_file, LONG_PATIENCE_S if follow else SHORT_PATIENCE_S) as client:
        printer, meanwhile = LogPrinter(), ""
        if follow:
            view = client.jobs.get(job_names.one_job(client, job, "follows"))
            found = view.id
            if view.phase != "ended":
                meanwhile = f"{job} goes on; still asking"
        else:
            found = job_names.meant(client, job)
        items = {found: ""}
        if is_array(found):
            items = {item.job: f"item {item.index}: {item.job}" for item in client.arrays.get(found).jobs}
        with connection_monitor.through(printer.platform, meanwhile), closing_line(printer):
            for one, title in items.items():
                if title and not json:
                    printer.platform(title)
                for line in client.jobs.logs(one, stream=stream, follow=follow, pieces=True):
                    render_jobs.print_json(line) if json else printer.put(line)


def events(
    follow: Follow = False,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="Only events of this job.", autocompletion=complete_job)
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only events of this node.", autocompletion=complete_node)
    ] = None,
    after: Annotated[int | None, typer.Option(metavar="SEQ", help="Only events after this number.")] = None,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print what happened in the network, oldest first.

    Examples:
      holdfast events --follow
      holdfast events --job train --json
    """
    from holdfast.cli import job_names
    from holdfast.cli.render import jobs as render_jobs

    with connect(url, token_file, LONG_PATIENCE_S if follow else SHORT_PATIENCE_S) as client:
        found = None if job is None else job_names.one_job(client, job, "shows the events of")
        for happened in client.events(follow=follow, after=after, job=found, node=node):
            render_jobs.print_json(happened) if json else render_jobs.event(happened)
