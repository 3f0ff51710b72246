"""Where the operands of a DOT lie: batched matrices as strides over buffers that exist anyway.

`canonical_dot` writes every DOT as [B,M,K] x [B,K,N] -> [B,M,N] over reshaped and permuted
operands. `view_source` then looks through as many of those movement ops (the user's and the
inserted ones) as still give one stride per row and column; the batch may be split (heads of an
attention), because its address is computed once per matrix. What cannot be read so is copied by a
kernel of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

from tinyjax.core.infos import DotInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.affine import ZERO, IndexSpace, Lin
from tinyjax.lowering.dims import joined

MARKS = (Op.REMAT, Op.OPTIMIZATION_BARRIER)
VIEWS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SLICE, Op.FLIP, Op.WINDOW, *MARKS})
CANONICAL = DotInfo(((2,), (1,)), ((0,), (0,)))


def canonical_dot(x: UOp, y: UOp, info: DotInfo) -> UOp:
    """DOT over any axes as a reshaped DOT of [B,M,K] and [B,K,N].

    An operand of windows (a convolution) has its axes in the order of its memory, so that packing
    finds them contiguous; the result is permuted instead.
    """
    (cx, cy), (bx, by) = info.contract, info.batch
    free_x = tuple(a for a in range(x.aval.ndim) if a not in cx and a not in bx)
    free_y = tuple(a for a in range(y.aval.ndim) if a not in cy and a not in by)
    windows = (_has_windows(x), _has_windows(y))
    if any(windows):
        order = _outermost_first(x, cx) if windows[0] else _outermost_first(y, cy)
        pairs = sorted(zip(cx, cy), key=lambda p: order.index(p[0] if windows[0] else p[1]))
        cx, cy = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
        free_x = _outermost_first(x, free_x) if windows[0] else free_x
        free_y = _outermost_first(y, free_y) if windows[1] else free_y

    def size(node: UOp, axes: tuple[int, ...]) -> int:
        return joined([node.aval.shape[a] for a in axes])

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
    lead = tuple(range(len(bx)))
    places = [len(lead) + free_x.index(a) for a in sorted(free_x)]
    places += [len(lead) + len(free_x) + free_y.index(a) for a in sorted(free_y)]
    return _permute(_reshape(product, tuple(shape)), (*lead, *places))


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


def parts_of(operand: UOp) -> tuple[tuple[int, ...], ...]:
    """The sizes that a canonical operand's reshape joined, for each of its three axes."""
    shape = operand.aval.shape
    below = operand.src[0].aval.shape if operand.op is Op.RESHAPE else shape
    sizes = [s for s in below if s != 1]
    parts = []
    for size in shape:
        part: list[int] = []
        while math.prod(part) < size and sizes:
            part.append(sizes.pop(0))
        if math.prod(part) != size:
            return tuple((s,) for s in shape)
        parts.append(tuple(part) or (1,))
    return tuple(parts)


def _addresses(space: IndexSpace, node: UOp, idx: tuple[Lin, ...]) -> list[Lin]:
    """Where an element of `node` comes from in each array below its movement and elementwise ops."""
    seen = {(node, idx)}
    stack = [(node, idx)]
    found: list[Lin] = []
    while stack:
        node, idx = stack.pop()
        below: list[tuple[UOp, tuple[Lin, ...]]] = []
        if node.op in VIEWS:
            x = node.src[0]
            below.append((x, _push(space, node.op, node.arg, node.aval.shape, x.aval.shape, idx)))
        elif node.op is Op.PAD:
            inner = (
                space.divmod(space.shift(i, -lo), interior + 1)[0]
                for i, (lo, _, interior) in zip(idx, node.arg, strict=True)
            )
            below.append((node.src[0], tuple(inner)))
        elif node.op in ELEMENTWISE:
            below += [(s, idx) for s in node.src if s.aval.shape]
        elif node.op is not Op.CONST:
            found.append(space.ravel(idx, node.aval.shape))
        for each in below:
            if each not in seen:
                seen.add(each)
                stack.append(each)
    return found


def _coefficient(flat: Lin, r: UOp) -> int | None:
    """How a range moves an address; None if not by a constant."""
    terms = dict(flat[1])
    if r in toposort([n for n in terms if n.op is not Op.RANGE]):
        return None
    return terms.get(r, 0)


def _outermost_first(x: UOp, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Some axes of x in the order in which they lie in the memory below; as they are if unknown."""
    space = IndexSpace()
    idx = tuple(space.range(s, i, "loop") for i, s in enumerate(x.aval.shape))
    found = _addresses(space, x, idx)
    if len(found) != 1:
        return axes
    strides = [_coefficient(found[0], idx[a][1][0][0]) if idx[a][1] else 0 for a in axes]
    if None in strides:
        return axes
    return tuple(a for _, a in sorted(zip(strides, axes), key=lambda t: -abs(t[0] or 0)))


def _has_windows(x: UOp) -> bool:
    """Whether x is a view of windows."""
    while x.op in VIEWS or x.op is Op.PAD:
        if x.op is Op.WINDOW:
            return True
        x = x.src[0]
    return False


LEAST_RUN = 8
"""Contiguous elements across K below which vectors of them would mostly be gathers."""


def can_be_packed(operand: UOp, along_k: int) -> bool:
    """Whether evaluating a canonical operand in place of reading a copy gives whole vectors.

    `along_k` is the place of K among its last two axes: 1 in a left operand, 0 in a right one.

    Looks through movement and elementwise ops at what they read: that must be contiguous along K,
    or along the other axis in runs of at least `LEAST_RUN`.
    """
    space = IndexSpace()
    parts = parts_of(operand)
    numbers = itertools.count()
    ranges = [[space.range(s, next(numbers), "loop") for s in part] for part in parts]
    start = tuple(space.ravel(r, part) for r, part in zip(ranges, parts, strict=True))
    inner = [r[-1][1][0][0] if r[-1][1] else None for r in ranges[1:]]
    strides: list[list[int | None]] = [[], []]
    for flat in _addresses(space, operand, start):
        for found, r in zip(strides, inner, strict=True):
            found.append(0 if r is None else _coefficient(flat, r))
    runs = [part[-1] for part in parts[1:]]
    even = [1 in found and all(x in (0, 1) for x in found) for found in strides]
    return any(e and run >= LEAST_RUN for e, run in zip(even, runs, strict=True)) or (
        along_k == 1 and even[1]
    )


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
