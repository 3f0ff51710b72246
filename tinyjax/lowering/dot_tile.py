"""The register tiles of a DOT: `outer` (broadcast A times vectors of B) and `inner` (along K)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tinyjax.core import dtypes
from tinyjax.lowering.dot_frame import Kernel, Nest, Side
from tinyjax.lowering.dot_operands import (
    Buffer,
    widen,
)
from tinyjax.lowering.irtext import (
    BF16,
    F32,
    I8,
    I16,
    I32,
    I64,
    IRBuilder,
    Type,
    Value,
    const,
    vec,
    zero,
)

Tile = list[list[Value]]  # [row][vector]


def multiply_add(b: IRBuilder, nest: Nest, x: Value, y: Value, total: Value) -> Value:
    """x*y + total, fused where the target has it; integers wrap."""
    if nest.target.fma and total.type.kind == "float":
        return b.fma(x, y, total)
    return b.add(b.mul(x, y), total)


MADD = {16: "x86.sse2.pmadd.wd", 32: "x86.avx2.pmadd.wd", 64: "x86.avx512.pmaddw.d.512"}


def multiply_add_units(b: IRBuilder, nest: Nest, x: Value, y: Value, total: Value) -> Value:
    """total + the sum of the products of each group, x from A and y from B."""
    group, lanes = nest.schedule.group, nest.schedule.lanes
    if group == 1:
        return multiply_add(b, nest, x, y, total)
    if group == 4:
        kind, name = vec(I8, 4 * lanes), "x86.avx512.vpdpbusd.512"
        if not dtypes.is_signed(nest.a.dtype) or nest.biased:
            pair = [x, y]  # the unsigned one first
        else:
            pair = [y, x]
    elif nest.acc is F32:
        kind, name, pair = vec(BF16, 2 * lanes), "x86.avx512bf16.dpbf16ps.512", [x, y]
    else:
        kind, pair = vec(I16, 2 * lanes), [x, y]
        if nest.target.int16_dot == "madd":
            words = [b.bitcast(z, kind) for z in pair]
            return b.add(total, b.call_intrinsic(MADD[4 * lanes], total.type, words))
        name = "x86.avx512.vpdpwssd.512"
    return b.call_intrinsic(name, total.type, [total, *[b.bitcast(z, kind) for z in pair]])


@dataclass(frozen=True, slots=True)
class Block:
    """Where a tile stands: values of one task and one block of K."""

    batch: Value
    k0: Value
    count: Value  # elements of K in this block
    first: Value  # i1: nothing was added to the partial sums yet
    last: Value  # i1: the sum is complete after this block
    split: Value
    rows: Value  # the first panel of rows, and of columns, of this task
    columns: Value


@dataclass(frozen=True, slots=True)
class Place:
    """A strip of columns, and the rows of a tile of it.

    Columns `col` .. `col + width` lie at `offset` of column panel `panel`; `left` of them exist.
    `ragged`: its vectors may reach past the edge. The tile starts at `row`, which lies at
    `row_offset` of row panel `row_panel`; its rows from `skip` on are not those of an earlier tile.
    """

    panel: Value
    offset: Value
    col: Value
    left: Value
    width: int
    ragged: bool
    row: Value = field(default_factory=lambda: const(I64, 0))
    row_panel: Value = field(default_factory=lambda: const(I64, 0))
    row_offset: Value = field(default_factory=lambda: const(I64, 0))
    skip: Value = field(default_factory=lambda: const(I64, 0))

    def mask(self, b: IRBuilder, vector: int, lanes: int) -> Value | None:
        """The lanes of one vector that exist; None if all must."""
        if not self.ragged:
            return None
        return b.first_lanes(self.left, lanes, vector * lanes)


@dataclass(frozen=True, slots=True)
class Source:
    """Elements of one operand for a tile, k by k.

    `pointers` advance by `step` elements of `element` per k; `get(pointers, k, i)` is the i-th row
    (a scalar of A) or vector (of B), in the accumulator type.
    """

    get: Callable[[list[Value], Value, int], Value]
    pointers: list[Value] = field(default_factory=list)
    element: Type = F32
    step: Value = field(default_factory=lambda: const(I64, 0))


ROWS_PER_POINTER = 3  # base, base + stride, base + 2*stride: what x86 can address without adding


def source_a(
    kernel: Kernel, block: Block, a: Side, packed: Value | None, rows: list[Value], full: bool
) -> Source:
    """The scalars of A that a tile broadcasts; `full` says the rows are consecutive."""
    b, acc, unit = kernel.b, kernel.nest.acc, kernel.nest.unit
    if packed is not None:
        return Source(
            lambda at, k, i: b.load(unit, b.gep(unit, at[0], i)), [packed], unit, const(I64, a.tile)
        )
    if not isinstance(a.load, Buffer):
        return Source(lambda at, k, i: a.fetch(kernel, block.batch, rows[i], k, 1, True))
    buffer = a.load if a.is_a else a.load.transposed()
    stride, step = buffer.strides[1:]

    def wide(x: Value) -> Value:
        return widen(b, x, a.operand.dtype, acc, kernel.nest.target.half)

    def start(row: Value) -> Value:
        return buffer.address(b, block.batch, row, block.k0)

    return _row_source(b, buffer.element, rows, start, stride, step, full, wide)


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of A in scratch: row `first` at `region`, the next ones `stride` units further."""

    region: Value
    first: Value
    stride: Value


