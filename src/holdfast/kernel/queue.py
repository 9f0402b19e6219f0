"""Decides which job is next: of the owner with the smallest share, the job with the highest priority; among equals, a
job that lost its machine goes before those that had none yet, and then the one that waited longest.

Fairness between owners comes first, so that many jobs of one owner, whatever their priority, never go before another
owner's first job (docs/decisions/0007). Owners with equal shares are ordered by their best priority.
Work that was begun goes before fresh work only within one owner and one priority (docs/decisions/0017).

Jobs of one owner with the same need (and the same nodes ruled out) wait in one *lane*. A lane that found no room is
*stuck* until room appears that could serve it; a need that no free room serves is *dry*, and its lanes are stuck
without being tried. So waiting jobs cost almost nothing in a full network.

The queue knows needs and owners' shares. It does not know nodes beyond the ids a lane rules out.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, merge, nsmallest

from holdfast.model import JobId, Need, NodeId, Owner

LaneKey = tuple[Need, tuple[NodeId, ...], NodeId | None]
"""The need; the nodes that may not serve it because they already hold an attempt of the job, or reported the failure
that is being confirmed; and the only node that may, if a person chose one."""
Rank = tuple[int, bool]
"""Minus the priority, and whether the job is fresh (had no machine yet). The lowest goes first."""
PRIORITIES = 10
SWEEP_MIN = 64


class _Line:
    """One owner's waiting jobs."""

    __slots__ = ("best", "gone", "lanes", "size", "stamp")

    def __init__(self) -> None:
        self.lanes: dict[tuple[Rank, LaneKey], deque[tuple[int, JobId]]] = {}
        self.best = 0
        """Minus the highest priority that joined."""
        self.size = 0
        self.stamp = 0
        """The stamp of this line's current entry in the heap; older ones are stale."""
        self.gone = 0
        """Entries whose jobs left since the last sweep."""


