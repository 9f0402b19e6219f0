"""Counts what a computation costs, the same on every machine."""

import sys
from collections.abc import Callable


def calls_of(does: Callable[[], object]) -> int:
    """How many calls it takes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        does()
    finally:
        sys.setprofile(None)
    return calls
