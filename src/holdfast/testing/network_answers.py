"""What a network for tests answers to each request of the HTTP API. One method a route; see `network_door.ROUTES`."""

import secrets
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.identity import tokens
from holdfast.kernel.decision import Explanation, Taken
from holdfast.kernel.events import (
    AnyEvent,
    CancelAsked,
    CheckAsked,
    DrainAsked,
    EstimatesAsked,
    ExplainAsked,
    FilesReceived,
    MoveAsked,
    Submitted,
    TokenMade,
    TokenRevoked,
)
from holdfast.model import Attempt, Instant, Job, Node, Resources, TokenId, Verdict, array_id, job_id
from holdfast.orchestrator.asked import BadRequest, checked_key, checked_token, hash_of, no_item, submission
from holdfast.orchestrator.front import Refused
from holdfast.orchestrator.http_arrays import array_view, item_request
from holdfast.orchestrator.streams import END, Cursor, sse
from holdfast.orchestrator.views import (
    estimate_view,
    event_view,
    explain_view,
    job_view,
    node_view,
    resources_view,
    scores_view,
    token_view,
)
from holdfast.testing.network_content import ContentAnswers
from holdfast.testing.network_door import Asked, need
from holdfast.testing.network_rows import NotThere, Rows
from holdfast.wire.http import (
    ArrayRequest,
    ArrayView,
    CheckView,
    DoctorView,
    ErrorView,
    EstimatesView,
    ExplainView,
    Finding,
    JobList,
    JobRequest,
    JobView,
    JoinTokenView,
    LogLine,
    MoveRequest,
    NodeView,
    ProbeView,
    TokenRequest,
    TokenView,
)

if TYPE_CHECKING:
    from holdfast.testing.network import Network

OWNER = "admin"
OUTPUT_BYTES_MAX = 1 << 20
BEFORE_OUTPUT = frozenset({"job.assigned", "attempt.go", "attempt.running"})
"""What happens to an attempt before it prints; everything else about it comes after what it printed."""


