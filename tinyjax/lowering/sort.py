"""SORT as a kernel: rows in parallel, each sorted through a permutation.

Keys become unsigned integers of the same order (NaN last and all alike, -0 as 0, complex as two
keys), so every dtype has one algorithm. From the last key to the first, the permutation is sorted
stably: short rows by insertion, longer ones by a least-significant-digit radix sort with 8-bit
digits, which skips digits that are equal in the whole row. Then the operands are gathered.

Sizes are read at run time, so equal dtypes and key counts share one object. A symbolic axis is sorted
as far as the run's size; memory has its upper bound.
Source: Knuth, The Art of Computer Programming 3, 5.2.1 and 5.2.5.
Known to be suboptimal: one long row is sorted by one thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.uop import UOp
from tinyjax.lowering.dims import Bounded
from tinyjax.lowering.irtext import I8, I16, I32, I64, PTR, Function, Module, Type, Value, const
from tinyjax.lowering.kernel import Code, Kernel
from tinyjax.lowering.target import Target

INSERTION = 40
"""Rows up to this length are sorted by insertion: a radix pass touches 256 counters."""
MAX_TASKS = 64
CYCLES_PER_ELEMENT = 40.0
COUNT, STRIDE, ROWS, ROWS_PER_TASK, REGION, KEYS_B, ORDER_A, ORDER_B, COUNTERS, SIZE, PER_SIZE = (
    range(11)
)
FIELDS = {"": SIZE, "length": SIZE + 1, "rows": PER_SIZE + 1}
"""How many parameters there are, by what is symbolic."""


@dataclass(frozen=True, slots=True)
class SortKernel(Kernel):
    """Operands of these avals sorted together along an axis by the first `num_keys` of them."""

    avals: tuple[Aval, ...]
    axis: int
    num_keys: int

    @staticmethod
    def of(node: UOp) -> SortKernel:
        """The kernel of a SORT node."""
        axis, num_keys, _ = node.arg
        return SortKernel(tuple(s.aval for s in node.src), axis, num_keys)

    def title(self) -> str:
        """For listings."""
        return "sort"

    def codes(self, target: Target) -> list[Code]:
        """One function; a task is a block of rows with a scratch region of its own."""
        shape = self.avals[0].shape
        count = shape[self.axis] if shape else 1
        stride = math.prod(shape[self.axis + 1 :]) if shape else 1
        rows = self.avals[0].size // max(count, 1)
        tasks = min(rows, MAX_TASKS)
        places = [0]
        for nbytes in (8 * count, 8 * count, 4 * count, 4 * count, 8 * 256):
            places.append(places[-1] + -(-nbytes // 64) * 64)
        per_task = -(-rows // max(tasks, 1))
        params: tuple[int, ...] = (count, stride, rows, per_task, places[5], *places[1:5])
        lead, sized = next((s for s in shape if s != 1), 1), ""
        if isinstance(count, Bounded):
            params, sized = (*params, count.number), "length"
        elif isinstance(lead, Bounded):  # results have no memory behind it
            params, sized = (*params, lead.number, rows // lead), "rows"
        dtypes_of = tuple(a.dtype for a in self.avals)
        ir = emit_sort(dtypes_of, self.num_keys, count > INSERTION, sized)
        total = -(-rows // max(per_task, 1))
        cycles = CYCLES_PER_ELEMENT * self.avals[0].size * len(self.avals)
        how = "radix" if count > INSERTION else "insertion"
        actions = (f"{how}({count})", f"tasks({total} of {per_task} rows)")
        return [Code(ir, "scalar", total, 1, (total * places[5],), params, cycles, actions)]

    def interpret(self, arrays: Sequence[np.ndarray[Any, Any]], dims: Sequence[int] = ()) -> None:
        """NumPy's stable sort on the keys' integers."""
        count = len(self.avals)
        axis = self.axis
        inputs = [np.moveaxis(a, axis, -1) if a.ndim else a.reshape(1) for a in arrays[count:]]
        length = self.avals[0].shape[axis] if self.avals[0].shape else 1
        if isinstance(length, Bounded) and dims:
            inputs = [x[..., : dims[length.number]] for x in inputs]
        order = np.broadcast_to(np.arange(inputs[0].shape[-1]), inputs[0].shape)
        for x in reversed(inputs[: self.num_keys]):
            for key in reversed(sort_keys(x)):
                ranked = np.take_along_axis(key, order, -1)
                order = np.take_along_axis(order, np.argsort(ranked, axis=-1, kind="stable"), -1)
        for out, x in zip(arrays, inputs, strict=False):
            done = np.take_along_axis(x, order, -1)
            if out.ndim:
                np.moveaxis(out, axis, -1)[..., : done.shape[-1]] = done
            else:
                out[...] = done[0]


# --- keys ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One integer key of an operand: `bits` at `offset` bytes of an element of `itemsize` bytes."""

    kind: str  # unsigned, signed, float
    bits: int
    offset: int
    itemsize: int
    infinity: int = 0  # floats: magnitudes above it are NaN
    negative_nan: bool = False  # fnuz formats: NaN is the code of -0
    lift: int = 0  # formats below 8 bits: brings the sign to the top


