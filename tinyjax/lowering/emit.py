"""Scheduled nest -> LLVM IR text.

The emitter walks the ordered list once per part of a loop (main part, left-over vectors, masked
tail), keeping for every node the registers it lives in: one `Register` per *copy* of the unrolled
loop, scalar unless the node depends on the vector range. Everything is SSA; accumulators are values
carried by the loops; addresses are built level by level, so each loop body only adds what varies
in it. No LLVM pass is needed afterwards.

A vector range contributes lanes: a node that depends on it is a vector, everything else a scalar
that is splatted where a vector needs it. Index arithmetic that provably fits uses 32-bit lanes: a
register of an int64 node may therefore be int32 (`Emitter.same_width` evens them out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value
from tinyjax.lowering import irtext
from tinyjax.lowering.elementwise import Elementwise
from tinyjax.lowering.interpret import FOLD_OPS, identity
from tinyjax.lowering.irtext import I1, I8, I32, I64, PTR, IRBuilder, Type, Value, vec
from tinyjax.lowering.nest import Accumulate, Line, Loop, Nest, Write, fold_operands, ranges_of
from tinyjax.lowering.registers import BOOL, INT32, INT64, Register, is_narrow, register_type
from tinyjax.lowering.schedule import FOLD_CHAIN, Schedule
from tinyjax.lowering.target import Target

Parts = list[tuple[Register, ...]]
"""An accumulator: per copy, the value (and the index of an argmax)."""


class Emitter:
    """State of one kernel's emission; `values` holds what is computed in the open loops."""

    def __init__(self, b: IRBuilder, made: Schedule, target: Target, slots: dict[int, Value]) -> None:
        self.b, self.nest, self.schedule, self.target = b, made.nest, made, target
        self.free = made.nest.free
        self.indexing = made.nest.indexing
        self.slots = slots
        self.scalars = Elementwise(b, target)
        self.vectors = self.scalars
        self.memo: dict[Any, Any] = {}
        self.journal: list[list[Any]] = [[]]
        self.open: list[UOp] = []
        self.base: dict[UOp, list[Value]] = {}  # scalar value of each open range, per copy
        self.vec_bit = 0
        self.lanes = 0
        self.jam_bit = 0
        self.copies = 1
        self.mask: Value | None = None  # lanes that exist, in a tail
        self.accumulators: dict[UOp, Parts] = {}

    # --- scopes --------------------------------------------------------------------------------------

    def remember(self, key: Any, value: Any) -> None:
        """Keep `value` until the scope that is open now closes."""
        self.memo[key] = value
        self.journal[-1].append(key)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values computed inside are forgotten at the end: they do not dominate what follows."""
        self.journal.append([])
        yield
        for key in self.journal.pop():
            del self.memo[key]

    # --- values --------------------------------------------------------------------------------------

    def is_vector(self, node: UOp) -> bool:
        """Whether the node differs between lanes."""
        return bool(self.free[node] & self.vec_bit)

    def count(self, node: UOp) -> int:
        """Registers the node lives in."""
        return self.copies if self.free[node] & self.jam_bit else 1

    def value(self, node: UOp, vector: bool) -> list[Register]:
        """The registers of a node, splatted if a vector is asked for and it is a scalar."""
        wide = vector and self.vec_bit != 0
        if node.op is Op.CONST:
            found = self.memo.get((node, wide))
            if found is None:
                found = [self.literal(node, wide)]
                self.remember((node, wide), found)
            return found
        if not wide or self.is_vector(node):
            return self.evaluate(node)
        key = (node, "splat")
        found = self.memo.get(key)
        if found is None:
            found = [self.splat(node, x) for x in self.evaluate(node)]
            self.remember(key, found)
        return found

    def literal(self, node: UOp, wide: bool) -> Register:
        """A CONST; a small index literal takes 32-bit lanes."""
        dtype = node.aval.dtype
        if wide and dtype == INT64 and self.indexing.fits32(node):
            return self.vectors.constant(INT32, const_value(node))
        return (self.vectors if wide else self.scalars).constant(dtype, const_value(node))

    def splat(self, node: UOp, x: Register) -> Register:
        """A scalar in every lane; index values that fit in 32-bit lanes."""
        if x.dtype == INT64 and self.indexing.fits32(node):
            x = self.scalars.cast(x, INT32)
        return self.vectors.splat(x)

    def evaluate(self, node: UOp) -> list[Register]:
        """The registers of a node, emitted here unless they exist."""
        found = self.memo.get(node)
        if found is not None:
            return found  # type: ignore[no-any-return]
        if node.op is Op.RANGE:
            made = self.loop_variable(node)
        elif node.op is Op.LOAD:
            made = self.load(node)
        elif node.op is Op.GETTUPLE:
            made = [parts[node.arg] for parts in self.memo[node.src[0], "parts"]]
        elif node.op is Op.PREFIX:
            made = self.prefix(node)
        elif node.op is Op.FOLD:
            made = [parts[0] for parts in self.memo[node, "parts"]]
        else:
            made = self.elementwise(node)
        self.remember(node, made)
        return made

    def loop_variable(self, node: UOp) -> list[Register]:
        """A RANGE as a value: its base, plus 0, 1, ... over the lanes."""
        bases = self.base[node]
        if not self.is_vector(node):
            return [Register(INT64, x) for x in bases]
        b, narrow = self.b, self.indexing.fits32(node)
        kind, dtype = (I32, INT32) if narrow else (I64, INT64)
        steps = irtext.iota(kind, self.lanes)
        first = b.add(b.splat(b.cast(bases[0], kind), self.lanes), steps)
        out = [Register(dtype, first)]
        for u in range(1, len(bases)):
            out.append(Register(dtype, b.add(first, u * self.lanes)))
        return out

    def elementwise(self, node: UOp) -> list[Register]:
        """One op, for every copy."""
        wide = self.is_vector(node)
        ops = self.vectors if wide else self.scalars
        args = [self.value(s, wide) for s in node.src]
        dtype = node.aval.dtype
        if wide and any(s.aval.dtype == INT64 for s in node.src):
            args = self.same_width(node, args)
            if dtype == INT64 and self.indexing.fits32(node):
                dtype = INT32
        elif wide and dtype == INT64 and self.indexing.fits32(node):
            dtype = INT32
        return [
            ops.apply(node.op, node.arg, dtype, [a[u if len(a) > 1 else 0] for a in args])
            for u in range(self.count(node))
        ]

    def same_width(self, node: UOp, args: list[list[Register]]) -> list[list[Register]]:
        """Index operands all in 32-bit lanes or all in 64-bit ones."""
        sources = [s for s in node.src if s.aval.dtype == INT64]
        small = all(self.indexing.fits32(s) for s in sources)
        if node.aval.dtype == INT64 and node.op is not Op.CAST:
            small = small and self.indexing.fits32(node)
        target = INT32 if small else INT64
        return [
            [self.vectors.cast(x, target) for x in a] if s.aval.dtype == INT64 else a
            for s, a in zip(node.src, args)
        ]

    # --- memory --------------------------------------------------------------------------------------

    def element(self, dtype: Any) -> tuple[Type, int]:
        """Scalar storage type of a buffer and how many of them one element has."""
        if dtypes.is_complex(dtype):
            return register_type(dtype), 2
        return I8 if dtype == BOOL else register_type(dtype), 1

    def addresses(self, index: UOp, complete: bool = True) -> list[Value]:
        """Scalar address of lane 0, per copy, built up over the open loops.

        Terms that vary between lanes other than by the vector range itself are left out, and with
        `complete=False` (before a loop is entered) those of loops that are not open yet.
        """
        constant, terms = self.indexing.linear(index.src[1])
        kind, unit = self.element(index.src[0].aval.dtype)
        slot = index.src[0].arg[0]
        levels: list[list[tuple[UOp, int]]] = [[] for _ in range(len(self.open) + 1)]
        bits = [1 << r.arg[0] for r in self.open]
        open_mask = 0
        for bit in bits:
            open_mask |= bit
        for atom, c in terms.items():
            mask = self.free[atom]
            if mask & ~open_mask:
                assert not complete, f"{atom} used outside its loops"
                continue
            if atom.op is not Op.RANGE:
                if mask & self.vec_bit:
                    continue
                if not complete and atom not in self.memo:
                    continue
            level = 0
            for i, bit in enumerate(bits):
                if mask & bit:
                    level = i + 1
            levels[level].append((atom, c * unit))
        key: tuple[Any, ...] = (slot, constant)
        pointers = [self.slots[slot]]
        if constant:
            found = self.memo.get(key)
            if found is None:
                found = [self.b.gep(kind, pointers[0], constant * unit)]
                self.remember(key, found)
            pointers = found
        for level in levels:
            if not level:
                continue
            key = (*key, *level)
            found = self.memo.get(key)
            if found is None:
                found = self._step_addresses(kind, pointers, level)
                self.remember(key, found)
            pointers = found
        return pointers

    def _step_addresses(
        self, kind: Type, pointers: list[Value], level: list[tuple[UOp, int]]
    ) -> list[Value]:
        """Add the terms of one loop level; copies of a plain loop variable are constant steps."""
        b = self.b
        values = [(self.base[a] if a.op is Op.RANGE else [x.value for x in self.evaluate(a)], c)
                  for a, c in level]  # fmt: skip
        copies = max(len(pointers), *(len(v) for v, _ in values))
        plain = all(a.op is Op.RANGE for a, _ in level) and len(pointers) == 1
        out: list[Value] = []
        for u in range(copies):
            if plain and u > 0:
                step = sum(c for a, c in level if 1 << a.arg[0] == self.jam_bit)
                out.append(b.gep(kind, out[0], step * u * (self.lanes if self.jam_is_vector else 1)))
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

    @property
    def jam_is_vector(self) -> bool:
        """Whether copies are whole vectors apart."""
        return self.jam_bit == self.vec_bit

    def lane_offsets(self, index: UOp) -> tuple[int, list[Value] | None]:
        """How lanes differ: (stride, None) if by a constant stride, else explicit offsets per copy."""
        _, terms = self.indexing.linear(index.src[1])
        unit = self.element(index.src[0].aval.dtype)[1]
        stride = 0
        opaque: list[tuple[UOp, int]] = []
        for atom, c in terms.items():
            if atom.op is Op.RANGE:
                if 1 << atom.arg[0] == self.vec_bit:
                    stride = c * unit
            elif self.free[atom] & self.vec_bit:
                opaque.append((atom, c * unit))
        if not opaque:
            return stride, None
        b = self.b
        small = abs(stride) * self.lanes < 1 << 30
        for atom, c in opaque:
            limits = self.indexing.bounds(atom)
            small = small and self.indexing.fits32(atom) and limits is not None
            if small and limits is not None:
                small = max(abs(limits[0]), abs(limits[1])) * abs(c) < 1 << 30
        kind, dtype = (I32, INT32) if small else (I64, INT64)
        out: list[Value] = []
        atoms = [(self.evaluate(a), c) for a, c in opaque]
        for u in range(max(len(v) for v, _ in atoms)):
            total: Value | None = None
            if stride:
                total = irtext.const_vector(kind, [stride * i for i in range(self.lanes)])
            for v, c in atoms:
                x = self.vectors.cast(v[u if len(v) > 1 else 0], dtype).value
                assert x is not None
                term = b.mul(x, c)
                total = term if total is None else b.add(total, term)
            assert total is not None
            out.append(total)
        return stride, out

    def conditions(self, index: UOp) -> list[Register] | None:
        """The `valid` of an INDEX, per copy."""
        if len(index.src) < 3:
            return None
        return self.value(index.src[2], self.is_vector(index.src[2]))

    def load(self, node: UOp) -> list[Register]:
        """LOAD: scalar, contiguous vector, reversed vector or gather."""
        index = node.src[0]
        dtype = node.aval.dtype
        wide = self.is_vector(node)
        other = self.value(node.src[1], wide) if len(node.src) > 1 else None
        if not wide:
            return self.scalar_loads(node, index, dtype, other)
        b = self.b
        pointers = self.addresses(index)
        stride, offsets = self.lane_offsets(index)
        valid = self.conditions(index)
        kind, unit = self.element(dtype)
        out: list[Register] = []
        for u in range(self.count(node)):
            pointer = pointers[u if len(pointers) > 1 else 0]
            mask = self.lane_mask(valid, u)
            fill = None if other is None else other[u if len(other) > 1 else 0]
            if offsets is None and stride == unit:
                out.append(self.contiguous_load(dtype, kind, unit, pointer, mask, fill))
                continue
            if offsets is None and stride == -1 and mask is None:
                first = b.gep(kind, pointer, 1 - self.lanes)
                loaded = b.load(vec(kind, self.lanes), first)
                turned = b.shuffle(loaded, None, range(self.lanes - 1, -1, -1))
                out.append(self.vectors.from_storage(dtype, turned))
                continue
            if offsets is None:
                at = irtext.const_vector(I32, [stride * i for i in range(self.lanes)])
            else:
                at = offsets[u if len(offsets) > 1 else 0]
            places = b.gep(kind, pointer, at)
            wide_kind = vec(kind, self.lanes)
            parts = []
            for part in range(unit):
                where = places if part == 0 else b.gep(kind, places, irtext.const(vec(I32, self.lanes), 1))
                filler = None if fill is None else self.storage_parts(fill)[part]
                parts.append(b.gather(wide_kind, where, mask, filler))
            out.append(
                Register(dtype, *parts) if unit == 2 else self.vectors.from_storage(dtype, parts[0])
            )
        return out

    def storage_parts(self, x: Register) -> tuple[Value, ...]:
        """What is stored for a register: one value, or the two parts of a complex."""
        if dtypes.is_complex(x.dtype):
            return x.parts
        return ((self.vectors if self.has_lanes(x) else self.scalars).to_storage(x),)

    @staticmethod
    def has_lanes(x: Register) -> bool:
        """Whether a register is a vector."""
        return bool(x.parts[0].type.lanes)

    def lane_mask(self, valid: list[Register] | None, u: int) -> Value | None:
        """Lanes to touch: those of the tail and those whose condition holds."""
        if valid is None:
            return self.mask
        x = valid[u if len(valid) > 1 else 0].value
        assert x is not None
        if not x.type.lanes:
            x = self.b.splat(x, self.lanes)
        return x if self.mask is None else self.b.and_(x, self.mask)

    def contiguous_load(
        self, dtype: Any, kind: Type, unit: int, pointer: Value, mask: Value | None,
        fill: Register | None,
    ) -> Register:  # fmt: skip
        """One vector from consecutive elements; complex parts are separated by shuffles."""
        b = self.b
        if unit == 1:
            wide = vec(kind, self.lanes)
            if mask is None:
                loaded = b.load(wide, pointer)
            else:
                other = None if fill is None else self.vectors.to_storage(fill)
                loaded = b.masked_load(wide, pointer, mask, other)
            return self.vectors.from_storage(dtype, loaded)
        wide = vec(kind, 2 * self.lanes)
        if mask is None:
            pairs = b.load(wide, pointer)
        else:
            pairs = b.masked_load(wide, pointer, self.doubled(mask))
        parts = [b.shuffle(pairs, None, range(i, 2 * self.lanes, 2)) for i in (0, 1)]
        made = Register(dtype, *parts)
        if fill is not None:
            assert mask is not None
            made = self.vectors.where(Register(BOOL, mask), made, fill)
        return made

    def doubled(self, mask: Value) -> Value:
        """Each lane of a mask twice, for interleaved complex parts."""
        return self.b.shuffle(mask, None, [i // 2 for i in range(2 * self.lanes)])

    def scalar_loads(
        self, node: UOp, index: UOp, dtype: Any, other: list[Register] | None
    ) -> list[Register]:
        """One element; an invalid one reads the buffer's first element instead and drops it."""
        b = self.b
        pointers = self.addresses(index)
        valid = self.conditions(index)
        kind, unit = self.element(dtype)
        out: list[Register] = []
        for u in range(self.count(node)):
            pointer = pointers[u if len(pointers) > 1 else 0]
            if valid is not None:
                condition = valid[u if len(valid) > 1 else 0]
                pointer = b.select(condition.value, pointer, self.slots[index.src[0].arg[0]])
            if unit == 2:
                parts = [b.load(kind, pointer if i == 0 else b.gep(kind, pointer, 1)) for i in (0, 1)]
                made = Register(dtype, *parts)
            else:
                made = self.scalars.from_storage(dtype, b.load(kind, pointer))
            if valid is not None:
                zero = np.zeros((), dtype)[()]
                fill = self.scalars.constant(dtype, zero) if other is None else (
                    other[u if len(other) > 1 else 0]
                )  # fmt: skip
                made = self.scalars.where(condition, made, fill)
            out.append(made)
        return out

    def store(self, node: UOp, values: list[Register]) -> None:
        """STORE of evaluated values."""
        index = node.src[0]
        dtype = index.src[0].aval.dtype
        b = self.b
        wide = bool(self.free[index] & self.vec_bit)
        pointers = self.addresses(index)
        valid = self.conditions(index)
        kind, unit = self.element(dtype)
        count = max(len(pointers), len(values), len(valid or ()))
        if wide:
            stride, offsets = self.lane_offsets(index)
            count = max(count, len(offsets or ()))
        for u in range(count):
            pointer = pointers[u if len(pointers) > 1 else 0]
            x = values[u if len(values) > 1 else 0]
            if x.dtype != dtype:  # an index in 32-bit lanes
                x = (self.vectors if wide else self.scalars).cast(x, dtype)
            parts = self.storage_parts(x)
            if not wide:
                if valid is None:
                    self.write_parts(kind, parts, pointer)
                else:
                    condition = valid[u if len(valid) > 1 else 0].value
                    with b.if_(condition):
                        self.write_parts(kind, parts, pointer)
                continue
            mask = self.lane_mask(valid, u)
            if offsets is None and stride == unit:
                if mask is self.mask and self.single_lane():
                    # LLVM 22 stores too many bytes when it narrows a one-lane masked store.
                    self.write_parts(kind, [b.extract(p, 0) for p in parts], pointer)
                    continue
                whole = parts[0] if unit == 1 else self.interleaved(parts)
                if mask is None:
                    b.store(whole, pointer)
                else:
                    b.masked_store(whole, pointer, mask if unit == 1 else self.doubled(mask))
                continue
            if offsets is None:
                at = irtext.const_vector(I32, [stride * i for i in range(self.lanes)])
            else:
                at = offsets[u if len(offsets) > 1 else 0]
            places = b.gep(kind, pointer, at)
            for i, part in enumerate(parts):
                where = places if i == 0 else b.gep(kind, places, irtext.const(vec(I32, self.lanes), 1))
                b.scatter(part, where, mask)

    def single_lane(self) -> bool:
        """Whether the tail has one element only."""
        return self.mask is not None and self.mask.text.count("true") == 1

    def write_parts(self, kind: Type, parts: Sequence[Value], pointer: Value) -> None:
        """One scalar element."""
        for i, part in enumerate(parts):
            self.b.store(part, pointer if i == 0 else self.b.gep(kind, pointer, i))

    def interleaved(self, parts: Sequence[Value]) -> Value:
        """re, im, re, im, ... of two vectors."""
        lanes = self.lanes
        order = [i // 2 + (lanes if i % 2 else 0) for i in range(2 * lanes)]
        return self.b.shuffle(parts[0], parts[1], order)

    # --- accumulators --------------------------------------------------------------------------------

    def ops_for(self, x: Register) -> Elementwise:
        """An elementwise emitter with the lanes of a register."""
        lanes = x.parts[0].type.lanes
        if lanes == self.vectors.lanes:
            return self.vectors
        return self.scalars if lanes == 0 else Elementwise(self.b, self.target, lanes)

    def canonical(self, x: Register) -> Register:
        """The form an accumulator has: narrow floats as float32."""
        if is_narrow(x.dtype):
            return Register(x.dtype, None, self.ops_for(x).wide(x))
        return x

    def combine(self, kind: str, x: Register, y: Register) -> Register:
        """One step of a fold."""
        made = self.ops_for(x).apply(FOLD_OPS[kind], None, x.dtype, [x, y])
        return self.canonical(made)

    def combine_arg(
        self, kind: str, best: tuple[Register, ...], new: tuple[Register, ...], ordered: bool
    ) -> tuple[Register, ...]:
        """The extreme of two (value, index) pairs; `ordered`: new's index is the larger."""
        b = self.b
        ops = self.ops_for(best[0])
        dtype = best[0].dtype
        if is_narrow(dtype):
            x, y = ops.wide(best[0]), ops.wide(new[0])
        else:
            assert best[0].value is not None and new[0].value is not None
            x, y = best[0].value, new[0].value
        if x.type.kind == "float":
            wins = b.cmp("ogt" if kind == "argmax" else "olt", y, x)
            fresh = b.and_(b.cmp("uno", y, y), b.cmp("ord", x, x))
            wins = b.or_(wins, fresh)
            if not ordered:
                ties = b.or_(b.cmp("oeq", x, y), b.and_(b.cmp("uno", x, x), b.cmp("uno", y, y)))
        else:
            sign = "s" if dtypes.is_signed(dtype) else "u"
            wins = b.cmp(sign + ("gt" if kind == "argmax" else "lt"), y, x)
            if not ordered:
                ties = b.cmp("eq", x, y)
        if not ordered:
            earlier = b.cmp("slt" if dtypes.is_signed(new[1].dtype) else "ult", new[1].value, best[1].value)
            wins = b.or_(wins, b.and_(ties, earlier))
        condition = Register(BOOL, wins)
        return tuple(self.canonical(ops.where(condition, n, o)) for n, o in zip(new, best))

    def merged(
        self, fold: UOp, x: tuple[Register, ...], y: tuple[Register, ...]
    ) -> tuple[Register, ...]:
        """Two partial results of a FOLD as one."""
        if len(x) == 2:
            return self.combine_arg(fold.arg, x, y, ordered=False)
        return (self.combine(fold_kind(fold), x[0], y[0]),)

    def start(self, fold: UOp, loop: Loop) -> Parts:
        """Initial accumulators of a FOLD whose outermost loop is `loop`, or of a PREFIX."""
        path = path_to(loop, fold)
        vector = any(x.lanes > 1 for x in path) or bool(self.free[fold] & self.vec_bit)
        copies = max([x.copies for x in path], default=1)
        if copies == 1 and self.free[fold] & self.jam_bit:
            copies = self.copies
        lanes = self.schedule.lanes if vector else 0
        ops = Elementwise(self.b, self.target, lanes)
        kind, dtype = fold_kind(fold), fold.src[0].aval.dtype
        neutral = identity(kind, dtype)
        if fold.op is Op.PREFIX and kind == "add" and dtypes.is_inexact(dtype):
            neutral = -neutral  # -0 + x is x, also for x = -0
        first = self.canonical(ops.constant(dtype, neutral))
        if fold.arg in ("argmax", "argmin"):
            indices = self.first_indices(fold, path, lanes, copies)
            return [(first, i) for i in indices]
        return [(first,)] * copies

    def first_indices(self, fold: UOp, path: list[Loop], lanes: int, copies: int) -> list[Register]:
        """The index of an argmax at the first iteration of every lane and copy."""
        saved = (self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies)
        with self.scope():
            for loop in path:
                step = 1
                if loop.lanes > 1:
                    self.vec_bit, self.lanes = loop.bit, loop.lanes
                    self.vectors, step = Elementwise(self.b, self.target, loop.lanes), loop.lanes
                bases = [irtext.const(I64, 0)]
                if loop.copies > 1:
                    self.jam_bit, self.copies = loop.bit, loop.copies
                    bases = [irtext.const(I64, u * step) for u in range(loop.copies)]
                self.base[loop.range] = bases
                self.open.append(loop.range)
            dtype = fold.src[1].aval.dtype
            made = [
                (self.vectors if lanes else self.scalars).cast(x, dtype)
                for x in self.value(fold.src[1], lanes > 0)
            ]
            for loop in path:
                self.open.remove(loop.range)
        self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies = saved
        return made if len(made) == copies else made * copies

    def accumulate(self, fold: UOp) -> None:
        """One step of a FOLD with the values of this iteration, in every copy."""
        parts = self.accumulators[fold]
        vector = self.has_lanes(parts[0][0])
        mask_of = 0
        for r in ranges_of(fold):
            mask_of |= 1 << r.arg[0]
        operands = []
        for s in fold_operands(fold):
            regs = self.value(s, vector)
            ops = self.vectors if vector else self.scalars
            operands.append([ops.cast(x, s.aval.dtype) for x in regs])
        jammed = self.jam_bit & (mask_of | self.free[fold])
        out = list(parts)
        for u in range(self.copies if jammed else 1):
            new = tuple(self.canonical(regs[u if len(regs) > 1 else 0]) for regs in operands)
            old = parts[u]
            if len(new) == 2:
                made = self.combine_arg(fold.arg, old, new, ordered=True)
            else:
                made = (self.combine(fold.arg, old[0], new[0]),)
            if self.mask is not None and mask_of & self.vec_bit:
                keep = Register(BOOL, self.mask)
                made = tuple(
                    self.canonical(self.vectors.where(keep, m, o)) for m, o in zip(made, old)
                )
            out[u] = made
        self.accumulators[fold] = out

    def prefix(self, node: UOp) -> list[Register]:
        """The running fold including this iteration."""
        parts = self.accumulators[node]
        vector = self.has_lanes(parts[0][0])
        values = self.value(node.src[0], vector)
        out = []
        for u, old in enumerate(parts):
            new = self.canonical(values[u if len(values) > 1 else 0])
            out.append((self.combine(node.arg[0], old[0], new),))
        self.accumulators[node] = out
        return [p[0] for p in out]

    def finish(self, fold: UOp, path: list[Loop]) -> None:
        """Combine copies, then lanes, in a fixed tree; the FOLD's value is then known."""
        parts = self.accumulators.pop(fold)
        if any(loop.copies > 1 for loop in path):
            while len(parts) > 1:
                half = (len(parts) + 1) // 2
                joined = [self.merged(fold, x, y) for x, y in zip(parts[:half], parts[half:])]
                parts = joined + parts[len(parts) - half : half] if len(parts) % 2 else joined
        if any(loop.lanes > 1 for loop in path):
            parts = [self.across_lanes(fold, p) for p in parts]
        self.remember((fold, "parts"), parts)

    def across_lanes(self, fold: UOp, x: tuple[Register, ...]) -> tuple[Register, ...]:
        """Fold the halves of a vector onto each other."""
        lanes = x[0].parts[0].type.lanes
        while lanes > 1:
            half = lanes // 2
            low = tuple(self.slice(r, 0, half) for r in x)
            high = tuple(self.slice(r, half, half) for r in x)
            x = self.merged(fold, low, high)
            lanes = half
        return x

    def slice(self, x: Register, start: int, lanes: int) -> Register:
        """Consecutive lanes of a register."""
        parts = [
            None if v is None else self.b.slice_lanes(v, start, lanes) for v in (x.value, x.other)
        ]
        return Register(x.dtype, *parts)

    # --- lines ---------------------------------------------------------------------------------------

    def run(self, lines: Sequence[Line]) -> None:
        """Emit lines in order; all values of a body are computed before its first store."""
        writes: list[tuple[UOp, list[Register]]] = []
        for line in lines:
            if isinstance(line, Loop):
                self.flush(writes)
                self.loop(line)
            elif isinstance(line, Accumulate):
                self.accumulate(line.fold)
            elif isinstance(line, Write):
                index, value = line.store.src
                vector = bool(self.free[index] & self.vec_bit)
                writes.append((line.store, self.value(value, vector)))
            elif self.used_as_value(line):
                self.evaluate(line)
        self.flush(writes)

    def flush(self, writes: list[tuple[UOp, list[Register]]]) -> None:
        """Perform the stores gathered so far."""
        for store, values in writes:
            self.store(store, values)
        writes.clear()

    def used_as_value(self, node: UOp) -> bool:
        """Tuples of an argmax have no register of their own."""
        return hasattr(node.aval, "dtype")

    def prepare(self, loop: Loop) -> None:
        """Before a loop: addresses as far as they do not vary in it."""
        for index in loop.indexes:
            self.addresses(index, complete=False)

    def loop(self, loop: Loop) -> None:
        """A whole loop: start its folds, run its parts, finish its folds."""
        for fold in loop.starts:
            self.accumulators[fold] = self.start(fold, loop)
        prefixes = [c for c in loop.carries if c.op is Op.PREFIX and c.src[1] is loop.range]
        for p in prefixes:
            self.accumulators[p] = self.start(p, loop)
        task_loops = self.schedule.task_loops
        if task_loops and loop is task_loops[0]:
            self.task_loop(loop)
        else:
            self.parts(loop)
        for p in prefixes:
            del self.accumulators[p]
        for fold in loop.starts:
            self.finish(fold, path_to(loop, fold))

    def parts(self, loop: Loop) -> None:
        """Main part, left-over vectors, masked tail, for a loop that runs from 0 to its extent."""
        self.prepare(loop)
        step = loop.lanes * loop.copies
        main = loop.extent // step * step
        self.part(loop, irtext.const(I64, 0), irtext.const(I64, main), loop.copies)
        self.rest(loop, main)

    def rest(self, loop: Loop, main: int) -> None:
        """What does not fill a whole step: single vectors, then a masked one."""
        whole = loop.extent // loop.lanes * loop.lanes
        self.part(loop, irtext.const(I64, main), irtext.const(I64, whole), 1)
        left = loop.extent - whole
        if left:
            mask = irtext.const_vector(I1, [i < left for i in range(loop.lanes)])
            at = irtext.const(I64, whole)
            self.part(loop, at, irtext.const(I64, whole + loop.lanes), 1, mask)

    def bounded_parts(self, loop: Loop, low: Value, high: Value) -> None:
        """The same between two bounds known at run time; `low` is a multiple of a whole step."""
        b = self.b
        self.prepare(loop)
        step = loop.lanes * loop.copies
        main = loop.extent // step * step
        limit = high if main == loop.extent else b.smin(high, main)
        self.part(loop, low, limit, loop.copies, trips=self.schedule.block // step)
        if main < loop.extent:
            with b.if_(b.cmp("sge", high, loop.extent)):
                self.rest(loop, main)

    def task_loop(self, loop: Loop) -> None:
        """The loops that tasks cut: [lo, hi) are units of the kernel."""
        b, made = self.b, self.schedule
        lo, hi = b.args[2], b.args[3]
        loops, block = made.task_loops, made.block
        last = loops[-1]
        if len(loops) == 1:
            if block == 1:
                self.bounded_parts(loop, lo, hi)
            else:
                high = b.smin(b.mul(hi, block), last.extent)
                self.bounded_parts(loop, b.mul(lo, block), high)
            return
        per_outer = -(-last.extent // block)
        with b.loop(lo, hi) as units:
            rest = b.udiv(units.index, irtext.const(I64, per_outer))
            which = b.sub(units.index, b.mul(rest, per_outer))
            at: list[Value] = []
            for each in reversed(loops[:-1]):
                if each is loops[0]:
                    at.append(rest)
                    break
                above = b.udiv(rest, irtext.const(I64, each.extent))
                at.append(b.sub(rest, b.mul(above, each.extent)))
                rest = above
            low = b.mul(which, block)
            high = b.smin(b.add(low, block), last.extent)
            with self.scope():
                self._nested(loops, at[::-1], low, high)

    def _nested(self, loops: list[Loop], at: list[Value], low: Value, high: Value) -> None:
        """The bodies of task loops one inside the other, each at one iteration."""
        loop = loops[0]
        if len(loops) == 1:
            for fold in loop.starts:
                raise AssertionError(f"a task loop accumulates {fold}")
            self.bounded_parts(loop, low, high)
            return
        self.prepare(loop)
        self.open.append(loop.range)
        self.base[loop.range] = [at[0]]
        for line in loop.lines:
            if isinstance(line, Loop):
                self._nested(loops[1:], at[1:], low, high)
            elif isinstance(line, UOp) and self.used_as_value(line):
                self.evaluate(line)
        self.open.pop()

    def part(
        self,
        loop: Loop,
        low: Value,
        high: Value,
        copies: int,
        mask: Value | None = None,
        trips: int | None = None,
    ) -> None:
        """One loop over [low, high) in steps of `copies` vectors; straight code if it runs once."""
        step = loop.lanes * copies
        if low.const is not None and high.const is not None:
            trips = (high.const - low.const) // step
            if trips <= 0:
                return
        saved = (self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies, self.mask)
        if loop.lanes > 1:
            self.vec_bit, self.lanes, self.mask = loop.bit, loop.lanes, mask
            self.vectors = Elementwise(self.b, self.target, loop.lanes)
        if copies > 1:
            self.jam_bit, self.copies = loop.bit, copies
        self.open.append(loop.range)
        self._iterate(loop, low, high, step, copies, trips)
        self.open.pop()
        self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies, self.mask = saved

    def _iterate(
        self, loop: Loop, low: Value, high: Value, step: int, copies: int, trips: int | None
    ) -> None:
        b = self.b
        if trips == 1 and low.const is not None:
            self._body(loop, low, copies)
            return
        flushed = [f for f in loop.carries if needs_flushing(loop, f)]
        if not flushed or (trips is not None and trips <= FOLD_CHAIN):
            self._carried_loop(loop, low, high, step, loop.carries, lambda i: self._body(loop, i, copies))
            return

        def chunk(start: Value) -> None:
            totals = {f: self.accumulators[f] for f in flushed}
            for f in flushed:
                fresh = self.start_again(f)
                self.accumulators[f] = fresh
            end = b.smin(b.add(start, FOLD_CHAIN * step), high)
            self._carried_loop(loop, start, end, step, loop.carries, lambda i: self._body(loop, i, copies), True)
            for f in flushed:
                pairs = zip(totals[f], self.accumulators[f])
                self.accumulators[f] = [self.merged(f, x, y) for x, y in pairs]

        self._carried_loop(loop, low, high, FOLD_CHAIN * step, loop.carries, chunk)

    def start_again(self, fold: UOp) -> Parts:
        """Neutral accumulators of the shape a FOLD's have."""
        parts = self.accumulators[fold]
        neutral = identity(fold_kind(fold), parts[0][0].dtype)
        ops = self.ops_for(parts[0][0])
        return [(self.canonical(ops.constant(parts[0][0].dtype, neutral)),)] * len(parts)

    def _carried_loop(
        self, loop: Loop, low: Value, high: Value, step: int, carries: Sequence[UOp],
        body: Callable[[Value], None], nonempty: bool = False,
    ) -> None:  # fmt: skip
        """A counted loop that carries accumulators."""
        flat = self._flat(carries)
        with self.b.loop(low, high, step, carried=flat, nonempty=nonempty) as counted:
            self._unflatten(carries, counted.carried)
            body(counted.index)
            counted.next(*self._flat(carries))
        self._unflatten(carries, counted.results)

    def _body(self, loop: Loop, index: Value, copies: int) -> None:
        """One step: the loop variable of every copy, then the lines."""
        with self.scope():
            bases = [index]
            for u in range(1, copies):
                bases.append(self.b.add(index, u * loop.lanes))
            self.base[loop.range] = bases
            self.run(loop.lines)

    def _flat(self, carries: Sequence[UOp]) -> list[Value]:
        return [v for c in carries for part in self.accumulators[c] for r in part for v in r.parts]

    def _unflatten(self, carries: Sequence[UOp], values: Sequence[Value]) -> None:
        source = iter(values)
        for c in carries:
            self.accumulators[c] = [
                tuple(rebuilt(r, [next(source) for _ in r.parts]) for r in part)
                for part in self.accumulators[c]
            ]


def rebuilt(like: Register, values: list[Value]) -> Register:
    """A register of the same form with other LLVM values."""
    if like.value is None:
        return Register(like.dtype, None, values[0])
    return Register(like.dtype, *values)


def fold_kind(fold: UOp) -> str:
    """The kind of a FOLD or PREFIX; an argmax starts like a max."""
    if fold.op is Op.PREFIX:
        return str(fold.arg[0])
    return {"argmax": "max", "argmin": "min"}.get(fold.arg, fold.arg)


def path_to(loop: Loop, fold: UOp) -> list[Loop]:
    """Loops from `loop` down to the step of a FOLD (or the line of a PREFIX)."""
    for line in loop.lines:
        if isinstance(line, Accumulate) and line.fold is fold:
            return [loop]
        if line is fold:
            return [loop]
        if isinstance(line, Loop) and fold in line.carries:
            return [loop, *path_to(line, fold)]
    raise AssertionError(f"{fold} does not accumulate in r{loop.range.arg[0]}")


def needs_flushing(loop: Loop, fold: UOp) -> bool:
    """A floating sum or product that this loop itself accumulates."""
    if fold.op is not Op.FOLD or fold.arg not in ("add", "mul"):
        return False
    if not dtypes.is_inexact(fold.src[0].aval.dtype):
        return False
    return any(isinstance(x, Accumulate) and x.fold is fold for x in loop.lines)


def emit(made: Schedule, target: Target, name: str) -> str:
    """The LLVM module of one kernel: `void name(ptr slots, ptr dims, i64 lo, i64 hi)`."""
    module = irtext.Module()
    params = [("slots", PTR), ("dims", PTR), ("lo", I64), ("hi", I64)]
    b = module.function(name, params)
    slots: dict[int, Value] = {}
    for node in made.nest.order:
        if node.op is Op.PARAM:
            where = b.gep(PTR, b.args[0], node.arg[0])
            slots[node.arg[0]] = b.load(PTR, where, align=8)
    emitter = Emitter(b, made, target, slots)
    for line in made.nest.lines:
        if isinstance(line, Loop):
            emitter.prepare(line)
    emitter.run(made.nest.lines)
    b.ret()
    return module.text()


__all__ = ["Emitter", "Nest", "emit"]
