"""Where a need could go: an index of free capacity that answers in the same time for 100 nodes and 1,000,000.

Nodes of one *kind* (architecture, GPU model and memory) share shelves, one for each number of free GPUs. On a
shelf a node lies in the cell of its free memory and free processors, both on a logarithmic scale with four
steps to the octave. A choice first looks at a few random nodes. If none of them fits, the cells are searched:
those above the need in both measures fit for certain and are found by bit masks; those on the border are
searched node by node. So a rare need is found whenever it can be met, and "no fit" is never said falsely.

The index knows free amounts and kinds. It does not know jobs, health or time: a node that may not be given
work is simply not in it.
"""

from collections.abc import Container, Iterator

from holdfast.model import Need, NodeId

Free = tuple[int, int, int, int]
"""cpu_milli, memory_mib, disk_mib, gpus."""
Kind = tuple[str, str, int]
"""Architecture, GPU model, memory per GPU."""

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

    def cells_from(self, memory_level: int, cpu_level: int) -> Iterator[Pool]:
        """Occupied cells at or above both levels: the certain ones first, tightest first, then the border."""
        yield from self._above(memory_level + 1, cpu_level + 1)
        for m in _bits(self.rows >> memory_level, memory_level):
            columns = self.columns[m]
            if m == memory_level:
                for c in _bits(columns >> cpu_level, cpu_level):
                    yield self.cells[(m, c)]
            elif columns >> cpu_level & 1:
                yield self.cells[(m, cpu_level)]

    def _above(self, memory_level: int, cpu_level: int) -> Iterator[Pool]:
        for m in _bits(self.rows >> memory_level, memory_level):
            for c in _bits(self.columns[m] >> cpu_level, cpu_level):
                yield self.cells[(m, c)]


def _bits(mask: int, base: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


class Index:
    """All nodes that may be given work now, with what is free on each."""

    def __init__(self, probes: int, candidates: int) -> None:
        self.free: dict[NodeId, Free] = {}
        self._kind: dict[NodeId, Kind] = {}
        self._all = Pool()
        self._pools: dict[Kind, Pool] = {}
        self._shelves: dict[Kind, dict[int, Shelf]] = {}
        self._matching: dict[tuple[str, str, int], tuple[Kind, ...]] = {}
        self._probes = probes
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
        shelves = self._shelves[kind]
        shelf = shelves.get(free[3])
        if shelf is None:
            shelf = shelves[free[3]] = Shelf()
        shelf.add(node, level(free[1]), level(free[0]))

    def remove(self, node: NodeId) -> None:
        """The node may not be given work."""
        old = self.free.pop(node, None)
        if old is not None:
            self._unshelve(node, self._kind[node], old)
            self._leave(node)

    def _enter(self, node: NodeId, kind: Kind) -> None:
        self._kind[node] = kind
        self._all.add(node)
        pool = self._pools.get(kind)
        if pool is None:
            pool = self._pools[kind] = Pool()
            self._shelves[kind] = {}
            self._matching.clear()
        pool.add(node)

    def _leave(self, node: NodeId) -> None:
        self._all.remove(node)
        self._pools[self._kind.pop(node)].remove(node)

    def _unshelve(self, node: NodeId, kind: Kind, free: Free) -> None:
        self._shelves[kind][free[3]].remove(node, level(free[1]), level(free[0]))

    def _kinds_for(self, need: Need) -> tuple[Kind, ...]:
        key = (need.arch, need.gpu_model, need.gpu_memory_mib)
        kinds = self._matching.get(key)
        if kinds is None:
            kinds = tuple(sorted(k for k in self._pools if kind_serves(k, need)))
            self._matching[key] = kinds
        return kinds

    def candidates(self, need: Need, draw: int, without: Container[NodeId]) -> list[NodeId]:
        """Some nodes on which the need fits now; empty only if there is none at all outside `without`."""
        kinds = self._kinds_for(need)
        if not kinds:
            return []
        r = need.resources
        found = self._probe(kinds, (r.cpu_milli, r.memory_mib, r.disk_mib, r.gpus), draw, without)
        return found or self._search(kinds, (r.cpu_milli, r.memory_mib, r.disk_mib, r.gpus), draw, without)

    def _probe(self, kinds: tuple[Kind, ...], want: Free, draw: int, without: Container[NodeId]) -> list[NodeId]:
        items = self._all.items if len(kinds) == len(self._pools) else self._pools[kinds[draw % len(kinds)]].items
        size = len(items)
        found: list[NodeId] = []
        if not size:
            return found
        cpu, memory, disk, gpus = want
        free = self.free
        wanted = self._candidates
        for _ in range(self._probes):
            draw = (draw * 6364136223846793005 + 1442695040888963407) & _MASK
            node = items[(draw >> 33) % size]
            f = free[node]
            if (
                f[0] >= cpu
                and f[1] >= memory
                and f[2] >= disk
                and f[3] >= gpus
                and node not in without
                and node not in found
            ):
                found.append(node)
                if len(found) == wanted:
                    break
        return found

    def _search(self, kinds: tuple[Kind, ...], want: Free, draw: int, without: Container[NodeId]) -> list[NodeId]:
        cpu, memory, disk, gpus = want
        memory_level, cpu_level = level(memory), level(cpu)
        start = draw % len(kinds)
        for i in range(len(kinds)):
            shelves = self._shelves[kinds[start - i]]
            for count in sorted(shelves):
                if count < gpus:
                    continue
                for cell in shelves[count].cells_from(memory_level, cpu_level):
                    size = len(cell.items)
                    offset = draw % size
                    for j in range(size):
                        node = cell.items[offset - j]
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
