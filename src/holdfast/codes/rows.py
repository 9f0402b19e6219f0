"""The shape of a row in the tables of codes."""

from typing import NamedTuple


class Row(NamedTuple):
    code: str
    exit_code: int
    """Of the command line."""
    status: int | None
    """Of the answer, where an orchestrator says it over HTTP."""
    what: str
    why: str
    do: str
    inside: str = ""
    """Why no person can cause it by what they type, send or set; empty: they can."""
