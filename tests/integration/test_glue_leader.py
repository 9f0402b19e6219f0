"""What a leader owes to the parts around it: when the lead is lost, when it is taken, and between two commits."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from glue_house import STEADY, HandNode, House, folder_of, story

from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.errors import Misconfigured
from holdfast.kernel.events import NodeSaid
from holdfast.model import AttemptId, Job, NodeId
from holdfast.model.messages import HeldPhase, Pong, Start
from holdfast.orchestrator import serve
from holdfast.orchestrator.content import sweep
from holdfast.orchestrator.content.sweep import Sweeper
from holdfast.orchestrator.content.uploaders import attempt_uploader
from holdfast.orchestrator.leader import loop
from holdfast.orchestrator.leader.loop import Unavailable
from holdfast.orchestrator.logs import log_files as logs_module
from holdfast.orchestrator.logs import log_retention
from holdfast.orchestrator.logs.log_files import LogRefused, LogStore
from holdfast.orchestrator.nodes.link_service import NodeLinkService
from holdfast.state import LeadershipLost, Store
from holdfast.wire.convert import LogPiece

FIRST, SECOND = AttemptId("att_00000000000000.1"), AttemptId("att_00000000000001.1")


# --- the lead is lost ---


@pytest.mark.spec("J14")
def test_with_the_lead_all_sessions_end_and_what_runs_is_known_to_the_next(tmp_path: Path) -> None:
    """Given a job that runs, when the lead is lost and taken again, then its node has to dial again, and the views of
    the new lead show where the job runs before anybody said anything."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work")
        start = await node.started(job)
        await house.lose_the_lead()
        assert node.session.closed.is_set() and node.session.by_us
        await shown(house)
        assert start.attempt in {attempt.id for attempt in house.fleet.attempts_of(house.job(job))}

    async def shown(house: House) -> None:
        (listed,) = (await house.people.get("/v1/jobs")).json()["jobs"]
        (attempt,) = house.store.attempts(listed["id"])
        assert listed["node"] == attempt.node

    story(tmp_path, tells)
    story(tmp_path, shown)  # by another process, on the same data


@pytest.mark.spec("J14")
def test_whoever_waits_is_told_when_the_lead_is_lost(tmp_path: Path) -> None:
    """Askers and those who wait for a quiet moment: none of them waits for a kernel that is gone."""

    async def tells(house: House) -> None:
        commit, gate = house.store.commit, threading.Event()

        def failing(*_: Any) -> None:
            gate.wait(20)
            house.store.commit = commit
            raise OSError("no disk in this moment")

        house.store.commit = failing
        asking = asyncio.create_task(house.people.post("/v1/tokens", json={"ttl_ms": 60_000}))
        await house.until(lambda: house.leader.core.committing, "the commit")
        looking = asyncio.create_task(house.leader.at_quiet_moment(lambda kernel: None, timeout_s=20))
        await asyncio.wait({looking}, timeout=0.02)
        gate.set()
        answer = await asyncio.wait_for(asking, 5)
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        with pytest.raises(Unavailable):
            await asyncio.wait_for(looking, 5)

    story(tmp_path, tells)


