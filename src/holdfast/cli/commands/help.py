"""`help`: the help of a command, and what exit codes mean."""

from typing import Annotated, Any

import typer

from holdfast.cli.command_table import COMMANDS

EXIT_CODES = {
    0: "It worked. For `run`: the job succeeded; with --detach, it was sent.",
    1: "It failed: a job for which another try does not help, or a check that found something.",
    2: "The command was typed wrongly.",
    3: "For `node`: the network does not accept this machine as it is.",
    65: "The network refused: no machine fits, a name fits several things, or the request contradicts something.",
    66: "There is no such job, node or token.",
    69: "The network, or a machine in it, does not answer.",
    70: "A fault of holdfast itself. HOLDFAST_DEBUG=1 shows where.",
    73: "A file or folder that must not be replaced is in the way.",
    74: "A file here cannot be read or written.",
    75: "It may work later: machines or the network failed it, or it is not ready yet.",
    76: "The answer is not as expected: another certificate, or an incompatible version.",
    77: "The token is missing, wrong or does not allow this.",
    78: "A setting, a file or a variable holds something unusable.",
    124: "For `run`: the job reached its time limit.",
    130: "Ended with Ctrl-C: a job that was being watched goes on, unless it was stopped. Or the job was stopped.",
    137: "For `run`: the job ran out of memory.",
    141: "The reader of the output closed the pipe.",
}
ELSE = (
    "Any other code of `run` is the job's own; 128 + N: signal N ended it. A job may end with any code, also one of "
    "these: --json and result.json say what really happened."
)


def register(app: typer.Typer) -> None:
    app.command("help")(help_about)


def complete_topic(incomplete: str) -> list[str]:
    return [word for word in [*COMMANDS, "exit-codes"] if word.startswith(incomplete)]


def help_about(
    ctx: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]", help="A command, exit-codes, or the code of an error.", autocompletion=complete_topic
        ),
    ] = None,
) -> None:
    """Show the help of a command, or what exit codes mean.

    Examples:
      holdfast help run
      holdfast help node drain
      holdfast help exit-codes
      holdfast help no_fit
    """
    if topic == ["exit-codes"]:
        typer.echo(exit_codes(), nl=False)
        return
    if topic and len(topic) == 1 and topic[0] not in COMMANDS and (page_of := error_code(topic[0])):
        typer.echo(page_of, nl=False)
        return
    page: Any = ctx.find_root()
    for word in topic or []:
        command = page.command.get_command(page, word) if hasattr(page.command, "get_command") else None
        if command is None:
            from holdfast.errors import Misuse

            raise Misuse(
                f"there is no page about {' '.join(topic or [])!r}", hint="`holdfast --help` lists the commands."
            )
        page = type(page)(command, info_name=word, parent=page)
    typer.echo(page.get_help())


def error_code(code: str) -> str:
    """What an error code means; empty if the code is unknown."""
    import textwrap

    from holdfast.codes import explained

    lines: list[str] = []
    for title, text in explained(code).items():
        lines += textwrap.wrap(text, 79, initial_indent=f"{title:<13}", subsequent_indent=" " * 13)
    return "\n".join([f"[{code}]", "", *lines, ""]) if lines else ""


def exit_codes() -> str:
    import textwrap

    lines: list[str] = []
    for code, says in EXIT_CODES.items():
        lines += textwrap.wrap(says, 79, initial_indent=f"{code:>5}  ", subsequent_indent=" " * 7)
    return "\n".join(
        ["Exit codes:", "", *lines, "", *textwrap.wrap(ELSE, 79, initial_indent="  ", subsequent_indent="  "), ""]
    )
