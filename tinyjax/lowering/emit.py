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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const_value
from tinyjax.lowering import accumulate, columns, irtext, memory
from tinyjax.lowering.accumulate import Parts, needs_flushing, path_to, rebuilt
from tinyjax.lowering.division import divide, divide_by_size
from tinyjax.lowering.elementwise import Elementwise
from tinyjax.lowering.indexing import Indexing
from tinyjax.lowering.irtext import I1, I32, I64, PTR, VOID, IRBuilder, Value
from tinyjax.lowering.nest import Accumulate, Line, Loop, Write
from tinyjax.lowering.registers import INT32, INT64, Register
from tinyjax.lowering.schedule import FOLD_CHAIN, Schedule
from tinyjax.lowering.target import Target
from tinyjax.lowering.tasks import Partition

Place = tuple[UOp, UOp | None]
"""Where a literal stands: a divisor in (quotient, divisor), a coefficient in (address, atom), the
constant of a sum in (address, None)."""


class Bases:
    """The loop variable at lane 0 of every copy: `index + copy * step`."""

    __slots__ = ("b", "copies", "index", "step")

    def __init__(self, b: IRBuilder, index: Value, copies: int = 1, step: int = 1) -> None:
        self.b, self.index, self.copies, self.step = b, index, copies, step

    def __len__(self) -> int:
        return self.copies

    def __getitem__(self, copy: int) -> Value:
        return self.b.add(self.index, copy * self.step) if copy else self.index


