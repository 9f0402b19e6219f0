"""Loss curves of the two examples, profile exact against PyTorch in float32, five seeds each, and their plot.

Seeds differ between the two programs. So profile f32 runs as well, with the seeds of exact: the same first weights,
batches and dropout, and nothing different but the arithmetic.

python bench/neural_curves.py                   all seeds; minutes to an hour; writes docs/neural-curves.{json,svg}
python bench/neural_curves.py --plot            only draw the plot again from docs/neural-curves.json
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "neural-curves.json"
PLOT = ROOT / "docs" / "neural-curves.svg"
WINDOW = 20
EXAMPLES = {"digits": ("digits", 400), "letters": (str(ROOT / "examples" / "neural" / "letters.txt"), 500)}


def windows(losses: list[float]) -> list[float]:
    """The mean of each window of steps: single batches are too noisy to compare."""
    return [round(mean(losses[i : i + WINDOW]), 5) for i in range(0, len(losses), WINDOW)]


def ours(example: str, seed: int, profile: str) -> dict[str, Any]:
    from holdfast.neural import Network
    from holdfast.neural.topology import parse

    source, steps = EXAMPLES[example]
    graph = parse((ROOT / "examples" / "neural" / f"{example}.yaml").read_text(), example)
    network = Network(replace(graph, seed=seed), profile=profile)
    told = network.train_local(source, steps)
    return {
        "train": windows([m.loss for m in told]),
        "test": network.evaluate(source, 1000),
    }


def reference(example: str, seed: int) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F
    from bench.neural_reference import Digits, Letters, train

    from holdfast.neural.data import load
    from holdfast.neural.topology import parse

    source, steps = EXAMPLES[example]
    graph = parse((ROOT / "examples" / "neural" / f"{example}.yaml").read_text(), example)
    data = load(source, graph)
    held = load(source, graph, "test", data.letters)
    names = ("pixels", "label") if example == "digits" else ("tokens", "next")
    torch.manual_seed(seed)

    def pair(numbers: list[int], of: Any) -> tuple[torch.Tensor, torch.Tensor]:
        found = of.take(numbers)
        x = torch.from_numpy(found[names[0]].copy())
        return (x.float() if example == "digits" else x), torch.from_numpy(found[names[1]].copy())

    def batches() -> Iterator[Any]:
        order: list[int] = []
        for _ in range(steps):
            while len(order) < graph.batch.size:
                order += torch.randperm(data.count).tolist()
            yield pair(order[: graph.batch.size], data)
            del order[: graph.batch.size]

    model = Digits() if example == "digits" else Letters()
    losses: list[float] = []
    train(model, batches(), graph.training, losses.append)
    model.eval()
    x, y = pair(list(range(min(1000, held.count))), held)
    with torch.no_grad():
        scores = model(x)
    right = (scores.argmax(-1) == y).float().mean().item()
    loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1)).item()
    return {"train": windows(losses), "test": {"loss": loss, "right": right}}


def judged(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """How the exact curves lie in the band of two standard deviations round the mean of float32."""
    theirs = list(zip(*(r["train"] for r in runs["f32"]), strict=True))
    mine = list(zip(*(r["train"] for r in runs["exact"]), strict=True))
    centre, width = [mean(w) for w in theirs], [2 * stdev(w) for w in theirs]
    inside = [abs(v - c) <= w for vs, c, w in zip(mine, centre, width, strict=True) for v in vs]
    means = [abs(mean(vs) - c) <= w for vs, c, w in zip(mine, centre, width, strict=True)]
    # What five more seeds of float32 would do: each left out and held against the other four.
    alike = []
    for left in range(len(runs["f32"])):
        for w in theirs:
            rest = [v for i, v in enumerate(w) if i != left]
            alike.append(abs(w[left] - mean(rest)) <= 2 * stdev(rest))
    ends = [r["test"]["loss"] for r in runs["f32"]]
    pairs = zip(runs["exact"], runs["same seeds"], strict=True)
    apart = max(abs(a - b) for one, other in pairs for a, b in zip(one["train"], other["train"], strict=True))
    all_theirs = list(zip(*(r["train"] for r in runs["f32"] + runs.get("more f32", [])), strict=True))
    wider = [abs(mean(vs) - mean(w)) <= 2 * stdev(w) for vs, w in zip(mine, all_theirs, strict=True)]
    return {
        "windows": len(centre),
        "largest difference from float32 with the same seed": apart,
        "mean of exact inside": sum(means) / len(means),
        f"mean of exact inside, by {len(all_theirs[0])} seeds of float32": sum(wider) / len(wider),
        "single exact values inside": sum(inside) / len(inside),
        "single float32 values inside, each against the other four": sum(alike) / len(alike),
        "test loss exact": mean(r["test"]["loss"] for r in runs["exact"]),
        "test loss float32": mean(ends),
        "test loss float32, two standard deviations": 2 * stdev(ends),
        "test right exact": mean(r["test"]["right"] for r in runs["exact"]),
        "test right float32": mean(r["test"]["right"] for r in runs["f32"]),
    }


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

        upper = [(x(i), y(mean(w) + 2 * stdev(w))) for i, w in enumerate(theirs)]
        lower = [(x(i), y(mean(w) - 2 * stdev(w))) for i, w in enumerate(theirs)]
        points = " ".join(f"{a},{b}" for a, b in upper + lower[::-1])
        parts.append(f'<polygon points="{points}" fill="#9bb8d8" opacity="0.6"/>')
        for run in runs["exact"]:
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
        f'<text x="{left}" y="{top + high + 36}">band: float32 in PyTorch, mean ± 2 standard deviations of five seeds; '
        "lines: profile exact, five seeds</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--plot", action="store_true")
    words.add_argument("--seeds", type=int, default=5)
    words.add_argument(
        "--more", type=int, default=8, help="further seeds of PyTorch, to judge how wide five of them say"
    )
    asked = words.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if asked.plot else {}
    if not asked.plot:
        for example in EXAMPLES:
            kept[example] = {"exact": [], "f32": [], "same seeds": []}
            for seed in range(1, asked.seeds + 1):
                kept[example]["f32"].append(reference(example, seed))
                kept[example]["exact"].append(ours(example, seed, "exact"))
                kept[example]["same seeds"].append(ours(example, seed, "f32"))
                print(
                    example,
                    seed,
                    kept[example]["exact"][-1]["train"][-1],
                    kept[example]["f32"][-1]["train"][-1],
                    flush=True,
                )
            kept[example]["more f32"] = [
                reference(example, asked.seeds + 1 + i) for i in range(asked.more if example == "letters" else 0)
            ]
        KEPT.write_text(json.dumps(kept) + "\n")
    PLOT.write_text(plotted(kept))
    for example, runs in kept.items():
        print(example)
        for what, value in judged(runs).items():
            print(f"  {what}: {value:.4g}")


if __name__ == "__main__":
    import sys

    sys.path.insert(0, str(ROOT))
    main()
