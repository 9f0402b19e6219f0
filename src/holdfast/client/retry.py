"""How long to wait before asking again, and when to give up. Knows no transport; randomness is passed in."""

import random
import time
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

    def __init__(
        self,
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self.alive()

    def alive(self) -> None:
        """The other side did what was asked: start over."""
        self.heard()
        self._ceiling = self._patience.first_s

    def heard(self) -> None:
        """The other side gave a sign of life, if only that: be patient anew, but do not hurry."""
        self._since = self._clock()

    def wait(self, at_least_s: float = 0.0) -> bool:
        """Sleep before the next try. False: patience is over, do not try again."""
        left = self._patience.give_up_s - (self._clock() - self._since)
        if left <= 0:
            return False
        pause = max(at_least_s, self._ceiling * (0.5 + self._draw() / 2))
        self._ceiling = min(self._ceiling * 2, self._patience.longest_s)
        self._sleep(min(pause, left))
        return True
