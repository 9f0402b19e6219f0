"""How a command speaks to a person about itself: whether with colours, and what it says when it fails. Light to import.

No traceback reaches a person. A known error is what happened, why, and what to do, with its code; a mistyped command
is one too. What nobody foresaw is one line with the code `internal`. HOLDFAST_DEBUG=1 adds the trace.
"""

import errno
import os
import sys
from typing import IO, Any

from holdfast.cleaning import clean

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As the shell names what SIGPIPE ended: whoever read this has read enough."""
EXIT_IO = 74


class Interrupted(Exception):
    """Ctrl-C, where a command has no better word for it. What is to be said of it, if anything."""


def coloured(file: IO[str]) -> bool:
    """Whether colours belong there: a terminal, and nobody said NO_COLOR."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def live(file: IO[str]) -> bool:
    """Whether a line there can be drawn again in place."""
    return file.isatty() and os.environ.get("TERM") != "dumb"


def say(text: str, *, colour: str | None = None, dim: bool = False) -> None:
    """One line on stderr."""
    import typer

    typer.secho(text, err=True, fg=colour, dim=dim or None, color=None if coloured(sys.stderr) else False)


def told(error: BaseException) -> int:
    """Show an error to the person at the prompt; its exit code."""
    from holdfast.errors import HoldfastError

    if os.environ.get("HOLDFAST_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        return _nobody_reads()
    if isinstance(error, Interrupted | KeyboardInterrupt):
        say(f"\n{clean(str(error)) or 'interrupted'}")
        return EXIT_INTERRUPTED
    if isinstance(error, HoldfastError):
        return _shown(error.says, error.code, error.hint, error.exit_code)
    if hasattr(error, "format_message"):
        return _mistyped(error)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _ABOUT_FILES):
        return _about_a_file(error)
    if isinstance(error, UnicodeDecodeError):
        return _shown(f"what was read is no text: {error.reason}", "file_unusable", _HINTS[errno.EILSEQ], EXIT_IO)
    return _fault(error)


def _shown(says: str, code: str, hint: str, exit_code: int) -> int:
    # An error may quote what a machine nobody controls said.
    say(f"error: {clean(says)} [{code}]", colour="red")
    for line in hint.splitlines():
        say(f"  {clean(line)}")
    return exit_code


def _fault(error: BaseException) -> int:
    from holdfast.errors import EXIT_INTERNAL

    says = " ".join(str(error).split()) or "no further word"
    hint = "This is a fault of holdfast itself. HOLDFAST_DEBUG=1 shows where."
    return _shown(f"{type(error).__name__}: {says}", "internal", hint, EXIT_INTERNAL)


# --- what was typed wrongly ---


def _mistyped(error: Any) -> int:
    """A refusal of the command line itself: of a flag, a value, a command."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "holdfast"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")
        return 2
    words = error.message if getattr(error, "possibilities", None) else error.format_message()
    says = " ".join(str(words).split()).rstrip(".")
    says, _, guess = says.partition(". Did you mean ")
    near = [guess.rstrip("?").replace("'", "")] if guess else _near(error, context)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return _shown(says[:1].lower() + says[1:], "usage", f"{hint}`{command} --help` shows what can be written.", 2)


def _near(error: Any, context: Any) -> list[str]:
    """Flags of this command that look like the one that is not there."""
    from difflib import get_close_matches

    name = getattr(error, "option_name", None)
    if not isinstance(name, str) or context is None:
        return []
    known: list[str] = [
        flag for parameter in context.command.params for flag in parameter.opts if flag.startswith("--")
    ]
    return get_close_matches(name, known, 2, cutoff=0.7)


# --- what the machine refuses ---

_HINTS = {
    errno.ENOENT: "Look at how it is spelled, and where this command was started.",
    errno.EACCES: "Look at who owns it (`ls -ld`), or run this as the one who does.",
    errno.EPERM: "Look at who owns it (`ls -ld`), or run this as the one who does.",
    errno.ENOSPC: "Make room there (`df -h`, `df -i`), then do this again.",
    errno.EDQUOT: "Make room there (`quota`), then do this again.",
    errno.EROFS: "It lies on a file system that cannot be written; choose another place.",
    errno.EMFILE: "Raise the limit of open files: `ulimit -n 4096`.",
    errno.EILSEQ: "It takes a text file in UTF-8.",
}
_ABOUT_FILES = frozenset(_HINTS)


def _about_a_file(error: OSError) -> int:
    why = error.strerror or type(error).__name__
    what = f"{error.filename}: {why}" if error.filename is not None else why
    code = "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "file_unusable"
    hint = _HINTS.get(error.errno or 0, "Look at it with `ls -ld`.")
    return _shown(what[:1].lower() + what[1:] if error.filename is None else what, code, hint, EXIT_IO)


def _nobody_reads() -> int:
    """The reader of the output went away: no error of anybody's, and no word about it."""
    # What Python still holds for it must not be written when the process ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    return EXIT_BROKEN_PIPE
