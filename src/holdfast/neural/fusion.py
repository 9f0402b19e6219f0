"""Fusion inside a stage: chains of elementwise operators run together, in one pass over memory.

A group is an operator together with, recursively, the elementwise operators whose only consumer is in the group. Values
inside it exist only for a cache-sized block (or a register) at a time, and are written only if backward needs them; the
test for Inf and NaN, with each operator's name, is part of the pass. No bit changes: every element goes through the
same steps. The arithmetic implements the passes; weights and files are not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array
from holdfast.neural.graph import Graph, GraphNode
from holdfast.neural.operators import RunContext
from holdfast.neural.operators.pointwise import Pointwise

Edge = tuple[str, str]
"""(source, consumer)."""


@dataclass(frozen=True)
class Group:
    """Nodes that run together, in the graph's order; the last one computes the group's result."""

    nodes: tuple[GraphNode, ...]

    @property
    def last(self) -> GraphNode:
        return self.nodes[-1]

    @property
    def names(self) -> set[str]:
        return {n.name for n in self.nodes}

    @property
    def sources(self) -> list[str]:
        """The inputs of the group from outside it."""
        inside = self.names
        return list(dict.fromkeys(s for n in self.nodes for s in n.sources if s not in inside))


def operator_of(node: GraphNode) -> Pointwise:
    assert isinstance(node.operator, Pointwise)
    return node.operator


def groups(graph: Graph, nodes: Sequence[GraphNode], outgoing: Sequence[str]) -> list[Group]:
    """The nodes of a stage as groups, each at the position of its last node; other operators stay alone."""
    members: dict[str, list[GraphNode]] = {}
    taken: set[str] = set()
    for node in nodes:
        members[node.name] = [node]
        if not isinstance(node.operator, Pointwise):
            continue
        for source in dict.fromkeys(node.sources):
            if source in members and source not in outgoing and _joins(graph, source, node):
                members[node.name] = [*members[source], *members[node.name]]
                taken.add(source)
    place = graph.place
    return [Group(tuple(sorted(members[n.name], key=lambda m: place[m.name]))) for n in nodes if n.name not in taken]


def _joins(graph: Graph, source: str, node: GraphNode) -> bool:
    """Whether an elementwise source can run together with its consumer: it is the only one, and both learn or
    neither."""
    if not isinstance(graph.by_name[source].operator, Pointwise) or graph.consumers[source] != (node.name,):
        return False
    slots = {i for i, s in enumerate(node.sources) if s == source}
    same = (source in graph.learns) == (node.name in graph.learns)
    return same and not slots & node.operator.no_gradient


def forward(run: RunContext, group: Group, values: Mapping[str, Array]) -> tuple[Array, dict[str, Any]]:
    """The group's result, and for each node the values that its backward needs."""
    inside, sources = group.names, group.sources
    given = [values[s] for s in sources]
    shape = tuple(given[0].shape)
    drawn = {n.name: operator_of(n).drawn(run, shape) for n in group.nodes}
    wanted = _wanted(group, inside, {name: len(bits) for name, bits in drawn.items()})

    def together(ar: Arithmetic, *operands: Array) -> tuple[Array, ...]:
        known = dict(zip(sources, operands, strict=False))
        rest = list(operands[len(sources) :])
        flags: list[Array] = []
        for node in group.nodes:
            mine = [rest.pop(0) for _ in drawn[node.name]]
            result, *made = operator_of(node).point(ar, [known[s] for s in node.sources], mine)
            known[node.name] = result
            known.update({f"{node.name}/made{i}": m for i, m in enumerate(made)})
            flags.append(ar.xp.all_below(result, ar.limit))
        return (known[group.last.name], *(known[w] for w in wanted), *flags)

    bits = [b for n in group.nodes for b in drawn[n.name]]
    result, *others = run.ar.each(together, *given, *bits)
    for node, fine in zip(group.nodes, others[len(wanted) :], strict=True):
        run.ar.require(fine, node.name, "its result")
    kept = {**values, group.last.name: result, **dict(zip(wanted, others, strict=False))}
    for name, mine in drawn.items():
        kept.update({f"{name}/drawn{i}": b for i, b in enumerate(mine)})
    saved: dict[str, Any] = {}
    for node in group.nodes:
        names = [_place_of(node, k) for k in operator_of(node).kept_names(len(drawn[node.name]))]
        saved[node.name] = ([kept[name] for name in names], len(node.sources))
    return result, saved


def _place_of(node: GraphNode, kept: str) -> str:
    """The group's name for a value that the operator calls `in0`."""
    return node.sources[int(kept[2:])] if kept.startswith("in") else f"{node.name}/{kept}"


def _wanted(group: Group, inside: set[str], drawn: Mapping[str, int]) -> list[str]:
    """Values made inside the group that must be written because a backward needs them."""
    found: dict[str, None] = {}
    for node in group.nodes:
        for kept in operator_of(node).kept_names(drawn[node.name]):
            name = _place_of(node, kept)
            if kept.startswith("made") or (name in inside and name != group.last.name):
                found[name] = None
    return list(found)


def backward(run: RunContext, group: Group, graph: Graph, saved: Mapping[str, Any], grad: Array) -> dict[Edge, Array]:
    """The gradients of the group's inputs, by (source, consumer)."""
    inside = group.names
    edges, untouched = _edges(group, graph, inside)
    computed = [edge for edge in edges if edge not in untouched]

    def together(ar: Arithmetic, grad: Array, *kept: Array) -> tuple[Array, ...]:
        rest = list(kept)
        arrived: dict[str, Array] = {group.last.name: grad}
        found: dict[Edge, Array] = {}
        for node in reversed(group.nodes):
            mine, rest = rest[: len(saved[node.name][0])], rest[len(saved[node.name][0]) :]
            g = arrived.pop(node.name)
            backs = (
                [g] * len(node.sources) if operator_of(node).passes_gradient else operator_of(node).slope(ar, g, *mine)
            )
            for source, back in zip(node.sources, backs, strict=True):
                if back is None:
                    continue
                at = (source, node.name)
                if source in inside:
                    arrived[source] = arrived[source] + back if source in arrived else back
                else:
                    found[at] = found[at] + back if at in found else back
        return tuple(found[edge] for edge in computed)

    results: dict[Edge, Array] = {edge: grad for edge in edges if edge in untouched}
    if computed:
        kept = [k for node in reversed(group.nodes) for k in saved[node.name][0]]
        results.update(zip(computed, run.ar.each(together, grad, *kept), strict=True))
    return results


def _edges(group: Group, graph: Graph, inside: set[str]) -> tuple[list[Edge], set[Edge]]:
    """The edges into the group that take a gradient; and those that take the group's own gradient unchanged."""
    plain: dict[str, bool] = {group.last.name: True}
    edges: dict[Edge, bool] = {}
    for node in reversed(group.nodes):
        passed = plain[node.name] and operator_of(node).passes_gradient
        for source in node.sources:
            at = (source, node.name)
            if source in inside:
                plain[source] = passed and source not in plain
            elif graph.sends_back(source, node.name):
                edges[at] = passed and at not in edges
    return list(edges), {edge for edge, passed in edges.items() if passed}
