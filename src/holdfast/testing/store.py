"""The conformance suite for stores, which any implementation can run. Knows the contract, no database.

Subclass `StoreConformance` in a test module and give it a fixture `store_url`: the address of an unused database,
opened by `Store.open`. Run as a program, this module is the writer that the suite kills:

    python -m holdfast.testing.store URL      commits numbered batches, printing each number when it is durable
"""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast.kernel.decision import Row
from holdfast.model import (
    ArrayId,
    Attempt,
    AttemptId,
    AttemptPhase,
    DurationHistory,
    Entry,
    Facts,
    Failure,
    FailureCode,
    Gpu,
    Hardware,
    Instant,
    Job,
    JobId,
    JobPhase,
    JobSpec,
    JoinToken,
    Meta,
    Node,
    NodeCause,
    NodeId,
    NodeState,
    Owner,
    PauseCause,
    Recovery,
    Resources,
    Result,
    RevokeCause,
    StraggleKind,
    TokenId,
    Verdict,
    WaitReason,
)
from holdfast.model.rows import BY_TYPE, COMMAND, Newest
from holdfast.state import EndedRowChanged, LeadershipLost, Snapshot, Store, StoreFailed
from holdfast.state import store as store_room

BATCH_ROWS = 40
"""Rows in one batch of the writer that is killed: enough for a torn batch to show."""


def a_job(number: int, owner: str = "ada", name: str = "", phase: JobPhase = JobPhase.QUEUED) -> Job:
    return Job(
        id=JobId(f"job_{number:014d}"),
        owner=Owner(owner),
        spec=JobSpec(argv=("echo", str(number)), name=name),
        spec_hash=f"{number:064x}",
        submitted_ms=Instant(1_000 + number),
        phase=phase,
    )


def an_attempt(job: Job, number: int, phase: AttemptPhase = AttemptPhase.OFFERED) -> Attempt:
    return Attempt(
        id=AttemptId(f"att_{job.id[4:]}.{number}"),
        job=job.id,
        node=NodeId("node_a"),
        fence=number,
        offered_ms=Instant(2_000 + number),
        phase=phase,
    )


def a_node(name: str, state: NodeState = NodeState.READY) -> Node:
    return Node(
        id=NodeId(f"node_{name}"),
        public_key="ab" * 32,
        version="1.0.0",
        hardware=Hardware(),
        joined_ms=Instant(1),
        state=state,
    )


def a_token(name: str, revoked: bool = False) -> JoinToken:
    return JoinToken(
        id=TokenId(f"tok_{name}"),
        secret_sha256="cd" * 32,
        made_ms=Instant(1),
        expires_ms=Instant(2),
        uses_left=-1,
        revoked=revoked,
    )


def an_entry(seq: int, job: str | None = None, node: str | None = None) -> Entry:
    return Entry(
        seq=seq,
        at_ms=Instant(seq),
        kind="job.queued",
        text=f"thing {seq} happened",
        job=None if job is None else JobId(job),
        node=None if node is None else NodeId(node),
    )


def keep_paces(monkeypatch: pytest.MonkeyPatch, most: int, commands_most: int) -> None:
    """Limit how many duration histories are kept, and how many of those that are keyed by a command alone."""
    newest = Newest(most, COMMAND, commands_most)
    monkeypatch.setitem(BY_TYPE, DurationHistory, msgspec.structs.replace(BY_TYPE[DurationHistory], newest=newest))


