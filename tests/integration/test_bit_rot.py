"""Stored content that changes by itself is named, blamed on the platform and replaced by the next send. It stops nobody
else."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from glue_house import HandNode, House, folder_of, story
from test_glue_node_files_api import owned_by_ann

from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.model import Attempt, Failure, FailureCode, Job, NodeState, Result, Verdict
from holdfast.model.messages import Held, HeldPhase, Start
from holdfast.orchestrator.content import scrub
from holdfast.orchestrator.content.sweep import Sweeper, roots_of


def flipped(path: Path) -> Path:
    """One bit of a file is another one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def file_of(house: House, sha: str) -> Path:
    return house.built._config.data / "blobs" / owned_key(owner_hash("ann"), sha)


async def told(node: HandNode, job: str) -> Start:
    def start() -> Start | None:
        return next((m for m in node.listen() if isinstance(m, Start) and m.job == job), None)

    return await node.house.until(start, f"a start of {job}")


async def says_damaged(node: HandNode, start: Start) -> Attempt:
    failure = Failure(FailureCode.DAMAGED, "it does not have that hash")
    node.held[start.attempt] = Held(start.attempt, start.fence, HeldPhase.FINISHED, None, failure)
    node.report()
    await node.house.until(lambda: node.row(start).failure is not None, "the end of the attempt")
    return node.row(start)


def blame(job: Job) -> tuple[Any, ...]:
    assert job.failure is not None
    meaning = job.failure.meaning
    return job.verdict, job.failure.code, meaning.blame.value, meaning.retryable, meaning.billable


