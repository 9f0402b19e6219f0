"""Arrays: one request, one job for each item, one view of all items. An array is only the set of its jobs."""

import re
import secrets
from typing import Any

import msgspec

from holdfast.kernel.events import CancelAsked, Submitted
from holdfast.model import ArrayId, Job, Owner, Verdict, array_id, job_id
from holdfast.orchestrator.api.call import ApiCall
from holdfast.orchestrator.api.context import ApiContext
from holdfast.orchestrator.api.job_requests import checked_key, hash_of, submission
from holdfast.orchestrator.api.refusals import refusal
from holdfast.orchestrator.api.request_files import resolved
from holdfast.orchestrator.api.submissions import BATCH_MAX, Submission
from holdfast.orchestrator.api_error import ApiError
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import ArrayItem, ArrayRequest, ArrayView, JobRequest

ITEMS_MAX = 10_000
ITEM_BYTES_MAX = 4 * 1024
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)?\}")
"""A placeholder in a word of the command: `{}`, `{item}`, `{index}`, `{field}`."""


def item_request(request: JobRequest, item: str, index: int, items: int) -> JobRequest:
    """The job of one item. Unknown names in braces are left as they are: a command may have its own braces."""
    known = {**_fields(item), "": item, "item": item, "index": str(index)}
    # In one pass: the text of an item is not searched for placeholders.
    argv = [_PLACE.sub(lambda place: known.get(place[1] or "", place[0]), word) for word in request.argv]
    ours = {"HOLDFAST_ITEM": item, "HOLDFAST_INDEX": str(index), "HOLDFAST_ITEMS": str(items)}
    return msgspec.structs.replace(request, argv=argv, env={**request.env, **ours}, key=None)


def _fields(item: str) -> dict[str, str]:
    """The fields of an item that is a JSON object: strings as they are, other values as JSON."""
    if not item.lstrip().startswith("{"):
        return {}
    try:
        found = msgspec.json.decode(item, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in found.items()
    }


def array_view(array: str, jobs: list[Job]) -> ArrayView:
    """The newest job of each item counts: an item that was run again is judged by its last run."""
    newest = {job.spec.item: job for job in jobs}
    total = jobs[0].spec.items
    counts: dict[str, int] = {}
    for job in newest.values():
        state = job.verdict.value if job.verdict else job.phase.value
        counts[state] = counts.get(state, 0) + 1
    if total > len(newest):
        counts["unsent"] = total - len(newest)
    return ArrayView(
        id=array,
        name=jobs[0].spec.name,
        owner=jobs[0].owner,
        items=total,
        counts=dict(sorted(counts.items())),
        ended=len(newest) == total and not any(job.live for job in newest.values()),
        submitted_ms=min(job.submitted_ms for job in jobs),
        jobs=[_item(index, newest[index]) for index in sorted(newest)],
    )


def _item(index: int, job: Job) -> ArrayItem:
    return ArrayItem(
        index=index,
        job=job.id,
        phase=job.phase.value,
        verdict=job.verdict.value if job.verdict else None,
        failure=job.failure.code.value if job.failure else None,
        manifest=job.result.manifest if job.result else "",
    )


async def _jobs(call: ApiCall, array: str) -> list[Job]:
    context, owner = call.context, call.principal.sees
    jobs = await context.queries.ask(context.queries.store.jobs_of_array, array)
    if not jobs or owner not in (None, jobs[0].owner):
        raise ApiError(
            "not_found", f"there is no array {array[:80]!r}", "`holdfast jobs` lists its items while they live."
        )
    return jobs


async def _submit(context: ApiContext, array: str, events: list[Submitted]) -> None:
    """Submits in batches. A refusal ends it; the jobs before it stay, and a repeated request continues there."""
    for at in range(0, len(events), BATCH_MAX):
        asked = [Submission(event, keyed=True) for event in events[at : at + BATCH_MAX]]
        views = await context.submissions.submit(context, asked)
        refused = [view for view in views if isinstance(view, ErrorView)]
        if refused:
            raise refusal(_partly(refused[0], array, at + len(views) - len(refused), len(events)))


def _partly(refused: ErrorView, array: str, stand: int, asked: int) -> ErrorView:
    """The refusal, with a hint about the items that were accepted before it."""
    if not stand:
        return refused
    left = f"{stand} of {asked} items stand as {array}: send the rest under the same key, or stop them by that id."
    return msgspec.structs.replace(refused, hint=f"{refused.hint} {left}".strip())


async def submit_array(call: ApiCall, data: ArrayRequest) -> ArrayView:
    context = call.context
    owner = call.principal.name
    key = checked_key(call.key or data.key or secrets.token_hex(16))
    if not 1 <= len(data.items) <= ITEMS_MAX:
        raise ApiError("bad_request", f"an array has 1 to {ITEMS_MAX} items; this one has {len(data.items)}")
    for index, item in enumerate(data.items):
        if len(item.encode()) > ITEM_BYTES_MAX:
            raise ApiError(
                "bad_request", f"item {index} is longer than {ITEM_BYTES_MAX} bytes", "Send it as an input instead."
            )
    array = array_id(owner, key)
    template = await resolved(context, data.job, owner)
    events = [
        _event(context, item_request(template, item, index, len(data.items)), owner, array, index, len(data.items))
        for index, item in enumerate(data.items)
    ]
    await _submit(context, array, events)
    return array_view(array, await _jobs(call, array))


def _event(context: ApiContext, request: JobRequest, owner: str, array: ArrayId, index: int, items: int) -> Submitted:
    event = submission(request, owner, f"{array}:{index}", context.leader.settings)
    spec = msgspec.structs.replace(event.spec, array=array, item=index, items=items)
    return msgspec.structs.replace(event, spec=spec, spec_hash=hash_of(spec))


async def show_array(call: ApiCall, array: str) -> ArrayView:
    return array_view(array, await _jobs(call, array))


async def stop_array(call: ApiCall, array: str) -> ArrayView:
    context = call.context
    live = [job.id for job in await _jobs(call, array) if job.live]
    for at in range(0, len(live), BATCH_MAX):
        await context.leader.ask_all([CancelAsked(job, by=call.principal.name) for job in live[at : at + BATCH_MAX]])
    return array_view(array, await _jobs(call, array))


async def retry_array(call: ApiCall, array: str) -> ArrayView:
    """Runs the items again whose newest job ended without success. A repeated call while they run changes nothing."""
    context = call.context
    jobs = await _jobs(call, array)
    runs: dict[int, int] = {}
    for job in jobs:
        runs[job.spec.item] = runs.get(job.spec.item, 0) + 1
    newest = {job.spec.item: job for job in jobs}
    again = [job for job in newest.values() if not job.live and job.verdict is not Verdict.SUCCEEDED]
    events = [
        Submitted(
            job_id(job.owner, f"{array}:{job.spec.item}:{runs[job.spec.item]}"),
            Owner(job.owner),
            job.spec,
            job.spec_hash,
        )
        for job in again
    ]
    await _submit(context, array, events)
    return array_view(array, await _jobs(call, array))
