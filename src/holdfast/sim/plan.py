"""Derives a world from a seed: its settings, its fleet, its load, and its sequence of faults."""

from enum import StrEnum
from hashlib import sha256
from random import Random

import msgspec

from holdfast.model import Gpu, JobId, JobSpec, Need, NodeId, Owner, Recovery, Resources, Settings, Workload, job_id
from holdfast.node.core.redial import AWAY_REDIAL_MS_MAX
from holdfast.orchestrator.leader.core import UNCOMMITTED_EVENTS_MAX
from holdfast.sim.node import MachineSpec
from holdfast.sim.shim import SimProgram

ARCHES = ("x86_64", "x86_64", "x86_64", "aarch64")


class FaultKind(StrEnum):
    CRASH = "crash"
    FREEZE = "freeze"
    PARTITION_BOTH = "partition_both"
    PARTITION_IN = "partition_in"
    PARTITION_OUT = "partition_out"
    DELAY = "delay"
    REORDER = "reorder"
    DROP = "drop"
    REPEAT = "repeat"
    SUSPEND = "suspend"
    DISK_FULL = "disk_full"
    SLOW_NODE = "slow_node"
    SLOW_BODY = "slow_body"
    STALLED_BODY = "stalled_body"
    LYING_NODE = "lying_node"
    ZOMBIE = "zombie"
    AGENT_RESTART = "agent_restart"
    SHIM_KILL = "shim_kill"
    ORCHESTRATOR_CRASH = "orchestrator_crash"
    ORCHESTRATOR_FREEZE = "orchestrator_freeze"
    ORCHESTRATOR_RESTART = "orchestrator_restart"
    STORE_FAILURE = "store_failure"
    TWO_LEADERS = "two_leaders"
    DRAIN = "drain"
    MASS_CUT = "mass_cut"
    LOST_ANSWER = "lost_answer"
    IO_ERRORS = "io_errors"
    SHARED_DISK_FULL = "shared_disk_full"
    BIT_ROT = "bit_rot"
    CLOCK_JUMP = "clock_jump"
    RESTORED_STORE = "restored_store"
    DEPOSED_LEADER = "deposed_leader"


class JobPlan(msgspec.Struct, frozen=True):
    id: JobId
    owner: Owner
    spec: JobSpec
    program: SimProgram
    submit_at: int
    stop_at: int | None
    """When its owner stops it; None: never."""
    moves: tuple[tuple[int, NodeId], ...] = ()
    """When somebody moves it, and to which node."""


