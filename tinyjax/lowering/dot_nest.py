"""The loops of a DOT: packing, the register tile, the blocks around it, the partial sums.

One kernel computes blocks of C. A task is (batch, split of K, block of columns, block of rows),
rows fastest. Within a task: for each block of K, pack what the schedule says, then for each panel
of nr columns and each panel of mr rows run the register tile. Memory layouts (elements of the
accumulator type, zero padded where a tile reads past an edge):

    packed A   [panel][k][mr]           packed B   [panel][k][nr]
    partial    [split][batch][row panel][column panel][mr][nr]

Task scratch is addressed by the first task of the chunk being run: chunks are disjoint, so threads
never meet, and the scratch stays warm from one task of a chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tinyjax.core import dtypes
from tinyjax.lowering.dot_operands import (
    Axis,
    Buffer,
    Epilogue,
    Load,
    Operand,
    Store,
    slot_pointer,
    widen,
)
from tinyjax.lowering.dot_schedule import (
    BATCH,
    COL_BLOCKS,
    K_BLOCK,
    K_SPLIT,
    ROW_BLOCKS,
    SPLITS,
    DotSchedule,
    DotTarget,
    K,
    M,
    N,
    k_align,
)
from tinyjax.lowering.irtext import (
    BF16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    IRBuilder,
    Module,
    Type,
    Value,
    const,
    const_vector,
    poison,
    vec,
    zero,
)

Tile = list[list[Value]]  # [row][vector]
STREAMED_TILE = 8  # vectors: such tiles are finished in registers even if sums are visited often


@dataclass(frozen=True, slots=True)
class Nest:
    """All that the emitters below share; `slots` name workspace (-1: not used)."""

    name: str
    schedule: DotSchedule
    acc: Type
    target: DotTarget
    a: Operand
    b: Operand
    out: Epilogue
    params_slot: int | None
    a_slot: int
    b_slot: int
    partial_slot: int

    @property
    def biased(self) -> bool:
        """Both operands are signed bytes, so A is packed with 128 added, to be unsigned."""
        both = dtypes.is_signed(self.a.dtype) and dtypes.is_signed(self.b.dtype)
        return self.schedule.group == 4 and both

    @property
    def unit(self) -> Type:
        """What packed panels consist of: elements, or words that hold a group of them."""
        return self.acc if self.schedule.group == 1 else I32


# ------------------------------------------------------------------------------------ small pieces


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


def transpose(b: IRBuilder, rows: list[Value]) -> list[Value]:
    """`lanes` vectors of `lanes` elements, transposed in registers.

    Interleaves inside 128-bit blocks, then moves whole blocks: each step is one instruction on
    x86 and on AArch64. For 16 lanes of 32 bits, 64 shuffles.
    """
    lanes = len(rows)
    if lanes == 1:
        return rows
    size = 128 // rows[0].type.bits  # elements per block
    blocks = lanes // size

    def interleave(x: Value, y: Value, unit: int, high: bool) -> Value:
        picks: list[int] = []
        for block in range(0, lanes, size):
            start = block + (size // 2 if high else 0)
            for at in range(start, start + size // 2, unit):
                picks += range(at, at + unit)
                picks += range(lanes + at, lanes + at + unit)
        return b.shuffle(x, y, picks)

    def move(x: Value, y: Value, picks: list[int]) -> Value:
        return b.shuffle(x, y, [at * size + i for at in picks for i in range(size)])

    columns: list[list[Value]] = []  # [group of `size` rows][column within the block]
    for base in range(0, lanes, size):
        group = rows[base : base + size]
        unit = 1
        while unit < size:
            half = len(group) // 2
            # Rows i and i+1 of each pair hold neighbours; after log2(size) rounds, columns.
            pairs = [(group[2 * i], group[2 * i + 1]) for i in range(half)]
            low = [interleave(x, y, unit, False) for x, y in pairs]
            high = [interleave(x, y, unit, True) for x, y in pairs]
            group = low + high if unit * 2 < size else [z for p in zip(low, high) for z in p]
            if unit * 2 < size:  # size 4: (lo01, lo23, hi01, hi23)
                group = [low[0], low[1], high[0], high[1]]
            unit *= 2
        columns.append([_fence(b, x) for x in group])
    if blocks == 1:
        return columns[0]
    result: list[Value] = [rows[0]] * lanes
    for j in range(size):
        groups = [columns[g][j] for g in range(blocks)]
        if blocks == 2:
            result[j] = move(groups[0], groups[1], [0, 2])
            result[size + j] = move(groups[0], groups[1], [1, 3])
            continue
        even = [move(groups[i], groups[i + 1], [0, 2, 4, 6]) for i in (0, 2)]
        odd = [move(groups[i], groups[i + 1], [1, 3, 5, 7]) for i in (0, 2)]
        result[j] = move(even[0], even[1], [0, 2, 4, 6])
        result[2 * size + j] = move(even[0], even[1], [1, 3, 5, 7])
        result[size + j] = move(odd[0], odd[1], [0, 2, 4, 6])
        result[3 * size + j] = move(odd[0], odd[1], [1, 3, 5, 7])
    return result


def _fence(b: IRBuilder, x: Value) -> Value:
    """x, opaque to LLVM: its search over chains of shuffles made up half of the compile time."""
    plain = {I32: F32, I64: F64}.get(x.type.scalar, x.type.scalar)
    same = b.bitcast(x, vec(plain, x.type.lanes))
    return b.bitcast(b.intrinsic("arithmetic.fence", same.type, [same]), x.type)


class Kernel:
    """A kernel being written: its builder, its sizes as values, its opened operands."""

    def __init__(self, nest: Nest, suffix: str) -> None:
        self.nest = nest
        self.module = Module()
        assert self.module.node("!{}") == "!0"  # what !invariant.load wants
        params = [("slots", PTR), ("dims", PTR), ("lo", I64), ("hi", I64)]
        self.b = b = self.module.function(f"{nest.name}{suffix}", params)
        self.slots, dims, self.lo, self.hi = b.args
        slot = nest.params_slot
        self.params = dims if slot is None else slot_pointer(b, self.slots, slot)
        schedule = nest.schedule
        self.batch, self.m, self.n, self.k = (self.size(i) for i in (BATCH, M, N, K))
        self.panels = b.udiv(b.add(self.m, schedule.mr - 1), schedule.mr)
        self.columns = b.udiv(b.add(self.n, schedule.nr - 1), schedule.nr)
        self.k_rows = self.units(self.round_up(self.k, k_align(schedule)))

    def units(self, k: Value) -> Value:
        """Whole groups in k elements."""
        return self.b.udiv(k, self.nest.schedule.group)

    def size(self, index: int) -> Value:
        """A parameter of the step."""
        b = self.b
        return b.load(I64, b.gep(I64, self.params, index), notes="!invariant.load !0")

    def round_up(self, x: Value, unit: int) -> Value:
        """Next multiple of a power of two."""
        assert unit & (unit - 1) == 0
        return self.b.and_(self.b.add(x, unit - 1), -unit)

    def workspace(self, slot: int) -> Value:
        """The pointer to a workspace buffer."""
        return slot_pointer(self.b, self.slots, slot)

    def text(self) -> str:
        """The finished module."""
        return self.module.text()


# ----------------------------------------------------------------------------------------- packing


@dataclass(frozen=True, slots=True)
class Side:
    """A or B seen as [mn][k]: `mn` is the axis that C keeps."""

    operand: Operand
    load: Load
    is_a: bool
    limit: Value  # size of mn
    tile: int  # mr or nr

    def fetch(
        self,
        kernel: Kernel,
        batch: Value,
        mn: Value,
        k: Value,
        width: int,
        along_k: bool,
        mask: Value | None = None,
    ) -> Value:
        """`width` elements along one of the two axes, in the accumulator type."""
        b, acc = kernel.b, kernel.nest.acc
        row, col = (mn, k) if self.is_a else (k, mn)
        axis: Axis = "col" if along_k == self.is_a else "row"
        x = self.load(b, batch, row, col, width, axis, mask)
        return widen(b, x, self.operand.dtype, acc, kernel.nest.target.half)

    def unit(
        self,
        kernel: Kernel,
        batch: Value,
        mn: Value,
        k: Value,
        width: int,
        along_k: bool,
        mask: Value | None = None,
    ) -> Value:
        """`width` units of a packed panel; k counts units. Beyond K a scalar unit holds zeros."""
        b, group = kernel.b, kernel.nest.schedule.group
        if group == 1:
            return self.fetch(kernel, batch, mn, k, width, along_k, mask)
        start = b.mul(k, group)
        if along_k:
            x = self.bits(kernel, batch, mn, start, width * group, True, None)
            return b.bitcast(x, vec(I32, width))
        total: Value | None = None
        for g in range(group):
            at = b.add(start, g)
            if width > 1 or g == 0:
                x = self.bits(kernel, batch, mn, at, width, False, mask)
            else:
                with b.if_(b.cmp("slt", at, kernel.k)) as branch:
                    inside = self.bits(kernel, batch, mn, at, 1, False, None)
                x = branch.join(inside, zero(inside.type))
            placed = b.shl(b.cast(x, I32, signed=False), g * (32 // group))
            total = placed if total is None else b.or_(total, placed)
        assert total is not None
        return total

    def bits(
        self,
        kernel: Kernel,
        batch: Value,
        mn: Value,
        k: Value,
        width: int,
        along_k: bool,
        mask: Value | None,
    ) -> Value:
        """Elements as the 16 or 8 bits that the target multiplies."""
        b = kernel.b
        row, col = (mn, k) if self.is_a else (k, mn)
        axis: Axis = "col" if along_k == self.is_a else "row"
        x = self.load(b, batch, row, col, width, axis, mask)
        if kernel.nest.schedule.group == 4:
            return b.xor(x, -128) if self.is_a and kernel.nest.biased else x
        if x.type.kind == "float":
            return b.bitcast(x, vec(I16, x.type.lanes))
        return b.cast(x, I16, signed=dtypes.is_signed(self.operand.dtype))

    @property
    def along_k(self) -> bool:
        """Whether vectors are cheap along k rather than mn."""
        if self.operand.unit is None:
            return self.is_a
        return (self.operand.unit == "col") == self.is_a


def pack_panel(
    kernel: Kernel, side: Side, batch: Value, mn: Value, k0: Value, count: Value, into: Value
) -> None:
    """into[kk*tile + r] = side(mn + r, k0 + kk) for kk < count, zero up to the next `lanes`.

    With groups, kk counts units.

    Rows past the edge hold copies of the last one or zeros (their results are never stored).
    """
    b, unit, tile = kernel.b, kernel.nest.unit, side.tile
    group, lanes = kernel.nest.schedule.group, kernel.nest.schedule.lanes
    place = Panel(batch, mn, kernel.units(k0), into)
    full, end = kernel.units(count), kernel.units(b.add(count, group - 1))
    if side.along_k:
        whole = b.and_(full, -lanes)
        _pack_blocks(kernel, side, place, whole)
        _pack_scalars(kernel, side, place, whole, end)
    else:
        with b.if_(b.cmp("sle", b.add(mn, tile), side.limit)) as branch:
            _pack_rows(kernel, side, place, full)
        with branch.otherwise():
            if kernel.nest.target.masks:
                _pack_masked(kernel, side, place, full)
            else:
                _pack_scalars(kernel, side, place, const(I64, 0), full)
        if group > 1:
            _pack_scalars(kernel, side, place, full, end)
    with b.loop(b.mul(end, tile), b.mul(kernel.round_up(end, lanes), tile)) as loop:
        b.store(zero(unit), b.gep(unit, into, loop.index))


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel being packed: which, from where in K, and to where."""

    batch: Value
    mn: Value
    k0: Value
    into: Value


