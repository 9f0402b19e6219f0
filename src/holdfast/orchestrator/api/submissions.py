"""Submits jobs: one request per idempotency key at a time. Returns the job under the key."""

import secrets
from typing import TYPE_CHECKING, NamedTuple

from holdfast.kernel.decision import Answer, Rejected, Taken
from holdfast.kernel.events import Submitted
from holdfast.model import DeletedJob, Job, Settings
from holdfast.orchestrator.api.job_requests import checked_key, submission
from holdfast.orchestrator.api.refusals import refusal, rejection
from holdfast.orchestrator.api.request_files import need_named
from holdfast.orchestrator.api.views import Dated, job_view
from holdfast.orchestrator.queries import deleted_text
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import JobRequest, JobView

if TYPE_CHECKING:
    from holdfast.orchestrator.api.context import ApiContext

BATCH_MAX = 1_000


class Submissions:
    """Looks for a job in the store and then submits it, as one step; see `leader.dedupe`."""

    async def submit(self, context: "ApiContext", asked: list["Submission"]) -> list[JobView | ErrorView]:
        keyed = {one.event.job for one in asked if one.keyed}
        if not keyed:
            return await self._submit(context, asked, {})
        async with context.leader.turn(keyed):
            return await self._submit(context, asked, await context.queries.known_jobs(keyed))

    async def _submit(
        self, context: "ApiContext", asked: list["Submission"], known: dict[str, Job | DeletedJob]
    ) -> list[JobView | ErrorView]:
        fresh = [one.event for one in asked if one.event.job not in known]
        need_named(context.content, fresh)
        said, new = await context.leader.ask_all(fresh) if fresh else ([], {})
        taken: dict[str, Job | DeletedJob] = {**new}
        before = {answer.job for answer in said if isinstance(answer, Taken) and answer.job not in taken}
        if before:  # submitted meanwhile by another request, and perhaps over
            taken |= await context.queries.known_jobs(before)
        answers = iter(said)
        return [
            _outcome(event, known[event.job], context.dated, again=True)
            if event.job in known
            else _answered(event, next(answers), taken.get(event.job), context.dated)
            for event, _ in asked
        ]


class Submission(NamedTuple):
    """One submission. Without a key it cannot be repeated, so there is no need to check whether its job exists."""

    event: Submitted
    keyed: bool


def asked_for(request: JobRequest, owner: str, key: str | None, settings: Settings) -> Submission:
    checked = checked_key(key) if key else secrets.token_hex(16)
    return Submission(submission(request, owner, checked, settings), keyed=bool(key))


def _answered(event: Submitted, answer: Answer, job: Job | DeletedJob | None, dated: Dated) -> JobView | ErrorView:
    if isinstance(answer, Rejected):
        return rejection(answer).view
    if job is None:
        return ErrorView("store_unavailable", "the submission was not confirmed", "Send it again; that is safe.")
    return _outcome(event, job, dated, again=isinstance(answer, Taken) and answer.again)


def _outcome(event: Submitted, job: Job | DeletedJob, dated: Dated, again: bool) -> JobView | ErrorView:
    """The job under the key, or an error if it was deleted or the key was used for something else."""
    if job.spec_hash == event.spec_hash:
        if isinstance(job, Job):
            return job_view(job, dated, again=again)
        return ErrorView(
            "job_deleted",
            f"the idempotency key was used before: {deleted_text(job)} and was deleted; nothing was run",
            "To run it again, send it under a new key.",
        )
    return ErrorView(
        "key_reused",
        f"the idempotency key was used before, for another job ({job.id})",
        "Use a new key, or send exactly what was sent before.",
    )


def stands(view: JobView | ErrorView) -> JobView:
    """The job. Raises ApiError if it was refused."""
    if isinstance(view, ErrorView):
        raise refusal(view)
    return view
