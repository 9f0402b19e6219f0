"""Predicts when waiting jobs will be placed, if everything takes its mean duration.

A small simulation of the queue: capacity is freed when running work ends, and goes to the first job in the queue that
fits. It knows only amounts and durations; the order of the queue and the mean durations are passed in.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import ge
from typing import NamedTuple

Amounts = tuple[int, int, int, int]

ENDINGS_MAX = 1_500
"""The simulation stops after this many end events: each costs a pass over the whole queue."""


class Room(NamedTuple):
    free: Amounts
    ends: Sequence[tuple[int, Amounts]]
    """Milliseconds until some work there ends, and what it frees."""


class ForecastRequest(NamedTuple):
    key: str
    amounts: Amounts
    rooms: frozenset[int]
    """The places that may serve it."""
    lasts_ms: int


def starts(rooms: Sequence[Room], waiting: Sequence[ForecastRequest], until: str = "") -> dict[str, int]:
    """Milliseconds until each waiting request is placed; those not placed within the horizon are left out. `until`:
    stop once this request is placed."""
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
        # A place with less free than the smallest request serves nobody: most endings free less than the queue needs.
        if all(map(ge, free[place], least)):
            line = _served(line, place, now, free, ends, found)
    return found


def _served(
    line: list[ForecastRequest],
    place: int,
    now: int,
    free: list[list[int]],
    ends: list[tuple[int, int, Amounts]],
    found: dict[str, int],
) -> list[ForecastRequest]:
    """Give out what is free in one place, in the order of the queue; returns the requests that are left."""
    here = free[place]
    rest: list[ForecastRequest] = []
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
