"""Sums over rows, kept in memory: the loop order for reductions over a leading axis.

Accumulating a few columns over all rows reads a short piece of every row, which neither the
prefetchers nor the TLB like. Here the accumulators of a whole block of columns live in a small
array (L1), and the rows are read in groups, each almost contiguously:

    for block of columns:
        acc[block] = 0
        for group of rows:
            for vector in block:  acc[vector] += x[row 0][vector] + x[row 1][vector] + ...
        for vector in block:      y[vector] = f(acc[vector])

Memory traffic besides the rows is one load and one store per group, from L1. The order of additions
depends on the shape only. Chosen by the schedule (`Loop.columns` is the block's width).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyjax.core.uop import UOp
from tinyjax.lowering import accumulate, irtext
from tinyjax.lowering.interpret import identity
from tinyjax.lowering.irtext import I64, Type, Value, vec
from tinyjax.lowering.nest import Accumulate, Loop, fold_operands
from tinyjax.lowering.registers import Register

if TYPE_CHECKING:
    from tinyjax.lowering.emit import Emitter


class _Columns:
    """The arrays of accumulators of one block, and how vectors of them are read and written."""

    def __init__(self, e: Emitter, loop: Loop, folds: list[UOp]) -> None:
        self.e, self.loop, self.folds = e, loop, folds
        ops = e.scalars.of_lanes(loop.lanes)
        self.neutral: dict[UOp, Register] = {}
        self.arrays: dict[UOp, list[tuple[Value, Type]]] = {}
        for fold in folds:
            dtype = fold.src[0].aval.dtype
            start = ops.constant(dtype, identity(accumulate.fold_kind(fold), dtype))
            self.neutral[fold] = accumulate.canonical(e, start)
            self.arrays[fold] = [
                (e.b.alloca(part.type.scalar, loop.columns), part.type.scalar)
                for part in self.neutral[fold].parts
            ]

    def read(self, fold: UOp, at: Value) -> Register:
        """The accumulators of one vector of columns; `at` counts from the block's start."""
        b = self.e.b
        parts = [
            b.load(vec(kind, self.loop.lanes), b.gep(kind, array, at))
            for array, kind in self.arrays[fold]
        ]
        return accumulate.rebuilt(self.neutral[fold], parts)

    def write(self, fold: UOp, at: Value, x: Register) -> None:
        """Put them back."""
        b = self.e.b
        for (array, kind), part in zip(self.arrays[fold], x.parts, strict=True):
            b.store(part, b.gep(kind, array, at))


def emit(e: Emitter, loop: Loop, low: Value, high: Value) -> None:
    """The loop over columns [low, high), with its one reduction inside."""
    b = e.b
    rows = next(x for x in loop.lines if isinstance(x, Loop))
    folds = list(rows.starts)
    arrays = _Columns(e, loop, folds)
    with b.loop(low, high, loop.columns) as blocks, e.scope():
        start = blocks.index
        end = b.smin(b.add(start, loop.columns), high)
        with b.loop(0, loop.columns, loop.lanes) as clear:
            for fold in folds:
                arrays.write(fold, clear.index, arrays.neutral[fold])
        count = e.steps_of(rows)
        if rows.limit is None:
            main = irtext.const(I64, rows.extent // rows.copies * rows.copies)
        else:
            main = b.sub(count, b.urem(count, irtext.const(I64, rows.copies)))
        zero = irtext.const(I64, 0)
        for first, last, copies in ((zero, main, rows.copies), (main, count, 1)):
            if first.const is None or first.const != last.const:
                _rows(e, loop, rows, arrays, (first, last, copies), start, end)

        def finish(at: Value) -> None:
            for fold in folds:
                e.remember((fold, "parts"), [(arrays.read(fold, at),)])
            e.run([x for x in loop.lines if x is not rows])

        _over_columns(e, loop, start, end, finish)


def _rows(
    e: Emitter,
    loop: Loop,
    rows: Loop,
    arrays: _Columns,
    part: tuple[Value, Value, int],
    start: Value,
    end: Value,
) -> None:
    """Add groups of rows to the accumulators of a block."""
    low, high, copies = part
    with e.b.loop(low, high, copies) as groups, e.inside(rows, copies), e.scope():
        e.set_base(rows, groups.index, copies)
        nodes = [x for x in (*loop.lines, *rows.lines) if isinstance(x, UOp)]
        needed = accumulated(e, rows)
        for node in nodes:
            if not e.free[node] & loop.bit and node in needed and e.used_as_value(node):
                e.evaluate(node)
        e.prepare(rows)

        def step(at: Value) -> None:
            for line in rows.lines:
                if not isinstance(line, Accumulate):
                    continue
                fold = line.fold
                values = [
                    accumulate.canonical(e, e.vectors.cast(x, fold.src[0].aval.dtype))
                    for x in e.value(fold.src[0], True)
                ]
                while len(values) > 1:
                    half = len(values) // 2
                    joined = [
                        accumulate.combine(e, fold.arg, x, y)
                        for x, y in zip(values[:half], values[half : 2 * half])
                    ]
                    values = joined + values[2 * half :]
                total = accumulate.combine(e, fold.arg, arrays.read(fold, at), values[0])
                arrays.write(fold, at, total)

        _over_columns(e, loop, start, end, step)


def accumulated(e: Emitter, rows: Loop) -> set[UOp]:
    """Nodes that the accumulated values are computed from."""
    found: set[UOp] = set()
    stack = [s for x in rows.lines if isinstance(x, Accumulate) for s in fold_operands(x.fold)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.src)
    return found


def _over_columns(
    e: Emitter, loop: Loop, start: Value, end: Value, body: Callable[[Value], None]
) -> None:
    """Vectors of a block, the last one masked; `body` gets the position within the block."""
    b = e.b
    mask = e.tail_mask(loop)
    whole = loop.extent // loop.lanes * loop.lanes
    limit = end if mask is None else b.smin(end, whole)
    with b.loop(start, limit, loop.lanes) as vectors, e.inside(loop, 1), e.scope():
        e.set_base(loop, vectors.index, 1)
        body(b.sub(vectors.index, start))
    if mask is not None:
        with b.if_(b.cmp("sge", end, loop.extent)), e.inside(loop, 1, mask), e.scope():
            e.set_base(loop, irtext.const(I64, whole), 1)
            body(b.sub(irtext.const(I64, whole), start))
