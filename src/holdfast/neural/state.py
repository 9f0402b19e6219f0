"""The state of a stage between steps: weights and the optimizer's moments. As a value, a hash and a file.

The content hash covers names, types, shapes and bytes, ordered by name; it does not depend on the layout of a file. The
file format is safetensors; content read from a file is verified before it is used.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.durable import durable_write
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, NumpyArrays
from holdfast.neural.graph import Graph
from holdfast.neural.refusals import MissingPart, StateError
from holdfast.parts import install_hint

FIRST, SECOND = "moment1/", "moment2/"


@dataclass(frozen=True)
class State:
    """Tensors by name (`node.weight`, `moment1/node.weight`, …) after `step` steps. Never changed in place."""

    tensors: Mapping[str, Array]
    step: int = 0

    def part(self, weights: Iterable[str]) -> "State":
        """Only these weights, with their moments."""
        wanted = {prefix + name for name in weights for prefix in ("", FIRST, SECOND)}
        return State({k: v for k, v in self.tensors.items() if k in wanted}, self.step)

    def weights(self) -> dict[str, Array]:
        return {k: v for k, v in self.tensors.items() if not k.startswith((FIRST, SECOND))}

    @staticmethod
    def join(parts: Iterable["State"]) -> "State":
        tensors: dict[str, Array] = {}
        step = 0
        for part in parts:
            tensors.update(part.tensors)
            step = max(step, part.step)
        return State(tensors, step)


def fresh(graph: Graph, ar: Arithmetic) -> State:
    """Initial weights, drawn from the neural network's seed and each weight's name; moments are zero."""
    tensors: dict[str, Array] = {}
    for name, parameter in graph.parameters.items():
        if parameter.reach:
            drawn = ar.uniform(f"{graph.seed}/first/{name}", parameter.size)
            tensors[name] = ((drawn * 2.0 - 1.0) * parameter.reach).reshape(parameter.shape)
        else:
            tensors[name] = ar.zeros(parameter.shape) + parameter.fill
    return State({**tensors, **_moments(graph, ar)}, 0)


def _moments(graph: Graph, ar: Arithmetic) -> dict[str, Array]:
    prefixes = {"sgd": (), "momentum": (FIRST,), "adamw": (FIRST, SECOND)}[graph.training.kind]
    return {prefix + name: ar.zeros(p.shape) for prefix in prefixes for name, p in graph.parameters.items()}


def digest(xp: NumpyArrays, tensors: Mapping[str, Array]) -> str:
    """SHA-256 of named arrays."""
    hasher = sha256()
    for name in sorted(tensors):
        host = np.ascontiguousarray(xp.host(tensors[name]))
        little = host.astype(host.dtype.newbyteorder("<"), copy=False)
        hasher.update(f"{name}\0{little.dtype.str}\0{','.join(map(str, host.shape))}\0".encode())
        hasher.update(little.tobytes())
    return hasher.hexdigest()


@dataclass(frozen=True)
class TrainingCheckpoint:
    """A state with the position of the training."""

    state: State
    network: str
    """The graph's digest."""
    cursor: int = 0
    about: dict[str, str] = field(default_factory=dict[str, str])


def _library() -> Any:
    try:
        import safetensors.numpy as library
    except ImportError as missing:
        raise MissingPart(
            "files of weights need safetensors, which is not installed", hint=install_hint("neural")
        ) from missing
    return library


def save(path: Path, checkpoint: TrainingCheckpoint, xp: NumpyArrays) -> str:
    """Write a checkpoint durably; returns its content hash."""
    library = _library()
    host = {k: np.ascontiguousarray(xp.host(v)) for k, v in checkpoint.state.tensors.items()}
    content = digest(xp, checkpoint.state.tensors)
    told = {
        **checkpoint.about,
        "step": str(checkpoint.state.step),
        "cursor": str(checkpoint.cursor),
        "network": checkpoint.network,
        "sha256": content,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        durable_write(path, library.save(host, metadata=told))
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}") from None
    return content


def load(path: Path, graph: Graph, ar: Arithmetic) -> TrainingCheckpoint:
    """Read a checkpoint of this neural network, and verify that it is complete and fits."""
    library = _library()
    try:
        data = path.read_bytes()
        told = _metadata(data)
        host: dict[str, Any] = library.load(data)
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:
        raise StateError(f"{path} is no file of weights: {' '.join(str(error).split())[:200]}") from None
    _check_fit(path, graph, host, ar)
    tensors = {k: ar.real(v) for k, v in host.items()}
    if told.get("sha256") != digest(NumpyArrays(), host):
        raise StateError(f"{path} was altered or cut short: its content does not have the hash it names")
    if not (told.get("step", "").isdigit() and told.get("cursor", "").isdigit()):
        raise StateError(f"{path} does not say at which step it was taken")
    return TrainingCheckpoint(State(tensors, int(told["step"])), told.get("network", ""), int(told["cursor"]), told)


def _metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    return {str(k): str(v) for k, v in header.get("__metadata__", {}).items()}


def _check_fit(path: Path, graph: Graph, host: Mapping[str, Any], ar: Arithmetic) -> None:
    wanted = {name: p.shape for name, p in graph.parameters.items()}
    wanted |= {k: tuple(v.shape) for k, v in _moments(graph, ar).items()}
    for name, shape in wanted.items():
        if name not in host:
            raise StateError(f"{path} has no tensor {name}", hint="Is it a checkpoint of another neural network?")
        if tuple(host[name].shape) != shape:
            raise StateError(f"{path}: tensor {name} is {tuple(host[name].shape)}; this neural network needs {shape}")
        if str(host[name].dtype) != ar.dtype:
            raise StateError(f"{path}: tensor {name} is {host[name].dtype}; profile {ar.profile} needs {ar.dtype}")
        if not np.isfinite(host[name]).all():
            raise StateError(f"{path}: tensor {name} holds numbers that are infinite or not numbers")
    for name in host:
        if name not in wanted:
            raise StateError(f"{path} has a tensor {name}, which this neural network does not have")
