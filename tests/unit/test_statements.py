"""Statements by themselves: what they do to a record, without a store around them."""

from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from holdfast.model import AttemptPhase, JobPhase
from holdfast.state import statements
from holdfast.state.records import by_table
from holdfast.state.tables import attempts, jobs, metadata
from holdfast.testing.store import a_job, an_attempt


@pytest.mark.spec("J7", "J14")
@pytest.mark.parametrize("table", [jobs, attempts], ids=str)
def test_a_record_changes_until_it_has_ended(table: Any) -> None:
    live = a_job(1) if table is jobs else an_attempt(a_job(1), 1)
    ended = a_job(1, phase=JobPhase.ENDED) if table is jobs else an_attempt(a_job(1), 1, AttemptPhase.ENDED)
    engine = create_engine("sqlite://")
    metadata.create_all(engine, [table, statements.deleted_jobs])
    with engine.connect() as connection:

        def put(row: Any) -> list[str]:
            connection.execute(statements.put(table), by_table([row])[table])
            return list(connection.execute(select(table.c.phase)).scalars())

        assert put(live) == put(live) == [live.phase.value]
        assert put(ended) == put(ended) == ["ended"]
        with pytest.raises(IntegrityError):
            put(live)


@pytest.mark.spec("J3")
def test_on_postgres_many_ids_are_one_parameter() -> None:
    said = str(statements.by_ids(jobs, ["job_a", "job_b"], "postgresql").compile(dialect=postgresql.dialect()))
    assert "WHERE jobs.id = ANY (" in said


@pytest.mark.spec("J3", "J7")
def test_records_that_have_ended_are_found_by_their_ids() -> None:
    engine = create_engine("sqlite://")
    metadata.create_all(engine, [jobs, statements.deleted_jobs])
    rows = [a_job(1, phase=JobPhase.ENDED), a_job(2), a_job(3, phase=JobPhase.ENDED)]
    with engine.connect() as connection:
        connection.execute(statements.put(jobs), by_table(rows)[jobs])
        asked = statements.ended_by_ids(jobs, [rows[0].id, rows[1].id], "sqlite")
        assert list(connection.execute(asked).scalars()) == [by_table(rows)[jobs][0]["doc"]]


@pytest.mark.spec("J14")
def test_a_document_is_replaced_in_the_row_with_its_id_and_in_no_other() -> None:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.begin() as connection:
        for name in ("job_a", "job_b"):
            row = {"id": name, "owner": "ann", "name": "", "phase": "ended", "submitted_ms": 1, "doc": name}
            connection.execute(jobs.insert().values(**row))
        connection.execute(statements.replace_doc(jobs, "job_a", "new"))
        found = dict(connection.execute(select(jobs.c.id, jobs.c.doc)).tuples().all())
    assert found == {"job_a": "new", "job_b": "job_b"}
