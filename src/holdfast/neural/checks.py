"""Verifies a worker's results for less than recomputing them: Merkle roots over inner products, Freivalds' test.

A worker commits to the results of all its products (`Transcript.root`) before it knows which will be checked. The
verifier then replays the stage, taking the products' results from the worker instead of computing them, and tests a
sample of them: C·r = A·(B·r) for a random vector r. The operands are the verifier's own, recomputed elementwise.

The test is over the integers. Quantised operands are integers times powers of two, so C is one too; r is drawn
from 0 … 2^19−1; sums that outgrow 53 bits are kept in limbs of 19 bits. A wrong C passes with probability at most
2^-19 for each round, whatever the error is. (Modulo a fixed prime, an error that is a multiple of it would pass.)
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from holdfast.neural import counter, exact
from holdfast.neural.arithmetic import Arithmetic
from holdfast.neural.arrays import Array, NumpyArrays
from holdfast.neural.refusals import NeuralError
from holdfast.neural.stage import Stage, StageKey
from holdfast.neural.state import State, digest

LIMB = 19
_BASE = 2.0**LIMB
_CACHED = 32_768
"""Entries of C that are processed at a time."""
_CHUNK = 8192
"""The number of products of a 20-bit and a 19-bit integer whose sum stays exact, with a margin."""
Host = Any


# --- commitments ---


def _leaf(number: int, operator: str, label: str, c: Host) -> bytes:
    content = digest(NumpyArrays(), {"c": c})
    return sha256(b"\0" + f"{number}\0{operator}\0{label}\0{content}".encode()).digest()


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        row = levels[-1]
        pairs = [sha256(b"\1" + row[i] + row[i + 1]).digest() for i in range(0, len(row) - 1, 2)]
        levels.append(pairs + ([row[-1]] if len(row) % 2 else []))
    return levels


def merkle_root(leaves: Sequence[bytes]) -> str:
    """The root of a tree whose leaves and inner nodes are hashed differently; an odd node at the end moves up."""
    count = len(leaves).to_bytes(8, "big")
    top = _levels(leaves)[-1][0] if leaves else b""
    return sha256(b"\2" + count + top).hexdigest()


def merkle_path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that are needed beside a leaf to compute the root."""
    path: list[bytes] = []
    for row in _levels(leaves)[:-1]:
        beside = index ^ 1
        if beside < len(row):
            path.append(row[beside])
        index //= 2
    return path


