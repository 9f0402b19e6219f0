"""Numbers of attempts after a restore: none that a lost leader may have used is used again, and counts stay right."""

import pytest
from kernel_driver import with_two_nodes

from holdfast.kernel.contenders import MADE_MAX
from holdfast.model import Instant, Job, JobSpec, Meta, Owner, job_id
from holdfast.testing.store import a_job

pytestmark = pytest.mark.spec("J5", "J14")


def test_an_attempt_has_its_count_as_its_number_until_numbers_are_skipped() -> None:
    job = a_job(1)
    name = f"att_{job.id[4:]}"
    assert [job.nth_attempt(count) for count in (1, 2)] == [f"{name}.1", f"{name}.2"]


def test_numbers_skip_after_the_attempts_that_the_backup_knows_and_again_with_each_restore() -> None:
    job = Job(job_id("ann", "k"), Owner("ann"), JobSpec(("x",)), "0" * 64, Instant(1), attempts_made=2).skipping(1_000)
    name = f"att_{job.id[4:]}"
    assert job.numbers_skipped == ((2, 1_000),)
    assert [job.nth_attempt(count) for count in (1, 2, 3, 4)] == [f"{name}.{n}" for n in (1, 2, 1_003, 1_004)]
    again = Job(job.id, job.owner, job.spec, "", Instant(1), attempts_made=3, numbers_skipped=job.numbers_skipped)
    assert [again.skipping(50).nth_attempt(count) for count in (2, 3, 4)] == [f"{name}.{n}" for n in (2, 1_003, 1_054)]


def test_counters_skip_and_nothing_else_of_the_row_changes() -> None:
    before = Meta(3, 4, 5, 6, 7, 8, Instant(9), 10)
    assert before.skipping(100, 20) == Meta(3, 104, 105, 6, 7, 8, Instant(9), 30)


def test_a_restored_job_gets_attempts_of_other_names_and_goes_on_with_those_it_has() -> None:
    # Given a job that ran when the backup was made, and one that waited
    network = with_two_nodes()
    network.submit("one")
    (first,) = network.attempts("one")
    rows = network.rows
    for key, row in list(rows.items()):
        if isinstance(row, Job):
            rows[key] = row.skipping(MADE_MAX)
        elif isinstance(row, Meta):
            rows[key] = row.skipping(1_000_000, MADE_MAX)

    # When an orchestrator starts from it
    network.restart(epoch=1_000_002)
    network.join("node_b")
    network.submit("new")

    # Then what ran has its name, and what is new has one that no lost leader can have used
    assert [a.id for a in network.attempts("one")] == [first.id]
    (attempt,) = network.attempts("new")
    assert attempt.id.endswith(f".{MADE_MAX + 1}")
    (meta,) = [row for row in network.rows.values() if isinstance(row, Meta)]
    assert meta.numbers_skipped == MADE_MAX
    job = next(row for row in network.rows.values() if isinstance(row, Job) and row.id == attempt.job)
    assert (job.attempts_made, job.numbers_skipped) == (1, ((0, MADE_MAX),))
