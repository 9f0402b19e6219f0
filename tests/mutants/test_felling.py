"""Stories about machines that go down: when it is the job's doing, and when it is not (docs/decisions/0017)."""

import pytest
from by_hand import SETTINGS, Network, seen
from msgspec.structs import replace
from test_waiting import LONG_MS, run_on

from holdfast.kernel.events import Checkpointed, Tick
from holdfast.kernel.health import MASS_WINDOW_MS
from holdfast.kernel.world import FALLS_KEPT
from holdfast.model import Failure, FailureCode, Recovery
from holdfast.model.messages import HeldPhase

SOON_MS = 60_000
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

    def idle_falls(self) -> None:
        self.falls(next(node for node in self.sessions if node != self.attempts()[-1].node))


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
def test_where_nothing_goes_down_but_machines_with_this_job_it_is_stopped_whatever_it_saved() -> None:
    # given a fleet in which nothing else happens, and a job under which every machine dies, long after it began
    fleet = Fleet(nodes=4)
    falls = 0
    while fleet.job().live and falls < 2 * FALLS_KEPT:
        fleet.works_for(LONG_MS)
        fleet.machine_falls()
        falls += 1
    # then it is stopped in bounded time
    assert falls == FALLS_KEPT
    failure = fleet.job().failure
    assert failure is not None and failure.code is FailureCode.POISON
    assert "no other one went meanwhile" in failure.detail


@pytest.mark.spec("J8")
@pytest.mark.parametrize("nodes", [4, 1], ids=["another goes in between", "always the same machine"])
def test_a_job_that_saves_is_not_stopped_for_machines_that_go_by_themselves(nodes: int) -> None:
    fleet = Fleet(nodes)
    for turn in range(FALLS_KEPT + 2):
        fleet.works_for(LONG_MS)
        fleet.machine_falls()
        if turn == FALLS_KEPT // 2 and nodes > 1:
            fleet.idle_falls()
        assert fleet.job().live, turn
    assert fleet.job().failures == 0


@pytest.mark.spec("J8", "J5")
def test_a_machine_that_is_back_with_the_body_alive_did_not_go_down() -> None:
    # given a job with two bodies, for the link of the first was cut when the second started
    fleet = Fleet(nodes=2)
    first = fleet.attempts()[0]
    fleet.leave(first.node)
    running = [first, fleet.attempts()[-1]]
    fleet.report(running[1].node, seen(running[1], HeldPhase.RUNNING))
    fleet.join(first.node, held=(seen(first, HeldPhase.RUNNING),))
    # when the links of both drop in turn, again and again
    for turn in range(FALLS_KEPT + 2):
        one = running[turn % 2]
        fleet.works_for(LONG_MS)
        fleet.leave(one.node)
        fleet.join(one.node, held=(seen(one, HeldPhase.RUNNING),))
        # then nothing is held against it
        assert fleet.job().live, turn
    assert [a.id for a in fleet.attempts() if a.may_win] == [a.id for a in running]
