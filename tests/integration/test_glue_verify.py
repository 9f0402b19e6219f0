"""A result counts once what arrived is what was declared: that the parts which find this out are really asked."""

import asyncio
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from glue_house import HandNode, House, folder_of, story

from holdfast.blobs import scan
from holdfast.blobs.keys import owned_key, owner_hash
from holdfast.model import FailureCode, Result, Verdict
from holdfast.model.messages import HeldPhase
from holdfast.orchestrator.content import verify
from holdfast.orchestrator.content.uploaders import attempt_uploader

PRINTED = b"hello\n"
HELLO = Result(sha256(PRINTED).hexdigest(), len(PRINTED))


async def a_running_job(house: House, **asked: Any) -> tuple[HandNode, Any]:
    node = await HandNode(house).join()
    start = await node.started(await house.submit("say", "hello", **asked))
    assert (await node.prints(start, PRINTED)).durable_offset == len(PRINTED)
    return node, start


async def judged(house: House, node: HandNode, start: Any) -> None:
    def known() -> Any:
        return node.row(start).failure or node.row(start).revoked or not house.job(start.job).live

    await house.until(known, "a verdict on the attempt")


def stored(folder: Path, sha: str) -> Path:
    """The file of an owned blob."""
    (found,) = [path for path in (folder / "data" / "blobs" / "owned").rglob(f"*{sha}*") if path.is_file()]
    return found


@pytest.mark.spec("J4", "J5")
def test_what_was_verified_is_what_stays(tmp_path: Path) -> None:
    """Given an attempt whose result is being verified, when its node prints on, then that is refused."""

    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        digest, sealed = house.logs.digest, asyncio.Event()
        loop = asyncio.get_running_loop()
        go_on = threading.Event()

        def held(attempt: str, stream: str = "stdout") -> tuple[int, str]:
            found = digest(attempt, stream)
            loop.call_soon_threadsafe(sealed.set)
            go_on.wait(20)
            return found

        house.logs.digest = held
        node.declare(start, HeldPhase.FINISHED, HELLO)
        await asyncio.wait_for(sealed.wait(), 20)
        more = await node.prints(start, b"and more\n", offset=len(PRINTED))
        go_on.set()
        assert "closed" in more.refused
        assert (await house.ended(start.job)).verdict is Verdict.SUCCEEDED
        assert house.logs.read(start.attempt, "stdout", 0, 100) == PRINTED

    story(tmp_path, tells)


@pytest.mark.spec("J4", "J5")
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(Result(sha256(b"jello\n").hexdigest(), len(PRINTED)), id="other bytes"),
        pytest.param(Result(HELLO.stdout_sha256, len(PRINTED) + 1), id="more"),
    ],
)
def test_a_declared_output_that_is_not_what_arrived_is_refused(tmp_path: Path, declared: Result) -> None:
    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        node.declare(start, HeldPhase.FINISHED, declared)
        await judged(house, node, start)
        assert house.job(start.job).live and house.job(start.job).result is None

    story(tmp_path, tells)


@pytest.mark.spec("J5", "J14")
def test_what_was_verified_for_a_leader_that_is_gone_decides_nothing(tmp_path: Path) -> None:
    """Given a verification that takes its time, when the lead is lost and taken again meanwhile, then its outcome is
    dropped: nobody pledged for the files under the new lead. The node says again what it has, and that is verified."""

    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        missing, go_on = house.verifier._missing_files, asyncio.Event()

        async def held(send: Any) -> Any:
            found = await missing(send)
            await go_on.wait()
            return found

        house.verifier._missing_files = held
        node.declare(start, HeldPhase.FINISHED, HELLO)
        await house.until(lambda: house.verifier._running, "its verification")
        await house.lose_the_lead()
        go_on.set()
        await house.until(lambda: not house.verifier._running, "the end of the verification")
        await house.leader.at_quiet_moment(lambda kernel: None)
        assert house.job(start.job).live, "an outcome of the lead before counted"
        await node.join()
        assert (await house.ended(start.job)).verdict is Verdict.SUCCEEDED

    story(tmp_path, tells)


