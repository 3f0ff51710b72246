"""Loads and stores: how the index expression of a kernel becomes an address or a vector of them.

An access is, by its coefficient of the vector range: a scalar (none), a contiguous vector (1), a
reversed one (-1), or a gather/scatter (anything else). Addresses are built loop by loop: the terms
of an outer loop are added before the inner loop is entered and shared by all accesses that have
them in common, so a body only adds what varies in it. An invalid element is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering import irtext
from tinyjax.lowering.irtext import I8, I32, I64, Type, Value, vec
from tinyjax.lowering.registers import BOOL, INT32, INT64, Register, register_type

if TYPE_CHECKING:
    from tinyjax.lowering.emit import Emitter


def element(dtype: Any) -> tuple[Type, int]:
    """Scalar storage type of a buffer and how many of them one element has."""
    if dtypes.is_complex(dtype):
        return register_type(dtype), 2
    return I8 if dtype == BOOL else register_type(dtype), 1


def addresses(e: Emitter, index: UOp, complete: bool = True) -> list[Value]:
    """Scalar address of lane 0, per copy, built up over the open loops.

    Terms that vary between lanes other than by the vector range itself are left out, and with
    `complete=False` (before a loop is entered) those of loops that are not open yet.
    """
    constant, terms = e.indexing.linear(index.src[1])
    kind, unit = element(index.src[0].aval.dtype)
    slot = index.src[0].arg[0]
    levels: list[list[tuple[UOp, int | Value]]] = [[] for _ in range(len(e.open) + 1)]
    bits = [1 << r.arg[0] for r in e.open]
    open_mask = 0
    for bit in bits:
        open_mask |= bit
    for atom, c in terms.items():
        mask = e.free[atom]
        if mask & ~open_mask:
            assert not complete, f"{atom} used outside its loops"
            continue
        if atom.op is not Op.RANGE:
            if mask & e.vec_bit:
                continue
            if not complete and atom not in e.memo:
                continue
        level = 0
        for i, bit in enumerate(bits):
            if mask & bit:
                level = i + 1
        levels[level].append((atom, coefficient(e, index, atom, c, unit)))
    first = coefficient(e, index, None, constant, unit)
    key: tuple[Any, ...] = (slot, first)
    pointers = [e.slots[slot]]
    if constant:
        found = e.memo.get(key)
        if found is None:
            found = [e.b.gep(kind, pointers[0], first)]
            e.remember(key, found)
        pointers = found
    for added in levels:
        if not added:
            continue
        key = (*key, *added)
        found = e.memo.get(key)
        if found is None:
            found = _step_addresses(e, kind, pointers, added)
            e.remember(key, found)
        pointers = found
    return pointers


def coefficient(e: Emitter, index: UOp, atom: UOp | None, c: int, unit: int) -> int | Value:
    """`c * unit`, c the coefficient of an atom (None: the constant) in the address of an INDEX.

    A value where the kernel reads it.
    """
    size = e.sizes.get((index.src[1], atom))
    return c * unit if size is None else e.b.mul(size(), unit)


def _step_addresses(
    e: Emitter, kind: Type, pointers: list[Value], level: list[tuple[UOp, int | Value]]
) -> list[Value]:
    """Add the terms of one loop level; copies of a plain loop variable are constant steps."""
    b = e.b
    values = [(e.base[a] if a.op is Op.RANGE else [x.value for x in e.evaluate(a)], c)
              for a, c in level]  # fmt: skip
    copies = max(len(pointers), *(len(v) for v, _ in values))
    plain = all(a.op is Op.RANGE for a, _ in level) and len(pointers) == 1
    out: list[Value] = []
    for u in range(copies):
        if plain and u > 0:
            (step,) = (c for a, c in level if 1 << a.arg[0] == e.jam_bit)
            assert isinstance(step, int), "where sizes are read there is one copy"
            out.append(b.gep(kind, out[0], step * u * (e.lanes if jam_is_vector(e) else 1)))
            continue
        offset: Value | None = None
        for v, c in values:
            x = v[u if len(v) > 1 else 0]
            assert x is not None
            term = b.mul(x, c)
            offset = term if offset is None else b.add(offset, term)
        assert offset is not None
        out.append(b.gep(kind, pointers[u if len(pointers) > 1 else 0], offset))
    return out


def jam_is_vector(e: Emitter) -> bool:
    """Whether copies are whole vectors apart."""
    return e.jam_bit == e.vec_bit


def lane_offsets(e: Emitter, index: UOp) -> tuple[int, list[Value] | None]:
    """How lanes differ: (stride, None) if by a constant stride, else explicit offsets per copy."""
    _, terms = e.indexing.linear(index.src[1])
    unit = element(index.src[0].aval.dtype)[1]
    stride, small, reach = 0, True, 0
    opaque: list[tuple[UOp, int | Value]] = []
    for atom, c in terms.items():
        if atom.op is Op.RANGE:
            if 1 << atom.arg[0] == e.vec_bit:
                stride = c * unit
        elif e.free[atom] & e.vec_bit:
            opaque.append((atom, coefficient(e, index, atom, c, unit)))
            limits = e.indexing.bounds(atom)
            small = small and e.indexing.fits32(atom)
            reach += max(abs(limits[0]), abs(limits[1])) * abs(c * unit)
    if not opaque:
        return stride, None
    b = e.b
    small = small and abs(stride) * e.lanes + reach < 1 << 31
    kind, dtype = (I32, INT32) if small else (I64, INT64)
    out: list[Value] = []
    atoms = [(e.evaluate(a), size) for a, size in opaque]
    for u in range(max(len(v) for v, _ in atoms)):
        total: Value | None = None
        if stride:
            total = even_offsets(e, index, kind)
        for v, size in atoms:
            x = e.vectors.cast(v[u if len(v) > 1 else 0], dtype).value
            assert x is not None
            if isinstance(size, Value):
                size = b.splat(b.cast(size, kind), e.lanes)
            term = b.mul(x, size)
            total = term if total is None else b.add(total, term)
        assert total is not None
        out.append(total)
    return stride, out


def even_offsets(e: Emitter, index: UOp, kind: Type = I32) -> Value:
    """0, 1, ... times the stride of the lanes."""
    unit = element(index.src[0].aval.dtype)[1]
    stride: int | Value = 0
    for atom, c in e.indexing.linear(index.src[1])[1].items():
        if atom.op is Op.RANGE and 1 << atom.arg[0] == e.vec_bit:
            if abs(c * unit) * e.lanes >= 1 << 31:
                kind = I64
            stride = coefficient(e, index, atom, c, unit)
    if isinstance(stride, int):
        return irtext.const_vector(kind, [stride * i for i in range(e.lanes)])
    return e.b.mul(irtext.iota(kind, e.lanes), e.b.splat(e.b.cast(stride, kind), e.lanes))


def conditions(e: Emitter, index: UOp) -> list[Register] | None:
    """The `valid` of an INDEX, per copy."""
    if len(index.src) < 3:
        return None
    return e.value(index.src[2], e.is_vector(index.src[2]))


def load(e: Emitter, node: UOp) -> list[Register]:
    """LOAD: scalar, contiguous vector, reversed vector or gather."""
    index = node.src[0]
    dtype = node.aval.dtype
    wide = e.is_vector(node)
    other = e.value(node.src[1], wide) if len(node.src) > 1 else None
    if not wide:
        return scalar_loads(e, node, index, dtype, other)
    b = e.b
    if other is not None:  # an index literal may be in 32-bit lanes
        other = [e.vectors.cast(x, dtype) for x in other]
    pointers = addresses(e, index)
    stride, offsets = lane_offsets(e, index)
    valid = conditions(e, index)
    kind, unit = element(dtype)
    if is_transposed(e, index) and offsets is None and valid is None and unit == 1:
        made = transposed_load(e, kind, pointers[0], stride)
        return [e.vectors.from_storage(dtype, x) for x in made]
    out: list[Register] = []
    for u in range(e.count(node)):
        pointer = pointers[u if len(pointers) > 1 else 0]
        mask = lane_mask(e, valid, u)
        fill = None if other is None else other[u if len(other) > 1 else 0]
        if offsets is None and stride == unit:
            out.append(contiguous_load(e, dtype, kind, unit, pointer, mask, fill))
            continue
        if offsets is None and stride == -1 and mask is None:
            first = b.gep(kind, pointer, 1 - e.lanes)
            loaded = b.load(vec(kind, e.lanes), first)
            turned = b.shuffle(loaded, None, range(e.lanes - 1, -1, -1))
            out.append(e.vectors.from_storage(dtype, turned))
            continue
        if offsets is None:
            at = even_offsets(e, index)
        else:
            at = offsets[u if len(offsets) > 1 else 0]
        places = b.gep(kind, pointer, at)
        wide_kind = vec(kind, e.lanes)
        parts = []
        for part in range(unit):
            where = places if part == 0 else b.gep(kind, places, irtext.const(vec(I32, e.lanes), 1))
            filler = None if fill is None else storage_parts(e, fill)[part]
            parts.append(b.gather(wide_kind, where, mask, filler))
        out.append(
            Register(dtype, *parts) if unit == 2 else e.vectors.from_storage(dtype, parts[0])
        )
    return out


def is_transposed(e: Emitter, index: UOp) -> bool:
    """Whether consecutive copies are neighbours in memory and consecutive lanes are not."""
    if e.copies != e.lanes or e.jam_bit == e.vec_bit:
        return False
    terms = e.indexing.linear(index.src[1])[1]
    if any(a.op is not Op.RANGE and e.free[a] & e.jam_bit for a in terms):
        return False  # copies are not a constant step apart
    by_bit = {1 << a.arg[0]: c for a, c in terms.items() if a.op is Op.RANGE}
    return by_bit.get(e.jam_bit) == 1 and by_bit.get(e.vec_bit, 1) not in (0, 1)


def transposed_load(e: Emitter, kind: Type, pointer: Value, stride: int) -> list[Value]:
    """A square of elements: one contiguous vector per lane, then exchanged in registers.

    The exchange swaps halves at distance 1, 2, 4, ...: lanes * log2(lanes) shuffles in all.
    """
    b, lanes = e.b, e.lanes
    count = lanes if e.mask is None else e.mask.text.count("true")
    wide = vec(kind, lanes)
    rows = [
        b.load(wide, b.gep(kind, pointer, q * stride)) if q < count else irtext.zero(wide)
        for q in range(lanes)
    ]
    half = lanes // 2
    while half:
        low = [i if not i & half else lanes + (i ^ half) for i in range(lanes)]
        high = [i | half if not i & half else lanes + i for i in range(lanes)]
        for q in range(lanes):
            if not q & half:
                x, y = rows[q], rows[q + half]
                rows[q], rows[q + half] = b.shuffle(x, y, low), b.shuffle(x, y, high)
        half //= 2
    return rows


def storage_parts(e: Emitter, x: Register) -> tuple[Value, ...]:
    """What is stored for a register: one value, or the two parts of a complex."""
    if dtypes.is_complex(x.dtype):
        return x.parts
    return ((e.vectors if has_lanes(x) else e.scalars).to_storage(x),)


def has_lanes(x: Register) -> bool:
    """Whether a register is a vector."""
    return bool(x.parts[0].type.lanes)


def lane_mask(e: Emitter, valid: list[Register] | None, u: int) -> Value | None:
    """Lanes to touch: those of the tail and those whose condition holds."""
    if valid is None:
        return e.mask
    x = valid[u if len(valid) > 1 else 0].value
    assert x is not None
    if not x.type.lanes:
        x = e.b.splat(x, e.lanes)
    return x if e.mask is None else e.b.and_(x, e.mask)


def contiguous_load(
    e: Emitter,
    dtype: Any,
    kind: Type,
    unit: int,
    pointer: Value,
    mask: Value | None,
    fill: Register | None,
) -> Register:
    """One vector from consecutive elements; complex parts are separated by shuffles."""
    b = e.b
    if unit == 1:
        wide = vec(kind, e.lanes)
        if mask is None:
            loaded = b.load(wide, pointer)
        else:
            other = None if fill is None else e.vectors.to_storage(fill)
            loaded = b.masked_load(wide, pointer, mask, other)
        return e.vectors.from_storage(dtype, loaded)
    wide = vec(kind, 2 * e.lanes)
    if mask is None:
        pairs = b.load(wide, pointer)
    else:
        pairs = b.masked_load(wide, pointer, doubled(e, mask))
    parts = [b.shuffle(pairs, None, range(i, 2 * e.lanes, 2)) for i in (0, 1)]
    made = Register(dtype, *parts)
    if fill is not None:
        assert mask is not None
        made = e.vectors.where(Register(BOOL, mask), made, fill)
    return made


def doubled(e: Emitter, mask: Value) -> Value:
    """Each lane of a mask twice, for interleaved complex parts."""
    return e.b.shuffle(mask, None, [i // 2 for i in range(2 * e.lanes)])


def scalar_loads(
    e: Emitter, node: UOp, index: UOp, dtype: Any, other: list[Register] | None
) -> list[Register]:
    """One element; an invalid one reads the buffer's first element instead and drops it."""
    b = e.b
    pointers = addresses(e, index)
    valid = conditions(e, index)
    kind, unit = element(dtype)
    out: list[Register] = []
    for u in range(e.count(node)):
        pointer = pointers[u if len(pointers) > 1 else 0]
        if valid is not None:
            condition = valid[u if len(valid) > 1 else 0]
            pointer = b.select(condition.value, pointer, e.slots[index.src[0].arg[0]])
        if unit == 2:
            parts = [b.load(kind, pointer if i == 0 else b.gep(kind, pointer, 1)) for i in (0, 1)]
            made = Register(dtype, *parts)
        else:
            made = e.scalars.from_storage(dtype, b.load(kind, pointer))
        if valid is not None:
            zero = np.zeros((), dtype)[()]
            fill = e.scalars.constant(dtype, zero) if other is None else (
                other[u if len(other) > 1 else 0]
            )  # fmt: skip
            made = e.scalars.where(condition, made, fill)
        out.append(made)
    return out