def _pack_rows(kernel: Kernel, side: Side, place: Panel, count: Value) -> None:
    """A whole panel that is contiguous along mn: copies, in powers of two."""
    b, unit = kernel.b, kernel.nest.unit
    with b.loop(0, count) as loop:
        at = b.gep(unit, place.into, b.mul(loop.index, side.tile))
        k, start = b.add(place.k0, loop.index), 0
        while start < side.tile:
            width = min(kernel.nest.schedule.lanes, 1 << (side.tile - start).bit_length() - 1)
            x = side.unit(kernel, place.batch, b.add(place.mn, start), k, width, False)
            b.store(x, b.gep(unit, at, start), align=unit.nbytes)
            start += width


def _pack_masked(kernel: Kernel, side: Side, place: Panel, count: Value) -> None:
    """A panel contiguous along mn that reaches past the edge."""
    b, unit, lanes = kernel.b, kernel.nest.unit, kernel.nest.schedule.lanes
    left = b.sub(side.limit, place.mn)
    with b.loop(0, count) as loop:
        at = b.gep(unit, place.into, b.mul(loop.index, side.tile))
        k = b.add(place.k0, loop.index)
        for start in range(0, side.tile, lanes):
            width = min(lanes, side.tile - start)
            inside = const_vector(I1, [i < width for i in range(lanes)])
            mask = b.and_(b.first_lanes(b.sub(left, start), lanes), inside)
            x = side.unit(kernel, place.batch, b.add(place.mn, start), k, lanes, False, mask)
            _store_part(b, x, b.gep(unit, at, start), width)


