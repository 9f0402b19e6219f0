"""Every error code: what happened, why, what to do; its exit code, and its HTTP status if it has one.

docs/errors.md is generated from these tables, an error without a hint of its own uses the one here, and a test causes
each of them (tests/acceptance/test_cli_errors.py). Does not know which code raises what. The codes by which jobs fail
are in `holdfast.model.failure`; here is only what their owner can do about them.

    local      mistakes on the command line, and the files of this machine
    api        what an orchestrator refuses
    machines   what keeps an orchestrator or a node from starting, and a node from joining
    failed     how jobs fail
"""

from functools import cache

from holdfast.codes.rows import Row


@cache
def rows() -> dict[str, Row]:
    """By code."""
    from holdfast.codes import api, machines
    from holdfast.codes import local as codes_local

    return {row.code: row for module in (codes_local, api, machines) for row in module.ROWS}


def what_to_do(code: str) -> str:
    """The hint for an error that has none of its own; empty for an unknown code."""
    from holdfast.codes import failed

    row = rows().get(code)
    return row.do if row is not None else failed.WHAT_TO_DO.get(code, "")


def http_status(code: str) -> int:
    """Of an answer that is this error; 400 for a code that has none of its own."""
    row = rows().get(code)
    return 400 if row is None or row.status is None else row.status


def explained(code: str) -> dict[str, str]:
    """Everything that is known about a code, by title; empty for a code that does not exist. If both errors and jobs
    have the code, the error comes first."""
    from holdfast.codes import failed
    from holdfast.model import MEANINGS, FailureCode

    told: dict[str, str] = {}
    if row := rows().get(code):
        told = {"what": row.what, "why": row.why, "what to do": row.do, "exit code": str(row.exit_code)}
        if row.status is not None:
            told["HTTP status"] = str(row.status)
    if code in failed.WHAT_TO_DO:
        meaning = MEANINGS[FailureCode(code)]
        told["of a job"] = f"{meaning.says}; blame: {meaning.blame.value}. {failed.WHAT_TO_DO[code]}"
    return told
