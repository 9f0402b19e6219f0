"""Simulated orchestrators run the production leader core, and simulated nodes the production redial policy: what these
decide happens in simulated worlds too."""

import pytest
from msgspec.structs import replace

from holdfast.kernel.decision import Answer, Taken
from holdfast.kernel.events import Submitted
from holdfast.kernel.kernel import CLOCK_MS
from holdfast.model import Meta
from holdfast.node.core.redial import REDIAL_MS_MAX
from holdfast.orchestrator.leader.core import LeaderCore
from holdfast.sim.plan import WorldPlan, plan
from holdfast.sim.scene import Scene
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
