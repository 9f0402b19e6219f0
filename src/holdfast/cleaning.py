"""Makes untrusted text safe for a terminal: the one rule for errors, tables and notebooks. For the output of jobs see
`cli/render/log_printer.py`.

A node's name, a job's output and an orchestrator's messages may come from an untrusted machine. They must not be able
to control the reader's terminal or to show characters in another order. Fast to import.
"""


def clean(text: str) -> str:
    """`text` in one line, without unprintable characters and colours. White space other than tabs becomes plain
    spaces."""
    if text.isprintable():
        return text
    import re

    return "".join(_fit(letter) for letter in re.sub(r"\x1b\[[0-9;]*m", "", text))


def _fit(letter: str) -> str:
    if letter.isprintable() or letter == "\t":
        return letter
    return " " if letter.isspace() else ""
