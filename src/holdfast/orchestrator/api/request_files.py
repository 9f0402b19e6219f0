"""Checks before submission that the files named in a request exist, so that no job waits for a machine and then fails
for a missing file. Reads rows and the content store; decides nothing about placement.
"""

from collections.abc import Iterable

import msgspec

from holdfast.blobs.keys import is_sha
from holdfast.kernel.events import Submitted
from holdfast.kernel.files import manifests_of
from holdfast.model import Job, Verdict
from holdfast.orchestrator.api.context import ApiContext, ContentPort
from holdfast.orchestrator.api_error import ApiError, Unavailable
from holdfast.orchestrator.content.s3_inputs import SCHEME
from holdfast.wire.http import InputRequest, JobRequest


async def resolved(context: ApiContext, request: JobRequest, owner: str) -> JobRequest:
    """The request with every input given by hash or URL; the files of an earlier job are replaced by their manifest."""
    for item in request.inputs:
        if sum(map(bool, (item.manifest, item.url, item.job))) != 1:
            raise ApiError("bad_request", f"the input {item.name[:64]!r} needs exactly one of manifest, url and job")
    inputs = [await _made_by(context, item, owner) if item.job else item for item in request.inputs]
    for item in inputs:
        if item.url.startswith(SCHEME):
            await _fits(context, item, request.disk_mib << 20)
    # An invalid hash is rejected when the specification is checked, with a better message.
    for name in filter(is_sha, (request.package, *(item.manifest for item in inputs))):
        if not await context.content.ready(owner, name):
            raise ApiError(
                "not_found",
                f"no folder was sent under the hash {name[:64]!r}",
                "Send it first (`client.content.send`), and name the hash that gives.",
            )
    return msgspec.structs.replace(request, inputs=inputs) if request.inputs else request


async def _fits(context: ApiContext, item: InputRequest, disk: int) -> None:
    """Raises ApiError if an object may not be read, does not exist, or does not fit. If its bucket does not answer, the
    object may be available by the time the job runs."""
    size = await context.content.inputs.size_of(item.url)
    room = min(item.bytes_max or disk, disk)
    if size is not None and size > room:
        raise ApiError(
            "too_large",
            f"the input {item.name[:64]!r} has {size} bytes; there is room for {room}",
            "Ask for more disk.",
        )


async def _made_by(context: ApiContext, item: InputRequest, owner: str) -> InputRequest:
    job = await context.queries.job(item.job, owner, owner)
    if job.verdict is not Verdict.SUCCEEDED or job.result is None:
        stands = job.verdict.value if job.verdict else f"still {job.phase.value}"
        raise ApiError(
            "no_files",
            f"the input {item.name[:64]!r} refers to the files of {job.id}, which is {stands}",
            "Only a job that succeeded can be read from.",
        )
    if not job.result.manifest:
        raise ApiError(
            "no_files",
            f"the input {item.name[:64]!r} refers to the files of {job.id}, which made no files",
            "Files that a job leaves in its working folder are kept; what it prints is not among them.",
        )
    await _still_there(context, job, (job.result.manifest,), "made")
    return InputRequest(item.name, manifest=job.result.manifest)


def need_named(content: ContentPort, events: Iterable[Submitted]) -> None:
    """The final check, in the same step as the commit: the files that a job names exist, and still will when its row
    does."""
    named = {
        (event.owner, name)
        for event in events
        for name in (event.spec.package, *(item.manifest for item in event.spec.inputs))
        if name
    }
    if not all(content.may_name(owner, [name]) for owner, name in named):
        raise Unavailable("busy", "this orchestrator has only just begun to lead; nothing was done")


async def need_again(context: ApiContext, job: Job) -> None:
    """Raises ApiError if the files that a job ran on are no longer kept."""
    await _still_there(context, job, manifests_of(job, None), "ran on")


async def _still_there(context: ApiContext, job: Job, manifests: Iterable[str], did: str) -> None:
    for name in manifests:
        if not await context.content.whole(job.owner, name):
            raise ApiError(
                "no_files", f"the files that {job.id} {did} are no longer on the network", "Send them again."
            )
