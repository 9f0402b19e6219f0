"""Checks have a bound on what they cost the leader: one at a time, few waiting, few watching, and rests between."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from grpc.aio import EOF  # pyright: ignore[reportAttributeAccessIssue]

from holdfast.client import requests
from holdfast.client.steps import Ask, Now, Pause
from holdfast.kernel.decision import Checked, Predicted, Rejected
from holdfast.kernel.events import CheckAsked, EstimatesAsked, NodeSaid
from holdfast.model import NodeId
from holdfast.model.messages import Pong
from holdfast.orchestrator.api import checks
from holdfast.orchestrator.api.context import RealTime
from holdfast.orchestrator.api_error import Unavailable
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.link_service import NodeLinkService
from holdfast.orchestrator.nodes.probing import CHECKS_WAITING_MAX, FIRST_NONCE, WATCHERS_MAX, Checks
from holdfast.orchestrator.nodes.sessions import Session
from holdfast.orchestrator.wakeups import NEWS, Wakeups
from holdfast.wire import convert

pytestmark = pytest.mark.spec("H5", "J13")


class Front:
    """An orchestrator without machines, in which a check costs what a test says."""

    def __init__(self, cost_s: float = 0.0, answer: Any = None) -> None:
        self.leader = self.probes = self
        self.checks, self.wakeups, self.epoch, self.time = Checks(), Wakeups(), 1, RealTime()
        self.question_s: dict[type, float] = {CheckAsked: cost_s}
        self.at_once = self.most_at_once = self.asked = 0
        self._answer = answer or Checked("waits", "no machine")

    async def ask(self, what: object) -> object:
        if isinstance(what, EstimatesAsked):
            return Predicted({}, {})
        self.at_once += 1
        self.asked += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        others_had_a_turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(others_had_a_turn.set_result, None)
        await others_had_a_turn
        self.at_once -= 1
        return self._answer

    def dated(self, served_ms: int) -> int:
        return served_ms

    def stopping(self) -> bool:
        return False


EVENT: Any = SimpleNamespace(owner="me", spec=None)


async def checked(front: Any) -> str:
    try:
        return (await checks._checked(front, EVENT, None)).verdict
    except Unavailable as busy:
        return busy.code


def test_one_check_at_a_time_asks_the_leader_and_who_finds_a_long_queue_is_told_so():
    front = Front()

    async def all_at_once() -> list[str]:
        return list(await asyncio.gather(*(checked(front) for _ in range(CHECKS_WAITING_MAX + 20))))

    said = asyncio.run(all_at_once())
    # then one asks, so many wait, and the rest is refused without having cost the leader anything
    assert said.count("waits") == front.asked and front.most_at_once == 1
    assert CHECKS_WAITING_MAX <= front.asked <= CHECKS_WAITING_MAX + 1
    assert said.count("busy") == len(said) - front.asked
    assert asyncio.run(checked(Front())) == "waits"


def test_after_a_check_the_leader_is_left_alone_for_three_times_as_long():
    async def three() -> float:
        began = asyncio.get_running_loop().time()
        front = Front(cost_s=0.05)
        await asyncio.gather(*(checked(front) for _ in range(3)))
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(three()) >= 2 * 3 * 0.05


def watch(front: Any) -> Any:
    return checks._beats(front, EVENT, None)


async def start(beats: Any) -> bytes:
    return await anext(beats)


def test_no_more_are_watched_than_may_be_and_a_place_is_free_again_when_one_goes():
    async def story() -> None:
        front = Front()
        # given as many watchers as may be, all let through the door before the first was counted
        watching = [watch(front) for _ in range(WATCHERS_MAX + 1)]
        first = [await start(beats) for beats in watching]
        # then the last is told so, and its stream ends
        assert all(piece.startswith(b": alive") for piece in first[:-1])
        assert b'"busy"' in first[-1] and b"event: end" in await start(watching[-1])
        assert front.checks.watchers == WATCHERS_MAX
        # and one that never began takes no place, and one that ends gives its own back
        unstarted = watch(front)
        await unstarted.aclose()
        await watching[0].aclose()
        assert front.checks.watchers == WATCHERS_MAX - 1
        assert (await start(watch(front))).startswith(b": alive")
        for beats in watching[1:]:
            await beats.aclose()

    asyncio.run(story())


@pytest.mark.parametrize(("cost_s", "least_s"), [(0.0, checks.GAP_S), (0.02, 0.4)])
def test_a_watcher_that_is_woken_again_and_again_asks_only_as_often_as_it_can_be_afforded(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, least_s: float
) -> None:
    rests: list[float] = []

    async def rested(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(RealTime, "sleep", staticmethod(rested))

    async def story() -> None:
        front = Front(cost_s)
        beats = watch(front)
        await start(beats)
        await start(beats)
        front._answer = Checked("never", "")
        asyncio.get_running_loop().call_soon(front.wakeups.wake, NEWS)
        await start(beats)
        await beats.aclose()

    asyncio.run(story())
    assert rests == [pytest.approx(least_s)]


def test_what_the_kernel_cannot_answer_is_said_in_a_watch_and_does_not_cut_it():
    async def story() -> bytes:
        front = Front(answer=Rejected("internal", "its log says more"))
        beats = watch(front)
        await start(beats)
        said = await start(beats)
        await beats.aclose()
        return said

    said = asyncio.run(story())
    assert b'"unknown"' in said and b'"internal"' in said


# --- what a probe leaves behind ---


class Leader:
    def __init__(self) -> None:
        self.told: list[Any] = []

    async def room(self) -> None: ...

    def tell(self, event: Any) -> None:
        self.told.append(event)


def test_the_answer_to_a_probe_is_none_of_the_kernels_business():
    async def story() -> tuple[Leader, list[int]]:
        heard: list[int] = []
        frames = [convert.node_to_frame(Pong(nonce)) for nonce in (FIRST_NONCE + 1, 3, FIRST_NONCE + 2)]
        said = iter([*frames, EOF])

        async def read() -> Any:
            return next(said)

        leader: Any = Leader()
        sessions: Any = SimpleNamespace(heard=lambda session, message: heard.append(message.nonce))
        unused: Any = None
        session = Session(7, "node_a")
        session.answered.set()
        nodes = NodeLinkService(leader, sessions, Fleet(), unused, unused, unused)
        await nodes._read(session, NodeId("node_a"), SimpleNamespace(read=read))
        return leader, heard

    leader, heard = asyncio.run(story())
    # then whoever asked hears every answer, and the kernel only that to its own question
    assert heard == [FIRST_NONCE + 1, 3, FIRST_NONCE + 2]
    assert leader.told == [NodeSaid(7, NodeId("node_a"), Pong(3))]


# --- who waits for a job ---


def test_whoever_waits_for_a_job_asks_for_no_estimate_and_whoever_shows_it_does():
    steps, answers = requests.wait("job_x", None, check=False), iter([0.0, 1.0, 2.0])
    asked: list[Ask] = []
    step = next(steps)
    while len(asked) < 3:
        if isinstance(step, Ask):
            asked.append(step)
            step = steps.send(SimpleNamespace(phase="queued"))
        else:
            assert isinstance(step, Now | Pause)
            step = steps.send(next(answers, 9.0) if isinstance(step, Now) else None)
    assert all(ask.params == {"estimate": False} for ask in asked)
    shown = next(requests.job("job_x"))
    assert isinstance(shown, Ask) and not shown.params
