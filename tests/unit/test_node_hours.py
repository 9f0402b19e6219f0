"""Hours: read as they are meant, kept by the clock on the wall, also when that clock is changed or set."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import Misconfigured
from holdfast.model import Resources
from holdfast.node.config import load_config
from holdfast.node.core.events import OfferAsked
from holdfast.node.operator import operator_socket as desk_module
from holdfast.node.operator.hours import DAYS, Clock, Hours, Shown, Window, next_change, parse_hours, says, spoken
from holdfast.node.operator.operator_socket import WISHES, OperatorSocket

pytestmark = pytest.mark.spec("N10")

BERLIN, LORD_HOWE, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("UTC")
MONDAY = datetime(2026, 6, 1, tzinfo=UTC)


def in_zone(zone: ZoneInfo) -> Clock:
    def clock(at_s: float) -> Shown:
        shown = datetime.fromtimestamp(at_s, zone)
        return Shown(shown.weekday(), shown.hour * 60 + shown.minute)

    return clock


def at(day: str, time: str) -> Shown:
    hour, minute = map(int, time.split(":"))
    return Shown(DAYS.index(day), hour * 60 + minute)


# --- reading ---


@pytest.mark.parametrize(
    ("text", "within", "outside"),
    [
        ("20:00-08:00", ["Mon 20:00", "Tue 07:59", "Sun 23:59", "Mon 00:00"], ["Mon 19:59", "Mon 08:00", "Sat 12:00"]),
        ("08:00-20:00", ["Mon 08:00", "Sun 19:59"], ["Mon 20:00", "Mon 07:59"]),
        ("Mon-Fri 19:00-07:00", ["Mon 19:00", "Sat 06:59"], ["Mon 06:59", "Sat 19:00", "Sun 03:00", "Sat 07:00"]),
        ("Fri-Mon 00:00-24:00", ["Fri 00:00", "Mon 23:59"], ["Tue 00:00", "Thu 23:59"]),
        ("sat,SUN 00:00 - 24:00; wed 12:00-12:30", ["Sat 05:00", "Wed 12:29"], ["Wed 12:30", "Fri 23:59"]),
        ("Sun 22:00-00:00", ["Sun 22:00", "Sun 23:59"], ["Mon 00:00", "Sun 21:59"]),
    ],
)
def test_hours_mean_what_they_say(text: str, within: list[str], outside: list[str]) -> None:
    hours = parse_hours(text)
    assert [word for word in within if not hours.hold(at(*word.split()))] == []
    assert [word for word in outside if hours.hold(at(*word.split()))] == []


@pytest.mark.parametrize("text", ["", "always", " Always ", ";"])
def test_no_hours_are_all_hours(text: str) -> None:
    assert parse_hours(text) == Hours() and Hours().hold(at("Sun", "03:00"))
    assert next_change(Hours(), 0.0) is None and says(Hours(), 0.0) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("20:00", "not a window"),
        ("20-08", "not a window"),
        ("20:00-08:00 Mon", "not a window"),
        ("Mo 20:00-08:00", "not a day"),
        ("Mon- 20:00-08:00", "not a day"),
        ("Mon;20:00-08:00", "not a window"),
        ("20:60-08:00", "not a time of day"),
        ("20:00-24:01", "not a time of day"),
        ("25:00-26:00", "not a time of day"),
        ("08:00-08:00", "no length"),
        ("24:00-08:00", "no length"),
        ("always; 20:00-08:00", "not a window"),
        ("٢٠:٠٠-٠٨:٠٠", "not a window"),
        ("; ".join(["20:00-08:00"] * 33), "33 windows"),
    ],
)
def test_what_nobody_can_mean_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_hours(text)


WINDOWS = st.builds(
    Window,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(0, 1440),
).filter(lambda w: w.start_min != w.end_min)
HOURS = st.lists(WINDOWS, min_size=1, max_size=4).map(lambda windows: Hours(tuple(windows)))


@given(HOURS)
def test_what_is_spoken_reads_back_the_same(hours: Hours) -> None:
    assert parse_hours(spoken(hours)) == hours


@given(st.text(max_size=40))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    try:
        hours = parse_hours(text)
    except ValueError:
        return
    assert parse_hours(spoken(hours)) == hours


@given(WINDOWS)
def test_a_window_is_as_long_as_it_says_in_every_week(window: Window) -> None:
    """Without changed clocks; also where it goes past midnight, and past the end of the week."""
    length = (
        window.end_min - window.start_min
        if window.end_min > window.start_min
        else (1440 - window.start_min + window.end_min)
    )
    held = sum(window.holds(Shown(day, minute)) for day in range(7) for minute in range(1440))
    assert held == length * len(window.days)


# --- when they change ---

SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


@given(
    HOURS,
    st.sampled_from([BERLIN, LORD_HOWE, UTC]),
    st.sampled_from([MONDAY, SPRING, AUTUMN, datetime(2026, 4, 4, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)]),
    st.integers(0, 2 * 86_400),
)
@example(parse_hours("01:00-02:30"), BERLIN, AUTUMN, 11 * 3600)
def test_the_next_change_is_the_first_there_is(hours: Hours, zone: ZoneInfo, day: datetime, later_s: int) -> None:
    """Also around nights in which clocks are changed, by an hour or by half of one."""
    clock, now_s = in_zone(zone), day.timestamp() + later_s
    change_s = next_change(hours, now_s, clock)
    now = hours.hold(clock(now_s))
    until = (change_s if change_s is not None else now_s + 7 * 86_400) - 1
    probe = now_s
    while probe < until:
        assert hours.hold(clock(probe)) == now
        probe += 1_801.0
    assert hours.hold(clock(until)) == now
    if change_s is not None:
        assert hours.hold(clock(change_s)) != now


def test_a_night_in_which_clocks_are_changed_is_shorter_or_longer() -> None:
    def open_s(night: datetime) -> float:
        hours, clock = parse_hours("20:00-08:00"), in_zone(BERLIN)
        begins = next_change(hours, night.timestamp(), clock)
        assert begins is not None and clock(begins).minute == 20 * 60
        ends = next_change(hours, begins, clock)
        assert ends is not None and clock(ends).minute == 8 * 60
        return ends - begins

    assert [open_s(day) / 3600 for day in (MONDAY + timedelta(hours=12), SPRING, AUTUMN)] == [12, 11, 13]


def test_a_person_reads_when_it_is_back() -> None:
    hours, clock = parse_hours("Mon-Fri 19:00-07:00"), in_zone(UTC)
    assert says(hours, (MONDAY + timedelta(hours=12)).timestamp(), clock) == "outside its hours, back at Mon 19:00"
    assert says(hours, (MONDAY + timedelta(hours=20)).timestamp(), clock) == "within its hours, until Tue 07:00"
    assert says(hours, (MONDAY + timedelta(days=5, hours=8)).timestamp(), clock).endswith("back at Mon 19:00")
    whole_week = parse_hours("00:00-24:00")
    assert says(whole_week, MONDAY.timestamp(), clock) == "within its hours"


# --- settings ---


def test_hours_come_from_flag_environment_and_file_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('orchestrator = "a:1"\nhours = ["Mon-Fri 19:00-07:00", "Sat,Sun 00:00-24:00"]\n')
    environ = {"HOLDFAST_NODE_HOURS": "21:00-22:00"}
    assert load_config({"hours": "20:00-08:00"}, environ, file).hours == "20:00-08:00"
    assert load_config({}, environ, file).hours == "21:00-22:00"
    assert load_config({}, {}, file).hours == "Mon,Tue,Wed,Thu,Fri 19:00-07:00; Sat,Sun 00:00-24:00"
    with pytest.raises(Misconfigured, match=r"--hours sets hours to an invalid value: .*not a window"):
        load_config({"hours": "at night"}, environ, file)


# --- at the desk ---


class Machine:
    """A desk whose clock a test sets, and what it told the node."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, hours: str = "20:00-08:00") -> None:
        self.now = MONDAY + timedelta(hours=12)
        self.told: list[OfferAsked] = []
        monkeypatch.setattr(desk_module, "local", in_zone(UTC))
        some = Resources(cpu_milli=1000)
        self.desk = OperatorSocket(
            home, some, some, self.told.append, dict, hours=hours, grace_ms=7_000, now_s=lambda: self.now.timestamp()
        )

    def at(self, hour: float) -> list[tuple[bool | None, int]]:
        """What is said when the clock shows this hour of Monday: whether it is paused, and the grace."""
        self.now = MONDAY + timedelta(hours=hour)
        return self.look()

    def look(self) -> list[tuple[bool | None, int]]:
        before = len(self.told)
        self.desk.look()
        return [(event.paused, event.grace_ms) for event in self.told[before:]]

    def do(self, **words: Any) -> dict[str, Any]:
        return self.desk._answer(json.dumps(words).encode())  # pyright: ignore[reportPrivateUsage]