def store(e: Emitter, node: UOp, values: list[Register]) -> None:
    """STORE of evaluated values."""
    index = node.src[0]
    dtype = index.src[0].aval.dtype
    b = e.b
    wide = bool(e.free[index] & e.vec_bit)
    pointers = addresses(e, index)
    valid = conditions(e, index)
    kind, unit = element(dtype)
    count = max(len(pointers), len(values), len(valid or ()))
    if wide:
        stride, offsets = lane_offsets(e, index)
        count = max(count, len(offsets or ()))
    for u in range(count):
        pointer = pointers[u if len(pointers) > 1 else 0]
        x = values[u if len(values) > 1 else 0]
        if x.dtype != dtype:  # an index in 32-bit lanes
            x = (e.vectors if wide else e.scalars).cast(x, dtype)
        parts = storage_parts(e, x)
        if not wide:
            if valid is None:
                write_parts(e, kind, parts, pointer)
            else:
                condition = valid[u if len(valid) > 1 else 0].value
                with b.if_(condition):
                    write_parts(e, kind, parts, pointer)
            continue
        mask = lane_mask(e, valid, u)
        if offsets is None and stride == unit:
            if mask is e.mask and single_lane(e):
                # LLVM 22 stores too many bytes when it narrows a one-lane masked store.
                write_parts(e, kind, [b.extract(p, 0) for p in parts], pointer)
                continue
            whole = parts[0] if unit == 1 else interleaved(e, parts)
            if mask is None and index.src[0].arg[0] in e.streamed:
                note = "!0" if b.module.metadata else b.module.node("!{i32 1}")
                b.store(whole, pointer, align=whole.type.nbytes, notes=f"!nontemporal {note}")
            elif mask is None:
                b.store(whole, pointer)
            else:
                b.masked_store(whole, pointer, mask if unit == 1 else doubled(e, mask))
            continue
        if offsets is None and stride == -1 and mask is None:
            turned = b.shuffle(parts[0], None, range(e.lanes - 1, -1, -1))
            b.store(turned, b.gep(kind, pointer, 1 - e.lanes))
            continue
        if offsets is None:
            at = even_offsets(e, index)
        else:
            at = offsets[u if len(offsets) > 1 else 0]
        places = b.gep(kind, pointer, at)
        for i, part in enumerate(parts):
            where = places if i == 0 else b.gep(kind, places, irtext.const(vec(I32, e.lanes), 1))
            b.scatter(part, where, mask)


