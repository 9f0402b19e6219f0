"""Loss curves of the two examples, profile exact against PyTorch in float32, many seeds each, and their plot.

exact       Holdfast, profile exact
same seeds  Holdfast, profile f32: the same initial weights, batches and dropout; only the arithmetic differs
f32         PyTorch, an independent implementation with its own random numbers
paired      PyTorch with the initial weights and batches of exact; only dropout is its own

python bench/neural_curves.py [--jobs 16]       all seeds; minutes to hours; writes docs/neural-curves.{json,svg}
python bench/neural_curves.py --plot            only draw the plot again from docs/neural-curves.json, and evaluate it
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "neural-curves.json"
PLOT = ROOT / "docs" / "neural-curves.svg"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
WINDOW = 20
FIVE = 5
DRAWS = 2000
Run = dict[str, Any]
EXAMPLES = {"digits": ("digits", 400), "letters": (str(ROOT / "examples" / "neural" / "letters.txt"), 500)}


def windows(losses: list[float]) -> list[float]:
    """The mean of each window of steps: single batches are too noisy to compare."""
    return [round(mean(losses[i : i + WINDOW]), 5) for i in range(0, len(losses), WINDOW)]


def ours(example: str, seed: int, profile: str) -> Run:
    from holdfast.neural import NeuralNetwork

    source, steps = EXAMPLES[example]
    network = NeuralNetwork(replace(described(example), seed=seed), profile=profile)
    told = network.train_local(source, steps)
    return {"train": windows([m.loss for m in told]), "test": network.evaluate(source, 1000)}


def described(example: str) -> Any:
    from holdfast.neural.topology import parse

    return parse((ROOT / "examples" / "neural" / f"{example}.yaml").read_text(), example)


def reference(example: str, seed: int, *, paired: bool = False) -> Run:
    """PyTorch in float32. Paired: with the initial weights and batches that Holdfast has for this seed."""
    import torch
    import torch.nn.functional as F
    from bench.neural_reference import Digits, Letters, train

    from holdfast.neural.data import load

    source, steps = EXAMPLES[example]
    graph = described(example)
    data = load(source, graph)
    held = load(source, graph, "test", data.letters)
    names = ("pixels", "label") if example == "digits" else ("tokens", "next")
    torch.manual_seed(seed)
    torch.set_num_threads(1)

    def pair(found: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(found[names[0]].copy())
        return (x.float() if example == "digits" else x), torch.from_numpy(found[names[1]].copy())

    def batches() -> Iterator[Any]:
        order: list[int] = []
        size = graph.batch.size
        for step in range(steps):
            if paired:
                yield pair(data.batch(seed, step * size, size))
                continue
            while len(order) < size:
                order += torch.randperm(data.count).tolist()
            yield pair(data.take(order[:size]))
            del order[:size]

    model = Digits() if example == "digits" else Letters()
    if paired:
        begin_alike(model, replace(graph, seed=seed))
    losses: list[float] = []
    train(model, batches(), graph.training, losses.append)
    model.eval()
    x, y = pair(held.take(list(range(min(1000, held.count)))))
    with torch.no_grad():
        scores = model(x)
    right = (scores.argmax(-1) == y).float().mean().item()
    loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1)).item()
    return {"train": windows(losses), "test": {"loss": loss, "right": right}}


def begin_alike(model: Any, graph: Any) -> None:
    """Copy the initial weights of Holdfast's model to PyTorch's."""
    import torch

    from holdfast.neural.arithmetic import arithmetic
    from holdfast.neural.arrays import arrays
    from holdfast.neural.state import fresh

    first = {k: torch.tensor(v) for k, v in fresh(graph, arithmetic("exact", arrays())).weights().items()}
    with torch.no_grad():
        if graph.name == "digits":
            for w, name in zip(model.weights, ("hidden1", "hidden2", "scores"), strict=True):
                w.copy_(first[f"{name}.weight"])
            return
        model.embed.copy_(first["embed.weight"])
        for i, block in enumerate(model.blocks):
            for own, name in (
                ("qkv", "look.qkv"),
                ("out", "look.out"),
                ("gates", "gates.weight"),
                ("back", "back.weight"),
            ):
                getattr(block, own).copy_(first[f"block{i}.{name}"])


def one(task: tuple[str, str, int]) -> Run:
    example, what, seed = task
    if what in ("exact", "same seeds"):
        return ours(example, seed, "exact" if what == "exact" else "f32")
    return reference(example, seed, paired=what == "paired")


# --- evaluation ---


def inside(mine: list[Run], theirs: list[Run]) -> int:
    """Windows in which the mean of some runs is within two standard deviations of the mean of others."""
    return sum(abs(mean(a) - mean(b)) <= 2 * stdev(b) for a, b in zip(by_window(mine), by_window(theirs), strict=True))


def by_window(runs: list[Run]) -> list[tuple[float, ...]]:
    return list(zip(*(r["train"] for r in runs), strict=True))


def drawn(mine: list[Run], theirs: list[Run], same: bool) -> list[int]:
    """The same test for many choices of five runs against five others."""
    dice = random.Random(1)
    found: list[int] = []
    for _ in range(DRAWS):
        if same:
            ten = dice.sample(mine, 2 * FIVE)
            found.append(inside(ten[:FIVE], ten[FIVE:]))
        else:
            found.append(inside(dice.sample(mine, FIVE), dice.sample(theirs, FIVE)))
    return sorted(found)


def spread(counts: list[int]) -> str:
    at = {share: counts[int(share * (len(counts) - 1))] for share in (0.05, 0.25, 0.5, 0.95)}
    return f"5 % {at[0.05]}, 25 % {at[0.25]}, median {at[0.5]}, 95 % {at[0.95]}"


def apart_by(some: list[Run], others: list[Run]) -> str:
    """The difference between the mean losses of runs, with its standard error."""
    a, b = [mean(r["train"]) for r in some], [mean(r["train"]) for r in others]
    error = sqrt(variance(a) / len(a) + variance(b) / len(b))
    return f"{mean(a) - mean(b):+.5f} +- {error:.5f} ({len(a)} and {len(b)} seeds)"


def judged(runs: dict[str, list[Run]]) -> dict[str, str]:
    """Compares exact with float32."""
    exact, f32 = runs["exact"], runs["f32"]
    pairs = runs["paired"][: len(exact)]
    count = len(exact[0]["train"])
    apart = max(
        abs(a - b)
        for own, other in zip(exact, runs["same seeds"], strict=False)
        for a, b in zip(own["train"], other["train"], strict=True)
    )
    told = {
        "windows": str(count),
        "five seeds of exact, inside 2 sigma of five seeds of PyTorch": str(inside(exact[:FIVE], f32[:FIVE])),
        "the same against PyTorch from the same five seeds' first weights and batches": str(
            inside(exact[:FIVE], pairs[:FIVE])
        ),
        f"mean of {len(exact)} exact inside 2 sigma of {len(f32)} of PyTorch": str(inside(exact, f32)),
        "any five of exact against any five of PyTorch": spread(drawn(exact, f32, same=False)),
        "any five of PyTorch against five others of PyTorch": spread(drawn(f32, f32, same=True)),
        "largest difference between profiles exact and f32, same seed": f"{apart:.5f}",
    }
    for name, others in (("PyTorch, other seeds", f32), ("PyTorch, same first weights and batches", pairs)):
        gaps = [mean(a) - mean(b) for a, b in zip(by_window(exact), by_window(others), strict=True)]
        errors = [
            sqrt(variance(a) / len(a) + variance(b) / len(b))
            for a, b in zip(by_window(exact), by_window(others), strict=True)
        ]
        ratios = [g / e for g, e in zip(gaps, errors, strict=True)]
        told[f"exact minus {name}, all windows"] = apart_by(exact, others)
        told[f"exact minus {name}, largest in standard errors"] = f"{max(ratios, key=abs):+.2f}"
    first, later = slice(0, len(exact)), slice(len(exact), None)
    for name, seeds in (("these seeds", first), ("further seeds", later)):
        if runs["paired"][seeds]:
            told[f"PyTorch from Holdfast's first weights and batches minus PyTorch's own, {name}"] = apart_by(
                runs["paired"][seeds], f32[seeds]
            )
    for what in ("loss", "right"):
        for name in ("exact", "f32", "paired"):
            values = [r["test"][what] for r in runs[name]]
            told[f"test {what} {name}"] = f"{mean(values):.4f} +- {stdev(values) / sqrt(len(values)):.4f}"
    return told


def plotted(kept: dict[str, Any]) -> str:
    wide, high, left, top = 380, 240, 46, 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (wide + left) + 20} {high + top + 48}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, (example, runs) in enumerate(kept.items()):
        x0 = left + place * (wide + left)
        theirs = list(zip(*(r["train"] for r in runs["f32"]), strict=True))
        top_loss = max(max(w) for w in theirs) * 1.05
        n = len(theirs)

        def x(i: float, x0: int = x0, n: int = n) -> float:
            return round(x0 + (i + 0.5) * wide / n, 1)

        def y(v: float, top_loss: float = top_loss) -> float:
            return round(top + high * (1 - v / top_loss), 1)

        for chosen, colour in ((theirs, "#c9d8ea"), ([w[:FIVE] for w in theirs], "#8fb0d6")):
            upper = [(x(i), y(mean(w) + 2 * stdev(w))) for i, w in enumerate(chosen)]
            lower = [(x(i), y(mean(w) - 2 * stdev(w))) for i, w in enumerate(chosen)]
            points = " ".join(f"{a},{b}" for a, b in upper + lower[::-1])
            parts.append(f'<polygon points="{points}" fill="{colour}" opacity="0.8"/>')
        for run in runs["exact"][:FIVE]:
            points = " ".join(f"{x(i)},{y(v)}" for i, v in enumerate(run["train"]))
            parts.append(f'<polyline points="{points}" fill="none" stroke="#c0392b" stroke-width="0.9"/>')
        parts.append(f'<path d="M{x0},{top} V{top + high} H{x0 + wide}" fill="none" stroke="black"/>')
        for share in (0.0, 0.25, 0.5, 0.75):
            value = top_loss * share
            parts.append(f'<text x="{x0 - 4}" y="{y(value) + 4}" text-anchor="end">{value:.2f}</text>')
        for i in range(0, n + 1, 5):
            at = round(x0 + i * wide / n, 1)
            parts.append(f'<text x="{at}" y="{top + high + 14}" text-anchor="middle">{i * WINDOW}</text>')
        parts.append(
            f'<text x="{x0 + wide / 2}" y="{top - 12}" text-anchor="middle">{example}: training loss by step</text>'
        )
    parts.append(
        f'<text x="{left}" y="{top + high + 36}">bands: float32 in PyTorch, mean ± 2 standard deviations, of five '
        "seeds (dark) and of all (light); lines: profile exact, five seeds</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--plot", action="store_true")
    words.add_argument("--seeds", type=int, default=28)
    words.add_argument("--more", type=int, default=53, help="further seeds of PyTorch's two kinds, for the letters")
    words.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    words.add_argument("--keep", type=Path, default=KEPT)
    asked = words.parse_args()
    kept: dict[str, Any] = {example: {} for example in EXAMPLES}
    if asked.plot:
        kept = json.loads(asked.keep.read_text())
    else:
        # The slow ones first. Profile f32 only shows that it is the same curve: five seeds of it are enough.
        counts = {"exact": asked.seeds, "same seeds": FIVE, "paired": asked.seeds, "f32": asked.seeds}
        tasks = [
            (example, what, seed)
            for example in ("letters", "digits")
            for what, count in counts.items()
            for seed in range(
                1, count + 1 + (asked.more if (example, what in ("f32", "paired")) == ("letters", True) else 0)
            )
        ]
        with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
            for (example, what, seed), run in zip(tasks, pool.map(one, tasks), strict=True):
                kept[example].setdefault(what, []).append(run)
                asked.keep.write_text(json.dumps(kept) + "\n")
                print(example, what, seed, run["train"][-1], flush=True)
    PLOT.write_text(plotted(kept))
    for example, runs in kept.items():
        print(example)
        for what, value in judged(runs).items():
            print(f"  {what}: {value}")


if __name__ == "__main__":
    main()
