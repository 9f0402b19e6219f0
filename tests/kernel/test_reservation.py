"""Reservation: a large job gets room among small ones, and nobody else starves."""

from random import Random

import pytest
from kernel_driver import Network, seen

from holdfast.kernel.decision import Explanation
from holdfast.kernel.events import CancelAsked, ExplainAsked
from holdfast.model import (
    Attempt,
    Failure,
    FailureCode,
    Job,
    JobPhase,
    Need,
    Resources,
    job_id,
)
from holdfast.model.messages import Held, HeldPhase

SMALL = Need(Resources(1_000, 512, 100))
LARGE = Need(Resources(4_000, 4_096, 1_000))
"""All that a node offers."""


class Busy(Network):
    """A network whose small jobs each run for a while and then end, and are followed by others for ever."""

    def __init__(self, nodes: int, seed: int = 0, length_ms: tuple[int, int] = (500, 1_500)) -> None:
        super().__init__()
        self.random = Random(seed)
        self.length_ms = length_ms
        self.ends: dict[str, int] = {}
        self.made = 0
        for number in range(nodes):
            self.join(f"node_{number:02}")

    def live(self) -> list[Attempt]:
        return [r for r in self.rows.values() if isinstance(r, Attempt) and r.live]

    def pass_time(self, ms: int, owners: tuple[str, ...] = ("bob",), step: int = 100) -> None:
        for _ in range(0, ms, step):
            while sum(isinstance(r, Job) and r.phase is JobPhase.QUEUED for r in self.rows.values()) < 3:
                self.made += 1
                self.submit(f"small {self.made}", owner=owners[self.made % len(owners)], need=SMALL)
            for node in self.sessions:
                held = [a for a in self.live() if a.node == node]
                self.report(node, *(self.as_seen(a) for a in held))
            self.wait(step, step)

    def as_seen(self, attempt: Attempt) -> Held:
        end = self.ends.setdefault(attempt.id, self.now + self.random.randrange(*self.length_ms))
        if self.now < end:
            return seen(attempt, HeldPhase.RUNNING)
        # That it fails keeps the story short: no result has to be verified.
        return seen(attempt, HeldPhase.FINISHED, failure=Failure(FailureCode.EXIT_CODE, exit_code=1))


def with_one_held(owner: str = "ann", others: str = "bob") -> tuple[Busy, str]:
    """Two machines full of small jobs, a large one that waits, and a machine that is held for it. From here on what
    runs runs for long."""
    network = Busy(nodes=2)
    network.pass_time(2_000, owners=(others,))
    network.submit("large", owner=owner, priority=9, need=LARGE)
    for _ in range(100):
        network.pass_time(100, owners=(others,))
        if held_nodes(network):
            break
    (node,) = held_nodes(network)
    network.ends = {attempt.id: network.now + 60_000 for attempt in network.live()}
    network.length_ms = (60_000, 60_001)
    return network, node


def held_nodes(network: Network) -> list[str]:
    return [str(r.reserved) for r in network.rows.values() if isinstance(r, Job) and r.live and r.reserved]


