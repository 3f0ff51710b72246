"""Where the operands of a DOT lie: batched matrices as strides over buffers that exist anyway.

`canonical_dot` writes every DOT as [B,M,K] x [B,K,N] -> [B,M,N] over reshaped and permuted operands.
`view_source` then looks through as many of those movement ops (the user's and the inserted ones) as
still give one stride per row and column; the batch may be split (heads of an attention), because its
address is computed once per matrix. What cannot be read so is copied by a kernel of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    source: UOp
    row: int
    col: int
    offset: int
    batch: UOp | None
    over: UOp | None


def view_source(operand: UOp) -> UOp:
    """The deepest node below movement ops whose buffer the operand can be read from by strides."""
    best = operand
    for view in _views(operand):
        best = view.source
    return best


def view_of(operand: UOp, source: UOp) -> View:
    """The strides of a canonical operand in the buffer of `source`."""
    for view in _views(operand):
        if view.source is source:
            return view
    raise AssertionError(f"{source!r} is not a view source of {operand!r}")


def _views(operand: UOp) -> list[View]:
    """The ways to read a 3-d operand, from itself down to the deepest source that is still affine."""
    space = IndexSpace()
    b, i, j = (space.range(s, n, "loop") for n, s in enumerate(operand.aval.shape))
    idx: tuple[Lin, ...] = (b, i, j)
    node, found = operand, []
    while True:
        view = _affine(space, node, space.ravel(idx, node.aval.shape), b, i, j)
        if view is not None:
            found.append(view)
        if node.op not in VIEWS:
            return found
        idx = _push(space, node, idx)
        node = node.src[0]


def _push(space: IndexSpace, node: UOp, idx: tuple[Lin, ...]) -> tuple[Lin, ...]:
    """The index of a movement op's operand."""
    x, op = node.src[0].aval, node.op
    if op is Op.RESHAPE:
        return space.unravel(space.ravel(idx, node.aval.shape), x.shape)
    if op is Op.PERMUTE:
        inner = [ZERO] * len(idx)
        for at, axis in zip(idx, node.arg, strict=True):
            inner[axis] = at
        return tuple(inner)
    if op is Op.EXPAND:
        return tuple(ZERO if s == 1 else idx[d] for s, d in zip(x.shape, node.arg[1], strict=True))
    if op is Op.SLICE:
        return tuple(
            space.shift(space.scale(at, step), start)
            for at, (start, _, step) in zip(idx, node.arg, strict=True)
        )
    if op is Op.FLIP:
        return tuple(
            space.shift(space.scale(at, -1), x.shape[a] - 1) if a in node.arg else at
            for a, at in enumerate(idx)
        )
    if op is Op.WINDOW:
        axis, _, stride, dilation = node.arg
        at = space.add(space.scale(idx[axis], stride), space.scale(idx[-1], dilation))
        return (*idx[:axis], at, *idx[axis + 1 : -1])
    return idx


def _affine(space: IndexSpace, source: UOp, flat: Lin, b: Lin, i: Lin, j: Lin) -> View | None:
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
    return View(source, row, col, flat[0], batch, ranges[0] if rest else None)