def opens(root: str, count: int, index: int, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Whether a tree of `count` leaves with this root has this leaf at this index."""
    if not 0 <= index < count:
        return False
    rest, width, at, value = list(path), count, index, leaf
    while width > 1:
        if at ^ 1 < width:
            if not rest:
                return False
            beside = rest.pop(0)
            value = sha256(b"\1" + (beside + value if at % 2 else value + beside)).digest()
        at, width = at // 2, (width + 1) // 2
    return not rest and sha256(b"\2" + count.to_bytes(8, "big") + value).hexdigest() == root


@dataclass
class Transcript:
    """The results of a stage's products, in order, as delivered by its worker."""

    claims: list[tuple[str, str, Host]] = field(default_factory=list[tuple[str, str, Host]])
    xp: NumpyArrays = field(default_factory=NumpyArrays)

    def saw(self, operator: str, label: str, a: Array, b: Array, c: Array) -> None:
        self.claims.append((operator, label, np.ascontiguousarray(self.xp.host(c)).copy()))

    def leaves(self) -> list[bytes]:
        return [_leaf(i, operator, label, c) for i, (operator, label, c) in enumerate(self.claims)]

    def root(self) -> str:
        return merkle_root(self.leaves())


# --- Freivalds ---


def _limbs(v: Host, count: int) -> list[Host]:
    """Integers as sums of limbs times powers of 2^19; all but the last are in 0 … 2^19−1."""
    found: list[Host] = []
    for _ in range(count - 1):
        found.append((v & (2**LIMB - 1)).astype(np.float64))
        v = v >> LIMB
    return [*found, v.astype(np.float64)]


def _apply(a: Host, v: Host, scale: Host | float = 1.0) -> Host:
    """a·v times a power of two, if that is integers: in chunks short enough to be exact, as 64-bit integers."""
    total = np.zeros((a.shape[0], v.shape[1]), dtype=np.int64)
    for start in range(0, a.shape[1], _CHUNK):
        part = np.matmul(a[:, start : start + _CHUNK], v[start : start + _CHUNK]) * scale
        if not bool((np.rint(part) == part).all()):
            raise NeuralError("Freivalds' test needs quantised operands")
        total += part.astype(np.int64)
    return total


def _lines(x: Host, axis: int) -> Host:
    """2^-e for each line of a quantised operand: its entries times that are integers of at most 2^20."""
    xp = NumpyArrays()
    magnitude = xp.magnitude(x, axis)
    if not bool(exact.in_range(xp, magnitude)):
        raise NeuralError("Freivalds' test needs operands that are finite numbers")
    e = exact.exponents(xp, magnitude, exact.BITS + 1)
    return exact.power_of_two(xp, -e)


def freivalds(a: Host, b: Host, c: Host, challenge: str) -> bool:
    """Whether c is the product of the quantised operands a and b. A wrong c passes with probability at most 2^-19."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if k > exact.BLOCK_K:
        raise NeuralError("Freivalds' test needs sums of at most 8192 terms")
    if c.shape != (*batch, m, n):
        return False
    drawn = counter.words(NumpyArrays(), challenge, n) >> (32 - LIMB)
    r = drawn.reshape(n, 1).astype(np.float64)
    left = np.broadcast_to(a, (*batch, m, k)).reshape(-1, m, k)
    right = np.broadcast_to(b, (*batch, k, n)).reshape(-1, k, n)
    return all(_holds(*three, r) for three in zip(left, right, c.reshape(-1, m, n), strict=True))


def _holds(a: Host, b: Host, c: Host, r: Host) -> bool:
    """One matrix product. A and B are only read; C is processed in groups of rows that stay in the cache."""
    down, across = _lines(a, -1), _lines(b, -2)
    # The scales of columns go into r and those of rows into the result: powers of two change no digit.
    v = _apply(b, r * across.reshape(-1, 1))
    want = _apply(a, np.concatenate(_limbs(v, 4), axis=-1), down)
    step = max(1, _CACHED // max(c.shape[-1], 1))
    for start in range(0, c.shape[0], step):
        rows = slice(start, start + step)
        with np.errstate(all="ignore"):
            scaled = c[rows] * down[rows]
            scaled *= across
            # Also false for Inf and NaN. No correct result is larger.
            if not bool(NumpyArrays().all_below(scaled, 2.0**53 + 1)) or not bool((np.rint(scaled) == scaled).all()):
                return False
        # The high part first, then the rest: each fits its limb as a signed integer.
        high = np.rint(scaled * (1.0 / _BASE**2))
        scaled -= high * _BASE**2
        mid = np.rint(scaled * (1.0 / _BASE))
        scaled -= mid * _BASE
        difference = -want[rows]
        for limb, part in enumerate((scaled, mid, high)):
            difference[:, limb : limb + 1] += _apply(part, r)
        if not _is_zero(difference):
            return False
    return True


def _is_zero(limbs: Host) -> bool:
    """Whether numbers given as four limbs of 19 bits, not yet carried, are all zero."""
    carry = np.zeros(limbs.shape[0], dtype=np.int64)
    for limb in range(4):
        carry = carry + limbs[:, limb]
        if limb < 3:
            if bool((carry & (2**LIMB - 1)).any()):
                return False
            carry = carry >> LIMB
    return not bool(carry.any())


# --- the audit of a stage ---


@dataclass(frozen=True)
class CheckVerdict:
    """Whether the work is accepted; if not, at which product it failed, and why."""

    holds: bool
    why: str = ""
    operator: str = ""
    checked: int = 0


class _Caught(Exception):
    def __init__(self, operator: str, why: str) -> None:
        super().__init__(why)
        self.operator = operator
        self.why = why


class Replay(Arithmetic):
    """Exact arithmetic that takes products from a transcript, and tests those that the challenge selects."""

    def __init__(self, transcript: Transcript, challenge: str, share: float) -> None:
        super().__init__(NumpyArrays())
        self._claims = transcript.claims
        self._challenge = challenge
        self._next = 0
        self.checked = 0
        drawn = counter.uniform(self.xp, f"{challenge}/pick", max(len(self._claims), 1))
        self._picked = [bool(d < share) for d in drawn.tolist()]

    @property
    def observed(self) -> bool:
        return True

    def _multiply_noted(self, left: Array, right: Array, operator: str, label: str) -> Array:
        number = self._next
        if number >= len(self._claims):
            raise _Caught(operator, "the transcript has too few products")
        claimed_operator, claimed_label, c = self._claims[number]
        self._next += 1
        if (claimed_operator, claimed_label) != (operator, label):
            raise _Caught(operator, f"the transcript has {claimed_operator}/{claimed_label} instead of {label}")
        shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        if c.shape != shape or c.dtype != np.float64:
            raise _Caught(operator, f"product {label} has another shape or type")
        if self._picked[number]:
            self.checked += 1
            if not freivalds(left, right, c, f"{self._challenge}/{number}"):
                raise _Caught(operator, f"product {label} is wrong")
        return c.copy()

    @property
    def complete(self) -> bool:
        return self._next == len(self._claims)


def audit(
    stage: Stage, state: State, inputs: Mapping[str, Host], key: StageKey, transcript: Transcript, root: str,
    outputs: Mapping[str, Host], *, share: float = 1.0, challenge: str | None = None,
) -> CheckVerdict:  # fmt: skip
    """Whether a worker's outputs of a stage follow from its inputs, by its transcript, which `root` committed to.

    The challenge must be drawn after the root is known; by default it is drawn here.
    """
    if transcript.root() != root:
        return CheckVerdict(False, "the products handed over are not those committed to")
    ar = Replay(transcript, challenge or secrets.token_hex(16), share)
    try:
        mine = stage.run(ar, state, inputs, key).outputs
    except _Caught as caught:
        return CheckVerdict(False, caught.why, caught.operator, ar.checked)
    except NeuralError as error:
        return CheckVerdict(False, error.says, checked=ar.checked)
    if not ar.complete:
        return CheckVerdict(False, "the transcript has products that nobody needs", checked=ar.checked)
    xp = NumpyArrays()
    for name in mine:
        if name not in outputs or digest(xp, {"": mine[name]}) != digest(xp, {"": outputs[name]}):
            return CheckVerdict(False, f"output {name} is wrong", name, ar.checked)
    return CheckVerdict(True, checked=ar.checked)


def cheaper_to_check(m: int, k: int, n: int, *, flops_s: float, bytes_s: float, link_bytes_s: float) -> bool:
    """Whether testing an M×K by K×N product costs less than computing it: its result must be transferred and read.

    Freivalds' test reads B once, A once (against four limbs) and C about twelve times; matrix-vector work is limited by
    memory bandwidth. Recomputing costs 2·M·K·N operations and transfers nothing.
    """
    check_s = 8.0 * (k * n + m * k + 12 * m * n) / bytes_s + 8.0 * m * n / link_bytes_s
    return check_s < 2.0 * m * k * n / flops_s
