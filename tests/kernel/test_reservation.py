"""Reservation: a large job gets room among small ones, and nobody else starves."""

from random import Random

import pytest
from kernel_driver import SETTINGS, Network, seen
from msgspec.structs import replace

from holdfast.kernel import contenders, reservation
from holdfast.kernel.decision import Explanation
from holdfast.kernel.events import CancelAsked, ExplainAsked
from holdfast.kernel.world import World
from holdfast.model import (
    Attempt,
    AttemptPhase,
    Failure,
    FailureCode,
    Instant,
    Job,
    JobId,
    JobPhase,
    Need,
    NodeId,
    NodeState,
    Owner,
    Resources,
    Settings,
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
                self.submit(f"small {self.made}", owner=owners[self.made % len(owners)], need=SMALL, attempts_max=1)
            for node in self.sessions:
                held = [a for a in self.live() if a.node == node]
                self.report(node, *(self.as_seen(a) for a in held))
            self.wait(step, step)

    def as_seen(self, attempt: Attempt) -> Held:
        end = self.ends.setdefault(attempt.id, self.now + self.random.randrange(*self.length_ms))
        if self.now < end:
            return seen(attempt, HeldPhase.RUNNING)
        # That it fails keeps the story short: no result has to be verified, and with one attempt nothing confirmed.
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
    network.submit("large", need=LARGE, attempts_max=1)
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


# --- rule by rule ---

NODE = NodeId("node_a")
WAITS = Need(Resources(4_000, 512, 100))
PART = Need(Resources(2_000, 512, 100))


def one_held(settings: Settings = SETTINGS) -> tuple[Network, World, Job]:
    """A machine that two jobs fill and that is held for a third one, of another owner."""
    network = Network(settings)
    network.join("node_a")
    for key in ("one", "two"):
        network.submit(key, owner="bob", need=PART)
    network.submit("large", need=WAITS)
    w = network.kernel._w
    w.begin(Instant(network.now))
    w.put(replace(w.jobs[job_id("ann", "large")], reserved=NODE))
    return network, w, w.jobs[job_id("ann", "large")]


def empty(network: Network, w: World) -> None:
    """What the machine held is over, and nobody has been given the room yet."""
    for attempt in w.held_by(NODE):
        contenders.close_attempt(w, attempt, None)


@pytest.mark.spec("J13")
def test_a_machine_is_held_for_nobody_once_the_job_has_ended() -> None:
    network, w, job = one_held()
    assert reservation.held_free(w) == {NODE: job.id}
    network.tell(CancelAsked(job.id))
    assert reservation.held_free(w) == {} and network.job("large").reserved is None


@pytest.mark.spec("J13")
def test_a_machine_is_held_only_for_a_job_that_waits() -> None:
    _, w, job = one_held()
    w.queue.join(JobId("job_other"), Owner("cleo"), 0, (WAITS, (), None))
    w.jobs[JobId("job_other")] = replace(job, id=JobId("job_other"), reserved=None)
    w.queue.leave(job.id)
    assert reservation.next_for(w, NODE) is None
    reservation.review(w)
    assert w.jobs[job.id].reserved is None


@pytest.mark.spec("J13")
def test_room_on_a_machine_that_is_held_for_nobody_is_given_out_by_the_queue() -> None:
    network, w, _ = one_held()
    network.join("node_b")
    assert reservation.next_for(w, NodeId("node_b")) is None


@pytest.mark.spec("J13")
def test_the_room_that_is_held_goes_to_the_job_it_is_held_for_and_not_to_an_equal() -> None:
    network, w, job = one_held()
    empty(network, w)
    lane = (WAITS, (), None)
    assert reservation.next_for(w, NODE) == job.id
    assert reservation.room_held(w, job, lane) is w.fleet[NODE]
    assert reservation.room_held(w, replace(job, id=JobId("job_other"), owner=Owner("cleo")), lane) is None


@pytest.mark.spec("J13", "N5")
@pytest.mark.parametrize(("most", "fits"), [(3, True), (2, False)])
def test_held_room_does_not_raise_the_number_of_attempts_on_a_machine(most: int, fits: bool) -> None:
    _, w, _ = one_held(replace(SETTINGS, attempts_per_node_max=most))
    tiny = Need(Resources(0, 1, 1))
    assert reservation._fits_now(w, NODE, (tiny, (), None)) is fits


@pytest.mark.spec("J13", "H3", "J5")
@pytest.mark.parametrize(
    "but",
    ["", "another is chosen", "it holds an attempt", "not connected", "draining", "suspect", "another kind", "small"],
)
def test_a_machine_is_held_only_where_the_job_could_run(but: str) -> None:
    _, w, _ = one_held()
    need, ruled_out, only = WAITS, (), NODE
    match but:
        case "another is chosen":
            only = NodeId("node_b")
        case "it holds an attempt":
            ruled_out = (NODE,)
        case "not connected":
            w.presence(NODE).session = None
        case "draining":
            w.put(replace(w.nodes[NODE], draining=True))
        case "suspect":
            w.put(replace(w.nodes[NODE], state=NodeState.SUSPECT))
        case "another kind":
            need = replace(need, arch="other")
        case "small":
            need = Need(Resources(4_001, 512, 100))
        case _:
            pass
    assert reservation._suits(w, w.fleet[NODE], (need, ruled_out, only)) is (but == "")


@pytest.mark.spec("J13")
@pytest.mark.parametrize(("need", "after"), [(Need(Resources(1, 1, 1)), 0), (PART, 100), (WAITS, 300)])
def test_room_appears_when_enough_of_what_a_machine_holds_must_have_ended(need: Need, after: int) -> None:
    _, w, _ = one_held()
    w.put(replace(w.nodes[NODE], offered=replace(w.nodes[NODE].offered, cpu_milli=4_001)))
    for attempt, ms in zip(w.held_by(NODE), (300, 100), strict=True):
        w.put(replace(attempt, phase=AttemptPhase.RUNNING, phase_until_ms=w.soon(ms)))
    assert reservation._fits_from(w, w.fleet[NODE], need) == w.soon(after)


@pytest.mark.spec("J13")
@pytest.mark.parametrize(
    ("phase", "limit_ms", "revoked", "more_ms"),
    [
        (AttemptPhase.PREPARING, 7_000, False, 7_000),
        (AttemptPhase.PREPARING, 0, False, SETTINGS.run_ms_max),
        (AttemptPhase.PREPARING, 7_000, True, 0),
        (AttemptPhase.RUNNING, 7_000, False, 0),
    ],
)
def test_what_has_not_begun_ends_after_the_time_that_it_may_run(
    phase: AttemptPhase, limit_ms: int, revoked: bool, more_ms: int
) -> None:
    network, w, _ = one_held()
    (attempt,) = network.attempts("one", "bob")
    job = w.jobs[attempt.job]
    w.put(replace(job, spec=replace(job.spec, time_limit_ms=limit_ms)))
    why = Failure(FailureCode.SUPERSEDED) if revoked else None
    attempt = replace(attempt, phase=phase, phase_until_ms=w.soon(500), revoked=why)
    assert reservation._ends_by(w, attempt) == w.soon(500 + more_ms)


def four_full() -> tuple[Network, World]:
    """Four full machines of which half may be held, and two large jobs that have waited for long. What runs came later,
    so that both were passed over."""
    network = Network(replace(SETTINGS, reserved_share_max_permille=500))
    for number in range(4):
        network.join(f"node_{number}")
    for number in range(8):
        network.submit(f"small {number}", owner="bob", need=PART)
    for owner in ("ann", "cleo"):
        network.submit("large", owner=owner, need=WAITS)
    w = network.kernel._w
    w.begin(Instant(network.now + SETTINGS.reserve_ms))
    for attempt in list(w.attempts.values()):
        w.put(replace(attempt, offered_ms=w.now))
    return network, w


@pytest.mark.spec("J13")
def test_half_of_the_machines_are_held_where_half_may_be_and_each_job_has_one() -> None:
    _, w = four_full()
    reservation.review(w)
    held = dict(reservation.held_free(w))
    assert sorted(held.values()) == sorted(job_id(owner, "large") for owner in ("ann", "cleo"))
    w.settings = replace(w.settings, reserved_share_max_permille=1_000)
    reservation.review(w)
    assert reservation.held_free(w) == held, "a job that has one needs no other"


@pytest.mark.spec("J13", "J12", "J5")
def test_a_machine_is_not_held_twice_and_one_where_the_job_failed_comes_last() -> None:
    _, w = four_full()
    large = w.jobs[job_id("ann", "large")]
    avoid = tuple(NodeId(f"node_{number}") for number in (0, 1, 3))
    found = reservation._soonest(w, replace(large, avoid=avoid), (WAITS, (), None))
    assert found is not None and found.node == "node_2"
    chosen = (WAITS, (), NodeId("node_0"))
    assert reservation._soonest(w, large, chosen) is w.fleet[NodeId("node_0")]
    w.put(replace(w.jobs[job_id("cleo", "large")], reserved=NodeId("node_0")))
    assert reservation._soonest(w, large, chosen) is None


IDLE = Need(Resources(0, 4_096, 100))
"""All the memory of a machine and none of its processors: it counts least in its owner's share."""


def next_to_the_least() -> tuple[Network, World]:
    """Somebody runs a job that counts least, and has another one that waits; every machine is full."""
    network = Network()
    network.join("node_a")
    network.submit("runs", owner="bob", need=IDLE)
    network.join("node_b")
    network.submit("ends", owner="cleo", need=IDLE)
    network.submit("waits", owner="bob", need=IDLE)
    return network, network.kernel._w


@pytest.mark.spec("J13")
def test_who_has_nothing_goes_before_who_has_the_least() -> None:
    network, _ = next_to_the_least()
    network.submit("first", owner="zoe", need=IDLE)
    (ends,) = network.attempts("ends", "cleo")
    failed = Failure(FailureCode.EXIT_CODE, exit_code=1)
    network.report("node_b", seen(ends, HeldPhase.FINISHED, failure=failed))
    assert network.attempts("first", "zoe") and not network.attempts("waits", "bob")


@pytest.mark.spec("J13")
def test_who_has_nothing_may_have_room_that_is_held_for_who_has_the_least() -> None:
    _, w = next_to_the_least()
    waits = w.jobs[job_id("bob", "waits")]
    w.put(replace(waits, reserved=NodeId("node_b")))
    for attempt in w.held_by(NodeId("node_b")):
        contenders.close_attempt(w, attempt, None)
    new = replace(waits, id=JobId("job_new"), owner=Owner("zoe"))
    assert reservation.room_held(w, new, (IDLE, (), None)) is w.fleet[NodeId("node_b")]


@pytest.mark.spec("J13", "J12")
def test_a_job_for_which_a_person_chose_a_machine_gets_it_when_it_is_held_for_the_job() -> None:
    network, w, job = one_held()
    empty(network, w)
    assert contenders.choose(w, job, (WAITS, (), NODE)) is w.fleet[NODE]
