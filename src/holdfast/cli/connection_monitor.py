"""Tells a person who waits that the network has stopped answering, and when it answers again.

While a command waits for something, the network is pinged now and then. If an answer has been missing for some seconds,
a message says so, and another message follows when the network answers. The command's own reaction (retry, give up)
does not depend on this. Short commands end before the first ping.
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
"""Seconds before the first ping. A command that gets no answer at all fails by itself within `SHORT_PATIENCE_S`."""
EVERY_S = 2.0
SILENT_S = 3.0
"""Seconds without an answer before it is reported. A pause of one second is not."""
AGAIN = 4
"""The report is repeated when the silence is this many times as long as at the last report."""
TICK_S = 0.25
LATE_S = 3.0
"""Seconds between two looks above which this process itself was stopped (Ctrl-Z, a closed lid)."""


class Voice(NamedTuple):
    """Where messages go, and what they say about the work that is waited for."""

    say: Callable[[str], None]
    meanwhile: str


_voices = [Voice(lambda text: error_output.say(f"-- {text}", dim=True), "still asking")]


@contextmanager
def through(say: Callable[[str], None] | None = None, meanwhile: str = "") -> Iterator[None]:
    """While inside, messages go to `say`, from any thread: for callers that draw on the screen themselves. `meanwhile`:
    what happens to the work that is waited for."""
    last = _voices[-1]
    _voices.append(Voice(say or last.say, meanwhile or last.meanwhile))
    try:
        yield
    finally:
        _voices.pop()


class ConnectionMonitor:
    """Monitors one network. `ask` returns when the network has answered, and raises if it has not. Pure except for the
    two threads that `begin` starts: one pings, one watches the clock."""

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
        """Seconds of the silence that was reported; 0 if there is none."""
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
        """Report the silence if that is due. Called often."""
        with self._lock:
            now = self._clock()
            if now - self._looked > LATE_S and self._owed_since is not None:
                # The network is not to blame for that time.
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
                    # The client was closed: the command is done.
                    self.end()
                    return
            # An error is an answer, too.
            self.answered()

    def _keep_looking(self) -> None:
        while not self._over.wait(TICK_S):
            self.look()


_felt: list[ConnectionMonitor] = []


def feel(client: "Client") -> None:
    """Monitor the client's network until the client is closed."""
    pulse = ConnectionMonitor(getattr(client, "url", ""), lambda: client.ping(patience_s=0.0))
    _felt[:] = [pulse]
    pulse.begin()


def silent_s() -> float:
    """Seconds for which the network of this command has been silent; 0 if it is not."""
    return _felt[-1].silent_s() if _felt else 0.0


def _spoken(seconds: float) -> str:
    from holdfast.quantities import spoken_ms

    return spoken_ms(round(seconds * 1000))
