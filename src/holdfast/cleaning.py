"""Makes untrusted text safe for a terminal: the one rule for errors, tables, logs and notebooks.

A node's name, a job's output and an orchestrator's messages may come from an untrusted machine. They must not be able
to control the reader's terminal or to show characters in another order. Fast to import.
"""

KEPT = "\t"
KEPT_OF_LINES = "\t\n\r"


def clean(text: str, *, colours: bool = False, lines: bool = False) -> str:
    """`text` without unprintable characters; colours and line breaks are kept only if requested. Other white space, and
    line breaks that are not kept, become plain spaces."""
    if text.isprintable():
        return text
    import re

    # With one group, every second part is a colour sequence.
    pieces = re.split(r"(\x1b\[[0-9;]*m)", text)
    kept = KEPT_OF_LINES if lines else KEPT
    pieces[::2] = ["".join(_fit(c, kept) for c in piece) for piece in pieces[::2]]
    return "".join(pieces if colours else pieces[::2])


def _fit(letter: str, kept: str) -> str:
    if letter.isprintable() or letter in kept:
        return letter
    return " " if letter.isspace() else ""
