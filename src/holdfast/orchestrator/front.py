"""What every HTTP route shares: the things behind it, who is acting, and how an error is worded."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from litestar import Request

from holdfast.kernel.decision import Rejected
from holdfast.orchestrator.asked import checked_owner
from holdfast.orchestrator.bells import Bells
from holdfast.orchestrator.content import Content
from holdfast.orchestrator.fleet import Fleet
from holdfast.orchestrator.logs import LogStore
from holdfast.orchestrator.loop import Leader
from holdfast.orchestrator.metrics import Metrics
from holdfast.orchestrator.probing import Probes
from holdfast.orchestrator.reading import Reading
from holdfast.orchestrator.shelf import Shelf
from holdfast.orchestrator.views import failure_view
from holdfast.wire.http import ErrorView

if TYPE_CHECKING:
    from holdfast.orchestrator.http_jobs import Submissions
    from holdfast.orchestrator.http_tokens import TokenDesk

OWNER_HEADER = "x-holdfast-owner"
"""The admin acts for this owner: submits as them, and sees what they see."""

STATUS: dict[str, int] = {
    "bad_request": 400,
    "bad_cursor": 400,
    "ambiguous": 400,
    "not_allowed": 401,
    "not_found": 404,
    "no_such_node": 404,
    "no_such_token": 404,
    "method_not_allowed": 405,
    "key_reused": 409,
    "not_live": 409,
    "already_there": 409,
    "move_under_way": 409,
    "moved_too_often": 409,
    "must_not_repeat": 409,
    "node_not_ready": 409,
    "no_room": 409,
    "too_late": 409,
    "output_gone": 410,
    "not_ended": 409,
    "revoked": 409,
    "incomplete": 409,
    "no_files": 409,
    "manifest_refused": 422,
    "blob_mismatch": 422,
    "blob_missing": 404,
    "link_refused": 403,
    "link_expired": 403,
    "store_full": 507,
    "store_slow": 503,
    "store_gone": 503,
    "store_refused": 503,
    "too_large": 413,
    "no_fit": 422,
    "owner_limit": 429,
    "network_full": 429,
    "internal": 500,
    "busy": 503,
    "store_unavailable": 503,
    "store_failed": 503,
    "stopping": 503,
}
"""The HTTP status of every error code."""

HINTS: dict[str, str] = {
    "no_fit": "Ask for less, or add a machine that is large enough.",
    "owner_limit": "Wait until some of them have ended, or stop some.",
    "network_full": "Try again later.",
    "no_room": "Choose another machine, or try again when something has ended there. `holdfast nodes` lists them.",
    "node_not_ready": "Choose another machine, or try again later. `holdfast nodes` lists them.",
    "move_under_way": "Wait until that is over: `holdfast job explain` says how it stands.",
    "must_not_repeat": "Let it end, or stop it and run it again: `holdfast stop`, `holdfast rerun`.",
    "key_reused": "Use a new key, or send exactly what was sent before.",
    "busy": "Try again in a moment; nothing was done.",
    "store_unavailable": "Try again in a moment; repeating is safe. `holdfast doctor` says more.",
}


class Front(msgspec.Struct):
    """The things behind the routes."""

    leader: Leader
    reading: Reading
    fleet: Fleet
    logs: LogStore
    shelf: Shelf
    content: Content
    bells: Bells
    metrics: Metrics
    probes: Probes
    submissions: "Submissions"
    tokens: "TokenDesk"
    data: Path
    pin: str
    stopping: Callable[[], bool]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, view: ErrorView) -> None:
        super().__init__(view.says)
        self.view = view


def error_of(rejected: Rejected) -> ErrorView:
    return ErrorView(rejected.code, rejected.says, HINTS.get(rejected.code, ""), failure_view(rejected.failure))


def acting_for(request: Request) -> str | None:
    """The owner the caller acts for; None: the admin, who sees everybody's and submits as `admin`."""
    owner = request.headers.get(OWNER_HEADER)
    return None if owner is None else checked_owner(owner)
