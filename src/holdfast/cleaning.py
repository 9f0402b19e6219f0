"""What strangers wrote, made fit for a person's screen: the one rule for errors, tables, logs and notebooks.

A node's name, a job's output and an orchestrator's words may come from a machine nobody controls. They must not be able
to draw on the screen of whoever reads them, nor to show letters in another order than they stand in. Light to import.
"""

KEPT = "\t"
KEPT_OF_LINES = "\t\n\r"


def clean(text: str, *, colours: bool = False, lines: bool = False) -> str:
    """`text` without anything that is not printable; colours and line breaks only where they are wanted. Other spaces,
    and line breaks where they are not, become plain spaces."""
    if text.isprintable():
        return text
    import re

    # With one group, every second piece is a colour.
    pieces = re.split(r"(\x1b\[[0-9;]*m)", text)
    kept = KEPT_OF_LINES if lines else KEPT
    pieces[::2] = ["".join(_fit(c, kept) for c in piece) for piece in pieces[::2]]
    return "".join(pieces if colours else pieces[::2])


def _fit(letter: str, kept: str) -> str:
    if letter.isprintable() or letter in kept:
        return letter
    return " " if letter.isspace() else ""
