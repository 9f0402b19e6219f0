"""What an attempt delivered against what it declared: the verifier alone, with storage that a test holds."""

import asyncio
import threading
from hashlib import sha256
from typing import Any, cast

import pytest

from holdfast.kernel.decision import Verify
from holdfast.kernel.events import Verified
from holdfast.model import AttemptId, Owner, Result
from holdfast.orchestrator.content.verify import Verifier
from holdfast.orchestrator.logs.output_check import PrintedOutput

OUTPUT = b"42\n"
RESULT = Result(sha256(OUTPUT).hexdigest(), len(OUTPUT), manifest="ab" * 32)


class Storage:
    """The log store and the content service of the verifier."""

    def __init__(self, there: bool = True) -> None:
        self.there = there
        self.sealed: list[str] = []
        self.busy, self.open = threading.Event(), threading.Event()
        self.open.set()

    def seal(self, attempt: str) -> None:
        self.sealed.append(attempt)
        if len(self.sealed) == 2:
            self.busy.set()
        assert self.open.wait(30)

    def digest(self, attempt: str) -> tuple[int, str]:
        assert attempt in self.sealed
        return len(OUTPUT), sha256(OUTPUT).hexdigest()

    def received(self, attempt: str) -> PrintedOutput:
        return PrintedOutput(*self.digest(attempt))

    async def whole(self, owner: str, manifest: str) -> bool:
        return self.there and (owner, manifest) == ("ada", RESULT.manifest)


class LeaderStub:
    epoch = 1

    def __init__(self) -> None:
        self.told: asyncio.Queue[Verified] = asyncio.Queue()

    def tell(self, event: Verified) -> None:
        self.told.put_nowait(event)


def verify(number: int) -> Verify:
    return Verify(AttemptId(f"att_{number}"), number, RESULT, Owner("ada"))


def verifier(storage: Storage) -> Verifier:
    return Verifier(cast("Any", storage), cast("Any", storage))


@pytest.mark.spec("J5", "J10")
@pytest.mark.parametrize("there", [True, False])
def test_the_leader_is_told_whether_output_and_files_are_those_declared(there: bool) -> None:
    async def story() -> Verified:
        leader, checking = LeaderStub(), verifier(Storage(there))
        checking.begin(verify(1), cast("Any", leader))
        said = await asyncio.wait_for(leader.told.get(), 30)
        await checking.close()
        return said

    said = asyncio.run(story())
    assert (said.attempt, said.fence, said.ok) == ("att_1", 1, there)
    assert bool(said.detail) is not there


@pytest.mark.spec("J14")
def test_closing_waits_for_no_disk_and_starts_nothing_more() -> None:
    async def story() -> list[str]:
        # given two verifications whose disk does not answer, and a third behind them
        storage, leader = Storage(), LeaderStub()
        storage.open.clear()
        checking = verifier(storage)
        for number in (1, 2, 3):
            checking.begin(verify(number), cast("Any", leader))
        assert await asyncio.to_thread(storage.busy.wait, 30)
        # when it is closed, then it is closed at once
        await asyncio.wait_for(checking.close(), 20)
        assert len(checking._running) == 0
        with pytest.raises(RuntimeError, match="shutdown"):
            checking._threads.submit(len, "")
        # and what waited is never begun, nor is anybody told
        storage.open.set()
        await asyncio.to_thread(checking._threads.shutdown, wait=True)
        assert leader.told.empty()
        return storage.sealed

    assert sorted(asyncio.run(story())) == ["att_1", "att_2"]