@pytest.mark.spec("J10")
def test_files_that_were_declared_and_are_not_there_make_no_result(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        name = await node.sends(start, folder_of(tmp_path / "made", a="1"))
        # sent, and never taken over
        node.declare(start, HeldPhase.FINISHED, Result(HELLO.stdout_sha256, HELLO.stdout_bytes, manifest=name))
        await judged(house, node, start)
        assert house.job(start.job).live and house.job(start.job).result is None

    story(tmp_path, tells)


@pytest.mark.spec("J7", "J10")
def test_files_that_were_lost_here_before_the_verdict_make_no_result_and_cost_the_node_nothing(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        folder = folder_of(tmp_path / "made", a="first" * 10)
        name = await node.sends(start, folder)
        async with node.files() as http:
            answer = await http.post(node.at(start, "manifests"), json={"manifest": name})
            assert answer.status_code in (200, 201), answer.text
        lost = stored(tmp_path, scan(folder).manifest.blobs[-1].sha)
        lost.unlink()
        node.declare(start, HeldPhase.FINISHED, Result(HELLO.stdout_sha256, HELLO.stdout_bytes, manifest=name))
        await judged(house, node, start)
        assert house.job(start.job).live and house.job(start.job).result is None
        failure = node.row(start).failure
        assert failure is not None and failure.code is FailureCode.DAMAGED
        machine = house.store.node(node.row(start).node)
        assert machine is not None and machine.strikes == 0

    story(tmp_path, tells)


@pytest.mark.spec("J7")
def test_a_disk_of_ours_that_fails_is_not_the_nodes_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "AGAIN_S", 0.01)

    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        digest, failures = house.logs.digest, [OSError(5, "I/O error"), OSError(5, "I/O error")]

        def failing(attempt: str, stream: str = "stdout") -> tuple[int, str]:
            if failures:
                raise failures.pop()
            return digest(attempt, stream)

        house.logs.digest = failing
        node.declare(start, HeldPhase.FINISHED, HELLO)
        await house.until(lambda: len(failures) < 2, "the first failure")
        await house.until(lambda: not house.verifier._running, "its verification")
        assert not failures, "it was not tried again"
        assert (await house.ended(start.job)).verdict is Verdict.SUCCEEDED
        assert not failures and len(house.store.attempts(start.job)) == 1

    story(tmp_path, tells)


# --- whether everything that a manifest names is there ---


async def kept(house: House, folder: Path) -> str:
    node, start = await a_running_job(house)
    name = await node.sends(start, folder)
    assert not (await house.content.take("ann", attempt_uploader(node.row(start), 16), name)).missing
    return name


@pytest.mark.spec("J10")
@pytest.mark.parametrize("harm", ["lost", "cut", "manifest lost"])
def test_a_manifest_is_whole_only_with_all_that_it_names(tmp_path: Path, harm: str) -> None:
    async def tells(house: House) -> None:
        folder = folder_of(tmp_path / "made", a="first" * 10)
        name = await kept(house, folder)
        assert await house.content.whole("ann", name)
        assert not await house.content.whole("bob", name), "another owner's"
        sha = name if harm == "manifest lost" else scan(folder).manifest.blobs[-1].sha
        harmed = stored(tmp_path, sha)
        if harm == "cut":
            harmed.write_bytes(harmed.read_bytes()[:-1])
        else:
            harmed.unlink()
        assert not await house.content.whole("ann", name)

    story(tmp_path, tells)


@pytest.mark.spec("J1", "J10")
def test_what_is_being_deleted_is_neither_whole_nor_taken_over(tmp_path: Path) -> None:
    """Given a blob that the collector has condemned and not yet buried, then nobody is told that it is there, although
    it may still be, and a sender is told to come back."""

    async def tells(house: House) -> None:
        folder = folder_of(tmp_path / "made", a="first" * 10)
        name = await kept(house, folder)
        (first, *_) = scan(folder).manifest.blobs
        key = owned_key(owner_hash("ann"), first.sha)
        # as a new leader finds it: the one before wrote down that it deletes this
        house.content.led(house.leader.epoch + 5, [key])
        assert not await house.content.whole("ann", name)
        node = HandNode(house, "bee")
        start = await (await node.join()).started(await house.submit("again"))
        name = await node.sends(start, folder)
        async with node.files() as http:
            answer = await http.post(node.at(start, "manifests"), json={"manifest": name})
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")

    story(tmp_path, tells)


@pytest.mark.spec("J1", "J14")
def test_what_was_taken_over_under_another_lead_is_not_vouched_for(tmp_path: Path) -> None:
    """Given files that were taken over while the lead changed, then the new lead's collector did not see them: no row
    may name them before somebody looked again."""

    async def tells(house: House) -> None:
        node, start = await a_running_job(house)
        name = await node.sends(start, folder_of(tmp_path / "made", a="1"))
        head = house.content.store.head
        changed = False

        async def changing(key: str) -> Any:
            nonlocal changed
            if not changed:
                changed = True
                house.content.led(house.leader.epoch + 5, [])
            return await head(key)

        house.content.store.head = changing  # pyright: ignore[reportAttributeAccessIssue]
        assert not (await house.content.take("ann", attempt_uploader(node.row(start), 16), name)).missing
        assert changed and not house.content.may_name("ann", [name])
        assert await house.content.ready("ann", name) and house.content.may_name("ann", [name])

    story(tmp_path, tells)
