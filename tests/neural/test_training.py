"""Training in one process: optimizers, schedules, the data's cursor, checkpoints, what a network learns and writes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.neural.networks import EXAMPLES, SMALL

from holdfast.neural import (
    DataError,
    MissingPart,
    NeuralError,
    NeuralNetwork,
    NotFinite,
    StateError,
    golden,
    optimizers,
)
from holdfast.neural import data as sources
from holdfast.neural.arithmetic import arithmetic
from holdfast.neural.arrays import arrays
from holdfast.neural.data import Data, text_of
from holdfast.neural.graph import Training
from holdfast.neural.optimizers import clip_factor, rate_at, updated, whole_power
from holdfast.neural.state import State
from holdfast.neural.topology import parse

LETTERS = str(EXAMPLES / "letters.txt")


# --- optimizers ---


@pytest.mark.spec("V5")
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
def test_optimizers_follow_those_of_torch(kind: str) -> None:
    # given a weight that decays, one that does not, and ten gradients
    training = Training(kind=kind, rate=0.05, decay=0.1, momentum=0.8, betas=(0.8, 0.95))
    graph = replace(parse(golden.LONG), training=training)
    ar = arithmetic("exact", arrays())
    rng = np.random.default_rng(1)
    names = ("scores.weight", "scores.bias")
    tensors = {n: rng.normal(size=graph.parameters[n].shape) for n in names}
    for prefix in ("moment1/", "moment2/"):
        tensors |= {prefix + n: np.zeros(graph.parameters[n].shape) for n in names}
    theirs = [torch.tensor(tensors[n], requires_grad=True) for n in names]
    if kind == "adamw":
        groups = [{"params": [theirs[0]], "weight_decay": 0.1}, {"params": [theirs[1]], "weight_decay": 0.0}]
        rule: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=training.epsilon)
    else:
        rule = torch.optim.SGD(theirs, lr=0.05, momentum=0.8 if kind == "momentum" else 0.0)

    # when both follow them
    state = State(tensors)
    for _ in range(10):
        grads = {n: rng.normal(size=graph.parameters[n].shape) for n in names}
        if kind != "adamw":
            with torch.no_grad():
                theirs[0] *= 1 - 0.05 * 0.1
        for tensor, name in zip(theirs, names, strict=True):
            tensor.grad = torch.tensor(grads[name])
        rule.step()
        state = updated(graph, ar, state, grads, 1.0)

    # then they arrive at the same place
    assert state.step == 10
    for tensor, name in zip(theirs, names, strict=True):
        assert np.allclose(state.tensors[name], tensor.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.spec("V5")
def test_schedules_rise_and_fall() -> None:
    training = Training(rate=1.0, warmup=4, steps=24, floor=0.2, schedule="cosine")
    rates = [rate_at(training, step) for step in range(40)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[14] == pytest.approx(0.6)
    assert rates[24:] == [pytest.approx(0.2)] * 16
    assert sorted(rates[4:], reverse=True) == rates[4:]
    assert rate_at(replace(training, schedule="linear"), 14) == pytest.approx(0.6)
    assert rate_at(replace(training, schedule="constant"), 39) == 1.0
    assert whole_power(0.9, 10) == pytest.approx(0.9**10, rel=1e-14)


@pytest.mark.spec("V5")
def test_gradients_are_clipped_by_their_global_norm() -> None:
    training = Training(clip=1.0)
    assert clip_factor(training, {"a": 9.0, "b": 16.0}, ["a", "b"]) == (5.0, 0.2)
    assert clip_factor(training, {"a": 0.25}, ["a"]) == (0.5, 1.0)
    assert clip_factor(Training(), {"a": 9.0}, ["a"]) == (3.0, 1.0)
    with pytest.raises(NotFinite, match="operator head"):
        clip_factor(training, {"head.weight": float("nan")}, ["head.weight"])


@pytest.mark.spec("V5")
def test_a_rate_that_explodes_is_refused_with_a_name() -> None:
    network = NeuralNetwork.from_text(golden.LONG.replace("rate: 0.05", "rate: 1e9"))
    with pytest.raises(NotFinite) as refused:
        network.train_local(golden.data_for(network.graph), 60)
    assert refused.value.code == "not_finite" and refused.value.operator in network.graph.by_name
    assert "learning rate" in refused.value.hint


# --- data ---


@pytest.mark.spec("V9")
def test_a_cursor_says_which_samples_come_next() -> None:
    data = Data({"x": np.arange(10)})
    taken = [data.batch(5, cursor, 4)["x"].tolist() for cursor in range(0, 40, 4)]
    flat = [n for batch in taken for n in batch]

    # every pass has every sample once, in an order of its own, and a restart in the middle changes nothing
    for turn in range(4):
        assert sorted(flat[turn * 10 : turn * 10 + 10]) == list(range(10))
    assert flat[:10] != flat[10:20]
    assert Data({"x": np.arange(10)}).batch(5, 20, 4)["x"].tolist() == taken[5]
    assert Data({"x": np.arange(10)}).batch(6, 20, 4)["x"].tolist() != taken[5]


@pytest.mark.spec("V9")
def test_a_text_is_windows_of_letters() -> None:
    data = text_of(b"hello holdfast", 5)
    assert data.letters == " adefhlost"
    taken = data.take([0, 3])
    assert "".join(data.letters[t] for t in taken["tokens"][1]) == "lo ho"
    assert "".join(data.letters[t] for t in taken["next"][1]) == "o hol"


@pytest.mark.spec("V9")
def test_data_that_cannot_feed_the_network_is_refused(tmp_path: Path) -> None:
    network = NeuralNetwork.from_text(golden.LONG)
    good = golden.data_for(network.graph).arrays
    wrong = {
        "has an input label": {"wave": good["wave"]},
        "takes samples of shape": {**good, "wave": np.zeros((64, 5))},
        "takes indices, and": {**good, "label": np.zeros(64)},
        "goes up to 9": {**good, "label": np.full(64, 9)},
        "infinite": {**good, "wave": good["wave"] * np.nan},
        "no sample": {"wave": np.zeros((0, 9000)), "label": np.zeros(0, dtype=np.int64)},
    }
    for says, arrays_given in wrong.items():
        with pytest.raises(DataError, match=says) as refused:
            network.train_local(Data(arrays_given), 1)
        assert refused.value.code == "training_data"
    np.savez(tmp_path / "uneven.npz", wave=good["wave"], label=good["label"][:5])
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 nothing")
    for name, says in {
        "uneven.npz": "differ in their number",
        "broken.npz": "is no .npz",
        "none.npz": "cannot be",
    }.items():
        with pytest.raises(DataError, match=says):
            network.train_local(str(tmp_path / name), 1)


@pytest.mark.spec("V9")
def test_arrays_are_read_from_a_file(tmp_path: Path) -> None:
    network = NeuralNetwork.from_text(golden.LONG)
    np.savez(tmp_path / "waves.npz", **golden.data_for(network.graph).arrays)
    network.train_local(str(tmp_path / "waves.npz"), golden.STEPS)
    assert network.digest() == golden.GOLDEN["long"]


# --- checkpoints ---


@pytest.mark.spec("V5", "V9")
def test_a_run_that_was_interrupted_ends_in_the_same_bits(tmp_path: Path) -> None:
    # given a run of six steps, and one that is saved after two
    straight = NeuralNetwork.from_text(SMALL)
    straight.train_local(LETTERS, 6)
    first = NeuralNetwork.from_text(SMALL)
    first.train_local(LETTERS, 2)
    first.save(tmp_path / "two.safetensors")

    # when another process, on another backend, goes on from there
    second = NeuralNetwork.from_text(SMALL, backend="torch")
    second.load(tmp_path / "two.safetensors")
    assert second.trainer.state.step == 2
    second.train_local(LETTERS, 4)

    # then it ends where the undisturbed one does
    assert second.digest() == straight.digest()
    assert second.save(tmp_path / "a.safetensors") == straight.save(tmp_path / "b.safetensors")


@pytest.mark.spec("V5")
def test_a_checkpoint_that_was_altered_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    network = NeuralNetwork.from_text(SMALL)
    path = tmp_path / "c.safetensors"
    network.save(path)
    good = path.read_bytes()

    def refused(data: bytes, says: str, text: str = SMALL) -> None:
        path.write_bytes(data)
        with pytest.raises(StateError, match=says):
            NeuralNetwork.from_text(text).load(path)

    flipped = bytearray(good)
    flipped[-3] ^= 1
    refused(bytes(flipped), "was altered")
    refused(good[:-100], "no file of weights")
    refused(b"", "no file of weights")
    refused(good, "differs from", SMALL.replace("seed: 3", "seed: 4"))
    refused(good, "needs", SMALL.replace("width: 32", "width: 64"))
    path.unlink()
    with pytest.raises(StateError, match="cannot be read") as unreadable:
        network.load(path)
    assert unreadable.value.code == "network_state"


@pytest.mark.spec("V5")
def test_exported_weights_are_plain_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    network = NeuralNetwork.from_text(SMALL)
    network.export(tmp_path / "w.safetensors")
    weights = load_file(tmp_path / "w.safetensors")
    assert set(weights) == set(network.graph.parameters)
    assert weights["embed.weight"].dtype == np.float32
    assert np.allclose(weights["embed.weight"], network.trainer.state.tensors["embed.weight"])


# --- what comes of it ---


@pytest.mark.spec("V1", "V5")
def test_digits_are_learnt() -> None:
    network = NeuralNetwork.from_yaml(EXAMPLES / "digits.yaml")
    told = network.train_local("digits", 120)
    assert told[0].loss > 2.2
    assert network.evaluate("digits")["right"] > 0.9
    assert [m.step for m in told] == list(range(1, 121))
    assert network.evaluate("digits") == network.evaluate("digits")


@pytest.mark.spec("V1")
@pytest.mark.parametrize(
    ("profile", "backend"), [("f32", "numpy"), ("f32", "torch"), ("bf16", "numpy"), ("bf16", "torch")]
)
def test_quick_profiles_learn_alike_within_tolerance(profile: str, backend: str) -> None:
    exact = NeuralNetwork.from_yaml(EXAMPLES / "digits.yaml").train_local("digits", 12)
    quick = NeuralNetwork.from_yaml(EXAMPLES / "digits.yaml", backend, profile).train_local("digits", 12)
    tolerance = 1e-4 if profile == "f32" else 0.02
    assert [m.loss for m in quick] == pytest.approx([m.loss for m in exact], rel=tolerance)


@pytest.mark.spec("V5")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_cache_changes_no_letter(temperature: float) -> None:
    network = NeuralNetwork.from_text(SMALL)
    network.train_local(LETTERS, 8)
    how = {"temperature": temperature, "seed": 4}
    cached = network.generate("a node ", 40, cache=True, **how)
    assert cached == network.generate("a node ", 40, cache=False, **how)
    assert len(cached) == 47
    if temperature:
        assert cached != network.generate("a node ", 40, temperature=temperature, seed=5)


@pytest.mark.spec("V5")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_cached_scores_are_those_of_the_whole_sequence_to_the_bit(backend: str) -> None:
    from holdfast.neural.operators import RunContext
    from holdfast.neural.stage import Stage

    # given a sequence, seen whole by one and letter by letter by another
    network = NeuralNetwork.from_text(SMALL, backend)
    network.train_local(LETTERS, 2)
    ar, graph = network.ar, network.graph
    stage = Stage(graph, tuple(n.name for n in graph.nodes if n.name != "loss"))
    tokens = np.random.default_rng(3).integers(0, 48, (2, 25))
    whole = ar.xp.host(
        stage.forward(RunContext(ar), network.trainer.state, {"tokens": ar.xp.index(tokens)})[0]["scores"]
    )
    cache: dict[str, object] = {}
    for place in range(25):
        given = {"tokens": ar.xp.index(tokens[:, place : place + 1])}
        one = stage.forward(RunContext(ar, cache=cache, position=place), network.trainer.state, given)[0]["scores"]
        # then every score is the same, though the whole saw the future as well
        assert np.ascontiguousarray(ar.xp.host(one)[:, 0]).tobytes() == np.ascontiguousarray(whole[:, place]).tobytes()


@pytest.mark.spec("V5")
def test_what_cannot_write_says_why() -> None:
    with pytest.raises(StateError, match="has not been trained on text"):
        NeuralNetwork.from_text(SMALL).generate("a", 3)
    network = NeuralNetwork.from_text(SMALL)
    network.data(LETTERS)
    with pytest.raises(StateError, match="does not know: 'Ä'"):
        network.generate("Ä", 3)
    with pytest.raises(StateError, match="no letters"):
        network.generate("", 3)
    with pytest.raises(NeuralError, match="at most"):
        network.generate("a", 10**9)
    seeing = NeuralNetwork.from_text(SMALL.replace("heads: 2", "heads: 2, causal: false"))
    seeing.data(LETTERS)
    with pytest.raises(NeuralError, match="looks ahead"):
        seeing.generate("a", 3)


@pytest.mark.spec("V1")
def test_backends_and_profiles_that_are_not_there_are_named() -> None:
    with pytest.raises(MissingPart, match="no backend abacus"):
        NeuralNetwork.from_text(SMALL, backend="abacus")
    with pytest.raises(NeuralError, match="no profile f16"):
        NeuralNetwork.from_text(SMALL, profile="f16")
    if not torch.cuda.is_available():
        with pytest.raises(MissingPart, match="no CUDA device"):
            arrays("cuda")


@pytest.mark.spec("V9")
def test_the_shipped_text_fits_its_network() -> None:
    graph = parse((EXAMPLES / "letters.yaml").read_text())
    data = sources.load(LETTERS, graph)
    assert len(data.letters) <= graph.inputs["tokens"].below
    assert data.count > 10_000
    assert optimizers.rate_at(graph.training, 0) < graph.training.rate
    assert json.dumps(data.letters)
