"""Parses the hours in which a node offers itself, and decides whether a time is within them (SPEC N10). Pure: the local
time is passed in.

    20:00-08:00                      every night
    Mon-Fri 19:00-07:00; Sat,Sun 00:00-24:00

A window belongs to the day it begins on: `Fri 19:00-07:00` ends on Saturday morning. Local time counts. So a window is
an hour shorter or longer when daylight saving time changes, and a clock that is set takes effect at once.
"""

import re
from collections.abc import Callable
from datetime import datetime

import msgspec

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MIN = 24 * 60
MINUTE_S = 60
ALWAYS = "always"
"""Removes the hours again."""
WINDOWS_MAX = 32
LOOK_AHEAD_MIN = 8 * DAY_MIN
"""Hours repeat weekly. If nothing changes within a week, plus a day for clock changes, nothing ever does."""

_WINDOW = re.compile(r"([A-Za-z][A-Za-z ,-]*\s)?\s*([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})")
SHAPE = "write [DAYS] HH:MM-HH:MM, as in 20:00-08:00 or 'Mon-Fri 19:00-07:00; Sat,Sun 00:00-24:00'"


class Shown(msgspec.Struct, frozen=True):
    """A local time."""

    weekday: int
    """0: Monday."""
    minute: int
    """Minute of the day."""


class Window(msgspec.Struct, frozen=True):
    days: frozenset[int]
    """The days on which it begins."""
    start_min: int
    end_min: int
    """Up to 24:00; if not after the start, it is on the next day."""

    def holds(self, at: Shown) -> bool:
        if self.end_min > self.start_min:
            return at.weekday in self.days and self.start_min <= at.minute < self.end_min
        evening = at.weekday in self.days and at.minute >= self.start_min
        return evening or ((at.weekday - 1) % 7 in self.days and at.minute < self.end_min)


class Hours(msgspec.Struct, frozen=True):
    windows: tuple[Window, ...] = ()
    """None: always."""

    def hold(self, at: Shown) -> bool:
        return not self.windows or any(window.holds(at) for window in self.windows)


Clock = Callable[[float], Shown]
"""Converts seconds since 1970 to local time."""


def local(at_s: float) -> Shown:
    """In this machine's own time zone."""
    shown = datetime.fromtimestamp(at_s)
    return Shown(shown.weekday(), shown.hour * 60 + shown.minute)


def parse_hours(text: str) -> Hours:
    """Raises ValueError, with an explanation, for invalid hours."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts or [part.lower() for part in parts] == [ALWAYS]:
        return Hours()
    if len(parts) > WINDOWS_MAX:
        raise ValueError(f"there are {len(parts)} windows; the maximum is {WINDOWS_MAX}")
    return Hours(tuple(_window(part) for part in parts))


def _window(part: str) -> Window:
    found = _WINDOW.fullmatch(part)
    if found is None:
        raise ValueError(f"{part[:60]!r} is not a window: {SHAPE}")
    start, end = (_minute(found[i], found[i + 1], part) for i in (2, 4))
    if start in (end, DAY_MIN):
        raise ValueError(f"{part[:60]!r} has no length; a whole day is 00:00-24:00")
    return Window(_days((found[1] or "").strip(), part), start, end)


def _minute(hour: str, minute: str, part: str) -> int:
    if int(minute) > 59 or int(hour) * 60 + int(minute) > DAY_MIN:
        raise ValueError(f"{hour}:{minute} in {part[:60]!r} is not a time of day")
    return int(hour) * 60 + int(minute)


def _days(text: str, part: str) -> frozenset[int]:
    if not text:
        return frozenset(range(7))
    found: set[int] = set()
    for piece in text.split(","):
        first, dash, last = (word.strip() for word in piece.partition("-"))
        start = _day(first, part)
        end = _day(last, part) if dash else start
        found |= {(start + i) % 7 for i in range((end - start) % 7 + 1)}
    return frozenset(found)


def _day(word: str, part: str) -> int:
    for number, day in enumerate(DAYS):
        if word.lower() == day.lower():
            return number
    raise ValueError(f"{word[:20]!r} in {part[:60]!r} is not a day; days are {', '.join(DAYS)}")


def spoken(hours: Hours) -> str:
    """In the operator's syntax; `parse_hours` reads it back."""
    return "; ".join(map(_spoken, hours.windows)) or ALWAYS


def _spoken(window: Window) -> str:
    span = f"{window.start_min // 60:02}:{window.start_min % 60:02}-{window.end_min // 60:02}:{window.end_min % 60:02}"
    if len(window.days) == 7:
        return span
    return f"{','.join(DAYS[day] for day in sorted(window.days))} {span}"


def next_change(hours: Hours, now_s: float, clock: Clock = local) -> float | None:
    """When the hours next begin or end, to the minute; None: never. Steps minute by minute, which is also right on days
    with clock changes."""
    if not hours.windows:
        return None
    now_open = hours.hold(clock(now_s))
    minute_s = now_s - now_s % MINUTE_S
    for ahead in range(1, LOOK_AHEAD_MIN):
        at_s = minute_s + ahead * MINUTE_S
        if hours.hold(clock(at_s)) != now_open:
            return at_s
    return None


def says(hours: Hours, now_s: float, clock: Clock = local) -> str:
    """A description for people; empty if there are no hours."""
    if not hours.windows:
        return ""
    within = hours.hold(clock(now_s))
    change_s = next_change(hours, now_s, clock)
    if change_s is None:
        return "within its hours" if within else "outside its hours"
    shown = clock(change_s)
    at = f"{DAYS[shown.weekday]} {shown.minute // 60:02}:{shown.minute % 60:02}"
    return f"within its hours, until {at}" if within else f"outside its hours, back at {at}"
