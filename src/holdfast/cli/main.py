"""The command's front door: what a person sees first, and what they see when something fails.

The front page is shown without Typer: it is asked for most often, and by people who wait. `command_table` lists the
commands.

`error_output` shows errors. No traceback reaches a person, not even if they press Ctrl-C before anything is loaded: so
nothing is imported here but in `main`, where it is caught.
"""

import os
import sys

INTERRUPTED = 130


def main() -> None:
    try:
        code = _ended()
    except KeyboardInterrupt:  # while the commands were being loaded, or while an error was being told
        sys.stderr.write("\ninterrupted\n")
        code = INTERRUPTED
    sys.exit(code)


def _ended() -> int:
    """The exit code of what was typed."""
    _open_what_is_closed()
    if sys.argv[1:] in (["--help"], ["-h"], ["help"]) and "_HOLDFAST_COMPLETE" not in os.environ:
        return _front_page()
    from holdfast.cli.error_output import EXIT_BROKEN_PIPE, told
    from holdfast.lean import spare_imports

    spare_imports()
    try:
        from holdfast.cli import app

        colours = False if os.environ.get("NO_COLOR") else None
        code = app.app(prog_name="holdfast", standalone_mode=False, color=colours)
        sys.stdout.flush()  # here, where a reader who went away can still be told from a fault
    except SystemExit as end:
        code = end.code
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # how Typer says that nobody reads any more
            code = EXIT_BROKEN_PIPE
    except BaseException as error:
        code = told(error)
        _say_where(error)
    return code if isinstance(code, int) else 0


def _open_what_is_closed() -> None:
    """Whoever closed a stream (`>&-`) wants nothing from it. Something has to be there all the same: else the next
    file or connection that is opened gets its number, and what was meant for nobody is written into that."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _say_where(error: BaseException) -> None:
    """Of whom an error is, for those who work with several networks."""
    from holdfast.errors import HoldfastError, RequestError

    flags = sys.modules.get("holdfast.cli.flags")
    if not isinstance(error, RequestError) or flags is None or not flags.asked:
        return
    from holdfast.cli.error_output import say
    from holdfast.client.endpoint import name_of

    try:
        name = name_of(flags.asked[-1])
    except HoldfastError:  # the contexts cannot be read; what was asked did not depend on them
        return
    if name:
        say(f"  The network that was asked is {name} ({flags.asked[-1]}); `holdfast context list` shows the others.")


def _front_page() -> int:
    from holdfast.cli.command_table import front_page

    try:
        print(front_page(), end="", flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        from holdfast.cli.error_output import EXIT_BROKEN_PIPE

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return 0
