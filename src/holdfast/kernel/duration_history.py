"""What jobs of one kind took lately, kept in rows so that it is known after a rebuild.

Peers are the items of one array, else the jobs that one owner gave the same name. A job with neither has none, but what
the same command took is known all the same, and so is what any job took. Only results that were accepted count: how
long a failure took says nothing about the work. It decides nothing.
"""

from functools import lru_cache
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.kernel.world import World
from holdfast.model import Attempt, DurationHistory, Instant, Job, JobSpec, Owner
from holdfast.model.rows import COMMAND

PEERS_KEPT = 15
"""Enough for a median that one odd run does not move; few enough to be read at every look."""
NETWORK = "network"
"""The row of all jobs together."""
NETWORK_KEPT = 63
SAMPLE_MS = 100
"""What estimates alone are made from is written of one job in so long: a busy network learns as much from a part."""


@lru_cache(maxsize=4_096)
def _named(owner: str, name: str) -> str:
    """People choose names; what they chose must fit any store."""
    words = f"{owner}\0{name}".encode("utf-8", "surrogatepass")
    return f"name_{sha256(words).hexdigest()[:24]}"


@lru_cache(maxsize=4_096)
def _commanded(owner: str, argv: tuple[str, ...], image: str) -> str:
    words = "\0".join((owner, image, *argv)).encode("utf-8", "surrogatepass")
    return f"{COMMAND}{sha256(words).hexdigest()[:24]}"


def kind_of_work(job: Job) -> str:
    """Which row its durations belong to; empty: it has no peers."""
    spec = job.spec
    if spec.array:
        return spec.array
    return _named(job.owner, spec.name) if spec.name else ""


def kinds_alike(owner: Owner, spec: JobSpec) -> list[tuple[str, str]]:
    """Rows that say what such a job takes, the closest first, and what they have in common in words."""
    kinds: list[tuple[str, str]] = []
    if spec.array:
        kinds.append((spec.array, "of this array"))
    if spec.name:
        kinds.append((_named(owner, spec.name), "of this name"))
    if not spec.array:
        kinds.append((_commanded(owner, spec.argv, spec.image or spec.dockerfile), "of this command"))
    return kinds


class Sampled(msgspec.Struct):
    """When something was last written for estimates alone. Ephemeral."""

    took_ms: Instant = Instant(0)
    """What a job took."""
    readied_ms: Instant = Instant(0)
    """What it took to get one ready."""


def remember(w: World, sampled: Sampled, job: Job, attempt: Attempt) -> None:
    """Its result is accepted: that is how long such a job takes. Delivering counts with it, so nobody is called slow
    for what is only a slow line."""
    if attempt.started_ms is None:
        return
    took = max(1, w.now - attempt.started_ms)
    kinds = [kind_of_work(job)] if job.spec.array or job.spec.name else []
    if w.now - sampled.took_ms >= SAMPLE_MS:
        sampled.took_ms = w.now
        kinds = [*_alike(job), NETWORK]
    for kind in kinds:
        pace = w.paces.get(kind) or DurationHistory(kind, 0, ())
        w.put(replace(pace, seq=w.written, took_ms=(*pace.took_ms, took)[-_kept(kind) :]))


def readied(w: World, sampled: Sampled, job: Job, attempt: Attempt) -> None:
    """Its body starts: that is how long it takes to get one ready."""
    if w.now - sampled.readied_ms < SAMPLE_MS:
        return
    sampled.readied_ms = w.now
    took = max(0, w.now - attempt.offered_ms)
    for kind in (*_alike(job)[:1], NETWORK):
        pace = w.paces.get(kind) or DurationHistory(kind, 0, ())
        w.put(replace(pace, seq=w.written, readied_ms=(*pace.readied_ms, took)[-_kept(kind) :]))


def _alike(job: Job) -> list[str]:
    """The rows that its durations are written to: of its array and name; of its command only if it has neither."""
    kinds = [kind for kind, _ in kinds_alike(job.owner, job.spec)]
    return kinds if job.spec.array else kinds[:1]


def _kept(kind: str) -> int:
    return NETWORK_KEPT if kind == NETWORK else PEERS_KEPT


def took_ms(w: World, job: Job) -> tuple[int, ...]:
    """What its peers took."""
    pace = w.paces.get(kind_of_work(job))
    return pace.took_ms if pace is not None else ()
