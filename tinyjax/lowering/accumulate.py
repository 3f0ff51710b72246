"""Accumulators of folds and prefixes: how they start, step, and become one value at the end.

An accumulator is a list with one entry per copy of the unrolled loop; an entry is the value (and
the index, for an argmax). Copies, then lanes, are combined in a fixed tree, so the result depends
on the schedule only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp
from tinyjax.lowering import irtext
from tinyjax.lowering.elementwise import Elementwise
from tinyjax.lowering.interpret import FOLD_OPS, identity
from tinyjax.lowering.irtext import I64, Value
from tinyjax.lowering.memory import has_lanes
from tinyjax.lowering.nest import Accumulate, Loop, fold_operands, ranges_of
from tinyjax.lowering.registers import BOOL, Register, RegisterBuilder, is_narrow

if TYPE_CHECKING:
    from tinyjax.lowering.emit import Emitter

Parts = list[tuple[Register, ...]]
"""An accumulator: per copy, the value (and the index of an argmax)."""


def ops_for(e: Emitter, x: Register) -> Elementwise:
    """An elementwise emitter with the lanes of a register."""
    lanes = x.parts[0].type.lanes
    if lanes == e.vectors.lanes:
        return e.vectors
    return e.scalars if lanes == 0 else e.scalars.of_lanes(lanes)


def canonical(e: Emitter, x: Register) -> Register:
    """The form an accumulator has: narrow floats as float32."""
    if is_narrow(x.dtype):
        return Register(x.dtype, None, ops_for(e, x).wide(x))
    return x


def combine(e: Emitter, kind: str, x: Register, y: Register) -> Register:
    """One step of a fold."""
    made = ops_for(e, x).apply(FOLD_OPS[kind], None, x.dtype, [x, y])
    return canonical(e, made)


def combine_arg(
    e: Emitter, kind: str, best: tuple[Register, ...], new: tuple[Register, ...], ordered: bool
) -> tuple[Register, ...]:
    """The extreme of two (value, index) pairs; `ordered`: new's index is the larger."""
    b = e.b
    ops = ops_for(e, best[0])
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
        earlier = b.cmp(
            "slt" if dtypes.is_signed(new[1].dtype) else "ult", new[1].value, best[1].value
        )
        wins = b.or_(wins, b.and_(ties, earlier))
    condition = Register(BOOL, wins)
    return tuple(canonical(e, ops.where(condition, n, o)) for n, o in zip(new, best))


def merged(
    e: Emitter, fold: UOp, x: tuple[Register, ...], y: tuple[Register, ...]
) -> tuple[Register, ...]:
    """Two partial results of a FOLD as one."""
    if tracks_nan(fold):
        return extreme_step(e, fold.arg, (x[0], x[1]), y[0], y[1])
    if len(x) == 2:
        return combine_arg(e, fold.arg, x, y, ordered=False)
    return (combine(e, fold_kind(fold), x[0], y[0]),)


def tracks_nan(fold: UOp) -> bool:
    """Whether a FOLD is a max or min of floats, accumulated as (extreme of numbers, a NaN or 0).

    A NaN-propagating maximum is six instructions on x86, the pair three and a shorter chain. Of
    zeros of both signs, the one that comes first is kept.
    """
    return (
        fold.op is Op.FOLD
        and fold.arg in ("max", "min")
        and dtypes.is_float(fold.src[0].aval.dtype)
    )


def extreme_step(
    e: Emitter, kind: str, old: tuple[Register, Register], new: Register, nan: Register
) -> tuple[Register, ...]:
    """Add a number to an (extreme, NaN) pair; `nan` is where a NaN may be (the number itself)."""
    b = e.b
    best, seen, x, y = (r.parts[-1] for r in (*old, new, nan))
    wins = b.cmp("ogt" if kind == "max" else "olt", x, best)
    made = b.select(wins, x, best), b.select(b.cmp("uno", y, y), y, seen)
    return rebuilt(old[0], [made[0]]), rebuilt(old[1], [made[1]])