@pytest.mark.spec("J13")
@pytest.mark.parametrize("seed", range(12))
def test_a_large_job_runs_although_small_ones_take_every_room_that_appears(seed: int) -> None:
    # given a network kept full by small jobs, so that a whole machine is never free
    network = Busy(nodes=1 + seed % 3, seed=seed)
    network.pass_time(2_000)
    network.submit("large", need=LARGE)
    # when it has waited its time, and what ran by then has ended
    network.pass_time(network.settings.reserve_ms * 3 // 2 + network.length_ms[1] + 500)
    # then it was given its machine, and the others have theirs back
    assert network.attempts("large"), network.job("large")
    assert network.attempts("large")[0].holds == LARGE.resources
    network.pass_time(4_000)
    assert held_nodes(network) == []
    assert {a.owner for a in network.live()} == {"bob"}


@pytest.mark.spec("J13", "H6")
def test_who_waits_for_a_machine_that_is_held_is_told_so() -> None:
    network, node = with_one_held()
    answer = network.tell(ExplainAsked(job_id("ann", "large"))).answer
    assert isinstance(answer, Explanation)
    assert answer.waiting_for == f"room on {node}, which takes nothing new until this job fits there"
    waiting = next(r for r in network.rows.values() if isinstance(r, Job) and r.live and r.owner == "bob" and r.waiting)
    answer = network.tell(ExplainAsked(waiting.id)).answer
    assert isinstance(answer, Explanation)
    assert answer.gates["held free for another job"] == 1


@pytest.mark.spec("J13", "J14")
def test_what_is_held_is_known_again_after_a_restart_and_let_go_when_the_job_ends() -> None:
    # given a machine that is held for a job
    network, node = with_one_held()
    # when the orchestrator starts again and everyone dials in
    before = network.kernel.digest()
    network.restart(epoch=2)
    assert network.job("large").reserved == node
    for name in list(network.sessions):
        network.join(name, held=tuple(network.as_seen(a) for a in network.live() if a.node == name))
    network.pass_time(200)
    # then what ends there still leaves room that nobody else takes
    assert before != network.kernel.digest()  # the epoch is another
    held = [a for a in network.live() if a.node == node]
    network.ends[held[0].id] = network.now
    network.pass_time(500)
    assert len([a for a in network.live() if a.node == node]) == len(held) - 1
    # and when its owner stops the job, everybody may have it
    network.tell(CancelAsked(job_id("ann", "large")))
    assert held_nodes(network) == []
    network.pass_time(500)
    assert len([a for a in network.live() if a.node == node]) == len(held)


@pytest.mark.spec("J13")
def test_an_owner_who_holds_less_may_have_the_room_that_is_held_for_another() -> None:
    # given an owner whose jobs fill both machines, with a large one waiting, for which a machine is held
    network, node = with_one_held(owner="flood", others="flood")
    # when something ends there, the flood's own next job does not get the room
    first, second, *_ = [a for a in network.live() if a.node == node]
    network.ends[first.id] = network.now
    network.pass_time(300, owners=("flood",))
    held = len([a for a in network.live() if a.node == node])
    # then somebody who holds nothing does, at once
    network.submit("first", owner="newcomer", need=SMALL)
    assert [a.node for a in network.attempts("first", owner="newcomer")] == [node]
    assert len([a for a in network.live() if a.node == node]) == held + 1
    # and somebody who waits already does as well, as soon as there is room
    network.submit("first", owner="another", need=SMALL)
    assert network.attempts("first", owner="another") == []
    network.ends[second.id] = network.now
    network.pass_time(100, owners=("flood",))
    assert [a.node for a in network.attempts("first", owner="another")] == [node]


@pytest.mark.spec("J13")
def test_few_machines_are_held_at_a_time() -> None:
    network = Busy(nodes=20, length_ms=(500, 12_000))
    network.pass_time(3_000)
    for number in range(8):
        network.submit("large", owner=f"owner {number}", need=LARGE)
    most = 0
    for _ in range(20):
        network.pass_time(300)
        most = max(most, len(held_nodes(network)))
    assert most == 2


@pytest.mark.spec("J13")
def test_nothing_is_held_for_a_job_that_any_room_would_serve() -> None:
    """The network is full of jobs of one size, and others of that size wait for long: they need no help."""
    network = Busy(nodes=2, length_ms=(2_000, 4_000))
    for _ in range(40):
        network.pass_time(300)
        assert held_nodes(network) == []
    assert network.made > 20


@pytest.mark.spec("J13", "H3")
def test_a_machine_that_goes_away_is_not_held_any_longer() -> None:
    network, node = with_one_held()
    network.leave(node)
    del network.sessions[node]
    network.pass_time(network.settings.reserve_ms)
    assert held_nodes(network) == [n for n in network.sessions if n != node]
