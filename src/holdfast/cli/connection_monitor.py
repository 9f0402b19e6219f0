"""Whether the network still answers, for whoever waits for it: nobody looks at a screen that stands still and has to
guess why.

While a command waits for something, the network is asked now and then whether it is there. If it has owed an answer for
some seconds, that is said, and said again when it answers. What the command itself does about it (ask again, give up)
is its own business and goes on meanwhile. Short commands are over before anything is asked.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast.cli import error_output

if TYPE_CHECKING:
    from holdfast.client import Client

FIRST_S = 3.0
"""Before the first question: a command that finds nobody at all says so by itself within `SHORT_PATIENCE_S`."""
EVERY_S = 2.0
SILENT_S = 3.0
"""An answer that is owed for so long is missing. A machine that stands still for a second alarms nobody."""
AGAIN = 4
"""It is said again when the silence is so many times as long as when it was last said."""
TICK_S = 0.25
LATE_S = 3.0
"""Between two looks: then we stood still ourselves (Ctrl-Z, a lid that was closed)."""


class Voice(NamedTuple):
    """Who says it, and what is known of what was waited for."""

    say: Callable[[str], None]
    meanwhile: str


_voices = [Voice(lambda text: error_output.say(f"-- {text}", dim=True), "still asking")]


@contextmanager
def through(say: Callable[[str], None] | None = None, meanwhile: str = "") -> Iterator[None]:
    """While inside, `say` is called, from any thread: for those who draw on the screen themselves. `meanwhile`: what
    becomes of what is being waited for."""
    last = _voices[-1]
    _voices.append(Voice(say or last.say, meanwhile or last.meanwhile))
    try:
        yield
    finally:
        _voices.pop()


class ConnectionMonitor:
    """Of one network. `ask` returns when it has answered, and raises if it did not. Pure but for the two threads that
    `begin` starts: one asks, one looks at the clock."""

    def __init__(self, where: str, ask: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._ask = ask
        self._clock = clock
        self._owed_since: float | None = None
        self._said_s = 0.0
        self._looked = clock()
        self._over = threading.Event()
        self._lock = threading.Lock()

    def begin(self) -> None:
        for work in (self._keep_asking, self._keep_looking):
            threading.Thread(target=work, daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def silent_s(self) -> float:
        """For how long it has been missing; 0: it is not."""
        with self._lock:
            return self._said_s and self._silence()

    def asked(self) -> None:
        with self._lock:
            if self._owed_since is None:
                self._owed_since = self._clock()

    def answered(self) -> None:
        with self._lock:
            passed, said = self._silence(), self._said_s
            self._owed_since, self._said_s = None, 0.0
        if said:
            _voices[-1].say(f"{self._where} answers again, after {_spoken(passed)}")

    def look(self) -> None:
        """To be called often: says what is due."""
        with self._lock:
            now = self._clock()
            if now - self._looked > LATE_S and self._owed_since is not None:
                # Nobody else is to be blamed for that time.
                self._owed_since += now - self._looked
            self._looked = now
            passed = self._silence()
            due = passed >= max(SILENT_S, self._said_s * AGAIN)
            if due:
                self._said_s = passed
        if due:
            _voices[-1].say(f"no answer from {self._where} for {_spoken(passed)}; {_voices[-1].meanwhile}")

    def _silence(self) -> float:
        return 0.0 if self._owed_since is None else self._clock() - self._owed_since

    def _keep_asking(self) -> None:
        from holdfast.errors import HoldfastError, Misuse, Unreachable

        pause = FIRST_S
        while not self._over.wait(pause):
            pause = EVERY_S
            self.asked()
            try:
                self._ask()
            except Unreachable:
                continue
            except Exception as other:
                if isinstance(other, Misuse) or not isinstance(other, HoldfastError):
                    # The connection was closed: whoever used it is done.
                    self.end()
                    return
            # Also if it is not the answer that was wanted.
            self.answered()

    def _keep_looking(self) -> None:
        while not self._over.wait(TICK_S):
            self.look()


_felt: list[ConnectionMonitor] = []


def feel(client: "Client") -> None:
    """From now on, until the client is closed."""
    pulse = ConnectionMonitor(getattr(client, "url", ""), lambda: client.ping(patience_s=0.0))
    _felt[:] = [pulse]
    pulse.begin()


def silent_s() -> float:
    """For how long the network that this command asks has been missing; 0: it is not."""
    return _felt[-1].silent_s() if _felt else 0.0


def _spoken(seconds: float) -> str:
    from holdfast.quantities import spoken_ms

    return spoken_ms(round(seconds * 1000))