def _pack_scalars(kernel: Kernel, side: Side, place: Panel, lo: Value, hi: Value) -> None:
    """Rows lo..hi of a packed panel, one element at a time."""
    b, unit = kernel.b, kernel.nest.unit
    last = b.sub(side.limit, 1)
    with b.loop(lo, hi) as down, b.loop(0, side.tile) as across:
        mn = b.smin(b.add(place.mn, across.index), last)
        x = side.unit(kernel, place.batch, mn, b.add(place.k0, down.index), 1, False)
        b.store(x, b.gep(unit, place.into, b.add(b.mul(down.index, side.tile), across.index)))


def _pack_blocks(kernel: Kernel, side: Side, place: Panel, whole: Value) -> None:
    """A panel contiguous along k: blocks of `lanes` x `lanes`, transposed in registers."""
    b, unit, lanes, tile = kernel.b, kernel.nest.unit, kernel.nest.schedule.lanes, side.tile
    last = b.sub(side.limit, 1)

    def columns(start: Value, width: int) -> None:
        rows = [b.smin(b.add(b.add(place.mn, start), r), last) for r in range(width)]
        with b.loop(0, whole, lanes) as loop:
            k = b.add(place.k0, loop.index)
            loaded = [side.unit(kernel, place.batch, row, k, lanes, True) for row in rows]
            loaded += [poison(vec(unit, lanes))] * (lanes - width)
            at = b.gep(unit, place.into, b.add(b.mul(loop.index, tile), start))
            for kk, x in enumerate(transpose(b, loaded)):
                _store_part(b, x, b.gep(unit, at, kk * tile), width)

    if tile >= lanes:
        with b.loop(0, tile - tile % lanes, lanes) as group:
            columns(group.index, lanes)
    if tile % lanes:
        columns(const(I64, tile - tile % lanes), tile % lanes)


