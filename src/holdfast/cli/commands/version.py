"""`version`: the version of Holdfast and of Python."""

import typer

from holdfast.cli.flags import Json


def register(app: typer.Typer) -> None:
    app.command("version")(version)


def version(json: Json = False) -> None:
    """Print the version.

    Examples:
      holdfast version
      holdfast version --json
    """
    import platform

    from holdfast import __version__

    if json:
        typer.echo(f'{{"version":"{__version__}","python":"{platform.python_version()}"}}')
    else:
        typer.echo(line())


def line() -> str:
    """What `holdfast --version` and `holdfast version` print."""
    import platform

    from holdfast import __version__

    return f"holdfast {__version__} (Python {platform.python_version()}, {platform.machine()})"