def test_a_node_drains_when_its_hours_end_and_comes_back_when_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    # Given a node that is outside its hours, then it is told once, with the grace for what it hosts
    assert machine.at(12) == [(True, 7_000)] and machine.at(13) == []
    assert machine.desk.status()["hours"] == {
        "set": "20:00-08:00", "within": False, "says": "outside its hours, back at Mon 20:00",
    }  # fmt: skip
    # When they begin, it takes work again; when the clock is set back, it drains again
    assert machine.at(20) == [(False, 7_000)] and machine.at(23) == []
    assert machine.at(19.9) == [(True, 7_000)]
    assert machine.at(44) == [(False, 7_000)]


def test_a_pause_outlasts_the_hours_and_resume_does_not_break_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.at(21)
    # Given an operator's pause within the hours, then neither their end nor their beginning changes anything
    machine.do(do="pause", grace_ms=5)
    assert machine.told[-1] == OfferAsked(paused=True, grace_ms=5)
    assert machine.at(33) == [] and machine.at(45) == []
    # When it is resumed outside, then it stays paused until they begin
    assert machine.at(57) == []
    answer = machine.do(do="resume")
    assert machine.told[-1].paused is True and answer["hours"]["within"] is False
    assert machine.at(69) == [(False, 7_000)]


def test_hours_that_were_set_outlive_the_agent_and_always_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, monkeypatch, hours="")
    assert machine.at(12) == []
    answer = machine.do(do="offer", hours="Mon 13:00-14:00")
    assert answer["hours"]["says"] == "outside its hours, back at Mon 13:00"
    assert [event.paused for event in machine.told] == [True]
    assert "not a day" in machine.do(do="offer", hours="Day 13:00-14:00")["error"]
    again = Machine(tmp_path, monkeypatch, hours="")
    assert again.at(12) == [(True, 7_000)]
    again.do(do="offer", hours="always", cpu_milli=500)
    assert again.told[-2].offered == Resources(cpu_milli=500) and again.told[-1].paused is False
    # And a file that was damaged pauses nobody for ever
    (tmp_path / WISHES).write_text('{"hours": "nonsense"}')
    assert Machine(tmp_path, monkeypatch, hours="").at(12) == []
