"""Rows as records of their tables: the columns that queries search by, and the document."""

from typing import Any

import pytest

from holdfast.model import Instant, JobPhase, Keep, Meta, NodeState
from holdfast.model.rows import BY_TYPE, encode
from holdfast.model.stored import StoredRow
from holdfast.state import records, tables
from holdfast.testing.store import a_job, a_node, a_token, an_attempt

JOB = a_job(7, owner="ad\0a", name="n\0", phase=JobPhase.RUNNING)
CASES: list[tuple[StoredRow, dict[str, Any]]] = [
    (
        JOB,
        {
            "id": JOB.id,
            "owner": "ad\ufffda",
            "name": "n\ufffd",
            "phase": "running",
            "submitted_ms": 1_007,
            "ended_ms": None,
            "array_id": None,
        },
    ),
    (
        an_attempt(JOB, 2),
        {
            "id": f"att_{JOB.id[4:]}.2",
            "job": JOB.id,
            "node": "node_a",
            "fence": 2,
            "phase": "offered",
            "offered_ms": 2_002,
            "ended_ms": None,
        },
    ),
    (a_node("b", NodeState.SUSPECT), {"id": "node_b", "name": "", "state": "suspect", "joined_ms": 1}),
    (a_token("c", revoked=True), {"id": "tok_c", "revoked": True, "expires_ms": 2}),
    (Keep(JOB.id, JOB.owner, ("ab",), Instant(9)), {"id": JOB.id, "until_ms": 9}),
    (Meta(epoch=3), {"id": 1}),
]


@pytest.mark.spec("J14")
@pytest.mark.parametrize(("row", "columns"), CASES, ids=lambda value: type(value).__name__)
def test_a_record_has_what_queries_search_by_and_the_whole_row(row: StoredRow, columns: dict[str, Any]) -> None:
    kind = type(row)
    record = records._recorder(BY_TYPE[kind], tables.BY_TYPE[kind])(row)

    assert record == {**columns, "doc": encode(row)}
    assert record.keys() == {column.name for column in tables.BY_TYPE[kind].columns}
