"""Simulated orchestrators run the production leader core, and simulated nodes the production redial policy: what these
decide happens in simulated worlds too."""

from collections.abc import Hashable

import pytest
from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Taken
from holdfast.kernel.events import AnyEvent, CancelAsked, Submitted
from holdfast.kernel.kernel import CLOCK_MS
from holdfast.model import Meta
from holdfast.node.core.redial import REDIAL_MS_MAX
from holdfast.orchestrator.leader.core import LeaderCore
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.people import People
from holdfast.sim.plan import JobPlan, WorldPlan, plan
from holdfast.sim.scene import Scene
from holdfast.sim.store import SimStoreFailed
from holdfast.testing import Network
from holdfast.testing.network_world import PULSE_MS


def peaceful(**changed: object) -> Scene:
    """A world without faults, in which nobody submits anything by himself. Its fleet has joined."""
    the_plan: WorldPlan = next(plan(seed) for seed in range(100) if len(plan(seed).jobs) > 9)
    bounds = replace(the_plan.settings, owner_live_jobs_max=1_000, live_jobs_max=1_000)
    scene = Scene(replace(the_plan, settings=bounds, **changed))
    scene.start_orchestrator()
    for machine in scene.machines.values():
        machine.start_agent()
    scene.world.run_until(5_000)
    return scene


def submitted(scene: Scene, number: int) -> Submitted:
    job = scene.plan.jobs[number]
    return Submitted(job.id, job.owner, job.spec, f"{number:064}")


@pytest.mark.spec("J5", "H2")
def test_worlds_notice_a_leader_that_does_not_tick_while_a_job_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule `leader_ticks` holds in every world; this shows that it looks."""
    pulse = LeaderCore.pulse

    def lazy(self: LeaderCore, at: object) -> object:
        kernel = self.kernel
        due = kernel.next_due() if kernel is not None else None
        return pulse(self, at) if due is not None and due <= self.now(at) else None  # pyright: ignore

    monkeypatch.setattr(LeaderCore, "pulse", lazy)
    verdicts = [Scene(plan(seed)).run().says for seed in range(1, 4)]
    assert any(says.startswith("leader_ticks") for says in verdicts)


@pytest.mark.spec("J5", "H2")
def test_while_a_job_runs_the_clock_is_kept_on_record() -> None:
    with Network(nodes=1) as network:
        network.when("train", takes="1h")
        network.client().jobs.submit(["train"])
        for _ in range(10):
            network.advance(minutes=5)
            meta = network.store.rows["meta", 0]
            assert isinstance(meta, Meta)
            assert network.wall_ms - meta.now_ms <= CLOCK_MS + 2 * PULSE_MS


@pytest.mark.spec("J14")
def test_of_two_submissions_under_one_key_in_one_moment_the_second_hears_of_the_first() -> None:
    scene = peaceful()
    answers: list[Answer | None] = []
    leader = scene.leader
    assert leader is not None
    for _ in range(3):
        leader.ask(submitted(scene, 0), answers.append)
    scene.world.run_until(scene.world.now + 1_000)
    job = scene.plan.jobs[0].id
    assert answers == [Taken(job), Taken(job, again=True), Taken(job, again=True)]
    assert len(leader.core.submissions) == 0


@pytest.mark.spec("J13", "J14")
def test_too_much_behind_a_slow_commit_is_refused_and_nothing_that_was_taken_is_lost() -> None:
    scene = peaceful(events_max=2)
    answers: list[Answer | None] = []
    leader = scene.leader
    assert leader is not None
    scene.store.stall_ms = 200
    for number in range(9):
        leader.ask(submitted(scene, number), answers.append)
    # those beyond the commit in flight and what may wait behind it are told at once to try again
    assert answers == [None] * 6 and leader.turned_away == 6
    scene.store.stall_ms = 0
    scene.world.run_until(scene.world.now + 5_000)
    assert [type(answer) for answer in answers[6:]] == [Taken] * 3
    # And nodes that talked meanwhile were heard afterwards
    assert not leader._held_back and leader.core.has_room


@pytest.mark.spec("J5")
def test_nodes_are_back_within_a_second_of_an_orchestrator_that_was_away_for_less_than_a_minute() -> None:
    with Network(nodes=5) as network:
        network.kill_orchestrator()
        network.advance(seconds=50)
        network.start_orchestrator()
        network.until(lambda: network._leader is not None and network._leader.serves, seconds=5)
        network.advance(seconds=REDIAL_MS_MAX / 1_000 + 0.1)
        assert all(network.is_connected(node.id) for node in network.nodes)


# --- a job that has ended is submitted again ---


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front does not look in the store before it asks the kernel."""

    def decide(self: SimOrchestrator, ticket: Hashable) -> None:
        self._offer(self._submitted[ticket], ticket) if self.core.leads else self._reply(ticket, None)

    monkeypatch.setattr(SimOrchestrator, "_decide", decide)


@pytest.mark.spec("J7", "J13", "J14")
def test_a_job_that_ended_long_ago_costs_one_lead_when_it_is_submitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a job that has ended, and a leader that has never heard of it, when it is submitted again without a look in
    the store, then the commit is refused, nothing starts, and the next lead knows the job."""
    hasty(monkeypatch)
    scene = peaceful()
    answers: list[Answer | None] = []
    leader = scene.leader
    assert leader is not None
    job = scene.plan.jobs[0].id

    def ask(event: AnyEvent, ms: int = 1_000) -> Answer | None:
        answers.clear()
        leader.ask(event, answers.append)
        scene.world.run_until(scene.world.now + ms)
        return answers[0]

    assert ask(submitted(scene, 0)) == Taken(job)
    ask(CancelAsked(job, "its owner"), 60_000)
    assert ask(submitted(scene, 0)) == Taken(job, again=True), "this kernel knows that it ended"
    rows, epoch = scene.store.rows["job", job], leader.core.epoch
    leader._leadership_ended(SimStoreFailed("the store did not answer"))
    scene.world.run_until(scene.world.now + 5_000)
    assert leader.core.epoch == epoch + 1 and leader.core.leads

    assert ask(submitted(scene, 0), 5_000) is None, "the commit is refused"
    assert leader.core.epoch == epoch + 2 and leader.core.leads
    for _ in range(5):
        assert ask(submitted(scene, 0)) == Taken(job, again=True)

    assert leader.core.epoch == epoch + 2
    assert scene.store.rows["job", job] == rows


@pytest.mark.spec("J5", "J7", "J13", "J14")
@pytest.mark.parametrize("seed", range(1, 13))
def test_worlds_whose_front_never_looks_keep_every_rule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every submission is sent once more long after it was answered, while orchestrators die and stores fail."""
    hasty(monkeypatch)
    answered = People._answered

    def again(self: People, event: AnyEvent, number: int, job: JobPlan | None, answer: Answer | None) -> None:
        first = answer is not None and number in self._open
        answered(self, event, number, job, answer)
        if first and job is not None and isinstance(answer, Taken):
            for later_ms in (20_000, 60_000):
                self.scene.world.call_in(later_ms, self.insist, event)

    monkeypatch.setattr(People, "_answered", again)
    verdict = Scene(plan(seed)).run()
    assert verdict.ok, verdict.says
