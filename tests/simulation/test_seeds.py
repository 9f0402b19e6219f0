"""Thousands of simulated worlds must keep every rule, and every kind of fault must really have been tried.

Each seed runs once: the first sixty are those of test_worlds.py, which mutants are shown to as well.
"""

import fcntl
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast.sim.plan import FaultKind
from holdfast.sim.scene import WorldVerdict, run

SEEDS = range(61, 2_001)
CHUNK = 20
CHUNKS = range(len(SEEDS) // CHUNK)
INJECTED_MIN = 450
"""The rarest kind, `mass_cut`, is injected about 520 times."""
CORPUS = Path(__file__).parent / "corpus.txt"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of one run share, and no other run."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    kept = folder / "worlds"
    kept.mkdir(exist_ok=True)
    return kept


def verdicts(chunk: int, shared: Path) -> list[WorldVerdict]:
    """How the worlds of a chunk ended. Whoever asks first runs them; whoever asks meanwhile waits."""
    with (shared / f"{chunk}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / f"{chunk}.json"
        if not kept.exists():
            kept.write_bytes(msgspec.json.encode([run(seed) for seed in SEEDS[chunk * CHUNK : (chunk + 1) * CHUNK]]))
        return msgspec.json.decode(kept.read_bytes(), type=list[WorldVerdict])


def replays(bad: list[WorldVerdict]) -> str:
    return "\n".join(f"{verdict.says}\nreplay: {verdict.replay}" for verdict in bad)


@pytest.mark.spec("J5", "J7", "J8", "J14", "H2", "H3", "H4", "H6", "N5", "N9", "A6")
@pytest.mark.parametrize("chunk", CHUNKS)
def test_worlds_keep_every_rule(chunk: int, shared: Path) -> None:
    bad = [verdict for verdict in verdicts(chunk, shared) if not verdict.ok]

    assert not bad, replays(bad)


@pytest.mark.spec("A6")
def test_every_kind_of_fault_was_injected_often_enough(shared: Path) -> None:
    injected: Counter[str] = Counter()
    for chunk in CHUNKS:
        for verdict in verdicts(chunk, shared):
            injected.update(verdict.faults)

    rare = {kind.value: injected[kind.value] for kind in FaultKind if injected[kind.value] < INJECTED_MIN}
    assert not rare, f"injected fewer than {INJECTED_MIN} times over {len(SEEDS)} worlds: {rare}"


@pytest.mark.spec("A6")
def test_jobs_really_end_in_different_ways(shared: Path) -> None:
    """Worlds in which nothing succeeds, or nothing fails, would keep the rules for the wrong reason."""
    ends: Counter[str] = Counter()
    for chunk in CHUNKS:
        for verdict in verdicts(chunk, shared):
            ends.update(verdict.jobs)

    worlds = len(SEEDS)
    assert ends["succeeded"] > worlds and ends["failed"] > worlds / 4 and ends["cancelled"] > worlds / 8, ends
    assert not ends["unended"]


@pytest.mark.spec("J13")
def test_worlds_come_into_overload_and_settle(shared: Path) -> None:
    crowded = sum(verdict.turned_away > 0 for chunk in CHUNKS for verdict in verdicts(chunk, shared))

    assert crowded > len(SEEDS) / 100


def _corpus() -> list[int]:
    """Seeds of the past that do not run above or in test_worlds.py anyway."""
    kept = [int(line.split()[0]) for line in CORPUS.read_text().splitlines() if line.strip()]
    return [seed for seed in kept if seed not in range(1, SEEDS.stop)]


@pytest.mark.spec("A6")
@pytest.mark.parametrize("seed", _corpus())
def test_worlds_that_once_broke_a_rule_keep_it_now(seed: int) -> None:
    verdict = run(seed)

    assert verdict.ok, replays([verdict])


@pytest.mark.spec("A6")
def test_the_same_seed_is_the_same_world_in_every_process() -> None:
    """Given two processes that hash strings differently, when they run the same seeds, then every trace is equal."""
    program = "from holdfast.sim.scene import run; print([run(seed).trace for seed in (7, 31, 212)])"
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True, text=True, check=True, timeout=120,
        ).stdout
        for hashing in ("1", "4242")
    ]  # fmt: skip

    assert told[0] == told[1]
    assert run(7).trace in told[0]
