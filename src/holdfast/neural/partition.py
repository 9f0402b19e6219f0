"""Splits a neural network into stages: balanced work, little data between them, within a memory limit.

A stage is a run of nodes in order. The slowest stage determines the speed, so the split minimises

    max over stages of  work(stage) + carried_in(stage) + carried_out(stage)

in floating-point operations per sample; a transferred byte counts as the operations that a node performs in the time of
the transfer. Pure arithmetic on a `Graph`.
"""

from itertools import pairwise
from math import inf

from holdfast.neural.graph import Graph

FLOPS_PER_BYTE = 1_000
"""100 GFLOP/s with a link of 100 MB/s."""
STATE_BYTES = 8 * 4
"""A parameter with its gradient and two moments."""


def carried_bytes(graph: Graph) -> list[int]:
    """Bytes per sample that cross a cut before node i, forward; the gradients sent back have the same size."""
    n = len(graph.nodes)
    change = [0] * (n + 1)
    for name, signal in graph.signals.items():
        users = [graph.place[c] for c in graph.consumers[name]]
        start = graph.place.get(name, -1)
        if users and start >= 0:
            change[start + 1] += 8 * signal.size
            change[max(users) + 1 if max(users) < n else n] -= 8 * signal.size
    found: list[int] = []
    total = 0
    for i in range(n + 1):
        total += change[i]
        found.append(total)
    return found


def memory_bytes(graph: Graph) -> list[int]:
    """The memory of each node: weights with gradient and moments, and what a microbatch keeps for backward."""
    return [
        STATE_BYTES
        * sum(p.size for label, p in node.operator.parameters(graph.given(node)).items() if label not in node.share)
        + graph.batch.micro * node.operator.saved_bytes(graph.given(node))
        for node in graph.nodes
    ]


def divide(graph: Graph, count: int, memory_max: int = 0) -> tuple[tuple[str, ...], ...]:
    """The best stages: `count` of them, or (with 0) the fewest that fit into `memory_max` bytes each."""
    n = len(graph.nodes)
    memory = memory_bytes(graph)
    if memory_max:
        for node, needed in zip(graph.nodes, memory, strict=True):
            if needed > memory_max:
                raise ValueError(f"node {node.name} alone needs {needed >> 20} MiB, which is over the limit of a stage")
    if count:
        cuts = _best(graph, count, memory, memory_max)
        if cuts is None:
            raise ValueError(f"{count} stages of {memory_max >> 20} MiB cannot hold this neural network")
        return _named(graph, cuts)
    fewest = _fewest(memory, memory_max) if memory_max else 1
    cuts = _best(graph, fewest, memory, memory_max)
    assert cuts is not None, "greedy filling found as many stages"
    return _named(graph, cuts if n else [0, 0])


def _fewest(memory: list[int], memory_max: int) -> int:
    """How many stages greedy filling needs, which is the minimum."""
    stages, held = 1, 0
    for needed in memory:
        if held + needed > memory_max:
            stages, held = stages + 1, 0
        held += needed
    return stages


def _best(graph: Graph, count: int, memory: list[int], memory_max: int) -> list[int] | None:
    """Where to cut, by dynamic programming over the last cut; None if no split fits the limit."""
    n = len(graph.nodes)
    carried = [FLOPS_PER_BYTE * b for b in carried_bytes(graph)]
    work, held = [0], [0]
    for node, needed in zip(graph.nodes, memory, strict=True):
        work.append(work[-1] + graph.flops(node))
        held.append(held[-1] + needed)

    def cost(start: int, stop: int) -> float:
        if memory_max and held[stop] - held[start] > memory_max:
            return inf
        return work[stop] - work[start] + carried[start] + carried[stop]

    best = [cost(0, stop) if stop else inf for stop in range(n + 1)]
    cuts_before: list[list[int]] = []
    for _ in range(count - 1):
        following, chosen = [inf] * (n + 1), [0] * (n + 1)
        for stop in range(1, n + 1):
            # Backwards from the nearest cut: the stage only grows, so once it alone costs too much, nothing helps.
            for start in range(stop - 1, 0, -1):
                if work[stop] - work[start] > following[stop]:
                    break
                value = max(best[start], cost(start, stop))
                if value < following[stop]:
                    following[stop], chosen[stop] = value, start
        best = following
        cuts_before.append(chosen)
    if best[n] == inf:
        return None
    cuts = [n]
    for chosen in reversed(cuts_before):
        cuts.append(chosen[cuts[-1]])
    return [0, *reversed(cuts)]


def _named(graph: Graph, cuts: list[int]) -> tuple[tuple[str, ...], ...]:
    names = [node.name for node in graph.nodes]
    return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))
