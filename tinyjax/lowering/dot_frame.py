"""What the kernels of a DOT share: the nest being emitted, sizes as values, opened operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinyjax.core import dtypes
from tinyjax.lowering.dot_expression import Computed
from tinyjax.lowering.dot_operands import (
    Axis,
    Epilogue,
    Load,
    Operand,
    slot_pointer,
    widen,
)
from tinyjax.lowering.dot_schedule import (
    BATCH,
    COL_BLOCKS,
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
    I16,
    I32,
    I64,
    PTR,
    VOID,
    Module,
    Type,
    Value,
    const,
    vec,
    zero,
)


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
    limits: Mapping[int, int]
    nonempty: bool
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


class Kernel:
    """A kernel being written: its builder, its sizes as values (read where they are asked for).

    `within` makes it a function of its own that the given kernel calls: its loops hold registers of
    the kind that LLVM hoists out of all loops (literals, masks), which a register tile cannot spare.
    Its arguments are the integers `extra` and, last, an array of `array` bytes of the caller's.
    """

    def __init__(
        self,
        nest: Nest,
        suffix: str,
        within: Kernel | None = None,
        extra: Sequence[str] = (),
        array: int = 0,
    ) -> None:
        self.nest, self.name = nest, f"{nest.name}{suffix}"
        lead = [("slots", PTR), ("dims", PTR)]
        if within is None:
            self.module = Module()
            self.b = b = self.module.function(self.name, [*lead, ("lo", I64), ("hi", I64)])
            self.slots, self.dims, self.lo, self.hi = b.args
        else:
            self.module = within.module
            lead += [(name, I64) for name in extra]
            notes = [""] * len(lead)
            if array:
                lead.append(("array", PTR))
                notes.append(f"dereferenceable({array})")
            self.b = b = self.module.function(
                self.name, lead, attributes="nounwind noinline", convention="internal",
                param_attributes=notes,
            )  # fmt: skip
            self.slots, self.dims, *self.extra = b.args
        slot, schedule = nest.params_slot, nest.schedule
        self.params = self.dims if slot is None else slot_pointer(b, self.slots, slot)
        self.counts = {i: self.limited(i) for i in nest.limits}
        if M in self.counts:
            self.counts[ROW_BLOCKS] = self.divided(self.panels, max(1, schedule.mc // schedule.mr))
        if N in self.counts:
            per_block = max(1, schedule.nc // schedule.nr)
            self.counts[COL_BLOCKS] = self.divided(self.columns, per_block)
        if K in self.counts and schedule.split_k:
            parts = b.udiv(b.add(self.k, b.sub(self.size(K_SPLIT), 1)), self.size(K_SPLIT))
            self.counts[SPLITS] = b.smax(parts, 1)

    @property
    def batch(self) -> Value:
        """Matrices to multiply."""
        return self.size(BATCH)

    @property
    def m(self) -> Value:
        """Rows of C."""
        return self.size(M)

    @property
    def n(self) -> Value:
        """Columns of C."""
        return self.size(N)

    @property
    def k(self) -> Value:
        """Terms of each sum."""
        return self.size(K)

    @property
    def panels(self) -> Value:
        """Panels of rows of C."""
        return self.divided(self.m, self.nest.schedule.mr)

    @property
    def columns(self) -> Value:
        """Panels of columns of C."""
        return self.divided(self.n, self.nest.schedule.nr)

    @property
    def k_rows(self) -> Value:
        """Units of K in a packed panel."""
        return self.units(self.round_up(self.k, k_align(self.nest.schedule)))

    def call(self, within: Kernel, args: Sequence[Value]) -> None:
        """Call this function from the kernel it belongs to."""
        within.b.call(self.name, VOID, [within.slots, within.dims, *args])

    @property
    def overlaps(self) -> bool:
        """Whether the last tile of rows is a whole one that overlaps the one before."""
        return self.nest.schedule.tail == 0

    def panel_rows(self, panel: Value) -> tuple[Value, Value, Value]:
        """(row, lo, hi): rows row + lo .. row + hi of C are those of a panel of rows."""
        b, schedule = self.b, self.nest.schedule
        start = b.mul(panel, schedule.mr)
        if not self.overlaps:
            return start, const(I64, 0), b.smin(b.sub(self.m, start), schedule.mr)
        row = b.smin(start, b.sub(self.m, schedule.mr))
        return row, b.sub(start, row), const(I64, schedule.mr)

    def units(self, k: Value) -> Value:
        """Whole groups in k elements."""
        return self.b.udiv(k, self.nest.schedule.group)

    def divided(self, x: Value, y: int) -> Value:
        """x / y rounded up."""
        return self.b.udiv(self.b.add(x, y - 1), y)

    def limited(self, index: int) -> Value:
        """One of the sizes, as the program's `dims` have it."""
        b = self.b
        return b.load(I64, b.gep(I64, self.dims, self.nest.limits[index]))

    def run_only(self, tasks: Callable[[], Value]) -> None:
        """Leave out the tasks that only the largest sizes have."""
        if self.counts:
            self.hi = self.b.smin(self.hi, tasks())

    def size(self, index: int) -> Value:
        """A parameter of the step; a size that is known at run time is no parameter."""
        b = self.b
        if index in self.counts:
            return self.counts[index]
        return b.invariant(I64, b.gep(I64, self.params, index))

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
        inside: bool = False,
    ) -> Value:
        """`width` elements along one of the two axes, in the accumulator type."""
        x = self.raw(kernel, batch, mn, k, width, along_k, mask, inside)
        return widen(kernel.b, x, self.operand.dtype, kernel.nest.acc, kernel.nest.target.half)

    def raw(
        self,
        kernel: Kernel,
        batch: Value,
        mn: Value,
        k: Value,
        width: int,
        along_k: bool,
        mask: Value | None,
        inside: bool = False,
    ) -> Value:
        """The same as the operand's load gives it; `inside` promises that it crosses no run."""
        row, col = (mn, k) if self.is_a else (k, mn)
        axis: Axis = "col" if along_k == self.is_a else "row"
        if isinstance(self.load, Computed):
            # Blocks of K start at multiples of a vector, and so do panels of whole vectors but for
            # the last one of rows, if it overlaps.
            moved = self.is_a and kernel.overlaps
            aligned = along_k or (self.tile % width == 0 and not moved)
            return self.load(kernel.b, batch, row, col, width, axis, mask, aligned, inside)
        return self.load(kernel.b, batch, row, col, width, axis, mask)

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
        inside: bool = False,
    ) -> Value:
        """Elements as the 16 or 8 bits that the target multiplies."""
        b, x = kernel.b, self.raw(kernel, batch, mn, k, width, along_k, mask, inside)
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


def open_side(kernel: Kernel, is_a: bool) -> Side:
    nest = kernel.nest
    operand = nest.a if is_a else nest.b
    opened = operand.open(kernel.b, kernel.slots, kernel.params)
    limit = kernel.m if is_a else kernel.n
    return Side(operand, opened, is_a, limit, nest.schedule.mr if is_a else nest.schedule.nr)