def source_rows(kernel: Kernel, packed: Rows, rows: list[Value], full: bool) -> Source:
    """The scalars of A from copied rows; `full` says they are consecutive."""
    b, unit = kernel.b, kernel.nest.unit

    def start(row: Value) -> Value:
        return b.gep(unit, packed.region, b.mul(b.sub(row, packed.first), packed.stride))

    return _row_source(b, unit, rows, start, packed.stride, const(I64, 1), full, lambda x: x)


def _row_source(
    b: IRBuilder, element: Type, rows: list[Value], start: Callable[[Value], Value], stride: Value,
    step: Value, full: bool, wide: Callable[[Value], Value],
) -> Source:  # fmt: skip
    """Elements of rows that begin at `start(row)`, `stride` apart if `full`, k by k `step` apart."""
    group = len(rows) if stride.const is not None else ROWS_PER_POINTER
    twice = b.mul(stride, 2)

    def get(at: list[Value], k: Value, i: int) -> Value:
        if not full:
            return wide(b.load(element, at[i]))
        base, inside = at[i // group], i % group
        if stride.const is not None:
            return wide(b.load(element, b.gep(element, base, inside * stride.const)))
        offset = (const(I64, 0), stride, twice)[inside]
        return wide(b.load(element, b.gep(element, base, offset)))

    return Source(get, [start(row) for row in rows[:: group if full else 1]], element, step)


def source_b(kernel: Kernel, block: Block, side: Side, packed: Value | None, here: Place) -> Source:
    """The vectors of B that a tile multiplies."""
    b, acc, lanes = kernel.b, kernel.nest.acc, kernel.nest.schedule.lanes
    unit = kernel.nest.unit
    wide = vec(unit, lanes)
    if packed is not None:
        return Source(
            lambda at, k, v: b.load(wide, b.gep(unit, at[0], v * lanes), align=wide.nbytes),
            [packed],
            unit,
            const(I64, side.tile),
        )
    masks = [here.mask(b, v, lanes) for v in range(here.width // lanes)]
    cols = [b.add(here.col, v * lanes) for v in range(here.width // lanes)]
    buffer = side.load
    if not isinstance(buffer, Buffer) or buffer.strides[2].const != 1:
        return Source(
            lambda at, k, v: side.fetch(kernel, block.batch, cols[v], k, lanes, False, masks[v])
        )
    narrow = vec(buffer.element, lanes)

    def get(at: list[Value], k: Value, v: int) -> Value:
        place, mask = b.gep(buffer.element, at[0], v * lanes), masks[v]
        if mask is None:
            x = b.load(narrow, place, align=buffer.element.nbytes)
        else:
            x = b.masked_load(narrow, place, mask)
        return widen(b, x, side.operand.dtype, acc, kernel.nest.target.half)

    start = buffer.address(b, block.batch, block.k0, here.col)
    return Source(get, [start], buffer.element, buffer.strides[1])


def outer_tile(
    kernel: Kernel, block: Block, left: Source, right: Source, height: int, vectors: int
) -> Tile:
    """Sum over the block of K of outer products: `height` scalars of A times vectors of B."""
    b, nest = kernel.b, kernel.nest
    lanes, group = nest.schedule.lanes, nest.schedule.group
    extra = vectors if nest.biased else 0  # sums of 128*b, to be taken off every row
    count = height * vectors + extra
    split = count + len(left.pointers)
    carried = [zero(vec(nest.acc, lanes))] * count + left.pointers + right.pointers
    bias = const(vec(I32, lanes), 0x80808080)
    units = kernel.units(b.add(block.count, group - 1))
    with b.loop(0, units, carried=carried, nonempty=nest.nonempty) as loop:
        sums, at_a, at_b = loop.carried[:count], loop.carried[count:split], loop.carried[split:]
        k = b.add(block.k0, loop.index)
        row = [right.get(at_b, k, v) for v in range(vectors)]
        for i in range(height):
            spread = b.splat(left.get(at_a, k, i), lanes)
            for v in range(vectors):
                to = i * vectors + v
                sums[to] = multiply_add_units(b, nest, spread, row[v], sums[to])
        for v in range(extra):
            to = height * vectors + v
            sums[to] = multiply_add_units(b, nest, bias, row[v], sums[to])
        moved = [b.gep(left.element, x, left.step) for x in at_a]
        moved += [b.gep(right.element, x, right.step) for x in at_b]
        loop.next(*sums, *moved)
    tile = _tile(loop.results[: height * vectors], vectors)
    if extra:
        off = loop.results[height * vectors : count]
        tile = [[b.sub(x, y) for x, y in zip(line, off, strict=True)] for line in tile]
    return tile


def _tile(values: list[Value], vectors: int) -> Tile:
    return [values[i : i + vectors] for i in range(0, len(values), vectors)]


def inner_tile(
    kernel: Kernel, block: Block, a: Side, bs: Side, rows: list[Value], cols: list[Value]
) -> Tile:
    """Each element of the tile as a vector of partial sums along K, folded at the end."""
    b, nest = kernel.b, kernel.nest
    lanes, unroll, acc = nest.schedule.lanes, nest.schedule.unroll, nest.acc
    wide = vec(acc, lanes)
    count = len(rows) * len(cols)

    def step(sums: list[Value], k: Value, mask: Value | None, width: int) -> list[Value]:
        left = [a.fetch(kernel, block.batch, row, k, width, True, mask) for row in rows]
        right = [bs.fetch(kernel, block.batch, col, k, width, True, mask) for col in cols]
        products = [(x, y) for x in left for y in right]
        return [
            multiply_add(b, nest, x, y, total) for (x, y), total in zip(products, sums, strict=True)
        ]

    step_size = lanes * unroll
    whole = b.mul(b.udiv(block.count, step_size), step_size)
    sums = [zero(wide)] * (count * unroll)
    with b.loop(0, whole, step_size, carried=sums) as loop:
        new: list[Value] = []
        for u in range(unroll):
            k = b.add(block.k0, b.add(loop.index, u * lanes))
            new += step(loop.carried[u * count : (u + 1) * count], k, None, lanes)
        loop.next(*new)
    totals = loop.results[:count]
    for u in range(1, unroll):
        totals = [b.add(x, y) for x, y in zip(totals, loop.results[u * count :], strict=False)]
    if nest.target.masks:
        with b.loop(whole, block.count, lanes, carried=totals) as loop:
            mask = b.first_lanes(b.sub(block.count, loop.index), lanes)
            loop.next(*step(loop.carried, b.add(block.k0, loop.index), mask, lanes))
        return _tile([b.reduce_tree(x, "add") for x in loop.results], len(cols))
    scalars = [b.reduce_tree(x, "add") for x in totals]
    with b.loop(whole, block.count, carried=scalars) as loop:
        loop.next(*step(loop.carried, b.add(block.k0, loop.index), None, 1))
    return _tile(loop.results, len(cols))