class WorldPlan(msgspec.Struct, frozen=True):
    seed: int
    settings: Settings
    machines: tuple[MachineSpec, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[tuple[int, FaultKind], ...]
    safety_ms: int
    """How long faults are injected. Then everything is healed."""
    bound_ms: int
    """Within this time after healing, every job has ended and nothing is left on any machine."""

    events_max: int = UNCOMMITTED_EVENTS_MAX
    """How many events may wait behind one commit."""

    @property
    def programs(self) -> dict[str, SimProgram]:
        return {job.id: job.program for job in self.jobs}


def plan(seed: int) -> WorldPlan:
    random = Random(f"plan {seed}")
    settings = _settings(random, Random(f"records {seed}"))
    machines = _machines(random)
    safety_ms = random.randrange(15_000, 45_000)
    jobs = tuple(_job(random, number, machines, safety_ms) for number in range(random.randrange(4, 22)))
    faults = _faults(random, safety_ms)
    events_max = random.choice((UNCOMMITTED_EVENTS_MAX, UNCOMMITTED_EVENTS_MAX, 2, 6))
    """So few that every slow commit causes an overload."""
    return WorldPlan(seed, settings, machines, jobs, faults, safety_ms, _bound(settings, jobs), events_max)


def _settings(random: Random, of_records: Random) -> Settings:
    suspect_ms_max, orphan_ms_max = random.choice(((6_000, 4_000), (20_000, 5_000), (20_000, 15_000)))
    """An attempt that is cut off stops itself before it is written off."""
    return msgspec.structs.replace(
        Settings.test(),
        open_join=True,
        reconnect_grace_ms=AWAY_REDIAL_MS_MAX + 2_000,
        poison_nodes=random.choice((2, 3, 3)),
        attempts_max=random.choice((3, 6, 6)),
        candidates=random.choice((1, 2, 3)),
        strikes_to_quarantine=random.choice((2, 3)),
        probation_wins=random.choice((1, 2)),
        orphan_ms_max=orphan_ms_max,
        lease_ms=random.choice((2_000, 3_000)),
        queue_ms_max=random.choice((60_000, 200_000)),
        suspect_ms_max=suspect_ms_max,
        drain_ms=random.choice((500, 2_000, 5_000)),
        stall_ms=random.choice((1_500, 3_000)),
        slow_ms_min=random.choice((500, 2_000)),
        slow_peers_min=random.choice((1, 3)),
        save_ms_max=random.choice((1_000, 4_000)),
        quarantine_ms=random.choice((2_000, 6_000)),
        quarantine_ms_max=random.choice((10_000, 20_000)),
        owner_live_jobs_max=random.choice((100_000, 100_000, 100_000, 3)),
        live_jobs_max=random.choice((1_000_000, 1_000_000, 1_000_000, 6)),
        newcomer_attempts=of_records.choice((1, 4)),
        record_ends_min=of_records.choice((3, 20)),
    )


def _machines(random: Random) -> tuple[MachineSpec, ...]:
    machines: list[MachineSpec] = []
    size = random.randrange(2, 7) if random.random() < 0.9 else random.randrange(8, 13)
    """In a small fleet two lost machines look like a network cut; poison can be detected in larger ones."""
    for number in range(size):
        cpu = random.choice((1_000, 2_000, 4_000))
        gpus = random.choice((0, 0, 0, 1, 2, 3))
        machines.append(
            MachineSpec(
                NodeId(f"node_{chr(97 + number)}"),
                Resources(cpu, cpu * 2, cpu * 4, gpus),
                site=random.choice(("", "north", "south")),
                arch=random.choice(ARCHES),
                gpus=(Gpu("Sim 1000", 8_000),) * gpus,
            )
        )
    return tuple(machines)


def _job(random: Random, number: int, machines: tuple[MachineSpec, ...], safety_ms: int) -> JobPlan:
    owner = Owner(random.choice(("ada", "ada", "ben", "cleo")))
    id = job_id(owner, f"job {number}")
    home = random.choice(machines).offered
    """Most jobs fit at least one machine; one in twenty fits none."""
    cpu = random.randrange(200, home.cpu_milli + 1) if random.random() < 0.95 else 64_000
    gpus = random.randrange(1, home.gpus + 1) if home.gpus and random.random() < 0.6 else 0
    recovery = random.choices((Recovery.RESTART, Recovery.RESUME, Recovery.NEVER), (3, 3, 3))[0]
    duration = int(10 ** random.uniform(1.5, 4.1))
    fells = random.random() < 0.06
    checkpoint_ms = random.choice((0, 1_000, 1_000, 4_000)) if recovery is Recovery.RESUME else 0
    program = SimProgram(
        duration_ms=duration,
        exit_code=0 if random.random() < 0.85 else random.randrange(1, 100),
        stdout_sha256=sha256(id.encode()).hexdigest(),
        stdout_bytes=random.randrange(100_000),
        ignores_term=random.random() < 0.3,
        saves_every_ms=checkpoint_ms,
        fells_machine_at_ms=duration if fells else None,
    )
    spec = JobSpec(
        argv=("body", str(number)),
        name=random.choice((f"job {number}", "sum", "sum", "train")),
        need=Need(Resources(cpu, random.randrange(1, cpu + 1), 100, gpus)),
        workload=random.choice(list(Workload)),
        recovery=recovery,
        priority=random.randrange(10),
        time_limit_ms=None if random.random() < 0.7 else random.randrange(200, 30_000),
        queue_limit_ms=None if random.random() < 0.9 else random.randrange(500, 60_000),
        checkpoint_ms=checkpoint_ms,
    )
    submit_at = int(random.random() ** 2 * safety_ms)
    stop_at = submit_at + random.randrange(20_000) if random.random() < 0.12 else None
    times = sorted(submit_at + random.randrange(1_000 + duration) for _ in range(random.choice((0, 0, 0, 1, 1, 2, 3))))
    moves = tuple((at, random.choice(machines).id) for at in times)
    return JobPlan(id, owner, spec, program, submit_at, stop_at, moves)


def _faults(random: Random, safety_ms: int) -> tuple[tuple[int, FaultKind], ...]:
    """Each world prefers some kinds of fault, so that some worlds see one kind many times and others a mixture."""
    kinds = list(FaultKind)
    favourites = random.sample(kinds, random.randrange(2, len(kinds) + 1))
    count = random.randrange(4, 30)
    return tuple(sorted((random.randrange(500, safety_ms), random.choice(favourites)) for _ in range(count)))


def _bound(settings: Settings, jobs: tuple[JobPlan, ...]) -> int:
    """An upper bound for the time from healing to the end of the last job, one step after the other: nodes come back
    (reconnect, suspicion, quarantine, probation), leases and orphans expire, and every job runs as often as it may on
    one machine that has to run all of them."""
    returning = (
        settings.reconnect_grace_ms + settings.suspect_ms_max + settings.quarantine_ms_max + settings.probation_ms
    )
    waiting = 2 * settings.lease_ms + settings.orphan_ms_max + settings.prepare_ms_max + settings.upload_ms_max
    waiting += settings.queue_ms_max
    tries = settings.attempts_max + settings.seconds_max
    work = sum((job.program.duration_ms + 3_000) * (tries + len(job.moves)) for job in jobs)
    return 2 * (returning + waiting) + work
