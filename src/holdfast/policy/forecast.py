"""When those who wait will find room, if everything takes as long as it does on average.

A small rehearsal of the queue: rooms empty as what they hold ends, and each that empties goes to the first in line whom
it serves. It knows amounts and durations only; who is first in line and what things take on average is told to it.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import ge
from typing import NamedTuple

Amounts = tuple[int, int, int, int]

ENDINGS_MAX = 1_500
"""A rehearsal looks no further than so many moments at which something ends: each costs a look at the whole line."""


class Room(NamedTuple):
    free: Amounts
    ends: Sequence[tuple[int, Amounts]]
    """In how many milliseconds something there ends, and what it gives back."""


class Wanted(NamedTuple):
    key: str
    amounts: Amounts
    rooms: frozenset[int]
    """Which of the rooms may serve it."""
    lasts_ms: int


def starts(rooms: Sequence[Room], waiting: Sequence[Wanted], until: str = "") -> dict[str, int]:
    """In how many milliseconds each of those waiting finds room; who does not, as far as is looked, is left out.
    `until`: whose answer is enough."""
    free = [list(room.free) for room in rooms]
    ends = [(at, place, amounts) for place, room in enumerate(rooms) for at, amounts in room.ends]
    heapify(ends)
    line = list(waiting)
    found: dict[str, int] = {}
    least = [min(amounts) for amounts in zip(*(wanted.amounts for wanted in line), strict=True)]
    for place in range(len(rooms)):
        line = _served(line, place, 0, free, ends, found)
    for _ in range(ENDINGS_MAX):
        if not (line and ends) or until in found:
            break
        now, place, amounts = heappop(ends)
        _add(free[place], amounts)
        while ends and ends[0][:2] == (now, place):
            _add(free[place], heappop(ends)[2])
        # What serves not even the smallest wishes serves nobody: most endings give back less than those in line want.
        if all(map(ge, free[place], least)):
            line = _served(line, place, now, free, ends, found)
    return found


def _served(
    line: list[Wanted],
    place: int,
    now: int,
    free: list[list[int]],
    ends: list[tuple[int, int, Amounts]],
    found: dict[str, int],
) -> list[Wanted]:
    """Give out what is free in one place, in the order of the line; who is left."""
    here = free[place]
    rest: list[Wanted] = []
    for wanted in line:
        cpu, memory, disk, gpus = amounts = wanted.amounts
        if cpu <= here[0] and memory <= here[1] and disk <= here[2] and gpus <= here[3] and place in wanted.rooms:
            for i in range(4):
                here[i] -= amounts[i]
            found[wanted.key] = now
            heappush(ends, (now + max(1, wanted.lasts_ms), place, amounts))
        else:
            rest.append(wanted)
    return rest


def _add(free: list[int], amounts: Amounts) -> None:
    for i in range(4):
        free[i] += amounts[i]
