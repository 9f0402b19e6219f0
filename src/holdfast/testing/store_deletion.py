"""The part of the conformance suite for stores that is about deleting: what goes, what stays, and who may do it."""

import msgspec
import pytest

from holdfast.model import (
    ArrayId,
    AttemptPhase,
    DeletedJob,
    DeletedNode,
    DeletedToken,
    Instant,
    Job,
    JobPhase,
    Keep,
    NodeId,
    TokenId,
    Verdict,
)
from holdfast.state import EndedRowChanged, LeadershipLost, Store
from holdfast.testing.store import OpenStore, a_job, a_node, a_token, an_attempt, an_entry


def ended(number: int, ended_ms: int = 5_000, array: str = "") -> Job:
    job = a_job(number, phase=JobPhase.ENDED)
    spec = msgspec.structs.replace(job.spec, array=ArrayId(array))
    return msgspec.structs.replace(job, spec=spec, ended_ms=Instant(ended_ms), verdict=Verdict.SUCCEEDED)


def deleted(job: Job) -> DeletedJob:
    return DeletedJob(job.id, job.owner, job.spec_hash, job.verdict, job.ended_ms or Instant(0))


class DeletionConformance(OpenStore):
    """Subclass it, and provide the fixture `store_url`."""

    @pytest.mark.spec("J14", "J7")
    def test_a_deleted_job_is_gone_with_all_that_was_its_own(self, store: Store, epoch: int) -> None:
        old, other = ended(1), ended(2)
        rows = [(job, an_attempt(job, job.submitted_ms, AttemptPhase.ENDED)) for job in (old, other)]
        keeps = [Keep(job.id, job.owner, ("aa",), Instant(9)) for job in (old, other)]
        store.commit([*(row for pair in rows for row in pair), *keeps], epoch)

        store.commit([deleted(old), an_entry(1)], epoch)

        assert store.jobs() == [other] and store.attempts(old.id) == []
        assert store.attempts(other.id) == [rows[1][1]] and store.keeps_of([old.id, other.id]) == [keeps[1]]
        assert store.deleted_jobs([old.id, other.id]) == [deleted(old)] and store.deleted_jobs([]) == []
        assert store.last_seq() == 1 and store.load_live().jobs == ()
        store.commit([deleted(old)], epoch)  # again, after a crash

    @pytest.mark.spec("J14", "J7")
    def test_a_job_that_was_deleted_is_never_written_again(self, store: Store, epoch: int) -> None:
        old = ended(1)
        store.commit([old], epoch)
        store.commit([deleted(old)], epoch)

        for again in (a_job(1), old):
            with pytest.raises(EndedRowChanged, match=old.id) as refused:
                store.commit([a_job(2), again, an_entry(1)], epoch)
            assert refused.value.rows == (deleted(old),)

        assert store.jobs() == [] and store.last_seq() == 0
        store.commit([a_job(2)], epoch)
        assert store.jobs() == [a_job(2)]

    @pytest.mark.spec("N6", "J14")
    def test_a_forgotten_node_and_a_forgotten_token_are_not_loaded(self, store: Store, epoch: int) -> None:
        store.commit([a_node("a"), a_node("b"), a_token("a"), a_token("b")], epoch)

        store.commit([DeletedNode(NodeId("node_a"), "ab" * 32), DeletedToken(TokenId("tok_b"))], epoch)

        live = store.load_live()
        assert live.nodes == (a_node("b"),) and live.tokens == (a_token("a"),)
        assert store.deleted_node("node_a") == DeletedNode(NodeId("node_a"), "ab" * 32)
        assert store.deleted_token("tok_b") == DeletedToken(TokenId("tok_b"))
        assert store.deleted_node("node_b") is None and store.deleted_token("tok_a") is None
        store.commit([a_node("a")], epoch)  # it joined again
        assert store.nodes() == [a_node("a"), a_node("b")]

    @pytest.mark.spec("J5", "A9")
    def test_who_no_longer_leads_deletes_nothing(self, store: Store, epoch: int) -> None:
        store.commit([ended(1), a_node("a"), an_entry(1)], epoch)
        store.take_lead("another")

        with pytest.raises(LeadershipLost):
            store.commit([deleted(ended(1)), DeletedNode(NodeId("node_a"), "ab")], epoch)
        store.forget_entries(1, epoch)

        assert store.jobs() == [ended(1)] and store.nodes() == [a_node("a")]
        assert store.deleted_jobs([ended(1).id]) == [] and store.first_seq() == 1

    @pytest.mark.spec("H4")
    def test_the_journal_is_deleted_from_its_beginning(self, store: Store, epoch: int) -> None:
        assert store.first_seq() == 0
        store.commit([an_entry(seq) for seq in range(1, 11)], epoch)

        store.forget_entries(4, epoch)

        assert store.first_seq() == 5 and [entry.seq for entry in store.entries()] == list(range(5, 11))

    @pytest.mark.spec("J14")
    def test_ended_jobs_are_found_page_by_page_in_the_order_of_their_submission(self, store: Store, epoch: int) -> None:
        jobs = [ended(1, 5_000), ended(2, 4_000), ended(3, 5_001), ended(4, 2_000)]
        store.commit([*jobs, a_job(0), a_job(9)], epoch)

        assert store.ended_before(5_000) == [jobs[0], jobs[1], jobs[3]]
        assert store.ended_before(5_000, limit=1) == [jobs[0]]
        assert store.ended_before(5_000, (jobs[0].submitted_ms, jobs[0].id)) == [jobs[1], jobs[3]]
        assert store.ended_before(3_999) == [jobs[3]] and store.ended_before(-1) == []

    @pytest.mark.spec("J16")
    def test_an_array_has_ended_when_its_last_item_has(self, store: Store, epoch: int) -> None:
        store.commit([ended(1, 5_000, "arr_a"), ended(2, 7_000, "arr_a"), ended(3, 9_000)], epoch)
        assert store.array_ended("arr_a") == 7_000
        live = a_job(4)
        store.commit([msgspec.structs.replace(live, spec=ended(4, array="arr_a").spec)], epoch)
        assert store.array_ended("arr_a") is None

    @pytest.mark.spec("H1")
    def test_the_store_says_how_large_it_is(self, store: Store, epoch: int) -> None:
        store.commit([ended(1), ended(2), an_entry(1)], epoch)
        store.commit([deleted(ended(1))], epoch)
        sizes = store.sizes()
        assert (sizes.rows["jobs"], sizes.rows["deleted_jobs"], sizes.rows["entries"]) == (1, 1, 1)
        assert sizes.bytes > 4_096
