"""Jobs over HTTP: submit, list, show, explain, stop. Turns requests into events and answers into views."""

import asyncio
import secrets
from typing import Annotated

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.params import Parameter

from holdfast.kernel.decision import Answer, Explanation, Rejected, Taken
from holdfast.kernel.events import CancelAsked, ExplainAsked, Submitted
from holdfast.model import Job, JobId, JobPhase
from holdfast.orchestrator.asked import BadRequest, checked_key, submission
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.front import Front, Refused, acting_for, error_of
from holdfast.orchestrator.views import explain_view, job_view
from holdfast.wire.http import ErrorView, ExplainView, JobList, JobRequest, JobView

BATCH_MAX = 1_000
PAGE_MAX = 1_000


class Submissions:
    """Lets one submission of a job through at a time.

    A job that ended is known to the store only, and one that is being submitted to the kernel only; looking and
    submitting as one step keeps two requests with one key from falling between the two.
    """

    def __init__(self) -> None:
        self._busy: set[JobId] = set()
        self._freed = asyncio.Condition()

    async def submit(self, front: Front, events: list[Submitted]) -> list[JobView | ErrorView]:
        ids = {event.job for event in events}
        async with self._freed:
            await self._freed.wait_for(lambda: self._busy.isdisjoint(ids))
            self._busy |= ids
        try:
            return await self._submit(front, events)
        finally:
            async with self._freed:
                self._busy -= ids
                self._freed.notify_all()

    async def _submit(self, front: Front, events: list[Submitted]) -> list[JobView | ErrorView]:
        known = await front.reading.known_jobs(event.job for event in events)
        fresh = [event for event in events if event.job not in known]
        said, taken = await front.leader.ask_all(fresh) if fresh else ([], {})
        answers = iter(said)
        return [
            _outcome(event, known[event.job], again=True)
            if event.job in known
            else _answered(event, next(answers), taken.get(event.job))
            for event in events
        ]


def _answered(event: Submitted, answer: Answer, job: Job | None) -> JobView | ErrorView:
    if isinstance(answer, Rejected):
        return error_of(answer)
    if job is None:
        return ErrorView("store_unavailable", "the submission was not confirmed", "Send it again; that is safe.")
    return _outcome(event, job, again=isinstance(answer, Taken) and answer.again)


def _outcome(event: Submitted, job: Job, again: bool) -> JobView | ErrorView:
    """The job that stands under the key, unless the key was used for something else."""
    if job.spec_hash == event.spec_hash:
        return job_view(job, again=again)
    return ErrorView(
        "key_reused",
        f"the idempotency key was used before, for another job ({job.id})",
        "Use a new key, or send exactly what was sent before.",
    )


@post("/v1/jobs", status_code=201)
async def submit(data: JobRequest, request: Request, state: State) -> JobView:
    front: Front = state.front
    failpoint("submit.received")
    key = request.headers.get("idempotency-key") or data.key
    # Without a key every submission is its own: nothing can be repeated by accident, or on purpose.
    event = submission(
        data, acting_for(request) or "admin", checked_key(key) if key else secrets.token_hex(16), front.leader.settings
    )
    view = (await front.submissions.submit(front, [event]))[0]
    if isinstance(view, ErrorView):
        raise Refused(view)
    return view


@post("/v1/jobs/batch", status_code=200)
async def submit_batch(data: list[JobRequest], request: Request, state: State) -> list[JobView | ErrorView]:
    """Each stands or is refused by itself; the answers are in the order of the requests."""
    front: Front = state.front
    if not 1 <= len(data) <= BATCH_MAX:
        raise BadRequest(f"a batch has 1 to {BATCH_MAX} jobs; this one has {len(data)}")
    owner = acting_for(request) or "admin"
    views: list[JobView | ErrorView | None] = []
    events: list[Submitted] = []
    for one in data:
        try:
            key = checked_key(one.key) if one.key else secrets.token_hex(16)
            events.append(submission(one, owner, key, front.leader.settings))
            views.append(None)
        except BadRequest as bad:
            views.append(ErrorView(bad.code, bad.says, bad.hint))
    submitted = iter(await front.submissions.submit(front, events)) if events else iter(())
    return [view if view is not None else next(submitted) for view in views]


@get("/v1/jobs")
async def list_jobs(
    request: Request,
    state: State,
    owner: str | None = None,
    phase: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = 50,
    after: str | None = None,
) -> JobList:
    front: Front = state.front
    if phase is not None and phase not in set(JobPhase):
        raise BadRequest(f"phase is {phase[:60]!r}; it can be {', '.join(JobPhase)}")
    jobs = await front.reading.jobs(acting_for(request) or owner, phase, limit + 1, after)
    more = len(jobs) > limit
    page = jobs[:limit]
    return JobList([job_view(job) for job in page], page[-1].id if more else None)


@get("/v1/jobs/{job:str}")
async def show_job(job: str, request: Request, state: State) -> JobView:
    front: Front = state.front
    return await _shown(front, await front.reading.job(job, acting_for(request)))


@get("/v1/jobs/{job:str}/explain")
async def explain_job(job: str, request: Request, state: State) -> ExplainView:
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request))
    if found.live:
        answer = await front.leader.ask(ExplainAsked(found.id))
        if isinstance(answer, Explanation):
            return explain_view(answer)
        found = await front.reading.job(found.id, None)
    verdict = found.verdict.value if found.verdict else "unknown"
    return ExplainView(found.id, found.phase.value, "", None, f"nothing: it has ended ({verdict})", [], {}, "", 0)


@post("/v1/jobs/{job:str}/stop", status_code=200)
async def stop_job(job: str, request: Request, state: State) -> JobView:
    """Stopping what has ended changes nothing and is no error: the caller wanted it stopped, and it is."""
    front: Front = state.front
    owner = acting_for(request)
    found = await front.reading.job(job, owner)
    if found.live:
        answer = await front.leader.ask(CancelAsked(found.id, by=owner or "admin"))
        if isinstance(answer, Rejected) and answer.code != "not_live":
            raise Refused(error_of(answer))
    return await _shown(front, await front.reading.job(found.id, None))


async def _shown(front: Front, job: Job) -> JobView:
    attempts, entries = await front.reading.job_story(job)
    return job_view(job, attempts, entries)


ROUTES = [submit, submit_batch, list_jobs, show_job, explain_job, stop_job]
