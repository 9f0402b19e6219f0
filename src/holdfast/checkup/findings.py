"""What a check says: how it stands, in words, and what to type where it does not stand well."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

State = Literal["ok", "warn", "fail"]


class Found(msgspec.Struct, frozen=True):
    group: str
    name: str
    state: State
    says: str
    do: str = ""
    """What to do about it, as a command where one does it; empty where all is well."""


class Report(msgspec.Struct, frozen=True):
    ok: bool
    """Nothing failed; there may be warnings."""
    url: str
    """Of the orchestrator that was looked at; empty: none is known."""
    findings: list[Found]


def looked(group: str, name: str, check: Callable[[], Found | Iterable[Found]], serious: State) -> Iterator[Found]:
    """What a check finds. That it could not look is a finding, too, and keeps nobody from the next one."""
    try:
        found = check()
        yield from (found,) if isinstance(found, Found) else found
    except (OSError, ValueError) as wrong:
        do = "Look whether it is there and whether this user may read it; then run this again."
        yield Found(group, name, serious, f"this could not be looked at: {wrong or type(wrong).__name__}", do)


def report(url: str, findings: list[Found]) -> Report:
    return Report(all(found.state != "fail" for found in findings), url, findings)
