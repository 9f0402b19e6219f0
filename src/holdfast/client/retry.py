"""How long to wait before the next try, and when to give up. Independent of the transport; clock and randomness are
passed in."""

from collections.abc import Callable

import msgspec


class Patience(msgspec.Struct, frozen=True):
    """`give_up_s` counts from the last sign of life: a stream that worked for a day still has all of it."""

    give_up_s: float = 30.0
    """Longer than an orchestrator needs to restart, and short enough for an interactive user."""
    first_s: float = 0.05
    longest_s: float = 2.0


class Retries:
    """The waits of one call: jitter under a doubling ceiling, so that many clients do not return at once."""

    def __init__(self, patience: Patience, *, clock: Callable[[], float], draw: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._draw = draw
        self.alive()

    def alive(self) -> None:
        """The server did what was requested: reset both the delay and the patience."""
        self.heard()
        self._ceiling = self._patience.first_s

    def heard(self) -> None:
        """The server gave a sign of life only: reset the patience, but keep the delay."""
        self._since = self._clock()

    def next(self, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait before the next try. None: patience has run out."""
        left = self._patience.give_up_s - (self._clock() - self._since)
        if left <= 0:
            return None
        pause = max(at_least_s, self._ceiling * (0.5 + self._draw() / 2))
        self._ceiling = min(self._ceiling * 2, self._patience.longest_s)
        return min(pause, left)
