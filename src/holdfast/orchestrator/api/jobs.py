"""Jobs: submit, list, show, explain, stop, move, run again. Turns requests into events, and answers into views."""

import secrets
from typing import Annotated

import msgspec

from holdfast.kernel.decision import Estimate, Explanation, Predicted, Rejected
from holdfast.kernel.events import CancelAsked, EstimatesAsked, ExplainAsked, FilesReceived, MoveAsked, Submitted
from holdfast.model import Attempt, Job, JobId, JobPhase, job_id, job_of
from holdfast.orchestrator.api.call import NO_STORE, ApiCall, Reply
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.job_requests import checked_key, no_item
from holdfast.orchestrator.api.refusals import decided, rejection
from holdfast.orchestrator.api.request_files import need_again, resolved
from holdfast.orchestrator.api.submissions import BATCH_MAX, Submission, asked_for, stands
from holdfast.orchestrator.api.views import estimate_view, explain_view, job_view
from holdfast.orchestrator.api.visibility import seen_attempt, seen_entry
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.logs.log_files import STREAMS, LogRefused
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import ExplainView, JobList, JobRequest, JobView, MoveRequest, ProgressView

PAGE_MAX = 1_000
ESTIMATES_S_MAX, ESTIMATES_MAX = 1.0, 200
"""Limits of the estimates in a listing: seconds to wait for them, and number of jobs."""
OUTPUT_BYTES_MAX = 1 << 20
"""Size limit of one piece of a job's output."""


async def submit(call: ApiCall, data: JobRequest) -> JobView:
    context = call.context
    failpoint("submit.received")
    key = call.key or data.key
    owner = call.principal.name
    asked = asked_for(await resolved(context, data, owner), owner, key, context.leader.settings)
    view = (await context.submissions.submit(context, [asked]))[0]
    return stands(view)


async def submit_batch(call: ApiCall, data: list[JobRequest]) -> list[JobView | ErrorView]:
    """Each job is accepted or refused on its own; the answers are in the order of the requests."""
    context = call.context
    if not 1 <= len(data) <= BATCH_MAX:
        raise ApiError("bad_request", f"a batch has 1 to {BATCH_MAX} jobs; this one has {len(data)}")
    owner = call.principal.name
    views: list[JobView | ErrorView | None] = []
    asked: list[Submission] = []
    for one in data:
        try:
            asked.append(asked_for(await resolved(context, one, owner), owner, one.key, context.leader.settings))
            views.append(None)
        except Unavailable:
            raise
        except ApiError as bad:
            views.append(bad.view)
    submitted = iter(await context.submissions.submit(context, asked)) if asked else iter(())
    return [view if view is not None else next(submitted) for view in views]


async def list_jobs(
    call: ApiCall,
    owner: str | None = None,
    phase: str | None = None,
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 50,
    after: str | None = None,
) -> JobList:
    context = call.context
    if phase is not None and phase not in set(JobPhase):
        raise ApiError("bad_request", f"phase is {phase[:60]!r}; it can be {', '.join(JobPhase)}")
    sees = call.principal.sees
    if after is not None and sees is not None:
        last = (await context.queries.known_jobs([after])).get(after)
        if last is None or last.owner != sees:
            return JobList([])  # as after a job that does not exist
    jobs = await context.queries.jobs(sees or owner, phase, limit + 1, after)
    more = len(jobs) > limit
    page = jobs[:limit]
    predicted = await estimates_of(context, [job for job in page if job.live])
    ended = await context.queries.last_attempts(job for job in page if not job.live)
    views = [_with_estimate(context, _listed(context, job, ended.get(job.id)), predicted) for job in page]
    return JobList(views, page[-1].id if more else None)


def _listed(context: ApiContext, job: Job, last: Attempt | None) -> JobView:
    """The view for a list: without attempts, but with the node and the progress. `last`: of a job that has ended."""
    view = job_view(job, context.dated)
    if last is not None:
        return msgspec.structs.replace(view, node=last.node)
    attempts = context.fleet.attempts_of(job) if job.live else []
    if not attempts:
        return view
    running = next((attempt.node for attempt in reversed(attempts) if attempt.may_win), None)
    return msgspec.structs.replace(view, node=running, progress=_progress(context, attempts))


def _progress(context: ApiContext, attempts: list[Attempt]) -> list[ProgressView]:
    told = [(attempt.id, context.fleet.progress_of(attempt.id)) for attempt in attempts if attempt.live]
    return [ProgressView(id, p.stage, p.done, p.total, p.cpu_ms, p.memory_mib) for id, p in told if p]


async def show_job(call: ApiCall, job: str, estimate: bool = True, live: bool = False) -> JobView:
    """`estimate`: include when the job will start and end; a caller that polls until the end does not need it. `live`:
    a name means the job that has not ended; refused if there are several."""
    context = call.context
    found = await call.job(job, live=live)
    predicted = await estimates_of(context, [found] if found.live and estimate else [])
    return _with_estimate(context, await _shown(call, found), predicted)


