"""`backup`: a copy of an orchestrator's data, made while it serves."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.flags import Json

if TYPE_CHECKING:
    from holdfast.orchestrator.backup import Backup


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)


def backup(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder to create; it must not exist yet.")],
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The --data-dir of `up`, to copy; else HOLDFAST_HOME/orchestrator."),
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="The --store of `up`.")] = None,
    blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="The --blobs of `up`; files in S3 are not copied.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy an orchestrator's data while it runs.

    Run it on the orchestrator's machine, as the orchestrator's user. The copy is of one moment: state, files, logs,
    keys. It gets its name when it is complete and has been read back. To start an orchestrator from it:
    `holdfast up --data-dir TARGET`.

    A PostgreSQL database is not included: dump it first, with `pg_dump`, then make this backup.

    Examples:
      holdfast backup /mnt/backups/monday
      holdfast backup monday --data-dir /var/lib/holdfast/orchestrator --json
      holdfast backup monday --store postgresql+psycopg://holdfast@db/holdfast
    """
    from contextlib import ExitStack
    from pathlib import Path

    from holdfast.blobs.transfer import TransferProgress
    from holdfast.cli import error_output
    from holdfast.cli.render import jobs as render_jobs
    from holdfast.cli.render.progress_bars import Bar
    from holdfast.orchestrator.backup import BackupDamaged, back_up, unfinished
    from holdfast.orchestrator.config import OrchestratorConfig, default_data

    data = Path(data_dir).expanduser().absolute() if data_dir else default_data().absolute()
    config = OrchestratorConfig(data=data, store=store or "", blobs=blobs or "")
    place = Path(target).expanduser().absolute()
    if others := unfinished(place):
        names = ", ".join(render_jobs.clean(path.name) for path in others)
        error_output.say(
            f"-- unfinished in {render_jobs.clean(str(place.parent))}: {names}. If no backup is being written"
        )
        error_output.say("   there, delete that: it may hold the admin token, and nothing else removes it.")
    with ExitStack() as shown:
        bars: dict[str, Bar] = {}

        def told(doing: str, done: int, total: int) -> None:
            if doing not in bars:
                shown.close()
                bars[doing] = shown.enter_context(Bar(doing, "the backup"))
            bars[doing].told(TransferProgress(done, total, 0, 0, done))

        made = back_up(config, place, told)
    if json:
        render_jobs.print_json(made)
    else:
        _tell(made, store or "", blobs or "")
    if made.damaged:
        raise BackupDamaged(
            f"{made.target} was made, but {len(made.damaged)} files are missing, damaged or cannot be read in"
            f" {data} itself, such as {made.damaged[0]}"
        )


def _tell(made: "Backup", store: str, blobs: str) -> None:
    from holdfast.quantities import spoken_bytes

    parts = [f"{made.blobs} files", f"{made.logs} logs", f"{made.keys} keys"]
    state = f"state ({spoken_bytes(made.state_bytes)}), " if made.state_bytes else ""
    again = "".join(f" {flag} {value}" for flag, value in (("--store", _hidden(store)), ("--blobs", blobs)) if value)
    typer.echo(f"Backed up to {made.target}: {spoken_bytes(made.bytes)}, read back and compared.")
    typer.echo(f"It holds: {state}{', '.join(parts)}.")
    if "database" in made.left_out:
        typer.echo("Keep it with a dump of the database that was made before it. If there is none, make one with")
        typer.echo("`pg_dump` now, and then this backup again: the files must not be older than the database.")
    if "files" in made.left_out:
        typer.echo(f"The files stay in {blobs}: keep deleted files there for as long as this backup is needed.")
    typer.echo(f"Start an orchestrator from it:\n  holdfast up --data-dir {made.target}{again}")


def _hidden(store: str) -> str:
    """The address of a store for printing, without its password."""
    from sqlalchemy.engine import make_url

    # A SQLite file was copied into the backup, and is found there.
    if not store or (url := make_url(store)).get_backend_name() == "sqlite":
        return ""
    return url.render_as_string(hide_password=True)