@pytest.mark.spec("J7", "J13", "J14")
def test_a_refused_commit_ends_the_lead_once_and_the_next_lead_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job of class `never` that has ended, and a front that does not find it, when it is submitted again and
    again, then the store refuses once, nothing is sent to a node, and from then on the kernel knows the job."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work", key="k", recovery="never")
        await house.people.post(f"/v1/jobs/{job}/stop")
        over = await house.ended(job)
        await house.lose_the_lead()
        await node.join()
        await house.until(lambda: not any(a.live for a in house.store.attempts(job)), "the end of its attempt")
        await house.lose_the_lead()
        await node.join()
        epoch, before, heard = house.leader.epoch, house.store.attempts(job), len(node.listen())
        known_jobs, looks = house.reading.known_jobs, 0

        async def blind_at_first(ids: Any) -> dict[str, Any]:
            nonlocal looks
            looks += 1
            return {} if looks == 1 else await known_jobs(ids)

        monkeypatch.setattr(house.reading, "known_jobs", blind_at_first)
        body = {"argv": ["work"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16, "recovery": "never"}
        asked = {"json": body, "headers": {"X-Holdfast-Owner": "ann", "Idempotency-Key": "k"}}
        first = await house.people.post("/v1/jobs", **asked)
        assert (first.status_code, first.json()["code"]) == (503, "store_unavailable"), first.text
        await house.until(lambda: house.leader.epoch > epoch and not house.leader.trouble, "a new lead")
        for _ in range(3):
            looks = 0
            again = await house.people.post("/v1/jobs", **asked)
            assert (again.status_code, looks) == (201, 2), again.text
            assert (again.json()["id"], again.json()["again"], again.json()["verdict"]) == (job, True, "cancelled")
        looks = 0
        other = await house.people.post("/v1/jobs", **{**asked, "json": {**body, "argv": ["other"]}})
        assert other.json()["code"] == "key_reused"

        assert house.leader.epoch == epoch + 1
        assert house.job(job) == over and house.store.attempts(job) == before
        assert not any(isinstance(message, Start) for message in node.listen()[heard:])

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_who_is_deposed_does_not_take_the_lead_back(tmp_path: Path) -> None:
    """Two orchestrators that deposed each other in turns would decide nothing, for ever."""

    async def tells(house: House) -> None:
        newer = Store.open(house.built._config.store_url())
        epoch = newer.take_lead("another")
        answer = await house.people.post("/v1/tokens", json={"ttl_ms": 60_000})
        assert answer.status_code == 503 and not house.store.tokens()
        done, _ = await asyncio.wait({house._running[0]}, timeout=10)
        (ended,) = done
        assert isinstance(ended.exception(), LeadershipLost)
        assert newer.take_lead("another") == epoch + 1
        newer.close()

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_between_two_leads_nothing_is_told_to_the_kernel_that_was_dropped(tmp_path: Path) -> None:
    """Whatever it would be told is lost with it: a node whose word was taken would never say it again."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        take_lead, tried = house.store.take_lead, 0

        def failing(holder: str) -> int:
            nonlocal tried
            tried += 1
            raise OSError("no disk in this moment")

        house.store.take_lead = failing
        with pytest.raises(AssertionError):
            await asyncio.wait_for(house.submit(*await _no_commit(house)), 20)
        await house.until(lambda: tried, "a try to lead again")
        with pytest.raises(Unavailable):
            house.leader.tell(NodeSaid(node.session.number, node.id, Pong(1)))
        house.store.take_lead = take_lead
        await house.until(lambda: not house.leader.trouble, "a new lead")

    story(tmp_path, tells)


async def _no_commit(house: House) -> list[str]:
    """The next commit fails."""
    commit = house.store.commit

    def failing(*_: Any) -> None:
        house.store.commit = commit
        raise OSError("no disk in this moment")

    house.store.commit = failing
    return ["work"]


@pytest.mark.spec("J1", "J14")
@pytest.mark.parametrize("ends", ["another epoch", "trouble", "frozen"])
def test_a_round_of_deletions_ends_with_the_lead_that_decided_it(tmp_path: Path, ends: str) -> None:
    """Given a round that was written down, when the lead is lost before its keys are deleted, then none is deleted: the
    next lead may have pledged them."""

    async def tells(house: House) -> None:
        sweeper = Sweeper(house.content, house.store, house.leader)
        allowed: list[bool] = []

        async def deleting(keys: Any, may: Any, lasts_s: int) -> None:
            allowed.append(may())
            match ends:
                case "another epoch":
                    await house.lose_the_lead()
                case "trouble":
                    house.leader.trouble = "no disk in this moment"
                case _:
                    house.content.collector.may_delete = lambda now_ms: False
            allowed.append(may())
            house.leader.trouble = ""

        house.content.store.delete_while = deleting  # pyright: ignore[reportAttributeAccessIssue]
        collector = house.content.collector
        collector.may_delete = lambda now_ms: True
        epoch = house.leader.epoch
        with contextlib.suppress(LeadershipLost):
            await sweeper._delete(collector, epoch, ["incoming/x/y"])
        assert allowed == [True, False]

    story(tmp_path, tells)


@pytest.mark.spec("J1", "J14")
def test_a_note_of_an_earlier_lead_is_not_written(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        epoch = house.leader.epoch
        await house.lose_the_lead()
        with pytest.raises(LeadershipLost):
            await house.leader.leave_note("deleting", '["mine"]', epoch)
        assert house.store.load_live().notes == {}

    story(tmp_path, tells)


# --- the lead is taken ---


@pytest.mark.spec("J1", "J14")
def test_a_new_lead_knows_what_the_one_before_may_still_delete(tmp_path: Path) -> None:
    """Given a note of keys that are being deleted, when another process takes the lead, then nobody is told that these
    files are there; and pledges of an earlier lead are worth nothing."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        start = await node.started(await house.submit("make"))
        name = await node.sends(start, folder_of(tmp_path / "made", a="1"))
        assert not (await house.content.take("ann", attempt_uploader(node.row(start), 16), name)).missing
        assert house.content.may_name("ann", [name])
        # another one led in between, and left a note
        key = owned_key(owner_hash("ann"), name)
        house.store.write_note("deleting", msgspec.json.encode([key]).decode(), house.store.take_lead("another"))
        house._running[0].cancel()
        await asyncio.gather(house._running[0], return_exceptions=True)
        house.leader.led.clear()
        house._running[0] = asyncio.create_task(house.leader.run())
        await asyncio.wait_for(house.leader.led.wait(), 20)
        assert not house.content.may_name("ann", [name]) and not await house.content.whole("ann", name)

    story(tmp_path, tells)


# --- while it leads ---


@pytest.mark.spec("H2", "H6")
def test_the_kernel_is_told_of_lateness_before_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a loop that stood still for half a minute, when a node is heard again, then all deadlines have moved."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        await node.started(await house.submit("work"))
        at = house.leader.moment()
        later_ms = at.boot_ms + STEADY.late_tolerance_ms + 30_000
        monkeypatch.setattr(house.leader, "moment", lambda: at._replace(boot_ms=later_ms))
        house.leader.tell(NodeSaid(node.session.number, node.id, Pong(1)))
        await house.leader.at_quiet_moment(lambda kernel: None)
        meta = house.store.meta()
        assert meta is not None and meta.late_ms >= 29_000
        assert [entry.kind for entry in house.store.entries()].count("orchestrator.late") == 1

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_a_store_that_hangs_does_not_hang_its_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tells(house: House) -> None:
        monkeypatch.setattr(loop, "ANSWER_S_MAX", 0.2)
        commit, gate = house.store.commit, threading.Event()

        def hanging(rows: Any, epoch: int) -> None:
            gate.wait(20)
            commit(rows, epoch)

        house.store.commit = hanging
        try:
            answer = await asyncio.wait_for(house.people.post("/v1/tokens", json={"ttl_ms": 60_000}), 10)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        finally:
            gate.set()

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_a_word_that_cannot_be_sent_undoes_nothing(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        epoch, tell = house.leader.epoch, house.sessions.tell

        def failing(send: Any) -> None:
            house.sessions.tell = tell
            raise RuntimeError("no such word")

        house.sessions.tell = failing
        job = await house.submit("work")
        await house.until(lambda: house.sessions.tell == tell, "the send")
        assert house.leader.epoch == epoch and not house.leader.trouble and house.job(job).live
        # what it said is derived again
        await house.until(lambda: (node.report(), node.listen())[1], "the start, said again")

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_one_store_file_has_one_orchestrator(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with serve._alone(url), pytest.raises(Misconfigured) as second, serve._alone(url):
        pass
    assert second.value.code == "already_running" and str(os.getpid()) in second.value.says
    with serve._alone(url):  # and the next one may, once the first is gone
        pass


# --- logs on the disk ---


def piece(attempt: AttemptId, data: bytes, offset: int = 0) -> LogPiece:
    return LogPiece(attempt, 1, "stdout", offset, data)


@pytest.mark.spec("J4", "J14")
def test_no_log_is_acknowledged_before_its_file_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[int, int] = {}
    sync = os.fdatasync

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", noting)
    monkeypatch.setattr(logs_module, "OPEN_FILES_MAX", 1)  # also of a file that had to be closed meanwhile
    logs = LogStore(tmp_path / "logs", bytes_max=1000)
    assert logs.append([piece(FIRST, b"abc"), piece(SECOND, b"defg"), piece(FIRST, b"hi", 3)]) == [3, 4, 5]
    sizes = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "logs").rglob("*.stdout")}
    assert sorted(sizes.values()) == [4, 5] and synced == sizes
    logs.close()


@pytest.mark.spec("J4")
def test_every_seal_holds_and_there_is_a_bound_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "SEALS_MAX", 2)
    logs = LogStore(tmp_path / "logs", bytes_max=1000)
    for attempt in (FIRST, SECOND):
        logs.seal(attempt)
    assert all(isinstance(found, LogRefused) for found in logs.append([piece(FIRST, b"x"), piece(SECOND, b"x")]))
    logs.seal("att_00000000000002.1")
    assert len(logs._sealed) == 2 and isinstance(logs.append([piece(SECOND, b"x")])[0], LogRefused)
    logs.close()


