"""Records how long recent jobs of each kind took, in rows that survive a rebuild. Decides nothing.

Peers are the items of one array, otherwise the jobs to which one owner gave the same name. A job with neither has no
peers, but durations are also recorded by command and for all jobs together. Only accepted results count: how long a
failure took says nothing about the work.
"""

from functools import lru_cache
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.kernel.world import World
from holdfast.model import Attempt, DurationHistory, Instant, Job, JobSpec, Owner
from holdfast.model.rows import COMMAND

PEERS_KEPT = 15
"""Durations kept for each kind: enough for a median that one odd run does not move, few enough to read every time."""
NETWORK = "network"
"""The id of the row for all jobs together."""
NETWORK_KEPT = 63
SAMPLE_MS = 100
"""Data used only for estimates is recorded for one job in this time: on a busy network, a sample is enough."""


@lru_cache(maxsize=4_096)
def _named(owner: str, name: str) -> str:
    """A hash, because people choose names and the id must fit any store."""
    words = f"{owner}\0{name}".encode("utf-8", "surrogatepass")
    return f"name_{sha256(words).hexdigest()[:24]}"


@lru_cache(maxsize=4_096)
def _commanded(owner: str, argv: tuple[str, ...], image: str) -> str:
    words = "\0".join((owner, image, *argv)).encode("utf-8", "surrogatepass")
    return f"{COMMAND}{sha256(words).hexdigest()[:24]}"


def kind_of_work(job: Job) -> str:
    """The id of the row with its peers' durations; empty: it has no peers."""
    spec = job.spec
    if spec.array:
        return spec.array
    return _named(job.owner, spec.name) if spec.name else ""


def kinds_alike(owner: Owner, spec: JobSpec) -> list[tuple[str, str]]:
    """The ids of rows with durations of similar jobs, the most similar first, and the likeness in words."""
    kinds: list[tuple[str, str]] = []
    if spec.array:
        kinds.append((spec.array, "of this array"))
    if spec.name:
        kinds.append((_named(owner, spec.name), "of this name"))
    if not spec.array:
        kinds.append((_commanded(owner, spec.argv, spec.image or spec.dockerfile), "of this command"))
    return kinds


class Sampled(msgspec.Struct):
    """When data used only for estimates was last recorded. Ephemeral."""

    took_ms: Instant = Instant(0)
    """For the duration of a job."""
    readied_ms: Instant = Instant(0)
    """For the duration of its preparation."""


def remember(w: World, sampled: Sampled, job: Job, attempt: Attempt) -> None:
    """Record the duration of a job whose result is accepted. Delivery is included, so that no attempt is called slow
    only because of a slow link."""
    if attempt.started_ms is None:
        return
    took = max(1, w.now - attempt.started_ms)
    kinds = [kind_of_work(job)] if job.spec.array or job.spec.name else []
    if w.now - sampled.took_ms >= SAMPLE_MS:
        sampled.took_ms = w.now
        kinds = [*_alike(job), NETWORK]
    for kind in kinds:
        history = w.durations.get(kind) or DurationHistory(kind, 0, ())
        w.put(replace(history, seq=w.written, took_ms=(*history.took_ms, took)[-_kept(kind) :]))


def readied(w: World, sampled: Sampled, job: Job, attempt: Attempt) -> None:
    """Record how long it took from the offer to the start of the body."""
    if w.now - sampled.readied_ms < SAMPLE_MS:
        return
    sampled.readied_ms = w.now
    took = max(0, w.now - attempt.offered_ms)
    for kind in (*_alike(job)[:1], NETWORK):
        history = w.durations.get(kind) or DurationHistory(kind, 0, ())
        w.put(replace(history, seq=w.written, readied_ms=(*history.readied_ms, took)[-_kept(kind) :]))


def _alike(job: Job) -> list[str]:
    """The rows that its durations are written to: of its array and name; of its command only if it has neither."""
    kinds = [kind for kind, _ in kinds_alike(job.owner, job.spec)]
    return kinds if job.spec.array else kinds[:1]


def _kept(kind: str) -> int:
    return NETWORK_KEPT if kind == NETWORK else PEERS_KEPT


def took_ms(w: World, job: Job) -> tuple[int, ...]:
    """The recent durations of its peers."""
    history = w.durations.get(kind_of_work(job))
    return history.took_ms if history is not None else ()
