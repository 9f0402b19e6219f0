"""Reads a neural network from YAML and checks it: names, types, references, shapes, cycles, sizes, stages.

Every error gives the line and column of its cause. The result is a `Graph`, which is valid by construction. Nothing is
computed here, and nothing in the file is trusted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.neural import partition
from holdfast.neural.arithmetic import PROFILES
from holdfast.neural.graph import Batch, Graph, GraphNode, Training
from holdfast.neural.marked import Marked, read
from holdfast.neural.operators import OPERATORS, Misfit, Operator, Option, Parameter, Signal

NODES_MAX = 10_000
SAMPLE_SIZE_MAX = 2**31
PARAMETERS_MAX = 2**36
REPEAT_MAX = 1_000
_NUMBER_MAX = 2**40


def parse(text: str, source: str = "") -> Graph:
    """The neural network that a YAML text describes. Raises TopologyError."""
    root = read(text, source)
    root.take(dict, "a neural network")
    name = _word(root.need("name", "a neural network"), "`name`")
    profile = _chosen(root.get("profile"), "`profile`", PROFILES, "exact")
    seed = _number(root.get("seed"), "`seed`", Option(int, 1, at_least=0))
    inputs = _inputs(root.need("inputs", "a neural network"))
    reader = _Nodes(inputs)
    reader.read_list(root.need("nodes", "a neural network"), prefix="", local={})
    losses = _losses(root.get("losses"), reader)
    outputs = _outputs(root, reader)
    batch = _batch(root.get("batch"))
    training = _training(root.get("optimizer"))
    nodes = _ordered(reader)
    graph = Graph(
        name=name, inputs=inputs, nodes=nodes, outputs=outputs, losses=losses, profile=profile, seed=seed,
        batch=batch, training=training, source=source,
    )  # fmt: skip
    _check_shapes(graph, reader.marks)
    _check_sharing(graph, reader.marks)
    stages = root.get("stages")
    root.refuse_others("a neural network")
    return replace(graph, stages=_stages(stages, graph))


# --- values ---


def _word(given: Marked, what: str) -> str:
    word = given.value
    if not isinstance(word, str) or not word or len(word) > 100 or any(c in " \t\n/@#:" for c in word):
        given.refuse(f"{what} must be a word of up to 100 letters, without spaces or any of /@#:")
    return word


def _chosen(given: Marked | None, what: str, choices: tuple[str, ...], default: str) -> str:
    if given is None:
        return default
    if given.value not in choices:
        given.refuse(f"{what} must be one of {', '.join(choices)}")
    return given.value


def _number(given: Marked | None, what: str, option: Option) -> Any:
    if given is None:
        return option.default
    value = given.take(option.kind, what)
    if option.kind in (int, float):
        if option.at_least is not None and value < option.at_least:
            given.refuse(f"{what} must be at least {option.at_least:g}")
        if option.below is not None and value >= option.below:
            given.refuse(f"{what} must be below {option.below:g}")
        if abs(value) > _NUMBER_MAX:
            given.refuse(f"{what} is too large")
    if option.choices and value not in option.choices:
        given.refuse(f"{what} must be one of {', '.join(option.choices)}")
    if option.kind is list:
        return [_number(item, f"an entry of {what}", Option(int, at_least=0)) for item in value]
    return value


def _inputs(given: Marked) -> dict[str, Signal]:
    given.take(dict, "`inputs`")
    if not given.value:
        given.refuse("a neural network needs an input")
    found: dict[str, Signal] = {}
    for name, entry in given.entries():
        _word(given.keys[name], "an input's name")
        if "." in name or name == "input":
            given.keys[name].refuse("an input's name has no dot, and is not `input`")
        entry.take(dict, f"input {name}")
        shape_mark = entry.need("shape", f"input {name}")
        shape = tuple(_number(shape_mark, "`shape`", Option(list)))
        below = _number(entry.get("below"), "`below`", Option(int, 0, at_least=1))
        entry.refuse_others(f"input {name}")
        signal = Signal(shape, below)
        if signal.size > SAMPLE_SIZE_MAX:
            shape_mark.refuse(f"one sample would have {signal.size} numbers; at most {SAMPLE_SIZE_MAX}")
        found[name] = signal
    return found


def _batch(given: Marked | None) -> Batch:
    if given is None:
        return Batch()
    given.take(dict, "`batch`")
    size = _number(given.need("size", "`batch`"), "`size`", Option(int, at_least=1))
    mark = given.get("microbatches")
    micro = _number(mark, "`microbatches`", Option(int, 1, at_least=1))
    given.refuse_others("`batch`")
    if size % micro:
        (mark or given).refuse(f"a batch of {size} cannot be cut into {micro} equal microbatches")
    return Batch(size, micro)


def _training(given: Marked | None) -> Training:
    if given is None:
        return Training()
    given.take(dict, "`optimizer`")
    kind = _chosen(given.get("kind"), "`kind`", ("sgd", "momentum", "adamw"), "adamw")
    schedule = _chosen(given.get("schedule"), "`schedule`", ("constant", "linear", "cosine"), "constant")

    def number(key: str, default: float, at_least: float = 0.0, below: float | None = None) -> float:
        return _number(given.get(key), f"`{key}`", Option(float, default, at_least=at_least, below=below))

    betas_mark = given.get("betas")
    betas = (0.9, 0.999)
    if betas_mark is not None:
        pair = betas_mark.take(list, "`betas`")
        if len(pair) != 2:
            betas_mark.refuse("`betas` are two numbers")
        betas = tuple(_number(b, "a beta", Option(float, at_least=0.0, below=1.0)) for b in pair)
    made = Training(
        kind=kind, schedule=schedule, betas=betas,
        rate=number("rate", 1e-3), momentum=number("momentum", 0.9, below=1.0),
        epsilon=number("epsilon", 1e-8, at_least=1e-30), decay=number("decay", 0.01), clip=number("clip", 0.0),
        warmup=_number(given.get("warmup"), "`warmup`", Option(int, 0, at_least=0)),
        steps=_number(given.get("steps"), "`steps`", Option(int, 1000, at_least=1)), floor=number("floor", 0.0),
    )  # fmt: skip
    given.refuse_others("`optimizer`")
    return made


# --- nodes ---


def _several(given: Marked) -> list[Marked]:
    """The entries of a list, or a single entry given in its place."""
    return given.take(list, "this") if given.is_kind(list) else [given]


class _Nodes:
    """Collects nodes in the order of the file, with repeated parts expanded."""

    def __init__(self, inputs: Mapping[str, Signal]) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self.marks: dict[str, Marked] = {}
        self.origins: dict[str, list[Marked]] = {}
        self.aliases: dict[str, str] = {}
        """`block` -> the last node of its last repetition."""
        self.inputs = inputs
        self.last: str | None = None

    def read_list(self, given: Marked, prefix: str, local: dict[str, str]) -> None:
        given.take(list, "`nodes`")
        if not given.value:
            given.refuse("`nodes` is empty")
        for entry in given.value:
            entry.take(dict, "a node")
            if entry.has("repeat"):
                self._repeat(entry, prefix, local)
            else:
                self.read_node(entry, prefix, local)

    def _repeat(self, entry: Marked, prefix: str, local: dict[str, str]) -> None:
        times = _number(entry.need("repeat", "a repeat"), "`repeat`", Option(int, at_least=1, below=REPEAT_MAX))
        name = _word(entry.need("name", "a repeat"), "`name`")
        body = entry.need("nodes", "a repeat")
        start = entry.get("from")
        entry.refuse_others("a repeat")
        if start is not None:
            self.last = self._resolved(_word(start, "`from`"), local)
        if self.last is None:
            entry.refuse("the first thing in `nodes` needs `from`")
        for turn in range(times):
            self.read_list(body, f"{prefix}{name}{turn}.", {"input": self.last or ""})
        self.aliases[prefix + name] = self.last or ""

    def _resolved(self, word: str, local: dict[str, str]) -> str:
        word = local.get(word, word)
        return self.aliases.get(word, word)

    def read_node(self, entry: Marked, prefix: str, local: dict[str, str], only: type[Operator] = Operator) -> str:
        short = _word(entry.need("name", "a node"), "`name`")
        name = prefix + short
        if "." in short or short == "input" or name in self.nodes or name in self.inputs:
            taken = "is taken" if name in self.nodes or name in self.inputs else "cannot be a node's name"
            entry.value["name"].refuse(f"`{short}` {taken}")
        if len(self.nodes) >= NODES_MAX:
            entry.refuse(f"a neural network has at most {NODES_MAX} nodes")
        kind_mark = entry.need("op", f"node {name}")
        kind = OPERATORS.get(kind_mark.value) if isinstance(kind_mark.value, str) else None
        if kind is None or (only is not Operator and not kind.is_loss):
            known = ", ".join(k for k, v in OPERATORS.items() if only is Operator or v.is_loss)
            kind_mark.refuse(f"there is no operator `{kind_mark.value}` here", f"There are: {known}.")
        sources, marks = self._sources(entry, name, kind, local)
        share = self._share(entry, name)
        options = {
            key: _number(entry.get(key), f"`{key}` of {name}", option)
            if entry.has(key) or not option.required
            else entry.need(key, f"operator {kind.kind}")
            for key, option in kind.accepts.items()
        }
        entry.get("weight")
        if not kind.is_loss and entry.has("weight"):
            entry.keys["weight"].refuse(f"node {name} has no `weight`; shared weights are named by `share`")
        entry.refuse_others(f"operator {kind.kind}")
        self.nodes[name] = GraphNode(name, kind(name, options), sources, share, entry.line, entry.column)
        self.marks[name], self.origins[name] = entry, marks
        local[short] = name
        self.last = name
        return name

    def _sources(
        self, entry: Marked, name: str, kind: type[Operator], local: dict[str, str]
    ) -> tuple[tuple[str, ...], list[Marked]]:
        given = entry.get("from")
        if given is None:
            if self.last is None:
                entry.refuse("the first thing in `nodes` needs `from`")
            marks, words = [entry], [self.last]
        else:
            marks = _several(given)
            words = [self._resolved(str(m.take(str, "an entry of `from`")), local) for m in marks]
        if not kind.inputs_min <= len(words) <= kind.inputs_max:
            wanted = str(kind.inputs_min) if kind.inputs_min == kind.inputs_max else f"at least {kind.inputs_min}"
            (given or entry).refuse(f"operator {kind.kind} takes {wanted} input(s); node {name} has {len(words)}")
        return tuple(words), marks

    def _share(self, entry: Marked, name: str) -> dict[str, str]:
        given = entry.get("share")
        if given is None:
            return {}
        given.take(dict, "`share`")
        return {key: str(value.take(str, f"`share` of {name}")) for key, value in given.entries()}


def _losses(given: Marked | None, reader: _Nodes) -> dict[str, float]:
    if given is None:
        return {}
    found: dict[str, float] = {}
    for entry in given.take(list, "`losses`"):
        entry.take(dict, "a loss")
        weight = _number(entry.get("weight"), "`weight`", Option(float, 1.0, at_least=0.0))
        found[reader.read_node(entry, "", {}, only=OPERATORS["mse"])] = weight
    return found


def _outputs(root: Marked, reader: _Nodes) -> tuple[str, ...]:
    given = root.need("outputs", "a neural network")
    names: list[str] = []
    for mark in given.take(list, "`outputs`"):
        word = str(mark.take(str, "an output"))
        name = reader.aliases.get(word, word)
        if name not in reader.nodes:
            mark.refuse(f"there is no node `{word}`")
        names.append(name)
    if not names:
        given.refuse("a neural network needs an output")
    return tuple(names)


# --- the whole ---


def _ordered(reader: _Nodes) -> tuple[GraphNode, ...]:
    """Nodes ordered so that each is after its sources; otherwise in the order of the file."""
    done: set[str] = set(reader.inputs)
    for name, node in reader.nodes.items():
        for source, mark in zip(node.sources, reader.origins[name], strict=True):
            if source not in reader.nodes and source not in reader.inputs:
                mark.refuse(f"node {name} takes from `{source}`, which is neither a node nor an input")
    waiting = list(reader.nodes.values())
    found: list[GraphNode] = []
    while waiting:
        later: list[GraphNode] = []
        for node in waiting:
            if all(s in done for s in node.sources):
                done.add(node.name)
                found.append(node)
            else:
                later.append(node)
        if len(later) == len(waiting):
            stuck = _cycle(later)
            reader.marks[stuck[0]].refuse(f"nodes depend on each other in a cycle: {' → '.join(stuck)}")
        waiting = later
    return tuple(found)


def _cycle(nodes: list[GraphNode]) -> list[str]:
    """A cycle among nodes none of which can be first."""
    by_name = {n.name: n for n in nodes}
    path = [nodes[0].name]
    while True:
        ahead = next(s for s in by_name[path[-1]].sources if s in by_name)
        if ahead in path:
            return [*path[path.index(ahead) :], ahead][::-1]
        path.append(ahead)


def _measured(node: GraphNode, given: list[Signal], mark: Marked) -> tuple[Signal, dict[str, Parameter]]:
    """The output and parameters of a node, or an error that points at the option that does not fit."""
    try:
        return node.operator.signal(given), node.operator.parameters(given)
    except Misfit as misfit:
        at: Marked = mark.value.get(misfit.option, mark) if misfit.option else mark
        at.refuse(f"node {node.name} ({node.operator.kind}): {misfit.says}")


def _check_shapes(graph: Graph, marks: dict[str, Marked]) -> None:
    known = dict(graph.inputs)
    total = 0
    for node in graph.nodes:
        mark = marks[node.name]
        given = [known[s] for s in node.sources]
        signal, parameters = _measured(node, given, mark)
        if signal.size > SAMPLE_SIZE_MAX:
            mark.refuse(f"node {node.name} would give {signal.size} numbers a sample; at most {SAMPLE_SIZE_MAX}")
        total += sum(p.size for label, p in parameters.items() if label not in node.share)
        if total > PARAMETERS_MAX:
            mark.refuse(f"with node {node.name} the neural network has {total} parameters; at most {PARAMETERS_MAX}")
        known[node.name] = signal


def _check_sharing(graph: Graph, marks: dict[str, Marked]) -> None:
    for node in graph.nodes:
        mine = node.operator.parameters(graph.given(node))
        if node.operator.kind == "tied_head" and not node.share:
            marks[node.name].refuse(f"node {node.name} (tied_head) needs `share: {{weight: OWNER.weight}}`")
        for label, owner in node.share.items():
            at = marks[node.name].value["share"].value[label]
            if label not in mine:
                at.refuse(f"node {node.name} has no weight `{label}` to share; it has {', '.join(mine) or 'none'}")
            if owner not in graph.parameters:
                at.refuse(f"there is no weight `{owner}` to share", "Name it as NODE.WEIGHT, such as embed.weight.")
            if graph.parameters[owner].shape != mine[label].shape:
                at.refuse(
                    f"`{owner}` is {graph.parameters[owner].shape} and {node.name} needs {mine[label].shape}: "
                    "they cannot be the same"
                )


def _stages(given: Marked | None, graph: Graph) -> tuple[tuple[str, ...], ...]:
    if given is None:
        return partition.divide(graph, 1)
    if given.is_kind(int):
        count = _number(given, "`stages`", Option(int, at_least=1))
        if count > len(graph.nodes):
            given.refuse(f"{len(graph.nodes)} nodes cannot make {count} stages")
        return partition.divide(graph, count)
    if given.is_kind(dict):
        count = _number(given.get("count"), "`count`", Option(int, 0, at_least=1))
        memory = _number(given.get("memory_mib"), "`memory_mib`", Option(int, 0, at_least=1))
        given.refuse_others("`stages`")
        try:
            return partition.divide(graph, min(count, len(graph.nodes)), memory * 1024 * 1024)
        except ValueError as misfit:
            given.refuse(str(misfit))
    return _given_stages(given, graph)


def _given_stages(given: Marked, graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Stages as lists of nodes; a name also includes all nodes whose names start with it and a dot."""
    stage_of: dict[str, int] = {}
    for number, entry in enumerate(given.take(list, "`stages`")):
        for mark in entry.take(list, "a stage"):
            word = str(mark.take(str, "an entry of a stage"))
            meant = [n.name for n in graph.nodes if n.name == word or n.name.startswith(word + ".")]
            if not meant:
                mark.refuse(f"there is no node `{word}`")
            for name in meant:
                if name in stage_of:
                    mark.refuse(f"node {name} is in two stages")
                stage_of[name] = number
    for node in graph.nodes:
        if node.name not in stage_of:
            given.refuse(f"node {node.name} is in no stage")
        for source in node.sources:
            if stage_of.get(source, 0) > stage_of[node.name]:
                given.refuse(f"node {node.name} stands in an earlier stage than {source}, which it takes from")
    count = max(stage_of.values()) + 1
    return tuple(tuple(n.name for n in graph.nodes if stage_of[n.name] == i) for i in range(count))
