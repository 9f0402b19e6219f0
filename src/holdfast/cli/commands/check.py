"""`check`: what would happen to a job if it were sent now. Sends nothing; answers once, or line by line."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import connection_monitor, error_output
from holdfast.cli import job_flags as flags
from holdfast.cli.flags import Json, TokenFile, Url, complete_node, connect, connect_for_long
from holdfast.cli.from_file import FromFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.wire.http import CheckView

EXIT_CODES = {"now": 0, "waits": 75, "never": 65, "refused": 65, "unhealthy": 69, "unknown": 69}
COLOURS = {"now": "green", "waits": "yellow"}
SAID = {
    "now": "would run now",
    "waits": "would wait",
    "never": "can never run here",
    "refused": "would be refused",
    "unhealthy": "its machine does not answer",
    "unknown": "not known now",
}

OnNode = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="NODE", help="Check this machine only: its id or name.", autocompletion=complete_node
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Keep checking: a line for every change, and a heartbeat.")]


TAKEN = frozenset({"folder", "no_folder", "include", "no_gitignore", "input", "array"})
"""Flags of `run` that do not affect placement: accepted, so that a `run` line can be checked unchanged."""


def register(app: typer.Typer) -> None:
    app.command("check", cls=FromFile, context_settings={"allow_interspersed_args": False})(
        flags.taking(check, hidden=TAKEN)
    )


def check(
    job: flags.JobFlags,
    detach: Annotated[bool, typer.Option("--detach", hidden=True)] = False,
    no_results: Annotated[bool, typer.Option("--no-results", hidden=True)] = False,
    key: Annotated[str | None, typer.Option(hidden=True)] = None,
    node: OnNode = None,
    watch: Watch = False,
    json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Say whether a job would run now, where, and how long it would take.

    Takes the same flags and command as `run`, and sends nothing: no folder, no job. It says which machine the job
    would be placed on and why, asks that machine whether it is healthy now, and says when the job would start and end.
    If the job would not run now, it says what the job would wait for, or why it can never run.

    Exit codes: 0 it would run now; 75 it would wait; 65 no machine could ever run it, or it would be refused;
    69 its machine or the network does not answer. With --watch, the code of the last line.

    Examples:
      holdfast check --memory 4GiB --gpu 1 -- python3 train.py
      holdfast check --node attic -- true
      holdfast check --watch -- true
    """
    built: dict[str, Any] = {"dockerfile": job.dockerfile, "requirements": job.requirements}
    if watch:
        with connect_for_long(url, token_file) as client:
            raise typer.Exit(_watched(client.watch_check(job.request(), node=node, **built), json=json))
    with connect(url, token_file) as client:
        view = client.check(job.request(), node=node, **built)
    if json:
        from holdfast.cli.render.jobs import print_json

        print_json(view)
    else:
        _shown(view)
    raise typer.Exit(EXIT_CODES.get(view.verdict, 69))


# --- once ---


def _shown(view: "CheckView") -> None:
    from rich.text import Text

    from holdfast.cli.render import estimate_text
    from holdfast.cli.render import jobs as render_jobs

    out = render_jobs.console()
    verdict = SAID.get(view.verdict, view.verdict)
    says = view.says if view.node else view.says[:1].lower() + view.says[1:]
    out.print(Text.assemble((verdict, f"bold {COLOURS.get(view.verdict, 'red')}"), f": {render_jobs.clean(says)}"))
    facts = {
        "machine": render_jobs.clean(f"{view.name} is {view.state}") if view.node else "",
        "answers": health(view),
        "free there": free(view),
        "cost": cost(view),
        "instead": render_jobs.clean(view.instead or ""),
        "held back": render_jobs.clean(
            ", ".join(f"{count} by {gate}" for gate, count in sorted(view.gates.items(), key=lambda item: -item[1]))
        ),
        "nearest": render_jobs.clean(view.nearest),
        "ahead": f"{view.ahead} job(s) would be placed before it" if view.ahead else "",
        "estimate": render_jobs.clean(estimate_text.line(view.estimate)) if view.estimate else "",
        "estimates": estimate_text.scores(view.scores) if view.estimate else "",
    }
    for fact, value in facts.items():
        if value:
            out.print(f"  {fact:<12} {value}")


def health(view: "CheckView") -> str:
    """Whether the machine answered the probe, and when it was last heard from."""
    from holdfast.quantities import spoken_ms

    probe = view.probe
    if probe is None:
        return ""
    last = "is not connected" if probe.silent_ms is None else f"last heard {spoken_ms(probe.silent_ms)} ago"
    return f"in {probe.round_trip_ms} ms, {last}" if probe.answered else f"not in time; {last}"


def free(view: "CheckView") -> str:
    from holdfast.quantities import spoken_cores, spoken_mib

    if not view.free:
        return ""
    cores, memory = spoken_cores(view.free.get("cpu_milli", 0)), spoken_mib(view.free.get("memory_mib", 0))
    gpus = f", {view.free['gpus']} GPUs" if view.free.get("gpus") else ""
    return f"{cores} cores, {memory} memory, {spoken_mib(view.free.get('disk_mib', 0))} disk{gpus}"


def cost(view: "CheckView") -> str:
    """The placement cost of the chosen machine, as a sum."""
    terms = [f"{name} {ms}" for name, ms in view.cost.items() if ms]
    return f"{sum(view.cost.values())} ms: {' + '.join(terms) or 'nothing speaks against it'}" if view.cost else ""


# --- line by line ---


def _watched(views: "Iterator[CheckView]", *, json: bool) -> int:
    """The exit code of the last line."""
    from holdfast.cli.render.jobs import print_json

    beats = Beats()
    last = "unknown"
    try:
        with connection_monitor.through(beats.aside):
            for view in views:
                print_json(view) if json else beats.show(view)
                last = view.verdict
    except KeyboardInterrupt:
        beats.close()
    return EXIT_CODES.get(last, 69)


class Beats:
    """Prints a line for every change. On a terminal, an unchanged line is redrawn in place: a heartbeat."""

    def __init__(self) -> None:
        self._in_place = error_output.live(sys.stdout)
        self._open = False
        """The last line can still be redrawn."""
        self._about: tuple[Any, ...] = ()

    def show(self, view: "CheckView") -> None:
        # A change of age or round trip alone starts no new line.
        about = (view.verdict, view.node, view.state, view.nearest, view.instead, view.code)
        text = beat(view)
        if not self._in_place:
            typer.echo(text)
            return
        if self._open:
            sys.stdout.write("\r\x1b[K" if about == self._about else "\n")
        colour = COLOURS.get(view.verdict, "red") if error_output.coloured(sys.stdout) else None
        typer.secho(text[: _columns() - 1], fg=colour, nl=False)
        sys.stdout.flush()
        self._open, self._about = True, about

    def aside(self, text: str) -> None:
        """A message about the connection, on its own line."""
        self.close()
        error_output.say(f"-- {text}", dim=True)

    def close(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._open = False


def beat(view: "CheckView") -> str:
    from holdfast.cli.render.jobs import clean, clock

    where = clean(view.name) if view.node else ""
    why = clean(view.nearest or view.says) if view.verdict in ("waits", "never", "refused", "unknown") else ""
    answer = "" if view.probe is None else f"answers {health(view)}"
    words = [SAID.get(view.verdict, view.verdict), where, answer, why]
    return f"{clock(view.at_ms)}  {' · '.join(word for word in words if word)}"


def _columns() -> int:
    from shutil import get_terminal_size

    return max(20, get_terminal_size().columns)
