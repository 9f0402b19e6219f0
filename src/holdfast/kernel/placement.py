"""Where a need could go: an index of free capacity that answers in the same time for 100 nodes and 1,000,000.

Nodes of one *kind* (architecture, GPU model and memory) share shelves, one for each number of free GPUs. On a
shelf a node lies in the cell of its free memory and free processors, both on a logarithmic scale with four
steps to the octave. Cells above the need in both measures fit for certain and are found by bit masks, without
looking at a node; a few candidates are drawn from random ones of them. If that finds none, all cells that could
serve are searched, those on the border node by node. So a rare need is found whenever it can be met, and "no fit"
is never said falsely.

The index knows free amounts and kinds. It does not know jobs, health or time: a node that may not be given
work is simply not in it.
"""

from bisect import bisect_right
from collections.abc import Container, Iterator
from itertools import accumulate

from holdfast.model import Need, NodeId

Free = tuple[int, int, int, int]
"""cpu_milli, memory_mib, disk_mib, gpus."""
Kind = tuple[str, str, int]
"""Architecture, GPU model, memory per GPU."""

MATCHES_KEPT = 1_024
"""Different demands on kind whose answer is remembered."""
_MASK = (1 << 64) - 1


def level(amount: int) -> int:
    """A logarithmic scale with four steps to the octave; larger amounts never have a lower level."""
    if amount < 4:
        return amount if amount > 0 else 0
    bits = amount.bit_length()
    return 4 * (bits - 2) + ((amount >> (bits - 3)) & 3)


class Pool:
    """A set of nodes from which any can be drawn in constant time."""

    __slots__ = ("items", "place")

    def __init__(self) -> None:
        self.items: list[NodeId] = []
        self.place: dict[NodeId, int] = {}

    def add(self, node: NodeId) -> None:
        self.place[node] = len(self.items)
        self.items.append(node)

    def remove(self, node: NodeId) -> None:
        at = self.place.pop(node)
        last = self.items.pop()
        if last != node:
            self.items[at] = last
            self.place[last] = at


class Shelf:
    """Nodes of one kind with the same number of free GPUs, by level of free memory and processors."""

    __slots__ = ("cells", "columns", "rows")

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Pool] = {}
        self.rows = 0
        """Bit m: some cell with memory level m is occupied."""
        self.columns: dict[int, int] = {}
        """Memory level -> bits of occupied processor levels."""

    def add(self, node: NodeId, memory_level: int, cpu_level: int) -> None:
        cell = self.cells.get((memory_level, cpu_level))
        if cell is None:
            cell = self.cells[(memory_level, cpu_level)] = Pool()
        if not cell.items:
            self.rows |= 1 << memory_level
            self.columns[memory_level] = self.columns.get(memory_level, 0) | (1 << cpu_level)
        cell.add(node)

    def remove(self, node: NodeId, memory_level: int, cpu_level: int) -> None:
        cell = self.cells[(memory_level, cpu_level)]
        cell.remove(node)
        if not cell.items:
            bits = self.columns[memory_level] & ~(1 << cpu_level)
            self.columns[memory_level] = bits
            if not bits:
                self.rows &= ~(1 << memory_level)

    def any_above(self, memory_level: int, cpu_level: int, draw: int) -> Pool | None:
        """A random occupied cell strictly above both levels: every node in it has both amounts."""
        rows = self.rows >> (memory_level + 1)
        while rows:
            row = _some_bit(rows, draw)
            columns = self.columns[memory_level + 1 + row] >> (cpu_level + 1)
            if columns:
                return self.cells[(memory_level + 1 + row, cpu_level + 1 + _some_bit(columns, draw >> 7))]
            rows ^= 1 << row
        return None

    def cells_from(self, memory_level: int, cpu_level: int) -> Iterator[Pool]:
        """All occupied cells at or above both levels, tightest first."""
        for m in _bits(self.rows >> memory_level, memory_level):
            for c in _bits(self.columns[m] >> cpu_level, cpu_level):
                yield self.cells[(m, c)]


def _some_bit(mask: int, draw: int) -> int:
    """The place of a set bit of a mask that has one: the first at or after a drawn place, or else the lowest."""
    if mask & (mask - 1) == 0:
        return mask.bit_length() - 1
    start = draw % mask.bit_length()
    upper = mask >> start
    return start + (upper & -upper).bit_length() - 1


