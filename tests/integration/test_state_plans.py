"""Questions stay cheap as history grows: each is answered from an index that holds just what is asked for."""

import pytest
from sqlalchemy import Select

from holdfast.model import Attempt, Job
from holdfast.model.rows import row_type
from holdfast.state import Store, statements, tables
from holdfast.state.engines import open_engines

QUESTIONS: list[tuple[str, Select[str], str]] = [
    ("live jobs", *statements.live_rows(row_type(Job)), "jobs_live"),
    ("live attempts", *statements.live_rows(row_type(Attempt)), "attempts_live"),
    ("a job", statements.by_id(tables.jobs, "job_x"), "sqlite_autoindex_jobs_1 (id=?)"),
    ("ids", statements.ids_by_prefix(tables.jobs, "job_x", 5), "sqlite_autoindex_jobs_1 (id>? AND id<?)"),
    ("jobs", statements.jobs_newest(None, None, 5, None), "jobs_newest"),
    ("jobs, next page", statements.jobs_newest(None, None, 5, (1, "job_x")), "jobs_newest ((submitted_ms,id)<(?,?))"),
    ("running jobs", statements.jobs_newest(None, "running", 5, None), "jobs_live"),
    ("jobs of one", statements.jobs_newest("ada", None, 5, (1, "job_x")), "jobs_of_owner (owner=? AND (submitted_ms"),
    ("running jobs of one", statements.jobs_newest("ada", "running", 5, None), "jobs_live_of_owner (owner=?)"),
    ("jobs by name", statements.jobs_named("ada", "train", 10), "jobs_named (owner=? AND name=?)"),
    ("live by name", statements.jobs_named("ada", "train", 1, live=True), "jobs_named (owner=? AND name=?)"),
    ("attempts of a job", statements.attempts_of("job_x"), "attempts_of_job (job=?)"),
    ("journal", statements.entries_after(5, None, None, 5), "INTEGER PRIMARY KEY (rowid>?)"),
    ("journal of a job", statements.entries_after(5, "job_x", None, 5), "entries_of_job (job=? AND seq>?)"),
    ("journal of a node", statements.entries_after(5, None, "node_x", 5), "entries_of_node (node=? AND seq>?)"),
]


@pytest.mark.spec("J3", "H4", "A11")
@pytest.mark.parametrize(("question", "index"), [q[1:] for q in QUESTIONS], ids=[q[0] for q in QUESTIONS])
def test_a_question_is_answered_from_its_index(sqlite_url: str, question: Select[str], index: str) -> None:
    # Given the schema as shipped
    Store.open(sqlite_url).close()
    engines = open_engines(sqlite_url)

    # When the database says how it would answer
    with engines.reader.connect() as connection:
        asked = question.compile(connection, compile_kwargs={"literal_binds": True})
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}")]
    engines.dispose()

    # Then it takes one index, made for this, and sorts nothing afterwards
    assert len(plan) == 1
    taken = plan[0].partition("USING ")[2].removeprefix("COVERING ").removeprefix("INDEX ")
    assert taken.startswith(index) if "(" in index else taken.split(" ")[0] == index
