"""Frames of `holdfast top` and estimates in words: they fit any window, and nobody draws on it but us."""

import io
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from holdfast.cli.commands import top
from holdfast.cli.render import estimate_text
from holdfast.cli.render.top_frame import TopState, frame, shares
from holdfast.wire.http import (
    EstimatesView,
    EstimateView,
    EventView,
    JobList,
    JobView,
    NodeView,
    ProgressView,
    ScoreView,
)

pytestmark = pytest.mark.spec("J15", "A5")

HOSTILE = "\x1b[2J\x1b[31mevil\r\n"
AMOUNT = {"cpu_milli": 4_000, "memory_mib": 8_192, "disk_mib": 100_000, "gpus": 0}


def node(number: int, name: str = "", state: str = "ready") -> NodeView:
    return NodeView(
        id=f"node_{number:032x}", name=name or f"machine-{number}", state=state, cause=HOSTILE, draining=False,
        connected=state == "ready", isolation="bubblewrap", version="0", arch="x86_64", cpu_model="", hostname="h",
        site="", total=AMOUNT, free={**AMOUNT, "cpu_milli": 1_000}, gpus=[], attempts=["a"] * number,
        load={"cpu_permille": 512}, joined_ms=0, state_since_ms=0, silent_ms=90, offered=AMOUNT,
    )  # fmt: skip


def job(number: int, phase: str = "running", name: str = "training") -> JobView:
    return JobView(
        id=f"job_{number:014d}", name=name, owner="ann", argv=["x"], phase=phase, waiting="a machine with room",
        recovery="restart", priority=5, submitted_ms=0, ended_ms=None, verdict=None, failure=None, result_sha256=None,
        result_bytes=None, exit_code=None, attempts_made=1, node=f"node_{1:032x}",
        progress=[ProgressView("att", "run", 30, 60, 1_000, 64)],
        estimate=EstimateView(None, (100_000, 160_000), 5, "the last 5 of this name"),
    )  # fmt: skip


def seen(nodes: int, running: int, queued: int, events: int, name: str = "training", trouble: str = "") -> TopState:
    return TopState(
        "http://127.0.0.1:1",
        40_000,
        [node(n, name if n == 1 else "") for n in range(nodes)],
        [job(n, name=name) for n in range(running)],
        [job(n, "queued", name) for n in range(queued)],
        False,
        [EventView(n, 0, "job.ended", f"succeeded {name}", job="job_1") for n in range(events)],
        {"end": ScoreView(4, 1, 0, 5)},
        trouble,
    )


def drawn(what: TopState, width: int, height: int) -> list[str]:
    out = Console(file=io.StringIO(), width=width, height=height, highlight=False, markup=False, emoji=False)
    out.print(frame(what, width, height))
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


counts = st.integers(0, 60)


@settings(max_examples=25, deadline=None)
@given(counts, counts, counts, counts, st.sampled_from([(80, 24), (100, 30), (160, 50), (60, 12)]))
def test_a_frame_is_never_larger_than_its_window(nodes, running, queued, events, size):
    lines = drawn(seen(nodes, running, queued, events), *size)
    # one line is left for what the keys do
    assert len(lines) <= size[1] - 1
    assert max((len(line) for line in lines), default=0) <= size[0]


@given(st.integers(0, 100), st.lists(counts, min_size=1, max_size=5))
def test_room_is_shared_so_that_the_largest_part_gives_way_first(room, wants):
    given_rows = shares(room, wants)
    assert sum(given_rows) <= room and all(0 <= got <= want for got, want in zip(given_rows, wants, strict=True))
    assert sum(given_rows) == min(room, sum(wants))
    short = [got for got, want in zip(given_rows, wants, strict=True) if got < want]
    assert not short or max(given_rows) - min(short) <= 1


def test_what_machines_and_jobs_are_called_cannot_draw_on_the_screen():
    text = "\n".join(drawn(seen(3, 2, 2, 2, name=HOSTILE, trouble=""), 160, 50))
    assert "\x1b" not in text and "\r" not in text and "evil" in text
    assert "\x1b" not in "\n".join(drawn(seen(1, 0, 0, 0, trouble=HOSTILE), 80, 24))


