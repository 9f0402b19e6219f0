"""The time of a simulated world: one heap of scheduled events, one seed, no wall clock.

Everything random in a simulated world is drawn from generators that descend from its seed, and everything that happens
is added to one hash, so that a seed identifies a world completely. This module knows nothing about jobs or nodes.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

from holdfast.model import Instant

EVENTS_MAX = 1_000_000
"""A world that needs more is in an endless loop."""

Timer = list[Any]
"""[time, order, function, arguments]; the function is None once cancelled."""


class RunsAway(Exception):
    """The same events repeat without end."""


class SimWorld:
    def __init__(self, seed: int, events_max: int = EVENTS_MAX) -> None:
        self.seed = seed
        self.events_max = events_max
        self.now = 0
        """True time in milliseconds since the world began. No machine reads it directly."""
        self.happened = 0
        self.notes: list[tuple[int, str]] = []
        """Visible events: faults, crashes, bodies that start and end."""
        self._root = Random(seed)
        self._heap: list[Timer] = []
        self._order = 0
        self._trace = blake2b(digest_size=16)

    def stream(self) -> Random:
        """A separate generator for one part of the world, so that the draws of one part do not shift those of
        another."""
        return Random(self._root.getrandbits(64))

    def call_at(self, when: int, what: Callable[..., None], *arguments: Any) -> Timer:
        self._order += 1
        timer: Timer = [when if when > self.now else self.now, self._order, what, arguments]
        heappush(self._heap, timer)
        return timer

    def call_in(self, delay_ms: int, what: Callable[..., None], *arguments: Any) -> Timer:
        return self.call_at(self.now + delay_ms, what, *arguments)

    @staticmethod
    def cancel(timer: Timer | None) -> None:
        if timer is not None:
            timer[2] = None

    def run_until(self, limit: int, done: Callable[[], bool] | None = None) -> None:
        """Process events up to and including `limit`, or until `done` returns true."""
        heap = self._heap
        while heap and heap[0][0] <= limit:
            when, _, what, arguments = heappop(heap)
            if what is None:
                continue
            self.now = when
            self.happened += 1
            if self.happened > self.events_max:
                raise RunsAway(f"more than {self.events_max} events, and it is still {when} ms")
            what(*arguments)
            if done is not None and done():
                return
        self.now = max(self.now, limit)

    def trace(self, data: bytes) -> None:
        """Add an event to the hash that identifies this run."""
        self._trace.update(b"%d\0" % self.now)
        self._trace.update(data)

    def note(self, text: str) -> None:
        """Record a visible event; also part of the trace."""
        self.notes.append((self.now, text))
        self.trace(text.encode())

    def trace_hash(self) -> str:
        return self._trace.hexdigest()


class Clock:
    """One machine's CLOCK_BOOTTIME: starts anywhere, runs slightly fast or slow, never stops.

    A suspended machine runs no programs, but this clock continues: that is why leases are measured on it.
    """

    def __init__(self, world: SimWorld, offset_ms: int, drift_ppm: int) -> None:
        self._world = world
        self._offset_ms = offset_ms
        self._rate = 1_000_000 + drift_ppm

    def read(self) -> Instant:
        return Instant(self._offset_ms + self._world.now * self._rate // 1_000_000)

    def jump(self, by_ms: int) -> None:
        """Set the clock."""
        self._offset_ms += by_ms

    def when(self, reading: int) -> int:
        """The first moment of the world at which this clock shows at least `reading`."""
        return -((self._offset_ms - reading) * 1_000_000 // self._rate)