def parts_of(dtype: Any) -> list[_Part]:
    """The keys of a dtype, most significant first."""
    if dtypes.is_complex(dtype):
        real = dtypes.real_dtype(dtype)
        (part,) = parts_of(real)
        size = real.itemsize
        return [_Part("float", part.bits, offset, 2 * size, part.infinity) for offset in (0, size)]
    size = int(dtype.itemsize)
    lift = max(0, 8 * size - dtypes.bit_width(dtype))
    if dtype == dtypes.float8_e8m0fnu:  # codes rise with the values, NaN is the last one
        return [_Part("unsigned", 8, 0, 1)]
    if dtypes.is_float(dtype):
        unsigned = np.dtype(f"u{size}")
        fnuz = "fnuz" in dtype.name
        with np.errstate(all="ignore"):
            top = np.array(np.inf, dtype)
            if fnuz or not np.isinf(np.asarray(top, np.float64)):
                top = np.array(dtypes.finfo(dtype).max, dtype)
        infinity = int(top.reshape(1).view(unsigned)[0]) << lift
        return [_Part("float", 8 * size, 0, size, infinity, fnuz, lift)]
    signed = dtypes.is_integer(dtype) and dtypes.is_signed(dtype)
    return [_Part("signed" if signed else "unsigned", 8 * size, 0, size, lift=lift)]


