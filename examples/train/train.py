"""Trains a small neural network, saves its state as it goes, and goes on where it was when it is started again.

    holdfast run --checkpoint-every 10s -- python3 train.py --steps 2000

The task: tell apart the points of two spirals. The network: two inputs, one layer of tanh units, one output; plain
Python, no package needed. All that the next step depends on is in the state, the random numbers included, so a run
that was interrupted has the same losses as one that was not, to the last digit. It leaves loss.csv and model.json.
"""

import argparse
import json
import math
import random

from holdfast import checkpoint

HIDDEN = 16
BATCH = 24
RATE = 0.08
MOMENTUM = 0.9


def spirals(count):
    """Points of two spirals, each with the name of its spiral: -1 or 1."""
    points = []
    for number in range(count):
        turn = 0.3 + 1.7 * math.pi * number / count
        for side in (-1.0, 1.0):
            points.append((side * turn * math.cos(turn) / 6, side * turn * math.sin(turn) / 6, side))
    return points


def beginning(seed):
    source = random.Random(seed)
    size = 4 * HIDDEN + 1
    weights = [source.uniform(-1.0, 1.0) for _ in range(size)]
    return {"step": 0, "weights": weights, "speed": [0.0] * size, "random": source.getstate(), "curve": []}


def loss_and_gradient(weights, batch):
    """Mean squared error over the batch, and its derivative by every weight: two inputs, a bias and an output each."""
    gradient = [0.0] * len(weights)
    total = 0.0
    for x, y, wanted in batch:
        layer = [math.tanh(weights[4 * n] * x + weights[4 * n + 1] * y + weights[4 * n + 2]) for n in range(HIDDEN)]
        answer = weights[-1] + sum(weights[4 * n + 3] * unit for n, unit in enumerate(layer))
        error = answer - wanted
        total += error * error
        slope = 2 * error / len(batch)
        gradient[-1] += slope
        for n, unit in enumerate(layer):
            inner = slope * weights[4 * n + 3] * (1 - unit * unit)
            gradient[4 * n] += inner * x
            gradient[4 * n + 1] += inner * y
            gradient[4 * n + 2] += inner
            gradient[4 * n + 3] += slope * unit
    return total / len(batch), gradient


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=float, default=1.0, metavar="SECONDS")
    asked = parser.parse_args()

    points = spirals(150)
    state = checkpoint.load() or beginning(asked.seed)
    source = random.Random()
    source.setstate(state["random"])
    if state["step"]:
        print(f"# goes on at step {state['step']}", flush=True)

    while state["step"] < asked.steps:
        loss, gradient = loss_and_gradient(state["weights"], source.sample(points, BATCH))
        state["speed"] = [MOMENTUM * v - RATE * g for v, g in zip(state["speed"], gradient, strict=True)]
        state["weights"] = [w + v for w, v in zip(state["weights"], state["speed"], strict=True)]
        state["curve"].append(loss)
        print(state["step"], loss, flush=True)
        state["step"] += 1
        state["random"] = source.getstate()
        checkpoint.save(state, every_s=asked.save_every)

    with open("loss.csv", "w") as file:
        file.writelines(f"{step},{loss!r}\n" for step, loss in enumerate(state["curve"]))
    with open("model.json", "w") as file:
        json.dump({"hidden": HIDDEN, "weights": state["weights"]}, file)


if __name__ == "__main__":
    main()