@pytest.mark.spec("J14", "J4")
def test_logs_leave_room_on_the_disk_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LogStore(tmp_path / "logs", bytes_max=1000)
    assert logs.append([piece(FIRST, b"x")]) == [1]
    found = list(os.statvfs(tmp_path))
    found[4] = logs_module.DISK_RESERVE_BYTES // found[1] // 2  # f_bavail
    monkeypatch.setattr(logs_module.os, "statvfs", lambda _: os.statvfs_result(found))
    with pytest.raises(OSError, match="MiB are left"):
        logs.append([piece(FIRST, b"y", 1)])
    assert logs.size(FIRST, "stdout") == 1
    logs.close()


# --- what clears away does so only while it leads ---


@pytest.mark.spec("J1", "J14")
def test_nothing_is_cleared_away_by_who_does_not_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither output of jobs nor files: another process may lead, and know what is still needed."""
    monkeypatch.setattr(log_retention, "CLEAR_S", 0.001)
    monkeypatch.setattr(sweep, "BEAT_S", 0.001)
    monkeypatch.setattr(sweep, "SWEEP_S", 0.0)

    async def tells(house: House) -> None:
        looked: list[str] = []
        asked = 0
        sweeper = Sweeper(house.content, house.store, house.leader)

        async def clear() -> int:
            looked.append("shelf")
            return 0

        async def swept() -> int:
            looked.append("sweep")
            return 0

        def leads() -> bool:
            nonlocal asked
            asked += 1
            return not house.leader.trouble

        house.shelf.clear, sweeper.sweep = clear, swept
        house.leader.trouble = "another leads"
        tasks = [asyncio.create_task(house.shelf.run(leads)), asyncio.create_task(sweeper.run())]
        await house.until(lambda: asked >= 20 or looked, "twenty rounds")
        assert looked == []
        house.leader.trouble = ""
        await house.until(lambda: {"shelf", "sweep"} <= set(looked), "both to go on once it leads")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    story(tmp_path, tells)


@pytest.mark.spec("J4")
def test_output_that_somebody_reads_and_output_of_what_lives_is_not_deleted(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        start = await node.started(await house.submit("say"))
        await node.prints(start, b"x")
        house.shelf._keep_ms = 0
        for _ in range(2):  # a first round marks what has ended, a second deletes it
            assert await house.shelf.clear() == 0
        await house.people.post(f"/v1/jobs/{start.job}/stop")
        node.declare(start, HeldPhase.GONE)
        await house.ended(start.job)
        with house.wakeups.listen(start.job):
            for _ in range(2):
                assert await house.shelf.clear() == 0
        assert await house.shelf.clear() == 1 and not house.logs.has(start.job)

    story(tmp_path, tells)


# --- little space ---


@pytest.mark.spec("J14", "A12")
def test_without_space_nothing_new_is_taken_and_what_ends_or_frees_is(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work")
        await node.started(job)
        house.leader.disk_low = lambda growth: "1 MiB is left"
        new: dict[str, dict[str, Any]] = {
            "jobs": {"argv": ["true"]},
            "arrays": {"job": {"argv": ["true"]}, "items": ["x"]},
            "tokens": {},
            "access": {"role": "user", "owner": "ann"},
            f"jobs/{job}/move": {"to": node.id},
        }
        for path, body in new.items():
            answer = await house.people.post(f"/v1/{path}", json=body)
            assert (answer.status_code, answer.json()["says"]) == (503, "1 MiB is left"), path
        assert (await house.people.post(f"/v1/nodes/{node.id}/drain")).status_code < 300
        assert (await house.people.post(f"/v1/jobs/{job}/stop")).status_code < 300
        # and machines that are known may come back, others may not join
        service: Any = SimpleNamespace(_leader=house.leader)
        assert await NodeLinkService._bound_key(service, NodeId(node.id)) == ""
        with pytest.raises(Unavailable, match="1 MiB is left"):
            await NodeLinkService._bound_key(service, NodeId("node_new"))

    story(tmp_path, tells)


@pytest.mark.spec("J14", "A12")
def test_requests_at_the_same_time_need_their_space_together(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        asked: list[int] = []
        house.leader.disk_low = lambda growth: asked.append(growth) or ""
        body = {"argv": ["true"], "env": {"A": "x" * 5_000}}
        await asyncio.gather(*(house.people.post("/v1/jobs", json=body) for _ in range(3)))
        assert len(asked) == 3 and min(asked) > 5_000
        assert max(asked) > 2 * min(asked), "what was not answered yet counts"
        asked.clear()
        await house.people.post("/v1/jobs", json=body)
        assert max(asked) < 10_000, "what was answered does not"

    story(tmp_path, tells)


@pytest.mark.spec("J14", "A12")
def test_while_space_is_short_a_large_request_is_committed_in_small_parts(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        items = [str(number) for number in range(3 * loop.TIGHT_JOBS_MAX)]
        array = (await house.people.post("/v1/arrays", json={"job": {"argv": ["true"]}, "items": items})).json()
        sizes: list[int] = []
        written = house.leader._write

        def noting(batch: Any, epoch: int) -> None:
            sizes.append(sum(isinstance(row, Job) for row in batch.rows.values()))
            written(batch, epoch)

        house.leader._write = noting
        house.leader.core.tight, house.leader.disk_short = True, lambda: True
        stopped = await house.people.post(f"/v1/arrays/{array['id']}/stop")
        assert stopped.json()["counts"] == {"cancelled": len(items)}
        assert 0 < max(sizes) <= loop.TIGHT_JOBS_MAX
        house.leader.disk_short = lambda: False
        await house.submit("more")
        assert not house.leader.core.tight

    story(tmp_path, tells)