def _store_part(b: IRBuilder, x: Value, at: Value, width: int) -> None:
    """Store the first `width` lanes, in powers of two."""
    start = 0
    while start < width:
        size = 1 << (width - start).bit_length() - 1
        part = b.slice_lanes(x, start, size)
        b.store(part, b.gep(x.type.scalar, at, start), align=x.type.scalar.nbytes)
        start += size


def emit_pack(nest: Nest, is_a: bool) -> str:
    """The PACK kernel of one operand; a task is one panel of one batch element."""
    kernel = Kernel(nest, "_pack_a" if is_a else "_pack_b")
    b = kernel.b
    operand = nest.a if is_a else nest.b
    side = _side(kernel, is_a)
    panels = kernel.panels if is_a else kernel.columns
    base = kernel.workspace(nest.a_slot if is_a else nest.b_slot)
    with b.loop(kernel.lo, kernel.hi) as task:
        batch, panel = b.udiv(task.index, panels), b.urem(task.index, panels)
        if operand.shared:
            batch = const(I64, 0)
        size = b.mul(kernel.k_rows, side.tile)
        into = b.gep(nest.unit, base, b.mul(task.index, size))
        pack_panel(kernel, side, batch, b.mul(panel, side.tile), const(I64, 0), kernel.k, into)
    b.ret()
    return kernel.text()


def _side(kernel: Kernel, is_a: bool) -> Side:
    nest = kernel.nest
    operand = nest.a if is_a else nest.b
    opened = operand.open(kernel.b, kernel.slots, kernel.params)
    limit = kernel.m if is_a else kernel.n
    return Side(operand, opened, is_a, limit, nest.schedule.mr if is_a else nest.schedule.nr)


# --------------------------------------------------------------------------------- register tiles


@dataclass(frozen=True, slots=True)
class Block:
    """Where a tile stands: values of one task and one block of K."""

    batch: Value
    k0: Value
    count: Value  # elements of K in this block
    first: Value  # i1: nothing was added to the partial sums yet
    last: Value  # i1: the sum is complete after this block
    split: Value


