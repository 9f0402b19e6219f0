"""Networks as people write them: what is read, and where a refusal points."""

from dataclasses import replace

import pytest
from tests.neural.networks import EXAMPLES, SMALL

from holdfast.neural import partition
from holdfast.neural.graph import Graph
from holdfast.neural.refusals import TopologyError
from holdfast.neural.topology import parse

pytestmark = pytest.mark.spec("V1")

PLAIN = """name: plain
inputs:
  x: {shape: [8]}
  y: {shape: [], below: 3}
nodes:
  - {name: one, op: linear, from: x, width: 4 }
  - {name: two, op: relu}
  - {name: three, op: linear, width: 3}
losses:
  - {name: loss, op: cross_entropy, from: [three, y]}
outputs: [three]
"""


def test_a_network_is_read_with_shapes_parameters_and_order() -> None:
    graph = parse(SMALL)

    assert [n.name for n in graph.nodes][:3] == ["embed", "block0.norm1", "block0.look"]
    assert graph.by_name["block1.norm1"].sources == ("block0.out",)
    assert graph.by_name["norm"].sources == ("block1.out",)
    assert graph.signals["scores"].shape == (10, 48)
    assert graph.users["embed.weight"] == ("embed", "scores")
    assert "scores.weight" not in graph.parameters
    assert graph.parameter_count == sum(p.size for p in graph.parameters.values())
    assert graph.losses == {"loss": 1.0}


def test_the_order_in_the_file_does_not_matter() -> None:
    lines = PLAIN.splitlines()
    lines[5], lines[7] = lines[7].replace("op: linear", "op: linear, from: two"), lines[5]
    lines[6] = lines[6].replace("op: relu", "op: relu, from: one")
    graph = parse("\n".join(lines))
    assert [n.name for n in graph.nodes] == ["one", "two", "three", "loss"]


TAIL = "outputs: [three]"
WRONG = [
    ("name: plain", "nam: plain", "nam:", "needs `name`"),
    ("op: relu", "op: rely", "rely", "no operator `rely`"),
    ("width: 4", "widht: 4", "{name: one", "needs `width`"),
    ("width: 4", "width: 4, wings: 2", "wings", "has no `wings`"),
    ("width: 4", "width: four", "four", "must be a whole number"),
    ("width: 4", "width: 0", "0 }", "at least 1"),
    ("width: 4", "width: true", "true", "must be a whole number"),
    ("width: 4", "width: 90000000000000", "90000000000000", "too large"),
    ("from: x", "from: z", "z,", "neither a node nor an input"),
    ("name: two", "name: one", "one, op: relu", "is taken"),
    ("op: relu", "op: relu, from: three", "{name: two", "in a cycle: two → three → two"),
    ("op: relu", "op: add", "{name: two", "takes at least 2"),
    ("[three, y]", "[three]", "[three]}", "takes 2 input"),
    ("[three, y]", "[three, x]", "{name: loss", "needs labels"),
    ("width: 3", "width: 2", "{name: loss", "scores for 2 classes"),
    ("op: relu", "op: attention, heads: 2", "{name: two", "at least 2 dimensions"),
    ("[8]", "[8, -1]", "-1]", "at least 0"),
    ("[8]", "8", "8}", "must be a list"),
    ("below: 3", "below: 0", "0}", "at least 1"),
    (TAIL, "outputs: [four]", "four", "no node `four`"),
    (TAIL, f"{TAIL}\nprofile: f16", "f16", "must be one of exact"),
    (TAIL, f"{TAIL}\nbatch: {{size: 10, microbatches: 4}}", "4}\n", "cannot be cut"),
    (TAIL, f"{TAIL}\noptimizer: {{rate: -1}}", "-1}", "at least 0"),
    (TAIL, f"{TAIL}\noptimizer: {{betas: [0.9, 1.0]}}", "1.0]", "below 1"),
    (TAIL, f"{TAIL}\nstages: 9", "9\n", "cannot make 9 stages"),
    (TAIL, f"{TAIL}\nstages: [[one], [two]]", "[[one]", "is in no stage"),
    (TAIL, f"{TAIL}\nstages: [[two, three, loss], [one]]", "[[two", "earlier stage"),
    (TAIL, f"{TAIL}\nstages: {{memory_mib: 1, wide: 2}}", "wide", "has no `wide`"),
    (TAIL, f"{TAIL}\nname: again", "name: again", "is given twice"),
    (TAIL, "outputs: &a [three]\nmore: *a", "*a", "aliases"),
    ("op: relu", "op: relu, share: {weight: one.weight}", "one.weight", "has no weight `weight`"),
    ("width: 3}", "width: 3, share: {weight: two.w}}", "two.w", "no weight `two.w`"),
    ("width: 3}", "width: 3, share: {weight: one.weight}}", "one.weight", "cannot be the same"),
    ("op: relu", "op: tied_head, rows: 3", "{name: two", "needs `share"),
    ("op: relu", "op: dropout, rate: 1.0", "1.0}", "below 1"),
    ("- {name: two", "- {repeat: 2000, name: two", "2000", "below 1000"),
]


