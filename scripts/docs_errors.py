"""Generates docs/errors.md: every code, from the tables in holdfast.codes and from the failure codes of jobs.

`scripts/docs.py` writes and checks it with the other pages.
"""

from docs_text import NOTE, table

from holdfast.cli.commands.help import ELSE, EXIT_CODES
from holdfast.codes import api, machines
from holdfast.codes import local as codes_local
from holdfast.codes.failed import WHAT_TO_DO
from holdfast.codes.rows import Row
from holdfast.model import MEANINGS, FailureCode


def page() -> str:
    parts = [
        "# Errors",
        "",
        NOTE,
        "An error says what happened, why, and what to do, and carries a code that never changes:",
        "",
        "```",
        "error: there is no job 'trian' [not_found]",
        "  `holdfast jobs` lists them.",
        "```",
        "",
        "In Python it is an exception with `code`, `says` and `hint`, in the tree shown in `holdfast.errors`; over "
        'HTTP it is `{"code": …, "says": …, "hint": …}` with the status below. No traceback is shown; '
        "`HOLDFAST_DEBUG=1` adds one. `holdfast help CODE` shows the entry of a code, and `holdfast doctor` "
        "examines a machine or a network for problems.",
        "",
        "## Exit codes",
        "",
        "`holdfast help exit-codes` shows the same.",
        "",
        table(["exit code", "what it means"], [[str(code), means] for code, means in EXIT_CODES.items()]),
        ELSE,
        "",
        "## Typed and read on this machine",
        "",
        _codes(codes_local.ROWS),
        "## Refused by an orchestrator",
        "",
        _codes(api.ROWS),
        "## Starting an orchestrator or a node, and joining",
        "",
        _codes(machines.ROWS),
        "A node and an orchestrator also use codes for messages that break the protocol (`bad_id`, `bad_number`, "
        "`too_long` and others); programs of the same release do not send such messages.",
        "",
        "## How jobs fail",
        "",
        "`job show` and `run` name one of these. Whose fault it was and who pays: [failure codes](failure-codes.md).",
        "",
        _failures(),
        "## Not by anything a person does",
        "",
        "Codes that exist in the source but that nothing a person types, sends or sets can cause:",
        "",
        table(["code", "what happened", "why nobody can"], _inside()),
    ]
    return "\n".join(parts)


def _codes(rows: tuple[Row, ...]) -> str:
    shown = [row for row in rows if not row.inside]
    return table(
        ["code", "what happened", "why", "what to do", "exit", "HTTP"],
        [[f"`{r.code}`", r.what, r.why, r.do, str(r.exit_code), str(r.status or "")] for r in shown],
    )


def _inside() -> list[list[str]]:
    return [[f"`{r.code}`", r.what, r.inside] for m in (codes_local, api, machines) for r in m.ROWS if r.inside]


def _failures() -> str:
    if set(WHAT_TO_DO) != {code.value for code in FailureCode}:
        raise SystemExit(f"docs: holdfast.codes.failed and FailureCode differ: {set(WHAT_TO_DO) ^ set(FailureCode)}")
    return table(
        ["code", "what happened", "what to do", "exit"],
        [[f"`{code.value}`", MEANINGS[code].says, WHAT_TO_DO[code.value], _exit(code)] for code in FailureCode],
    )


def _exit(code: FailureCode) -> str:
    fixed = {"exit_code": "the job's", "oom_job": "137", "time_limit": "124", "cancelled": "130"}
    return fixed.get(code.value, "75" if MEANINGS[code].retryable else "1")