def _full_rows() -> tuple[Job, Attempt, Node, JoinToken, Entry, Meta]:
    """One row of each type with every optional part filled in."""
    job = msgspec.structs.replace(
        a_job(1, owner="Ада\0", name="naïve \0 模型"),
        spec=JobSpec(
            argv=("sh", "-c", 'echo "ü\n"'),
            name="naïve \0 模型",
            env={"KEY": "wert"},
            recovery=Recovery.NEVER,
        ),
        phase=JobPhase.ENDED,
        avoid=(NodeId("node_a"), NodeId("node_b")),
        accepted=AttemptId("att_x.1"),
        result=Result(stdout_sha256="ef" * 32, stdout_bytes=2**53),
        verdict=Verdict.FAILED,
        failure=Failure(FailureCode.EXIT_CODE, "said no", exit_code=3),
        ended_ms=Instant(2**62),
        waiting="a machine with room",
        wait_reason=WaitReason.ROOM,
    )
    attempt = msgspec.structs.replace(
        an_attempt(job, 1, AttemptPhase.ENDED),
        go=True,
        started_ms=Instant(5),
        straggling="no progress",
        straggle=StraggleKind.STALLED,
        revoked=Failure(FailureCode.SUPERSEDED),
        revoke_cause=RevokeCause.OTHER_WON,
        failure=Failure(FailureCode.OOM_JOB, signal=9),
        ended_ms=Instant(6),
    )
    node = msgspec.structs.replace(
        a_node("a", NodeState.QUARANTINED),
        hardware=Hardware(total=Resources(4000, 8192, 100, 1), gpus=(Gpu("H200", 143_000, "570"),)),
        cause="three faults in a row",
        cause_code=NodeCause.FAULTS,
        draining=True,
        leaving=True,
        pause_cause=PauseCause.STATED,
        strikes=3,
    )
    token = msgspec.structs.replace(a_token("a", revoked=True), uses_left=3, note="for the lab")
    entry = msgspec.structs.replace(
        an_entry(1, job.id, node.id), attempt=attempt.id, facts=Facts(label="naïve \0 模型", ms=7)
    )
    meta = Meta(epoch=1, entry_seq=1, fence=2**40, draws=7, seed=2**63 - 1, late_ms=8, now_ms=Instant(9))
    return job, attempt, node, token, entry, meta


class OpenStore:
    """An open store, and the epoch of whoever leads. Subclass it, and provide the fixture `store_url`."""

    @pytest.fixture
    def store(self, store_url: str) -> Iterator[Store]:
        store = Store.open(store_url)
        yield store
        store.close()

    @pytest.fixture
    def epoch(self, store: Store) -> int:
        return store.take_lead("first")


