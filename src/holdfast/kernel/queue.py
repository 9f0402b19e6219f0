"""Who is next: priority first, then the owner who holds least, then whoever waited longest.

Jobs of one owner with the same need (and the same nodes ruled out) wait in one *lane*. A lane whose need found
no room is *stuck* until room appears that could serve it, so a full network costs nothing to keep waiting in,
and ten thousand jobs of one owner are one lane that never stands before another owner's first job.

The queue knows needs and owners' shares. It does not know nodes beyond the ids a lane rules out.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from holdfast.model import JobId, Need, NodeId, Owner

LaneKey = tuple[Need, tuple[NodeId, ...]]
"""What is needed, and which nodes may not serve it because they already hold an attempt of the job."""


class _Line:
    """One owner's lanes at one priority."""

    __slots__ = ("lanes", "stamp")

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, deque[tuple[int, JobId]]] = {}
        self.stamp = 0


class Queue:
    def __init__(self, share_of: Callable[[Owner], int]) -> None:
        self._share_of = share_of
        self._member: dict[JobId, tuple[int, Owner, LaneKey, int]] = {}
        self._lines: dict[int, dict[Owner, _Line]] = {}
        self._heaps: dict[int, list[tuple[int, int, Owner]]] = {}
        self._lane_sizes: dict[int, dict[LaneKey, int]] = {}
        self._stuck: set[LaneKey] = set()
        self._seq = 0

    def __len__(self) -> int:
        return len(self._member)

    def __contains__(self, job: JobId) -> bool:
        return job in self._member

    def members(self) -> list[JobId]:
        return sorted(self._member)

    def join(self, job: JobId, owner: Owner, priority: int, lane: LaneKey) -> None:
        if job in self._member:
            self.leave(job)
        self._seq += 1
        self._member[job] = (priority, owner, lane, self._seq)
        line = self._lines.setdefault(priority, {}).get(owner)
        if line is None:
            line = self._lines[priority][owner] = _Line()
        line.lanes.setdefault(lane, deque()).append((self._seq, job))
        sizes = self._lane_sizes.setdefault(priority, {})
        sizes[lane] = sizes.get(lane, 0) + 1
        self._rank(priority, owner, line)

    def leave(self, job: JobId) -> None:
        """No longer waiting. Its entry in the lane goes when it is met."""
        place = self._member.pop(job, None)
        if place is None:
            return
        priority, owner, lane, _ = place
        sizes = self._lane_sizes[priority]
        sizes[lane] -= 1
        if not sizes[lane]:
            del sizes[lane]
            if not any(lane in other for other in self._lane_sizes.values()):
                self._stuck.discard(lane)
        line = self._lines[priority].get(owner)
        if line is not None:
            self._trim(line, lane)
            if not line.lanes:
                del self._lines[priority][owner]

    def _trim(self, line: _Line, lane: LaneKey) -> None:
        jobs = line.lanes.get(lane)
        if jobs is None:
            return
        while jobs and not self._waits(jobs[0]):
            jobs.popleft()
        if not jobs:
            del line.lanes[lane]

    def _waits(self, entry: tuple[int, JobId]) -> bool:
        place = self._member.get(entry[1])
        return place is not None and place[3] == entry[0]

    def share_changed(self, owner: Owner) -> None:
        for priority, lines in self._lines.items():
            line = lines.get(owner)
            if line is not None:
                self._rank(priority, owner, line)

    def _rank(self, priority: int, owner: Owner, line: _Line) -> None:
        self._seq += 1
        line.stamp = self._seq
        heappush(self._heaps.setdefault(priority, []), (self._share_of(owner), self._seq, owner))

    def stick(self, lane: LaneKey) -> None:
        """Nothing free can serve this lane now."""
        self._stuck.add(lane)

    def stuck(self, lane: LaneKey) -> bool:
        return lane in self._stuck

    def free_up(self, serves: Callable[[LaneKey], bool]) -> bool:
        """Room appeared: lanes it serves may be tried again. True if there is any."""
        loose = [lane for lane in self._stuck if serves(lane)]
        self._stuck.difference_update(loose)
        return bool(loose)

    def next(self) -> tuple[JobId, LaneKey] | None:
        """The job to try next, or None: nobody waits whose lane is not stuck."""
        for priority in sorted(self._heaps, reverse=True):
            if self._lane_sizes.get(priority, {}).keys() <= self._stuck:
                continue
            found = self._next_at(priority)
            if found is not None:
                return found
        return None

    def _next_at(self, priority: int) -> tuple[JobId, LaneKey] | None:
        heap, lines = self._heaps[priority], self._lines[priority]
        passed: list[tuple[int, int, Owner]] = []
        found = None
        while heap:
            entry = heappop(heap)
            line = lines.get(entry[2])
            if line is None or line.stamp != entry[1]:
                continue
            passed.append(entry)
            found = self._oldest(line)
            if found is not None:
                break
        for entry in passed:
            heappush(heap, entry)
        return found

    def _oldest(self, line: _Line) -> tuple[JobId, LaneKey] | None:
        best: tuple[int, JobId, LaneKey] | None = None
        for lane in list(line.lanes):
            if lane in self._stuck:
                continue
            self._trim(line, lane)
            jobs = line.lanes.get(lane)
            if jobs and (best is None or jobs[0][0] < best[0]):
                best = (jobs[0][0], jobs[0][1], lane)
        return None if best is None else (best[1], best[2])

    def ahead_of(self, job: JobId) -> int:
        """How many waiting jobs have a better priority, or the same priority and an owner who holds less,
        or stand before it in its owner's order: a fair guess for people, linear in the queue."""
        place = self._member.get(job)
        if place is None:
            return 0
        priority, owner, _, seq = place
        mine = self._share_of(owner)
        count = 0
        for p, o, _, s in self._member.values():
            if p > priority or (
                p == priority and ((o == owner and s < seq) or (o != owner and self._share_of(o) < mine))
            ):
                count += 1
        return count
