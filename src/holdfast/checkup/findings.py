"""What a check says: how it stands, in words, and what to type where it does not stand well."""

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


def report(url: str, findings: list[Found]) -> Report:
    return Report(all(found.state != "fail" for found in findings), url, findings)
