"""The table of routes of the API. An endpoint is added by a line here: Litestar and `holdfast.testing.Network` both
serve the table.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

import msgspec

from holdfast import codes
from holdfast.model import Role
from holdfast.orchestrator.api import access, arrays, checks, content, following, jobs, nodes, service, tokens
from holdfast.orchestrator.api.call import EVENTS_TYPE

BODY_BYTES_MAX = 16 * 1024 * 1024
"""Size limit of a request body. A full batch of ordinary jobs takes a tenth of this."""
METRICS_TYPE = "text/plain; version=0.0.4"

_ALWAYS = ("busy", "internal", "stopping", "store_unavailable")
_NAMED = ("not_found", "ambiguous")
"""Of a route that takes a name or an id."""
_JOB = (*_NAMED, "job_deleted")
"""Of a route that takes a job."""
_STORED = ("store_gone", "store_refused", "store_slow")
"""Of a route that reads the blob store."""
_SENT = (
    *_JOB, *_STORED, "blob_damaged", "blob_mismatch", "blob_missing", "bucket_not_allowed", "bucket_refused",
    "key_reused", "manifest_refused", "network_full", "no_files", "no_fit", "owner_limit", "too_large",
)  # fmt: skip
"""Of a route that takes a job, which may name files, buckets and other jobs."""
_MOVES = (
    *_JOB, "already_there", "move_under_way", "moved_too_often", "must_not_repeat", "no_fit", "no_room",
    "no_such_node", "node_not_ready", "not_live", "too_late",
)  # fmt: skip
_TAKES = (
    *_STORED, "not_found", "blob_damaged", "blob_mismatch", "blob_missing", "manifest_refused", "over_quota",
    "store_full", "too_large",
)  # fmt: skip

OPEN: frozenset[Role] = frozenset()
"""No token is needed."""
USERS = frozenset({Role.USER, Role.NETWORK_OPERATOR})
"""A user reaches its own jobs and files."""
OPERATORS = frozenset({Role.NODE_OPERATOR, Role.NETWORK_OPERATOR})
"""A node operator reaches its own nodes and join tokens."""
EVERYBODY = frozenset(Role)
"""Each role sees its own part of the answer."""
NETWORK_OPERATORS = frozenset({Role.NETWORK_OPERATOR})

Handler = Callable[..., Awaitable[Any]]


class HandlerParameter(msgspec.Struct, frozen=True):
    """One parameter that a handler reads from a request."""

    kind: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Route(msgspec.Struct, frozen=True, dict=True):
    method: str
    path: str
    """`/v1/jobs/{job}`: a name in braces is a parameter of the handler."""
    handler: Handler
    roles: frozenset[Role]
    """Who may call it; empty: anybody, without a token."""
    status: int = 200
    media_type: str | None = None
    """None: JSON, or the type given in a `Reply`."""
    body_bytes_max: int = BODY_BYTES_MAX
    says: str = ""
    """What the reference adds to the name or the docstring of the handler."""
    refusals: tuple[str, ...] = ()
    """Codes by which the handler refuses, besides those that every route of its kind has."""

    @cached_property
    def parameters(self) -> dict[str, HandlerParameter]:
        """The parameters of the handler, without its `ApiCall`."""
        kinds = typing.get_type_hints(self.handler, include_extras=True)
        named = list(inspect.signature(self.handler).parameters.values())[1:]
        return {one.name: HandlerParameter(kinds[one.name], one.default) for one in named}

    @cached_property
    def errors(self) -> dict[int, list[str]]:
        """Every error that the route may answer with: its codes by HTTP status."""
        found = {*_ALWAYS, *self.refusals}
        if self.roles:
            found |= {"not_allowed", "forbidden", "bad_request"}
        if "data" in self.parameters:
            found.add("too_large")
        by_status: dict[int, list[str]] = {}
        for code in sorted(found):
            by_status.setdefault(codes.http_status(code), []).append(code)
        return dict(sorted(by_status.items()))

    @cached_property
    def returns(self) -> Any:
        return typing.get_type_hints(self.handler)["return"]


ROUTES = (
    # --- jobs ---
    Route("POST", "/v1/jobs", jobs.submit, USERS, status=201, says="header Idempotency-Key optional",
          refusals=_SENT),
    Route("POST", "/v1/jobs/batch", jobs.submit_batch, USERS, says="up to 1,000",
          refusals=_SENT),
    Route("GET", "/v1/jobs", jobs.list_jobs, USERS, says="newest first"),
    Route("GET", "/v1/jobs/{job}", jobs.show_job, USERS, says="a unique prefix of an id is enough",
          refusals=_JOB),
    Route("GET", "/v1/jobs/{job}/explain", jobs.explain_job, USERS,
          refusals=(*_JOB, "not_live")),
    Route("POST", "/v1/jobs/{job}/stop", jobs.stop_job, USERS,
          refusals=(*_JOB, "not_live")),
    Route("POST", "/v1/jobs/{job}/rerun", jobs.rerun_job, USERS, status=201,
          says="the same again; header Idempotency-Key",
          refusals=_SENT),
    Route("POST", "/v1/jobs/{job}/move", jobs.move_job, USERS,
          refusals=_MOVES),
    Route("POST", "/v1/jobs/{job}/received", jobs.files_received, USERS, says="the files it made have arrived",
          refusals=(*_JOB, "not_ended")),
    Route("GET", "/v1/jobs/{job}/output/{attempt}/{stream}", jobs.output, USERS,
          says="up to 1 MiB; empty at the end",
          refusals=(*_JOB, "output_gone")),
    # --- checks ---
    Route("POST", "/v1/check", checks.check, USERS, says="a submission's outcome now; nothing is stored",
          refusals=(*_SENT, "no_such_node")),
    Route("POST", "/v1/check/watch", checks.watch, USERS, media_type=EVENTS_TYPE,
          says="a CheckView when something changes and every second",
          refusals=(*_SENT, "no_such_node")),
    Route("GET", "/v1/estimates", checks.estimates, USERS, says="how often estimates were right, for all owners"),
    # --- arrays ---
    Route("POST", "/v1/arrays", arrays.submit_array, USERS, status=201,
          says="one job per item; header Idempotency-Key optional",
          refusals=_SENT),
    Route("GET", "/v1/arrays/{array}", arrays.show_array, USERS,
          refusals=_NAMED),
    Route("POST", "/v1/arrays/{array}/stop", arrays.stop_array, USERS,
          refusals=_NAMED),
    Route("POST", "/v1/arrays/{array}/retry", arrays.retry_array, USERS,
          says="rerun the items that did not succeed",
          refusals=_SENT),
    # --- content ---
    Route("POST", "/v1/blobs/missing", content.missing, USERS, says="which of these must be sent",
          refusals=_STORED),
    Route("POST", "/v1/blobs/links", content.places, USERS, says="URLs to upload to",
          refusals=_TAKES),
    Route("POST", "/v1/manifests", content.take, USERS, says="accept what was uploaded",
          refusals=_TAKES),
    Route("GET", "/v1/manifests/{name}", content.manifest, USERS,
          refusals=_TAKES),
    Route("POST", "/v1/manifests/{name}/links", content.links, USERS, says="URLs to fetch its blobs from",
          refusals=_TAKES),
    # --- join tokens ---
    Route("POST", "/v1/tokens", tokens.make_token, OPERATORS, status=201,
          says="the token itself is shown only here; header Idempotency-Key optional",
          refusals=("key_reused", "token_limit")),
    Route("GET", "/v1/tokens", tokens.list_tokens, OPERATORS, says="newest first"),
    Route("DELETE", "/v1/tokens/{token}", tokens.revoke_token, OPERATORS, status=204,
          refusals=("ambiguous", "no_such_token")),
    # --- access tokens ---
    Route("POST", "/v1/access", access.make_access, NETWORK_OPERATORS, status=201,
          says="the token itself is shown only here; header Idempotency-Key optional",
          refusals=("access_limit", "key_reused")),
    Route("GET", "/v1/access", access.list_access, NETWORK_OPERATORS, says="newest first"),
    Route("DELETE", "/v1/access/{access}", access.revoke_access, NETWORK_OPERATORS, status=204,
          says="join tokens that were made with it are revoked too",
          refusals=("ambiguous", "no_such_access")),
    # --- nodes ---
    Route("GET", "/v1/nodes", nodes.list_nodes, EVERYBODY),
    Route("GET", "/v1/nodes/{node}", nodes.show_node, EVERYBODY, says="with its recent journal",
          refusals=_NAMED),
    Route("POST", "/v1/nodes/{node}/drain", nodes.drain_node, OPERATORS,
          refusals=(*_NAMED, "no_such_node")),
    # --- streams ---
    Route("GET", "/v1/events", following.follow_events, EVERYBODY, media_type=EVENTS_TYPE,
          says="EventViews; Last-Event-ID resumes; tail: start this many before the newest",
          refusals=(*_JOB, "bad_cursor", "cursor_expired")),
    Route("GET", "/v1/jobs/{job}/logs", following.follow_logs, USERS, media_type=EVENTS_TYPE,
          says="LogLines; Last-Event-ID resumes",
          refusals=(*_JOB, "bad_cursor")),
    # --- the orchestrator itself ---
    Route("GET", "/v1/doctor", service.doctor, NETWORK_OPERATORS,
          says="rebuild equals memory, store reachable and more"),
    Route("GET", "/healthz", service.healthz, OPEN, media_type="application/json"),
    Route("GET", "/metrics", service.metrics, NETWORK_OPERATORS, media_type=METRICS_TYPE),
)  # fmt: skip