class StoreConformance(OpenStore):
    """Subclass it, and provide the fixture `store_url`."""

    # --- writing ---

    @pytest.mark.spec("J14")
    def test_every_row_comes_back_as_it_was(self, store_url: str, store: Store, epoch: int) -> None:
        job, attempt, node, token, entry, meta = _full_rows()

        store.commit([entry, meta, token, node, attempt, job], epoch)

        again = Store.open(store_url)
        try:
            assert again.job(job.id) == job
            assert again.attempts(job.id) == [attempt]
            assert again.node(node.id) == node and again.nodes() == [node]
            assert again.token(token.id) == token and again.tokens() == [token]
            assert again.entries() == [entry]
            assert again.meta() == meta and again.load_live().meta == meta
            assert again.jobs_by_name(job.owner, job.spec.name) == [job]
        finally:
            again.close()

    @pytest.mark.spec("J14", "J9")
    def test_what_jobs_of_a_kind_took_is_loaded_newest_first(self, store: Store, epoch: int) -> None:
        store.commit([DurationHistory("name_a", 3, (10, 20)), DurationHistory("arr_b", 5, (7,))], epoch)
        store.commit([DurationHistory("name_a", 9, (10, 20, 30))], epoch)

        assert store.load_live().paces == (
            DurationHistory("name_a", 9, (10, 20, 30)),
            DurationHistory("arr_b", 5, (7,)),
        )

    @pytest.mark.spec("J14", "J9")
    def test_of_too_many_kinds_the_newest_are_loaded_and_the_others_removed(
        self, store: Store, epoch: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Given a store that loads at most three job kinds and two commands
        keep_paces(monkeypatch, 3, 2)
        rows = [
            DurationHistory(id, seq, (7,))
            for seq in (2, 3, 1)
            for id in (f"name_z{seq}", f"arr_{seq}", f"command_{seq}")
        ]
        newest = ["name_z3", "arr_3", "name_z2", "command_3", "command_2"]

        # When more are written, then those with the highest numbers are loaded, and among equal numbers the higher ids
        store.commit(rows, epoch)
        assert [pace.id for pace in store.load_live().paces] == newest

        # When enough commits have followed, then the others are removed, however many would be loaded
        monkeypatch.setattr(store_room, "FORGET_EVERY", 2)
        store.commit([DurationHistory("name_z3", 4, (7, 8)), DurationHistory("command_3", 4, (7, 8))], epoch)
        keep_paces(monkeypatch, 100, 100)
        assert [pace.id for pace in store.load_live().paces] == newest

        # When an orchestrator that no longer leads tries to remove some, then it removes nothing
        store.take_lead("another")
        keep_paces(monkeypatch, 1, 100)
        store._forget_oldest(DurationHistory, epoch)
        keep_paces(monkeypatch, 100, 100)
        assert [pace.id for pace in store.load_live().paces] == newest

    @pytest.mark.spec("J14")
    def test_an_empty_store_has_nothing_and_says_so(self, store: Store) -> None:
        live = store.load_live()

        assert (live.jobs, live.attempts, live.nodes, live.tokens, live.meta) == ((), (), (), (), None)
        assert store.job("job_x") is None and store.node("node_x") is None
        assert store.token("tok_x") is None and store.meta() is None
        assert store.jobs() == [] and store.entries() == [] and store.last_seq() == 0

    @pytest.mark.spec("J14")
    def test_a_row_replaces_the_one_with_its_key(self, store: Store, epoch: int) -> None:
        queued, running = a_job(1), a_job(1, phase=JobPhase.RUNNING)
        ended = msgspec.structs.replace(running, phase=JobPhase.ENDED, ended_ms=Instant(9))

        store.commit([queued, Meta(fence=1)], epoch)
        store.commit([running, ended, Meta(fence=2)], epoch)  # the last version in a batch counts

        assert store.jobs() == [ended]
        assert store.load_live().jobs == ()
        assert store.load_live().meta == Meta(fence=2)

    @pytest.mark.spec("J14", "H4")
    def test_a_batch_with_one_bad_row_writes_nothing(self, store: Store, epoch: int) -> None:
        store.commit([an_entry(1)], epoch)
        rows: list[Row] = [a_job(1), an_entry(2), Meta(entry_seq=2), an_entry(1), a_node("a")]

        with pytest.raises(StoreFailed):
            store.commit(rows, epoch)

        assert store.load_live() == Snapshot()
        assert store.entries() == [an_entry(1)]
        store.commit([a_job(1), an_entry(2)], epoch)
        assert store.last_seq() == 2

    @pytest.mark.spec("J14")
    def test_a_row_that_cannot_be_encoded_writes_nothing(self, store: Store, epoch: int) -> None:
        broken = msgspec.structs.replace(a_job(2), waiting="\ud800")

        with pytest.raises(UnicodeEncodeError):
            store.commit([a_job(1), broken], epoch)

        assert store.jobs() == []

    @pytest.mark.spec("H4")
    def test_an_entry_once_written_is_never_changed(self, store: Store, epoch: int) -> None:
        store.commit([an_entry(1)], epoch)
        forged = msgspec.structs.replace(an_entry(1), text="nothing happened")

        with pytest.raises(StoreFailed):
            store.commit([forged], epoch)

        assert store.entries() == [an_entry(1)]

    @pytest.mark.spec("J7", "J14")
    def test_a_job_or_an_attempt_that_has_ended_never_changes(self, store: Store, epoch: int) -> None:
        job, other = a_job(1, phase=JobPhase.ENDED), a_job(2)
        attempt = an_attempt(job, 1, AttemptPhase.ENDED)
        store.commit([job, attempt, other], epoch)
        jobs = [a_job(1), msgspec.structs.replace(job, verdict=Verdict.FAILED)]
        attempts = [an_attempt(job, 1), msgspec.structs.replace(attempt, go=True)]

        for changed in (*jobs, *attempts):
            with pytest.raises(EndedRowChanged, match=changed.id) as refused:
                store.commit([a_job(2, phase=JobPhase.RUNNING), an_entry(1), changed, Meta(fence=1)], epoch)
            assert refused.value.rows == ((job,) if changed in jobs else (attempt,))

        assert store.jobs() == [other, job] and store.attempts(job.id) == [attempt]
        assert store.last_seq() == 0 and store.meta() is None
        store.commit([job, attempt, an_entry(1)], epoch)  # the same version is no change
        with pytest.raises(StoreFailed):
            store.commit([job, an_entry(1)], epoch)
        store.take_lead("another")
        with pytest.raises(LeadershipLost):
            store.commit([*jobs, *attempts], epoch)

    # --- leading ---

    @pytest.mark.spec("J5", "A9")
    def test_only_the_last_to_take_the_lead_can_commit(self, store_url: str, store: Store) -> None:
        first = store.take_lead("first")
        store.commit([a_job(1)], first)
        rival = Store.open(store_url)
        try:
            second = rival.take_lead("second")
            assert second > first

            with pytest.raises(LeadershipLost, match="second"):
                store.commit([a_job(1, phase=JobPhase.ENDED), a_job(2), an_entry(1)], first)
            with pytest.raises(LeadershipLost):
                store.commit([], first)

            assert store.jobs() == [a_job(1)]
            assert store.last_seq() == 0
            rival.commit([a_job(2)], second)
            assert store.jobs() == [a_job(2), a_job(1)]
        finally:
            rival.close()

    @pytest.mark.spec("A9")
    def test_epochs_grow_over_restarts(self, store_url: str, store: Store) -> None:
        first = store.take_lead("a")
        store.close()

        again = Store.open(store_url)
        try:
            assert again.take_lead("a") == first + 1
        finally:
            again.close()

    @pytest.mark.spec("A9")
    def test_of_many_who_take_the_lead_at_once_each_gets_its_own_epoch(self, store_url: str) -> None:
        got: list[int] = []

        def run(name: str) -> None:
            contender = Store.open(store_url)
            try:
                got.extend(contender.take_lead(name) for _ in range(5))
            finally:
                contender.close()

        contenders = [threading.Thread(target=run, args=(f"c{i}",)) for i in range(4)]
        for contender in contenders:
            contender.start()
        for contender in contenders:
            contender.join()

        assert sorted(got) == list(range(1, 21))

    # --- loading what is alive ---

    @pytest.mark.spec("J14")
    def test_what_is_over_is_not_loaded_and_the_rest_is_sorted_by_id(self, store: Store, epoch: int) -> None:
        jobs = [a_job(i, phase=phase) for i, phase in enumerate(JobPhase)]
        attempts = [an_attempt(jobs[0], i, phase) for i, phase in enumerate(AttemptPhase, start=8)]
        nodes = [a_node(state.value, state) for state in NodeState]
        tokens = [a_token("b"), a_token("a"), a_token("c", revoked=True)]

        store.commit([*reversed(jobs), *attempts, *nodes, *tokens], epoch)

        live = store.load_live()
        assert list(live.jobs) == [j for j in jobs if j.live]
        assert list(live.attempts) == sorted((a for a in attempts if a.live), key=lambda a: a.id)
        assert list(live.nodes) == sorted(nodes, key=lambda n: n.id), "a node that is gone keeps its id for its key"
        assert [t.id for t in live.tokens] == ["tok_a", "tok_b", "tok_c"], "a revoked token stays known as revoked"
        assert len(store.nodes()) == len(NodeState) and len(store.tokens()) == 3

    # --- queries ---

    @pytest.mark.spec("J3")
    def test_jobs_are_listed_newest_first_page_by_page(self, store: Store, epoch: int) -> None:
        same_moment = [msgspec.structs.replace(a_job(i), submitted_ms=Instant(500)) for i in range(5)]
        others = [a_job(i, owner="bob" if i % 2 else "ada") for i in range(5, 25)]
        store.commit([*same_moment, *others], epoch)
        expected = sorted([*same_moment, *others], key=lambda j: (j.submitted_ms, j.id), reverse=True)

        seen: list[Job] = []
        while page := store.jobs(limit=4, after=seen[-1].id if seen else None):
            assert len(page) <= 4
            seen += page

        assert seen == expected
        assert store.jobs(owner="bob", limit=3) == [j for j in expected if j.owner == "bob"][:3]
        assert store.jobs(owner="bob", after=expected[0].id) == [j for j in expected[1:] if j.owner == "bob"]
        assert store.jobs(after="job_unknown") == []

    @pytest.mark.spec("J12", "J16")
    def test_an_array_bears_its_name_once_and_not_for_those_that_ended(self, store: Store, epoch: int) -> None:
        jobs = [a_job(n, name="train", phase=JobPhase.ENDED if n == 1 else JobPhase.QUEUED) for n in range(5)]
        of_array = [msgspec.structs.replace(job.spec, array=ArrayId("arr_1"), item=job.submitted_ms) for job in jobs]
        items = [msgspec.structs.replace(job, spec=spec) for job, spec in zip(jobs, of_array, strict=True)]
        store.commit([*items[:3], *jobs[3:]], epoch)

        assert store.live_named("ada", "train") == ["arr_1", jobs[3].id, jobs[4].id]
        assert store.live_named("ada", "train", 2) == ["arr_1", jobs[3].id]
        assert store.jobs_by_name("ada", "train", live=True) == [jobs[4], jobs[3], items[2], items[0]]

    @pytest.mark.spec("J3")
    def test_jobs_are_found_by_phase_and_by_name(self, store: Store, epoch: int) -> None:
        running, ended = JobPhase.RUNNING, JobPhase.ENDED
        mine = [
            a_job(1, name="train", phase=ended),
            a_job(2, name="train", phase=running),
            a_job(3, phase=running),
        ]
        theirs = [a_job(4, owner="bob", name="train", phase=running)]
        store.commit([*mine, *theirs], epoch)

        assert store.jobs_by_name("ada", "train") == [mine[1], mine[0]]
        assert store.jobs_by_name("ada", "") == []
        assert store.live_named("ada", "train") == [mine[1].id]
        assert store.live_named("ada", "") == []
        assert store.jobs(phase=running) == [theirs[0], mine[2], mine[1]]
        assert store.jobs(owner="ada", phase=running) == [mine[2], mine[1]]
        assert store.jobs(phase=ended) == [mine[0]]
        assert store.jobs(phase="no such phase") == []

    @pytest.mark.spec("J3")
    def test_the_beginning_of_an_id_finds_it_and_is_no_pattern(self, store: Store, epoch: int) -> None:
        jobs = [msgspec.structs.replace(a_job(i), id=JobId(f"job_{x}")) for i, x in enumerate(("a1", "a2", "b1", "B1"))]
        store.commit([*jobs, a_node("a1"), a_node("b%")], epoch)

        assert store.job_ids_by_prefix("job_a", 10) == ["job_a1", "job_a2"]
        assert store.job_ids_by_prefix("job_a", 1) == ["job_a1"]
        assert store.job_ids_by_prefix("job_b1", 10) == ["job_b1"]
        assert store.job_ids_by_prefix("job_", 10) == ["job_B1", "job_a1", "job_a2", "job_b1"]
        assert store.node_ids_by_prefix("node_", 10) == ["node_a1", "node_b%"]
        for hostile in (
            "job_%",
            "job__1",
            "%",
            "'; DROP TABLE jobs; --",
            "job_\0",
            "\ud800",
            "job_\U0010ffff",
        ):
            assert store.job_ids_by_prefix(hostile, 10) == []
            assert store.job(hostile) is None and store.node(hostile) is None

    @pytest.mark.spec("J3")
    def test_many_jobs_are_found_by_their_ids_at_once(self, store: Store, epoch: int) -> None:
        jobs = [a_job(i) for i in range(1500)]
        store.commit(jobs, epoch)

        found = store.jobs_by_ids([*(job.id for job in jobs[:1000]), "job_unknown", "\0", jobs[0].id])

        assert sorted(found, key=lambda job: job.id) == jobs[:1000]
        assert store.jobs_by_ids([]) == []

    @pytest.mark.spec("J5")
    def test_attempts_of_a_job_come_in_the_order_they_were_made(self, store: Store, epoch: int) -> None:
        job, other = a_job(1), a_job(2)
        made = [an_attempt(job, i) for i in range(1, 13)]
        store.commit([job, other, *reversed(made), an_attempt(other, 13)], epoch)

        assert store.attempts(job.id) == made
        assert store.attempts("job_unknown") == []
        assert store.attempts_of_jobs([other.id, "job_unknown", job.id]) == [*made, an_attempt(other, 13)]
        assert store.attempts_of_jobs([other.id]) == [an_attempt(other, 13)]
        assert store.attempts_of_jobs([]) == []

    @pytest.mark.spec("H4", "J3")
    def test_the_journal_reads_in_order_from_any_point(self, store: Store, epoch: int) -> None:
        job, node = a_job(1).id, a_node("a").id
        entries = [an_entry(i, job if i % 2 else None, node if i % 3 == 0 else None) for i in range(1, 31)]
        store.commit(list(reversed(entries[:10])), epoch)
        store.commit(entries[10:], epoch)

        assert store.entries() == entries
        assert store.entries(after_seq=28) == entries[28:]
        assert store.entries(after_seq=5, limit=3) == entries[5:8]
        assert store.entries(job=job) == [e for e in entries if e.job]
        assert store.entries(after_seq=9, node=node, limit=2) == [entries[11], entries[14]]
        assert store.entries(job=job, node=node) == [e for e in entries if e.job and e.node]
        assert store.last_seq() == 30
        assert store.entries(after_seq=2**80) == [] and store.entries(after_seq=-5, limit=1) == entries[:1]
        assert store.entries(limit=-1) == []

    # --- concurrency ---

    @pytest.mark.spec("J14")
    def test_readers_see_whole_batches_only_while_a_writer_writes(self, store: Store, epoch: int) -> None:
        batches = 60
        store.commit(_generation(0), epoch)
        wrong: list[str] = []
        seen: set[int] = set()
        stop, read = threading.Event(), threading.Event()

        def watch() -> None:
            while not wrong and not stop.is_set():
                live = store.load_live()
                generations = {job.attempts_made for job in live.jobs}
                if live.meta is None or generations != {live.meta.fence} or len(live.jobs) != BATCH_ROWS:
                    wrong.append(f"torn: {generations} under {live.meta}")
                if store.last_seq() % BATCH_ROWS:
                    wrong.append(f"half a batch: {store.last_seq()}")
                seen.update(generations)
                read.set()
                if batches in generations:
                    return

        readers = [threading.Thread(target=watch) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for generation in range(1, batches + 1):
                third = batches // 3
                while generation in (third, 2 * third) and max(seen, default=0) <= generation - third and not wrong:
                    assert read.wait(60), "nobody reads while the writer writes"
                    read.clear()
                store.commit(_generation(generation), epoch)
            for reader in readers:
                reader.join(60)
        finally:
            stop.set()

        assert wrong == []
        assert batches in seen
        assert len(seen) > 2, "nobody read while the writer wrote"

    @pytest.mark.spec("J14")
    @pytest.mark.parametrize("acknowledged", [1, 7, 23])
    def test_a_killed_writer_loses_nothing_it_acknowledged_and_leaves_no_half_batch(
        self, store_url: str, store: Store, acknowledged: int
    ) -> None:
        # When a writing process is killed right after it reported that a batch is durable
        command = [sys.executable, "-m", "holdfast.testing.store", store_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            heard = [int(writer.stdout.readline()) for _ in range(acknowledged)]
            writer.kill()
            heard += [int(line) for line in writer.stdout]

        # Then every batch that it reported is there, at most one more, and each of them is complete
        again = Store.open(store_url)
        try:
            epoch = again.take_lead("the next")  # also waits for the dead writer's last commit
            last = again.last_seq()
            whole, rest = divmod(last, BATCH_ROWS)
            assert rest == 0
            assert heard[-1] <= whole <= heard[-1] + 1
            assert [e.seq for e in again.entries(limit=last)] == list(range(1, last + 1))
            live = again.load_live()
            assert live.meta is not None and live.meta.fence == whole
            assert {job.attempts_made for job in live.jobs} == {whole} and len(live.jobs) == BATCH_ROWS
            again.commit(_generation(whole + 1), epoch)
        finally:
            again.close()


def _generation(number: int) -> Sequence[Row]:
    """A batch that belongs together: the same jobs each time, marked with its number, and new journal entries."""
    jobs = [msgspec.structs.replace(a_job(i), attempts_made=number) for i in range(BATCH_ROWS)]
    first = (number - 1) * BATCH_ROWS
    entries = [an_entry(first + i, jobs[0].id) for i in range(1, BATCH_ROWS + 1)] if number else []
    return [*jobs, *entries, Meta(fence=number)]


def write_until_killed(url: str) -> None:
    store = Store.open(url)
    epoch = store.take_lead(Path(sys.argv[0]).name)
    number = 0
    while True:
        number += 1
        store.commit(_generation(number), epoch)
        print(number, flush=True)


if __name__ == "__main__":
    write_until_killed(sys.argv[1])