def _bits(mask: int, base: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


class Index:
    """All nodes that may be given work now, with what is free on each."""

    def __init__(self, candidates: int) -> None:
        self.free: dict[NodeId, Free] = {}
        self._kind: dict[NodeId, Kind] = {}
        self._sizes: dict[Kind, int] = {}
        self._shelves: dict[Kind, dict[int, Shelf]] = {}
        self._matching: dict[tuple[str, str, int], tuple[tuple[Kind, ...], list[int]]] = {}
        """What `_kinds_for` found out; forgotten when a node enters or leaves."""
        self._counts: dict[Kind, list[int]] = {}
        """Per kind the numbers of free GPUs for which there is a shelf, ascending."""
        self._candidates = candidates

    def __len__(self) -> int:
        return len(self.free)

    def set(self, node: NodeId, kind: Kind, free: Free) -> None:
        """The node may be given work and has this much free."""
        old = self.free.get(node)
        if old is not None:
            if old == free and self._kind[node] == kind:
                return
            self._unshelve(node, self._kind[node], old)
            if self._kind[node] != kind:
                self._leave(node)
                self._enter(node, kind)
        else:
            self._enter(node, kind)
        self.free[node] = free
        shelf = self._shelves[kind].get(free[3])
        if shelf is None:
            shelf = self._shelves[kind][free[3]] = Shelf()
            self._counts[kind] = sorted(self._shelves[kind])
        shelf.add(node, level(free[1]), level(free[0]))

    def remove(self, node: NodeId) -> None:
        """The node may not be given work."""
        old = self.free.pop(node, None)
        if old is not None:
            self._unshelve(node, self._kind[node], old)
            self._leave(node)

    def _enter(self, node: NodeId, kind: Kind) -> None:
        self._kind[node] = kind
        if kind not in self._sizes:
            self._shelves[kind] = {}
            self._counts[kind] = []
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        self._matching.clear()

    def _leave(self, node: NodeId) -> None:
        kind = self._kind.pop(node)
        self._sizes[kind] -= 1
        if not self._sizes[kind]:
            del self._sizes[kind], self._shelves[kind], self._counts[kind]
        self._matching.clear()

    def _unshelve(self, node: NodeId, kind: Kind, free: Free) -> None:
        self._shelves[kind][free[3]].remove(node, level(free[1]), level(free[0]))

    def _kinds_for(self, need: Need) -> tuple[tuple[Kind, ...], list[int]]:
        """Kinds that serve the need, those without a GPU first, and the running sum of their sizes."""
        key = (need.arch, need.gpu_model, need.gpu_memory_mib)
        known = self._matching.get(key)
        if known is None:
            if len(self._matching) >= MATCHES_KEPT:
                self._matching.clear()
            kinds = tuple(sorted((k for k in self._sizes if kind_serves(k, need)), key=lambda k: (k[2], k)))
            known = self._matching[key] = (kinds, list(accumulate(self._sizes[k] for k in kinds)))
        return known

    def candidates(self, need: Need, draw: int, without: Container[NodeId]) -> list[NodeId]:
        """Some nodes on which the need fits now; empty only if there is none at all outside `without`."""
        kinds, sums = self._kinds_for(need)
        if not kinds:
            return []
        r = need.resources
        want = (r.cpu_milli, r.memory_mib, r.disk_mib, r.gpus)
        return self._draw(kinds, sums, want, draw, without) or self._search(kinds, want, draw, without)

    def _draw(
        self, kinds: tuple[Kind, ...], sums: list[int], want: Free, draw: int, without: Container[NodeId]
    ) -> list[NodeId]:
        """A few random nodes from cells in which the need fits for certain, kinds in proportion to their size."""
        cpu, memory, disk, gpus = want
        memory_level, cpu_level = level(memory), level(cpu)
        found: list[NodeId] = []
        for _ in range(self._candidates):
            draw = (draw * 6364136223846793005 + 1442695040888963407) & _MASK
            kind = kinds[bisect_right(sums, (draw >> 20) % sums[-1])]
            cell = self._certain_cell(kind, gpus, memory_level, cpu_level, draw >> 9)
            if cell is not None:
                items = cell.items
                node = items[(draw >> 33) % len(items)]
                if self.free[node][2] >= disk and node not in without and node not in found:
                    found.append(node)
        return found

    def _certain_cell(self, kind: Kind, gpus: int, memory_level: int, cpu_level: int, draw: int) -> Pool | None:
        shelves = self._shelves[kind]
        for count in self._counts[kind]:
            if count >= gpus:
                cell = shelves[count].any_above(memory_level, cpu_level, draw)
                if cell is not None:
                    return cell
        return None

    def _search(self, kinds: tuple[Kind, ...], want: Free, draw: int, without: Container[NodeId]) -> list[NodeId]:
        """Look everywhere the need could fit: first what fits for certain, kind by kind, then every border cell."""
        cpu, memory, disk, gpus = want
        memory_level, cpu_level = level(memory), level(cpu)
        for kind in kinds:
            cell = self._certain_cell(kind, gpus, memory_level, cpu_level, draw)
            if cell is not None:
                node = cell.items[draw % len(cell.items)]
                if self.free[node][2] >= disk and node not in without:
                    return [node]
        for kind in kinds:
            for count in self._counts[kind]:
                if count < gpus:
                    continue
                for cell in self._shelves[kind][count].cells_from(memory_level, cpu_level):
                    offset = draw % len(cell.items)
                    for i in range(len(cell.items)):
                        node = cell.items[offset - i]
                        f = self.free[node]
                        if f[0] >= cpu and f[1] >= memory and f[2] >= disk and node not in without:
                            return [node]
        return []


def kind_serves(kind: Kind, need: Need) -> bool:
    """Whether nodes of this kind can meet what is fixed in the need."""
    arch, gpu_model, gpu_memory = kind
    if need.arch and need.arch != arch:
        return False
    if need.gpu_model and need.gpu_model.lower() not in gpu_model.lower():
        return False
    return not (need.gpu_memory_mib and gpu_memory < need.gpu_memory_mib)
