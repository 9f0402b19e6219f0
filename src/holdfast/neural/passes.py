"""Fusion on a CPU: a function of arrays, computed for one cache-sized block of rows at a time.

Temporaries of the function then stay in the cache. The bits are those of the function on whole arrays, because each row
(or element) is computed from its own operands alone. It knows slices, but no array library.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

Array = Any
Shape = tuple[int, ...]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of arrays of these shapes broadcast together."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


def in_blocks(
    function: Callable[..., Any], operands: Sequence[Array], block: int, empty: Callable[[Shape, Array], Array],
    *, split_rows: bool,
) -> Any:  # fmt: skip
    """function(*operands), `block` elements at a time; rows stay whole unless `split_rows`.

    The function returns one result or several: arrays whose leading axes are those of the operands, or single booleans,
    which are true if they are true in every block. `empty` makes an array with a shape and another array's type.
    """
    shape = broadcast([tuple(o.shape) for o in operands])
    rank = len(shape)
    last = rank if split_rows else rank - 1
    if prod(shape) <= block or last < 1:
        return function(*operands)
    # The first axis whose slices fit into a block.
    axis = next((d for d in range(last) if prod(shape[d + 1 :]) <= block), last - 1)
    many = max(1, block // max(prod(shape[axis + 1 :]), 1))
    aligned = [o.reshape((1,) * (rank - len(o.shape)) + tuple(o.shape)) for o in operands]
    results: list[Array] = []
    single = True
    for outer in product(*(range(n) for n in shape[:axis])):
        lead = [tuple(i if size > 1 else 0 for i, size in zip(outer, a.shape, strict=False)) for a in aligned]
        lines = [a[at] for a, at in zip(aligned, lead, strict=True)]
        for start in range(0, shape[axis], many):
            told = function(*(a[start : start + many] if a.shape[0] > 1 else a for a in lines))
            parts: list[Array] = list(told) if isinstance(told, tuple) else [told]  # pyright: ignore[reportUnknownArgumentType]
            if not results:
                single = not isinstance(told, tuple)
                results = [p if len(p.shape) == 0 else empty((*shape[: axis + 1], *p.shape[1:]), p) for p in parts]
            for i, part in enumerate(parts):
                if len(part.shape) == 0:
                    results[i] = results[i] & part
                else:
                    results[i][outer][start : start + many] = part
    return results[0] if single else tuple(results)
