"""The shape of a row in the tables of codes."""

from typing import NamedTuple


class Row(NamedTuple):
    code: str
    exit_code: int
    """Of the command line."""
    status: int | None
    """Of the HTTP answer, if an orchestrator sends it."""
    what: str
    why: str
    do: str
    inside: str = ""
    """Why a person cannot cause it by what they type, send or set; empty: they can."""
