"""Shows messages and errors of the command itself, with or without colours. Light to import.

No traceback reaches a person. A known error says what happened, why, and what to do, with its code; so does a mistyped
command. An unexpected error is one line with the code `internal`. HOLDFAST_DEBUG=1 adds the traceback.
"""

import errno
import os
import sys
from typing import IO, Any

from holdfast.cleaning import clean

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The exit code that a shell gives for SIGPIPE: the reader has closed the pipe."""
EXIT_IO = 74


class Interrupted(Exception):
    """Ctrl-C in a command that does not handle it. Its text, if any, is shown."""


def coloured(file: IO[str]) -> bool:
    """Whether to use colours: the file is a terminal, and NO_COLOR is not set."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def live(file: IO[str]) -> bool:
    """Whether a line can be redrawn in place."""
    return file.isatty() and os.environ.get("TERM") != "dumb"


def say(text: str, *, colour: str | None = None, dim: bool = False) -> None:
    """One line on stderr."""
    import typer

    typer.secho(text, err=True, fg=colour, dim=dim or None, color=None if coloured(sys.stderr) else False)


def told(error: BaseException) -> int:
    """Show an error to the person at the prompt; returns its exit code."""
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
        return _shown(f"what was read is not text: {error.reason}", "file_unusable", _HINTS[errno.EILSEQ], EXIT_IO)
    return _fault(error)


def _shown(says: str, code: str, hint: str, exit_code: int) -> int:
    # An error may quote what a machine nobody controls said.
    say(f"error: {clean(says)} [{code}]", colour="red")
    for line in hint.splitlines():
        say(f"  {clean(line)}")
    return exit_code


def _fault(error: BaseException) -> int:
    from holdfast.errors import EXIT_INTERNAL

    says = " ".join(str(error).split()) or "no details"
    hint = "This is a fault of holdfast itself. HOLDFAST_DEBUG=1 shows where."
    return _shown(f"{type(error).__name__}: {says}", "internal", hint, EXIT_INTERNAL)


# --- what was typed wrongly ---


def _mistyped(error: Any) -> int:
    """An error in the command line itself: in a flag, a value, or a command."""
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
    return _shown(says[:1].lower() + says[1:], "usage", f"{hint}`{command} --help` shows the usage.", 2)


def _near(error: Any, context: Any) -> list[str]:
    """Flags of this command that look like the unknown one."""
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
    errno.ENOENT: "Check the spelling, and the folder in which this command was started.",
    errno.EACCES: "Check who owns it (`ls -ld`), or run this as that user.",
    errno.EPERM: "Check who owns it (`ls -ld`), or run this as that user.",
    errno.ENOSPC: "Free some space there (`df -h`, `df -i`), then try again.",
    errno.EDQUOT: "Free some space there (`quota`), then try again.",
    errno.EROFS: "It is on a read-only file system; choose another place.",
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
    """The reader of the output has closed the pipe: not an error, and no message."""
    # Output that Python still buffers must not be written when the process ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    return EXIT_BROKEN_PIPE