def sort_keys(x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The keys of an array as unsigned integers, most significant first."""
    found = []
    for part in parts_of(x.dtype):
        raw = np.ascontiguousarray(x)
        if dtypes.is_complex(x.dtype):
            raw = np.ascontiguousarray(raw.real if part.offset == 0 else raw.imag)
        word = raw.view(f"u{part.bits // 8}").astype(np.uint64)
        word = word << np.uint64(part.lift) & np.uint64((1 << part.bits) - 1)
        sign = np.uint64(1 << (part.bits - 1))
        if part.kind == "signed":
            word = word ^ sign
        elif part.kind == "float":
            magnitude = word & (sign - np.uint64(1))
            nan = word == sign if part.negative_nan else magnitude > np.uint64(part.infinity)
            word = np.where(magnitude == 0, np.uint64(0), word)
            everything = np.uint64((1 << part.bits) - 1)
            above = (word | sign) - np.uint64(part.negative_nan)  # -0 left a gap; the top is NaN's
            word = np.where(word & sign != 0, ~word & everything, above)
            word = np.where(nan, everything, word)
        found.append(word)
    return found


def _word(bits: int) -> Type:
    return {8: I8, 16: I16, 32: I32, 64: I64}[bits]


def _load_key(b: Function, part: _Part, address: Value, wide: Type) -> Value:
    """The key at an element's address, as an integer of the sorting width."""
    type = _word(part.bits)
    at = b.gep(I8, address, part.offset)
    word = b.load(type, at, align=1)
    if part.lift:
        word = b.shl(word, const(type, part.lift))
    sign = const(type, 1 << (part.bits - 1))
    if part.kind == "signed":
        word = b.xor(word, sign)
    elif part.kind == "float":
        magnitude = b.and_(word, const(type, (1 << (part.bits - 1)) - 1))
        if part.negative_nan:
            nan = b.cmp("eq", word, sign)
        else:
            nan = b.cmp("ugt", magnitude, const(type, part.infinity))
        word = b.select(b.cmp("eq", magnitude, const(type, 0)), const(type, 0), word)
        negative = b.cmp("slt", word, const(type, 0))
        above = b.or_(word, sign)
        if part.negative_nan:  # -0 left a gap; the top is NaN's
            above = b.sub(above, const(type, 1))
        word = b.select(negative, b.not_(word), above)
        word = b.select(nan, const(type, (1 << part.bits) - 1), word)
    return word if type is wide else b.cast(word, wide, signed=False)


# --- code ---------------------------------------------------------------------------------------


def emit_sort(operands: tuple[Any, ...], num_keys: int, radix: bool, sized: str = "") -> str:
    """The IR of a sort of operands of these dtypes; `sized`: the "length" of rows or the
    number of "rows" is that of the run's size."""
    module = Module()
    b = module.function("k", [("slots", PTR), ("dims", PTR), ("lo", I64), ("hi", I64)])
    slots, dims, lo, hi = b.args
    count = len(operands)
    where = [b.load(PTR, b.gep(PTR, slots, i)) for i in range(2 * count + 2)]
    scratch, params = where[2 * count], where[2 * count + 1]
    size = [b.load(I64, b.gep(I64, params, i)) for i in range(FIELDS[sized])]
    n, stride = size[COUNT], size[STRIDE]
    length, rows = n, size[ROWS]
    if sized:
        actual = b.load(I64, b.gep(I64, dims, size[SIZE]))
        if sized == "length":
            length, rows = actual, b.select(b.cmp("sgt", actual, 0), rows, const(I64, 0))
        else:
            rows = b.mul(actual, size[PER_SIZE])
    with b.loop(lo, hi) as task:
        region = b.gep(I8, scratch, b.mul(task.index, size[REGION]))
        first = b.mul(task.index, size[ROWS_PER_TASK])
        last = b.smin(b.add(first, size[ROWS_PER_TASK]), rows)
        buffers = [region, *(b.gep(I8, region, size[i]) for i in (KEYS_B, ORDER_A, ORDER_B))]
        counters = b.gep(I8, region, size[COUNTERS])
        with b.loop(first, last) as row:
            block = b.mul(b.udiv(row.index, stride), b.mul(n, stride))
            base = b.add(block, b.urem(row.index, stride))
            order = _sort_row(
                b, operands, num_keys, radix, where[count:], base, length, stride, buffers, counters
            )
            for i, dtype in enumerate(operands):
                _gather(b, dtype.itemsize, where[i], where[count + i], order, base, length, stride)
    b.ret()
    return module.text()


def _address(
    b: Function, itemsize: int, buffer: Value, base: Value, at: Value, stride: Value
) -> Value:
    element = b.add(base, b.mul(at, stride))
    return b.gep(I8, buffer, b.mul(element, itemsize))


def _gather(
    b: Function, itemsize: int, out: Value, x: Value, order: Value, base: Value, n: Value,
    stride: Value,
) -> None:  # fmt: skip
    """out[i] = x[order[i]] along the row."""
    pieces = 2 if itemsize == 16 else 1
    type = _word(8 * itemsize // pieces)
    with b.loop(0, n) as i:
        chosen = b.cast(b.load(I32, b.gep(I32, order, i.index)), I64, signed=False)
        source = _address(b, itemsize, x, base, chosen, stride)
        target = _address(b, itemsize, out, base, i.index, stride)
        for piece in range(pieces):
            word = b.load(type, b.gep(type, source, piece), align=1)
            b.store(word, b.gep(type, target, piece), align=1)


def _sort_row(
    b: Function, operands: tuple[Any, ...], num_keys: int, radix: bool, inputs: Sequence[Value],
    base: Value, n: Value, stride: Value, buffers: Sequence[Value], counters: Value,
) -> Value:  # fmt: skip
    """Sort one row's permutation; returns where it lies."""
    keys, other_keys, order, other_order = buffers
    with b.loop(0, n) as i:
        b.store(b.cast(i.index, I32), b.gep(I32, order, i.index))
    for number in reversed(range(num_keys)):
        dtype = operands[number]
        for part in reversed(parts_of(dtype)):
            wide = I64 if part.bits == 64 else I32
            with b.loop(0, n) as i:
                chosen = b.cast(b.load(I32, b.gep(I32, order, i.index)), I64, signed=False)
                at = _address(b, part.itemsize, inputs[number], base, chosen, stride)
                b.store(_load_key(b, part, at, wide), b.gep(wide, keys, i.index))
            if radix:
                keys, other_keys, order, other_order = _radix(
                    b, wide, part.bits, n, keys, other_keys, order, other_order, counters
                )
            else:
                _insertion(b, wide, n, keys, order)
    return order


def _insertion(b: Function, wide: Type, n: Value, keys: Value, order: Value) -> None:
    """Move each element down past the larger ones before it."""
    with b.loop(1, n) as i:
        key = b.load(wide, b.gep(wide, keys, i.index))
        place = b.load(I32, b.gep(I32, order, i.index))
        with b.while_([i.index]) as w:
            (j,) = w.carried
            below = b.smax(b.sub(j, 1), 0)
            before = b.load(wide, b.gep(wide, keys, below))
            w.test(b.and_(b.cmp("sgt", j, 0), b.cmp("ugt", before, key)))
            b.store(before, b.gep(wide, keys, j))
            b.store(b.load(I32, b.gep(I32, order, below)), b.gep(I32, order, j))
            w.next(below)
        (j,) = w.results
        b.store(key, b.gep(wide, keys, j))
        b.store(place, b.gep(I32, order, j))


def _radix(
    b: Function, wide: Type, bits: int, n: Value, keys: Value, other_keys: Value, order: Value,
    other_order: Value, counters: Value,
) -> list[Value]:  # fmt: skip
    """One pass per 8-bit digit from one pair of buffers to the other; returns them as they are."""
    pair = [keys, other_keys, order, other_order]
    with b.loop(0, bits, 8, carried=pair, nonempty=True) as digit:
        k, ok, o, oo = digit.carried
        shift = b.cast(digit.index, wide)

        def bucket(key: Value) -> Value:
            low = b.and_(b.lshr(key, shift), const(wide, 255))
            return b.gep(I64, counters, b.cast(low, I64, signed=False))

        with b.loop(0, 256, nonempty=True) as c:
            b.store(const(I64, 0), b.gep(I64, counters, c.index))
        with b.loop(0, n, nonempty=True) as i:
            at = bucket(b.load(wide, b.gep(wide, k, i.index)))
            b.store(b.add(b.load(I64, at), 1), at)
        same = b.load(I64, bucket(b.load(wide, k)))
        with b.if_(b.cmp("ne", same, n)) as differ:
            with b.loop(0, 256, carried=[const(I64, 0)], nonempty=True) as c:
                at = b.gep(I64, counters, c.index)
                had = b.load(I64, at)
                b.store(c.carried[0], at)
                c.next(b.add(c.carried[0], had))
            with b.loop(0, n, nonempty=True) as i:
                key = b.load(wide, b.gep(wide, k, i.index))
                at = bucket(key)
                to = b.load(I64, at)
                b.store(b.add(to, 1), at)
                b.store(key, b.gep(wide, ok, to))
                b.store(b.load(I32, b.gep(I32, o, i.index)), b.gep(I32, oo, to))
        digit.next(differ.join(ok, k), differ.join(k, ok), differ.join(oo, o), differ.join(o, oo))
    return list(digit.results)
