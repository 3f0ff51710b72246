"""Where the operands of a DOT lie: batched matrices as strides over buffers that exist anyway.

`canonical_dot` writes every DOT as [B,M,K] x [B,K,N] -> [B,M,N] over reshaped and permuted
operands. `view_source` then looks through as many of those movement ops (the user's and the
inserted ones) as still give one stride per row and column; the batch may be split (heads of an
attention), because its address is computed once per matrix. What cannot be read so is copied by a
kernel of its own.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from tinyjax.core.infos import DotInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.affine import ZERO, IndexSpace, Lin

VIEWS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SLICE, Op.FLIP, Op.REMAT, Op.WINDOW})
CANONICAL = DotInfo(((2,), (1,)), ((0,), (0,)))


def canonical_dot(x: UOp, y: UOp, info: DotInfo) -> UOp:
    """DOT over any axes as a reshaped DOT of [B,M,K] and [B,K,N]."""
    (cx, cy), (bx, by) = info.contract, info.batch
    free_x = tuple(a for a in range(x.aval.ndim) if a not in cx and a not in bx)
    free_y = tuple(a for a in range(y.aval.ndim) if a not in cy and a not in by)

    def size(node: UOp, axes: tuple[int, ...]) -> int:
        return math.prod(node.aval.shape[a] for a in axes)

    b, m, n, k = size(x, bx), size(x, free_x), size(y, free_y), size(x, cx)
    left = _reshape(_permute(x, (*bx, *free_x, *cx)), (b, m, k))
    right = _reshape(_permute(y, (*by, *cy, *free_y)), (b, k, n))
    dtype = None if info.dtype in (None, x.aval.dtype) and x.aval.dtype == y.aval.dtype else (
        info.dtype
    )  # fmt: skip
    product = UOp(
        Op.DOT, (left, right), DotInfo(CANONICAL.contract, CANONICAL.batch, dtype, info.precision)
    )
    shape = [x.aval.shape[a] for a in (*bx, *free_x)] + [y.aval.shape[a] for a in free_y]
    return _reshape(product, tuple(shape))


def _permute(x: UOp, perm: tuple[int, ...]) -> UOp:
    return x if perm == tuple(range(len(perm))) else UOp(Op.PERMUTE, (x,), perm)


def _reshape(x: UOp, shape: tuple[int, ...]) -> UOp:
    return x if x.aval.shape == shape else UOp(Op.RESHAPE, (x,), shape)


@dataclass(frozen=True, slots=True)
class View:
    """A batch of matrices in a buffer, in elements: `offset + batch + row*i + col*j`.

    `batch` is an index expression over the RANGE `over` (None if all matrices are the same one).
    """

    row: int
    col: int
    offset: int
    batch: UOp | None
    over: UOp | None


def view_source(operand: UOp) -> UOp:
    """The deepest node below movement ops whose buffer the operand can be read from by strides."""
    return _chain(operand)[_best(*_signature(operand))]


def view_of(operand: UOp) -> View:
    """The strides of a canonical operand in the buffer of `view_source(operand)`."""
    signature = _signature(operand)
    depth = _best(*signature)
    found = _views(*signature)[depth]
    assert found is not None
    return found


def _chain(operand: UOp) -> list[UOp]:
    """The operand and what lies below its movement ops."""
    chain = [operand]
    while chain[-1].op in VIEWS:
        chain.append(chain[-1].src[0])
    return chain


Moves = tuple[tuple[Op, Any, tuple[int, ...]], ...]


def _signature(operand: UOp) -> tuple[tuple[int, ...], Moves]:
    """The operand's shape and its movement ops with the shapes they move: what views depend on."""
    moves = tuple((n.op, n.arg, n.src[0].aval.shape) for n in _chain(operand)[:-1])
    return operand.aval.shape, tuple(
        m if m[0] is not Op.REMAT else (m[0], None, m[2]) for m in moves
    )


def _best(shape: tuple[int, ...], moves: Moves) -> int:
    """How many movement ops can be looked through."""
    return max(i for i, view in enumerate(_views(shape, moves)) if view is not None)


@functools.lru_cache(maxsize=4096)
def _views(shape: tuple[int, ...], moves: Moves) -> tuple[View | None, ...]:
    """The view below each number of movement ops, None where it is not affine.

    Cached: a model's layers read their operands alike.
    """
    space = IndexSpace()
    b, i, j = idx = tuple(space.range(s, n, "loop") for n, s in enumerate(shape))
    found = [_affine(space, space.ravel(idx, shape), b, i, j)]
    for op, arg, inner in moves:
        idx = _push(space, op, arg, shape, inner, idx)
        shape = inner
        found.append(_affine(space, space.ravel(idx, shape), b, i, j))
    return tuple(found)


def _push(
    space: IndexSpace,
    op: Op,
    arg: Any,
    outer: tuple[int, ...],
    inner: tuple[int, ...],
    idx: tuple[Lin, ...],
) -> tuple[Lin, ...]:
    """The index of a movement op's operand of shape `inner`."""
    if op is Op.RESHAPE:
        return space.unravel(space.ravel(idx, outer), inner)
    if op is Op.PERMUTE:
        moved = [ZERO] * len(idx)
        for at, axis in zip(idx, arg, strict=True):
            moved[axis] = at
        return tuple(moved)
    if op is Op.EXPAND:
        return tuple(ZERO if s == 1 else idx[d] for s, d in zip(inner, arg[1], strict=True))
    if op is Op.SLICE:
        return tuple(
            space.shift(space.scale(at, step), start)
            for at, (start, _, step) in zip(idx, arg, strict=True)
        )
    if op is Op.FLIP:
        return tuple(
            space.shift(space.scale(at, -1), inner[a] - 1) if a in arg else at
            for a, at in enumerate(idx)
        )
    if op is Op.WINDOW:
        axis, _, stride, dilation = arg
        at = space.add(space.scale(idx[axis], stride), space.scale(idx[-1], dilation))
        return (*idx[:axis], at, *idx[axis + 1 : -1])
    return idx


def _affine(space: IndexSpace, flat: Lin, b: Lin, i: Lin, j: Lin) -> View | None:
    """The strides of an address, if rows and columns appear linearly and apart from the batch."""
    ranges = [at[1][0][0] if at[1] else None for at in (b, i, j)]
    row = col = 0
    rest = []
    for node, c in flat[1]:
        if node is ranges[1]:
            row = c
        elif node is ranges[2]:
            col = c
        elif any(n in (ranges[1], ranges[2]) for n in toposort([node]) if n.op is Op.RANGE):
            return None
        else:
            rest.append((node, c))
    batch = space.node((0, tuple(rest))) if rest else None
    return View(row, col, flat[0], batch, ranges[0] if rest else None)
