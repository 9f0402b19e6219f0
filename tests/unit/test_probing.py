"""A probe: a question to one node, answered by that node alone, and not waited for without end."""

import asyncio

import pytest

from holdfast.kernel.decision import ToSession
from holdfast.model.messages import Ping
from holdfast.orchestrator.nodes.fleet import Fleet
from holdfast.orchestrator.nodes.probing import FIRST_NONCE, Probe, Probes

pytestmark = pytest.mark.spec("H5")

WAY_S = 0.03


class Line:
    """What was said to nodes; `answers` says it back after `WAY_S`."""

    def __init__(self, answers: bool = True, as_node: str | None = None) -> None:
        self.fleet = Fleet()
        self.fleet.connected("node_a", 7)
        self.said: list[ToSession] = []
        self.probes = Probes(self._tell, self.fleet)
        self._answers, self._as_node = answers, as_node
        self.now_s = 1_000.0

    def _tell(self, send: ToSession) -> None:
        self.said.append(send)
        assert isinstance(send.message, Ping)
        if self._answers:
            self.now_s += WAY_S
            self.probes.answered(self._as_node or send.node, send.message.nonce)

    def ask(self, node: str = "node_a", times: int = 1) -> list[Probe]:
        async def all_at_once() -> list[Probe]:
            if self._answers and self._as_node is None:
                # Only the way of an answer takes time, and not what else this machine does meanwhile.
                asyncio.get_running_loop().time = lambda: self.now_s  # type: ignore[method-assign]
            return list(await asyncio.gather(*(self.probes.ask(node, 3, timeout_s=0.05) for _ in range(times))))

        return asyncio.run(all_at_once())


def test_a_node_that_answers_is_there():
    line = Line()
    (probe,) = line.ask()
    assert probe.answered and probe.round_trip_ms == 30 and probe.silent_ms is not None
    send = line.said[0]
    assert (send.session, send.message.epoch) == (7, 3)  # type: ignore[union-attr]
    # and its number can be none that the kernel asked with
    assert send.message.nonce > FIRST_NONCE  # type: ignore[union-attr]


def test_a_node_that_says_nothing_is_given_up_and_one_that_is_not_connected_is_not_asked():
    assert not Line(answers=False).ask()[0].answered
    line = Line()
    assert line.ask("node_b") == [Probe(False, None, None)] and not line.said


def test_another_node_cannot_answer_for_it():
    assert not Line(as_node="node_b").ask()[0].answered


def test_who_asks_at_the_same_time_hears_the_same_answer_to_one_question():
    line = Line()
    assert len({probe.answered for probe in line.ask(times=20)}) == 1
    assert len(line.said) == 1
    assert line.ask()[0].answered and len(line.said) == 2
