"""`logs` and `events`: print a stream, once or as it grows."""

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import connection_monitor, error_output
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

if TYPE_CHECKING:
    from holdfast.wire.http import LogLine

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

    Its stdout goes to stdout; its stderr and lines from the platform (marked --) go to stderr. For an array, prints the
    output of one item after the other.

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
        printer, meanwhile = Printer(), ""
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
        with connection_monitor.through(printer.platform, meanwhile):
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


class Printer:
    """Writes pieces of output to the right stream, one after the other, from any thread. A terminal gets no control
    sequences except colours."""

    def __init__(self, *, aside: bool = False) -> None:
        """`aside`: everything goes to stderr, because stdout is for something else."""
        self.at_line_start = True
        self._aside = aside
        self._screen = threading.RLock()

    def put(self, line: "LogLine") -> None:
        from holdfast.cli.render.jobs import clean

        if line.stream == "platform":
            self.platform(line.text)
            return
        file = sys.stderr if self._aside or line.stream == "stderr" else sys.stdout
        with self._screen:
            file.write(clean(line.text, colours=True, lines=True) if file.isatty() else line.text)
            file.flush()
            if line.text:
                self.at_line_start = line.text.endswith("\n")

    def platform(self, text: str) -> None:
        """A line from the platform: on its own line, marked, and never mixed into the job's stdout."""
        from holdfast.cli.render.jobs import clean

        with self._screen:
            if not self.at_line_start and sys.stderr.isatty():
                sys.stderr.write("\n")
            error_output.say(f"-- {clean(text)}", dim=True)
            self.at_line_start = True
