"""The agent as a real process with real shims, against an orchestrator that speaks the wire."""

import asyncio
import hashlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from agent_bench import LEASE_MS, UNTIL_LET_GO, AgentProcess, FakeOrchestrator, stage, start

from holdfast.identity import tokens
from holdfast.identity.certificates import Certificate
from holdfast.model import AttemptId, FailureCode, Instant
from holdfast.model.messages import Discard, Go, HeldPhase, Leaving, Ping, Pong, Refusal, Report
from holdfast.node.attempt.attempt_folders import processes_of, read_identity
from holdfast.testing.processes import free_port

ATT = AttemptId("att_aaaaaaaaaaaaaa.1")
OTHER = AttemptId("att_bbbbbbbbbbbbbb.2")


async def ready(orchestrator: FakeOrchestrator, sessions: int = 1) -> None:
    await orchestrator.until(lambda: orchestrator.sessions >= sessions, f"session {sessions}")


@pytest.mark.spec("N1", "J3", "J4")
def test_a_job_is_run_its_logs_delivered_and_everything_removed(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            hello = orchestrator.hellos[0]
            assert hello.hardware.total.cpu_milli > 0 and hello.isolation == "bubblewrap"

            orchestrator.say(start(ATT, "sh", "-c", f"echo out; echo err >&2; {UNTIL_LET_GO}"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            agent.let_go(ATT)
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.result is not None
            assert finished.result.stdout_sha256 == hashlib.sha256(b"out\n").hexdigest()
            assert orchestrator.logs[ATT, "stdout"] == b"out\n"
            assert orchestrator.logs[ATT, "stderr"] == b"err\n"
            phases = [held.phase for held in orchestrator.held(ATT)]
            assert phases.index(HeldPhase.RUNNING) < phases.index(HeldPhase.FINISHED)

            orchestrator.say(Discard(3, ATT, 7, "accepted", accepted=True))
            await orchestrator.until_phase(ATT, HeldPhase.GONE)
            assert list(agent.attempts.iterdir()) == []

    asyncio.run(story())


@pytest.mark.spec("J4")
def test_logs_are_live_and_large_ones_arrive_whole(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, _):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sh", "-c", "echo first; head -c 1500000 /dev/zero; sleep 60"))
            key = (str(ATT), "stdout")
            await orchestrator.until(lambda: len(orchestrator.logs.get(key, b"")) == 1_500_006, "all bytes")
            assert orchestrator.logs[key].startswith(b"first\n")
            assert not [held for held in orchestrator.held(ATT) if held.phase is HeldPhase.UPLOADING]
            orchestrator.say(Discard(3, ATT, 7, "enough"))
            await orchestrator.until_phase(ATT, HeldPhase.GONE)

    asyncio.run(story())


@pytest.mark.spec("N9", "J14")
def test_a_killed_agent_comes_back_and_goes_on_with_what_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sh", "-c", f"echo begun; {UNTIL_LET_GO}; echo done"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            shim = read_identity(agent.attempts / ATT)
            agent.signal(signal.SIGKILL)
            await agent.end()

            await agent.open()
            await ready(orchestrator, 2)
            assert [(held.attempt, held.phase) for held in orchestrator.hellos[1].held] == [(ATT, HeldPhase.RUNNING)]
            assert orchestrator.hellos[1].instance != orchestrator.hellos[0].instance
            assert read_identity(agent.attempts / ATT) == shim, "adopted, not restarted"
            agent.let_go(ATT)
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.result is not None
            assert orchestrator.logs[ATT, "stdout"] == b"begun\ndone\n"

    asyncio.run(story())


@pytest.mark.spec("N9", "J7")
def test_what_died_with_the_agent_is_reported_as_the_machines_fault(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            agent.signal(signal.SIGKILL)
            await agent.end()
            identity = read_identity(agent.attempts / ATT)
            assert identity is not None
            os.kill(identity[0], signal.SIGKILL)

            await agent.open()
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.failure is not None and finished.failure.code is FailureCode.RUNTIME_FAULT
            assert processes_of(agent.attempts / ATT) == []

    asyncio.run(story())


@pytest.mark.spec("N9", "H6")
def test_an_attempt_whose_shim_was_lost_with_the_power_is_given_up(tmp_path: Path) -> None:
    """A file system may keep the name of a file and lose its content."""

    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            agent.signal(signal.SIGKILL)
            await agent.end()
            identity = read_identity(agent.attempts / ATT)
            assert identity is not None
            os.kill(identity[0], signal.SIGKILL)
            (agent.attempts / ATT / "shim.json").write_bytes(b"")

            await agent.open()
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.failure is not None and finished.failure.code is FailureCode.RUNTIME_FAULT

    asyncio.run(story())


@pytest.mark.spec("J7", "H2")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_frozen_shim_takes_its_body_with_it(tmp_path: Path, number: int) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            identity = read_identity(agent.attempts / ATT)
            assert identity is not None
            os.kill(identity[0], number)
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.failure is not None and finished.failure.code is FailureCode.RUNTIME_FAULT
            assert processes_of(agent.attempts / ATT) == []

    asyncio.run(story())


@pytest.mark.spec("J5", "J4")
def test_work_goes_on_without_the_orchestrator_and_is_told_when_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sh", "-c", f"echo one; {UNTIL_LET_GO}; echo two"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            await orchestrator.close()
            agent.let_go(ATT)
            await _ended(agent.attempts / ATT / "status.json")
            await orchestrator.open()
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.result is not None
            assert orchestrator.logs[ATT, "stdout"] == b"one\ntwo\n"

    asyncio.run(story())


async def _ended(status: Path) -> dict[str, Any]:
    """What the shim wrote down when its body had ended; no agent is asked."""

    def look() -> dict[str, Any]:
        until = time.monotonic() + 60
        while True:
            said: dict[str, Any] = json.loads(status.read_text())
            if said["phase"] == "ended":
                return said
            assert time.monotonic() < until, f"still {said}"
            time.sleep(0.02)

    return await asyncio.to_thread(look)


@pytest.mark.spec("J8")
def test_a_leased_body_starts_only_after_go_and_stops_itself_when_cut_off(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60", lease_ms=LEASE_MS))
            await orchestrator.until_phase(ATT, HeldPhase.READY)
            orchestrator.say(Ping(3, 1))
            await orchestrator.until(lambda: Pong(1) in orchestrator.heard, "a pong")
            assert not [held for held in orchestrator.held(ATT) if held.phase is HeldPhase.RUNNING]

            orchestrator.say(Go(3, ATT, 7, _last_report(orchestrator)))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            went = time.monotonic()
            await orchestrator.until(
                lambda: time.monotonic() > went + LEASE_MS * 1.3 / 1000 and _renewals(orchestrator), "a lease's time"
            )
            assert orchestrator.held(ATT)[-1].phase is HeldPhase.RUNNING, "renewed leases hold"

            await orchestrator.close()
            ended = await _ended(agent.attempts / ATT / "status.json")
            assert ended["outcome"]["kind"] == "lease"
            assert processes_of(agent.attempts / ATT) in ([], [_shim(agent)])

    asyncio.run(story())


def _shim(agent: AgentProcess) -> int:
    identity = read_identity(agent.attempts / ATT)
    assert identity is not None
    return identity[0]


def _last_report(orchestrator: FakeOrchestrator) -> int:
    return [message.seq for message in orchestrator.heard if isinstance(message, Report)][-1]


def _renewals(orchestrator: FakeOrchestrator) -> int:
    return sum(bool(message.renew) for message in orchestrator.heard if isinstance(message, Report))


@pytest.mark.spec("N7")
def test_sigterm_lets_work_finish_then_says_goodbye(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sh", "-c", UNTIL_LET_GO))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            agent.signal(signal.SIGTERM)
            await orchestrator.until(lambda: Leaving(60_000) in orchestrator.heard, "the word that it leaves")
            orchestrator.say(start(OTHER, "true"))
            await orchestrator.until_phase(OTHER, HeldPhase.REFUSED)
            agent.let_go(ATT)
            await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            orchestrator.say(Discard(3, ATT, 7, "accepted", accepted=True))
            code, _ = await agent.end()
            assert code == 0
            await orchestrator.until(lambda: orchestrator.heard[-1] == Leaving(0, done=True), "its goodbye")

    asyncio.run(story())


@pytest.mark.spec("N7")
def test_a_second_sigterm_stops_what_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            agent.signal(signal.SIGTERM)
            await orchestrator.until(lambda: Leaving(60_000) in orchestrator.heard, "the word that it leaves")
            agent.signal(signal.SIGTERM)
            finished = await orchestrator.until_phase(ATT, HeldPhase.FINISHED)
            assert finished.failure is not None and finished.failure.code is FailureCode.DRAINED
            orchestrator.say(Discard(3, ATT, 7, "noted"))
            code, _ = await agent.end()
            assert code == 0
            assert processes_of(agent.attempts / ATT) == []

    asyncio.run(story())


@pytest.mark.spec("N6")
def test_a_final_refusal_ends_the_agent_with_a_clear_word(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            orchestrator.refusal = Refusal("token_expired", "the join token has expired", final=True)
            if orchestrator.sessions:
                orchestrator.say(orchestrator.refusal)
            code, words = await agent.end()
            assert code == 3
            assert "the join token has expired [token_expired]" in words
            assert "Traceback" not in words

    asyncio.run(story())


@pytest.mark.spec("N9")
def test_a_second_agent_in_the_same_home_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as (orchestrator, agent):
            await ready(orchestrator)
            second = AgentProcess(agent.home, orchestrator.port)
            await second.open()
            code, words = await second.end()
            assert code == 78 and "[home_busy]" in words

    asyncio.run(story())


@pytest.mark.spec("N6")
def test_tls_is_spoken_to_the_certificate_that_the_token_pins(tmp_path: Path) -> None:
    async def story() -> None:
        certificate = Certificate.load_or_make(tmp_path / "orchestrator")
        ticket, _ = tokens.make(certificate.pin, Instant(0), Instant(1))
        async with stage(tmp_path / "good", certificate, HOLDFAST_TOKEN=ticket.text) as (orchestrator, _):
            await ready(orchestrator)
            assert orchestrator.hellos[0].token_sha256 == ticket.secret_sha256
        wrong, _ = tokens.make("00" * 32, Instant(0), Instant(1))
        async with stage(tmp_path / "bad", certificate, HOLDFAST_TOKEN=wrong.text) as (orchestrator, agent):
            code, words = await agent.end()
            assert code != 0 and "[pin_mismatch]" in words
            assert orchestrator.hellos == [], "nothing was said to a stranger"

    asyncio.run(story())


@pytest.mark.spec("N3", "N8")
def test_the_local_status_shows_what_is_held_and_takes_no_other_name(tmp_path: Path) -> None:
    async def story() -> None:
        port = free_port()
        async with stage(tmp_path, PNODE_PORT=str(port), S3_BUCKET="my-bucket") as (orchestrator, _):
            await ready(orchestrator)
            orchestrator.say(start(ATT, "sleep", "60"))
            await orchestrator.until_phase(ATT, HeldPhase.RUNNING)
            status = json.loads(await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/status"))
            assert [(held["attempt"], held["phase"]) for held in status["held"]] == [(ATT, "running")]
            assert status["connected"] and status["s3_bucket"] == "my-bucket"
            assert status["settings_from"]["port"] == "PNODE_PORT"
            foreign = urllib.request.Request(f"http://127.0.0.1:{port}/status", headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError):
                await asyncio.to_thread(_get, foreign)

    asyncio.run(story())


def _get(target: Any) -> bytes:
    with urllib.request.urlopen(target, timeout=60) as answer:
        return bytes(answer.read())
