"""Operands of a DOT that are computed where they are packed or loaded.

An axis of the operand may be several axes of what lies below (the windows of an image: image, row,
column; window row, window column, channel). The expression is rangeified over all of them, so that
the place of an element is a sum of products, without divisions: those are done once, on scalars.
A vector runs along the last part of its axis. One that may reach past the end of that part is
evaluated over whole axes instead, with the divisions in its lanes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.lowering.division import divide_by_size
from tinyjax.lowering.dot_layout import parts_of
from tinyjax.lowering.dot_operands import Axis, Load, Operand, read_size, slot_pointer
from tinyjax.lowering.dot_sizes import Sizes, readers
from tinyjax.lowering.expression import Expressions
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.irtext import IRBuilder, Value, zero
from tinyjax.lowering.rangeify import Element, elements_of
from tinyjax.lowering.target import Target


class Computed:
    """An opened operand that is an expression; see `Operand` for the arguments of a call."""

    def __init__(
        self,
        expressions: Expressions,
        parts: Element,
        whole: Element,
        sizes: tuple[tuple[int, ...], ...],
        matrices: Sequence[Callable[[], Value]],
        flipped: bool = False,
    ) -> None:
        self.expressions, self.parts, self.whole = expressions, parts, whole
        self.sizes, self.matrices, self.flipped = sizes, matrices, flipped

    def transposed(self) -> Computed:
        """Rows and columns exchanged."""
        return Computed(
            self.expressions, self.parts, self.whole, self.sizes, self.matrices, not self.flipped
        )

    def number(self, axis: Axis) -> int:
        """The place of an axis among those of the expression."""
        return 1 if (axis == "row") != self.flipped else 2

    def run(self, axis: Axis) -> int:
        """Elements of the last part of an axis: so many follow each other evenly."""
        return self.sizes[self.number(axis)][-1]

    def split(self, b: IRBuilder, axis: int, at: Value) -> list[Value]:
        """The index of each part of an axis."""
        found: list[Value] = []
        sizes: Sequence[int | Value] = self.sizes[axis][1:]
        if axis == 0:
            sizes = [read() for read in self.matrices]
        for size in reversed(sizes):
            if isinstance(size, int):
                rest = b.udiv(at, size)
            else:
                rest = divide_by_size(b, Op.IDIV, at, size)
            found.append(b.sub(at, b.mul(rest, size)))
            at = rest
        return [at, *reversed(found)]

    def place(self, b: IRBuilder, batch: Value, row: Value, col: Value) -> dict[UOp, Value]:
        """The ranges of the parts at an element."""
        if self.flipped:
            row, col = col, row
        found: dict[UOp, Value] = {}
        for axis, at in enumerate((batch, row, col)):
            for r, index in zip(self.parts.ranges[axis], self.split(b, axis, at), strict=True):
                if r is not None:
                    found[r] = index
        return found

    def evaluate(
        self,
        b: IRBuilder,
        of: Element,
        at: Mapping[UOp, Value],
        vector: UOp | None,
        width: int,
        mask: Value | None,
    ) -> Value:
        """The stored form of the elements at some ranges, `width` of them along `vector`."""
        found = self.expressions.value(of.root, at, vector, width, mask)
        stored = self.expressions.stored(found)
        if width > 1 and not stored.type.lanes:
            stored = b.splat(stored, width)
        if mask is not None:
            stored = b.select(mask, stored, zero(stored.type))
        return stored

    def __call__(
        self,
        b: IRBuilder,
        batch: Value,
        row: Value,
        col: Value,
        width: int,
        axis: Axis,
        mask: Value | None = None,
        aligned: bool = False,
        inside: bool = False,
    ) -> Value:
        """`aligned`: the first index is a multiple of the width; `inside`: no run is crossed."""
        sizes = self.sizes[self.number(axis)]
        if width > 1 and mask is not None and len(sizes) > 1:
            # All lanes may be off, behind the last part, where what it has but once is not read.
            last = math.prod(sizes) - 1
            row, col = (b.smin(row, last), col) if axis == "row" else (row, b.smin(col, last))
        at = self.place(b, batch, row, col)
        if width == 1:
            if mask is None:
                return self.evaluate(b, self.parts, at, None, 1, None)
            with b.if_(mask) as branch:
                x = self.evaluate(b, self.parts, at, None, 1, None)
            return branch.join(x, zero(x.type))
        number, run = self.number(axis), self.run(axis)
        vector = self.parts.ranges[number][-1]
        if vector is None:
            x = self.evaluate(b, self.parts, at, None, 1, None)
            x = b.splat(x, width)
            return x if mask is None else b.select(mask, x, zero(x.type))
        if inside or len(sizes) == 1 or (aligned and run % width == 0):
            return self.evaluate(b, self.parts, at, vector, width, mask)
        with b.if_(b.cmp("sle", b.add(at[vector], width), run)) as branch:
            within = self.evaluate(b, self.parts, at, vector, width, mask)
        with branch.otherwise():
            index = (batch, col, row) if self.flipped else (batch, row, col)
            flat = {
                r[0]: i for r, i in zip(self.whole.ranges, index, strict=True) if r[0] is not None
            }
            over = self.whole.ranges[number][0]
            across = self.evaluate(b, self.whole, flat, over, width, mask)
        return branch.join(within, across)


def computed_operand(body: UOp, node: UOp, params: Sizes, target: Target) -> Operand:
    """The expression `node` of a DOT group's body as an operand of its nest."""
    sizes = parts_of(node)
    sizes = merged(elements_of(body, node, sizes)[0], sizes)
    parts, whole = elements_of(body, node, sizes)
    roots = [parts.root, whole.root]
    used = sorted({n.arg[0] for n in toposort(roots) if n.op is Op.PARAM})
    literals = params.literals(roots, [r for each in (parts, whole) for r in each.ranges[0]])
    matrices = [params.read(size) for size in sizes[0][1:]]

    def open(b: IRBuilder, slots: Value, at: Value) -> Load:
        pointers = {i: slot_pointer(b, slots, i) for i in used}
        expressions = Expressions(b, target, pointers, roots, readers(b, at, literals))
        batch = [functools.partial(read_size, b, at, size) for size in matrices]
        return Computed(expressions, parts, whole, sizes, batch)

    unit = unit_of(parts)
    runs = unit is not None and len(sizes[1 if unit == "row" else 2]) > 1
    shared = math.prod(sizes[0]) == 1
    return Operand(np.dtype(node.aval.dtype), unit, open, shared, computed=True, runs=runs)


