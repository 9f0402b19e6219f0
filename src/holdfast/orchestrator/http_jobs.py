"""Jobs over HTTP: submit, list, show, explain, stop, move, run again. Requests become events, answers views."""

import asyncio
import secrets
from typing import Annotated, NamedTuple

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.params import Parameter

from holdfast.kernel.decision import Answer, Estimate, Explanation, Foretold, Rejected, Taken
from holdfast.kernel.events import CancelAsked, EstimatesAsked, ExplainAsked, FilesReceived, MoveAsked, Submitted
from holdfast.model import Attempt, Job, JobId, JobPhase, Settings, job_id, job_of
from holdfast.orchestrator.asked import BadRequest, checked_key, no_item, submission
from holdfast.orchestrator.asked_files import need_again, need_named, resolved
from holdfast.orchestrator.failpoints import failpoint
from holdfast.orchestrator.front import Front, Refused, acting_for, error_of
from holdfast.orchestrator.logs import STREAMS, LogRefused
from holdfast.orchestrator.loop import Unavailable
from holdfast.orchestrator.reading import NotFound
from holdfast.orchestrator.views import estimate_view, explain_view, job_view
from holdfast.wire.http import ErrorView, ExplainView, JobList, JobRequest, JobView, MoveRequest, ProgressView

BATCH_MAX = 1_000
PAGE_MAX = 1_000
ESTIMATES_S_MAX, ESTIMATES_MAX = 1.0, 200
"""An extra of listings: of so many jobs, and only if it is there soon."""
OUTPUT_BYTES_MAX = 1 << 20
"""Of one piece of a job's output."""


class Submissions:
    """Lets one submission of a job through at a time.

    A job that ended is known to the store only, and one that is being submitted to the kernel only; looking and
    submitting as one step keeps two requests with one key from falling between the two.
    """

    def __init__(self) -> None:
        self._busy: set[JobId] = set()
        self._freed = asyncio.Condition()

    async def submit(self, front: Front, asked: list["Asked"]) -> list[JobView | ErrorView]:
        keyed = {one.event.job for one in asked if one.keyed}
        if not keyed:
            return await self._submit(front, asked, {})
        async with self._freed:
            await self._freed.wait_for(lambda: self._busy.isdisjoint(keyed))
            self._busy |= keyed
        try:
            return await self._submit(front, asked, await front.reading.known_jobs(keyed))
        finally:
            async with self._freed:
                self._busy -= keyed
                self._freed.notify_all()

    async def _submit(self, front: Front, asked: list["Asked"], known: dict[str, Job]) -> list[JobView | ErrorView]:
        fresh = [one.event for one in asked if one.event.job not in known]
        need_named(front.content, fresh)
        said, taken = await front.leader.ask_all(fresh) if fresh else ([], {})
        answers = iter(said)
        return [
            _outcome(event, known[event.job], again=True)
            if event.job in known
            else _answered(event, next(answers), taken.get(event.job))
            for event, _ in asked
        ]


class Asked(NamedTuple):
    """One submission. Without a key it is its own: nothing can be repeated by accident, or on purpose, and nobody
    needs to look whether its job exists."""

    event: Submitted
    keyed: bool


def _asked(request: JobRequest, owner: str, key: str | None, settings: Settings) -> Asked:
    checked = checked_key(key) if key else secrets.token_hex(16)
    return Asked(submission(request, owner, checked, settings), keyed=bool(key))


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
    owner = acting_for(request) or "admin"
    asked = _asked(await resolved(front, data, owner), owner, key, front.leader.settings)
    view = (await front.submissions.submit(front, [asked]))[0]
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
    asked: list[Asked] = []
    for one in data:
        try:
            asked.append(_asked(await resolved(front, one, owner), owner, one.key, front.leader.settings))
            views.append(None)
        except (BadRequest, NotFound) as bad:
            views.append(ErrorView(bad.code, bad.says, bad.hint))
    submitted = iter(await front.submissions.submit(front, asked)) if asked else iter(())
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
    foretold = await estimates_of(front, [job for job in page if job.live])
    views = [_with_estimate(_listed(front, job), foretold) for job in page]
    return JobList(views, page[-1].id if more else None)


def _listed(front: Front, job: Job) -> JobView:
    """As in a list: without its attempts, but with where it runs and how far it is."""
    view = job_view(job)
    attempts = front.fleet.attempts_of(job) if job.live else []
    if not attempts:
        return view
    running = next((attempt.node for attempt in reversed(attempts) if attempt.may_win), None)
    return msgspec.structs.replace(view, node=running, progress=_progress(front, attempts))


def _progress(front: Front, attempts: list[Attempt]) -> list[ProgressView]:
    told = [(attempt.id, front.fleet.progress_of(attempt.id)) for attempt in attempts if attempt.live]
    return [ProgressView(id, p.stage, p.done, p.total, p.cpu_ms, p.memory_mib) for id, p in told if p]


@get("/v1/jobs/{job:str}")
async def show_job(job: str, request: Request, state: State, estimate: bool = True, live: bool = False) -> JobView:
    """`estimate`: with when it will start and end. Whoever asks again and again until it has ended needs none. `live`:
    by a name, the one that has not ended; refused where several have not."""
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request), live=live)
    foretold = await estimates_of(front, [found] if found.live and estimate else [])
    return _with_estimate(await _shown(front, found), foretold)


