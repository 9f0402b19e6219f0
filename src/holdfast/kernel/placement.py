"""Finds nodes with room for a need: an index of free capacity that answers as fast for 1,000,000 nodes as for 100.

Nodes of one *kind* (architecture, GPUs, features) are in buckets, one for each number of free GPUs. In its
bucket, a node is in the cell of its free memory and free processors, both on a logarithmic scale with four
steps to the octave. Cells above the need in both measures certainly fit and are found with bit masks, without
looking at a node; a few candidates are drawn from random cells of these. If that finds none, all cells that could
serve are searched, those on the border node by node. So a node is found whenever there is one, and the index
never reports "no fit" wrongly.

The index knows kinds, amounts, and what a node reports about its load and site. It does not know jobs, health or
time: a node that may not get work is not in it.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import msgspec

from holdfast.model import JOBS, PLAIN, Need, NodeId, Resources
from holdfast.policy.cost import ENOUGH_MS, standing_ms
from holdfast.policy.versions import at_least

Free = tuple[int, int, int, int]
"""cpu_milli, memory_mib, disk_mib, gpus."""


class NodeKind(NamedTuple):
    """The fixed properties of a node. Nodes of one kind serve the same needs, as far as amounts allow."""

    arch: str = ""
    gpu_model: str = ""
    """Empty: no GPU, or several different ones."""
    gpu_memory_mib: int = 0
    """Per GPU."""
    gpu_driver: str = ""
    cuda: str = ""
    features: tuple[str, ...] = (JOBS,)


Cell = tuple[int, int]
"""Level of free memory, level of free processors."""

DEMANDS_KEPT = 1_024
"""Most needs for which a `Demand` is cached."""
DRIFT_PARTS = 16
"""The cache is cleared when one in this many nodes has come or gone since."""
_MASK = (1 << 64) - 1
TRIES = 3
"""Random cells tried before the masks are used. If half of all cells serve, the masks are used one time in eight."""


def level(amount: int) -> int:
    """A logarithmic scale with four steps to the octave; larger amounts never have a lower level."""
    if amount < 4:
        return amount if amount > 0 else 0
    bits = amount.bit_length()
    return 4 * bits - 12 + (amount >> (bits - 3))


class Seat(msgspec.Struct, gc=False, eq=False):
    """One node as placement sees it, with everything that a choice reads.

    It is one object because memory latency dominates in a large fleet: a choice that looked up a node's amounts,
    offer and load in separate tables would wait for each of them. It refers to no bucket: without cycles the
    garbage collector need not walk a million of these.
    """

    # The fields that every draw reads come first: they share a line of the processor's cache.
    node: NodeId
    disk: int = 0
    gpus: int = 0
    standing_ms: int = 0
    """The part of the placement cost that is the same for every job (policy.cost)."""
    cpu: int = 0
    memory: int = 0
    """`cpu`, `memory`, `disk` and `gpus` are the free amounts."""
    cell: Cell | None = None
    """Its cell in the bucket of its kind and `gpus`; None: it may not get work."""
    at: int = 0
    """Its index in that cell."""
    kind: NodeKind = NodeKind()
    cpu_total: int = 0
    memory_total: int = 0
    busy_permille: int = 0
    """The load that the machine reports, from all causes together."""
    site: str = ""


S = TypeVar("S", bound=Seat)


class Pool(Generic[S]):
    """The nodes of one cell, in any order."""

    __slots__ = ("at", "column", "row", "seats")

    def __init__(self, row: int, column: int) -> None:
        self.row = row
        self.column = column
        self.seats: list[S] = []
        self.at = -1
        """Its index among the bucket's occupied cells."""