@dataclass(frozen=True, slots=True)
class Place:
    """A strip of columns, and the row where a tile of it starts.

    Columns `col` .. `col + width` lie at `offset` of column panel `panel`; `left` of them exist.
    `ragged`: its vectors may reach past the edge.
    """

    panel: Value
    offset: Value
    col: Value
    left: Value
    width: int
    ragged: bool
    row: Value = field(default_factory=lambda: const(I64, 0))

    def mask(self, b: IRBuilder, vector: int, lanes: int) -> Value | None:
        """The lanes of one vector that exist; None if all must."""
        if not self.ragged:
            return None
        return b.first_lanes(b.sub(self.left, vector * lanes), lanes)


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
    group = len(rows) if stride.const is not None else ROWS_PER_POINTER
    starts = rows[::group] if full else rows
    twice = b.mul(stride, 2)

    def get(at: list[Value], k: Value, i: int) -> Value:
        if not full:
            return wide(at[i])
        base, inside = at[i // group], i % group
        if stride.const is not None:
            return wide(b.gep(buffer.element, base, inside * stride.const))
        return wide(b.gep(buffer.element, base, (const(I64, 0), stride, twice)[inside]))

    def wide(at: Value) -> Value:
        return widen(b, b.load(buffer.element, at), a.operand.dtype, acc, kernel.nest.target.half)

    pointers = [buffer.address(b, block.batch, row, block.k0) for row in starts]
    return Source(get, pointers, buffer.element, step)


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
    with b.loop(0, kernel.units(b.add(block.count, group - 1)), carried=carried) as loop:
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


# ------------------------------------------------------------------------------------ main kernel


class _Main:
    """The kernel that computes C, or its partial sums when K is split."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.kernel = kernel = Kernel(nest, "")
        self.b = b = kernel.b
        self.schedule = schedule = nest.schedule
        self.a, self.bs = _side(kernel, True), _side(kernel, False)
        self.split = schedule.split_k > 0
        self.store: Store | None = None
        if not self.split:
            self.store = nest.out.open(b, kernel.slots, kernel.params)
        self.row_blocks, self.col_blocks = kernel.size(ROW_BLOCKS), kernel.size(COL_BLOCKS)
        self.k_block, self.k_split = kernel.size(K_BLOCK), kernel.size(K_SPLIT)
        self.splits = kernel.size(SPLITS)
        self.a_base = None if schedule.pack_a == "none" else kernel.workspace(nest.a_slot)
        self.b_base = None if schedule.pack_b == "none" else kernel.workspace(nest.b_slot)
        self.partial = kernel.workspace(nest.partial_slot) if self.blocked else None
        self.inline = nest.out.inline and not self.split
        self.direct = self.inline and not self.blocked
        self.vector = schedule.lanes if schedule.kind == "outer" else 1
        self.buffer: Value | None = None
        if not self.direct:
            self.buffer = b.alloca(nest.acc, schedule.mr * schedule.nr)

    @property
    def blocked(self) -> bool:
        """Whether sums may be visited more than once."""
        return self.split or self.schedule.kc > 0

    # -- what happens to a tile ------------------------------------------------------------

    def partial_at(self, block: Block, row: Value, panel: Value, offset: Value) -> Value:
        """Address of the partial sums of row `row`, column panel `panel`, from column `offset`."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        assert self.partial is not None
        at = block.batch
        if self.split:
            at = b.add(b.mul(block.split, kernel.batch), at)
        row_panel = b.udiv(row, schedule.mr)
        inside = b.sub(row, b.mul(row_panel, schedule.mr))
        at = b.add(b.mul(at, kernel.panels), row_panel)
        at = b.add(b.mul(at, kernel.columns), panel)
        within = b.add(b.mul(inside, schedule.nr), offset)
        flat = b.add(b.mul(at, schedule.mr * schedule.nr), within)
        return b.gep(self.nest.acc, self.partial, flat)

    def tile_buffer(self) -> Value:
        """Stack memory of one register tile."""
        assert self.buffer is not None, "this schedule needs no tile buffer"
        return self.buffer

    def keep(self, tile: Tile) -> None:
        """Put the tile into its buffer, rows `nr` elements apart."""
        b, nr = self.b, self.schedule.nr
        for i, row in enumerate(tile):
            for v, x in enumerate(row):
                at = i * nr + v * x.type.width
                b.store(x, b.gep(self.nest.acc, self.tile_buffer(), at), align=x.type.nbytes)

    def visit(self, block: Block, here: Place, height: Value) -> None:
        """Finish `height` rows of the buffered tile: add what earlier blocks of K left, then store.

        The epilogue is written once, in a loop over rows and vectors.
        """
        b, acc = self.b, self.nest.acc
        wide = vec(acc, self.vector)
        with b.loop(0, height) as down, b.loop(0, here.width, self.vector) as across:
            at = b.add(b.mul(down.index, self.schedule.nr), across.index)
            x = b.load(wide, b.gep(acc, self.tile_buffer(), at), align=wide.nbytes)
            if not self.blocked:
                return self.emit_one(block, b.add(here.row, down.index), here, across.index, x)
            base = self.partial_at(block, here.row, here.panel, here.offset)
            place = b.gep(acc, base, at)
            with b.if_(block.first) as branch:
                pass
            with branch.otherwise():
                added = b.add(b.load(wide, place, align=wide.nbytes), x)
            x = branch.join(x, added)
            if self.split:
                return b.store(x, place, align=wide.nbytes)
            with b.if_(block.last) as branch:
                self.emit_one(block, b.add(here.row, down.index), here, across.index, x)
            with branch.otherwise():
                b.store(x, place, align=wide.nbytes)
        return None

    def emit_one(self, block: Block, row: Value, here: Place, inside: Value, x: Value) -> None:
        """The epilogue of one vector (or scalar) of the buffer."""
        b = self.b
        assert self.store is not None
        mask = b.first_lanes(b.sub(here.left, inside), self.vector) if here.ragged else None
        self.store(b, block.batch, row, b.add(here.col, inside), x, "col", mask)

    def finish(self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool) -> None:
        """Store a tile that is complete at once, or leave it to `visit`."""
        b = self.b
        height = const(I64, len(tile))
        if not full:
            height = b.smin(b.sub(self.kernel.m, here.row), height)
        small = len(tile) * len(tile[0]) <= STREAMED_TILE
        if self.direct:
            self.store_tile(block, tile, here, rows, full)
        elif small and (self.inline or self.split):
            self.accumulate(block, tile, here, rows, full)
        elif not self.inline:
            self.keep(tile)
            self.visit(block, here, height)
        else:
            with b.if_(b.and_(block.first, block.last)) as branch:
                self.store_tile(block, tile, here, rows, full)
            with branch.otherwise():
                self.keep(tile)
                self.visit(block, here, height)

    def accumulate(
        self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool
    ) -> None:
        """`visit` in registers, for tiles that are visited after a few elements of K."""
        b, acc, nr = self.b, self.nest.acc, self.schedule.nr
        base = self.partial_at(block, here.row, here.panel, here.offset)
        places = [
            [b.gep(acc, base, i * nr + v * x.type.width) for v, x in enumerate(row)]
            for i, row in enumerate(tile)
        ]
        with b.if_(block.first) as branch:
            pass
        with branch.otherwise():
            sums = [
                [b.add(b.load(x.type, places[i][v], align=x.type.nbytes), x) for v, x in row]
                for i, row in enumerate(map(enumerate, tile))
            ]
        joined = [
            [branch.join(x, total) for x, total in zip(*pair, strict=True)]
            for pair in zip(tile, sums, strict=True)
        ]

        def leave() -> None:
            for place, row in zip(places, joined, strict=True):
                for at, x in zip(place, row, strict=True):
                    b.store(x, at, align=x.type.nbytes)

        if self.split:
            leave()
            return
        with b.if_(block.last) as branch:
            self.store_tile(block, joined, here, rows, full)
        with branch.otherwise():
            leave()

    def store_tile(
        self, block: Block, tile: Tile, here: Place, rows: list[Value], full: bool
    ) -> None:
        """The epilogue straight from registers."""
        if self.schedule.kind == "inner":
            return self.store_scalars(block, tile, here, rows)
        b = self.b
        for i, row in enumerate(tile):
            if full or i == 0:
                self.store_row(block, rows[i], row, here)
                continue
            with b.if_(b.cmp("slt", rows[i], self.kernel.m)):
                self.store_row(block, rows[i], row, here)
        return None

    def store_row(self, block: Block, row: Value, values: list[Value], here: Place) -> None:
        """One row of a tile; vectors that may reach past the edge are masked."""
        b, lanes = self.b, self.schedule.lanes
        assert self.store is not None
        for v, x in enumerate(values):
            mask = here.mask(b, v, lanes)
            self.store(b, block.batch, row, b.add(here.col, v * lanes), x, "col", mask)

    def store_scalars(self, block: Block, tile: Tile, here: Place, rows: list[Value]) -> None:
        """A tile of scalars, as vectors along the rows where that is the cheap axis."""
        b, store = self.b, self.store
        assert store is not None
        if self.nest.out.axis == "row" and len(rows) & (len(rows) - 1) == 0:
            for j in range(len(tile[0])):
                x = b.pack([row[j] for row in tile])
                store(b, block.batch, rows[0], b.add(here.col, j), x, "row", None)
            return
        for i, values in enumerate(tile):
            for j, x in enumerate(values):
                store(b, block.batch, rows[i], b.add(here.col, j), x, "col", None)

    # -- the loops ---------------------------------------------------------------------------

    def emit(self) -> str:
        """The whole kernel."""
        b, kernel = self.b, self.kernel
        with b.loop(kernel.lo, kernel.hi) as task:
            rest, row_block = self.divide(task.index, self.row_blocks)
            rest, col_block = self.divide(rest, self.col_blocks)
            batch, split = rest, const(I64, 0)
            k_start, k_end = const(I64, 0), kernel.k
            if self.split:
                batch, split = self.divide(rest, self.splits)
                k_start = b.mul(split, self.k_split)
                k_end = b.smin(b.add(k_start, self.k_split), kernel.k)
            rows = self.share(row_block, self.row_blocks, kernel.panels)
            columns = self.share(col_block, self.col_blocks, kernel.columns)
            if not self.blocked:
                always = const(I1, True)
                block = Block(batch, k_start, b.sub(k_end, k_start), always, always, split)
                self.pack(block, rows, columns)
                self.panels(block, rows, columns)
            else:
                # K = 0 still visits every tile once: the epilogue of zero is due.
                end = b.smax(k_end, b.add(k_start, 1))
                with b.loop(k_start, end, self.k_block, nonempty=True) as loop:
                    k0 = loop.index
                    after = b.add(k0, self.k_block)
                    block = Block(
                        batch,
                        k0,
                        b.sub(b.smin(after, k_end), k0),
                        b.cmp("eq", k0, k_start),
                        b.cmp("sge", after, k_end),
                        split,
                    )
                    self.pack(block, rows, columns)
                    self.panels(block, rows, columns)
        b.ret()
        return kernel.text()

    def divide(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Quotient and remainder."""
        quotient = self.b.udiv(x, y)
        return quotient, self.b.sub(x, self.b.mul(quotient, y))

    def share(self, index: Value, parts: Value, total: Value) -> tuple[Value, Value]:
        """The `index`-th of `parts` nearly equal ranges of `total`."""
        b = self.b
        start = b.udiv(b.mul(index, total), parts)
        return start, b.udiv(b.mul(b.add(index, 1), total), parts)

    def scratch(self, base: Value, blocks: Value, total: Value, tile: int) -> Value:
        """This chunk's region of task scratch: room for the largest block of panels."""
        b = self.b
        largest = b.udiv(b.add(total, b.sub(blocks, 1)), blocks)
        size = b.mul(b.mul(largest, tile), self.kernel.units(self.k_block))
        return b.gep(self.nest.unit, base, b.mul(self.kernel.lo, size))

    def pack(self, block: Block, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """Pack the block's panels into task scratch, where the schedule says so."""
        b, kernel, schedule = self.b, self.kernel, self.schedule
        unit = self.nest.unit
        self.a_panel = self.b_panel = None
        for side, how, base in (
            (self.a, schedule.pack_a, self.a_base),
            (self.bs, schedule.pack_b, self.b_base),
        ):
            if how == "none":
                continue
            assert base is not None
            first, end = rows if side.is_a else columns
            total = kernel.panels if side.is_a else kernel.columns
            if how == "task":
                blocks = self.row_blocks if side.is_a else self.col_blocks
                region = self.scratch(base, blocks, total, side.tile)
                stride = b.mul(kernel.units(self.k_block), side.tile)
                with b.loop(first, end) as loop:
                    into = b.gep(unit, region, b.mul(b.sub(loop.index, first), stride))
                    pack_panel(
                        kernel,
                        side,
                        block.batch,
                        b.mul(loop.index, side.tile),
                        block.k0,
                        block.count,
                        into,
                    )
                origin = first
            else:
                stride = b.mul(kernel.k_rows, side.tile)
                region = b.gep(unit, base, b.mul(kernel.units(block.k0), side.tile))
                origin = const(I64, 0)
                if not side.operand.shared:
                    origin = b.neg(b.mul(block.batch, total))

            def panel(
                index: Value, region: Value = region, stride: Value = stride, origin: Value = origin
            ) -> Value:
                return b.gep(unit, region, b.mul(b.sub(index, origin), stride))

            if side.is_a:
                self.a_panel = panel
            else:
                self.b_panel = panel

    a_panel: Callable[[Value], Value] | None = None
    b_panel: Callable[[Value], Value] | None = None

    def panels(self, block: Block, rows: tuple[Value, Value], columns: tuple[Value, Value]) -> None:
        """All tiles of a block of C for one block of K."""
        b, schedule = self.b, self.schedule
        step, nr = self.vector, schedule.nr
        with b.loop(columns[0], columns[1]) as loop:
            col = b.mul(loop.index, nr)
            left = b.sub(self.kernel.n, col)

            def strip(width: int, offset: Value, ragged: bool) -> None:
                place = Place(
                    loop.index, offset, b.add(col, offset), b.sub(left, offset), width, ragged
                )
                self.down(block, rows, place)

            start = const(I64, 0)
            if schedule.edge == "masked":
                strip(nr, start, True)
                return
            with b.if_(b.cmp("sge", left, nr)) as branch:
                strip(nr, start, False)
            with branch.otherwise(), b.loop(0, b.smin(left, nr), step) as narrow:
                strip(step, narrow.index, step > 1)

    def down(self, block: Block, rows: tuple[Value, Value], here: Place) -> None:
        """The tiles of one strip of columns: mr rows at a time, then the last `tail` by `tail`."""
        b, kernel, mr = self.b, self.kernel, self.schedule.mr
        full = b.udiv(kernel.m, mr)
        with b.loop(rows[0], b.smin(rows[1], full)) as loop:
            self.tile(block, here, b.mul(loop.index, mr), mr, True)
        if mr > 1:  # only the block that holds the last panel has rows left
            start = b.mul(b.smax(rows[0], full), mr)
            end = b.smin(b.mul(rows[1], mr), kernel.m)
            with b.loop(start, end, self.schedule.tail) as loop:
                self.tile(block, here, loop.index, self.schedule.tail, False)

    def tile(self, block: Block, here: Place, row: Value, height: int, full: bool) -> None:
        """One register tile at (row, here.col)."""
        b, kernel, mr, unit = self.b, self.kernel, self.schedule.mr, self.nest.unit
        here = replace(here, row=row)
        rows = [b.add(row, i) for i in range(height)]
        read = rows if full else [b.smin(r, b.sub(kernel.m, 1)) for r in rows]
        if self.schedule.kind == "inner":
            cols = [b.add(here.col, j) for j in range(here.width)]
            values = inner_tile(kernel, block, self.a, self.bs, read, cols)
        else:
            at_a = at_b = None
            if self.a_panel is not None:
                panel = b.udiv(row, mr)
                at_a = b.gep(unit, self.a_panel(panel), b.sub(row, b.mul(panel, mr)))
            if self.b_panel is not None:
                at_b = b.gep(unit, self.b_panel(here.panel), here.offset)
            left = source_a(kernel, block, self.a, at_a, read, full)
            right = source_b(kernel, block, self.bs, at_b, here)
            vectors = here.width // self.schedule.lanes
            values = outer_tile(kernel, block, left, right, height, vectors)
        self.finish(block, values, here, rows, full)


def emit_main(nest: Nest) -> str:
    """The kernel over blocks of C."""
    return _Main(nest).emit()


def emit_reduce(nest: Nest) -> str:
    """Add the partial sums of every split in order, then the epilogue; a task is a row panel."""
    kernel = Kernel(nest, "_sum")
    b, schedule, acc = kernel.b, nest.schedule, nest.acc
    store = nest.out.open(b, kernel.slots, kernel.params)
    partial, splits = kernel.workspace(nest.partial_slot), kernel.size(SPLITS)
    lanes = schedule.lanes if schedule.kind == "outer" else 1
    wide, size = vec(acc, lanes), schedule.mr * schedule.nr
    tiles = b.mul(kernel.panels, kernel.columns)
    stride = b.mul(b.mul(kernel.batch, tiles), size)
    with b.loop(kernel.lo, kernel.hi) as task:
        batch = b.udiv(task.index, kernel.panels)
        first = b.mul(b.urem(task.index, kernel.panels), schedule.mr)
        rows = b.smin(b.sub(kernel.m, first), schedule.mr)
        tile_row = b.gep(acc, partial, b.mul(b.mul(task.index, kernel.columns), size))
        with b.loop(0, rows) as row, b.loop(0, kernel.n, lanes) as col:
            panel = b.udiv(col.index, schedule.nr)
            inside = b.sub(col.index, b.mul(panel, schedule.nr))
            offset = b.add(b.mul(panel, size), b.add(b.mul(row.index, schedule.nr), inside))
            at = b.gep(acc, tile_row, offset)
            with b.loop(0, splits, carried=[zero(wide), at]) as loop:
                total, here = loop.carried
                loop.next(b.add(total, b.load(wide, here)), b.gep(acc, here, stride))
            mask = None if lanes == 1 else b.first_lanes(b.sub(kernel.n, col.index), lanes)
            store(b, batch, b.add(first, row.index), col.index, loop.results[0], "col", mask)
    b.ret()
    return kernel.text()