@pytest.mark.parametrize(("old", "new", "at", "says"), WRONG)
def test_refusals_point_at_what_is_wrong(old: str, new: str, at: str, says: str) -> None:
    # given a network with one mistake, and where it stands
    assert old in PLAIN
    text = PLAIN.replace(old, new, 1)
    assert text.count(at) == 1, at
    before = text[: text.index(at)]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")

    with pytest.raises(TopologyError) as refused:
        parse(text, "net.yaml")

    assert says in refused.value.says
    assert refused.value.says.startswith(f"net.yaml:{line}:{column}: ")


def test_what_is_not_yaml_is_said_with_its_place() -> None:
    with pytest.raises(TopologyError, match=r"net\.yaml:12:1: this is not YAML"):
        parse(PLAIN.replace(TAIL, "outputs: [three"), "net.yaml")


@pytest.mark.parametrize(
    "text", ["", "- 1", "5", "a: " + "[" * 100_000, "\0", "name: x\ninputs: 3\nnodes: []\noutputs: []"]
)
def test_what_is_no_network_is_refused_in_words(text: str) -> None:
    with pytest.raises(TopologyError):
        parse(text)


def test_a_network_too_large_is_refused_before_anything_is_made() -> None:
    with pytest.raises(TopologyError, match="parameters; at most"):
        parse(PLAIN.replace("[8]", "[90000]").replace("width: 4", "width: 2000000000"))
    with pytest.raises(TopologyError, match="numbers; at most"):
        parse(PLAIN.replace("[8]", "[80000, 80000, 80000]"))


def test_a_misspelt_word_gets_a_suggestion() -> None:
    with pytest.raises(TopologyError) as refused:
        parse(PLAIN + "optimiser: {}\n")
    assert "optimizer" in refused.value.hint


# --- stages ---


def worth(graph: Graph, stages: tuple[tuple[str, ...], ...]) -> float:
    carried = partition.carried_bytes(graph)
    worst, start = 0.0, 0
    for names in stages:
        stop = start + len(names)
        work = sum(graph.flops(graph.by_name[n]) for n in names)
        worst = max(worst, work + partition.FLOPS_PER_BYTE * (carried[start] + carried[stop]))
        start = stop
    return worst


def every_cut(graph: Graph, count: int) -> list[tuple[tuple[str, ...], ...]]:
    from itertools import combinations

    names = [n.name for n in graph.nodes]
    return [
        tuple(tuple(names[a:b]) for a, b in zip((0, *cuts), (*cuts, len(names)), strict=True))
        for cuts in combinations(range(1, len(names)), count - 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_cut_is_better_than_the_one_found(count: int) -> None:
    graph = parse(SMALL)
    found = partition.divide(graph, count)
    assert len(found) == count
    assert worth(graph, found) == min(worth(graph, cut) for cut in every_cut(graph, count))


def test_a_memory_limit_decides_how_many_stages_there_are() -> None:
    graph = parse(SMALL)
    memory = dict(zip((n.name for n in graph.nodes), partition.memory_bytes(graph), strict=True))
    limit = max(max(memory.values()), sum(memory.values()) // 3)
    stages = partition.divide(graph, 0, limit)
    assert 3 <= len(stages) <= 5
    assert all(sum(memory[n] for n in names) <= limit for names in stages)
    with pytest.raises(ValueError, match="alone needs"):
        partition.divide(graph, 0, 100)
    with pytest.raises(ValueError, match="cannot hold"):
        partition.divide(graph, 2, limit)


def test_stages_may_be_given_by_name_and_prefix() -> None:
    graph = parse(SMALL + "stages: [[embed, block0], [block1], [norm, scores, loss]]\n")
    assert [len(s) for s in graph.stages] == [10, 9, 3]


def test_the_digest_follows_the_network_and_not_its_stages() -> None:
    graph = parse(SMALL)
    assert parse(SMALL + "stages: 4\n").digest == graph.digest
    assert parse(SMALL.replace("rate: 0.1", "rate: 0.2")).digest != graph.digest
    assert replace(graph, seed=4).digest != graph.digest


@pytest.mark.parametrize("name", ["digits", "letters"])
def test_the_examples_are_in_order(name: str) -> None:
    graph = parse((EXAMPLES / f"{name}.yaml").read_text(), name)
    assert graph.profile == "exact"
    assert len(graph.stages) > 1
    assert any(n.operator.kind == "dropout" for n in graph.nodes)
    assert graph.training.kind == "adamw"
