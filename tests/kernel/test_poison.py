"""Stories about machines that go down: when it is the job's doing, and when it is not (docs/decisions/0017)."""

import pytest
from kernel_driver import SETTINGS, Network, seen
from msgspec.structs import replace
from test_long_jobs import LONG_MS, run_on

from holdfast.kernel import contenders
from holdfast.kernel.events import Checkpointed, Tick
from holdfast.kernel.poison import MASS_WINDOW_MS
from holdfast.model import Failure, FailureCode, Recovery
from holdfast.model.messages import HeldPhase

SOON_MS = 60_000
MANY = 32
FORGIVING_MS = SETTINGS.silence_ceiling_ms + 3 * SETTINGS.keepalive_ms
"""So long after its own sleep the orchestrator blames nobody."""


class Fleet(Network):
    """Idle machines, and one job that saves what it does. Where nothing happens for long, the orchestrator sleeps."""

    def __init__(self, nodes: int, poison_nodes: int = 3) -> None:
        super().__init__(replace(SETTINGS, poison_nodes=poison_nodes))
        for number in range(nodes):
            self.join(f"node_{number}")
        self.submit(recovery=Recovery.RESUME, checkpoint_ms=1_000)
        run_on(self, 400)
        self.saved = 0

    def works_for(self, ms: int, saves: bool = True) -> None:
        self.now += ms
        self.tell(Tick(ms))
        if saves:
            self.saved += 1
            running = self.attempts()[-1]
            self.tell(Checkpointed(running.id, running.fence, f"{self.saved:064x}", 10))
        run_on(self, FORGIVING_MS)

    def falls(self, node: str) -> None:
        """It loses its power, and comes back with nothing alive. What others hold goes on."""
        dead = [a for a in self.attempts() if a.node == node and a.live]
        self.leave(node)
        del self.sessions[node]
        run_on(self, 400)
        lost = Failure(FailureCode.RUNTIME_FAULT, "the shim was gone")
        self.join(node, held=tuple(seen(a, HeldPhase.FINISHED, failure=lost) for a in dead))
        run_on(self, 12_000 if len(self.sessions) == 1 else 400)

    def machine_falls(self) -> None:
        self.falls(str(self.attempts()[-1].node))

    def machine_is_replaced(self) -> None:
        """It is gone for good, and another takes its place under an identity of its own."""
        old = str(self.attempts()[-1].node)
        self.leave(old)
        del self.sessions[old]
        run_on(self, 400)
        self.join(f"{old}x")
        run_on(self, 400)


@pytest.mark.spec("J8")
def test_machines_that_died_soon_are_forgotten_once_the_job_got_on() -> None:
    # given a network that stops a job under which two machines die soon
    fleet = Fleet(nodes=6, poison_nodes=2)
    for _ in range(3):
        # when one does, and the job then gets on for long before it loses the next
        fleet.works_for(SOON_MS)
        fleet.machine_falls()
        assert len(fleet.job().felled) == 1
        fleet.works_for(LONG_MS)
        fleet.machine_falls()
        # then that one was chance
        assert fleet.job().felled == ()
        assert fleet.job().live
        run_on(fleet, MASS_WINDOW_MS)


@pytest.mark.spec("J8")
def test_they_are_forgotten_also_where_it_got_on_on_one_of_them() -> None:
    # given two machines, both of which died soon
    fleet = Fleet(nodes=2)
    for _ in range(2):
        fleet.works_for(SOON_MS)
        fleet.machine_falls()
        run_on(fleet, MASS_WINDOW_MS)
    assert len(fleet.job().felled) == 2
    # when the job then gets on for long on one of these, for there is no other
    fleet.works_for(LONG_MS)
    assert fleet.attempts()[-1].node in fleet.job().felled
    fleet.machine_falls()
    # then that was chance
    assert fleet.job().felled == ()


@pytest.mark.spec("J8")
@pytest.mark.parametrize("saves", [False, True], ids=["saves nothing", "saves a little"])
def test_machines_that_die_soon_after_it_began_are_the_jobs_doing(saves: bool) -> None:
    fleet = Fleet(nodes=6, poison_nodes=3)
    for turn in range(3):
        assert fleet.job().live, turn
        fleet.works_for(SOON_MS, saves)
        fleet.machine_falls()
        run_on(fleet, MASS_WINDOW_MS)
        if turn == 1:
            # one that lasted, and saved nothing after its first minutes, takes nothing back
            fleet.works_for(SOON_MS, saves)
            fleet.works_for(LONG_MS, saves=False)
            fleet.machine_falls()
            run_on(fleet, MASS_WINDOW_MS)
    failure = fleet.job().failure
    assert failure is not None and failure.code is FailureCode.POISON


@pytest.mark.spec("J8")
@pytest.mark.parametrize("nodes", [4, 1], ids=["nobody else goes", "always the same machine"])
def test_a_job_that_saves_is_not_stopped_for_machines_that_go_long_after_it_began(nodes: int) -> None:
    fleet = Fleet(nodes)
    for turn in range(MANY):
        fleet.works_for(LONG_MS)
        fleet.machine_falls()
        assert fleet.job().live, turn
    assert (fleet.job().failures, fleet.job().felled) == (0, ())


@pytest.mark.spec("J8")
def test_a_job_that_saves_is_not_stopped_where_every_machine_is_a_new_one() -> None:
    """A rented machine that is taken away and replaced: there is never another that could go instead."""
    fleet = Fleet(nodes=1)
    for turn in range(MANY):
        fleet.works_for(LONG_MS)
        fleet.machine_is_replaced()
        assert fleet.job().live, turn
        assert fleet.attempts()[-1].node in fleet.sessions, turn
    assert (fleet.job().failures, fleet.job().felled) == (0, ())


@pytest.mark.spec("J8")
def test_however_well_it_gets_on_a_job_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a bound on the attempts of a job's whole life
    monkeypatch.setattr(contenders, "MADE_MAX", 5)
    fleet = Fleet(nodes=4)
    # when it brings down every machine, long after it began and having saved, so that nothing else counts it
    while fleet.job().live and len(fleet.attempts()) < 10:
        fleet.works_for(LONG_MS)
        fleet.machine_falls()
    # then it is given up
    failure = fleet.job().failure
    assert failure is not None and "5 attempts" in failure.detail
    assert len(fleet.attempts()) == 5


@pytest.mark.spec("J8", "J5")
def test_a_machine_that_is_back_with_the_body_alive_did_not_go_down() -> None:
    # given a job with two bodies, for the link of the first was cut when the second started
    fleet = Fleet(nodes=2, poison_nodes=2)
    first = fleet.attempts()[0]
    fleet.leave(first.node)
    running = [first, fleet.attempts()[-1]]
    fleet.report(running[1].node, seen(running[1], HeldPhase.RUNNING))
    fleet.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    # when the links of both drop in turn, soon after they began
    for turn in range(6):
        one = running[turn % 2]
        fleet.works_for(MASS_WINDOW_MS)
        fleet.leave(one.node)
        fleet.join(one.node, held=(seen(one, HeldPhase.RUNNING),))
        # then nothing is held against it
        assert fleet.job().live and fleet.job().felled == (), turn
    assert [a.id for a in fleet.attempts() if a.may_win] == [a.id for a in running]
