"""Checks over HTTP: what a submission would meet now, once or as a stream, and how often estimates were right.

The kernel says where the job would go; the node that it names is then asked whether it is there (SPEC H5).
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from litestar import Request, get, post
from litestar.datastructures import State
from litestar.response import Stream

from holdfast.boottime import boottime_ms
from holdfast.kernel.decision import Answer, Checked, Foretold, Rejected
from holdfast.kernel.events import CheckAsked, EstimatesAsked, Submitted
from holdfast.model import NodeId, Resources
from holdfast.orchestrator.asked import submission
from holdfast.orchestrator.asked_files import resolved
from holdfast.orchestrator.bells import NEWS, heard
from holdfast.orchestrator.clock import wall_ms
from holdfast.orchestrator.front import Front, Refused, acting_for, error_of
from holdfast.orchestrator.loop import Unavailable
from holdfast.orchestrator.probing import WATCHERS_MAX, Probe
from holdfast.orchestrator.streams import ALIVE, END, sse
from holdfast.orchestrator.views import estimate_view, resources_view, scores_view
from holdfast.wire.http import CheckView, EstimatesView, JobRequest, ProbeView

BEAT_S = 1.0
"""Between two lines of a watch in which nothing happens."""
GAP_S = 0.2
"""Between two lines in any case: a busy journal does not make a check dearer."""
PAUSE = 20
"""A watcher waits so many times as long as its check took the leader."""
TOO_MANY = f"{WATCHERS_MAX} checks are being watched already"
SOME_FOLDER = "0" * 64
"""Stands for the folder that would go along: nobody sends one for a question."""
OTHERS_ASKED = 2
"""If the machine does not answer, so many others with room are asked."""


@post("/v1/check", status_code=200)
async def check(data: JobRequest, request: Request, state: State, node: str | None = None) -> CheckView:
    """Nothing is stored, sent to a machine or counted, but one question to the machine whether it is there."""
    front: Front = state.front
    event = await _asked(front, data, request)
    return await _checked(front, event, await _node(front, node))


@post("/v1/check/watch", status_code=200, media_type="text/event-stream")
async def watch(data: JobRequest, request: Request, state: State, node: str | None = None) -> Stream:
    front: Front = state.front
    event = await _asked(front, data, request)
    only = await _node(front, node)
    if front.probes.checks.watchers >= WATCHERS_MAX:
        raise Unavailable("busy", TOO_MANY)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_beats(front, event, only), media_type="text/event-stream", headers=headers)


@get("/v1/estimates")
async def estimates(state: State) -> EstimatesView:
    """How often estimates of starts and ends were right."""
    front: Front = state.front
    answer = await front.leader.ask(EstimatesAsked())
    if isinstance(answer, Rejected):
        raise Refused(error_of(answer))
    return EstimatesView(scores_view(answer.scores) if isinstance(answer, Foretold) else {})


async def _asked(front: Front, data: JobRequest, request: Request) -> Submitted:
    """What would be submitted. It must make as much sense as if it were."""
    owner = acting_for(request) or "admin"
    asked = await resolved(front, data, owner)
    if (asked.dockerfile or asked.requirements) and not asked.package:
        asked = msgspec.structs.replace(asked, package=SOME_FOLDER)
    return submission(asked, owner, "check", front.leader.settings)


async def _node(front: Front, named: str | None) -> NodeId | None:
    return None if named is None else (await front.reading.node(named)).id


async def _beats(front: Front, event: Submitted, only: NodeId | None) -> AsyncIterator[bytes]:
    checks = front.probes.checks
    if checks.watchers >= WATCHERS_MAX:
        # Several may have come through the door before the first of them was counted here.
        yield sse(CheckView("unknown", TOO_MANY, wall_ms(), "busy"), "1")
        yield END
        return
    checks.watchers += 1
    number, said, said_ms = 0, (), 0
    try:
        yield ALIVE
        with front.bells.listen(NEWS) as bell:
            while not front.stopping():
                bell.clear()
                try:
                    view = await _checked(front, event, only)
                except Unavailable as not_now:
                    view = CheckView("unknown", not_now.says, wall_ms(), not_now.code)
                except Refused as refused:
                    view = CheckView("unknown", refused.view.says, wall_ms(), refused.view.code)
                # Ages and round trips are no news by themselves.
                about = (view.verdict, view.node, view.state, view.nearest, view.instead, view.code)
                if about != said or boottime_ms() - said_ms >= (BEAT_S - GAP_S) * 1000:
                    number, said, said_ms = number + 1, about, boottime_ms()
                    yield sse(view, str(number))
                pause_s = max(GAP_S, PAUSE * _cost_s(front))
                await asyncio.sleep(pause_s)
                await heard(bell, max(0.0, BEAT_S - pause_s))
        yield END
    finally:
        checks.watchers -= 1


async def _checked(front: Front, event: Submitted, only: NodeId | None) -> CheckView:
    found, foretold = await asyncio.gather(
        _answer(front, CheckAsked(event.owner, event.spec, only)), front.leader.ask(EstimatesAsked())
    )
    for answer in (found, foretold):
        if isinstance(answer, Rejected):
            raise Refused(error_of(answer))
    assert isinstance(found, Checked) and isinstance(foretold, Foretold)
    probe = None if found.node is None else await front.probes.ask(found.node, front.leader.epoch)
    verdict, says, instead = found.verdict, found.says, None
    if found.verdict == "now" and probe is not None and not probe.answered:
        instead, asked = (None, None) if only is not None else await _another(front, event, found)
        verdict = "unhealthy"
        says = f"it would be given to {found.label}, but that does not answer now; {_after(instead, asked)}"
    return CheckView(
        verdict,
        says,
        wall_ms(),
        found.code,
        found.node,
        found.label.partition(" (")[0],
        found.state,
        dict(found.cost),
        resources_view(Resources(*found.free)) if found.node is not None else {},
        _probed(probe),
        instead,
        dict(found.gates),
        found.nearest,
        found.ahead,
        estimate_view(found.estimate),
        scores_view(foretold.scores),
    )


async def _answer(front: Front, asked: CheckAsked) -> Answer:
    """What the kernel says, when it is this check's turn."""
    async with front.probes.checks.turn(lambda: _cost_s(front)):
        return await front.leader.ask(asked)


def _cost_s(front: Front) -> float:
    return front.leader.question_s.get(CheckAsked, 0.0)


def _probed(probe: Probe | None) -> ProbeView | None:
    return None if probe is None else ProbeView(probe.answered, probe.round_trip_ms, probe.silent_ms)


def _after(instead: str | None, asked: int | None) -> str:
    """What is known of others, of which so many were asked in vain; None: nobody looked for any."""
    if instead is not None:
        return f"{instead} has room and answers: the job would be moved there once the first is given up"
    if asked is None:
        return "no other was asked"
    if not asked:
        return "no other machine has room now"
    return "nor does the other one that was asked" if asked == 1 else f"nor do the {asked} others that were asked"


async def _another(front: Front, event: Submitted, first: Checked) -> tuple[str | None, int | None]:
    """Another machine that has room and answers, and how many did not when they were asked; None: none was."""
    passed = [first.node] if first.node is not None else []
    for asked in range(OTHERS_ASKED):
        found = await _answer(front, CheckAsked(event.owner, event.spec, without=tuple(passed)))
        if not isinstance(found, Checked):
            return None, asked or None
        if found.node is None:
            return None, asked
        if (await front.probes.ask(found.node, front.leader.epoch)).answered:
            return found.label, asked
        passed.append(found.node)
    return None, OTHERS_ASKED


ROUTES = [check, watch, estimates]
