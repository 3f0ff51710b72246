"""Packing: panels of an operand in the order in which the register tile reads them.

Layouts, in units (elements of the accumulator type, or words that hold a group of narrow ones),
zero padded along k to a multiple of the vector length:

    A   [panel][k][mr]           B   [panel][k][nr]

An operand contiguous along k is loaded 128 bits a row and transposed in registers; one contiguous
along the other axis is copied; edges go by masks or one element at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyjax.lowering.dot_expression import Computed
from tinyjax.lowering.dot_frame import Kernel, Nest, Side, open_side
from tinyjax.lowering.dot_operands import storage
from tinyjax.lowering.irtext import (
    I1,
    I16,
    I32,
    I64,
    IRBuilder,
    Type,
    Value,
    const,
    const_vector,
    poison,
    vec,
    zero,
)


def transpose(b: IRBuilder, rows: list[Value]) -> list[Value]:
    """Rows of one 128-bit block each -> as many vectors as a block has elements, in registers.

    Rows that lie a block's length apart share a vector, so that only neighbours inside 128-bit
    blocks change places: each step is one instruction on x86 and on AArch64, and joining the rows
    is part of loading them. For 16 rows of 32 bits, 8 shuffles.
    """
    size = rows[0].type.width

    def join(parts: list[Value]) -> Value:
        while len(parts) > 1:
            parts = [b.concat(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def interleave(x: Value, y: Value, unit: int, high: bool) -> Value:
        picks: list[int] = []
        for block in range(0, x.type.width, size):
            start = block + (size // 2 if high else 0)
            for at in range(start, start + size // 2, unit):
                picks += range(at, at + unit)
                picks += range(x.type.width + at, x.type.width + at + unit)
        return b.shuffle(x, y, picks)

    group, unit = [join(rows[i::size]) for i in range(size)], 1
    while unit < size:
        # Rows i and i+1 of each pair hold neighbours; after log2(size) rounds, columns.
        pairs = list(zip(group[::2], group[1::2], strict=True))
        low = [interleave(x, y, unit, False) for x, y in pairs]
        high = [interleave(x, y, unit, True) for x, y in pairs]
        unit *= 2
        if unit < size:  # pairs for the next round are neighbours again
            group = low + high
        else:
            group = [x for pair in zip(low, high, strict=True) for x in pair]
    return group


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
        whole = b.and_(full, -block_width(unit))
        _pack_blocks(kernel, side, place, whole)
        _pack_scalars(kernel, side, place, whole, end)
    elif side.operand.computed and tile % lanes == 0 and kernel.nest.target.masks:
        _pack_computed(kernel, side, place, full)
        if group > 1:
            _pack_scalars(kernel, side, place, full, end)
    else:
        if side.is_a and kernel.overlaps:  # no panel reaches past the edge
            _pack_rows(kernel, side, place, full)
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


def _pack_computed(kernel: Kernel, side: Side, place: Panel, count: Value) -> None:
    """A panel of whole vectors along mn, of an operand that is long to write: once, in a loop."""
    b, unit, lanes = kernel.b, kernel.nest.unit, kernel.nest.schedule.lanes
    left = b.sub(side.limit, place.mn)
    with b.loop(0, count) as down, b.loop(0, side.tile, lanes) as across:
        k, mn = b.add(place.k0, down.index), b.add(place.mn, across.index)
        mask = b.first_lanes(b.sub(left, across.index), lanes)
        x = side.unit(kernel, place.batch, mn, k, lanes, False, mask)
        at = b.add(b.mul(down.index, side.tile), across.index)
        b.store(x, b.gep(unit, place.into, at), align=unit.nbytes)


def _pack_scalars(kernel: Kernel, side: Side, place: Panel, lo: Value, hi: Value) -> None:
    """Rows lo..hi of a packed panel, one element at a time."""
    b, unit = kernel.b, kernel.nest.unit
    last = b.sub(side.limit, 1)
    with b.loop(lo, hi) as down, b.loop(0, side.tile) as across:
        mn = b.smin(b.add(place.mn, across.index), last)
        x = side.unit(kernel, place.batch, mn, b.add(place.k0, down.index), 1, False)
        b.store(x, b.gep(unit, place.into, b.add(b.mul(down.index, side.tile), across.index)))


def block_width(unit: Type) -> int:
    """Elements of a block of 128 bits."""
    return 128 // unit.bits


def _pack_blocks(kernel: Kernel, side: Side, place: Panel, whole: Value) -> None:
    """A panel contiguous along k: `lanes` rows of 128 bits each, transposed in registers."""
    b, unit, lanes, tile = kernel.b, kernel.nest.unit, kernel.nest.schedule.lanes, side.tile
    last, size = b.sub(side.limit, 1), block_width(unit)

    def columns(start: Value, width: int) -> None:
        rows = [b.smin(b.add(b.add(place.mn, start), r), last) for r in range(width)]
        with b.loop(0, whole, size) as loop:
            k = b.add(place.k0, loop.index)
            loaded = [side.unit(kernel, place.batch, row, k, size, True) for row in rows]
            loaded += [poison(vec(unit, size))] * (lanes - width)
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
    side = open_side(kernel, is_a)
    panels = kernel.panels if is_a else kernel.columns
    base = kernel.workspace(nest.a_slot if is_a else nest.b_slot)
    kernel.run_only(lambda: panels if operand.shared else b.mul(kernel.batch, panels))
    with b.loop(kernel.lo, kernel.hi) as task:
        batch, panel = b.udiv(task.index, panels), b.urem(task.index, panels)
        if operand.shared:
            batch = const(I64, 0)
        size = b.mul(kernel.k_rows, side.tile)
        into = b.gep(nest.unit, base, b.mul(task.index, size))
        mn = kernel.panel_rows(panel)[0] if is_a else b.mul(panel, side.tile)
        pack_panel(kernel, side, batch, mn, const(I64, 0), kernel.k, into)
    b.ret()
    return kernel.text()


UNROLLED = 8
"""Vectors of a run of known length that are copied without a loop."""


def copier(main: Kernel, is_a: bool) -> Kernel:
    """A function that packs one panel of an operand: (batch, mn, k0, count, into).

    `into` is in units from the start of the operand's workspace.
    """
    nest, names = main.nest, ("batch", "mn", "k0", "count", "into")
    kernel = Kernel(nest, "_panel_a" if is_a else "_panel_b", main, names)
    batch, mn, k0, count, at = kernel.extra
    base = kernel.workspace(nest.a_slot if is_a else nest.b_slot)
    into = kernel.b.gep(nest.unit, base, at)
    pack_panel(kernel, open_side(kernel, is_a), batch, mn, k0, count, into)
    kernel.b.ret()
    return kernel


def row_copier(main: Kernel) -> Kernel:
    """A function that copies rows of A as they are: (batch, row, rows, k0, count, stride, into).

    Element k of a row lands `k - k0` elements after its start, rows are `stride` units apart. The
    last group is filled up with zeros.
    """
    names = ("batch", "row", "rows", "k0", "count", "stride", "into")
    kernel = Kernel(main.nest, "_rows_a", main, names)
    b, nest, schedule = kernel.b, main.nest, main.nest.schedule
    side = open_side(kernel, True)
    batch, row, rows, k0, count, stride, at = kernel.extra
    into = b.gep(nest.unit, kernel.workspace(nest.a_slot), at)
    group = schedule.group
    with b.loop(0, rows) as loop:
        mn = b.add(row, loop.index)
        start = b.gep(nest.unit, into, b.mul(loop.index, stride))
        if group > 1:
            last = kernel.units(b.sub(count, 1))
            b.store(zero(I32), b.gep(I32, start, last))
        load = side.load
        if isinstance(load, Computed) and len(load.sizes[load.number("col")]) > 1:
            run, end = load.run("col"), b.add(k0, count)
            runs = b.udiv(b.add(end, run - 1), run)
            whole = schedule.kc == 0 and schedule.split_k == 0  # runs are not cut by blocks of K
            with b.loop(b.udiv(k0, run), runs) as each:
                at = b.mul(each.index, run)
                low, high = b.smax(at, k0), b.smin(b.add(at, run), end)
                if whole:
                    low, high = at, b.add(at, run)
                place = b.gep(element_of(kernel, side), start, b.sub(low, k0))
                count = const(I64, run) if whole else b.sub(high, low)
                _copy_run(kernel, side, batch, mn, low, count, place, run)
        else:
            _copy_run(kernel, side, batch, mn, k0, count, start, None)
    b.ret()
    return kernel


def element_of(kernel: Kernel, side: Side) -> Type:
    """What an element of a packed row is: a sum's type, or the bits that are multiplied."""
    if kernel.nest.schedule.group == 1:
        return kernel.nest.acc
    return storage(side.operand.dtype) if kernel.nest.schedule.group == 4 else I16


