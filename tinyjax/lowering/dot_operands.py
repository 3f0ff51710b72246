"""What a DOT nest reads and writes: operands are loads at (batch, row, col), the result a store.

The nest never sees buffers. An `Operand` opens once at a kernel's entry (there it reads its
pointers and strides) and gives a load of `width` consecutive elements along an axis; whatever
expression a pass has rangeified (transposed, cast, dequantised, a convolution's window, padded)
fits. An `Epilogue` does the same for stores. `strided` and `strided_store` are the two for plain
buffers, with addresses that cost one addition per load.

Rules for the callbacks: `width` 1 means a scalar. With `mask` (i1 per lane) lanes that are off
must not touch memory; a load gives zero there. Without one, every lane is in range. `axis` is
"row" or "col": the axis along which the lanes run. Loads may come in any order and repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from tinyjax.core import dtypes
from tinyjax.lowering import narrow
from tinyjax.lowering.irtext import (
    F32,
    I8,
    I16,
    I64,
    PTR,
    IRBuilder,
    Type,
    Value,
    const,
    iota,
    type_of,
    vec,
    zero,
)
from tinyjax.lowering.target import Target

Axis = Literal["row", "col"]


class Load(Protocol):
    """Elements (batch, row, col) .. along `axis`, in the operand's dtype."""

    def __call__(
        self,
        b: IRBuilder,
        batch: Value,
        row: Value,
        col: Value,
        width: int,
        axis: Axis,
        mask: Value | None = None,
    ) -> Value: ...


