"""Attempts after a restore: no number that a lost leader may have used is used again, counts stay right, and nobody is
blamed for what that leader ordered."""

import pytest
from kernel_driver import GOOD, Network, seen, with_two_nodes

from holdfast.kernel.contenders import MADE_MAX
from holdfast.kernel.events import Verified
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobSpec,
    Meta,
    Owner,
    Recovery,
    Verdict,
    job_id,
)
from holdfast.model.messages import Discard, HeldPhase, Renewed, Start
from holdfast.policy.restored import SKIPPED, number_skip
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
    before = Meta(3, 4, 5, 6, 7, 8, Instant(9), 10, 2)
    assert before.skipping(100, 50, 20) == Meta(3, 104, 105, 6, 7, 8, Instant(9), 30, 5)
    assert before.skipping(100, 105, 20) == Meta(3, 105, 105, 6, 7, 8, Instant(9), 30, 5)
    assert before.skipping(100, 900, 20) == Meta(3, 900, 900, 6, 7, 8, Instant(9), 30, 5)


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
            rows[key] = row.skipping(1_000_000, 0, MADE_MAX)

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


# --- how far ---

IN_2020_S = 1_577_836_800


def test_a_later_restore_skips_further_than_any_earlier_one_whatever_was_restored() -> None:
    skips = [number_skip(IN_2020_S + since_s) for since_s in (0, 1, 2, 200_000_000)]
    assert [(skip.by, skip.least) for skip in skips] == [
        (SKIPPED, since_s * SKIPPED) for since_s in (0, 1, 2, 200_000_000)
    ]


def test_a_clock_that_is_wrong_by_centuries_takes_no_number_out_of_range() -> None:
    assert number_skip(0) == number_skip(IN_2020_S) == (SKIPPED, 0, MADE_MAX)
    assert number_skip(IN_2020_S + 2**33 - 1).least == 2**53 - SKIPPED
    assert number_skip(IN_2020_S + 2**33).least == number_skip(10**12).least == 2**53


def test_names_of_attempts_differ_between_restores_and_stay_short() -> None:
    skipped = [number_skip(IN_2020_S + since_s).attempts for since_s in range(997)]
    assert skipped == [MADE_MAX * (1 + since_s) for since_s in range(997)]
    assert number_skip(IN_2020_S + 997).attempts == MADE_MAX


# --- nobody is blamed ---


def restored(recovery: Recovery = Recovery.RESTART, skip: bool = True, **more: int) -> tuple[Network, Attempt]:
    """A network whose state was restored; in the backup, an attempt was just offered. Its node is not back yet."""
    network = with_two_nodes()
    network.submit(recovery=recovery, **more)
    (attempt,) = network.attempts()
    if skip:
        for key, row in list(network.rows.items()):
            if isinstance(row, Meta):
                network.rows[key] = row.skipping(1_000_000, 0, MADE_MAX)
            elif isinstance(row, Job):
                network.rows[key] = row.skipping(MADE_MAX)
    network.restart(epoch=1_000_002)
    return network, attempt


def strikes(network: Network) -> dict[str, int]:
    return {name: network.node(name).strikes for name in ("node_a", "node_b")}


NOBODY = {"node_a": 0, "node_b": 0}


@pytest.mark.parametrize("recovery", [Recovery.RESTART, Recovery.NEVER])
def test_an_offer_of_a_backup_is_not_repeated_under_its_name(recovery: Recovery) -> None:
    network, attempt = restored(recovery)
    # when its node is back and does not have it: it may have run, and have been discarded
    network.join(attempt.node)
    # then another attempt is made of it, and nobody is blamed
    assert network.said(Start) == []
    network.wait(4 * network.settings.backoff_ms, report={attempt.node: []})
    first, second = network.attempts()
    assert not first.live and first.failure is not None and first.failure.code is FailureCode.NODE_LOST
    assert second.live and second.id.endswith(f".{MADE_MAX + 2}")
    assert strikes(network) == NOBODY and network.job().live


def test_an_offer_is_repeated_by_a_leader_that_lost_nothing() -> None:
    network, attempt = restored(skip=False)
    network.join(attempt.node)
    assert [one.id for one in network.attempts()] == [attempt.id]


@pytest.mark.parametrize("phase", [HeldPhase.RUNNING, HeldPhase.UPLOADING])
def test_a_go_that_the_backup_does_not_know_was_given(phase: HeldPhase) -> None:
    network, attempt = restored(Recovery.NEVER)
    network.join(attempt.node, held=(seen(attempt, phase),))
    network.report(attempt.node, seen(attempt, phase), renew=(attempt.id,))
    (now,) = network.attempts()
    assert now.go and now.may_win and now.started_ms is not None
    assert [answer.attempts for answer in network.said(Renewed)] == [(attempt.id,)]
    assert network.said(Discard) == [] and strikes(network) == NOBODY


@pytest.mark.parametrize("phase", [HeldPhase.RUNNING, HeldPhase.UPLOADING])
def test_a_body_that_runs_without_a_go_is_a_fault_if_nothing_was_lost(phase: HeldPhase) -> None:
    network, attempt = restored(Recovery.NEVER, skip=False)
    network.join(attempt.node, held=(seen(attempt, phase),))
    assert (strikes(network) != NOBODY) == (phase is HeldPhase.RUNNING)
    assert network.attempts()[0].started_ms is None or phase is HeldPhase.RUNNING


@pytest.mark.parametrize("skip", [True, False])
def test_a_lease_may_have_been_lost_that_the_backup_does_not_know(skip: bool) -> None:
    network, attempt = restored(Recovery.NEVER, skip)
    network.join(attempt.node, held=(seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.LEASE_LOST)),))
    assert (strikes(network) == NOBODY) == skip


@pytest.mark.parametrize("skip", [True, False])
def test_what_a_node_no_longer_has_was_perhaps_discarded_by_the_lost_leader(skip: bool) -> None:
    network, attempt = restored(skip=skip)
    network.join(attempt.node, held=(seen(attempt, HeldPhase.RUNNING),))
    network.report(attempt.node, seen(attempt, HeldPhase.GONE))
    assert (strikes(network) == NOBODY) == skip
    assert network.attempts()[0].failure is not None
    assert network.job().live


@pytest.mark.parametrize(("skip", "code"), [(True, FailureCode.DAMAGED), (False, FailureCode.INVALID_RESULT)])
def test_output_that_was_acknowledged_to_a_node_and_lost_is_not_its_fault(skip: bool, code: FailureCode) -> None:
    network, attempt = restored(skip=skip)
    network.join(attempt.node, held=(seen(attempt, HeldPhase.FINISHED, GOOD),))
    network.tell(Verified(attempt.id, attempt.fence, False, "9 bytes of output were declared, 0 arrived"))
    first = network.attempts()[0]
    assert first.failure is not None and first.failure.code is code
    assert (strikes(network) == NOBODY) == skip
    assert network.job().verdict is not Verdict.FAILED