class Emitter:
    """State of one kernel's emission; `values` holds what is computed in the open loops."""

    def __init__(
        self,
        b: IRBuilder,
        target: Target,
        slots: Mapping[int, Value],
        free: Mapping[UOp, int],
        indexing: Indexing,
        schedule: Schedule | None = None,
        sizes: Mapping[Place, Callable[[], Value]] | None = None,
    ) -> None:
        self.b, self.target, self.slots = b, target, slots
        self.sizes = {} if sizes is None else sizes  # literals that are read instead
        self.free, self.indexing = free, indexing
        self.task_loops = [] if schedule is None else schedule.tasks.loops
        self.block = 1 if schedule is None else schedule.tasks.block
        self.partition = None if schedule is None else schedule.tasks.partition
        self.scalars = Elementwise(b, target)
        self.vectors = self.scalars
        self.memo: dict[Any, Any] = {}
        self.journal: list[list[Any]] = [[]]
        self.open: list[UOp] = []
        self.base: dict[UOp, Bases] = {}  # scalar value of each open range, per copy
        self.vec_bit = 0
        self.lanes = 0
        self.jam_bit = 0
        self.copies = 1
        self.mask: Value | None = None  # lanes that exist, in a tail
        self.accumulators: dict[UOp, Parts] = {}
        self.keeps: Mapping[UOp, int] = {}  # of the innermost open loop
        self.kept: Mapping[UOp, int] = {}
        self.row_range: UOp | None = None
        self.rows: dict[int, Value] = {}
        self.row_sizes: list[int] = []
        self.streamed: frozenset[int] = frozenset()  # slots whose vectors bypass the caches

    # --- scopes ----------------------------------------------------------------------------------

    def remember(self, key: Any, value: Any) -> None:
        """Keep `value` until the scope that is open now closes."""
        self.memo[key] = value
        self.journal[-1].append(key)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values computed inside are forgotten at the end: they do not dominate what follows."""
        self.journal.append([])
        converted = len(self.scalars.converted)
        yield
        self.scalars.forget(converted)
        for key in self.journal.pop():
            del self.memo[key]

    # --- values ----------------------------------------------------------------------------------

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
            made = memory.load(self, node)
        elif node.op is Op.DIM:
            made = [Register(INT64, self.dimension(node.arg.number))]
        elif node.op is Op.GETTUPLE:
            made = [parts[node.arg] for parts in self.memo[node.src[0], "parts"]]
        elif node.op is Op.PREFIX:
            made = accumulate.prefix(self, node)
        elif node.op is Op.FOLD:
            made = [parts[0] for parts in self.memo[node, "parts"]]
        elif node in self.kept:
            made = memory.read_row(self, node, self.kept[node])
        else:
            made = self.elementwise(node)
        if node in self.keeps:
            memory.write_row(self, self.keeps[node], made)
        self.remember(node, made)
        return made

    def dimension(self, number: int) -> Value:
        """A symbolic size of the program."""
        place = self.b.gep(I64, self.b.args[1], number)
        return self.b.load(I64, place)

    def loop_variable(self, node: UOp) -> list[Register]:
        """A RANGE as a value: its base, plus 0, 1, ... over the lanes."""
        bases = self.base[node]
        if not self.is_vector(node):
            return [Register(INT64, bases[u]) for u in range(len(bases))]
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
        if node.op in (Op.IDIV, Op.MOD) and node.src[1].op is Op.CONST and dtype.kind == "i":
            found = self.divided(node, args[0])
            if found is not None:
                return found
        return [
            ops.apply(node.op, node.arg, dtype, [a[u if len(a) > 1 else 0] for a in args])
            for u in range(self.count(node))
        ]

    def divided(self, node: UOp, dividends: list[Register]) -> list[Register] | None:
        """Floor division by a literal, by what is known of the dividend."""
        size = self.sizes.get((node, node.src[1]))
        if size is not None:
            x = dividends[0]
            return [Register(x.dtype, divide_by_size(self.b, node.op, x.value, size()))]
        divisor, span = int(const_value(node.src[1])), self.indexing.bounds(node.src[0])
        out: list[Register] = []
        for u in range(self.count(node)):
            x = dividends[u if len(dividends) > 1 else 0]
            found = divide(self.b, node.op, x.value, divisor, span, x.value.type.bits)
            if found is None:
                return None
            out.append(Register(x.dtype, found))
        return out

    def same_width(self, node: UOp, args: list[list[Register]]) -> list[list[Register]]:
        """Index operands all in 32-bit lanes or all in 64-bit ones."""
        sources = [s for s in node.src if s.aval.dtype == INT64]
        small = node.op is not Op.BITCAST and all(self.indexing.fits32(s) for s in sources)
        if node.aval.dtype == INT64 and node.op is not Op.CAST:
            small = small and self.indexing.fits32(node)
        target = INT32 if small else INT64
        return [
            [self.vectors.cast(x, target) for x in a] if s.aval.dtype == INT64 else a
            for s, a in zip(node.src, args)
        ]

    # --- lines -----------------------------------------------------------------------------------

    def run(self, lines: Sequence[Line]) -> None:
        """Emit lines in order; all values of a body are computed before its first store."""
        writes: list[tuple[UOp, list[Register]]] = []
        for line in lines:
            if isinstance(line, Loop):
                self.flush(writes)
                self.loop(line)
            elif isinstance(line, Accumulate):
                accumulate.accumulate(self, line.fold)
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
            memory.store(self, store, values)
        writes.clear()

    def used_as_value(self, node: UOp) -> bool:
        """Tuples of an argmax have no register of their own."""
        return hasattr(node.aval, "dtype")

    def prepare(self, loop: Loop) -> None:
        """Before a loop: addresses as far as they do not vary in it."""
        for index in loop.indexes:
            memory.addresses(self, index, complete=False)

    def loop(self, loop: Loop) -> None:
        """A whole loop: start its folds, run its parts, finish its folds."""
        for fold in loop.starts:
            self.accumulators[fold] = accumulate.start(self, fold, loop)
        prefixes = [c for c in loop.carries if c.op is Op.PREFIX and c.src[1] is loop.range]
        for p in prefixes:
            self.accumulators[p] = accumulate.start(self, p, loop)
        if self.task_loops and loop is self.task_loops[0]:
            self.task_loop(loop)
        else:
            self.parts(loop)
        for p in prefixes:
            del self.accumulators[p]
        for fold in loop.starts:
            accumulate.finish(self, fold, path_to(loop, fold))

    def parts(self, loop: Loop) -> None:
        """Main part, left-over vectors, masked tail, for a loop that runs from 0 to its extent."""
        if loop.limit is not None:
            self.ragged_parts(loop, irtext.const(I64, 0), self.steps_of(loop))
            return
        self.prepare(loop)
        if loop.columns:
            columns.emit(self, loop, irtext.const(I64, 0), irtext.const(I64, loop.extent))
            return
        step = loop.lanes * loop.copies
        main = loop.extent // step * step
        self.part(loop, irtext.const(I64, 0), irtext.const(I64, main), loop.copies)
        self.rest(loop, main)

    def rest(self, loop: Loop, main: int) -> None:
        """What does not fill a whole step: single vectors, then a masked one."""
        whole = loop.extent // loop.lanes * loop.lanes
        self.part(loop, irtext.const(I64, main), irtext.const(I64, whole), 1)
        if loop.extent > whole:
            at = irtext.const(I64, whole)
            self.part(loop, at, irtext.const(I64, whole + loop.lanes), 1, self.tail_mask(loop))

    def steps_of(self, loop: Loop) -> Value:
        """How many iterations a loop makes."""
        if loop.limit is None:
            return irtext.const(I64, loop.extent)
        count = self.scalars.cast(self.value(loop.limit, False)[0], INT64).value
        assert count is not None
        return self.b.smin(count, loop.extent)

    def ragged_parts(self, loop: Loop, low: Value, high: Value) -> None:
        """Whole steps, vectors and a masked vector of [low, high), which nothing is known of."""
        b = self.b
        self.prepare(loop)
        high = b.smax(high, low)
        if loop.columns:
            columns.emit(self, loop, low, high)
            return
        count, at = b.sub(high, low), low
        for copies in dict.fromkeys((loop.copies, 1)):
            step = loop.lanes * copies
            end = b.sub(high, b.urem(count, irtext.const(I64, step))) if step > 1 else high
            self.part(loop, at, end, copies)
            at = end
        if loop.lanes > 1:
            mask = b.first_lanes(b.sub(high, at), loop.lanes)
            self.part(loop, at, high, 1, mask)

    def tail_mask(self, loop: Loop) -> Value | None:
        """Which lanes of a loop's last, partial vector exist; None if there is no such vector."""
        left = loop.extent % loop.lanes
        return irtext.const_vector(I1, [i < left for i in range(loop.lanes)]) if left else None

    def bounded_parts(self, loop: Loop, low: Value, high: Value) -> None:
        """The same between two bounds known at run time; `low` is a multiple of a whole step."""
        b = self.b
        if loop.limit is not None:
            self.ragged_parts(loop, low, b.smin(high, self.steps_of(loop)))
            return
        self.prepare(loop)
        if loop.columns:
            columns.emit(self, loop, low, high)
            return
        step = loop.lanes * loop.copies
        main = loop.extent // step * step
        limit = high if main == loop.extent else b.smin(high, main)
        self.part(loop, low, limit, loop.copies, trips=self.block // step)
        if main < loop.extent:
            with b.if_(b.cmp("sge", high, loop.extent)), self.scope():
                self.rest(loop, main)

    def task_loop(self, loop: Loop) -> None:
        """The loops that tasks cut: [lo, hi) are units of the kernel."""
        b, loops, block = self.b, self.task_loops, self.block
        lo, hi = b.args[2], b.args[3]
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
        self.base[loop.range] = Bases(self.b, at[0])
        with ExitStack() as stack:
            if loop.limit is not None:
                stack.enter_context(self.b.if_(self.b.cmp("slt", at[0], self.steps_of(loop))))
                stack.enter_context(self.scope())
            for line in loop.lines:
                if isinstance(line, Loop):
                    self._nested(loops[1:], at[1:], low, high)
                elif isinstance(line, UOp) and self.used_as_value(line):
                    self.evaluate(line)
        self.open.pop()

    @contextmanager
    def inside(self, loop: Loop, copies: int, mask: Value | None = None) -> Iterator[None]:
        """The state within a loop: its vector, its copies, its range open."""
        saved = (self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies, self.mask)
        if loop.lanes > 1:
            self.vec_bit, self.lanes, self.mask = loop.bit, loop.lanes, mask
            self.vectors = self.scalars.of_lanes(loop.lanes)
        if copies > 1:
            self.jam_bit, self.copies = loop.bit, copies
        self.open.append(loop.range)
        yield
        self.open.pop()
        self.vec_bit, self.lanes, self.vectors, self.jam_bit, self.copies, self.mask = saved

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

        def body(index: Value) -> None:
            with self.scope():
                self.set_base(loop, index, copies)
                if self.partition is not None and loop is self.partition.loop:
                    with self.b.if_(self.is_ours(self.partition)), self.scope():
                        self.run(loop.lines)
                else:
                    self.run(loop.lines)

        with self.inside(loop, copies, mask), self.rows_of(loop):
            self.hoist(loop)
            flushed = [f for f in loop.carries if needs_flushing(loop, f)]
            if trips == 1 and low.const is not None:
                body(low)
            elif flushed and (trips is None or trips > FOLD_CHAIN):
                self.flushed_loop(loop, low, high, step, flushed, body)
            else:
                self.carried_loop(low, high, step, loop.carries, body)

    def is_ours(self, partition: Partition) -> Value:
        """Whether this iteration's destination row belongs to the units of this call."""
        b = self.b
        row = irtext.const(I64, 0)
        for atom, c in partition.key:
            x = self.scalars.cast(self.value(atom, False)[0], INT64).value
            row = b.add(row, b.mul(x, c // partition.divisor))
        above = b.cmp("sge", row, b.mul(b.args[2], partition.rows))
        return b.and_(above, b.cmp("slt", row, b.mul(b.args[3], partition.rows)))

    @contextmanager
    def rows_of(self, loop: Loop) -> Iterator[None]:
        """Row buffers are used by sweeps that are not inside a vector or unrolled loop."""
        saved = (self.keeps, self.kept, self.row_range)
        own = loop.bit
        plain = self.vec_bit in (0, own) and self.jam_bit in (0, own)
        self.keeps, self.kept = (loop.keeps, loop.kept) if plain else ({}, {})
        self.row_range = loop.range
        yield
        self.keeps, self.kept, self.row_range = saved

    def hoist(self, loop: Loop) -> None:
        """Before a vector loop: splats of the scalars that its vectors use."""
        if not self.vec_bit:
            return
        for line in loop.lines:
            if isinstance(line, UOp) and self.is_vector(line) and line.op is not Op.LOAD:
                for s in line.src:
                    computed = s in self.memo or (s, "parts") in self.memo
                    if computed and not self.is_vector(s) and hasattr(s.aval, "dtype"):
                        self.value(s, True)

    def set_base(self, loop: Loop, index: Value, copies: int) -> None:
        """The loop variable of every copy; all but the first are made when asked for."""
        self.base[loop.range] = Bases(self.b, index, copies, loop.lanes)

    def flushed_loop(
        self,
        loop: Loop,
        low: Value,
        high: Value,
        step: int,
        flushed: Sequence[UOp],
        body: Callable[[Value], None],
    ) -> None:
        """A long sum in chunks: fresh accumulators for each, added to the totals at its end."""
        length = FOLD_CHAIN * step

        def chunk(start: Value) -> None:
            totals = {f: self.accumulators[f] for f in flushed}
            for f in flushed:
                self.accumulators[f] = accumulate.start_again(self, f)
            end = self.b.smin(self.b.add(start, length), high)
            self.carried_loop(start, end, step, loop.carries, body, nonempty=True)
            for f in flushed:
                pairs = zip(totals[f], self.accumulators[f])
                self.accumulators[f] = [accumulate.merged(self, f, x, y) for x, y in pairs]

        self.carried_loop(low, high, length, loop.carries, chunk)

    def carried_loop(
        self,
        low: Value,
        high: Value,
        step: int,
        carries: Sequence[UOp],
        body: Callable[[Value], None],
        nonempty: bool = False,
    ) -> None:
        """A counted loop that carries accumulators."""
        flat = self._flat(carries)
        with self.b.loop(low, high, step, carried=flat, nonempty=nonempty) as counted:
            self._unflatten(carries, counted.carried)
            body(counted.index)
            counted.next(*self._flat(carries))
        self._unflatten(carries, counted.results)

    def _flat(self, carries: Sequence[UOp]) -> list[Value]:
        return [v for c in carries for part in self.accumulators[c] for r in part for v in r.parts]

    def _unflatten(self, carries: Sequence[UOp], values: Sequence[Value]) -> None:
        source = iter(values)
        for c in carries:
            self.accumulators[c] = [
                tuple(rebuilt(r, [next(source) for _ in r.parts]) for r in part)
                for part in self.accumulators[c]
            ]


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
    emitter = Emitter(b, target, slots, made.nest.free, made.nest.indexing, made)
    emitter.row_sizes = [size for _, size in made.nest.row_buffers]
    for line in made.nest.lines:
        if isinstance(line, Loop):
            emitter.prepare(line)
    if made.streams:
        _run_streamed(emitter, made)
    else:
        emitter.run(made.nest.lines)
    b.ret()
    return module.text()


def _run_streamed(e: Emitter, made: Schedule) -> None:
    """With stores that bypass the caches if the buffers are aligned as those need, else without."""
    b = e.b
    bits: Value | None = None
    for slot in made.streams:
        address = b.emit(f"ptrtoint {e.slots[slot]} to i64", I64)
        bits = address if bits is None else b.or_(bits, address)
    assert bits is not None
    aligned = b.cmp("eq", b.and_(bits, e.target.vector_bytes - 1), 0)
    with b.if_(aligned) as branch, e.scope():
        e.streamed = frozenset(made.streams)
        e.run(made.nest.lines)
        # They are weakly ordered: another thread may read the buffer as soon as we return.
        b.call("llvm.x86.sse.sfence", VOID, [])
        e.streamed = frozenset()
    with branch.otherwise(), e.scope():
        e.run(made.nest.lines)
