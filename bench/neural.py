"""Speed of exact arithmetic, and the cost and detection rate of checks.

    python bench/neural.py [--backend cpu|cuda] [--part speed|products|checks] [--width N] [--on numpy|torch] [--json]

speed     tokens/s of whole training steps of a transformer: profile exact with and without fusion, profile f32 on
          the same operators, and PyTorch's own float32 with autograd (no TF32). CPU: one thread, tokens per second
          of processor time.
products  single matrix products: exact (rounding included) against float32.
checks    Freivalds' test as a share of the product it checks; detection rates of several cheats.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np  # noqa: E402

from holdfast.neural import exact, golden  # noqa: E402
from holdfast.neural.arrays import NumpyArrays, arrays  # noqa: E402
from holdfast.neural.cheats import CHEATS, honest  # noqa: E402
from holdfast.neural.checks import freivalds  # noqa: E402
from holdfast.neural.network import NeuralNetwork  # noqa: E402

Row = dict[str, Any]
SIZES = {
    "cpu": [
        {"width": 512, "heads": 8, "gates": 2816, "depth": 2, "positions": 128, "batch": 8},
        {"width": 1024, "heads": 16, "gates": 5632, "depth": 1, "positions": 128, "batch": 16},
        {"width": 2048, "heads": 16, "gates": 11264, "depth": 1, "positions": 128, "batch": 16},
    ],
    "cuda": [
        {"width": 2048, "heads": 16, "gates": 11264, "depth": 4, "positions": 1024, "batch": 8},
        {"width": 4096, "heads": 32, "gates": 22528, "depth": 2, "positions": 512, "batch": 16},
    ],
}
TRIALS = 2_000


def network_text(size: dict[str, int]) -> str:
    return f"""
name: speed
batch: {{size: {size["batch"]}, microbatches: 1}}
inputs:
  tokens: {{shape: [{size["positions"]}], below: 256}}
  next: {{shape: [{size["positions"]}], below: 256}}
nodes:
  - {{name: embed, op: embedding, from: tokens, width: {size["width"]}}}
  - repeat: {size["depth"]}
    name: block
    nodes:
      - {{name: norm1, op: rmsnorm, from: input}}
      - {{name: look, op: attention, heads: {size["heads"]}}}
      - {{name: drop1, op: dropout, rate: 0.1}}
      - {{name: middle, op: add, from: [input, drop1]}}
      - {{name: norm2, op: rmsnorm}}
      - {{name: gates, op: linear, width: {size["gates"]}, bias: false}}
      - {{name: gated, op: swiglu}}
      - {{name: back, op: linear, width: {size["width"]}, bias: false}}
      - {{name: drop2, op: dropout, rate: 0.1}}
      - {{name: out, op: add, from: [middle, drop2]}}
  - {{name: norm, op: layernorm}}
  - {{name: scores, op: tied_head, rows: 256, share: {{weight: embed.weight}}}}
losses:
  - {{name: loss, op: cross_entropy, from: [scores, next]}}
