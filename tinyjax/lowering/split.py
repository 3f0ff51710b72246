"""Big reductions with few results -> two kernels, so that threads can share one reduction.

`split_folds` cuts the outermost range of a kernel's folds into fixed chunks:

    out = f(FOLD(v(r), r))           partial[c] = FOLD(v(c*n + s), s)         for each chunk c
                              ->     out = f(FOLD(partial[c], c) + FOLD(v(C*n + t), t))

with t over what is left when the chunks do not divide the extent. The number of chunks depends on
the shape only, so results do not depend on threads. The partials live in scratch memory: one more
slot of both kernels per fold (value and index of an argmax are two).

Only kernels whose folds all close one common range and do not feed each other are split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinyjax.core.avals import Aval, aval
from tinyjax.core.integers import add, integer, mul
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, param, toposort
from tinyjax.lowering.interpret import FOLD_OPS
from tinyjax.lowering.nest import extent, fold_operands, limit, ranges_of
from tinyjax.lowering.substitute import substitute

MAX_SCRATCH = 16 << 20
"""Bytes of partial results at most."""


@dataclass(frozen=True, slots=True)
class Split:
    """Two kernels over the original slots followed by `scratch` (bytes of each further slot)."""

    partial: UOp
    final: UOp
    scratch: tuple[int, ...]


def splittable(sink: UOp) -> tuple[list[UOp], UOp] | None:
    """The folds of a kernel and the range to cut, if the kernel has the right form."""
    order = toposort([sink])
    folds = [n for n in order if n.op is Op.FOLD]
    if not folds or any(n.op is Op.PREFIX for n in order):
        return None
    if any(r.arg[1] == "serial" for r in order if r.op is Op.RANGE):
        return None
    common = {r for r in ranges_of(folds[0]) if limit(r) is None}
    for f in folds:
        if any(n.op is Op.FOLD for n in toposort(fold_operands(f))):
            return None
        common &= {r for r in ranges_of(f) if limit(r) is None}
    if not common:
        return None
    return folds, max(common, key=lambda r: (extent(r), -r.arg[0]))


def split_folds(sink: UOp, chunks: int, slots: int | None = None) -> Split | None:
    """Cut the folds of `sink` into `chunks`; None if they do not have the form or are too large.

    Scratch slots are numbered from `slots`, or after those that the SINK uses.
    """
    found = splittable(sink)
    if found is None:
        return None
    folds, cut = found
    divisors = (c for c in range(chunks, chunks // 2, -1) if extent(cut) % c == 0)
    chunks = next(divisors, chunks)
    length = extent(cut) // chunks
    if length < 2:
        return None
    rest = extent(cut) - chunks * length
    number = 1 + max(n.arg[0] for n in toposort([sink]) if n.op is Op.RANGE)
    used = 1 + max(n.arg[0] for n in toposort([sink]) if n.op is Op.PARAM)
    slot = used if slots is None else slots
    chunk = UOp(Op.RANGE, (integer(chunks),), (number, "loop"))
    inner = UOp(Op.RANGE, (integer(length),), (number + 1, "reduce"))
    again = UOp(Op.RANGE, (integer(chunks),), (number + 2, "reduce"))
    start = add(mul(chunk, integer(length)), inner)
    scratch: list[int] = []
    ends: list[UOp] = []
    finals: dict[UOp, UOp] = {}
    for f in folds:
        outer = _free(f)
        of: list[Aval] = [s.aval for s in fold_operands(f)]
        part = _replaced(f, cut, start, inner)
        buffers = []
        for k, a in enumerate(of):
            shape = (chunks, *(extent(r) for r in outer))
            buffer = param(slot + len(scratch), aval(shape, a.dtype))
            scratch.append(buffer.aval.nbytes)
            buffers.append(buffer)
            value = part if len(of) == 1 else get(part, k)
            where = UOp(Op.INDEX, (buffer, _position(chunk, outer)))
            ends.append(UOp(Op.END, (UOp(Op.STORE, (where, value)), chunk, *outer)))
        loads = tuple(UOp(Op.LOAD, (UOp(Op.INDEX, (b, _position(again, outer))),)) for b in buffers)
        total = UOp(Op.FOLD, (*loads, again), f.arg)
        if rest:
            last = UOp(Op.RANGE, (integer(rest),), (number + 3, "reduce"))
            at = add(last, integer(chunks * length))
            total = _joined(f.arg, total, _replaced(f, cut, at, last))
        finals[f] = total
    if sum(scratch) > MAX_SCRATCH:
        return None
    return Split(UOp(Op.SINK, tuple(ends)), substitute(sink, finals), tuple(scratch))


def _free(fold: UOp) -> list[UOp]:
    """Ranges a fold depends on, by number."""
    found = {n for n in toposort([fold]) if n.op is Op.RANGE} - set(ranges_of(fold))
    return sorted(found, key=lambda r: r.arg[0])


def _position(first: UOp, outer: Sequence[UOp]) -> UOp:
    """Row-major index of (first, *outer)."""
    at = first
    for r in outer:
        at = add(mul(at, r.src[0]), r)
    return at


def _replaced(fold: UOp, cut: UOp, by: UOp, closes: UOp) -> UOp:
    """The fold with range `cut` replaced by an expression over the range `closes`."""
    return substitute(fold, {cut: by}, {cut: (closes,)})


def _joined(kind: str, x: UOp, y: UOp) -> UOp:
    """Two partial folds as one: through one more FOLD for pairs, by the op otherwise."""
    if kind not in ("argmax", "argmin"):
        return UOp(FOLD_OPS[kind], (x, y))
    (a, i), (b, j) = ((get(p, 0), get(p, 1)) for p in (x, y))
    # y's indices are the larger ones, so x wins ties; NaN wins, the first one first.
    beats = UOp(Op.CMPLT, (a, b) if kind == "argmax" else (b, a))
    fresh = UOp(Op.AND, (UOp(Op.CMPNE, (b, b)), UOp(Op.CMPEQ, (a, a))))
    take = UOp(Op.OR, (beats, fresh))
    return UOp(Op.TUPLE, (UOp(Op.WHERE, (take, b, a)), UOp(Op.WHERE, (take, j, i))))