def _copy_run(
    kernel: Kernel, side: Side, batch: Value, mn: Value, k: Value, count: Value, into: Value,
    run: int | None,
) -> None:  # fmt: skip
    """into[i] = side(mn, k + i) for i < count; with `run`, all of them lie in one run of K."""
    b, schedule = kernel.b, kernel.nest.schedule
    element, width = element_of(kernel, side), schedule.lanes * schedule.group

    def fetch(at: Value, width: int, mask: Value | None) -> Value:
        if schedule.group > 1:
            return side.bits(kernel, batch, mn, at, width, True, mask, run is not None)
        return side.fetch(kernel, batch, mn, at, width, True, mask, run is not None)

    whole = b.and_(count, -width)

    def copy(at: Value) -> None:
        x = fetch(b.add(k, at), width, None)
        b.store(x, b.gep(element, into, at), align=element.nbytes)

    if count.const is not None and count.const <= UNROLLED * width:
        for at in range(0, int(count.const) // width * width, width):
            copy(const(I64, at))
    else:
        with b.loop(0, whole, width) as loop:
            copy(loop.index)
    if run is not None and run % width == 0:
        return
    if kernel.nest.target.masks:
        with b.if_(b.cmp("slt", whole, count)):
            mask = b.first_lanes(b.sub(count, whole), width)
            x = fetch(b.add(k, whole), width, mask)
            b.masked_store(x, b.gep(element, into, whole), mask)
        return
    with b.loop(whole, count) as loop:
        x = fetch(b.add(k, loop.index), 1, None)
        b.store(x, b.gep(element, into, loop.index))
