"""A training on the command line keeps what it has, again and again, and not only at its end."""

from pathlib import Path

import pytest

from holdfast.cli import neural_training
from holdfast.neural import NeuralNetwork, StepMetrics

DIGITS = Path(__file__).resolve().parent.parent.parent / "examples" / "neural" / "digits.yaml"


@pytest.mark.spec("V5")
def test_a_checkpoint_is_written_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given checkpoints after every step, and one who looks at them
    monkeypatch.setattr(neural_training, "KEEP_EVERY_S", 0.0)
    kept = tmp_path / "kept.safetensors"
    seen: list[int | None] = []

    def look(_: StepMetrics) -> None:
        if not kept.exists():
            seen.append(None)
            return
        found = NeuralNetwork.from_yaml(str(DIGITS))
        found.load(kept)
        seen.append(found.trainer.state.step)

    # when a network is trained, then each step finds what the one before left
    neural_training.train(NeuralNetwork.from_yaml(str(DIGITS)), "digits", 3, str(kept), look)
    assert seen == [None, 1, 2]


@pytest.mark.spec("V5")
def test_between_two_checkpoints_half_a_minute_goes_by(tmp_path: Path) -> None:
    kept = tmp_path / "kept.safetensors"
    early: list[bool] = []
    neural_training.train(
        NeuralNetwork.from_yaml(str(DIGITS)), "digits", 2, str(kept), lambda _: early.append(kept.exists())
    )
    assert early == [False, False] and kept.exists()
