"""Plots of a plan: true to the numbers, readable in 80 columns, safe as SVG."""

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from holdfast.sim.planning import Plan, PlannedOutcome, Question, summary
from holdfast.sim.planning_plot import braille, done_by, span, svg, terminal
from holdfast.sim.svg import Drawing

pytestmark = pytest.mark.spec("A6")

HOUR = 3_600_000
QUESTION = Question(4, 10 * HOUR, mtbf_ms=HOUR, every_ms=HOUR, cost_ms=1_000)


def outcome(took: int) -> PlannedOutcome:
    spent = {"useful work": 10 * HOUR, "work redone": took - 10 * HOUR}
    return PlannedOutcome(1, (took,), (0,), 0, {}, took, spent, took, 1, 1, 1)


def a_plan() -> Plan:
    here = summary(QUESTION, [outcome(10 * HOUR + minute * 60_000) for minute in range(0, 60, 3)])
    others = [
        summary(Question(4, 10 * HOUR, mtbf_ms=HOUR, every_ms=every, cost_ms=1_000), [outcome(11 * HOUR + extra)])
        for every, extra in ((HOUR // 4, HOUR), (HOUR, 0), (4 * HOUR, 2 * HOUR))
    ]
    return Plan(QUESTION, 0, here, tuple(others), HOUR, HOUR, 11 * HOUR, (HOUR,))


def test_the_terminal_s_plots_fit_80_columns_and_name_their_ends() -> None:
    lines = terminal(a_plan())
    assert lines and max(len(line) for line in lines) <= 80
    words = "\n".join(lines)
    assert "100 %" in words and "10 h" in words and "15 min" in words and "4 h" in words


def test_braille_draws_where_the_points_are() -> None:
    # given a line from the lower left to the upper right
    rows = braille([[(0, 0), (1, 1)]], (0, 1, 0, 1), 4, 2)
    # then its ends are dots of the two corners
    assert ord(rows[1][0]) - 0x2800 & 0x40 and ord(rows[0][-1]) - 0x2800 & 0x08
    assert rows[0][0] == rows[1][-1] == "⠀"


def test_shares_only_grow() -> None:
    done = done_by(a_plan().here)
    assert [ms for ms, _ in done] == sorted(ms for ms, _ in done) and done[-1][1] == 1.0


def test_jobs_that_never_finished_keep_the_curve_below_the_top() -> None:
    lost = PlannedOutcome(2, (), (), 1, {}, 0, {}, 0, 1, 1, 1)
    done = done_by(summary(QUESTION, [outcome(11 * HOUR), lost]))
    assert done[-1][1] == 0.5


def test_the_svg_is_whole_and_what_is_written_in_it_is_escaped() -> None:
    picture = svg(a_plan(), 'a <title> & "more"')
    root = ElementTree.fromstring(picture)
    assert root.tag.endswith("svg")
    assert 'a <title> & "more"' in "".join(root.itertext())
    assert "1 h (best)" in picture and "Young/Daly" in picture
    assert picture == svg(a_plan(), 'a <title> & "more"')
    assert "best" not in svg(replace(a_plan(), as_good_ms=()), "x"), "there were too few worlds to say"


def test_a_plan_in_which_nothing_finished_is_drawn_as_that() -> None:
    lost = PlannedOutcome(2, (), (), 1, {}, 0, {}, 0, 1, 1, 1)
    plan = Plan(QUESTION, 0, summary(QUESTION, [lost]), (), 0, 0, 0)
    assert terminal(plan) == []
    assert "no job was done" in svg(plan, "x")
    cut = replace(plan, here=summary(QUESTION, [replace(lost, cut=True)]))
    assert "no job was done" not in svg(cut, "x") and "no world was simulated to its end" in svg(cut, "x")


def test_a_drawing_suits_light_and_dark() -> None:
    drawing = Drawing(10, 10, "t")
    drawing.text(1, 1, "<&>")
    assert "prefers-color-scheme:dark" in drawing.svg()
    assert "&lt;&amp;&gt;" in drawing.svg()


@pytest.mark.parametrize(
    ("ms", "words"),
    [(8_200, "8.2 s"), (90_000, "1.5 min"), (HOUR, "1 h"), (HOUR * 5 + 60_000, "5 h 1 min"), (80 * HOUR, "3 d 8 h")],
)
def test_times_in_words(ms: int, words: str) -> None:
    assert span(ms) == words
