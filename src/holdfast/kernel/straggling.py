"""Decides which running attempts straggle, and whether another starts beside one (SPEC J9; docs/decisions/0013).

An attempt is flagged when its body neither prints nor computes nor saves anything new for `stall_ms`, or runs far
longer than its peers took.
A flag is not an accusation: a body that waits on purpose looks the same. So the attempt continues and its machine gets
no strike. If the job may be repeated, a second attempt starts beside it, on room that no waiting job could use. The
first result wins, as always.

Called with every report of a running body, so it looks at one attempt and writes only when a flag changes.
"""

import msgspec
from msgspec.structs import replace

from holdfast.kernel.contenders import offer, used_up
from holdfast.kernel.duration_history import took_ms
from holdfast.kernel.mechanism import Mechanism
from holdfast.kernel.placement import kind_serves
from holdfast.kernel.world import NO_FACTS, Member, World
from holdfast.model import (
    Attempt,
    AttemptId,
    Facts,
    Instant,
    Job,
    Need,
    NodeId,
    NodeState,
    Purpose,
    Recovery,
    StraggleKind,
    after,
)
from holdfast.model.cause_text import straggle_text
from holdfast.model.messages import Progress
from holdfast.policy.chance import mix
from holdfast.policy.straggling import got_on, median_ms, slow_after_ms

LOOKS = 8
"""Most draws from the index for one search, so that its cost does not grow with the fleet."""
NEEDS_MAX = 256
"""With more different needs than this in the queue, no room counts as idle."""


class StraggleClaim(msgspec.Struct, gc=False):
    """State of a running attempt between reports. Ephemeral."""

    mark: Progress | None = None
    """The progress of its body when it last advanced; `moved_ms`: when that was, on the patience clock."""
    moved_ms: Instant = Instant(0)
    saved: str = ""
    """Its last checkpoint. A different one means progress."""
    sought_ms: Instant = Instant(0)
    """When idle room for a second attempt was last looked for."""


class Straggling(Mechanism):
    def __init__(self) -> None:
        self.claims: dict[AttemptId, StraggleClaim] = {}

    def progressed(self, w: World, attempt: Attempt, progress: Progress | None) -> None:
        watch(w, attempt, progress)

    def checkpointed(self, w: World, attempt: Attempt, manifest: str) -> None:
        saved(w, attempt, manifest)

    def reconnected(self, w: World, attempt: Attempt) -> None:
        """What the body did meanwhile is not known, so that time does not count as a stall."""
        if (claim := self.claims.get(attempt.id)) is not None:
            claim.mark = None

    def closed(self, attempt: Attempt) -> None:
        self.claims.pop(attempt.id, None)


def _claim(w: World, attempt: Attempt) -> StraggleClaim:
    return w.lifecycle.of(Straggling).claims.setdefault(attempt.id, StraggleClaim())


def watch(w: World, attempt: Attempt, progress: Progress | None) -> None:
    """Its node reports that the body runs, and its progress if known."""
    claim = w.lifecycle.of(Straggling).claims.get(attempt.id)
    if progress is not None:
        if claim is None:
            claim = _claim(w, attempt)
        mark = claim.mark
        if mark is None:  # the first report of a session shows where the body is, not that it advanced
            claim.mark, claim.moved_ms = progress, w.patience
        elif got_on(progress.cpu_ms, progress.printed, mark.cpu_ms, mark.printed):
            claim.mark, claim.moved_ms = progress, w.patience
            if attempt.straggle is StraggleKind.STALLED:
                attempt = _moves_again(w, attempt)
    if attempt.straggle is None:
        why = (_stalled(w, claim) if claim is not None else None) or _slow(w, attempt)
        if why is None:
            return
        attempt = replace(attempt, straggle=why.straggle, straggling=straggle_text(why))
        w.put(attempt)
        w.note("attempt.straggling", why, attempt.job, attempt.id, attempt.node)
    _help(w, attempt)


