"""Links between machines and the streams over them: delay, cuts, loss, duplication, reordering.

A stream behaves like TCP: messages sent into a cut wait and are delivered when the cut heals, unless an end has given
up by then. A process that dies closes its streams at once; a machine that dies closes nothing. In addition, a degraded
link may drop, repeat or reorder single messages. That is worse than TCP, and the protocol promises to survive it. The
network does not look at the messages.
"""

from random import Random
from typing import Any, Protocol

from holdfast.sim.world import SimWorld

UP, DOWN = 0, 1
"""From the node to the orchestrator; from the orchestrator to the node."""


class End(Protocol):
    """A process that holds one end of a stream."""

    def heard(self, stream: "Stream", message: Any) -> None: ...
    def broke(self, stream: "Stream", why: str) -> None: ...


class SimLink:
    """The path between one node and the orchestrators, and its condition."""

    def __init__(self, world: SimWorld, random: Random, base_ms: int) -> None:
        self.world = world
        self.random = random
        self.base_ms = base_ms
        self.cut = [0, 0]
        """By direction: how many faults currently cut it."""
        self.extra_ms = 0
        self.drop = 0.0
        self.repeat = 0.0
        self.reorder = 0.0
        self.give_up_ms = 20_000
        """How long the transport's own probes go unanswered before a stream breaks."""
        self._streams: list[Stream] = []
        self._cuts = 0

    def latency(self) -> int:
        base = self.base_ms + self.extra_ms
        return base + int(self.random.random() * (base + 1))

    def sever(self, direction: int) -> None:
        self.cut[direction] += 1
        self._cuts += 1
        self.world.call_in(self.give_up_ms, self._give_up, self._cuts)

    def mend(self, direction: int) -> None:
        self.cut[direction] -= 1
        if self.whole:
            self._cuts += 1
        if not self.cut[direction]:
            for stream in list(self._streams):
                stream.resume(direction)

    def _give_up(self, cut: int) -> None:
        """No probe got through and back for too long: each end on its own considers the stream dead."""
        if cut == self._cuts and not self.whole:
            for stream in list(self._streams):
                stream.give_up()

    @property
    def whole(self) -> bool:
        return not (self.cut[UP] or self.cut[DOWN])

    def open(self, node_end: End, orchestrator_end: End) -> "Stream":
        stream = Stream(self, node_end, orchestrator_end)
        self._streams.append(stream)
        return stream

    def forget(self, stream: "Stream") -> None:
        if stream in self._streams:
            self._streams.remove(stream)


_FIN = object()


class Stream:
    """A two-way stream. Each end is open until it closes, vanishes with its machine, or learns of the break."""

    def __init__(self, link: SimLink, node_end: End, orchestrator_end: End) -> None:
        self.link = link
        self._to: list[End] = [orchestrator_end, node_end]
        """Receiver by direction."""
        self._open = [True, True]
        """By receiving end: index UP is the orchestrator's end, DOWN the node's."""
        self._floor = [0, 0]
        self._stalled: list[list[Any]] = [[], []]
        self._life = [0, 0]
        """By direction; messages in flight when it grew are lost."""

    def send(self, direction: int, message: Any) -> None:
        sender = 1 - direction
        if not self._open[sender]:
            return
        link = self.link
        if link.cut[direction]:
            self._stalled[direction].append(message)
            return
        if link.drop and link.random.random() < link.drop:
            return
        self._carry(direction, message)
        if link.repeat and link.random.random() < link.repeat:
            self._carry(direction, message)

    def close(self, end: int, why: str) -> None:
        """The process at `end` died or closed: the other end is notified, now or when the path is open."""
        if not self._open[end]:
            return
        self._open[end] = False
        direction = 1 - end
        """The direction in which the notification travels."""
        if self.link.random.random() < 0.5:
            self._life[direction] += 1
            self._stalled[direction].clear()
        self._life[end] += 1
        if self.link.cut[direction]:
            self._stalled[direction].append((_FIN, why))
        else:
            self._carry(direction, (_FIN, why))
        self._settle()

    def vanish(self, end: int) -> None:
        """The machine at `end` lost power: nothing is sent. The other end's probes notice some time later."""
        self._open[end] = False
        self._life[UP] += 1
        self._life[DOWN] += 1
        self.link.world.call_in(
            self.link.random.randrange(500, self.link.give_up_ms), self._break, 1 - end, "no answer"
        )
        self._settle()

    def give_up(self) -> None:
        self._life[UP] += 1
        self._life[DOWN] += 1
        self._stalled = [[], []]
        self._break(UP, "keep-alive unanswered")
        self._break(DOWN, "keep-alive unanswered")

    def resume(self, direction: int) -> None:
        """The cut healed: queued messages get through, in order."""
        waiting, self._stalled[direction] = self._stalled[direction], []
        self._floor[direction] = max(self._floor[direction], self.link.world.now + self.link.random.randrange(200))
        for message in waiting:
            self._carry(direction, message)

    def _carry(self, direction: int, message: Any) -> None:
        link = self.link
        arrival = link.world.now + link.latency()
        if link.reorder and link.random.random() < link.reorder:
            arrival += link.random.randrange(20, 600)
        else:
            floor = self._floor[direction]
            arrival = arrival if arrival > floor else floor
            self._floor[direction] = arrival
        link.world.call_at(arrival, self._arrive, direction, self._life[direction], message)

    def _arrive(self, direction: int, life: int, message: Any) -> None:
        if life != self._life[direction] or not self._open[direction]:
            return
        if self.link.cut[direction]:
            self._stalled[direction].append(message)
            return
        if type(message) is tuple and message[0] is _FIN:
            self._break(direction, message[1])
            return
        self._to[direction].heard(self, message)

    def _break(self, end: int, why: str) -> None:
        if not self._open[end]:
            return
        self._open[end] = False
        self._settle()
        self._to[end].broke(self, why)

    def _settle(self) -> None:
        if not (self._open[0] or self._open[1]):
            self.link.forget(self)
