"""The result of a check: its state, a description, and what to do if something is wrong."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

State = Literal["ok", "warn", "fail"]


class CheckResult(msgspec.Struct, frozen=True):
    group: str
    name: str
    state: State
    says: str
    do: str = ""
    """What to do about it, as a command if there is one; empty if all is well."""


class Diagnosis(msgspec.Struct, frozen=True):
    ok: bool
    """Nothing failed; there may be warnings."""
    url: str
    """Of the orchestrator that was checked; empty: none is known."""
    findings: list[CheckResult]


def looked(
    group: str, name: str, check: Callable[[], CheckResult | Iterable[CheckResult]], serious: State
) -> Iterator[CheckResult]:
    """The results of a check. A check that fails to run is a result too, and does not stop the next one."""
    try:
        found = check()
        yield from (found,) if isinstance(found, CheckResult) else found
    except (OSError, ValueError) as wrong:
        do = "Check that it exists and that this user may read it; then run this again."
        yield CheckResult(group, name, serious, f"this could not be checked: {wrong or type(wrong).__name__}", do)


def report(url: str, findings: list[CheckResult]) -> Diagnosis:
    return Diagnosis(all(found.state != "fail" for found in findings), url, findings)