def single_lane(e: Emitter) -> bool:
    """Whether the tail has one element only."""
    return e.mask is not None and e.mask.text.count("true") == 1


def write_parts(e: Emitter, kind: Type, parts: Sequence[Value], pointer: Value) -> None:
    """One scalar element."""
    for i, part in enumerate(parts):
        e.b.store(part, pointer if i == 0 else e.b.gep(kind, pointer, i))


def interleaved(e: Emitter, parts: Sequence[Value]) -> Value:
    """re, im, re, im, ... of two vectors."""
    lanes = e.lanes
    order = [i // 2 + (lanes if i % 2 else 0) for i in range(2 * lanes)]
    return e.b.shuffle(parts[0], parts[1], order)


def _row(e: Emitter, number: int, kind: Type) -> Value:
    """The array of a row buffer, a whole number of vectors long."""
    if number not in e.rows:
        size = -(-e.row_sizes[number] // 64) * 64
        e.rows[number] = e.b.alloca(kind, size)
    return e.rows[number]


def write_row(e: Emitter, number: int, values: list[Register]) -> None:
    """Keep the values of this step for a later sweep; lanes of a tail that do not exist as well."""
    assert e.row_range is not None
    for u, x in enumerate(values):
        kind = x.value.type.scalar
        e.b.store(x.value, e.b.gep(kind, _row(e, number, kind), e.base[e.row_range][u]))


def read_row(e: Emitter, node: UOp, number: int) -> list[Register]:
    """What an earlier sweep computed for this step."""
    assert e.row_range is not None
    dtype = node.aval.dtype
    kind = register_type(dtype)
    wide = vec(kind, e.lanes) if e.is_vector(node) else kind
    row = _row(e, number, kind)
    bases = e.base[e.row_range]
    places = [e.b.gep(kind, row, bases[u]) for u in range(len(bases))]
    return [Register(dtype, e.b.load(wide, at)) for at in places]
