"""Describes what happens to a job, for the person who waits for it: one line for each journal entry that matters to
them. Pure: entries go in, text comes out; sends no requests, prints nothing.

    running on bee
    failed on cat (exit 1); another machine confirms that; Ctrl-C takes this verdict
    bee was lost after 12.0 s (its connection broke); another machine takes over
    going on at ant from checkpoint 4 (9.1 s of work kept)
"""

from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli.entry_facts import facts_of
from holdfast.quantities import spoken_ms

if TYPE_CHECKING:
    from holdfast.wire.http import EventView

SILENT = frozenset(
    {"job.queued", "job.preparing", "job.running", "job.uploading", "job.accepted", "job.ended", "attempt.go"}
)
"""Entries that the status line or the verdict shows anyway."""
EXPECTED = ("superseded", "cancelled")
"""Failures of a revoked attempt that are not shown: another attempt won, or the job was stopped."""
UNFIT = "quarantined"
"""The cause of a takeover from a machine that can still be reached."""


class Saved(NamedTuple):
    """The last checkpoint."""

    number: int
    at_ms: int
    work_ms: int
    """How much work it holds: of the attempt that made it, and of those that it continued."""


class JobTimeline:
    """The timeline of one job. Takes its entries in order, each once."""

    def __init__(self, recovery: str) -> None:
        self._resumes = recovery == "resume"
        self._began: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        """By attempt: the work that it started with, in milliseconds."""
        self._homeless = False
        """It lost its machine or failed there, and has not been assigned again yet."""
        self.saved: Saved | None = None
        self.node = ""
        """The machine that it was last assigned to, or runs on."""
        self.running = False
        self.confirming = False
        """It failed by its owner's fault, as one machine says, and another confirms that."""
        self._failed = ""
        """How it failed, until the next entry tells whether that is confirmed."""

    def told(self, event: "EventView", node: str) -> str:
        """A line for people, or nothing. `node`: the name of the entry's machine."""
        failed, self._failed = self._failed, ""
        line = self._line(event, node)
        return line if event.kind == "job.confirming" else "\n".join(filter(None, (failed, line)))

    def _line(self, event: "EventView", node: str) -> str:
        match event.kind:
            case "job.assigned":
                return self._assigned(event, node)
            case "attempt.running":
                return self._runs(event, node)
            case "job.saved":
                self._save(event)
                return ""
            case "job.takeover":
                return self._taken_over(event, node)
            case "attempt.failed":
                self.running = False
                self._homeless = True
                self._failed = f"it failed on {node}: {event.text}"
                return ""
            case "job.confirming":
                return self._doubted(event, node)
            case "attempt.refused":
                return f"{node} did not take it: {event.text}"
            case "attempt.revoked":
                facts = facts_of(event)
                expected = facts is not None and facts.failure in EXPECTED
                return "" if expected else f"it was ended on {node}: {event.text}"
            case "attempt.straggling":
                return f"on {node}: {event.text}"
            case kind:
                return "" if kind in SILENT else event.text

    def _assigned(self, event: "EventView", node: str) -> str:
        first, self.node = not self.node, node
        attempt = event.attempt or ""
        if self.confirming and attempt:
            self._homeless = False
            return f"confirming on {node}; Ctrl-C takes this verdict"
        if not self._resumes or self.saved is None:
            self._kept[attempt] = 0
            if first or not self._homeless:
                return ""
            self._homeless = False
            return f"starting again at {node}, from the beginning"
        self._kept[attempt] = self.saved.work_ms
        if not self._homeless:
            return ""
        self._homeless = False
        return f"going on at {node} from checkpoint {self.saved.number} ({spoken_ms(self.saved.work_ms)} of work kept)"

    def _doubted(self, event: "EventView", node: str) -> str:
        self.confirming, self.saved = True, None
        facts = facts_of(event)
        why = facts.detail or (facts.failure or "") if facts is not None else event.text
        return f"failed on {node} ({why}); another machine confirms that; Ctrl-C takes this verdict"

    def _runs(self, event: "EventView", node: str) -> str:
        again = bool(self._began)
        self._began[event.attempt or ""] = event.at_ms
        self.node, self.running = node, True
        return "" if again else f"running on {node}"

    def _save(self, event: "EventView") -> None:
        attempt = event.attempt or ""
        began = self._began.get(attempt, event.at_ms)
        number = self.saved.number + 1 if self.saved else 1
        self.saved = Saved(number, event.at_ms, self._kept.get(attempt, 0) + event.at_ms - began)

    def _taken_over(self, event: "EventView", node: str) -> str:
        from holdfast.model.cause_text import takeover_cause_text

        self._homeless, self.running = True, False
        facts = facts_of(event)
        began = self._began.get(event.attempt or "")
        after = f" after {spoken_ms(event.at_ms - began)}" if began is not None else " before it had begun"
        lost = "is unfit" if facts is not None and facts.takeover == UNFIT else "was lost"
        cause = takeover_cause_text(facts) if facts is not None else event.text
        return f"{node} {lost}{after} ({cause}); another machine takes over"