@pytest.mark.spec("J7", "J6")
def test_one_flipped_bit_is_named_and_replaced_by_the_next_send(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        folder = folder_of(tmp_path / "package", a="the program")
        package, blobs, _ = await owned_by_ann(house, folder)
        (sha, size), _ = blobs
        node = await HandNode(house).join()
        job = await house.submit("work", package=package)
        start = await told(node, job)
        # given a bit that flips in the store
        flipped(file_of(house, sha))
        async with node.files() as http, house.acting_for("ann") as people:
            links = await http.post(node.at(start, f"manifests/{package}/links"), json={"blobs": [sha]})
            # when somebody reads it, then the damage is named, and nothing wrong is given out
            answer = await http.get(links.json()["urls"][sha])
            assert (answer.status_code, answer.json()["code"]) == (422, "blob_damaged")
            again = await http.get(links.json()["urls"][sha])
            assert (again.status_code, again.json()["code"]) == (422, "blob_damaged")
            # and the job fails by nobody's fault but the platform's
            await says_damaged(node, start)
            ended = await house.ended(job)
            assert blame(ended) == (Verdict.FAILED, "damaged", "platform", True, False)
            strikes = house.store.node(node.id)
            assert strikes is not None and strikes.strikes == 0
            # and what is damaged counts as missing, so that the next send replaces it
            asked = {"blobs": [[sha, size]]}
            assert (await people.post("/v1/blobs/missing", json=asked)).json()["missing"] == [sha]
            assert (await owned_by_ann(house, folder))[:2] == (package, blobs)
            assert (await people.post("/v1/blobs/missing", json=asked)).json()["missing"] == []
            assert (await http.get(links.json()["urls"][sha])).content == b"the program"

    story(tmp_path, tells)


@pytest.mark.spec("J7", "H3")
def test_a_node_that_calls_sound_files_damaged_is_struck_and_the_job_goes_on(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        package, _, _ = await owned_by_ann(house, folder_of(tmp_path / "package", a="the program"))
        node = await HandNode(house).join()
        job = await house.submit("work", package=package)
        ended = await says_damaged(node, await told(node, job))
        assert ended.failure is not None and ended.failure.code is FailureCode.RUNTIME_FAULT
        row = house.store.node(node.id)
        assert row is not None and row.strikes == 1
        assert house.job(job).live

    story(tmp_path, tells)


@pytest.mark.spec("J7")
def test_a_node_that_read_what_was_replaced_meanwhile_is_not_struck(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        folder = folder_of(tmp_path / "package", a="the program")
        package, blobs, _ = await owned_by_ann(house, folder)
        node = await HandNode(house).join()
        job = await house.submit("work", package=package)
        start = await told(node, job)
        flipped(file_of(house, blobs[0][0]))
        await house.content.store.scrub(owned_key(owner_hash("ann"), blobs[0][0]))
        await owned_by_ann(house, folder)
        ended = await says_damaged(node, start)
        assert ended.failure is not None and ended.failure.code is FailureCode.DAMAGED
        row = house.store.node(node.id)
        assert row is not None and (row.strikes, row.state) == (0, NodeState.READY)

    story(tmp_path, tells)


@pytest.mark.spec("J8", "J7")
def test_a_damaged_checkpoint_is_left_out_and_the_job_goes_on_from_the_one_before(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house, "ant").join()
        other = await HandNode(house, "bee").join()
        job = await house.submit("work", recovery="resume", checkpoint_ms=600_000)
        names: list[str] = []
        for number in range(2):
            holder = await house.until(lambda: next((n for n in (node, other) if _start(n, job)), None), "a start")
            start = await holder.started(job)
            names.append(await holder.sends(start, folder_of(tmp_path / f"state{number}", state=f"{number} of two")))
            async with holder.files() as http:
                saved = await http.post(holder.at(start, "checkpoint"), json={"manifest": names[-1]})
                assert saved.status_code == 200, saved.text
            holder.held.clear()
            holder.heard.clear()
            holder.report()
            await house.until(lambda s=start, h=holder: not h.row(s).live, "the loss of the attempt")
        # given a third attempt, whose checkpoint is damaged: the manifest itself
        flipped(file_of(house, names[1]))
        house.content._manifests.clear()
        holder = await house.until(lambda: next((n for n in (node, other) if _start(n, job)), None), "a third start")
        start = _start(holder, job)
        assert start is not None and start.checkpoint == names[1]
        async with holder.files() as http:
            answer = await http.get(holder.at(start, f"manifests/{names[1]}"))
            assert answer.json()["code"] == "blob_damaged"
        holder.heard.clear()
        await says_damaged(holder, start)
        # then the job goes on from the one before
        kept = house.job(job).checkpoint
        assert house.job(job).live and kept is not None and kept.manifest == names[0]
        holder.held.clear()
        holder.report()
        fourth = await house.until(lambda: _start(node, job) or _start(other, job), "a fourth start")
        assert fourth.checkpoint == names[0]

    story(tmp_path, tells)


def _start(node: HandNode, job: str) -> Start | None:
    return next((m for m in node.listen() if isinstance(m, Start) and m.job == job), None)


@pytest.mark.spec("H3", "J10")
def test_a_log_that_rots_here_strikes_nobody(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work")
        start = await node.started(job)
        await node.prints(start, b"all is well\n")
        flipped(next((house.built._config.data / "logs").rglob(f"{start.attempt}.stdout")))
        node.declare(start, HeldPhase.FINISHED, Result(sha256(b"all is well\n").hexdigest(), 12))
        await house.until(lambda: node.row(start).failure is not None, "the verdict")
        failure, row = node.row(start).failure, house.store.node(node.id)
        assert failure is not None and failure.code is FailureCode.DAMAGED
        assert row is not None and row.strikes == 0
        # and the job is done again
        assert house.job(job).live

    story(tmp_path, tells)


@pytest.mark.spec("J6", "J14")
def test_a_damaged_manifest_stops_no_sweep_of_others(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        ann, _, _ = await owned_by_ann(house, folder_of(tmp_path / "ann", a="of ann"))
        await house.submit("work", package=ann)
        flipped(file_of(house, ann))
        house.content._manifests.clear()
        sweeper = Sweeper(house.content, house.store, house.leader)
        live, kept = sweeper._referred(house.leader.served_ms())
        roots = roots_of(live, kept)
        assert {root.manifest for root in roots} == {ann}
        # then it is unknown, as if it were gone, and the round goes on
        assert await sweeper._named(roots) == {}
        assert await sweeper.sweep() == 0

    story(tmp_path, tells)


@pytest.mark.spec("J6")
def test_a_scrub_finds_what_nobody_reads_and_the_doctor_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "REST_S", 0.0)

    async def tells(house: House) -> None:
        _, blobs, _ = await owned_by_ann(house, folder_of(tmp_path / "ann", a="of ann" * 999))
        scrubber = house.built._scrubber
        scrubber._bytes_per_s = 1 << 30
        await scrubber.round()
        assert scrubber.finding().ok and os.path.exists(file_of(house, blobs[0][0]))
        damaged = flipped(file_of(house, blobs[0][0]))
        await scrubber.round()
        assert not damaged.exists()
        found = (await house.people.get("/v1/doctor")).json()
        assert not found["ok"]
        (says,) = [f["says"] for f in found["findings"] if f["name"] == "content is sound"]
        assert says.startswith("1 blobs found damaged since the start; ")
        metrics = (await house.people.get("/metrics")).text
        assert "holdfast_blobs_damaged_total 1.0" in metrics and "holdfast_scrub_rounds_total 2.0" in metrics

    story(tmp_path, tells)