async def estimates_of(context: ApiContext, jobs: list[Job]) -> dict[JobId, Estimate]:
    """When these jobs will start and end; empty if the leader does not answer soon."""
    if not jobs:
        return {}
    try:
        async with context.time.within(ESTIMATES_S_MAX):
            answer = await context.leader.ask(EstimatesAsked(tuple(job.id for job in jobs[:ESTIMATES_MAX])))
    except (TimeoutError, Unavailable):
        return {}
    return answer.estimates if isinstance(answer, Predicted) else {}


def _with_estimate(context: ApiContext, view: JobView, predicted: dict[JobId, Estimate]) -> JobView:
    estimate = estimate_view(predicted.get(JobId(view.id)), context.dated)
    return view if estimate is None else msgspec.structs.replace(view, estimate=estimate)


async def explain_job(call: ApiCall, job: str) -> ExplainView:
    context = call.context
    found = await call.job(job)
    if found.live:
        answer = await context.leader.ask(ExplainAsked(found.id))
        if isinstance(answer, Explanation):
            return explain_view(answer, context.dated)
        if isinstance(answer, Rejected) and answer.code != "not_live":
            raise rejection(answer)
        found = await call.job(found.id)
    verdict = found.verdict.value if found.verdict else "unknown"
    return ExplainView(found.id, found.phase.value, "", None, f"nothing: it has ended ({verdict})", [], {}, "", 0)


async def _meant(call: ApiCall, named: str) -> Job:
    """The single job that a request acts on."""
    return no_item(named, await call.job(named, live=True))


async def stop_job(call: ApiCall, job: str) -> JobView:
    """Stopping a job that has ended changes nothing and is not an error."""
    context = call.context
    found = await _meant(call, job)
    if found.live:
        answer = await context.leader.ask(CancelAsked(found.id, by=call.principal.name))
        if isinstance(answer, Rejected) and answer.code != "not_live":
            raise rejection(answer)
    return await _shown(call, await call.job(found.id))


async def rerun_job(call: ApiCall, job: str) -> JobView:
    """Submit the same specification as a new job of the same owner. Requests with the same key make one job."""
    context = call.context
    found = await call.job(job)
    await need_again(context, found)
    key = checked_key(call.key or secrets.token_hex(16))
    # A key of its own kind: the key of the first submission must not lead back to that job.
    event = Submitted(job_id(found.owner, f"rerun:{found.id}:{key}"), found.owner, found.spec, found.spec_hash)
    view = (await context.submissions.submit(context, [Submission(event, keyed=True)]))[0]
    return stands(view)


async def move_job(call: ApiCall, job: str, data: MoveRequest) -> JobView:
    """Run a job on a chosen node, and stop it where it is once it runs there. A repeated request changes nothing."""
    context = call.context
    found = await _meant(call, job)
    node = await context.queries.node(data.to)
    key = checked_key(call.key or data.key or secrets.token_hex(16))
    decided(await context.leader.ask(MoveAsked(found.id, node.id, by=call.principal.name, key=key)))
    return await _shown(call, await call.job(found.id))


async def output(
    call: ApiCall,
    job: str,
    attempt: str,
    stream: str,
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0,
) -> Reply:
    """The output of one attempt, byte for byte from `offset`; empty beyond the end of what has arrived."""
    context = call.context
    found = await call.job(job)
    if job_of(attempt) != found.id or stream not in STREAMS:
        raise ApiError("not_found", f"{found.id} has no output {attempt[:40]!r} {stream[:20]!r}")
    if gone := await context.queries.ask(context.log_retention.gone, found, context.leader.served_ms()):
        raise ApiError("output_gone", gone)
    try:
        data = await context.queries.ask(context.logs.read, attempt, stream, offset, OUTPUT_BYTES_MAX)
    except LogRefused as wrong:
        raise ApiError("not_found", str(wrong)) from None
    return Reply(data, "application/octet-stream", NO_STORE)


async def files_received(call: ApiCall, job: str) -> JobView:
    """Confirm that the files of the job have arrived. A repeated call changes only how long they are kept."""
    context = call.context
    found = await call.job(job)
    decided(await context.leader.ask(FilesReceived(found)))
    return await _shown(call, found)


async def _shown(call: ApiCall, job: Job) -> JobView:
    context, caller = call.context, call.principal
    attempts, entries = await context.queries.job_story(job)
    view = job_view(job, context.dated, attempts, [seen_entry(caller, entry) for entry in entries])
    view = msgspec.structs.replace(view, attempts=[seen_attempt(caller, attempt) for attempt in view.attempts])
    if view.files is not None and await context.queries.received(job.id):
        view = msgspec.structs.replace(view, files=msgspec.structs.replace(view.files, received=True))
    under_way = _progress(context, attempts)
    return msgspec.structs.replace(view, progress=under_way) if under_way else view