class Store(Protocol):
    """Write `x` (accumulator type, `width` lanes along `axis`) at (batch, row, col)."""

    def __call__(
        self,
        b: IRBuilder,
        batch: Value,
        row: Value,
        col: Value,
        x: Value,
        axis: Axis,
        mask: Value | None = None,
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix per batch element, as an expression.

    `open(b, slots, params)` runs at kernel entry; both are pointers (to pointers, to int64).
    `unit` is the axis along which a vector load is cheap, None if neither (then it is loaded by
    `width` scalars' worth of work along columns). `shared` says it does not depend on the batch,
    so it is packed once.
    `cheap` says a load is about one instruction: only such operands are read again and again where
    they lie. `computed` ones are expressions; `runs` says that what is contiguous along `unit` comes
    in short runs (the channels of a window), which whole vectors fit better than single rows.
    """

    dtype: np.dtype
    unit: Axis | None
    open: Callable[[IRBuilder, Value, Value], Load]
    shared: bool = False
    cheap: bool = False
    computed: bool = False
    runs: bool = False


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a finished value of the product.

    `axis` is the axis along which a vector store is cheap. `inline` repeats the store for every
    register of the tile (right for up to about 4 instructions); otherwise it is emitted once, in
    a loop over the tile. It runs once per element, so it may read what it overwrites; `repeatable`
    says that it does not, so that it may run again.
    """

    open: Callable[[IRBuilder, Value, Value], Store]
    axis: Axis = "col"
    inline: bool = False
    repeatable: bool = False


# ------------------------------------------------------------------------------------ plain buffers


@dataclass(frozen=True, slots=True)
class Param:
    """The `index`-th int64 of the step's parameters."""

    index: int


Size = int | Param
BatchAt = Callable[[IRBuilder, Value, Value], Value]
"""(b, params, batch) -> the factor of a batch stride."""


def read_size(b: IRBuilder, params: Value, size: Size) -> Value:
    """A constant, or a load from the parameters."""
    if isinstance(size, int):
        return const(I64, size)
    return b.invariant(I64, b.gep(I64, params, size.index))


def slot_pointer(b: IRBuilder, slots: Value, slot: int) -> Value:
    """The pointer in a slot; slots do not change while a kernel runs."""
    return b.invariant(PTR, b.gep(PTR, slots, slot))


@dataclass(frozen=True, slots=True)
class Buffer:
    """An opened strided buffer: base pointer and strides in elements as values.

    Calling it loads; the nest also recognises the class and walks its addresses itself.
    """

    element: Type
    base: Value
    strides: tuple[Value, Value, Value]
    batch_at: Callable[[IRBuilder, Value], Value] | None = None
    dtype: np.dtype | None = None  # of stores
    half: bool = True

    def address(self, b: IRBuilder, batch: Value, row: Value, col: Value) -> Value:
        """Of one element."""
        at = self.base
        if self.batch_at is not None:
            batch = self.batch_at(b, batch)
        for index, stride in zip((batch, row, col), self.strides, strict=True):
            at = b.gep(self.element, at, b.mul(index, stride))
        return at

    def transposed(self) -> Buffer:
        """Rows and columns exchanged."""
        batch, row, col = self.strides
        return replace(self, strides=(batch, col, row))

    def lanes(self, b: IRBuilder, at: Value, width: int, stride: Value) -> Value:
        """One address per lane along an axis of any stride."""
        steps = b.mul(iota(I64, width), b.splat(stride, width))
        return b.gep(self.element, at, steps)

    def __call__(
        self,
        b: IRBuilder,
        batch: Value,
        row: Value,
        col: Value,
        width: int,
        axis: Axis,
        mask: Value | None = None,
    ) -> Value:
        at = self.address(b, batch, row, col)
        stride = self.strides[1 if axis == "row" else 2]
        if width == 1:
            return self.element_at(b, at, mask)
        wide = vec(self.element, width)
        if stride.const != 1:
            return b.gather(wide, self.lanes(b, at, width, stride), mask)
        if mask is None:
            return b.load(wide, at, align=self.element.nbytes)
        return b.masked_load(wide, at, mask)

    def element_at(self, b: IRBuilder, at: Value, mask: Value | None) -> Value:
        if mask is None:
            return b.load(self.element, at)
        with b.if_(mask) as branch:
            loaded = b.load(self.element, at)
        return branch.join(loaded, zero(self.element))

    def store(
        self,
        b: IRBuilder,
        batch: Value,
        row: Value,
        col: Value,
        x: Value,
        axis: Axis,
        mask: Value | None = None,
    ) -> None:
        at = self.address(b, batch, row, col)
        stride = self.strides[1 if axis == "row" else 2]
        assert self.dtype is not None
        x = narrowed(b, x, self.dtype, self.half)
        width = x.type.width
        if width == 1:
            if mask is None:
                return b.store(x, at)
            with b.if_(mask):
                b.store(x, at)
            return None
        if stride.const != 1:
            b.scatter(x, self.lanes(b, at, width, stride), mask)
        elif mask is None:
            b.store(x, at, align=self.element.nbytes)
        else:
            b.masked_store(x, at, mask)
        return None


def _buffer(
    b: IRBuilder, slots: Value, params: Value, slot: int, dtype: np.dtype, where: Where
) -> Buffer:
    batch, row, col, offset = (read_size(b, params, size) for size in where.sizes)
    base = b.gep(storage(dtype), slot_pointer(b, slots, slot), offset)
    at = where.batch_at
    batch_at = None if at is None else lambda b, batch: at(b, params, batch)
    return Buffer(storage(dtype), base, (batch, row, col), batch_at, dtype, where.half)


@dataclass(frozen=True, slots=True)
class Where:
    """How a strided buffer is addressed."""

    sizes: tuple[Size, Size, Size, Size]
    batch_at: BatchAt | None
    half: bool


def strided(
    slot: int,
    dtype: np.dtype | type,
    *,
    row: Size,
    col: Size,
    batch: Size = 0,
    offset: Size = 0,
    batch_at: BatchAt | None = None,
) -> Operand:
    """The buffer in `slots[slot]` with strides in elements; the unit stride is written as 1.

    Strides that are `Param`s are read at run time, so one kernel serves every shape of a layout.
    Where the offset of a matrix is not batch * stride (a batch axis that was split), `batch_at`
    computes the factor of `batch` from the index.
    """
    dtype = np.dtype(dtype)
    where = Where((batch, row, col, offset), batch_at, True)

    def open(b: IRBuilder, slots: Value, params: Value) -> Load:
        return _buffer(b, slots, params, slot, dtype, where)

    unit: Axis | None = "col" if col == 1 else "row" if row == 1 else None
    return Operand(dtype, unit, open, shared=batch == 0, cheap=dtype.itemsize >= 4)


def strided_store(
    slot: int,
    dtype: np.dtype | type,
    *,
    row: Size,
    col: Size,
    batch: Size = 0,
    offset: Size = 0,
    batch_at: BatchAt | None = None,
    half: bool = True,
) -> Epilogue:
    """Plain stores to the buffer in `slots[slot]`, converting to its dtype.

    `half`: the target converts float16 in hardware (`DotTarget.half`).
    """
    dtype = np.dtype(dtype)
    where = Where((batch, row, col, offset), batch_at, half)

    def open(b: IRBuilder, slots: Value, params: Value) -> Store:
        return _buffer(b, slots, params, slot, dtype, where).store

    axis: Axis = "row" if row == 1 and col != 1 else "col"
    return Epilogue(open, axis, inline=dtype.itemsize >= 4, repeatable=True)


# --------------------------------------------------------------------------------------- adapters

_OTHER: dict[Axis, Axis] = {"row": "col", "col": "row"}


def transposed(a: Operand) -> Operand:
    """The operand with rows and columns exchanged."""

    def open(b: IRBuilder, slots: Value, params: Value) -> Load:
        inner = a.open(b, slots, params)
        turned = getattr(inner, "transposed", None)
        if turned is not None:
            return turned()  # type: ignore[no-any-return]

        def load(
            b: IRBuilder,
            batch: Value,
            row: Value,
            col: Value,
            width: int,
            axis: Axis,
            mask: Value | None = None,
        ) -> Value:
            return inner(b, batch, col, row, width, _OTHER[axis], mask)

        return load

    unit = None if a.unit is None else _OTHER[a.unit]
    return replace(a, unit=unit, open=open)


def transposed_store(out: Epilogue) -> Epilogue:
    """The epilogue of the transposed product."""

    def open(b: IRBuilder, slots: Value, params: Value) -> Store:
        inner = out.open(b, slots, params)

        def store(
            b: IRBuilder,
            batch: Value,
            row: Value,
            col: Value,
            x: Value,
            axis: Axis,
            mask: Value | None = None,
        ) -> None:
            inner(b, batch, col, row, x, _OTHER[axis], mask)

        return store

    return Epilogue(open, _OTHER[out.axis], out.inline, out.repeatable)


def widen(b: IRBuilder, x: Value, dtype: np.dtype, target: Type, half: bool) -> Value:
    """Convert a loaded value to the accumulator type, exactly.

    A narrow float may come as its LLVM type or as stored bits. `half`: float16 in hardware.
    """
    if x.type.scalar is target:
        return x
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        if x.type.kind == "int":
            x = narrow.widen(b, _conversions(half), dtype, x)
        return b.cast(b.cast(x, F32), target)
    if dtypes.is_float(dtype) and target.kind == "int":
        raise TypeError(f"cannot accumulate {dtype.name} in {target}")
    return b.cast(x, target, signed=dtypes.is_signed(dtype))


def narrowed(b: IRBuilder, x: Value, dtype: np.dtype, half: bool) -> Value:
    """Convert an accumulated value to the storage type of `dtype`; narrow ones through float32."""
    if not (dtypes.is_float(dtype) and dtype.itemsize < 4):
        return b.cast(x, type_of(dtype))
    return narrow.narrow(b, _conversions(half), dtype, b.cast(x, F32))


def storage(dtype: np.dtype) -> Type:
    """Narrow floats are moved as their bits: the hardware's conversions are not all exact.

    Bools are bytes of 0 or 1.
    """
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        return I8 if dtype.itemsize == 1 else I16
    return I8 if dtypes.is_bool(dtype) else type_of(dtype)


def _conversions(half: bool) -> Target:
    """The only fact that narrow floats ask of a target."""
    return Target("", "", "", 0, 0, False, False, half)