def saved(w: World, attempt: Attempt, manifest: str) -> None:
    """Its checkpoint folder was captured. If its content is new, the body made progress, however little it computes."""
    claim = _claim(w, attempt)
    if claim.saved != manifest:
        claim.saved, claim.moved_ms = manifest, w.patience
        if attempt.straggle is StraggleKind.STALLED:
            _moves_again(w, attempt)


def _moves_again(w: World, attempt: Attempt) -> Attempt:
    attempt = replace(attempt, straggle=None, straggling="")
    w.put(attempt)
    w.note("attempt.moves_again", NO_FACTS, attempt.job, attempt.id, attempt.node)
    return attempt


# --- detecting ---


def _stalled(w: World, claim: StraggleClaim) -> Facts | None:
    """Unlike slowness, a stall ends when the body advances."""
    still_ms = w.patience - claim.moved_ms
    if still_ms < w.settings.stall_ms or claim.mark is None:
        return None
    return Facts(straggle=StraggleKind.STALLED, ms=still_ms)


def _slow(w: World, attempt: Attempt) -> Facts | None:
    floor_ms = w.settings.slow_ms_min
    # Wall-clock time includes time when the orchestrator was away: a cheap check that rules out nearly all attempts.
    if attempt.started_ms is None or w.now - attempt.started_ms < floor_ms or not w.durations:
        return None
    job = w.jobs[attempt.job]
    took = took_ms(w, job)
    limit_ms = slow_after_ms(took, w.settings.slow_peers_min, w.settings.slow_factor, floor_ms)
    if limit_ms is None or (ran_ms := _ran_ms(w, job, attempt)) <= limit_ms:
        return None
    return Facts(straggle=StraggleKind.SLOW, ms=ran_ms, count=len(took), median_ms=median_ms(took))


def _ran_ms(w: World, job: Job, attempt: Attempt) -> int:
    """How long its body has run, on the patience clock; derived from the deadline of the phase."""
    bound_ms = (job.spec.time_limit_ms or w.settings.run_ms_max) + w.settings.run_slack_ms
    return w.patience - (attempt.phase_until_ms - bound_ms)


# --- helping ---


def _help(w: World, attempt: Attempt) -> None:
    """Start a second attempt, if the recovery class allows it, none exists, and room is idle."""
    job, claim = w.jobs[attempt.job], _claim(w, attempt)
    if job.spec.recovery is Recovery.NEVER or job.extra_attempts >= w.settings.seconds_max or used_up(w, job):
        return
    if claim.sought_ms and w.patience < after(claim.sought_ms, w.settings.resend_ms):
        return
    claim.sought_ms = w.patience
    attempts = w.attempts_of(job.id)
    if job.id in w.queue or sum(a.may_win for a in attempts) != 1 or (job.move is not None and job.move.under_way):
        return
    member = _idle_room(w, job, attempts, mix(attempt.fence, w.patience))
    if member is not None:
        w.note("job.second", Facts(attempt=attempt.id), job.id, attempt.id, attempt.node)
        offer(w, replace(job, extra_attempts=job.extra_attempts + 1), member, Purpose.SECOND)


def _idle_room(w: World, job: Job, attempts: list[Attempt], draw: int) -> Member | None:
    """Room for the job that no waiting job could ever use, in another failure domain if possible. Drawn without the
    kernel's own random numbers: those are stored, and looking for room must write nothing."""
    need = job.spec.need
    waiting = w.queue.needs()
    if len(waiting) > NEEDS_MAX:
        return None
    seen: set[NodeId] = {*job.avoid, *(a.node for a in attempts)}
    sites = {w.nodes[a.node].site for a in attempts} - {""}
    second_best: Member | None = None
    for turn in range(LOOKS):
        found = w.index.candidates(need, mix(draw, turn), seen)
        if not found:
            break
        for member in found:
            seen.add(member.node)
            if member.state is NodeState.READY and not _wanted(w, member, waiting):
                if member.site not in sites:
                    return member
                second_best = second_best or member
    return second_best


def _wanted(w: World, member: Member, waiting: list[Need]) -> bool:
    """Whether a waiting job could use this node, now or once it is empty."""
    offered = w.nodes[member.node].offered
    return any(kind_serves(member.kind, need) and need.resources.fits_in(offered) for need in waiting)
