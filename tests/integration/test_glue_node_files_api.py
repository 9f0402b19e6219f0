"""The door for nodes' files: it opens for the attempt that still counts, for what that was told to use, and no more."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from glue_house import EMPTY, HandNode, House, folder_of, story
from msgspec.structs import replace

from holdfast.blobs import Blob, scan, sha_of
from holdfast.model import JobId
from holdfast.model.messages import HeldPhase
from holdfast.orchestrator.content.sent_hashes import SentHashes

CHECKPOINTED = {"recovery": "resume", "checkpoint_ms": 600_000}
PATHS = ("missing", "links", "manifests", "checkpoint")


def code(answer: httpx.Response) -> str:
    return answer.json()["code"] if answer.status_code >= 300 else "taken"


def body_of(path: str, name: str = "0" * 64) -> dict[str, Any]:
    return {"blobs": []} if path in ("missing", "links") else {"manifest": name}


async def asked(node: HandNode, url: str, path: str, name: str = "0" * 64) -> str:
    async with node.files() as http:
        return code(await http.post(url, json=body_of(path, name)))


@pytest.mark.spec("J5", "J6")
def test_a_revoked_attempt_may_neither_send_files_nor_save(tmp_path: Path) -> None:
    """Given an attempt whose node still holds it and whose job was stopped, then nothing of it is taken any more."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work", **CHECKPOINTED)
        start = await node.started(job)
        name = await node.sends(start, folder_of(tmp_path / "made", state="1"))
        assert await asked(node, node.at(start, "missing"), "missing") == "taken"
        # When it is revoked, before its node has let go of it
        await house.people.post(f"/v1/jobs/{job}/stop")
        await house.until(lambda: node.row(start).revoked is not None, "its revocation")
        assert node.row(start).live
        # Then every way is shut, and nothing that it sent is kept
        for path in PATHS:
            assert await asked(node, node.at(start, path), path, name) == "revoked", path
        assert not await house.content.whole("ann", name)

    story(tmp_path, tells)


@pytest.mark.spec("J5", "A12")
def test_only_the_node_that_holds_an_attempt_under_its_fence_is_served(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house, "ant").join()
        job = await house.submit("work")
        start = await node.started(job)
        stranger = await HandNode(house, "bee").join()
        for path in PATHS:
            # another fence, another node, another attempt, no fence
            assert await asked(node, node.at(start, path) + "9", path) == "not_found", path
            assert await asked(stranger, node.at(start, path), path) == "not_found", path
            gone = node.at(start, path).replace(f"{start.attempt}/", f"{start.attempt[:-1]}9/")
            assert await asked(node, gone, path) == "not_found", path
            assert await asked(node, node.at(start, path).partition("?")[0], path) == "not_found", path
        # and a key that no session has
        async with house.http(house._files, "guessed") as http:
            assert code(await http.post(node.at(start, "missing"), json={"blobs": []})) == "not_allowed"
        async with node.files() as http:
            http.headers["Authorization"] = f"Basic {node.session.bulk_key}"
            assert code(await http.post(node.at(start, "missing"), json={"blobs": []})) == "not_allowed"

    story(tmp_path, tells)