outputs: [scores]
optimizer: {{kind: adamw, rate: 1e-4, clip: 1.0}}
"""


def timed(work: Callable[[], Any], times: int, device: str) -> float:
    """Seconds per call: processor time on the CPU, wall clock on a device."""
    found: list[float] = []
    for _ in range(times + 1):
        settle(device)
        start = time.perf_counter() if device == "cuda" else time.process_time()
        work()
        settle(device)
        found.append((time.perf_counter() if device == "cuda" else time.process_time()) - start)
    return median(found[1:])


def settle(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def speed(device: str, times: int, width: int | None, on: str | None) -> list[Row]:
    """For every size and backend, or for those requested."""
    sizes = [size for size in SIZES[device] if width in (None, size["width"])]
    backends = [name for name in (["numpy", "torch"] if device == "cpu" else ["cuda"]) if on in (None, name)]
    return [row for size in sizes for row in speed_of(size, device, times, backends)]


def speed_of(size: dict[str, int], device: str, times: int, backends: list[str]) -> list[Row]:
    import torch
    from bench.neural_reference import Letters, train

    torch.backends.cuda.matmul.allow_tf32 = False
    tokens = size["batch"] * size["positions"]
    rows: list[Row] = []
    for backend in backends:
        for what in ("exact", "exact, not fused", "f32", "bf16"):
            profile = what.partition(",")[0]
            network = NeuralNetwork.from_text(network_text(size), "speed", backend, profile)
            network.ar.xp.fuses = what == profile
            batch = golden.data_for(network.graph, size["batch"]).take(list(range(size["batch"])))
            seconds = timed(lambda n=network, b=batch: n.trainer.step(b), times, device)
            rows.append(
                {
                    "width": size["width"],
                    "what": f"Holdfast {what}",
                    "on": backend,
                    "tokens/s": round(tokens / seconds),
                }
            )
            del network
            if device == "cuda":
                torch.cuda.empty_cache()
    graph = NeuralNetwork.from_text(network_text({**size, "width": 64, "gates": 64, "heads": 1})).graph
    taken = golden.data_for(graph, size["batch"]).take(list(range(size["batch"])))
    model = Letters(256, size["width"], size["heads"], size["gates"], size["depth"]).to(device)
    pair = tuple(torch.from_numpy(taken[n].copy()).to(device) for n in ("tokens", "next"))
    seconds = timed(lambda: train(model, [pair], graph.training, lambda _: None), times, device)
    rows.append({"width": size["width"], "what": "PyTorch float32", "on": device, "tokens/s": round(tokens / seconds)})
    return rows


def products(device: str, times: int, width: int | None, on: str | None) -> list[Row]:
    rows: list[Row] = []
    cases = [(1024, 512, 2048), (2048, 2048, 2048)] if device == "cpu" else [(8192, 2048, 8192), (8192, 8192, 8192)]
    for backend in [name for name in (["numpy", "torch"] if device == "cpu" else ["cuda"]) if on in (None, name)]:
        xp: NumpyArrays = arrays(backend)
        for m, k, n in [case for case in cases if width in (None, case[1])]:
            rng = np.random.default_rng(1)
            a, b = xp.real(rng.normal(size=(m, k))), xp.real(rng.normal(size=(k, n)))
            fa, fb = xp.cast(a, "float32"), xp.cast(b, "float32")
            qa, qb = exact.quantise(xp, a, -1)[0], exact.quantise(xp, b, -2)[0]
            one = timed(lambda xp=xp, a=a, b=b: exact.product(xp, a, b), times, device)
            bare = timed(lambda xp=xp, a=qa, b=qb: xp.matmul(a, b), times, device)
            other = timed(lambda xp=xp, a=fa, b=fb: xp.matmul(a, b), times, device)
            flops = 2e-9 * m * k * n
            rows.append(
                {
                    "M×K×N": f"{m}×{k}×{n}", "on": backend, "exact GFLOP/s": round(flops / one, 1),
                    "float64 alone": round(flops / bare, 1), "float32": round(flops / other, 1),
                    "exact / float32": round(other / one, 2),
                }
            )  # fmt: skip
    return rows


def checks(times: int) -> list[Row]:
    rows: list[Row] = []
    rng = np.random.default_rng(1)
    for m, k, n in ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 1024)):
        a, b = rng.normal(size=(m, k)), rng.normal(size=(k, n))
        qa, qb, c = honest(a, b)
        work = timed(lambda a=a, b=b: honest(a, b), times, "cpu")
        test = timed(lambda a=qa, b=qb, c=c: freivalds(a, b, c, "challenge"), times, "cpu")
        rows.append(
            {
                "M×K×N": f"{m}×{k}×{n}", "product ms": round(work * 1e3, 1), "check ms": round(test * 1e3, 1),
                "share": f"{100 * test / work:.1f} %",
            }
        )  # fmt: skip
    for name, cheat in CHEATS.items():
        found = 0
        for trial in range(TRIALS):
            qa, qb, c = honest(rng.normal(size=(8, 24)), rng.normal(size=(24, 6)))
            found += not freivalds(qa, qb, cheat(qa, qb, c, rng), f"{name}/{trial}")
        rows.append({"cheat": name, "tries": TRIALS, "found": found})
    return rows


def show(rows: list[Row]) -> None:
    head: list[str] = []
    for row in rows:
        if list(row) != head:
            head = list(row)
            print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        print("| " + " | ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()) + " |", flush=True)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--part", choices=("speed", "products", "checks"))
    words.add_argument("--times", type=int, default=3)
    words.add_argument("--width", type=int, help="speed and products of this size only")
    words.add_argument("--on", choices=("numpy", "torch"), help="speed and products on this backend only")
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    found: dict[str, list[Row]] = {}
    for part in [asked.part] if asked.part else ["products", "speed", *(["checks"] if asked.backend == "cpu" else [])]:
        if part == "checks":
            found[part] = checks(asked.times)
        elif part == "speed":
            found[part] = speed(asked.backend, asked.times, asked.width, asked.on)
        else:
            found[part] = products(asked.backend, asked.times, asked.width, asked.on)
        if not asked.json:
            show(found[part])
    if asked.json:
        json.dump(found, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
