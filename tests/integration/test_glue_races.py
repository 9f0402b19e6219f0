"""Requests that meet: the same key at once, a token made while it is revoked, files that go while a job names them."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from glue_house import EMPTY, HandNode, House, folder_of, story

from holdfast.model import Verdict
from holdfast.model.messages import HeldPhase
from holdfast.orchestrator.api.call import OWNER_HEADER

BODY = {"argv": ["true"], "cpu_milli": 100, "memory_mib": 16, "disk_mib": 16}


class Held:
    """A look into the store whose first answer is kept back until somebody else has looked, or can not."""

    def __init__(self, look: Any) -> None:
        self._look = look
        self.looks = 0
        self.together = False
        """Whether the second looked before the first had its answer."""
        self.second_looked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, *words: Any) -> Any:
        self.looks += 1
        number = self.looks
        found = await self._look(*words)
        if number == 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.second_looked.wait(), 0.3)
                self.together = True
        elif number == 2:
            self.second_looked.set()
            await self.go_on.wait()
        return found


def post(house: House, key: str) -> "asyncio.Task[httpx.Response]":
    headers = {"Idempotency-Key": key, OWNER_HEADER: "ann"}
    return asyncio.create_task(house.people.post("/v1/jobs", json=BODY, headers=headers))


@pytest.mark.spec("J14")
def test_of_two_submissions_under_one_key_the_second_looks_after_the_first_was_taken(tmp_path: Path) -> None:
    """Given two requests with one key at the same time, when the job of the first has ended before the second is
    decided, then the second hears of that job. It looks in the store only after the first was taken: what the kernel
    remembers of ended jobs has a limit."""

    async def tells(house: House) -> None:
        node = await HandNode(house).join()
        held = house.reading.known_jobs = Held(house.reading.known_jobs)
        first, second = post(house, "k"), post(house, "k")
        done, _ = await asyncio.wait({first, second}, return_when="FIRST_COMPLETED")
        job = done.pop().result().json()["id"]
        node.declare(await node.started(job), HeldPhase.FINISHED, EMPTY)
        ended = await house.ended(job)
        node.held.clear()
        held.go_on.set()
        answers = [(await one).json() for one in (first, second)]
        assert not held.together
        assert sorted(answer["again"] for answer in answers) == [False, True]
        assert {answer["id"] for answer in answers} == {job}
        await house.leader.at_quiet_moment(lambda kernel: None)
        assert house.job(job) == ended and ended.verdict is Verdict.SUCCEEDED

    story(tmp_path, tells)


@pytest.mark.spec("J14")
def test_a_submission_holds_up_no_other_key_and_lets_go_of_its_own(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        look, go_on = house.reading.known_jobs, asyncio.Event()

        async def slow(keyed: Any) -> Any:
            found = await look(keyed)
            if slowed:
                slowed.clear()
                await go_on.wait()
            return found

        slowed = [True]
        house.reading.known_jobs = slow
        first = post(house, "slow")
        await house.until(lambda: not slowed, "the first to look")
        assert (await asyncio.wait_for(post(house, "other"), 5)).status_code == 201
        second = post(house, "slow")
        go_on.set()
        assert (await first).json()["id"] == (await asyncio.wait_for(second, 5)).json()["id"]
        # also when it was refused
        refused = {"Idempotency-Key": "bad", OWNER_HEADER: "ann"}
        for _ in range(2):
            large = {**BODY, "memory_mib": 1 << 40}
            answer = await asyncio.wait_for(house.people.post("/v1/jobs", json=large, headers=refused), 5)
            assert answer.status_code in (400, 422)
        assert not len(house.leader.core.submissions)

    story(tmp_path, tells)


@pytest.mark.spec("N6")
def test_a_token_that_is_revoked_while_it_is_made_again_stays_revoked(tmp_path: Path) -> None:
    """Given two requests for the same token at the same time, when it is revoked before the second is decided, then the
    second does not bring it back."""

    async def tells(house: House) -> None:
        held = house.reading.token = Held(house.reading.token)

        def make() -> "asyncio.Task[httpx.Response]":
            asked = house.people.post("/v1/tokens", json={"ttl_ms": 60_000}, headers={"Idempotency-Key": "t"})
            return asyncio.create_task(asked)

        first, second = make(), make()
        done, _ = await asyncio.wait({first, second}, return_when="FIRST_COMPLETED")
        token = done.pop().result().json()["id"]
        assert (await house.people.delete(f"/v1/tokens/{token}")).status_code == 204
        held.go_on.set()
        await asyncio.gather(first, second)
        (row,) = house.store.tokens()
        assert row.id == token and row.revoked

    story(tmp_path, tells)


# --- files that a job names ---


async def made_by_ann(house: House, tmp_path: Path) -> tuple[HandNode, str]:
    node = await HandNode(house).join()
    start = await node.started(await house.submit("make"))
    name = await node.sends(start, folder_of(tmp_path / "made", a="1"))
    async with node.files() as http:
        assert (await http.post(node.at(start, "manifests"), json={"manifest": name})).status_code == 200
    return node, name


def lose_the_files(tmp_path: Path) -> None:
    for path in (tmp_path / "data" / "blobs" / "owned").rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.spec("J1", "J14")
def test_a_job_that_names_files_which_nobody_answers_for_is_not_taken(tmp_path: Path) -> None:
    """Given files that were there when the request was checked, when the lead changes before the job is committed, then
    the request is to be sent again: the new lead has not seen them."""

    async def tells(house: House) -> None:
        _, name = await made_by_ann(house, tmp_path)
        look = house.reading.known_jobs

        async def changing(keyed: Any) -> Any:
            house.content.led(house.leader.epoch + 5, [])
            return await look(keyed)

        house.reading.known_jobs = changing
        headers = {OWNER_HEADER: "ann", "Idempotency-Key": "k"}
        answer = await house.people.post("/v1/jobs", json={**BODY, "package": name}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert len(house.store.jobs()) == 1
        house.reading.known_jobs = look
        again = await house.people.post("/v1/jobs", json={**BODY, "package": name}, headers=headers)
        assert again.status_code == 201

    story(tmp_path, tells)


@pytest.mark.spec("J1", "J12")
def test_no_job_starts_on_files_that_are_not_there(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        _, name = await made_by_ann(house, tmp_path)
        job = await house.submit("use", package=name)
        async with house.acting_for("ann") as ann:
            nowhere = await ann.post("/v1/jobs", json={**BODY, "package": "0" * 64})
            assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
            nowhere = await ann.post("/v1/jobs", json={**BODY, "inputs": [{"name": "in", "manifest": "1" * 64}]})
            assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
            # run again, once they are gone
            lose_the_files(tmp_path)
            answer = await ann.post(f"/v1/jobs/{job}/rerun")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_files")
        assert len(house.store.jobs()) == 2

    story(tmp_path, tells)


@pytest.mark.spec("J1")
def test_only_what_a_job_made_that_succeeded_is_an_input(tmp_path: Path) -> None:
    async def tells(house: House) -> None:
        job = await house.submit("fails")
        async with house.acting_for("ann") as ann:
            body = {**BODY, "inputs": [{"name": "in", "job": job}]}
            assert (await ann.post("/v1/jobs", json=body)).json()["code"] == "no_files"
            await ann.post(f"/v1/jobs/{job}/stop")
            assert (await ann.post("/v1/jobs", json=body)).json()["code"] == "no_files"

    story(tmp_path, tells)
