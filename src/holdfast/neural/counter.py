"""Counter-based random bits: a draw depends on its key and its index alone, never on earlier draws.

The generator is Philox4x32 with ten rounds (Salmon et al., 2011), in 64-bit integer operations that every
backend has. A key is a text such as `job/step/operator/microbatch`; its SHA-256 gives 64 bits of key and 64
bits of the counter. This module knows nothing about neural networks.
"""

from hashlib import sha256
from math import prod

from holdfast.neural.arrays import Array, NumpyArrays

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_BUMP = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Four 32-bit words (as 64-bit integers) for each four-word counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product wraps at 2^64 as a signed number, but its 64 bits are correct.
        p0, p1 = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _BUMP[0]) & _MASK, (k1 + _BUMP[1]) & _MASK
    return c0, c1, c2, c3


def _halves(key: str) -> tuple[int, int, int, int]:
    """Two words of key and two of the counter."""
    digest = sha256(key.encode()).digest()
    k0, k1, high0, high1 = (int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(4))
    return k0, k1, high0, high1


def _four(
    xp: NumpyArrays, blocks: Array, k0: int, k1: int, high0: int, high1: int
) -> tuple[Array, Array, Array, Array]:
    """The four words of each block."""
    still = blocks * 0
    return philox((blocks & _MASK, blocks >> 32, still + high0, still + high1), (k0, k1))


def words(xp: NumpyArrays, key: str, count: int) -> Array:
    """`count` random 32-bit words for this key, as 64-bit integers."""
    four = xp.each(_four, xp.count((count + 3) // 4), scalars=_halves(key))
    return xp.join([w[:, None] for w in four], 1).reshape(-1)[:count]


def at_least(xp: NumpyArrays, key: str, shape: tuple[int, ...], bound: int) -> Array:
    """For each element of an array of this shape, whether its word is `bound` or more."""

    def reach(xp: NumpyArrays, blocks: Array, *halves: int) -> tuple[Array, ...]:
        return tuple(word >= bound for word in _four(xp, blocks, *halves))

    count = prod(shape)
    four = xp.each(reach, xp.count((count + 3) // 4), scalars=_halves(key))
    return xp.join([w[:, None] for w in four], 1).reshape(-1)[:count].reshape(shape)


def uniform(xp: NumpyArrays, key: str, count: int) -> Array:
    """`count` uniform numbers in the open interval (0, 1)."""
    return (xp.cast(words(xp, key, count), "float64") + 0.5) * 2.0**-32


def order(xp: NumpyArrays, key: str, count: int) -> list[int]:
    """A random permutation of 0 … count−1."""
    drawn = xp.host(words(xp, key, count)).tolist()
    return sorted(range(count), key=lambda i: (drawn[i], i))