def start(e: Emitter, fold: UOp, loop: Loop) -> Parts:
    """Initial accumulators of a FOLD whose outermost loop is `loop`, or of a PREFIX."""
    path = path_to(loop, fold)
    vector = any(x.lanes > 1 for x in path) or bool(e.free[fold] & e.vec_bit)
    if fold.op is Op.PREFIX and loop.lanes > 1:
        vector = False  # a scan carries the last lane only
    copies = max([x.copies for x in path], default=1)
    if copies == 1 and e.free[fold] & e.jam_bit:
        copies = e.copies
    lanes = max([e.lanes, *(x.lanes for x in path)]) if vector else 0
    ops = e.scalars.of_lanes(lanes)
    kind, dtype = fold_kind(fold), fold.src[0].aval.dtype
    neutral = prefix_start(kind, dtype) if fold.op is Op.PREFIX else identity(kind, dtype)
    first = canonical(e, ops.constant(dtype, neutral))
    if fold.arg in ("argmax", "argmin"):
        indices = first_indices(e, fold, path, lanes, copies)
        return [(first, i) for i in indices]
    if tracks_nan(fold):
        return [(first, first)] * copies  # no NaN yet (float8_e8m0fnu has no zero)
    return [(first,)] * copies


def first_indices(
    e: Emitter, fold: UOp, path: list[Loop], lanes: int, copies: int
) -> list[Register]:
    """The index of an argmax at the first iteration of every lane and copy."""
    saved = (e.vec_bit, e.lanes, e.vectors, e.jam_bit, e.copies)
    with e.scope():
        for loop in path:
            if loop.lanes > 1:
                e.vec_bit, e.lanes = loop.bit, loop.lanes
                e.vectors = e.scalars.of_lanes(loop.lanes)
            if loop.copies > 1:
                e.jam_bit, e.copies = loop.bit, loop.copies
            e.set_base(loop, irtext.const(I64, 0), loop.copies)
            e.open.append(loop.range)
        dtype = fold.src[1].aval.dtype
        made = [
            (e.vectors if lanes else e.scalars).cast(x, dtype)
            for x in e.value(fold.src[1], lanes > 0)
        ]
        for loop in path:
            e.open.remove(loop.range)
    e.vec_bit, e.lanes, e.vectors, e.jam_bit, e.copies = saved
    return made if len(made) == copies else made * copies


def accumulate(e: Emitter, fold: UOp) -> None:
    """One step of a FOLD with the values of this iteration, in every copy."""
    parts = e.accumulators[fold]
    vector = has_lanes(parts[0][0])
    mask_of = 0
    for r in ranges_of(fold):
        mask_of |= 1 << r.arg[0]
    operands = []
    for s in fold_operands(fold):
        regs = e.value(s, vector)
        ops = e.vectors if vector else e.scalars
        operands.append([ops.cast(x, s.aval.dtype) for x in regs])
    jammed = e.jam_bit & (mask_of | e.free[fold])
    out = list(parts)
    for u in range(e.copies if jammed else 1):
        new = tuple(canonical(e, regs[u if len(regs) > 1 else 0]) for regs in operands)
        old = parts[u]
        made: tuple[Register, ...]
        if tracks_nan(fold):
            made = extreme_step(e, fold.arg, (old[0], old[1]), new[0], new[0])
        elif len(new) == 2:
            made = combine_arg(e, fold.arg, old, new, ordered=True)
        else:
            made = (combine(e, fold.arg, old[0], new[0]),)
        if e.mask is not None and mask_of & e.vec_bit:
            keep = Register(BOOL, e.mask)
            made = tuple(canonical(e, e.vectors.where(keep, m, o)) for m, o in zip(made, old))
        out[u] = made
    e.accumulators[fold] = out


def prefix(e: Emitter, node: UOp) -> list[Register]:
    """The running fold including this iteration."""
    parts = e.accumulators[node]
    if e.vec_bit & 1 << node.src[1].arg[0]:
        return scan(e, node)
    vector = has_lanes(parts[0][0])
    values = e.value(node.src[0], vector)
    out: Parts = []
    for u, old in enumerate(parts):
        new = values[u if len(values) > 1 else 0]
        new = canonical(e, ops_for(e, new).cast(new, node.aval.dtype))
        out.append((combine(e, node.arg[0], old[0], new),))
    e.accumulators[node] = out
    return [canonical(e, p[0]) for p in out]  # a store adds the rounded form to what it is given


def prefix_start(kind: str, dtype: Any) -> Any:
    """What a prefix starts from: -0 for sums, since -0 + x is x, also for x = -0."""
    start = identity(kind, dtype)
    return -start if kind == "add" and dtypes.is_inexact(dtype) else start