@pytest.mark.spec("J5")
def test_an_attempt_that_has_ended_is_served_no_more(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work")
        start = await node.started(job)
        node.declare(start, HeldPhase.FINISHED, EMPTY)
        await house.ended(job)
        await house.until(lambda: not node.row(start).live or node.listen()[-1:], "its end")
        node.held.clear()
        node.report()
        await house.until(lambda: not node.row(start).live, "its end")
        for path in PATHS:
            assert await asked(node, node.at(start, path), path) in ("not_found", "revoked"), path

    story(tmp_path, tells)


@pytest.mark.spec("A12")
def test_an_attempt_reads_what_it_was_told_to_use_and_nothing_else_of_its_owner(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        maker = await house.submit("make")
        start = await node.started(maker)
        told, other = folder_of(tmp_path / "told", a="told"), folder_of(tmp_path / "other", b="other")
        names = [await node.sends(start, folder) for folder in (told, other)]
        for name in names:
            assert await asked(node, node.at(start, "manifests"), "manifests", name) == "taken"
        job = await house.submit("use", package=names[0])
        use = await node.started(job)
        (blob,) = scan(told).manifest.blobs
        (secret,) = scan(other).manifest.blobs
        async with node.files() as http:
            assert (await http.get(node.at(use, f"manifests/{names[0]}"))).status_code == 200
            links = await http.post(node.at(use, f"manifests/{names[0]}/links"), json={"blobs": [blob.sha]})
            assert list(links.json()["urls"]) == [blob.sha]
            # What belongs to the same owner and was not given to this job stays unseen
            assert code(await http.get(node.at(use, f"manifests/{names[1]}"))) == "not_found"
            links = await http.post(node.at(use, f"manifests/{names[1]}/links"), json={"blobs": [secret.sha]})
            assert code(links) == "not_found"
            # And no blob is linked to that is not in the manifest
            links = await http.post(node.at(use, f"manifests/{names[0]}/links"), json={"blobs": [secret.sha]})
            assert code(links) == "not_found"
            # And no input is linked to that the job does not have
            assert code(await http.post(node.at(use, "inputs/anything/link"))) == "not_found"

    story(tmp_path, tells)


@pytest.mark.spec("J10", "A12")
@pytest.mark.parametrize("path", ["manifests", "checkpoint"])
def test_no_attempt_leaves_more_than_the_disk_that_its_job_asked_for(tmp_path: Path, path: str) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        start = await node.started(await house.submit("work", disk_mib=1, **CHECKPOINTED))
        large = await node.sends(start, folder_of(tmp_path / "large", f="x" * (1 << 20), g="y"))
        fits = await node.sends(start, folder_of(tmp_path / "fits", f="x" * (1 << 20)))
        assert await asked(node, node.at(start, path), path, large) == "manifest_refused"
        assert not await house.content.whole("ann", large)
        assert await asked(node, node.at(start, path), path, fits) == "taken"

    story(tmp_path, tells)


# --- checkpoints ---


def saved(house: House, job: JobId) -> str:
    checkpoint = house.job(job).checkpoint
    return checkpoint.manifest if checkpoint is not None else ""


@pytest.mark.spec("J6")
def test_a_checkpoint_of_which_something_is_missing_is_none(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work", **CHECKPOINTED)
        start = await node.started(job)
        folder = folder_of(tmp_path / "made", state="1")
        name = await node.sends(start, folder)
        (blob,) = scan(folder).manifest.blobs
        (stored,) = [path for path in (tmp_path / "data" / "blobs").rglob(f"*{blob.sha}*") if path.is_file()]
        stored.unlink()
        assert await asked(node, node.at(start, "checkpoint"), "checkpoint", name) == "incomplete"
        assert saved(house, job) == ""

    story(tmp_path, tells)


@pytest.mark.spec("J6", "J14")
def test_a_checkpoint_that_the_collector_no_longer_answers_for_is_not_named(tmp_path: Path) -> None:
    """Given a leader that began anew while files were taken over, so that nobody knows of pledges for them, then no
    row names them: they may be collected at any moment."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work", **CHECKPOINTED)
        start = await node.started(job)
        name = await node.sends(start, folder_of(tmp_path / "made", state="1"))
        take = house.content.take

        async def taking(*words: Any) -> Any:
            house.content.led(house.leader.epoch + 7, [])
            accepted = await take(*words)
            house.content.led(house.leader.epoch + 9, [])
            return accepted

        house.content.take = taking
        assert await asked(node, node.at(start, "checkpoint"), "checkpoint", name) == "busy"
        assert saved(house, job) == ""
        house.content.take = take
        assert await asked(node, node.at(start, "checkpoint"), "checkpoint", name) == "taken"
        assert saved(house, job) == name

    story(tmp_path, tells)


@pytest.mark.spec("J5", "J6")
def test_what_is_revoked_while_its_checkpoint_is_taken_over_is_told_so(tmp_path: Path) -> None:
    """The door looked before the files were taken over; the kernel has the last word, and the node hears it."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        job = await house.submit("work", **CHECKPOINTED)
        start = await node.started(job)
        name = await node.sends(start, folder_of(tmp_path / "made", state="1"))
        take = house.content.take

        async def taking(*words: Any) -> Any:
            await house.people.post(f"/v1/jobs/{job}/stop")
            return await take(*words)

        house.content.take = taking
        assert await asked(node, node.at(start, "checkpoint"), "checkpoint", name) in ("revoked", "not_live")
        assert saved(house, job) == ""

    story(tmp_path, tells)


@pytest.mark.spec("J5", "J6")
def test_over_the_whole_story_of_a_job_its_checkpoint_never_goes_back(tmp_path: Path) -> None:
    """Given a job that moved to another node and went on there, when the first node, that does not know it yet, saves
    what it has, then at no moment does the job go on from that."""

    async def tells(house: House) -> None:
        first = await HandNode(house, "ant").join()
        job = await house.submit("work", **CHECKPOINTED)
        old = await first.started(job)
        states = [folder_of(tmp_path / f"{n}", state=str(n)) for n in range(4)]
        seen: list[int] = []
        commit = house.store.commit

        def noting(rows: Any, epoch: int) -> None:
            commit(rows, epoch)
            checkpoint = house.job(job).checkpoint
            seen.append(checkpoint.depth if checkpoint is not None else 0)

        house.store.commit = noting
        for number in (0, 1):
            name = await first.sends(old, states[number])
            assert await asked(first, first.at(old, "checkpoint"), "checkpoint", name) == "taken"
        late = await first.sends(old, states[3])
        # When it runs elsewhere from there
        second = await HandNode(house, "bee").join()
        assert (await house.people.post(f"/v1/jobs/{job}/move", json={"to": second.id})).status_code == 200
        new = await second.started(job)
        await house.until(lambda: first.row(old).revoked is not None, "the first to be revoked")
        name = await second.sends(new, states[2])
        assert await asked(second, second.at(new, "checkpoint"), "checkpoint", name) == "taken"
        assert await asked(first, first.at(old, "checkpoint"), "checkpoint", late) == "revoked"
        # Then every committed state of the job was as far as the one before it, or further
        assert seen == sorted(seen) and seen[-1] == 3 and saved(house, job) == name

    story(tmp_path, tells)


# --- an attempt names only what it sent or was given ---


async def owned_by_ann(house: House, folder: Path) -> tuple[str, list[Any], bytes]:
    """The owner's own upload: name and blobs of its manifest, and the bytes of the manifest."""
    manifest = scan(folder).manifest
    data = manifest.to_bytes()
    name = sha_of(data)
    contents = {sha_of(file.read_bytes()): file.read_bytes() for file in folder.iterdir()} | {name: data}
    blobs = [[blob.sha, blob.size] for blob in (*manifest.blobs, Blob(name, len(data)))]
    async with house.acting_for("ann") as http:
        urls = (await http.post("/v1/blobs/links", json={"blobs": blobs})).json()["urls"]
        for sha, url in urls.items():
            assert (await http.put(url, content=contents[sha])).status_code == 201
        assert (await http.post("/v1/manifests", json={"manifest": name})).json()["missing"] == []
    return name, blobs, data


@pytest.mark.spec("A12")
def test_a_body_that_is_nested_too_deeply_is_refused_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def tells(house: House) -> None:
        node = HandNode(house, "bee")
        start = await (await node.join()).started(await house.submit())
        async with node.files() as http:
            for path in PATHS:
                headers = {"Content-Type": "application/json"}
                answer = await http.post(node.at(start, path), content=b"[" * 100_000, headers=headers)
                assert (answer.status_code, code(answer)) == (400, "bad_request")
        assert not [record for record in caplog.records if record.exc_info]

    story(tmp_path, tells)


@pytest.mark.spec("A12", "J6")
def test_a_node_that_knows_a_hash_does_not_get_the_content_by_naming_it(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        # given something of the owner that the job was not given, and a node that knows its hashes
        secret, blobs, data = await owned_by_ann(house, folder_of(tmp_path / "secret", key="the owner's secret"))
        node = await HandNode(house).join()
        job = await house.submit("work", **CHECKPOINTED)
        start = await node.started(job)
        async with node.files() as http:
            # then it does not learn whether the owner has it
            answer = await http.post(node.at(start, "missing"), json={"blobs": blobs})
            assert answer.json()["missing"] == [sha for sha, _ in blobs]
            # and can name neither the manifest, nor the blobs under a manifest that it sends itself
            assert await asked(node, node.at(start, "checkpoint"), "checkpoint", secret) == "not_found"
            urls = (await http.post(node.at(start, "links"), json={"blobs": blobs})).json()["urls"]
            assert (await http.put(urls[secret], content=data)).status_code == 201
            assert await asked(node, node.at(start, "checkpoint"), "checkpoint", secret) == "incomplete"
            taken = await http.post(node.at(start, "manifests"), json={"manifest": secret})
            assert taken.json()["missing"] == [sha for sha, _ in blobs if sha != secret]
        assert house.job(job).checkpoint is None and node.row(start).delivered == ()
        # nor as its result: the job goes on without it
        node.declare(start, HeldPhase.FINISHED, replace(EMPTY, manifest=secret))
        await house.until(lambda: node.row(start).failure is not None, "the refusal")
        assert house.job(job).result is None

    story(tmp_path, tells)


@pytest.mark.spec("A12", "J6", "J8")
def test_an_attempt_names_what_it_was_given_and_what_it_sent_without_sending_it_again(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        package, blobs, _ = await owned_by_ann(house, folder_of(tmp_path / "package", a="given"))
        node = await HandNode(house).join()
        job = await house.submit("work", package=package, **CHECKPOINTED)
        start = await node.started(job)
        async with node.files() as http:
            asked_for = {"blobs": blobs}
            assert (await http.post(node.at(start, "missing"), json=asked_for)).json()["missing"] == []
            # what it sent once is there for its next checkpoint: also for a leader that forgot everything
            first = await node.sends(start, folder_of(tmp_path / "one", state="1"))
            assert await asked(node, node.at(start, "checkpoint"), "checkpoint", first) == "taken"
            (blob,) = scan(tmp_path / "one").manifest.blobs
            sent = {"blobs": [[blob.sha, blob.size]]}
            assert (await http.post(node.at(start, "missing"), json=sent)).json()["missing"] == []
            house.content._sent = SentHashes()
            assert (await http.post(node.at(start, "missing"), json=sent)).json()["missing"] == []
            assert await asked(node, node.at(start, "checkpoint"), "checkpoint", first) == "taken"
            # an attempt of another job is given none of it
            other = await node.started(await house.submit("other"))
            assert (await http.post(node.at(other, "missing"), json=sent)).json()["missing"] == [blob.sha]
        saved = house.job(job).checkpoint
        assert saved is not None and (saved.attempt, saved.node) == (start.attempt, node.id)

    story(tmp_path, tells)
