"""Every code that an error may carry: what happened, why, what to do; its exit code and HTTP status where it has one.

docs/errors.md is written from these tables, an error that brings no hint of its own takes the one that stands here, and
a test causes each of them (tests/acceptance/test_cli_errors.py). Knows nothing of who raises what. Codes by which jobs
fail stand in `holdfast.model.failure`; here is only what their owner can do about them.

    typed      what is typed at the command line, and the files of this machine
    asked      what an orchestrator refuses
    machines   what keeps an orchestrator or a node from starting, and a node from joining
    failed     how jobs fail
"""

from functools import cache

from holdfast.codes.rows import Row


@cache
def rows() -> dict[str, Row]:
    """By code."""
    from holdfast.codes import asked, machines, typed

    return {row.code: row for module in (typed, asked, machines) for row in module.ROWS}


def what_to_do(code: str) -> str:
    """Where an error brings no hint of its own; empty for a code that is not known here."""
    from holdfast.codes import failed

    row = rows().get(code)
    return row.do if row is not None else failed.WHAT_TO_DO.get(code, "")


def explained(code: str) -> dict[str, str]:
    """All that is known of a code, by title; empty for one that does not exist. Of a code that both errors and jobs
    have, the error's is told, and then the job's."""
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
