"""The same bits under other BLAS kernels, thread counts, vector units and libraries, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.neural import golden
from holdfast.neural.topology import parse

pytestmark = pytest.mark.spec("V5")

CPU = Path("/proc/cpuinfo").read_text()
KERNELS = ["Haswell", "Zen", "Nehalem", "Prescott", *(["SkylakeX"] if "avx512f" in CPU else [])]


def golden_under(backend: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.neural.golden", "--backend", backend],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **env},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{env}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_are_golden_under_every_blas_kernel(kernel: str) -> None:
    told = golden_under("numpy", OPENBLAS_CORETYPE=kernel, OPENBLAS_VERBOSE="2", OPENBLAS_NUM_THREADS="2")
    # The library says which kernels it took: without that line the variable would have had no effect.
    assert "Core: " in told
    assert told.count("same") == len(golden.NETWORKS)


def test_kernels_that_were_asked_for_differ() -> None:
    """Otherwise the tests above would have tried one and the same several times."""
    told: set[str] = set()
    for kernel in ("Haswell", "Nehalem", "Prescott"):
        env = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_VERBOSE": "2"}
        done = subprocess.run(
            [sys.executable, "-c", "import numpy"], env=env, capture_output=True, text=True, timeout=60
        )
        told.add((done.stdout + done.stderr).partition("Core: ")[2].strip())
    assert len(told) == 3, told


def test_weights_are_golden_without_wide_vector_units() -> None:
    assert golden_under("numpy", NPY_DISABLE_CPU_FEATURES="X86_V3").count("same") == len(golden.NETWORKS)


@pytest.mark.parametrize(("threads", "capability"), [("1", "default"), ("2", "avx2")])
def test_weights_are_golden_on_torch(threads: str, capability: str) -> None:
    told = golden_under("torch", OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, ATEN_CPU_CAPABILITY=capability)
    assert told.count("same") == len(golden.NETWORKS)


def test_golden_networks_use_every_operator_and_optimizer() -> None:
    from holdfast.neural.operators import OPERATORS

    graphs = [parse(text) for text in golden.NETWORKS.values()]
    assert {n.operator.kind for g in graphs for n in g.nodes} == set(OPERATORS)
    assert {g.training.kind for g in graphs} == {"sgd", "momentum", "adamw"}


def test_another_seed_gives_other_weights() -> None:
    other = golden.weights_after(golden.LONG.replace("seed: 13", "seed: 14"), "numpy", steps=1)
    assert other != golden.weights_after(golden.LONG, "numpy", steps=1)
