"""Row blocks: a composite whose body makes a huge intermediate value becomes a loop over its rows.

Attention's weights, [.., queries, keys], are large where its inputs and results are small. Every
query row is computed alone, so a SCAN over blocks of rows needs one block of the matrix at a time;
in the backward pass the cotangents of keys and values are sums over the blocks.

Nothing here knows about attention. Which axes of which values run along each other is found by
joining them through the ops of the body (one union-find). An axis of the largest value may be cut
if every op on it treats positions alike or sums over them: then each node is

* *before*: not along the axis and not a sum over it: computed once, outside,
* *inside*: along the axis: computed per block, from slices of the inputs,
* a *sum* over it: accumulated by the loop, narrow floats in float32, or
* *after*: computed from sums, outside.

Rows that do not fill a block are one more block of their own size. A block that is still large is
cut again, along another axis: heads first, then rows. Cost: one walk per body.
Source of the idea: Rabe and Staats, "Self-attention does not need O(n^2) memory" (2021).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.body import close, fresh_var
from tinyjax.core.composites import reshaped_axes
from tinyjax.core.infos import ScanInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.uop import UOp, const, get, toposort, tuple_of
from tinyjax.lowering.costs import BLOCK_BYTES, MIN_BLOCK_ROWS, WHOLE_BYTES
from tinyjax.lowering.dims import is_symbolic_body

INT32 = np.dtype(np.int32)
LEAVES = frozenset({Op.CONST, Op.IOTA, Op.PARAM})


def in_row_blocks(body: UOp) -> UOp:
    """The flat body of a composite, or one that computes the same in blocks of rows. Kept on it."""
    found: UOp | None = body.derived.get("row blocks")
    if found is None:
        cut = None if is_symbolic_body(body) else choose_cut(body)  # sizes decide
        found = body if cut is None else cut.loop(body)
        body.derived["row blocks"] = found
    return found


# --- which axes run along each other ----------------------------------------------------------------


class Axes:
    """Classes of (node, axis) pairs that have the same index; class 0 may not be cut."""

    def __init__(self, order: Iterable[UOp]) -> None:
        self.parent = [0]
        self.first: dict[UOp, int] = {}
        for n in order:
            if isinstance(n.aval, Aval):
                self.first[n] = len(self.parent)
                self.parent += range(len(self.parent), len(self.parent) + n.ndim)

    def of(self, n: UOp, axis: int) -> int:
        """The class of an axis."""
        i = self.first[n] + axis
        while self.parent[i] != i:
            self.parent[i] = i = self.parent[self.parent[i]]
        return i

    def join(self, n: UOp, axis: int, m: UOp, other: int) -> None:
        """Two axes have the same index."""
        low, high = sorted((self.of(n, axis), self.of(m, other)))
        self.parent[high] = low

    def forbid(self, n: UOp, axes: Iterable[int]) -> None:
        """These axes may not be cut."""
        for axis in axes:
            self.parent[self.of(n, axis)] = 0


def relate(n: UOp, axes: Axes) -> None:
    """Join the axes of a node to those of its operands; forbid those it treats in another way."""
    op = n.op
    if op in LEAVES:
        return
    if op in ELEMENTWISE or op in (Op.REMAT, Op.OPTIMIZATION_BARRIER):
        for s in n.src:
            for a in range(s.ndim):
                axes.join(n, a, s, a)
    elif op is Op.PERMUTE:
        for a, source in enumerate(n.arg):
            axes.join(n, a, n.src[0], source)
    elif op is Op.EXPAND:
        for a, place in enumerate(n.arg[1]):
            if n.src[0].shape[a] == n.shape[place]:
                axes.join(n, place, n.src[0], a)
    elif op is Op.RESHAPE:
        whole = reshaped_axes(n.src[0].shape, n.shape)
        for a, place in whole.items():
            axes.join(n.src[0], a, n, place)
        axes.forbid(n.src[0], (a for a in range(n.src[0].ndim) if a not in whole))
        axes.forbid(n, (a for a in range(n.ndim) if a not in whole.values()))
    elif op is Op.DYNAMIC_SLICE:
        part = [a for a in range(n.ndim) if n.shape[a] != n.src[0].shape[a]]
        for a in range(n.ndim):
            if a not in part:
                axes.join(n, a, n.src[0], a)
        axes.forbid(n, part)
        axes.forbid(n.src[0], part)
    elif op is Op.REDUCE:
        kind, gone = n.arg
        kept = [a for a in range(n.src[0].ndim) if a not in gone]
        for a, source in enumerate(kept):
            axes.join(n, a, n.src[0], source)
        if kind != "add":
            axes.forbid(n.src[0], gone)
    elif op is Op.DOT:
        relate_dot(n, axes)
    else:
        for m in (n, *n.operands):
            if m in axes.first:
                axes.forbid(m, range(m.ndim))


def relate_dot(n: UOp, axes: Axes) -> None:
    """Result axes are batch, free of x, free of y; contracted axes run along each other."""
    place = len(n.arg.batch[0])
    for a, pair in enumerate(zip(*n.arg.batch, strict=True)):
        for s, source in zip(n.src, pair, strict=True):
            axes.join(n, a, s, source)
    for s, contract, batch in zip(n.src, n.arg.contract, n.arg.batch, strict=True):
        for a in range(s.ndim):
            if a not in contract and a not in batch:
                axes.join(n, place, s, a)
                place += 1
    for a, other in zip(*n.arg.contract, strict=True):
        axes.join(n.src[0], a, n.src[1], other)


# --- the cut ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cut:
    """An axis to cut: where it is in each node inside the loop, the sums over it, rows a block.

    `mapped`: contractions only map over it.
    """

    order: list[UOp]
    place: dict[UOp, int]
    sums: list[UOp]
    after: set[UOp]
    mapped: bool
    length: int = 0
    rows: int = 0

    def loop(self, body: UOp) -> UOp:
        """The body with a SCAN over blocks of rows in it."""
        ready = {n: n for n in self.order if n.op in LEAVES}
        for n in self.order:
            if n not in self.place and n not in self.after and n not in ready:
                ready[n] = rebuilt(n, ready)
        ys = [o for o in dict.fromkeys(body.src) if o in self.place]
        whole = self.length // self.rows
        sums, rows = self.blocks(whole, ys, ready)
        left = self.length - whole * self.rows
        if left:
            start = const(whole * self.rows, INT32)
            done = self.block(start, left, ready)
            sums = [
                UOp(Op.ADD, (s, widened(done[n]))) for s, n in zip(sums, self.sums, strict=True)
            ]
            rows = [
                UOp(Op.CONCAT, (r, done[y]), self.place[y]) for r, y in zip(rows, ys, strict=True)
            ]
        ready.update(zip(ys, rows, strict=True))
        for n, total in zip(self.sums, sums, strict=True):
            same = total.aval.dtype == n.aval.dtype
            ready[n] = total if same else UOp(Op.CAST, (total,), (n.aval.dtype, False))
        for n in self.order:
            if n in self.after and n not in ready:
                ready[n] = rebuilt(n, ready)
        return tuple_of([ready[o] for o in body.src])

    def blocks(
        self, count: int, ys: list[UOp], ready: dict[UOp, UOp]
    ) -> tuple[list[UOp], list[UOp]]:
        """Sums over `count` blocks, and the rows of `ys` they make."""
        inside = [n for n in self.order if n in self.place or n in self.sums]
        read = dict.fromkeys(s for n in inside for s in n.src if s in ready)
        read.update((n, None) for n in inside if n.op is Op.PARAM)
        consts = [n for n in read if n.op not in (Op.CONST, Op.IOTA)]
        held = [fresh_var(n.aval) for n in consts]
        carry = [fresh_var(widened_aval(n.aval)) for n in self.sums]
        start = fresh_var(aval((), INT32))
        done = self.block(start, self.rows, {**ready, **dict(zip(consts, held, strict=True))})
        outs = [
            UOp(Op.ADD, (c, widened(done[n]))) for c, n in zip(carry, self.sums, strict=True)
        ] + [done[y] for y in ys]
        body, captured = close(outs, [*held, *carry, start], keep_memory=True)
        assert not captured, f"a block captures {captured}"
        again = choose_cut(body, inner=True) if self.mapped else None
        body = body if again is None else again.loop(body)
        starts = UOp(
            Op.MUL, (UOp(Op.IOTA, (), (aval((count,), INT32), 0)), const(self.rows, INT32))
        )
        zeros = [zeros_of(c.aval) for c in carry]
        given = [ready[n] for n in consts]
        info = ScanInfo(len(consts), len(carry), count)
        scan = UOp(Op.SCAN, (body, *given, *zeros, starts), info)
        rows = [joined(get(scan, len(carry) + i), self.place[y]) for i, y in enumerate(ys)]
        return [get(scan, i) for i in range(len(carry))], rows

    def block(self, start: UOp, rows: int, ready: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """Every node inside, and every sum, for the rows from `start` on."""
        done = dict(ready)
        for n in self.order:
            place = self.place.get(n)
            if place is None:
                if n in self.sums:
                    done[n] = rebuilt(n, done)
                continue
            shape = (*n.shape[:place], rows, *n.shape[place + 1 :])
            if n.op is Op.PARAM:
                zero = const(0, INT32)
                starts = [start if a == place else zero for a in range(n.ndim)]
                done[n] = UOp(Op.DYNAMIC_SLICE, (done[n], *starts), shape)
            elif n.op is Op.IOTA:
                of, axis = n.arg
                made = UOp(Op.IOTA, (), (of.update(shape=shape), axis))
                offset = start if of.dtype == INT32 else UOp(Op.CAST, (start,), (of.dtype, False))
                done[n] = UOp(Op.ADD, (made, offset)) if axis == place else made
            else:
                arg = n.arg
                if n.op is Op.EXPAND:
                    arg = (shape, n.arg[1])
                elif n.op in (Op.RESHAPE, Op.DYNAMIC_SLICE):
                    arg = shape
                done[n] = UOp(n.op, tuple(done[s] for s in n.src), arg)
        return done


def rebuilt(n: UOp, done: dict[UOp, UOp]) -> UOp:
    """The same node over what its operands became."""
    return n.with_src((*n.bodies, *(done[s] for s in n.operands)))


def widened_aval(of: Aval) -> Aval:
    """Sums of narrow floats are kept in float32."""
    narrow = dtypes.is_float(of.dtype) and dtypes.bit_width(of.dtype) < 32
    return of.update(dtype=np.dtype(np.float32)) if narrow else of


def widened(n: UOp) -> UOp:
    """A part of a sum in the dtype of the sum."""
    dtype = widened_aval(n.aval).dtype
    return n if dtype == n.aval.dtype else UOp(Op.CAST, (n,), (dtype, False))


def zeros_of(of: Aval) -> UOp:
    """What a sum starts from."""
    zero = const(0, of.dtype)
    return UOp(Op.EXPAND, (zero,), (of.shape, ())) if of.shape else zero


def joined(stacked: UOp, place: int) -> UOp:
    """[blocks, .., rows, ..] -> [.., blocks * rows, ..]"""
    count, *block = stacked.shape
    axes = range(1, stacked.ndim)
    order = (*axes[:place], 0, *axes[place:])
    moved = stacked if place == 0 else UOp(Op.PERMUTE, (stacked,), order)
    shape = (*block[:place], count * block[place], *block[place + 1 :])
    return UOp(Op.RESHAPE, (moved,), shape)


def choose_cut(body: UOp, inner: bool = False) -> Cut | None:
    """Where to cut the largest intermediate value; None if it is small, or nowhere.

    An axis that all contractions only map over (batch, heads) is best: blocks are independent, and
    whole matrices if they fit. Then the longest axis. `inner`: the body is a block already, whose
    inputs are whole arrays.
    """
    order = toposort(body.src)
    border = [n for n in order if n.op is Op.PARAM] + list(body.src)
    made = [
        n for n in order if n.op not in LEAVES and isinstance(n.aval, Aval) and n not in body.src
    ]
    wide = max(made, key=lambda n: n.aval.nbytes, default=None)
    kept = 2 * max(n.aval.nbytes for n in border)
    if wide is None or wide.aval.nbytes <= (2 * BLOCK_BYTES if inner else max(WHOLE_BYTES, kept)):
        return None
    axes = Axes(order)
    for n in order:
        relate(n, axes)
    cuts = []
    for kind in dict.fromkeys(axes.of(wide, a) for a in range(wide.ndim)):
        cut = cut_along(kind, order, axes) if kind else None
        if cut is None:
            continue
        cut.length = wide.shape[cut.place[wide]]
        cut.rows = max(1, BLOCK_BYTES * cut.length // wide.aval.nbytes)
        if not cut.mapped:
            cut.rows = max(MIN_BLOCK_ROWS, cut.rows)
        if cut.rows < cut.length:
            cuts.append(cut)
    return max(cuts, key=lambda cut: (cut.mapped, cut.length), default=None)


def cut_along(kind: int, order: list[UOp], axes: Axes) -> Cut | None:
    """The cut along a class of axes, if each node has at most one of them and sums come last."""
    place: dict[UOp, int] = {}
    sums: list[UOp] = []
    after: set[UOp] = set()
    for n in order:
        own = [a for a in range(n.ndim) if axes.of(n, a) == kind] if n in axes.first else []
        if len(own) > 1 or (own and any(s in after for s in n.src)):
            return None
        if own:
            place[n] = own[0]
        elif any(s in place for s in n.operands):
            if any(s in after for s in n.operands):
                return None
            sums.append(n)
            after.add(n)
        elif any(s in after for s in n.operands):
            after.add(n)
    dots = [n for n in order if n.op is Op.DOT and (n in place or n in sums)]
    mapped = not sums and all(place[n] < len(n.arg.batch[0]) for n in dots)
    return Cut(order, place, sums, after, mapped)