class Queue:
    def __init__(self, share_of: Callable[[Owner], int]) -> None:
        self._share_of = share_of
        self.waiting: dict[JobId, tuple[Rank, Owner, LaneKey, int]] = {}
        """The waiting jobs: rank, owner, lane, place in the order of arrival."""
        self._lines: dict[Owner, _Line] = {}
        self._heap: list[tuple[int, int, int, Owner]] = []
        """(share, minus best priority, stamp, owner)."""
        self._sizes: dict[LaneKey, int] = {}
        self._stuck: set[LaneKey] = set()
        self._loose: dict[LaneKey, None] = {}
        """Lanes that have jobs and are not stuck: `next` considers only these."""
        self._of_need: dict[Need, dict[LaneKey, None]] = {}
        self._dry: set[Need] = set()
        self._seq = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, job: JobId) -> bool:
        return job in self.waiting

    def members(self) -> list[JobId]:
        return sorted(self.waiting)

    # --- coming and going ---

    def join(self, job: JobId, owner: Owner, priority: int, lane: LaneKey, fresh: bool = True) -> None:
        if job in self.waiting:
            self.leave(job)
        self._seq += 1
        rank = (-priority, fresh)
        self.waiting[job] = (rank, owner, lane, self._seq)
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = _Line()
        line.lanes.setdefault((rank, lane), deque()).append((self._seq, job))
        line.size += 1
        line.best = min(line.best, -priority)
        self._sizes[lane] = self._sizes.get(lane, 0) + 1
        self._of_need.setdefault(lane[0], {})[lane] = None
        if lane[0] in self._dry:
            self._stuck.add(lane)
        if lane not in self._stuck:
            self._loose[lane] = None
        self._rank(owner, line)

    def leave(self, job: JobId) -> None:
        """Remove a job. Its entry in the lane is dropped when it is reached, or in the next sweep."""
        place = self.waiting.pop(job, None)
        if place is None:
            return
        rank, owner, lane, _ = place
        self._sizes[lane] -= 1
        if not self._sizes[lane]:
            self._close(lane)
        line = self._lines[owner]
        line.size -= 1
        line.gone += 1
        if not line.size:
            del self._lines[owner]
            return
        self._trim(line, (rank, lane))
        if line.gone > SWEEP_MIN and line.gone > line.size:
            self._sweep(line)

    def _close(self, lane: LaneKey) -> None:
        """Forget a lane in which no job waits any more."""
        del self._sizes[lane]
        self._loose.pop(lane, None)
        self._stuck.discard(lane)
        lanes = self._of_need[lane[0]]
        del lanes[lane]
        if not lanes:
            del self._of_need[lane[0]]
            self._dry.discard(lane[0])

    def _trim(self, line: _Line, key: tuple[Rank, LaneKey]) -> None:
        jobs = line.lanes.get(key)
        if jobs is None:
            return
        while jobs and not self._waits(jobs[0]):
            jobs.popleft()
        if not jobs:
            del line.lanes[key]

    def _sweep(self, line: _Line) -> None:
        kept = {key: deque(e for e in jobs if self._waits(e)) for key, jobs in line.lanes.items()}
        line.lanes = {key: jobs for key, jobs in kept.items() if jobs}
        line.gone = 0

    def _waits(self, entry: tuple[int, JobId]) -> bool:
        place = self.waiting.get(entry[1])
        return place is not None and place[3] == entry[0]

    def share_changed(self, owner: Owner) -> None:
        line = self._lines.get(owner)
        if line is not None:
            self._rank(owner, line)

    def _rank(self, owner: Owner, line: _Line) -> None:
        self._seq += 1
        line.stamp = self._seq
        heappush(self._heap, (self._share_of(owner), line.best, self._seq, owner))
        if len(self._heap) > 2 * len(self._lines) + SWEEP_MIN:
            self._heap = [e for e in self._heap if self._stands(e)]
            heapify(self._heap)

    def _stands(self, entry: tuple[int, int, int, Owner]) -> bool:
        line = self._lines.get(entry[3])
        return line is not None and line.stamp == entry[2]

    # --- room ---

    def stick(self, lane: LaneKey) -> None:
        """Mark a lane as stuck: no free room can serve it now."""
        if lane in self._sizes:
            self._stuck.add(lane)
            self._loose.pop(lane, None)

    def dry(self, need: Need) -> None:
        """Mark a need as dry: no free room can serve it, whatever is ruled out."""
        if need in self._of_need:
            self._dry.add(need)
            for lane in self._of_need[need]:
                self.stick(lane)

    def stuck(self, lane: LaneKey) -> bool:
        return lane in self._stuck or lane[0] in self._dry

    def free_up(self, fits: Callable[[Need], bool], serves: Callable[[LaneKey], bool]) -> list[LaneKey]:
        """Room appeared: the lanes it serves may be tried again. Returns these lanes."""
        loosened: list[LaneKey] = []
        for need, lanes in self._of_need.items():
            if fits(need):
                self._dry.discard(need)
                loosened += [lane for lane in lanes if lane in self._stuck and serves(lane)]
        self._stuck.difference_update(loosened)
        self._loose.update(dict.fromkeys(loosened))
        return loosened

    def needs(self) -> list[Need]:
        """The needs of all waiting jobs, each need once."""
        return list(self._of_need)

    # --- who is next ---

    def next(self) -> tuple[JobId, LaneKey] | None:
        """The job to try next, or None if every lane with jobs is stuck."""
        if not self._loose:
            return None
        passed: list[tuple[int, int, int, Owner]] = []
        found = None
        while self._heap and found is None:
            entry = heappop(self._heap)
            if self._stands(entry):
                passed.append(entry)
                found = self._first(self._lines[entry[3]])
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def _first(self, line: _Line) -> tuple[JobId, LaneKey] | None:
        """Of one owner's jobs in lanes that are not stuck: the best rank, then the longest wait."""
        best: tuple[Rank, int, JobId, LaneKey] | None = None
        for key in self._open_keys(line):
            self._trim(line, key)
            jobs = line.lanes.get(key)
            if jobs and (best is None or (key[0], jobs[0][0]) < best[:2]):
                best = (key[0], jobs[0][0], jobs[0][1], key[1])
        return None if best is None else (best[2], best[3])

    def _open_keys(self, line: _Line) -> list[tuple[Rank, LaneKey]]:
        """The keys of a line's lanes that are not stuck, found from whichever side is shorter."""
        if len(line.lanes) <= 2 * PRIORITIES * len(self._loose):
            return [key for key in line.lanes if key[1] not in self._stuck]
        ranks = [(-priority, fresh) for priority in range(PRIORITIES) for fresh in (False, True)]
        keys = ((rank, lane) for lane in self._loose for rank in ranks)
        return [key for key in keys if key in line.lanes]

    def heads(self, most: int, below: int | None = None) -> list[tuple[JobId, LaneKey]]:
        """The first job of each owner, stuck or not, in the order in which owners are served. `most`: how many
        owners; `below`: only owners whose share is below this."""
        owners = nsmallest(
            most,
            (owner for owner in self._lines if below is None or self._share_of(owner) < below),
            key=lambda owner: (self._share_of(owner), self._lines[owner].best, owner),
        )
        found: list[tuple[JobId, LaneKey]] = []
        for owner in owners:
            line = self._lines[owner]
            for key in list(line.lanes):
                self._trim(line, key)
            rank, lane = min(line.lanes, key=lambda key: (key[0], line.lanes[key][0][0]))
            found.append((line.lanes[rank, lane][0][1], lane))
        return found

    def ahead_of(self, job: JobId) -> int:
        """How many waiting jobs would be placed before this one if room for any job appeared: a guess for display."""
        place = self.waiting.get(job)
        return 0 if place is None else self._ahead(place[1], place[0], place[3])

    def ahead_if(self, owner: Owner, priority: int) -> int:
        """The same for a job that joins now."""
        return self._ahead(owner, (-priority, True), self._seq + 1)

    def turn_of(self, job: JobId) -> int:
        """Its place if owners are served in turn, one job each: a guess that does not look at other owners' jobs."""
        rank, owner, _, seq = self.waiting[job]
        return min(len(self.waiting), (self._own_before(owner, rank, seq) + 1) * len(self._lines))

    def turn_if(self, owner: Owner, priority: int) -> int:
        """The same for a job that joins now."""
        own = self._own_before(owner, (-priority, True), self._seq + 1)
        return min(len(self.waiting) + 1, (own + 1) * (len(self._lines) + (owner not in self._lines)))

    def _ahead(self, owner: Owner, rank: Rank, seq: int) -> int:
        mine = self._share_of(owner)
        others = sum(1 for o in self._lines if o != owner and self._share_of(o) <= mine)
        return others + self._own_before(owner, rank, seq)

    def _own_before(self, owner: Owner, rank: Rank, seq: int) -> int:
        own = 0
        line = self._lines.get(owner)
        for (theirs, _), jobs in line.lanes.items() if line is not None else ():
            if theirs < rank:
                own += len(jobs)
            elif theirs == rank:
                own += sum(1 for entry in jobs if entry[0] < seq)
        return own

    def in_order(
        self, most: int, weight_of: Callable[[Need], int], newcomer: tuple[JobId, Owner, int, LaneKey] | None = None
    ) -> list[tuple[JobId, Owner, LaneKey]]:
        """The first `most` jobs in the order in which they would be served if room for any job appeared. Each counts in
        its owner's share once it is served. `newcomer`: a job that does not wait yet, with owner, priority and lane."""
        owners = nsmallest(most, self._lines, key=lambda owner: (self._share_of(owner), self._lines[owner].best, owner))
        if newcomer is not None and newcomer[1] not in owners:
            owners.append(newcomer[1])
        lines = {owner: self._in_line(owner, newcomer) for owner in owners}
        ranks = [
            (self._share_of(owner), head[0][0], owner, head) for owner in owners if (head := next(lines[owner], None))
        ]
        heapify(ranks)
        found: list[tuple[JobId, Owner, LaneKey]] = []
        while ranks and len(found) < most:
            share, _, owner, (_, _, job, lane) = heappop(ranks)
            found.append((job, owner, lane))
            following = next(lines[owner], None)
            if following is not None:
                heappush(ranks, (share + weight_of(lane[0]), following[0][0], owner, following))
        return found

    def _in_line(
        self, owner: Owner, newcomer: tuple[JobId, Owner, int, LaneKey] | None
    ) -> Iterator[tuple[Rank, int, JobId, LaneKey]]:
        """One owner's jobs in order, produced on demand: (rank, place, job, lane)."""
        line = self._lines.get(owner)
        lanes = line.lanes if line is not None else {}
        queues = [self._of_lane(rank, lane, jobs) for (rank, lane), jobs in lanes.items()]
        if newcomer is not None and newcomer[1] == owner:
            queues.append(iter([((-newcomer[2], True), self._seq + 1, newcomer[0], newcomer[3])]))
        return merge(*queues, key=lambda entry: entry[:2])

    def _of_lane(
        self, rank: Rank, lane: LaneKey, jobs: deque[tuple[int, JobId]]
    ) -> Iterator[tuple[Rank, int, JobId, LaneKey]]:
        return ((rank, seq, job, lane) for seq, job in jobs if self._waits((seq, job)))
