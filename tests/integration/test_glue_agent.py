"""What only the agent as a process shows: what it remembers, sweeps, and leaves behind."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_bench import DEADLINE_S, UNTIL_LET_GO, AgentProcess, FakeOrchestrator, stage, start
from glue_steps import an_order

from holdfast.model import AttemptId
from holdfast.model.messages import Discard, HeldPhase
from holdfast.node.attempt import attempt_folders
from holdfast.node.core.events import AttemptInputs

FIRST = AttemptId("att_00000000000000.1")


def run(story: Callable[[FakeOrchestrator, AgentProcess], Awaitable[None]], home: Path) -> None:
    async def staged() -> None:
        async with stage(home) as (orchestrator, agent):
            await orchestrator.until(lambda: orchestrator.sessions, "a session")
            await story(orchestrator, agent)

    asyncio.run(staged())


async def until(holds: Callable[[], Any], what: str) -> None:
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while not holds():
        assert asyncio.get_running_loop().time() < end, f"{what} did not happen"
        await asyncio.sleep(0.02)


@pytest.mark.spec("N5", "J14")
def test_an_agent_that_starts_again_remembers_the_epoch_that_it_has_seen(tmp_path: Path) -> None:
    """Given an agent that was killed under epoch 5, when it comes back, then its first word names that epoch: a leader
    of an earlier one learns that it was deposed, and is not obeyed."""

    async def story(orchestrator: FakeOrchestrator, agent: AgentProcess) -> None:
        orchestrator.say(start(FIRST, "true", epoch=5))
        await orchestrator.until(lambda: orchestrator.held(FIRST), "the attempt")
        agent.signal(signal.SIGKILL)
        await agent.end()
        await agent.open()
        await orchestrator.until(lambda: len(orchestrator.hellos) == 2, "its return")
        assert orchestrator.hellos[1].epoch_seen == 5

    run(story, tmp_path)


@pytest.mark.spec("N9")
def test_what_makes_no_sense_in_the_folder_of_attempts_is_swept_at_the_start(tmp_path: Path) -> None:
    home = tmp_path / "node" / "attempts"
    (home / "att_half").mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    home.chmod(0o700)
    (home / "att_half" / "work").mkdir()

    async def story(orchestrator: FakeOrchestrator, agent: AgentProcess) -> None:
        await until(lambda: not (home / "att_half").exists(), "the sweep")

    run(story, tmp_path)


@pytest.mark.spec("N9", "J5")
def test_what_is_discarded_is_told_as_gone_only_once_nothing_of_it_is_left(tmp_path: Path) -> None:
    async def story(orchestrator: FakeOrchestrator, agent: AgentProcess) -> None:
        orchestrator.say(start(FIRST, "sh", "-c", UNTIL_LET_GO))
        await orchestrator.until_phase(FIRST, HeldPhase.RUNNING)
        assert attempt_folders.processes_of(agent.attempts / FIRST)
        orchestrator.say(Discard(3, FIRST, 7, "not wanted"))
        await orchestrator.until(lambda: [h for h in orchestrator.held(FIRST) if h.phase is HeldPhase.GONE], "its end")
        assert not (agent.attempts / FIRST).exists()

    run(story, tmp_path)


@pytest.mark.spec("N9")
def test_an_attempt_of_an_earlier_agent_is_reported_with_the_first_hello(tmp_path: Path) -> None:
    """Given a folder with an order and no shim, then the first word of the agent names it: nobody else can."""
    home = tmp_path / "node" / "attempts"
    (home / FIRST).mkdir(parents=True)
    for folder in (tmp_path / "node", home, home / FIRST):
        folder.chmod(0o700)
    attempt_folders.write_order(home / FIRST, an_order(), AttemptInputs())

    async def story(orchestrator: FakeOrchestrator, agent: AgentProcess) -> None:
        assert [held.attempt for held in orchestrator.hellos[0].held] == [FIRST]

    run(story, tmp_path)