def test_machines_that_are_not_well_stand_first_and_a_job_says_how_far_it_is():
    what = TopState("u", 40_000, [node(1), node(2, "ill", "suspect")], [job(1)], [], False, [], {})
    lines = drawn(what, 100, 30)
    assert lines.index(next(line for line in lines if line.startswith("ill"))) == 3
    row = next(line for line in lines if line.startswith("job_"))
    assert "run 50 %" in row and "ends in 1 min – 2 min" in row.replace("1–2 min", "1 min – 2 min")


def test_in_a_small_window_how_a_machine_is_is_said_whole():
    row = next(
        line
        for line in drawn(TopState("u", 0, [node(1, "ill", "suspect")], [], [], False, [], {}), 50, 20)
        if "ill" in line
    )
    assert "suspect" in row and "3/4" in row


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (EstimateView((1_000, 4_000), (61_000, 90_000), 3, "the last 3 of this name"),
         "starts in 1.0 s to 4.0 s, ends in 1 min to 2 min (the last 3 of this name)"),
        (EstimateView((1_000, 4_000), None, 0, "no estimate of the end: nothing like it has run here"),
         "starts in 1.0 s to 4.0 s; no estimate of the end: nothing like it has run here"),
        (EstimateView(None, None, 0, "no estimate: nothing has run here yet", 60_000),
         "no estimate: nothing has run here yet; its time limit ends it in 1 min at the latest"),
        (EstimateView(None, (-5, 0), 9, "the last 9 of this name"), "ends any moment (the last 9 of this name)"),
        (EstimateView(None, (-5, 2_000), 9, "the last 9 of this name"), "ends within 2.0 s (the last 9 of this name)"),
    ],
)  # fmt: skip
def test_estimates_in_words(estimate: EstimateView, words: str):
    assert estimate_text.line(estimate, at_ms=0) == words


def test_the_score_says_how_often_it_was_right_and_how_often_it_should_be():
    score = {"start": ScoreView(8, 1, 1, 10), "end": ScoreView(0, 0, 0, 0)}
    assert estimate_text.scores(score) == "right so far: starts 8 of 10; target: 4 of 5"
    assert estimate_text.scores({}) == "none has been judged so far"


@pytest.mark.parametrize(("more", "title"), [(False, "running (3) "), (True, "running (3+) ")])
def test_a_number_that_is_not_all_of_them_says_so(more: bool, title: str) -> None:
    what = msgspec.structs.replace(seen(1, 3, 0, 0), more_running=more)
    assert any(title in line for line in drawn(what, 80, 40))


class Pages:
    """A network in which the jobs of one phase fill more than a page."""

    url = "http://127.0.0.1:1"

    def __init__(self, full: str) -> None:
        self.jobs = self.nodes = self
        self._full = full

    def list(self, phase: str = "", limit: int = 0) -> Any:
        if not phase:
            return []
        number = top.BUSY_PHASES.index(phase) if phase in top.BUSY_PHASES else 9
        return JobList([job(number, phase)], "further" if phase == self._full else None)

    def estimates(self) -> EstimatesView:
        return EstimatesView({})


@pytest.mark.parametrize(
    ("full", "more"), [*((phase, (True, False)) for phase in top.BUSY_PHASES), ("queued", (False, True))]
)
def test_more_of_any_phase_is_seen(full: str, more: tuple[bool, bool]) -> None:
    client: Any = Pages(full)
    what = top.look(client, [])
    assert (what.more_running, what.more_queued) == more
    assert len(what.running) == len(top.BUSY_PHASES) and len(what.queued) == 1


@pytest.mark.parametrize(
    ("said", "columns"), [("", 0), ("junk", 0), ("-5", 0), ("8.5", 0), ("²", 0), ("80", 80), ("9" * 5000, 0)]
)
def test_a_width_that_is_no_number_counts_as_none(monkeypatch: pytest.MonkeyPatch, said: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", said)
    assert top._wished_columns() == columns
