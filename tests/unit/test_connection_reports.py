"""Lines of the HTTP server are few, whatever the wall clock shows."""

import logging

import pytest

from holdfast.orchestrator.connections import reports
from holdfast.orchestrator.connections.reports import LINES_MAX, REPORT_EVERY_S, FewLines


@pytest.mark.spec("A12")
def test_a_few_lines_pass_in_each_period_also_after_the_wall_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(reports.time, "monotonic", lambda: now_s[0])
    lines = FewLines()

    def passed(created_s: float) -> int:
        record = logging.LogRecord("server", logging.WARNING, "", 0, "refused", None, None)
        record.created = created_s
        return sum(lines.filter(record) for _ in range(LINES_MAX + 3))

    assert passed(2e9) == LINES_MAX
    now_s[0] += REPORT_EVERY_S - 0.1
    assert passed(3e9) == 0
    now_s[0] += 0.1
    assert passed(1e9) == LINES_MAX