class Answers(ContentAnswers):
    def __init__(self, network: "Network", rows: Rows) -> None:
        super().__init__(network.belongings)
        self._network = network
        self._rows = rows

    def need_leader(self) -> None:
        self._network.need_leader()

    def need_open(self) -> None:
        self._network.need_open()

    def _ask(self, event: AnyEvent) -> Any:
        return self._network.ask(event)

    # --- jobs ---

    def submit(self, asked: Asked) -> JobView:
        request: JobRequest = asked.body(JobRequest)
        view = self._submitted(request, asked.header("idempotency-key") or request.key)
        if isinstance(view, ErrorView):
            raise Refused(view)
        return view

    def submit_many(self, asked: Asked) -> list[JobView | ErrorView]:
        views: list[JobView | ErrorView] = []
        for request in asked.body(list[JobRequest]):
            try:
                views.append(self._submitted(request, request.key))
            except (BadRequest, NotThere) as bad:
                views.append(ErrorView(bad.code, bad.says, bad.hint))
            except Refused as refused:
                views.append(refused.view)
        return views

    def _submitted(self, request: JobRequest, key: str | None) -> JobView | ErrorView:
        settings = self._network.settings
        request = self._resolved(request)
        return self._stands(submission(request, OWNER, checked_key(key or secrets.token_hex(16)), settings))

    def _resolved(self, request: JobRequest) -> JobRequest:
        """With an earlier job's files by their manifest."""
        inputs = []
        for item in request.inputs:
            if item.job:
                made = self._rows.job(item.job).result
                if made is None or not made.manifest:
                    raise BadRequest(f"the input {item.name[:64]!r} is what {item.job} made, but that made no files")
                item = msgspec.structs.replace(item, job="", manifest=made.manifest)
            inputs.append(item)
        for name in filter(None, (request.package, *(item.manifest for item in inputs))):
            if name not in self._kept.taken:
                raise BadRequest(f"no folder was sent under the hash {name[:64]!r}", code="not_found")
        return msgspec.structs.replace(request, inputs=inputs)

    def _stands(self, event: Submitted) -> JobView | ErrorView:
        known = self._rows.known(event.job)
        if known is not None and known.spec_hash != event.spec_hash:
            says = f"the idempotency key was used before, for another job ({known.id})"
            return ErrorView("key_reused", says, "Use a new key, or send exactly what was sent before.")
        if known is not None:
            return job_view(known, again=True)
        answer = self._ask(event)
        need(answer)
        return job_view(self._rows.job(event.job), again=isinstance(answer, Taken) and answer.again)

    def jobs(self, asked: Asked) -> JobList:
        found = self._rows.jobs()
        phase, owner, after = asked.param("phase"), asked.param("owner"), asked.param("after")
        found = [job for job in found if phase in ("", job.phase.value) and owner in ("", job.owner)]
        if after:
            places = [place for place, job in enumerate(found) if job.id == after]
            if not places:
                raise BadRequest("`after` is not one that this list gave out", code="bad_cursor")
            found = found[places[0] + 1 :]
        limit = asked.number("limit", 50)
        page = found[:limit]
        return JobList([job_view(job) for job in page], page[-1].id if len(found) > limit else None)

    def job(self, asked: Asked, named: str) -> JobView:
        return self._shown(self._rows.job(named, live=asked.truth("live")))

    def _shown(self, job: Job) -> JobView:
        view = job_view(job, self._rows.attempts(job.id), self._rows.entries(job=job.id)[:200])
        if view.files is not None and self._rows.received(job.id):
            view = msgspec.structs.replace(view, files=msgspec.structs.replace(view.files, received=True))
        return view

    def explain(self, asked: Asked, named: str) -> ExplainView:
        job = self._rows.job(named)
        answer = self._ask(ExplainAsked(job.id)) if job.live else None
        if isinstance(answer, Explanation):
            return explain_view(answer)
        job = self._rows.job(job.id)
        verdict = job.verdict.value if job.verdict else "unknown"
        return ExplainView(job.id, job.phase.value, "", None, f"nothing: it has ended ({verdict})", [], {}, "", 0)

    def stop(self, asked: Asked, named: str) -> JobView:
        job = no_item(named, self._rows.job(named, live=True))
        if job.live:
            self._ask(CancelAsked(job.id, by=OWNER))
        return self._shown(self._rows.job(job.id))

    def rerun(self, asked: Asked, named: str) -> JobView:
        job = self._rows.job(named)
        key = checked_key(asked.header("idempotency-key") or secrets.token_hex(16))
        again = Submitted(job_id(job.owner, f"rerun:{job.id}:{key}"), job.owner, job.spec, job.spec_hash)
        view = self._stands(again)
        if isinstance(view, ErrorView):
            raise Refused(view)
        return view

    def move(self, asked: Asked, named: str) -> JobView:
        request: MoveRequest = asked.body(MoveRequest)
        job, node = no_item(named, self._rows.job(named, live=True)), self._rows.node(request.to)
        key = checked_key(asked.header("idempotency-key") or request.key or secrets.token_hex(16))
        need(self._ask(MoveAsked(job.id, node.id, by=OWNER, key=key)))
        return self._shown(self._rows.job(job.id))

    def received(self, asked: Asked, named: str) -> JobView:
        job = self._rows.job(named)
        need(self._ask(FilesReceived(job)))
        return self._shown(self._rows.job(job.id))

    # --- output ---

    def _printed(self, attempt: str, stream: str) -> bytes:
        """What has arrived of it: everything once the attempt's logs were delivered, nothing before."""
        arrived = attempt in self._network.store.delivered
        return self._kept.printed.get((attempt, stream), b"") if arrived else b""

    def output(self, asked: Asked, named: str, attempt: str, stream: str) -> bytes:
        job = self._rows.job(named)
        if attempt not in {one.id for one in self._rows.attempts(job.id)} or stream not in ("stdout", "stderr"):
            raise NotThere(f"{job.id} has no output {attempt[:40]!r} {stream[:20]!r}")
        offset = asked.number("offset")
        return self._printed(attempt, stream)[offset : offset + OUTPUT_BYTES_MAX]

    def logs(self, asked: Asked, named: str) -> Iterator[bytes]:
        job = self._rows.job(named)
        stream = asked.param("stream", "both")
        chosen = {"both": ("stdout", "stderr"), "stdout": ("stdout",), "stderr": ("stderr",)}.get(stream)
        if chosen is None:
            raise BadRequest(f"stream is {stream[:60]!r}; it can be stdout, stderr or both")
        return self._log(job.id, chosen, Cursor(asked.header("last-event-id")), asked.truth("follow"))

    def _log(self, id: str, streams: tuple[str, ...], cursor: Cursor, follow: bool) -> Iterator[bytes]:
        while True:
            job, attempts = self._rows.job(id), self._rows.attempts(id)
            for entry in self._rows.entries(cursor.entry, job=id):
                about = [one for one in attempts if one.id == entry.attempt]
                if entry.kind not in BEFORE_OUTPUT:
                    yield from self._arrived(attempts if entry.kind == "job.ended" else about, streams, cursor)
                cursor.entry = entry.seq
                line = LogLine(entry.attempt or "", "platform", entry.seq, entry.text, entry.at_ms)
                yield sse(line, str(cursor))
            yield from self._arrived(attempts, streams, cursor)
            if not job.live or not follow or not self._network.wait_for_news():
                yield END
                return

    def _arrived(self, attempts: list[Attempt], streams: tuple[str, ...], cursor: Cursor) -> Iterator[bytes]:
        for attempt in attempts:
            at = cursor.of(int(attempt.id.rpartition(".")[2]))
            for stream in streams:
                data = self._printed(attempt.id, stream)[at[stream] :]
                if data:
                    offset, at[stream] = at[stream], at[stream] + len(data)
                    yield sse(LogLine(attempt.id, stream, offset, data.decode("utf-8", "replace")), str(cursor))

    def events(self, asked: Asked) -> Iterator[bytes]:
        job = self._rows.job(asked.param("job")).id if asked.param("job") else None
        node = self._rows.node(asked.param("node")).id if asked.param("node") else None
        after = int(asked.header("last-event-id") or asked.number("after"))
        if asked.param("tail") and not asked.header("last-event-id"):
            newest = self._rows.entries()[-1].seq
            after = max(after, newest - asked.number("tail"))
        return self._told(after, job, node, asked.truth("follow"))

    def _told(self, after: int, job: str | None, node: str | None, follow: bool) -> Iterator[bytes]:
        while True:
            for entry in self._rows.entries(after, job, node):
                after = entry.seq
                yield sse(event_view(entry), str(entry.seq))
            if not follow or not self._network.wait_for_news():
                yield END
                return

    # --- what would be ---

    def check(self, asked: Asked) -> CheckView:
        event = submission(self._resolved(asked.body(JobRequest)), OWNER, "check", self._network.settings)
        only = self._rows.node(asked.param("node")).id if asked.param("node") else None
        found, foretold = self._ask(CheckAsked(event.owner, event.spec, only)), self._ask(EstimatesAsked())
        need(found)
        there = found.node is not None and self._network.is_connected(found.node)
        dead = found.verdict == "now" and not there
        return CheckView(
            verdict="unhealthy" if dead else found.verdict,
            says=f"it would be given to {found.label}, but that does not answer now" if dead else found.says,
            at_ms=self._network.wall_ms,
            code=found.code,
            node=found.node,
            name=found.label,
            state=found.state,
            cost=dict(found.cost),
            free=resources_view(Resources(*found.free)) if found.node is not None else {},
            probe=None if found.node is None else ProbeView(there, 0 if there else None, 0 if there else None),
            gates=dict(found.gates),
            nearest=found.nearest,
            ahead=found.ahead,
            estimate=estimate_view(found.estimate),
            scores=scores_view(foretold.scores),
        )

    def watch_check(self, asked: Asked) -> Iterator[bytes]:
        for number in count(1):
            yield sse(self.check(asked), str(number))
            self._network.pass_time(1.0)

    def estimates(self, asked: Asked) -> EstimatesView:
        return EstimatesView(scores_view(self._ask(EstimatesAsked()).scores))

    # --- arrays ---

    def submit_array(self, asked: Asked) -> ArrayView:
        request: ArrayRequest = asked.body(ArrayRequest)
        key = checked_key(asked.header("idempotency-key") or request.key or secrets.token_hex(16))
        array, count = array_id(OWNER, key), len(request.items)
        template = self._resolved(request.job)
        for index, item in enumerate(request.items):
            one = item_request(template, item, index, count)
            event = submission(one, OWNER, f"{array}:{index}", self._network.settings)
            spec = msgspec.structs.replace(event.spec, array=array, item=index, items=count)
            view = self._stands(msgspec.structs.replace(event, spec=spec, spec_hash=hash_of(spec)))
            if isinstance(view, ErrorView):
                raise Refused(view)
        return array_view(array, self._rows.of_array(array))

    def array(self, asked: Asked, array: str) -> ArrayView:
        return array_view(array, self._rows.of_array(array))

    def stop_array(self, asked: Asked, array: str) -> ArrayView:
        for job in self._rows.of_array(array):
            if job.live:
                self._ask(CancelAsked(job.id, by=OWNER))
        return array_view(array, self._rows.of_array(array))

    def retry_array(self, asked: Asked, array: str) -> ArrayView:
        jobs = self._rows.of_array(array)
        runs = [job.spec.item for job in jobs]
        for job in {job.spec.item: job for job in jobs}.values():
            if not job.live and job.verdict is not Verdict.SUCCEEDED:
                id = job_id(job.owner, f"{array}:{job.spec.item}:{runs.count(job.spec.item)}")
                self._stands(Submitted(id, job.owner, job.spec, job.spec_hash))
        return array_view(array, self._rows.of_array(array))

    # --- nodes, tokens, the network ---

    def nodes(self, asked: Asked) -> list[NodeView]:
        return [self._node(node) for node in self._rows.nodes()]

    def node(self, asked: Asked, named: str) -> NodeView:
        return self._node(self._rows.node(named), events=True)

    def _node(self, node: Node, events: bool = False) -> NodeView:
        entries = self._rows.entries(node=node.id)[-200:] if events else []
        return node_view(node, self._rows.held_by(node.id), self._network.is_connected(node.id), None, entries)

    def drain(self, asked: Asked, named: str) -> NodeView:
        node = self._rows.node(named)
        need(self._ask(DrainAsked(node.id, asked.truth("on", True), by=OWNER)))
        return self._node(self._rows.node(node.id))

    def make_token(self, asked: Asked) -> TokenView:
        request: TokenRequest = checked_token(asked.body(TokenRequest))
        now = self._network.wall_ms
        key = asked.header("idempotency-key").encode() or secrets.token_bytes(16)
        drawn = tokens.Drawn(sha256(b"id" + key).digest(), sha256(b"secret" + key).digest())
        expires = Instant(now + request.ttl_ms)
        ticket, row = tokens.make("", Instant(now), expires, request.uses, request.note, drawn)
        known = self._rows.token(row.id)
        if known is None:
            need(self._ask(TokenMade(row)))
            known = row
        return TokenView(known.id, ticket.text, known.expires_ms, known.uses_left)

    def tokens(self, asked: Asked) -> list[JoinTokenView]:
        return [token_view(token, self._network.wall_ms) for token in self._rows.tokens()]

    def revoke_token(self, asked: Asked, token: str) -> None:
        known = self._rows.token_named(token)
        answer = self._ask(TokenRevoked(known.id if known else TokenId(token)))
        if known is None:
            need(answer)

    def healthz(self, asked: Asked) -> dict[str, Any]:
        return {"ok": True, "epoch": self._network.store.epoch, "says": "leading"}

    def doctor(self, asked: Asked) -> DoctorView:
        return DoctorView(True, [Finding("network for tests", True, "it is what the test made of it")])
