"""Training data: samples by number, in an order that the seed and a cursor determine.

The cursor counts the samples taken since the beginning; with the seed it determines the next ones, also after a restart
and on another machine. Values are checked against the inputs of the neural network before they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from holdfast.neural import counter
from holdfast.neural.arrays import NumpyArrays
from holdfast.neural.graph import Graph
from holdfast.neural.refusals import DataError, MissingPart

Host = Any
"""A NumPy array."""
BYTES_MAX = 1 << 30


@dataclass
class Data:
    """Arrays by the name of the input they feed; the first axis is the sample's number."""

    arrays: Mapping[str, Host]
    letters: str = ""
    """For text: the letter of each index."""
    _orders: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])

    @property
    def count(self) -> int:
        return min((len(a) for a in self.arrays.values()), default=0)

    def take(self, numbers: list[int]) -> dict[str, Host]:
        return {name: a[np.array(numbers, dtype=np.int64)] for name, a in self.arrays.items()}

    def batch(self, seed: int, cursor: int, size: int) -> dict[str, Host]:
        """The `size` samples after `cursor`: every pass over the data has its own order."""
        numbers: list[int] = []
        n = self.count
        for at in range(cursor, cursor + size):
            turn, place = divmod(at, n)
            if (seed, turn) not in self._orders:
                self._orders.clear()
                self._orders[(seed, turn)] = counter.order(NumpyArrays(), f"{seed}/data/{turn}", n)
            numbers.append(self._orders[(seed, turn)][place])
        return self.take(numbers)


class TextData(Data):
    """Windows of a text: `tokens`, and at the same positions `next`, the following letter. Cut on demand."""

    def __init__(self, codes: Host, length: int, letters: str) -> None:
        super().__init__({}, letters)
        self._codes = codes
        self._length = length

    @property
    def count(self) -> int:
        return max(len(self._codes) - self._length, 0)

    def take(self, numbers: list[int]) -> dict[str, Host]:
        at = np.array(numbers, dtype=np.int64)[:, None] + np.arange(self._length + 1)[None, :]
        windows = self._codes[at]
        return {"tokens": windows[:, :-1], "next": windows[:, 1:]}


def fit(graph: Graph, data: Data) -> None:
    """Reject data that does not fit this neural network."""
    if data.count == 0:
        raise DataError("the data holds no sample", hint="A text must be longer than the neural network's sequence.")
    sample = data.take([0, data.count - 1])
    for name, signal in graph.inputs.items():
        if name not in sample:
            raise DataError(f"the neural network has an input {name}, and the data has {', '.join(sorted(sample))}")
        given = sample[name]
        if tuple(given.shape[1:]) != signal.shape:
            raise DataError(f"input {name} takes samples of shape {signal.shape}, and the data's are {given.shape[1:]}")
        whole = np.issubdtype(given.dtype, np.integer)
        if signal.is_index and not whole:
            raise DataError(f"input {name} takes indices, and the data holds {given.dtype}")
        full = data.arrays.get(name)
        if full is not None and signal.is_index and (full.min() < 0 or full.max() >= signal.below):
            raise DataError(f"input {name} takes indices below {signal.below}; the data goes up to {full.max()}")
        if full is not None and not signal.is_index and not np.isfinite(full).all():
            raise DataError(f"the data for input {name} holds numbers that are infinite or not numbers")
    if data.letters and len(data.letters) > graph.inputs["tokens"].below:
        below = graph.inputs["tokens"].below
        raise DataError(
            f"the text has {len(data.letters)} different letters, and input tokens takes {below}",
            hint="Raise `below` of the inputs and `rows` or `width` of the head.",
        )


def load(source: str, graph: Graph, part: str = "train", letters: str = "") -> Data:
    """Data by its name on the command line: `digits`, an .npz file, or any other file as text.

    `part` is `train` or `test`: every fifth sample of digits is for testing, and the last tenth of a text.
    """
    if source == "digits":
        data = _digits(part)
    elif source.endswith(".npz"):
        data = _npz(Path(source))
    else:
        data = _text(Path(source), graph, part, letters)
    fit(graph, data)
    return data


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise DataError(f"{path} is larger than {BYTES_MAX >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def text_of(raw: bytes, length: int, letters: str = "") -> TextData:
    """A text as windows. Letters are numbered in sorted order, or as in an earlier training."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError("the text is not UTF-8") from None
    known = letters or "".join(sorted(set(text)))
    table = {letter: i for i, letter in enumerate(known)}
    unknown = sorted(set(text) - table.keys())
    if unknown:
        raise DataError(f"the text has letters that the neural network was not trained on: {''.join(unknown[:20])!r}")
    return TextData(np.array([table[letter] for letter in text], dtype=np.int64), length, known)


def _text(path: Path, graph: Graph, part: str, letters: str) -> TextData:
    for name in ("tokens", "next"):
        if name not in graph.inputs or len(graph.inputs[name].shape) != 1:
            raise DataError(f"text feeds the inputs tokens and next, of one axis each; {graph.name} has no such {name}")
    whole = text_of(_read(path), graph.inputs["tokens"].shape[0], letters)
    codes: Host = whole._codes  # pyright: ignore[reportPrivateUsage]
    cut = len(codes) * 9 // 10
    return TextData(codes[:cut] if part == "train" else codes[cut:], graph.inputs["tokens"].shape[0], whole.letters)


def _digits(part: str) -> Data:
    try:
        import sklearn.datasets as library  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as missing:
        raise MissingPart(
            "the digits come with scikit-learn, which is not installed", hint="pip install scikit-learn"
        ) from missing
    given: Any = library.load_digits()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    pixels, label = np.asarray(given.data, dtype=np.float64) * 0.0625, np.asarray(given.target, dtype=np.int64)
    mine = (np.arange(len(label)) % 5 == 0) == (part == "test")
    return Data({"pixels": pixels[mine], "label": label[mine]})


def _npz(path: Path) -> Data:
    _read(path)
    try:
        with np.load(path, allow_pickle=False) as given:
            arrays: dict[str, Host] = {name: given[name] for name in given.files}
    except (OSError, ValueError, EOFError, BadZipFile, AttributeError) as error:
        raise DataError(f"{path} is no .npz file: {' '.join(str(error).split())[:200]}") from None
    if len({len(a) for a in arrays.values()}) > 1:
        raise DataError(f"{path}: the arrays differ in their number of samples")
    return Data(arrays)
