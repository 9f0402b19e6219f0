"""Compares versions: numbers separated by dots, compared number by number."""

from functools import lru_cache


@lru_cache(maxsize=1_024)
def parts(version: str) -> tuple[int, ...]:
    """`535.104.05` -> (535, 104, 5). A part that is not a number counts as 0, so an invalid version gains nothing."""
    found = [int(part) if part.isascii() and part.isdigit() else 0 for part in version[:64].split(".")]
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def at_least(version: str, wanted: str) -> bool:
    return parts(version) >= parts(wanted)
