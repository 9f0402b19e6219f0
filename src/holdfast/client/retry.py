"""How long to wait before asking again, and when to give up. Knows no transport; clock and randomness are passed in."""

from collections.abc import Callable

import msgspec


class Patience(msgspec.Struct, frozen=True):
    """`give_up_s` counts from the last sign of life: a stream that worked for a day has all of it left."""

    give_up_s: float = 30.0
    """Longer than an orchestrator needs to restart; short enough that a person is told."""
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
        """The other side did what was asked: start over."""
        self.heard()
        self._ceiling = self._patience.first_s

    def heard(self) -> None:
        """The other side gave a sign of life, if only that: be patient anew, but do not hurry."""
        self._since = self._clock()

    def next(self, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait before the next try. None: patience is over, do not try again."""
        left = self._patience.give_up_s - (self._clock() - self._since)
        if left <= 0:
            return None
        pause = max(at_least_s, self._ceiling * (0.5 + self._draw() / 2))
        self._ceiling = min(self._ceiling * 2, self._patience.longest_s)
        return min(pause, left)
