"""Decides when a node dials its orchestrator again, and when it gives up. Knows no socket and no clock.

The state of one agent process: whether it ever had a session, when the last session ended, and how many tries failed in
a row. `belongs`: the agent's home shows that an earlier agent of this node had a session.

The ways a try or a session ends, and what follows:

    LOST        dial again after REDIAL_MS, doubled with each failure up to REDIAL_MS_MAX (AWAY_REDIAL_MS_MAX once the
                orchestrator was away for AWAY_MS); a try or session that lasted STEADY_MS resets the count
    CROWDED     the queue for admission is full: dial again after CROWD_REDIAL_MS
    APART       the releases are incompatible: a node that had a session, or belongs, dials again every
                APART_REDIAL_MS; any other gives up
    UNTRUSTED   the certificate is not the pinned one: as after LOST if there was a session; otherwise the node gives up
    REFUSED     the orchestrator refuses this node: it gives up

A crash of the agent loses this state, except for what is in its home; the next agent dials at once.
"""

from enum import StrEnum

from holdfast.model.messages import Hello, Refusal
from holdfast.policy.backoff import backoff_ms

CHALLENGE_MS_MAX = 20_000
"""How long a node waits for the challenge. An orchestrator whose whole fleet comes back at once admits nodes one after
another. Waiting in that queue costs nothing; leaving it would waste the connection and lengthen the queue. A dead
address fails sooner."""
WELCOME_MS_MAX = 20_000
"""How long a node waits for the welcome. Admission waits for a commit, and an orchestrator that rebuilds its state may
take a while."""
REDIAL_MS = 100
REDIAL_MS_MAX = 1_000
"""A restarted orchestrator gives its nodes a grace to reconnect (`reconnect_grace_ms`); they must dial within it."""
AWAY_MS = 60_000
AWAY_REDIAL_MS_MAX = 5_000
"""Once the orchestrator was away for AWAY_MS, seconds no longer matter, and a fleet must not dial all day."""
CROWD_REDIAL_MS = 5_000
"""A node that finds the queue for admission full waits this long: each try costs the orchestrator a handshake, and
thousands of nodes that dial every second would leave it no time for anything else."""
APART_REDIAL_MS = 120_000
"""A node whose release is incompatible dials again only every one to two minutes, because a person has to act first.
That is well within the hour for which its work continues without contact."""
STEADY_MS = 10_000
"""A session that lasted this long resets the back-off."""


class DialEnd(StrEnum):
    LOST = "lost"
    CROWDED = "crowded"
    APART = "apart"
    UNTRUSTED = "untrusted"
    REFUSED = "refused"


def ending_of(refusal: Refusal) -> DialEnd:
    """The end of a try that was refused."""
    if refusal.final:
        return DialEnd.APART if refusal.code == "version" else DialEnd.REFUSED
    return DialEnd.CROWDED if refusal.code == "busy" else DialEnd.LOST


def belongs(hello: Hello) -> bool:
    """Whether this node or an earlier agent of it had a session, according to its home."""
    return hello.epoch_seen > 0 or bool(hello.held)


class Redial:
    def __init__(self, now_ms: int) -> None:
        """`now_ms`: from any clock that never goes back; the same clock in every call."""
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
                # If a whole fleet gave up by mistake, every machine would have to be started by hand.
                return not (self._known or belongs)
            case DialEnd.UNTRUSTED:
                # After a session, another certificate at this address is an attack or a mistake: keep trying.
                return not self._known
            case _:
                return False


def redial_ms(failures: int, away_ms: int, crowded: bool, draw: int) -> int:
    """How long to wait before dialling again. `away_ms`: time since the last session; `draw`: 64 random bits.

    Short after the first break (a second contender may be about to start), and soon spread over half a second and more,
    because the nodes of a fleet lose their orchestrator at the same moment.
    """
    if crowded:
        return backoff_ms(1, CROWD_REDIAL_MS, CROWD_REDIAL_MS, draw)
    return backoff_ms(failures, REDIAL_MS, REDIAL_MS_MAX if away_ms < AWAY_MS else AWAY_REDIAL_MS_MAX, draw)
