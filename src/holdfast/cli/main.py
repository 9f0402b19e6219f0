"""The command's front door: which commands there are, and what a person sees when one fails.

No traceback reaches a person. A known error is shown as what happened and what to do; an unknown one as one
line with the code `internal`. HOLDFAST_DEBUG=1 adds the trace.
"""

import os
import sys
from typing import NoReturn

import typer

from holdfast.cli import following, jobs, moving, network, neural, rehearsing, results, running, serving
from holdfast.cli.flags import Json

app = typer.Typer(
    name="holdfast",
    help="Runs work on machines nobody controls, and gets it finished.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
serving.register(app)
running.register(app)
rehearsing.register(app)
results.register(app)
jobs.register(app)
moving.register(app)
following.register(app)
network.register(app)
neural.register(app)


@app.command()
def version(json: Json = False) -> None:
    """Say which version this is."""
    import platform

    from holdfast import __version__

    if json:
        typer.echo(f'{{"version":"{__version__}","python":"{platform.python_version()}"}}')
    else:
        typer.echo(f"holdfast {__version__} (Python {platform.python_version()}, {platform.machine()})")


def main() -> NoReturn:
    try:
        app(prog_name="holdfast")
    except Exception as error:
        sys.exit(_told(error))
    sys.exit(0)


def _told(error: Exception) -> int:
    """Show an error to the person at the prompt; its exit code."""
    from holdfast.errors import EXIT_INTERNAL, HoldfastError

    if os.environ.get("HOLDFAST_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, HoldfastError):
        typer.secho(f"error: {error.says} [{error.code}]", err=True, fg="red")
        if error.hint:
            typer.echo(f"  {error.hint}", err=True)
        return error.exit_code
    says = " ".join(str(error).split()) or "no further word"
    typer.secho(f"error: {type(error).__name__}: {says} [internal]", err=True, fg="red")
    typer.echo("  This is a fault of holdfast itself. HOLDFAST_DEBUG=1 shows where.", err=True)
    return EXIT_INTERNAL
