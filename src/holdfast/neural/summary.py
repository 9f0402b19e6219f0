"""A summary of a neural network: what each node outputs, holds and costs, and how it is split into stages. Pure."""

from typing import Any

from holdfast.neural.graph import Graph
from holdfast.neural.partition import memory_bytes
from holdfast.neural.stage import Stage


def summary(graph: Graph) -> dict[str, Any]:
    """The content of `neural show`, for programs."""
    memory = dict(zip((n.name for n in graph.nodes), memory_bytes(graph), strict=True))
    stage_of = {name: i for i, names in enumerate(graph.stages) for name in names}
    nodes = [
        {
            "name": n.name, "op": n.operator.kind, "from": list(n.sources), "shape": list(graph.signals[n.name].shape),
            "parameters": sum(graph.parameters[w].size for w in graph.weights_of(n).values() if w in graph.parameters
                              and w.rpartition(".")[0] == n.name),
            "shares": sorted(n.share.values()), "flops": graph.flops(n), "bytes": memory[n.name],
            "stage": stage_of[n.name],
            "products": [f"{p.label} {p.m}×{p.k}×{p.n}" + f" ×{p.times}" * (p.times > 1)
                         for p in n.operator.products(graph.given(n))],
        }
        for n in graph.nodes
    ]  # fmt: skip
    stages = [
        {
            "nodes": len(names), "parameters": sum(graph.parameters[w].size for w in Stage(graph, names).owned),
            "flops": sum(graph.flops(graph.by_name[n]) for n in names), "bytes": sum(memory[n] for n in names),
            "carried_in_bytes": sum(8 * graph.signals[s].size for s in Stage(graph, names).incoming),
            "borrows": list(Stage(graph, names).borrowed),
        }
        for names in graph.stages
    ]  # fmt: skip
    return {
        "name": graph.name, "profile": graph.profile, "seed": graph.seed, "batch": graph.batch.size,
        "microbatches": graph.batch.microbatches, "optimizer": graph.training.kind, "digest": graph.digest,
        "inputs": {name: str(signal) for name, signal in graph.inputs.items()}, "outputs": list(graph.outputs),
        "losses": dict(graph.losses), "parameters": graph.parameter_count,
        "flops": sum(graph.flops(n) for n in graph.nodes), "nodes": nodes, "stages": stages,
    }  # fmt: skip


def _amount(number: int) -> str:
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            whole, tenth = divmod(number * 10 // size, 10)
            return f"{whole}.{tenth} {unit}"
    return f"{number} "


def table(found: dict[str, Any]) -> str:
    """The same as text."""
    head = f"{found['name']}: {found['parameters']:,} parameters, {_amount(found['flops'])}FLOP a sample and step"
    rows = [("stage", "node", "operator", "from", "gives", "parameters", "FLOP")]
    for node in found["nodes"]:
        shape = "×".join(map(str, node["shape"])) or "one"
        held = f"{node['parameters']:,}" if node["parameters"] else ", ".join(node["shares"]) or ""
        rows.append(
            (str(node["stage"]), node["name"], node["op"], ", ".join(node["from"]), shape, held, _amount(node["flops"]))
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        head,
        f"profile {found['profile']}, seed {found['seed']}, batch {found['batch']} in {found['microbatches']}",
    ]
    lines += [f"input {name}: {signal}" for name, signal in found["inputs"].items()]
    lines += ["", *("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows), ""]
    for number, stage in enumerate(found["stages"]):
        borrows = f", borrows {', '.join(stage['borrows'])}" if stage["borrows"] else ""
        lines.append(
            f"stage {number}: {stage['nodes']} node{'s' * (stage['nodes'] != 1)}, "
            f"{stage['parameters']:,} parameters, {_amount(stage['flops'])}FLOP, "
            f"{_amount(stage['bytes'])}B, takes {_amount(stage['carried_in_bytes'])}B a sample{borrows}"
        )
    return "\n".join(lines)
