"""A list of jobs is read at a glance: one line a job, how it failed in two words, arrays in one line (SPEC J3, J16)."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from holdfast.cli.render import jobs as render_jobs
from holdfast.errors import JobFailed
from holdfast.testing import Network
from holdfast.wire.errors import FailureView
from holdfast.wire.http import JobView

pytestmark = pytest.mark.spec("J3")

LONG = "Traceback (most recent call last):\n" + "a line of what it said before it died\n" * 9
EXIT = FailureView("exit_code", "the program ended with a non-zero exit code", LONG, "user", False, True, exit_code=3)
JOB = JobView(
    id="job_kfs479yx72f5dt", name="train", owner="me", argv=["true"], waiting="", phase="ended", recovery="restart",
    priority=5, submitted_ms=0, ended_ms=1, verdict="failed", failure=EXIT, result_sha256=None, result_bytes=None,
    exit_code=3, attempts_made=1, node="node_0a1b2c3d4e5f",
)  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, *listed: JobView, width: int = 100) -> list[str]:
    screen = io.StringIO()
    monkeypatch.setattr(render_jobs, "console", lambda **_: Console(file=screen, width=width))
    render_jobs.jobs(listed)
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 80, 100, 240])
def test_every_job_has_one_line_whatever_it_died_of(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    eight = [replace(JOB, id=f"job_{number}fs479yx72f5d") for number in range(8)]
    lines = shown(monkeypatch, *eight, width=width)
    assert len(lines) == 8 + (width >= render_jobs.TINY)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, "exit 3"),
        ({"failure": replace(EXIT, exit_code=None, signal=9)}, "signal 9 (SIGKILL)"),
        ({"failure": replace(EXIT, exit_code=None, signal=200)}, "signal 200 (unknown)"),
        ({"failure": replace(EXIT, code="time_limit", exit_code=None)}, "time limit"),
        ({"confirmation": "unconfirmed"}, "exit 3, unconfirmed"),
        ({"confirmation": "taken"}, "exit 3, unconfirmed"),
        ({"confirmation": "confirmed"}, "exit 3"),
        ({"failure": None, "confirming": EXIT, "phase": "queued", "verdict": None}, "exit 3, being confirmed"),
        (
            {"failure": None, "waiting": "a machine with room", "phase": "queued", "verdict": None},
            "a machine with room",
        ),
        ({"failure": None, "verdict": "succeeded"}, ""),
    ],
)
def test_how_it_failed_is_said_in_a_few_words(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], says: str
) -> None:
    lines = shown(monkeypatch, replace(JOB, **changed))
    assert lines[1].endswith(f" {says}".rstrip()) and "node_0a1b2c3d" in lines[1]


def test_the_items_of_an_array_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [replace(JOB, id=f"job_{number}", array="arr_1", item=number, attempts_made=2) for number in range(3)]
    items += [replace(JOB, id="job_9", array="arr_1", item=9, failure=None, verdict="succeeded")]
    other = replace(JOB, id="job_other", name="between")
    alone = replace(JOB, id="job_alone", array="arr_2", item=5)
    lines = shown(monkeypatch, items[0], other, *items[1:], alone, width=160)
    assert len(lines) == 4
    assert lines[1].startswith("arr_1") and "train[4 items]" in lines[1] and " 7 " in lines[1]
    assert lines[1].endswith("3 failed, 1 succeeded; exit 3 (3)") and " failed " in lines[1]
    assert lines[2].startswith("job_other") and lines[3].startswith("job_alone") and "train[5]" in lines[3]


def test_also_a_job_that_failed_says_where_it_ran() -> None:
    with Network(nodes=2) as network:
        network.when("false", exit_code=3)
        client = network.client()
        job = client.jobs.submit(["false"])
        with pytest.raises(JobFailed):
            job.wait()
        (listed,) = client.jobs.list().jobs
        shown = client.jobs.get(job.id)
        assert listed.node == shown.node == shown.attempts[-1].node
