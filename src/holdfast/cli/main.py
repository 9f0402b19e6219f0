"""Entry point of the command: shows the front page or runs a command, and turns failures into exit codes.

The front page is shown without Typer: it is requested most often, and must appear at once. `command_table` lists the
commands.

`error_output` shows errors. No traceback reaches a person, not even if they press Ctrl-C while modules are imported: so
the imports are made inside `main`, which catches the interrupt.
"""

import os
import sys

INTERRUPTED = 130
MIXED_UP = 78
"""The exit code of a wrong configuration (EX_CONFIG)."""


def main() -> None:
    try:
        code = _ended()
    except KeyboardInterrupt:  # while the commands were being loaded, or while an error was being shown
        sys.stderr.write("\ninterrupted\n")
        code = INTERRUPTED
    sys.exit(code)


def _ended() -> int:
    """Run the command line; returns the exit code."""
    _open_what_is_closed()
    from holdfast.parts import mixed_up

    if wrong := mixed_up():
        sys.stderr.write(f"holdfast: {wrong}\n")
        return MIXED_UP
    if sys.argv[1:] in (["--help"], ["-h"], ["help"]) and "_HOLDFAST_COMPLETE" not in os.environ:
        return _front_page()
    from holdfast.cli.error_output import EXIT_BROKEN_PIPE, told
    from holdfast.lean import spare_imports

    spare_imports()
    try:
        from holdfast.cli import app

        colours = False if os.environ.get("NO_COLOR") else None
        code = app.app(prog_name="holdfast", standalone_mode=False, color=colours)
        sys.stdout.flush()  # here, where a broken pipe can still be handled
    except SystemExit as end:
        code = end.code
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # Typer's sign of a broken pipe
            code = EXIT_BROKEN_PIPE
    except BaseException as error:
        code = told(error)
        _say_where(error)
    return code if isinstance(code, int) else 0


def _open_what_is_closed() -> None:
    """Open closed standard streams (`>&-`) on the null device. Otherwise the next file or connection that is opened
    gets the free descriptor, and output for the closed stream is written into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _say_where(error: BaseException) -> None:
    """Name the network that an error came from, for users of several networks."""
    from holdfast.errors import HoldfastError, RequestError

    flags = sys.modules.get("holdfast.cli.flags")
    if not isinstance(error, RequestError) or flags is None or not flags.asked:
        return
    from holdfast.cli.error_output import say
    from holdfast.client.endpoint import name_of

    try:
        name = name_of(flags.asked[-1])
    except HoldfastError:  # the contexts cannot be read; the request did not depend on them
        return
    if name:
        say(f"  The request went to the network {name} ({flags.asked[-1]}); `holdfast context list` shows the others.")


def _front_page() -> int:
    from holdfast.cli.command_table import front_page

    try:
        print(front_page(), end="", flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        from holdfast.cli.error_output import EXIT_BROKEN_PIPE

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return 0