class NodeBucket(Generic[S]):
    """Nodes of one kind with the same number of free GPUs, by level of free memory (row) and processors (column)."""

    __slots__ = ("columns", "occupied", "pools", "rows")

    def __init__(self) -> None:
        self.pools: dict[Cell, Pool[S]] = {}
        self.occupied: list[Pool[S]] = []
        self.rows = 0
        """Bit r: some cell in row r is occupied."""
        self.columns: dict[int, int] = {}
        """Row -> bits of occupied columns."""

    def add(self, seat: S, cell: Cell) -> None:
        pool = self.pools.get(cell)
        if pool is None:
            pool = self.pools[cell] = Pool(*cell)
        seats = pool.seats
        if not seats:
            row, column = cell
            self.rows |= 1 << row
            self.columns[row] = self.columns.get(row, 0) | (1 << column)
            pool.at = len(self.occupied)
            self.occupied.append(pool)
        seat.cell = cell
        seat.at = len(seats)
        seats.append(seat)

    def remove(self, seat: S, cell: Cell) -> None:
        pool = self.pools[cell]
        last = pool.seats.pop()
        if last is not seat:
            pool.seats[seat.at] = last
            last.at = seat.at
        elif not pool.seats:
            self._emptied(pool)

    def _emptied(self, pool: Pool[S]) -> None:
        last = self.occupied.pop()
        if last is not pool:
            self.occupied[pool.at] = last
            last.at = pool.at
        bits = self.columns[pool.row] & ~(1 << pool.column)
        self.columns[pool.row] = bits
        if not bits:
            self.rows &= ~(1 << pool.row)

    def some_from(self, row: int, column: int, draw: int) -> list[S] | None:
        """The nodes of a random occupied cell at or above both levels; None if there is none.

        Most needs are small compared with most machines, so one of the first cells drawn nearly always serves. If none
        does, the masks find one: the first occupied level at or after a drawn one, of memory and then of processors.
        """
        occupied = self.occupied
        count = len(occupied)
        for _ in range(TRIES if count else 0):
            pool = occupied[draw % count]
            if pool.row >= row and pool.column >= column:
                return pool.seats
            draw >>= 4
        rows = self.rows >> row
        while rows:
            start = _some_bit(rows, draw)
            columns = self.columns[row + start] >> column
            if columns:
                return self.pools[row + start, column + _some_bit(columns, draw >> 7)].seats
            rows ^= 1 << start
        return None

    def cells_from(self, row: int, column: int) -> Iterator[list[S]]:
        """All occupied cells at or above both levels, tightest first."""
        for r in _bits(self.rows >> row, row):
            for c in _bits(self.columns[r] >> column, column):
                yield self.pools[r, c].seats


def _some_bit(mask: int, draw: int) -> int:
    """The position of a set bit: the first one at or after a random position. The mask must not be 0."""
    start = draw % mask.bit_length()
    upper = mask >> start
    return start + (upper & -upper).bit_length() - 1