async def estimates_of(front: Front, jobs: list[Job]) -> dict[JobId, Estimate]:
    """When these will start and end. An extra: where it cannot be had soon, there is none."""
    if not jobs:
        return {}
    try:
        async with asyncio.timeout(ESTIMATES_S_MAX):
            answer = await front.leader.ask(EstimatesAsked(tuple(job.id for job in jobs[:ESTIMATES_MAX])))
    except (TimeoutError, Unavailable):
        return {}
    return answer.estimates if isinstance(answer, Foretold) else {}


def _with_estimate(view: JobView, foretold: dict[JobId, Estimate]) -> JobView:
    estimate = foretold.get(JobId(view.id))
    return view if estimate is None else msgspec.structs.replace(view, estimate=estimate_view(estimate))


@get("/v1/jobs/{job:str}/explain")
async def explain_job(job: str, request: Request, state: State) -> ExplainView:
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request))
    if found.live:
        answer = await front.leader.ask(ExplainAsked(found.id))
        if isinstance(answer, Explanation):
            return explain_view(answer)
        if isinstance(answer, Rejected) and answer.code != "not_live":
            raise Refused(error_of(answer))
        found = await front.reading.job(found.id, None)
    verdict = found.verdict.value if found.verdict else "unknown"
    return ExplainView(found.id, found.phase.value, "", None, f"nothing: it has ended ({verdict})", [], {}, "", 0)


async def _meant(front: Front, named: str, owner: str | None) -> Job:
    """The one job that something is to be done to."""
    return no_item(named, await front.reading.job(named, owner, live=True))


@post("/v1/jobs/{job:str}/stop", status_code=200)
async def stop_job(job: str, request: Request, state: State) -> JobView:
    """Stopping what has ended changes nothing and is no error: the caller wanted it stopped, and it is."""
    front: Front = state.front
    owner = acting_for(request)
    found = await _meant(front, job, owner)
    if found.live:
        answer = await front.leader.ask(CancelAsked(found.id, by=owner or "admin"))
        if isinstance(answer, Rejected) and answer.code != "not_live":
            raise Refused(error_of(answer))
    return await _shown(front, await front.reading.job(found.id, None))


@post("/v1/jobs/{job:str}/rerun", status_code=201)
async def rerun_job(job: str, request: Request, state: State) -> JobView:
    """The same specification as a new job, of the same owner. Repeated under one key, it is one job."""
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request))
    await need_again(front, found)
    key = checked_key(request.headers.get("idempotency-key") or secrets.token_hex(16))
    # Its own kind of key: one that the first submission used must not lead back to that one.
    event = Submitted(job_id(found.owner, f"rerun:{found.id}:{key}"), found.owner, found.spec, found.spec_hash)
    view = (await front.submissions.submit(front, [Asked(event, keyed=True)]))[0]
    if isinstance(view, ErrorView):
        raise Refused(view)
    return view


@post("/v1/jobs/{job:str}/move", status_code=200)
async def move_job(job: str, data: MoveRequest, request: Request, state: State) -> JobView:
    """Have a job run on a chosen node, and stop it where it is once it runs there. Asked again, nothing changes."""
    front: Front = state.front
    owner = acting_for(request)
    found = await _meant(front, job, owner)
    node = await front.reading.node(data.to)
    key = checked_key(request.headers.get("idempotency-key") or data.key or secrets.token_hex(16))
    answer = await front.leader.ask(MoveAsked(found.id, node.id, by=owner or "admin", key=key))
    if isinstance(answer, Rejected):
        raise Refused(error_of(answer))
    return await _shown(front, await front.reading.job(found.id, None))


@get("/v1/jobs/{job:str}/output/{attempt:str}/{stream:str}")
async def output(
    job: str,
    attempt: str,
    stream: str,
    request: Request,
    state: State,
    offset: Annotated[int, Parameter(ge=0, le=2**62)] = 0,
) -> Response[bytes]:
    """What one attempt printed, byte for byte from `offset`; empty behind the end of what has arrived."""
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request))
    if job_of(attempt) != found.id or stream not in STREAMS:
        raise BadRequest(f"{found.id} has no output {attempt[:40]!r} {stream[:20]!r}", code="not_found")
    if gone := await front.reading.ask(front.shelf.gone, found):
        raise BadRequest(gone, code="output_gone")
    try:
        data = await front.reading.ask(front.logs.read, attempt, stream, offset, OUTPUT_BYTES_MAX)
    except LogRefused as wrong:
        raise BadRequest(str(wrong), code="not_found") from None
    return Response(data, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


@post("/v1/jobs/{job:str}/received", status_code=200)
async def files_received(job: str, request: Request, state: State) -> JobView:
    """The files the job made have arrived. Saying so again changes nothing but for how long they are kept."""
    front: Front = state.front
    found = await front.reading.job(job, acting_for(request))
    answer = await front.leader.ask(FilesReceived(found))
    if isinstance(answer, Rejected):
        raise Refused(error_of(answer))
    return await _shown(front, found)


async def _shown(front: Front, job: Job) -> JobView:
    attempts, entries = await front.reading.job_story(job)
    view = job_view(job, attempts, entries)
    if view.files is not None and await front.reading.received(job.id):
        view = msgspec.structs.replace(view, files=msgspec.structs.replace(view.files, received=True))
    under_way = _progress(front, attempts)
    return msgspec.structs.replace(view, progress=under_way) if under_way else view


ROUTES = [submit, submit_batch, list_jobs, show_job, explain_job, stop_job, rerun_job, move_job, files_received, output]
