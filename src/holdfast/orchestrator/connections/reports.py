"""Tells the operator what was refused and closed, in few lines: an attack must not fill the log."""

import logging
import time
from collections import Counter

from holdfast.orchestrator.metrics import Metrics

log = logging.getLogger("holdfast.connections")

REPORT_EVERY_S = 10.0
LINES_MAX = 5
"""Lines of the HTTP server about single requests, in each such time."""


class ConnectionReports:
    """Counts closed connections of one listener, and logs them together."""

    def __init__(self, listener: str, metrics: Metrics) -> None:
        self._listener = listener
        self._closed = metrics.connections_closed
        self._counts: Counter[str] = Counter()
        self._reported_s = float("-inf")

    def closed(self, network: str, why: str) -> None:
        self._closed.labels(self._listener, why).inc()
        self._counts[network] += 1

    def report(self, now_s: float) -> None:
        if not self._counts or now_s - self._reported_s < REPORT_EVERY_S:
            return
        [(most, count)] = self._counts.most_common(1)
        log.warning(
            "%s: closed %d connections that sent no valid request in time or were too many, %d of them from %s",
            self._listener,
            self._counts.total(),
            count,
            most,
        )
        self._counts.clear()
        self._reported_s = now_s


class FewLines(logging.Filter):
    """Lets a few lines through in each period. Anybody can cause them."""

    def __init__(self) -> None:
        super().__init__()
        self._since_s = float("-inf")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()  # not the record's date: a wall clock that is set back would silence it for as long
        if now_s - self._since_s >= REPORT_EVERY_S:
            self._since_s, self._count = now_s, 0
        self._count += 1
        return self._count <= LINES_MAX
