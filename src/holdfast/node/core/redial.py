"""When a node dials its orchestrator again, and when it gives up. Knows no socket and no clock.

What is remembered of one agent's process: whether it ever had a session, when the last one ended, and how many tries
failed in a row. `belongs`: its home shows that an earlier agent of this node had a session.

How a try or a session ends, and what follows:

    LOST        dial again after REDIAL_MS, doubled with each failure up to REDIAL_MS_MAX (AWAY_REDIAL_MS_MAX once the
                orchestrator was away for AWAY_MS); a try or session that lasted STEADY_MS starts the count anew
    CROWDED     there is no room in the line: stay away for CROWD_REDIAL_MS
    APART       the releases do not work together: a node that had a session, or belongs, asks again every
                APART_REDIAL_MS; any other gives up
    UNTRUSTED   the certificate is not the pinned one: as after LOST if there was a session; otherwise it gives up
    REFUSED     the orchestrator does not want this node as it is: it gives up

A crash of the agent forgets all of this but what is in its home; the next agent dials at once.
"""

from enum import StrEnum

from holdfast.model.messages import Hello, Refusal
from holdfast.policy.backoff import backoff_ms

CHALLENGE_MS_MAX = 20_000
"""An orchestrator whose whole fleet comes back at once lets it in one after another. Waiting in that line costs
nothing; leaving it would throw away the connection and lengthen the line. A dead address fails sooner."""
WELCOME_MS_MAX = 20_000
"""Admission waits for a commit; an orchestrator that rebuilds its state may take a while."""
REDIAL_MS = 100
REDIAL_MS_MAX = 1_000
"""An orchestrator that starts again has a grace for its nodes; they must not sleep through it."""
AWAY_MS = 60_000
AWAY_REDIAL_MS_MAX = 5_000
"""Once it was away this long, seconds no longer matter, and a fleet must not knock on a door all day."""
CROWD_REDIAL_MS = 5_000
"""Told that there is no room in the line, a node stays away for a while: each try costs the orchestrator a handshake,
and thousands of nodes that try every second would leave it time for nothing else."""
APART_REDIAL_MS = 120_000
"""Told that the releases do not work together, a node of this network asks again only every one to two minutes: first a
person has to act. That is well within the hour for which its work goes on without contact."""
STEADY_MS = 10_000
"""A session that stood this long was a good one: back-off starts anew."""


class DialEnd(StrEnum):
    LOST = "lost"
    CROWDED = "crowded"
    APART = "apart"
    UNTRUSTED = "untrusted"
    REFUSED = "refused"


def ending_of(refusal: Refusal) -> DialEnd:
    """How a try ends that was refused."""
    if refusal.final:
        return DialEnd.APART if refusal.code == "version" else DialEnd.REFUSED
    return DialEnd.CROWDED if refusal.code == "busy" else DialEnd.LOST


def belongs(hello: Hello) -> bool:
    """Whether this node had a session before, if only an earlier agent's: its home tells."""
    return hello.epoch_seen > 0 or bool(hello.held)


class Redial:
    def __init__(self, now_ms: int) -> None:
        """`now_ms`: of any clock that does not run back; the same one in every call."""
        self._failures = 0
        self._known = False
        self._met_ms = self._dialled_ms = now_ms

    def dialled(self, now_ms: int) -> None:
        """A try begins."""
        self._dialled_ms = now_ms

    def ended(self, end: DialEnd, now_ms: int, draw: int, *, welcomed: bool, belongs: bool = False) -> int | None:
        """How long to wait before the next try; None: give up. `welcomed`: there was a session; `draw`: random bits."""
        if welcomed:
            self._known, self._met_ms = True, now_ms
        if self._hopeless(end, belongs):
            return None
        self._failures = 1 if now_ms - self._dialled_ms > STEADY_MS else self._failures + 1
        if end is DialEnd.APART:
            return backoff_ms(1, APART_REDIAL_MS, APART_REDIAL_MS, draw)
        return redial_ms(self._failures, now_ms - self._met_ms, end is DialEnd.CROWDED, draw)

    def _hopeless(self, end: DialEnd, belongs: bool) -> bool:
        match end:
            case DialEnd.REFUSED:
                return True
            case DialEnd.APART:
                # A fleet that ended itself by mistake would have to be started by hand, machine by machine.
                return not (self._known or belongs)
            case DialEnd.UNTRUSTED:
                # Once the orchestrator was there, a stranger at its address is an attack or a mishap to sit out.
                return not self._known
            case _:
                return False


def redial_ms(failures: int, away_ms: int, crowded: bool, draw: int) -> int:
    """How long to wait before dialling again. `away_ms`: since the last session; `draw`: 64 random bits.

    Quick after the first break (a second contender may be about to start), and soon spread over half a second and more:
    the nodes of a fleet lose their orchestrator in the same moment.
    """
    if crowded:
        return backoff_ms(1, CROWD_REDIAL_MS, CROWD_REDIAL_MS, draw)
    return backoff_ms(failures, REDIAL_MS, REDIAL_MS_MAX if away_ms < AWAY_MS else AWAY_REDIAL_MS_MAX, draw)
