"""What happens to a job, in words: entries of its journal go in, lines for whoever waits come out."""

import pytest

from holdfast.cli.render.job_timeline import JobTimeline
from holdfast.cli.watch.job_watch import foreseen
from holdfast.wire.http import EstimateView, EventView, JobView

pytestmark = pytest.mark.spec("J3", "J5", "J6")

JOB = JobView(
    id="job_1", name="", owner="me", argv=["true"], phase="running", waiting="", recovery="restart", priority=5,
    submitted_ms=0, ended_ms=None, verdict=None, failure=None, result_sha256=None, result_bytes=None, exit_code=None,
    attempts_made=1,
)  # fmt: skip


def told(tale: JobTimeline, *entries: tuple[int, str, str, str, str]) -> list[str]:
    """Entries as (at_ms, kind, text, attempt, node)."""
    lines = [
        tale.told(EventView(seq, at_ms, kind, text, "job_1", attempt, f"node_{node}"), node)
        for seq, (at_ms, kind, text, attempt, node) in enumerate(entries)
    ]
    return [line for line in lines if line]


def test_what_the_status_line_says_is_not_said_twice() -> None:
    assert told(
        JobTimeline("restart"),
        (0, "job.queued", "the job is queued", "", ""),
        (1, "job.assigned", "attempt 1 goes to ant", "a.1", "ant"),
        (2, "job.preparing", "the job is preparing", "", ""),
        (3, "attempt.running", "its body runs", "a.1", "ant"),
        (4, "job.saved", "a checkpoint of 4 bytes is kept", "a.1", "ant"),
        (5, "attempt.revoked", "superseded: another won", "a.1", "ant"),
        (6, "job.ended", "succeeded", "", ""),
    ) == ["running on ant"]


def test_work_is_counted_over_every_machine_that_did_some_of_it() -> None:
    # given a job that is taken over twice, and saved 4 s into its first and 3 s into its second attempt
    lines = told(
        JobTimeline("resume"),
        (0, "job.assigned", "", "a.1", "ant"),
        (1_000, "attempt.running", "", "a.1", "ant"),
        (3_000, "job.saved", "", "a.1", "ant"),
        (5_000, "job.saved", "", "a.1", "ant"),
        (6_000, "job.takeover", "another machine takes over: silent for 900 ms", "a.1", "ant"),
        (6_100, "job.assigned", "", "a.2", "bee"),
        (7_000, "attempt.running", "", "a.2", "bee"),
        (10_000, "job.saved", "", "a.2", "bee"),
        (12_000, "job.takeover", "another machine takes over: it broke", "a.2", "bee"),
        (12_100, "job.assigned", "", "a.3", "cat"),
    )

    assert lines == [
        "running on ant",
        "ant was lost after 5.0 s (silent for 900 ms); another machine takes over",
        "going on at bee from checkpoint 2 (4.0 s of work kept)",
        "bee was lost after 5.0 s (it broke); another machine takes over",
        "going on at cat from checkpoint 3 (7.0 s of work kept)",
    ]


def test_a_job_without_checkpoints_begins_again_and_that_is_said() -> None:
    lines = told(
        JobTimeline("restart"),
        (0, "job.assigned", "", "a.1", "ant"),
        (1_000, "job.takeover", "another machine takes over: its machine is quarantined: hot", "a.1", "ant"),
        (1_100, "job.assigned", "", "a.2", "bee"),
    )
    assert lines == [
        "ant is unfit before it had begun (its machine is quarantined: hot); another machine takes over",
        "starting again at bee, from the beginning",
    ]


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (None, (50_000, 170_000), "done in 40.0 s to 3 min"),
        (None, (10_000, 30_000), "done within 20.0 s"),
        ((15_000, 25_000), None, "starts in 5.0 s to 15.0 s"),
        (None, (1_000, 9_000), ""),
        (None, None, ""),
    ],
)
def test_when_it_is_done_is_told_while_that_lies_ahead(
    start: tuple[int, int] | None, end: tuple[int, int] | None, words: str
) -> None:
    from msgspec.structs import replace

    assert foreseen(replace(JOB, estimate=EstimateView(start, end, 3, "")), 10_000) == words
    assert foreseen(JOB, 10_000) == ""


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"takeover": "quarantined", "node_cause": "sick", "detail": "hot"},
         "ant is unfit before it had begun (its machine is quarantined: it reports itself sick: hot); "
         "another machine takes over"),
        ({"takeover": "lost", "node_cause": "silent", "ms": 9, "limit_ms": 5, "news": 1},
         "ant was lost before it had begun (silent for 9 ms, limit 5 ms); another machine takes over"),
        ({"takeover": "of_a_later_release", "node_cause": "of_it_too", "detail": "quarantine"},
         "ant was lost before it had begun (quarantine); another machine takes over"),
        ({"failure": "of_a_later_release"}, "ant was lost before it had begun (gone); another machine takes over"),
    ],
)  # fmt: skip
def test_a_takeover_is_told_by_its_facts_and_not_by_its_words(facts: dict[str, object], line: str) -> None:
    event = EventView(1, 0, "job.takeover", "gone", "job_1", "a.1", "node_ant", facts)
    assert JobTimeline("restart").told(event, "ant") == line


@pytest.mark.parametrize(("failure", "told"), [("superseded", False), ("cancelled", False), ("drained", True)])
def test_an_attempt_that_lost_is_not_told_of(failure: str, told: bool) -> None:
    event = EventView(1, 0, "attempt.revoked", "superseded", "job_1", "a.1", "node_ant", {"failure": failure})
    assert bool(JobTimeline("restart").told(event, "ant")) is told


@pytest.mark.spec("A12", "J7")
def test_a_failure_that_another_machine_confirms_is_said_at_once_and_ctrl_c_takes_it() -> None:
    tale = JobTimeline("resume")
    lines = told(
        tale,
        (0, "job.assigned", "", "a.1", "ant"),
        (1, "attempt.running", "", "a.1", "ant"),
        (2, "attempt.failed", "exit_code: exit 1", "a.1", "ant"),
        (2, "job.confirming", "exit 1", "a.1", "ant"),
    )
    assert lines == [
        "running on ant",
        "failed on ant (exit 1); another machine confirms that; Ctrl-C takes this verdict",
    ]
    assert tale.confirming
    assert told(tale, (3, "job.queued", "", "", ""), (4, "job.assigned", "", "a.2", "bee")) == [
        "confirming on bee; Ctrl-C takes this verdict"
    ]
    # when that run is lost, the next one confirms as well
    assert told(tale, (5, "job.takeover", "another machine takes over: it broke", "a.2", "bee"))
    assert told(tale, (6, "job.assigned", "", "a.3", "cat")) == ["confirming on cat; Ctrl-C takes this verdict"]


@pytest.mark.spec("J7")
def test_a_failure_that_counts_at_once_is_said_when_the_job_ends() -> None:
    assert told(
        JobTimeline("restart"),
        (0, "job.assigned", "", "a.1", "ant"),
        (2, "attempt.failed", "exit_code: exit 1", "a.1", "ant"),
        (2, "job.ended", "failed: exit_code: exit 1", "", ""),
    ) == ["it failed on ant: exit_code: exit 1"]