def scan(e: Emitter, node: UOp) -> list[Register]:
    """Prefix of a vector of iterations: shift by 1, 2, 4, ... and combine, then add the carry.

    The carry only meets the last lane of what was scanned, so the loop's latency is one operation.
    """
    kind, lanes = node.arg[0], e.lanes
    (carry,) = e.accumulators[node][0]
    x = canonical(e, e.vectors.cast(e.value(node.src[0], True)[0], node.aval.dtype))
    neutral = canonical(e, e.vectors.constant(x.dtype, prefix_start(kind, x.dtype)))
    distance = 1
    while distance < lanes:
        order = [lanes + i if i < distance else i - distance for i in range(lanes)]
        moved = [e.b.shuffle(v, n, order) for v, n in zip(x.parts, neutral.parts, strict=True)]
        x = combine(e, kind, rebuilt(x, moved), x)
        distance *= 2
    last = rebuilt(x, [e.b.extract(v, lanes - 1) for v in x.parts])
    e.accumulators[node] = [(combine(e, kind, carry, last),)]
    return [combine(e, kind, e.vectors.splat(carry), x)]


def finish(e: Emitter, fold: UOp, path: list[Loop]) -> None:
    """Combine copies, then lanes, in a fixed tree; the FOLD's value is then known."""
    parts = e.accumulators.pop(fold)
    if any(loop.copies > 1 for loop in path):
        while len(parts) > 1:
            half = (len(parts) + 1) // 2
            joined = [merged(e, fold, x, y) for x, y in zip(parts[:half], parts[half:])]
            parts = joined + parts[len(parts) - half : half] if len(parts) % 2 else joined
    across = any(loop.lanes > 1 for loop in path)
    if tracks_nan(fold):
        parts = [(with_nan(e, fold, p, across),) for p in parts]
    elif across:
        parts = [across_lanes(e, fold, p) for p in parts]
    e.remember((fold, "parts"), parts)


def across_lanes(e: Emitter, fold: UOp, x: tuple[Register, ...]) -> tuple[Register, ...]:
    """Fold the halves of a vector onto each other."""
    lanes = x[0].parts[0].type.lanes
    while lanes > 1:
        half = lanes // 2
        low = tuple(slice(e, r, 0, half) for r in x)
        high = tuple(slice(e, r, half, half) for r in x)
        if len(x) == 2:
            x = combine_arg(e, fold.arg, low, high, ordered=False)
        else:
            x = (combine(e, fold_kind(fold), low[0], high[0]),)
        lanes = half
    return x


def with_nan(e: Emitter, fold: UOp, x: tuple[Register, ...], across: bool) -> Register:
    """An (extreme, NaN) pair as one number, per lane or of all lanes."""
    b = e.b
    best, nan = x[0].parts[-1], x[1].parts[-1]
    is_nan = b.cmp("uno", nan, nan)
    if not across:
        return rebuilt(x[0], [b.select(is_nan, nan, best)])
    predicate = "ogt" if fold.arg == "max" else "olt"
    while best.type.lanes:
        half = best.type.lanes // 2
        low, high = b.slice_lanes(best, 0, half), b.slice_lanes(best, half, half)
        best = b.select(b.cmp(predicate, high, low), high, low)
    quiet = irtext.const(best.type, math.nan)
    return rebuilt(x[0], [b.select(RegisterBuilder(b).any(is_nan), quiet, best)])


def slice(e: Emitter, x: Register, start: int, lanes: int) -> Register:
    """Consecutive lanes of a register."""
    parts = [None if v is None else e.b.slice_lanes(v, start, lanes) for v in (x.value, x.other)]
    return Register(x.dtype, *parts)


def start_again(e: Emitter, fold: UOp) -> Parts:
    """Neutral accumulators of the shape a FOLD's have."""
    parts = e.accumulators[fold]
    dtype = parts[0][0].dtype
    neutral = ops_for(e, parts[0][0]).constant(dtype, identity(fold_kind(fold), dtype))
    return [(canonical(e, neutral),)] * len(parts)


def rebuilt(like: Register, values: list[Value]) -> Register:
    """A register of the same form with other LLVM values."""
    return (
        Register(like.dtype, None, *values)
        if is_narrow(like.dtype)
        else (Register(like.dtype, *values))
    )


def fold_kind(fold: UOp) -> str:
    """The kind of a FOLD or PREFIX; an argmax starts like a max."""
    if fold.op is Op.PREFIX:
        return str(fold.arg[0])
    return {"argmax": "max", "argmin": "min"}.get(fold.arg, str(fold.arg))


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
