"""Writes the pages of docs/ that follow from the code: states, failure codes, settings, those in docs/reference/, and
the section of the architecture that says who imports whom.

python scripts/docs.py            write them
python scripts/docs.py --check    write nothing; exit 1 and name the pages that differ
"""

import inspect
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import msgspec
from docs_causes import causes_section
from docs_errors import page as errors_page
from docs_imports import with_imports
from docs_python import python_page
from docs_reference import cli_page, http_page, proto_page, roles_page, sandbox_page
from docs_text import NOTE, reasons, table

from holdfast.model import MEANINGS, AttemptPhase, FailureCode, JobPhase, NodeState, Settings
from holdfast.model import settings as settings_module
from holdfast.orchestrator import connection_limits as limits_module
from holdfast.orchestrator.connection_limits import ConnectionLimits

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def quantity(name: str, value: int) -> str:
    """A setting's value with the unit of its name, in a readable form."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith(("_ms", "_ms_max")):
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
            if value >= size and value % (size // 10) == 0:
                number = value / size
                return f"{number:g} {unit}"
        return f"{value} ms"
    if name.endswith("_bytes_max"):
        return f"{value // 1024**2} MiB" if value % 1024**2 == 0 else f"{value // 1024} KiB"
    if name.endswith("_permille"):
        return f"{value / 10:g} %"
    return f"{value:,}"


def settings_page() -> str:
    presets = {"lan": Settings.lan(), "wan": Settings.wan(), "test": Settings.test()}
    why = reasons(Settings)
    sections = setting_sections()
    lines = [
        "# Settings",
        "",
        NOTE,
        "There are three presets. `lan` is the default; `wan` is for homes and mobile links, `test` for tests and the "
        "demo. A value for `wan` or `test` is shown only if it differs from `lan`.",
        "",
        f"{inspect.getdoc(Settings)}",
        "",
    ]
    for title, names in sections.items():
        rows: list[list[str]] = []
        for name in names:
            values = {preset: getattr(chosen, name) for preset, chosen in presets.items()}
            shown = [quantity(name, values["lan"])]
            shown += ["" if values[p] == values["lan"] else quantity(name, values[p]) for p in ("wan", "test")]
            rows.append([f"`{name}`", *shown, why.get(name, "")])
        lines += [f"## {title.capitalize()}", "", table(["setting", "lan", "wan", "test", "why"], rows)]
    return "\n".join([*lines, *limits_section()])


def limits_section() -> list[str]:
    why = reasons(ConnectionLimits)
    lines = [
        "## Limits on connections and requests",
        "",
        "Of an orchestrator's listeners. `holdfast up --limit NAME=NUMBER` sets one; `0` is no limit. A stranger is a "
        "connection that has not shown a valid token, key or signature "
        "([why](decisions/0026-strangers-at-the-listeners.md)).",
        "",
    ]
    for title, names in setting_sections(ConnectionLimits, limits_module).items():
        rows = [[f"`{name}`", quantity(name, getattr(ConnectionLimits(), name)), why.get(name, "")] for name in names]
        lines += [f"### {title.capitalize()}", "", table(["limit", "default", "why"], rows)]
    return lines


def setting_sections(of: type = Settings, module: ModuleType = settings_module) -> dict[str, list[str]]:
    """Settings grouped by the comment lines in the source."""
    names = {f.name for f in msgspec.structs.fields(of)}
    sections: dict[str, list[str]] = {}
    title = "general"
    for line in inspect.getsource(module).splitlines():
        if line.startswith("    # "):
            title = line.removeprefix("    # ")
        name = line.strip().partition(":")[0]
        if line.startswith("    ") and name in names and line[4] != " ":
            sections.setdefault(title, []).append(name)
    return sections


def failure_page() -> str:
    def yes(value: bool) -> str:
        return "yes" if value else "no"

    rows = [
        [f"`{code}`", meaning.says, meaning.blame.value, yes(meaning.retryable), yes(meaning.billable)]
        for code, meaning in MEANINGS.items()
    ]
    return "\n".join(
        [
            "# Failure codes",
            "",
            NOTE,
            "Each failure has one code, and the code determines everything else: whose fault it was, whether another "
            "attempt may help, and whether the time is billed. Settlement uses the blame and nothing else.",
            "",
            table(["code", "what happened", "blame", "retryable", "billable"], rows),
        ]
    )


# --- states ---

S = TypeVar("S", bound=StrEnum)
State = tuple[str, str, str]
"""The meaning (empty: the docstring in the code), the deadline, and what happens then. In the deadline a setting is
written as {name}, in the outcome a failure code as {CODE}; both are checked, and shown with their values."""

JOB_STATES: dict[JobPhase, State] = {
    JobPhase.QUEUED: (
        "It has no live attempt that could still win. It waits for room, or for its back-off to end.",
        "its own queue limit, else {queue_ms_max}; starts again (at the end of a back-off) each time it returns",
        "ends: {QUEUE_EXPIRED}",
    ),
    JobPhase.ASSIGNED: ("Its most advanced attempt was offered to a node.", "the attempt's", "see attempts"),
    JobPhase.PREPARING: (
        "Its most advanced attempt is being prepared, or waits for the go.",
        "the attempt's",
        "see attempts",
    ),
    JobPhase.RUNNING: ("Its body runs.", "the attempt's", "see attempts"),
    JobPhase.UPLOADING: (
        "Its body has ended; its result is being uploaded or verified.",
        "the attempt's",
        "see attempts",
    ),
    JobPhase.ENDED: ("It has its verdict: succeeded, failed or cancelled.", "none: terminal", "never changes again"),
}

ATTEMPT_STATES: dict[AttemptPhase, State] = {
    AttemptPhase.OFFERED: ("", "{offer_ms_max}", "revoked, and the job goes elsewhere: {OFFER_UNANSWERED}"),
    AttemptPhase.PREPARING: (
        "The node is preparing it.",
        "{prepare_ms_max}",
        "revoked, and the job goes elsewhere: {PREPARE_TIMEOUT}",
    ),
    AttemptPhase.READY: (
        "",
        "{prepare_ms_max}; once it has its go, the lease as well ({lease_ms} and a tenth since the last answer)",
        "{PREPARE_TIMEOUT}; after the go the job ends with it, or with {LEASE_LOST}: it must not run twice",
    ),
    AttemptPhase.RUNNING: (
        "Its body runs.",
        "the job's time limit, else {run_ms_max}, and {run_slack_ms} more; with a go, the lease as well",
        "revoked, and the job ends: {TIME_LIMIT}, or {LEASE_LOST}",
    ),
    AttemptPhase.UPLOADING: ("", "{upload_ms_max}", "revoked, and the job is run again: {UPLOAD_TIMEOUT}"),
    AttemptPhase.ENDED: (
        "It won, failed, or its node has nothing of it left.",
        "none: terminal",
        "never changes again",
    ),
}

NODE_STATES: dict[NodeState, State] = {
    NodeState.READY: (
        "Connected, and given work.",
        "none; heard from within {silence_ceiling_ms} while it holds work, within {idle_silence_ms} otherwise",
        "suspect",
    ),
    NodeState.SUSPECT: ("", "{suspect_ms_max}", "lost; when it comes back before or after that, probation"),
    NodeState.QUARANTINED: (
        "",
        "{quarantine_ms}, doubled with each further fault up to {quarantine_ms_max}",
        "probation",
    ),
    NodeState.PROBATION: (
        "",
        "{probation_ms}, or {probation_wins} completed attempt(s)",
        "ready; without answers to {probation_pings} probes, suspect; with a fault of its own, quarantined",
    ),
    NodeState.LOST: ("", "none", "what it held has failed: {NODE_LOST}; when it comes back, probation"),
    NodeState.GONE: ("", "none", "what it held has failed: {NODE_LOST}; when it joins again, ready"),
}


def filled(text: str) -> str:
    """Replaces settings by their values and codes by their names. An unknown name stops the generator."""
    lan = Settings.lan()

    def shown(found: re.Match[str]) -> str:
        name = found[1]
        if name.isupper():
            return f"[`{FailureCode[name].value}`](failure-codes.md)"
        return f"{quantity(name, getattr(lan, name))} (`{name}`)"

    return re.sub(r"\{(\w+)\}", shown, text)


def state_table(states: type[S], told: dict[S, State]) -> str:
    if set(told) != set(states):
        raise SystemExit(f"docs: not every state of {states.__name__} is described: {set(states) ^ set(told)}")
    said = reasons(states)
    rows = [
        [f"`{state.value}`", meaning or said[state.name], filled(deadline), filled(outcome)]
        for state, (meaning, deadline, outcome) in told.items()
    ]
    return table(["state", "what it means", "deadline", "and then"], rows)


def journal_kinds() -> dict[str, list[str]]:
    """Every kind of journal entry that the kernel writes, by subject, extracted from its source."""
    found: set[str] = set()
    for source in sorted((ROOT / "src" / "holdfast" / "kernel").glob("*.py")):
        text = source.read_text(encoding="utf-8")
        found.update(re.findall(r"\"((?:job|attempt|node|orchestrator|token)\.[a-z_]+)\"", text))
        if 'f"job.{phase.value}"' in text:
            found.update(f"job.{phase.value}" for phase in JobPhase if phase is not JobPhase.ENDED)
        if 'f"node.{state.value}"' in text:
            found.update(f"node.{state.value}" for state in NodeState)
    subjects: dict[str, list[str]] = {}
    for kind in sorted(found):
        subjects.setdefault(kind.partition(".")[0], []).append(kind)
    return subjects


def states_page() -> str:
    kinds = [[subject, ", ".join(f"`{kind}`" for kind in kinds)] for subject, kinds in journal_kinds().items()]
    return "\n".join(
        [
            "# States",
            "",
            NOTE,
            "Every state has a deadline, and every deadline has a named outcome. Durations are those of the preset "
            "`lan`; deadlines are measured on the [patience clock](decisions/0002-patience-clock.md). "
            "`holdfast job explain` shows what a single job waits for and until when.",
            "",
            "## Jobs",
            "",
            "A job is in the state of its most advanced attempt that can still win.",
            "",
            "![The states of a job](pictures/job-states.svg)",
            "",
            state_table(JobPhase, JOB_STATES),
            "## Attempts",
            "",
            "An attempt belongs to one job and one node. Once *revoked* it can no longer win; it stays in its state, "
            "and keeps its room on the node, until the node reports that it is gone or is lost itself. A node that "
            "does not obey gets a strike, and the command is repeated.",
            "",
            "While its node is away, an attempt's deadline is suspended until the node comes back or is lost.",
            "",
            state_table(AttemptPhase, ATTEMPT_STATES),
            "## Nodes",
            "",
            "Only nodes in `ready` and `probation` are given work. In every other state, the node's attempts are taken "
            "over as their recovery class allows. A *draining* node keeps its state and gets no new work; its attempts "
            f"may finish within {filled('{drain_ms}')}, then they move, except work that must not run twice.",
            "",
            state_table(NodeState, NODE_STATES),
            "## The journal",
            "",
            "Every change of state is recorded with its time and cause. Kinds of entries:",
            "",
            table(["about", "kinds"], kinds),
            *causes_section(),
        ]
    )


def architecture_page() -> str:
    """Written by hand, but for one section."""
    return with_imports((DOCS / "architecture.md").read_text(encoding="utf-8"))


PAGES: dict[str, Callable[[], str]] = {
    "architecture.md": architecture_page,
    "states.md": states_page,
    "settings.md": settings_page,
    "failure-codes.md": failure_page,
    "errors.md": errors_page,
    "reference/cli.md": cli_page,
    "reference/http-api.md": http_page,
    "reference/roles.md": roles_page,
    "reference/sandbox.md": sandbox_page,
    "reference/node-messages.md": proto_page,
    "reference/python.md": python_page,
}


def stale() -> list[str]:
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        if wrong := stale():
            sys.exit(f"not current: docs/{', docs/'.join(wrong)}; run `make docs`")
        return
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