def _bits(mask: int, base: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


class Demand(msgspec.Struct, Generic[S]):
    """A need in the terms of the index."""

    cpu: int
    memory: int
    disk: int
    gpus: int
    row: int
    column: int
    """A cell at or above these levels of memory and processors certainly serves it."""
    kinds: tuple[tuple[NodeBucket[S], ...], ...]
    """For each kind that serves it, kinds without a GPU first: its buckets with enough GPUs, the fewest first, so
    that whole machines stay free for jobs that need them."""
    sums: tuple[int, ...]
    """The running sums of the numbers of nodes of these kinds."""


class NodeIndex(Generic[S]):
    """All nodes that may be given work now, with what is free on each."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._total = 0
        self._sizes: dict[NodeKind, int] = {}
        self._buckets: dict[NodeKind, dict[int, NodeBucket[S]]] = {}
        """Buckets by kind and number of free GPUs."""
        self._demands: dict[Need, Demand[S]] = {}
        """Cached demands. Cleared when a kind goes, when a bucket is added, or when the sums have drifted."""
        self._drift = 0
        """Nodes that came or went since the cache was last cleared for drift."""

    def __len__(self) -> int:
        return self._total

    def remembered(self) -> dict[Need, tuple[int, ...]]:
        """The cached needs, and how their kinds are weighed. Later choices depend on it."""
        return {need: demand.sums for need, demand in self._demands.items()}

    # --- coming, going and changing ---

    def open(self, seat: S, free: Free) -> None:
        """The node may get work and has this much free."""
        cpu, memory, disk, gpus = free
        if seat.cell is None:
            if seat.kind not in self._sizes:
                self._sizes[seat.kind] = 0
                self._buckets[seat.kind] = {}
            self._sizes[seat.kind] += 1
            self._total += 1
            self._drifted()
            seat.gpus = gpus
            self._bucket(seat.kind, gpus).add(seat, (level(memory), level(cpu)))
        self._settle(seat, cpu, memory, disk, gpus)

    def close(self, seat: S) -> None:
        """The node may not get work."""
        if seat.cell is not None:
            kind = seat.kind
            self._buckets[kind][seat.gpus].remove(seat, seat.cell)
            seat.cell = None
            self._sizes[kind] -= 1
            self._total -= 1
            self._drifted()
            if not self._sizes[kind]:
                del self._sizes[kind], self._buckets[kind]
                self._demands.clear()

    def take(self, seat: S, amount: Resources) -> None:
        """Subtract an amount from what is free."""
        self._settle(
            seat,
            seat.cpu - amount.cpu_milli,
            seat.memory - amount.memory_mib,
            seat.disk - amount.disk_mib,
            seat.gpus - amount.gpus,
        )

    def give(self, seat: S, amount: Resources) -> None:
        """Add an amount to what is free."""
        self._settle(
            seat,
            seat.cpu + amount.cpu_milli,
            seat.memory + amount.memory_mib,
            seat.disk + amount.disk_mib,
            seat.gpus + amount.gpus,
        )

    def busy(self, seat: S, permille: int) -> None:
        """Record the load that the machine reports."""
        seat.busy_permille = permille
        seat.standing_ms = standing_ms(seat.cpu, seat.cpu_total, seat.memory, seat.memory_total, permille)

    def _settle(self, seat: S, cpu: int, memory: int, disk: int, gpus: int) -> None:
        """Move a node to the cell for these free amounts; often it is already there."""
        seat.cpu = cpu
        seat.memory = memory
        seat.disk = disk
        seat.standing_ms = standing_ms(cpu, seat.cpu_total, memory, seat.memory_total, seat.busy_permille)
        cell, old = (level(memory), level(cpu)), seat.cell
        if old is not None and (cell != old or gpus != seat.gpus):
            bucket = self._buckets[seat.kind][seat.gpus]
            bucket.remove(seat, old)
            if gpus != seat.gpus:
                seat.gpus = gpus
                bucket = self._bucket(seat.kind, gpus)
            bucket.add(seat, cell)

    def _drifted(self) -> None:
        """A node came or went. The sums only weigh kinds against each other, so they need not be exact. If every
        change cleared the cache, it would be useless in a large fleet, where nodes come and go all the time."""
        self._drift += 1
        if self._drift * DRIFT_PARTS > self._total:
            self._drift = 0
            self._demands.clear()

    def _bucket(self, kind: NodeKind, gpus: int) -> NodeBucket[S]:
        bucket = self._buckets[kind].get(gpus)
        if bucket is None:
            bucket = self._buckets[kind][gpus] = NodeBucket()
            self._demands.clear()
        return bucket

    # --- finding ---

    def candidates(self, need: Need, draw: int, without: Container[NodeId], asking: bool = False) -> list[S]:
        """Some nodes on which the need fits now; empty only if there is none at all outside `without`. `asking`:
        this is only a question, so nothing is cached."""
        demand = self._demands.get(need)
        if demand is None:
            demand = self._demand(need)
            if not asking:
                if len(self._demands) >= DEMANDS_KEPT:
                    self._demands.clear()
                self._demands[need] = demand
        if not demand.kinds:
            return []
        return self._draw(demand, draw, without) or self._search(demand, draw, without)

    def _demand(self, need: Need) -> Demand[S]:
        want = need.resources
        kinds = sorted((k for k in self._sizes if kind_serves(k, need)), key=lambda k: (k.gpu_memory_mib, k))
        return Demand(
            want.cpu_milli,
            want.memory_mib,
            want.disk_mib,
            want.gpus,
            level(want.memory_mib) + 1,
            level(want.cpu_milli) + 1,
            tuple(
                tuple(bucket for gpus, bucket in sorted(self._buckets[kind].items()) if gpus >= want.gpus)
                for kind in kinds
            ),
            tuple(accumulate(self._sizes[kind] for kind in kinds)),
        )

    def _draw(self, demand: Demand[S], draw: int, without: Container[NodeId]) -> list[S]:
        """A few random nodes from cells in which the need certainly fits, kinds in proportion to their size. Stops at
        a node that wastes nothing and has little to do."""
        sums = demand.sums
        found: list[S] = []
        for _ in range(self._candidates):
            bits = draw >> 34  # the best 30 bits: arithmetic is fastest on integers of this size
            for bucket in demand.kinds[bisect_right(sums, bits % sums[-1])]:
                seats = bucket.some_from(demand.row, demand.column, bits)
                if seats is not None:
                    seat = seats[(bits >> 5) % len(seats)]
                    if seat.disk >= demand.disk and seat.node not in without and seat not in found:
                        found.append(seat)
                        if seat.standing_ms <= ENOUGH_MS and not without and (demand.gpus or not seat.gpus):
                            return found
                    break
            draw = draw * 0x2545F4914F6CDD1D & _MASK
        return found

    def _search(self, demand: Demand[S], draw: int, without: Container[NodeId]) -> list[S]:
        """Look everywhere the need could fit: first where it certainly fits, then in every border cell."""
        buckets = [bucket for buckets in demand.kinds for bucket in buckets]
        for bucket in buckets:
            seats = bucket.some_from(demand.row, demand.column, draw)
            if seats is not None:
                seat = seats[draw % len(seats)]
                if seat.disk >= demand.disk and seat.node not in without:
                    return [seat]
        for bucket in buckets:
            for seats in bucket.cells_from(demand.row - 1, demand.column - 1):
                offset = draw % len(seats)
                for i in range(len(seats)):
                    seat = seats[offset - i]
                    enough = seat.cpu >= demand.cpu and seat.memory >= demand.memory and seat.disk >= demand.disk
                    if enough and seat.node not in without:
                        return [seat]
        return []


PLAIN_ARCHITECTURES = ("x86_64", "aarch64")
PLAIN_FEATURES = (JOBS, PLAIN)


def plain_kind(kind: NodeKind) -> NodeKind:
    """The kind without what a node can choose freely: it serves needs that name no model, driver or CUDA version."""
    return NodeKind(
        kind.arch if kind.arch in PLAIN_ARCHITECTURES else "",
        gpu_memory_mib=1 << (kind.gpu_memory_mib.bit_length() - 1) if kind.gpu_memory_mib > 0 else 0,
        features=tuple(feature for feature in PLAIN_FEATURES if feature in kind.features),
    )


def kind_serves(kind: NodeKind, need: Need) -> bool:
    """Whether nodes of this kind meet the fixed requirements of the need."""
    if need.arch and need.arch != kind.arch:
        return False
    if need.gpu_model and need.gpu_model.lower() not in kind.gpu_model.lower():
        return False
    if need.gpu_memory_mib and kind.gpu_memory_mib < need.gpu_memory_mib:
        return False
    if need.gpu_driver_min and not at_least(kind.gpu_driver, need.gpu_driver_min):
        return False
    if need.cuda_min and not at_least(kind.cuda, need.cuda_min):
        return False
    return all(feature in kind.features for feature in need.features)


def has_room(seat: Seat, need: Need) -> bool:
    """Whether what is free on a node is enough, whatever its kind."""
    want = need.resources
    return (
        want.cpu_milli <= seat.cpu
        and want.memory_mib <= seat.memory
        and want.disk_mib <= seat.disk
        and want.gpus <= seat.gpus
    )
