"""Counters of what the orchestrator did, for Prometheus (SPEC A5). No decision depends on them."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from holdfast.kernel.commit import CommitBatch
from holdfast.model import Attempt, DurationHistory, Entry, Job, JobPhase

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    def __init__(self) -> None:
        self.registry = into = CollectorRegistry()
        self.events = Counter("holdfast_events_total", "Events applied to the kernel", ["kind"], registry=into)
        self.commits = Counter("holdfast_commits_total", "Batches made durable", registry=into)
        self.commit_failures = Counter("holdfast_commit_failures_total", "Commits that ended leadership", registry=into)
        self.rebuilds = Counter("holdfast_rebuilds_total", "Times the state was built from the store", registry=into)
        self.commit_seconds = Histogram("holdfast_commit_seconds", "Time of one commit", buckets=_FAST, registry=into)
        self.batch_events = Histogram(
            "holdfast_batch_events", "Events per commit", buckets=(1, 2, 5, 10, 50, 100, 500, 1000, 5000), registry=into
        )
        self.late_ms = Counter("holdfast_late_ms_total", "Time by which the loop was late", registry=into)
        self.refused = Counter("holdfast_refused_total", "Requests refused by the shell", ["code"], registry=into)
        self.gathering = Gauge("holdfast_events_waiting", "Events applied and not yet durable", registry=into)
        self.leading = Gauge("holdfast_leading", "1 while this orchestrator leads", registry=into)
        self.epoch = Gauge("holdfast_epoch", "Epoch of this leader", registry=into)
        self.sessions = Gauge("holdfast_sessions", "Open node sessions", registry=into)
        self.handshakes_refused = Counter(
            "holdfast_handshakes_refused_total", "Node handshakes that failed", ["code"], registry=into
        )
        self.connections_closed = Counter(
            "holdfast_connections_closed_total",
            "Connections closed because they were too many or too slow, or sent no valid request",
            ["listener", "why"],
            registry=into,
        )
        self.log_bytes = Counter("holdfast_log_bytes_total", "Log bytes made durable", registry=into)
        self.damaged = Counter("holdfast_blobs_damaged_total", "Stored blobs found damaged", registry=into)
        self.scrubbed_bytes = Counter("holdfast_scrub_bytes_total", "Stored bytes read again", registry=into)
        self.scrubbed_blobs = Counter("holdfast_scrub_blobs_total", "Stored blobs read again", registry=into)
        self.scrub_rounds = Counter("holdfast_scrub_rounds_total", "Times all blobs were read again", registry=into)
        self.jobs_ended = Counter("holdfast_jobs_ended_total", "Jobs ended", ["verdict", "failure"], registry=into)
        self.attempts_ended = Counter("holdfast_attempts_ended_total", "Attempts ended", ["failure"], registry=into)
        self.transitions = Counter("holdfast_transitions_total", "Journal entries", ["kind"], registry=into)
        self.takeovers = Counter("holdfast_takeovers_total", "Second contenders started", registry=into)
        self.queued = Gauge("holdfast_jobs_live", "Jobs that have not ended, by phase", ["phase"], registry=into)
        self.predicted = Gauge(
            "holdfast_estimates_judged",
            "Estimates of start and end that were judged since the network began, by how they came out",
            ["sort", "came"],
            registry=into,
        )
        self._phases: dict[str, JobPhase] = {}
        # Finding a labelled counter costs more than counting, and these are counted for every event and entry.
        self._of_event: dict[type, Counter] = {}
        self._of_entry: dict[str, Counter] = {}

    def applied(self, event: object) -> None:
        """An event went into the kernel."""
        kind = type(event)
        counter = self._of_event.get(kind)
        if counter is None:
            counter = self._of_event[kind] = self.events.labels(kind.__name__)
        counter.inc()

    def rebuilt(self, jobs: Iterable[Job], histories: Iterable[DurationHistory]) -> None:
        """Recount the live jobs from what the store holds."""
        for history in histories:
            self._judged(history)
        self._phases = {job.id: job.phase for job in jobs if job.live}
        for phase in JobPhase:
            self.queued.labels(phase.value).set(sum(1 for known in self._phases.values() if known is phase))

    def committed(self, batch: CommitBatch) -> None:
        """Count the entries of a durable batch."""
        self.commits.inc()
        self.batch_events.observe(batch.events)
        for row in batch.rows.values():
            match row:
                case Job():
                    self._job(row)
                case Attempt() if not row.live:
                    reason = row.failure or row.revoked
                    self.attempts_ended.labels(reason.code.value if reason else "none").inc()
                case Entry():
                    counter = self._of_entry.get(row.kind)
                    if counter is None:
                        counter = self._of_entry[row.kind] = self.transitions.labels(row.kind)
                    counter.inc()
                    if row.kind == "job.takeover":
                        self.takeovers.inc()
                case DurationHistory() if row.scores:
                    self._judged(row)
                case _:
                    pass

    def _judged(self, history: DurationHistory) -> None:
        for sort, score in history.scores.items():
            for came in ("right", "early", "late"):
                self.predicted.labels(sort, came).set(getattr(score, came))

    def _job(self, job: Job) -> None:
        before = self._phases.get(job.id)
        if before is not job.phase:
            if before is not None:
                self.queued.labels(before.value).dec()
            if job.live:
                self.queued.labels(job.phase.value).inc()
        if job.live:
            self._phases[job.id] = job.phase
        else:
            self._phases.pop(job.id, None)
            verdict = job.verdict.value if job.verdict else "none"
            self.jobs_ended.labels(verdict, job.failure.code.value if job.failure else "none").inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
