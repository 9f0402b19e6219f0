"""What jobs of one kind took lately, kept in rows so that it is known after a rebuild.

Peers are the items of one array, else the jobs that one owner gave the same name. A job with neither has none. Only
results that were accepted count: how long a failure took says nothing about the work. It decides nothing.
"""

from functools import lru_cache
from hashlib import sha256

from holdfast.kernel.world import World
from holdfast.model import Attempt, Job, Pace

PEERS_KEPT = 15
"""Enough for a median that one odd run does not move; few enough to be read at every look."""


@lru_cache(maxsize=4_096)
def _named(owner: str, name: str) -> str:
    """People choose names; what they chose must fit any store."""
    words = f"{owner}\0{name}".encode("utf-8", "surrogatepass")
    return f"name_{sha256(words).hexdigest()[:24]}"


def kind_of_work(job: Job) -> str:
    """Which row its durations belong to; empty: it has no peers."""
    spec = job.spec
    if spec.array:
        return spec.array
    return _named(job.owner, spec.name) if spec.name else ""


def remember(w: World, job: Job, attempt: Attempt) -> None:
    """Its result is accepted: that is how long such a job takes. Delivering counts with it, so nobody is called slow
    for what is only a slow line."""
    kind = kind_of_work(job)
    if not kind or attempt.started_ms is None:
        return
    known = w.paces.get(kind)
    took = (*(known.took_ms if known is not None else ()), max(1, w.now - attempt.started_ms))
    w.put(Pace(kind, w.written, took[-PEERS_KEPT:]))


def took_ms(w: World, job: Job) -> tuple[int, ...]:
    """What its peers took."""
    pace = w.paces.get(kind_of_work(job))
    return pace.took_ms if pace is not None else ()
