"""Every request to a network, defined once, as steps that both clients run (see `steps`).

Nothing here opens a connection or waits. The idempotency key that makes a mutation safe to repeat is made here, once
for each call and before the first try.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.client.job_options import FOLDER, FOLDER_OPTIONS, GITIGNORE, INCLUDE, Command, requested
from holdfast.client.retry import Patience
from holdfast.client.steps import Ask, NewKey, Now, Pause, Steps
from holdfast.errors import HoldfastError, Misuse, Refused, WaitExpired, verdict_error
from holdfast.wire.errors import ErrorView
from holdfast.wire.http import (
    AccessRequest,
    AccessTokenView,
    AccessView,
    ArrayRequest,
    ArrayView,
    CheckView,
    DoctorView,
    EstimatesView,
    ExplainView,
    JobList,
    JobRequest,
    JobView,
    JoinTokenView,
    MoveRequest,
    NodeView,
    TokenRequest,
    TokenView,
)

if TYPE_CHECKING:
    from holdfast.client.array_results import Collected
    from holdfast.client.content import Told
    from holdfast.client.results import Synced

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5
"""Pauses between polls of a job: short at first, because most jobs that are waited for are short."""
MEANT = "If all of it is meant: package=client.content.send(folder).manifest in place of folder=…"


# --- jobs ---


def submit(command: Command, options: Mapping[str, Any]) -> Steps[JobView]:
    asked = yield from _prepared(command, options)
    headers = {"Idempotency-Key": str(asked.key)}
    return (yield Ask(JobView, "POST", "/v1/jobs", body=asked, headers=headers))


def _keyed(request: JobRequest) -> Steps[JobRequest]:
    return request if request.key else msgspec.structs.replace(request, key=(yield NewKey()))


def _prepared(command: Command, options: Mapping[str, Any]) -> Steps[JobRequest]:
    """The request with an idempotency key, after its folder has been sent."""
    folder = options.get(FOLDER)
    asked = yield from _keyed(checked(command, options))
    if folder is None:
        return asked
    from holdfast.client import content, selection

    rules = selection.FolderRules(options.get(INCLUDE) or (), options.get(GITIGNORE) is not False)
    sent = yield from content.send_along(folder, MEANT, rules)
    return msgspec.structs.replace(asked, package=sent.manifest)


def submit_many(commands: Iterable[Command]) -> Steps[list[JobView | ErrorView]]:
    body: list[JobRequest] = []
    for one in commands:
        body.append((yield from _keyed(requested(one, {}))))
    answers = yield Ask(list[dict[str, Any]], "POST", "/v1/jobs/batch", body=body)
    # A job and an error are distinguished by a field that only one of them has.
    return [msgspec.convert(one, JobView if "phase" in one else ErrorView) for one in answers]


def rerun(job: str, key: str | None) -> Steps[JobView]:
    headers = {"Idempotency-Key": key or (yield NewKey())}
    return (yield Ask(JobView, "POST", f"/v1/jobs/{segment(job)}/rerun", headers=headers))


def job(job: str, live: bool = False) -> Steps[JobView]:
    params = {"live": True} if live else {}
    return (yield Ask(JobView, "GET", f"/v1/jobs/{segment(job)}", params))


def _look(job: str) -> Steps[JobView]:
    """For frequent polling: without the estimate, which costs the orchestrator more than the rest."""
    return (yield Ask(JobView, "GET", f"/v1/jobs/{segment(job)}", {"estimate": False}))


def jobs(owner: str | None, phase: str | None, limit: int | None, after: str | None) -> Steps[JobList]:
    params = {"owner": owner, "phase": phase, "limit": limit, "after": after}
    return (yield Ask(JobList, "GET", "/v1/jobs", params))


def stop(job: str) -> Steps[JobView]:
    return (yield Ask(JobView, "POST", f"/v1/jobs/{segment(job)}/stop"))


def move(job: str, to: str, key: str | None) -> Steps[JobView]:
    asked = MoveRequest(to, key or (yield NewKey()))
    headers = {"Idempotency-Key": str(asked.key)}
    return (yield Ask(JobView, "POST", f"/v1/jobs/{segment(job)}/move", body=asked, headers=headers))


def explain(job: str) -> Steps[ExplainView]:
    return (yield Ask(ExplainView, "GET", f"/v1/jobs/{segment(job)}/explain"))


def output(job: str, attempt: str, stream: str, offset: int) -> Steps[bytes]:
    """The output of one attempt from a byte offset on; empty at its end."""
    path = f"/v1/jobs/{segment(job)}/output/{segment(attempt)}/{segment(stream)}"
    return (yield Ask(bytes, "GET", path, {"offset": offset}))


def received(job: str) -> Steps[JobView]:
    return (yield Ask(JobView, "POST", f"/v1/jobs/{segment(job)}/received"))


def results(
    job_id: str, *, to: str | Path | None = None, told: "Told" = lambda progress: None, receive: bool = True
) -> "Steps[Synced]":
    from holdfast.client.results import Results

    view = yield from job(job_id)
    synced = yield from Results(view).sync(to, told)
    if receive and view.files is not None and not view.files.received:
        yield from received(view.id)
    return synced


def run(command: Command, options: Mapping[str, Any], timeout_s: float | None, check: bool) -> Steps[JobView]:
    _need_seconds(timeout_s)
    view = yield from submit(command, options)
    return (yield from wait(view.id, timeout_s, check))


def wait(job_id: str, timeout_s: float | None, check: bool) -> Steps[JobView]:
    def ended(view: JobView) -> bool:
        return view.phase == "ended"

    def expired(view: JobView) -> HoldfastError:
        return WaitExpired(
            f"{view.id} is still {view.phase} after {timeout_s:g} s" + (f": {view.waiting}" if view.waiting else ""),
            hint=f"It goes on. `holdfast job explain {view.id}` says what it waits for.",
        )

    view = yield from _until(job_id, lambda: _look(job_id), ended, timeout_s, expired)
    error = verdict_error(view) if check else None
    if error is not None:
        raise error
    return view


def wait_moved(job_id: str, timeout_s: float | None) -> Steps[JobView]:
    def over(view: JobView) -> bool:
        if view.move is not None and view.move.state == "failed":
            raise Refused(f"{view.id} could not be moved to {view.move.to}: {view.move.says}", code="not_moved")
        return view.move is None or view.move.state == "done"

    def expired(view: JobView) -> HoldfastError:
        state = view.move.state if view.move else "unknown"
        hint = f"It goes on. `holdfast job explain {view.id}` says what it waits for."
        return WaitExpired(f"the move of {view.id} is still {state} after {timeout_s:g} s", hint=hint)

    return (yield from _until(job_id, lambda: _look(job_id), over, timeout_s, expired))


def _until(
    what: str,
    look: Callable[[], Steps[Any]],
    enough: Callable[[Any], bool],
    timeout_s: float | None,
    expired: Callable[[Any], HoldfastError],
) -> Steps[Any]:
    """Poll until done. An interruption gets the message that only the waiting has ended."""
    _need_seconds(timeout_s)
    began = yield Now()
    pause = FIRST_LOOK_S
    try:
        while True:
            view = yield from look()
            if enough(view):
                return view
            now = yield Now()
            left = None if timeout_s is None else began + timeout_s - now
            if left is not None and left <= 0:
                raise expired(view)
            yield Pause(pause if left is None else min(pause, left), idle_s=math.inf if left is None else left)
            pause = min(pause * 1.5, LAST_LOOK_S)
    except KeyboardInterrupt as interruption:
        interruption.args = (f"{what} goes on: only the waiting was interrupted. `holdfast stop {what}` stops it.",)
        raise


# --- arrays ---


def submit_array(command: Command, items: Iterable[str], options: Mapping[str, Any]) -> Steps[ArrayView]:
    each = _items(items)
    one = yield from _prepared(command, options)
    asked = ArrayRequest(one, each, key=one.key)
    headers = {"Idempotency-Key": str(asked.key)}
    return (yield Ask(ArrayView, "POST", "/v1/arrays", body=asked, headers=headers))


def array(array: str) -> Steps[ArrayView]:
    return (yield Ask(ArrayView, "GET", f"/v1/arrays/{segment(array)}"))


def stop_array(array: str) -> Steps[ArrayView]:
    return (yield Ask(ArrayView, "POST", f"/v1/arrays/{segment(array)}/stop"))


def retry_array(array: str) -> Steps[ArrayView]:
    return (yield Ask(ArrayView, "POST", f"/v1/arrays/{segment(array)}/retry"))


def wait_array(array_id: str, timeout_s: float | None, told: Callable[[ArrayView], None]) -> Steps[ArrayView]:
    def ended(view: ArrayView) -> bool:
        told(view)
        return view.ended

    def expired(view: ArrayView) -> HoldfastError:
        done = view.counts.get("succeeded", 0)
        says = f"{view.id}: {done} of {view.items} items have succeeded after {timeout_s:g} s"
        return WaitExpired(says, hint="It goes on.")

    return (yield from _until(array_id, lambda: array(array_id), ended, timeout_s, expired))


def array_results(array_id: str, to: str | Path | None, told: Callable[[int, int], None]) -> "Steps[Collected]":
    from holdfast.client.array_results import ArrayResults

    view = yield from array(array_id)
    return (yield from ArrayResults(view).sync(to, told))


# --- nodes, tokens, the network ---


def nodes() -> Steps[list[NodeView]]:
    return (yield Ask(list[NodeView], "GET", "/v1/nodes"))


def node(node: str) -> Steps[NodeView]:
    return (yield Ask(NodeView, "GET", f"/v1/nodes/{segment(node)}"))


def drain(node: str, on: bool) -> Steps[NodeView]:
    return (yield Ask(NodeView, "POST", f"/v1/nodes/{segment(node)}/drain", {"on": on}))


def create_token(ttl_ms: int, uses: int, note: str, key: str) -> Steps[TokenView]:
    headers = {"Idempotency-Key": key or (yield NewKey())}
    return (yield Ask(TokenView, "POST", "/v1/tokens", body=TokenRequest(ttl_ms, uses, note), headers=headers))


def tokens() -> Steps[list[JoinTokenView]]:
    return (yield Ask(list[JoinTokenView], "GET", "/v1/tokens"))


def create_access(role: str, owner: str, ttl_ms: int, note: str, key: str) -> Steps[AccessView]:
    headers = {"Idempotency-Key": key or (yield NewKey())}
    asked = AccessRequest(role, owner, ttl_ms, note)
    return (yield Ask(AccessView, "POST", "/v1/access", body=asked, headers=headers))


def access_tokens() -> Steps[list[AccessTokenView]]:
    return (yield Ask(list[AccessTokenView], "GET", "/v1/access"))


def revoke_access(access: str) -> Steps[None]:
    yield Ask(None, "DELETE", f"/v1/access/{segment(access)}")


def revoke_token(token: str) -> Steps[None]:
    yield Ask(None, "DELETE", f"/v1/tokens/{segment(token)}")


def ping(patience_s: float | None) -> Steps[None]:
    patience = None if patience_s is None else Patience(give_up_s=patience_s)
    yield Ask(None, "GET", "/healthz", patience=patience)


def doctor() -> Steps[DoctorView]:
    return (yield Ask(DoctorView, "GET", "/v1/doctor"))


# --- before a job is submitted ---


def check(command: Command, options: Mapping[str, Any], node: str | None) -> Steps[CheckView]:
    return (yield Ask(CheckView, "POST", "/v1/check", {"node": node}, body=checked(command, options)))


def checked(command: Command, options: Mapping[str, Any]) -> JobRequest:
    """The request without its folder: a check sends no files, and a submission sends them first."""
    return requested(command, {word: option for word, option in options.items() if word not in FOLDER_OPTIONS})


def estimates() -> Steps[EstimatesView]:
    return (yield Ask(EstimatesView, "GET", "/v1/estimates"))


# --- streams ---


def logs_path(job: str) -> str:
    return f"/v1/jobs/{segment(job)}/logs"


# --- arguments ---


def _items(items: Any) -> list[str]:
    """The items of an array. A single string is rejected: it is not a list of its characters."""
    if isinstance(items, str | bytes):
        raise Misuse(f"{items!r:.60} is not a list of items", hint='Give them one by one: ["a", "b"].')
    each = list(items)
    for place, item in enumerate(each):
        if isinstance(item, bool) or not isinstance(item, str | int | float | PathLike):
            raise Misuse(f"item {place} of the array is {item!r:.60}", hint="Items are text, numbers or paths.")
    return [str(item) for item in each]


def _need_seconds(timeout_s: Any) -> None:
    """Checked before anything is sent, not when the waiting begins."""
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float)):
        raise Misuse(f"timeout_s is {timeout_s!r:.60}", hint="It takes a number of seconds.")


def segment(identifier: Any) -> str:
    """An id as one path segment, so that pasted text can never change the path. Accepts a job as well."""
    text = getattr(identifier, "id", identifier)
    # Dots would be taken as path steps, even if they are percent-encoded.
    if not isinstance(text, str) or text in ("", ".", ".."):
        raise Misuse(f"{identifier!r:.60} is not an id", hint="Give the id, the beginning of it, or the name.")
    return quote(text, safe="")
