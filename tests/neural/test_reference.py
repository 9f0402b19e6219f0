"""The same network written apart, in PyTorch with autograd and float32: the same losses, step by step."""

import pytest
import torch
from bench.neural_reference import Letters, train
from tests.neural.networks import EXAMPLES

from holdfast.neural import NeuralNetwork

STEPS = 8


@pytest.mark.spec("V1", "V5")
def test_losses_follow_those_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    # given both with the same first weights and no dropout, whose random bits are each program's own
    text = (EXAMPLES / "letters.yaml").read_text().replace("rate: 0.1}", "rate: 0.0}")
    network = NeuralNetwork.from_text(text)
    data = network.data(str(EXAMPLES / "letters.txt"))
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, rate, training: x)
    other = Letters()
    first = {name: torch.tensor(value) for name, value in network.trainer.state.weights().items()}
    with torch.no_grad():
        other.embed.copy_(first["embed.weight"])
        for i, block in enumerate(other.blocks):
            block.qkv.copy_(first[f"block{i}.look.qkv"])
            block.out.copy_(first[f"block{i}.look.out"])
            block.gates.copy_(first[f"block{i}.gates.weight"])
            block.back.copy_(first[f"block{i}.back.weight"])

    # when both learn from the same batches
    size = network.graph.batch.size
    batches = [data.batch(network.graph.seed, step * size, size) for step in range(STEPS)]
    pairs = [(torch.tensor(b["tokens"]), torch.tensor(b["next"])) for b in batches]
    theirs: list[float] = []
    train(other, pairs, network.graph.training, theirs.append)
    ours = [m.loss for m in network.train_local(data, STEPS)]

    # then their losses agree as far as float32 goes
    assert ours == pytest.approx(theirs, abs=5e-6)
    assert ours[-1] < ours[0] - 0.3