def merged(parts: Element, sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The sizes of parts where neighbours that all addresses walk as one are one part.

    An axis that was joined (examples and their tokens) often needs no division then.
    """
    indexing = Indexing()
    strides: list[Mapping[UOp, int]] = []
    apart: set[UOp] = set()  # what is not a term of an address
    stack = [parts.root]
    while stack:
        node = stack.pop()
        if node in apart:
            continue
        apart.add(node)
        if node.op is not Op.INDEX:
            stack += node.src
            continue
        terms = indexing.linear(node.src[1])[1]
        strides.append(terms)
        stack += [*node.src[2:], *(n for n in terms if n.op is not Op.RANGE)]
    found = []
    for ranges, axis in zip(parts.ranges, sizes, strict=True):
        together, loops = [axis[0]], [r for r in ranges if r is not None]
        for outer, inner, size in zip(loops, loops[1:], axis[1:]):
            even = all(at.get(outer, 0) == at.get(inner, 0) * size for at in strides)
            if even and not {outer, inner} & apart:
                together[-1] *= size
            else:
                together.append(size)
        found.append(tuple(together))
    return tuple(found)


def unit_of(parts: Element) -> Axis | None:
    """The axis along which all that is loaded is contiguous (or the same)."""
    indexing = Indexing()
    indexes = [n.src[0].src[1] for n in toposort([parts.root]) if n.op is Op.LOAD]
    for axis, number in (("col", 2), ("row", 1)):
        r = parts.ranges[number][-1]
        strides = [_stride(indexing, i, r) for i in indexes] if r is not None else []
        if 1 in strides and all(s in (0, 1) for s in strides):
            return axis  # type: ignore[return-value]
    return None


def _stride(indexing: Indexing, index: UOp, r: UOp) -> int | None:
    """The coefficient of a range in an address; None if it is also in something not linear."""
    terms = indexing.linear(index)[1]
    others: Sequence[UOp] = [n for n in terms if n.op is not Op.RANGE]
    if r in toposort(others):
        return None
    return terms.get(r, 0)
