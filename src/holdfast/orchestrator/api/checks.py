"""Checks: what would happen to a submission now, once or as a stream; and how often estimates were right.

The kernel says where the job would go; that node is then probed (SPEC H5).
"""

from collections.abc import AsyncGenerator

import msgspec

from holdfast.kernel.decision import Answer, Checked, Predicted
from holdfast.kernel.events import CheckAsked, EstimatesAsked, Submitted
from holdfast.model import NodeId, Resources
from holdfast.orchestrator.api.call import ApiCall, EventStream
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.job_requests import submission
from holdfast.orchestrator.api.refusals import decided
from holdfast.orchestrator.api.request_files import resolved
from holdfast.orchestrator.api.streams import ALIVE, END, sse
from holdfast.orchestrator.api.views import estimate_view, resources_view, scores_view
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.nodes.probing import WATCHERS_MAX, Probe
from holdfast.orchestrator.wakeups import NEWS
from holdfast.wire.http import CheckView, EstimatesView, JobRequest, ProbeView

BEAT_S = 1.0
"""Interval between two lines of a watch if nothing changes, in seconds."""
GAP_S = 0.2
"""Shortest interval between two lines, in seconds, so that a busy journal does not make a watch more expensive."""
PAUSE = 20
"""A watcher waits this many times as long as its check took the leader."""
TOO_MANY = f"{WATCHERS_MAX} checks are being watched already"
SOME_FOLDER = "0" * 64
"""Stands for the package of the job, which is not uploaded for a check."""
OTHERS_ASKED = 2
"""If the chosen machine does not answer, up to this many others with room are probed."""


async def check(call: ApiCall, data: JobRequest, node: str | None = None) -> CheckView:
    """Stores and counts nothing, and sends nothing to a machine except a probe."""
    context = call.context
    event = await _asked(call, data)
    return await _checked(context, event, await _node(context, node))


async def watch(call: ApiCall, data: JobRequest, node: str | None = None) -> EventStream:
    context = call.context
    event = await _asked(call, data)
    only = await _node(context, node)
    if context.probes.checks.watchers >= WATCHERS_MAX:
        raise Unavailable("busy", TOO_MANY)
    return EventStream(_beats(context, event, only))


async def estimates(call: ApiCall) -> EstimatesView:
    """How often estimates of starts and ends were right."""
    context = call.context
    answer = decided(await context.leader.ask(EstimatesAsked()))
    return EstimatesView(scores_view(answer.scores) if isinstance(answer, Predicted) else {})


async def _asked(call: ApiCall, data: JobRequest) -> Submitted:
    """The event that would be submitted. Validated like a real submission."""
    context, owner = call.context, call.principal.name
    asked = await resolved(context, data, owner)
    if (asked.dockerfile or asked.requirements) and not asked.package:
        asked = msgspec.structs.replace(asked, package=SOME_FOLDER)
    return submission(asked, owner, "check", context.leader.settings)


async def _node(context: ApiContext, named: str | None) -> NodeId | None:
    return None if named is None else (await context.queries.node(named)).id


async def _beats(context: ApiContext, event: Submitted, only: NodeId | None) -> AsyncGenerator[bytes, None]:
    checks, time = context.probes.checks, context.time
    if checks.watchers >= WATCHERS_MAX:
        # Several requests may have passed the check in `watch` before the first of them was counted here.
        yield sse(CheckView("unknown", TOO_MANY, time.wall_ms(), "busy"), "1")
        yield END
        return
    checks.watchers += 1
    number, said, said_ms = 0, (), 0
    try:
        yield ALIVE
        with context.wakeups.listen(NEWS) as wakeup:
            while not context.stopping():
                wakeup.clear()
                try:
                    view = await _checked(context, event, only)
                except ApiError as refused:
                    view = CheckView("unknown", refused.says, time.wall_ms(), refused.code)
                # A new age or round-trip time alone is not a change.
                about = (view.verdict, view.node, view.state, view.nearest, view.instead, view.code)
                if about != said or time.boottime_ms() - said_ms >= (BEAT_S - GAP_S) * 1000:
                    number, said, said_ms = number + 1, about, time.boottime_ms()
                    yield sse(view, str(number))
                pause_s = max(GAP_S, PAUSE * _cost_s(context))
                await time.sleep(pause_s)
                await wakeup.woken(max(0.0, BEAT_S - pause_s))
        yield END
    finally:
        checks.watchers -= 1


async def _checked(context: ApiContext, event: Submitted, only: NodeId | None) -> CheckView:
    where = _answer(context, CheckAsked(event.owner, event.spec, only))
    found, predicted = map(decided, await context.time.together(where, context.leader.ask(EstimatesAsked())))
    assert isinstance(found, Checked) and isinstance(predicted, Predicted)
    probe = None if found.node is None else await context.probes.ask(found.node, context.leader.epoch)
    verdict, says, instead = found.verdict, found.says, None
    if found.verdict == "now" and probe is not None and not probe.answered:
        instead, asked = (None, None) if only is not None else await _another(context, event, found)
        verdict = "unhealthy"
        says = f"it would be given to {found.label}, but that does not answer now; {_after(instead, asked)}"
    return CheckView(
        verdict,
        says,
        context.time.wall_ms(),
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
        estimate_view(found.estimate, context.dated),
        scores_view(predicted.scores),
        {gate.value: nodes for gate, nodes in found.gate_codes.items()},
    )


async def _answer(context: ApiContext, asked: CheckAsked) -> Answer:
    """The kernel's answer, when it is this check's turn."""
    async with context.probes.checks.turn(lambda: _cost_s(context)):
        return await context.leader.ask(asked)


def _cost_s(context: ApiContext) -> float:
    return context.leader.question_s.get(CheckAsked, 0.0)


def _probed(probe: Probe | None) -> ProbeView | None:
    return None if probe is None else ProbeView(probe.answered, probe.round_trip_ms, probe.silent_ms)


def _after(instead: str | None, asked: int | None) -> str:
    """What is known of other machines. `asked`: how many did not answer a probe; None: none was looked for."""
    if instead is not None:
        return f"{instead} has room and answers: the job would be moved there once the first is given up"
    if asked is None:
        return "no other was asked"
    if not asked:
        return "no other machine has room now"
    return "nor does the other one that was asked" if asked == 1 else f"nor do the {asked} others that were asked"


async def _another(context: ApiContext, event: Submitted, first: Checked) -> tuple[str | None, int | None]:
    """Another machine that has room and answers, and how many did not answer a probe; None: none was probed."""
    passed = [first.node] if first.node is not None else []
    for asked in range(OTHERS_ASKED):
        found = await _answer(context, CheckAsked(event.owner, event.spec, without=tuple(passed)))
        if not isinstance(found, Checked):
            return None, asked or None
        if found.node is None:
            return None, asked
        if (await context.probes.ask(found.node, context.leader.epoch)).answered:
            return found.label, asked
        passed.append(found.node)
    return None, OTHERS_ASKED
