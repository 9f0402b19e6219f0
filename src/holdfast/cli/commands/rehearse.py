"""`rehearse`: runs a job on a small network on this machine, kills the machines that run it, and compares the
results."""

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import error_output
from holdfast.cli import job_flags as flags
from holdfast.cli.flags import Json
from holdfast.cli.from_file import FromFile

if TYPE_CHECKING:
    from holdfast.testing.rehearsal import RehearsalReport

NOT_THE_SAME = 1
CHECKPOINT_EVERY = "1s"
"""Often, because a rehearsal is short."""


class Rehearsed(FromFile):
    leaves_out = frozenset({"checkpoint_every"})
    """An interval that suits a real network is too long for a rehearsal."""


def register(app: typer.Typer) -> None:
    app.command("rehearse", cls=Rehearsed, context_settings={"allow_interspersed_args": False})(rehearse)


def rehearse(
    argv: flags.Argv,
    kills: Annotated[int, typer.Option(min=1, max=8, help="How many machines to kill while it runs.")] = 1,
    requirements: flags.Requirements = None,
    cpu: flags.Cpu = "1",
    memory: flags.Memory = "512MiB",
    disk: flags.Disk = "1GiB",
    network: flags.Network = False,
    recovery: flags.Class = None,
    checkpoint: flags.Checkpoint = False,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Checkpoint interval; implies --checkpoint. [default: 1s]"),
    ] = None,
    folder: flags.Folder = None,
    no_folder: flags.NoFolder = False,
    include: flags.Include = None,
    no_gitignore: flags.NoGitignore = False,
    input: flags.Input = None,
    env: flags.Env = None,
    json: Json = False,
) -> None:
    """Kill machines while a command runs, and compare the results.

    Starts an orchestrator and some nodes on this machine, and ends them afterwards; no other network is touched. The
    command runs undisturbed first; then it runs again, and its machine is killed at a random moment. Exit code 0: the
    same files and the same output; 1: not the same, or nothing could be shown, with advice on what to change. Its
    standard input is empty, as on any node.

    Without a command, holdfast.toml of this folder says what runs.

    Examples:
      holdfast rehearse -- python3 train.py
      holdfast rehearse --checkpoint --kills 3 -- python3 train.py
    """
    from msgspec.structs import replace

    from holdfast.cli.job_upload import Packing
    from holdfast.client.selection import FolderRules
    from holdfast.testing.processes import NotInTime
    from holdfast.testing.rehearsal import Rehearsal

    job = flags.JobFlags(
        argv,
        name="rehearsal",
        cpu=cpu,
        memory=memory,
        disk=disk,
        network=network,
        recovery=recovery,
        checkpoint_every=checkpoint_every or (CHECKPOINT_EVERY if checkpoint else None),
        env=env,
    )
    request = job.request()
    rules = FolderRules(include or (), not no_gitignore)
    packing = Packing(folder, no_folder, None, None, requirements, input or [], rules)
    began = time.monotonic()

    def told(line: str) -> None:
        typer.echo(f"{time.monotonic() - began:7.2f} s  {line}", err=True)

    try:
        with _heeding_signals(), Rehearsal(told) as rehearsal:
            request = replace(request, **packing.send(rehearsal.client))
            report = rehearsal.play(request, kills=kills)
    except NotInTime as late:
        # A busy machine is not the job's fault, and shows nothing about the job.
        typer.secho(f"NOT SHOWN: this machine was too slow for a rehearsal: {late}.", fg="red", err=json)
        typer.echo("Rehearse it again when this machine is less busy.", err=json)
        raise typer.Exit(NOT_THE_SAME) from None
    _show(report, json)
    if not report.good:
        raise typer.Exit(NOT_THE_SAME)


@contextlib.contextmanager
def _heeding_signals() -> Iterator[None]:
    """Leaves nothing running after Ctrl-C, SIGTERM or the closing of the terminal: the first signal ends the rehearsal,
    and signals during the cleanup are ignored."""

    def heard(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # the terminal may be gone
            error_output.say("\ninterrupted: its machines are being stopped and removed")
        raise SystemExit(128 + number)  # no retry takes this for a fault

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that was ignored when this process started stays ignored.
    before = {number: was for number in numbers if (was := signal.getsignal(number)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def _show(report: "RehearsalReport", json: bool) -> None:
    from holdfast.cleaning import clean
    from holdfast.cli.render.jobs import print_json
    from holdfast.quantities import counted

    if json:
        print_json(report)
        return
    rows = [("undisturbed", f"{report.calm.seconds:.1f} s")]
    if report.torn is not None:
        rows.append(
            ("with machines killed", f"{report.torn.seconds:.1f} s, {counted(report.torn.attempts, 'attempt')}")
        )
    for kill in report.kills:
        again = "never ran again" if kill.recovered_s is None else f"ran again after {kill.recovered_s:.2f} s"
        rows.append((f"{kill.node} killed", f"{kill.after_s:.1f} s into the work; {again}"))
    typer.echo("")
    for name, words in rows:
        typer.echo(f"{name:<24}{words}")
    for line in report.calm.printed or (report.torn.printed if report.torn else ()):
        typer.echo(f"{'printed':<24}{clean(line)}")
    for one in report.differences[:20]:
        typer.echo(f"{'different':<24}{one}")
    if len(report.differences) > 20:
        typer.echo(f"{'different':<24}and {len(report.differences) - 20} more")
    for one in report.details:
        typer.echo(f"{'first':<24}{clean(one)}")
    typer.echo("")
    words = {"same": "SAME", "differs": "NOT THE SAME", "unsteady": "NEVER THE SAME"}.get(report.finding, "NOT SHOWN")
    typer.secho(f"{words}: {report.says}.", fg="green" if report.good else "red")
    typer.echo(report.advice)
