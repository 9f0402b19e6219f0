"""What retention asks the kernel about, page by page."""

from collections.abc import Iterable

import pytest

from holdfast.kernel.events import DeletionAsked
from holdfast.model import Entry, Instant, Job, Keep, Settings
from holdfast.orchestrator import retention
from holdfast.orchestrator.retention import START, Cursor, look

NOW_MS = 10**12
OLD_MS = NOW_MS - Settings().journal_keep_ms


class Journal:
    """Rows of which only the journal matters: entries of these ages, numbered from 1."""

    def __init__(self, *at_ms: int) -> None:
        self._entries = [Entry(number, Instant(at), "node.joined", "") for number, at in enumerate(at_ms, 1)]

    def ended_before(self, ended_ms: int, after: Cursor = START, limit: int = 200) -> list[Job]:
        return []

    def keeps_of(self, jobs: Iterable[str]) -> list[Keep]:
        return []

    def array_ended(self, array: str) -> int | None:
        return None

    def entries(
        self, after_seq: int = 0, job: str | None = None, node: str | None = None, limit: int = 1000
    ) -> list[Entry]:
        return self._entries[:limit]


@pytest.mark.spec("H4")
@pytest.mark.parametrize(
    ("ages", "asked"),
    [
        ((), DeletionAsked()),
        ((OLD_MS, OLD_MS + 1, NOW_MS), DeletionAsked((), 1, Instant(OLD_MS))),
        ((OLD_MS + 1, NOW_MS), DeletionAsked()),
        ((OLD_MS - 1, OLD_MS, OLD_MS), DeletionAsked((), 2, Instant(OLD_MS))),
        ((OLD_MS,), DeletionAsked()),
    ],
)
def test_entries_that_are_old_enough_go_and_the_newest_one_stays(ages: tuple[int, ...], asked: DeletionAsked) -> None:
    """By the newest entry, a reader with an older cursor learns that there was more, also after a long quiet."""
    assert look(Journal(*ages), lambda job: False, Settings(), NOW_MS) == (asked, None)


@pytest.mark.spec("H4")
def test_a_long_journal_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "ENTRIES_AT_ONCE", 2)
    asked, after = look(Journal(*[OLD_MS] * 4), lambda job: False, Settings(), NOW_MS)
    assert (asked.entry_seq, after) == (2, START)
    asked, after = look(Journal(*[OLD_MS] * 2), lambda job: False, Settings(), NOW_MS)
    assert (asked.entry_seq, after) == (1, None)
