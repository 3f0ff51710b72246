"""Floor division of index lanes by a constant, by what is known of the dividend.

Powers of two are shifts and masks. Where the product fits the lanes, a multiplication and a shift
that are exact over the dividend's bounds (core/magic.py) do it: two instructions where LLVM, which
does not know the bounds, needs ten for a vector. Otherwise it is LLVM's division, unsigned if the
dividend is never negative.
"""

from __future__ import annotations

import functools

from tinyjax.core.intervals import Span, within
from tinyjax.core.magic import Step, magic_divide
from tinyjax.core.ops import Op
from tinyjax.lowering.irtext import I64, IRBuilder, Value

EXACT = {"mul", "add", "shr"}
"""Steps that stay within the lanes."""


@functools.lru_cache(maxsize=4096)
def steps_of(divisor: int, span: Span, bits: int) -> tuple[Step, ...] | None:
    """The straight-line program in lanes of `bits`; None if there is none."""
    limit = 1 << (bits - 1)
    if bits not in (32, 64) or not within(span, (-limit, limit - 1)):
        return None
    program = magic_divide(divisor, *span, bits)
    fits = program.product_bits == bits and all(kind in EXACT for kind, _ in program.steps)
    return program.steps if fits else None


def divide(b: IRBuilder, op: Op, x: Value, divisor: int, span: Span, bits: int) -> Value | None:
    """x // divisor (IDIV) or x % divisor (MOD), divisor > 0; None if LLVM's signed forms are needed."""
    if divisor <= 0:
        return None
    if divisor & (divisor - 1) == 0:
        return b.and_(x, divisor - 1) if op is Op.MOD else b.ashr(x, divisor.bit_length() - 1)
    steps = steps_of(divisor, span, bits)
    if steps is None:
        if span[0] < 0:
            return None
        return b.urem(x, divisor) if op is Op.MOD else b.udiv(x, divisor)
    quotient = x
    for kind, k in steps:
        apply = {"mul": b.mul, "add": b.add, "shr": b.ashr}[kind]
        quotient = apply(quotient, k)
    return b.sub(x, b.mul(quotient, divisor)) if op is Op.MOD else quotient


def divide_by_size(b: IRBuilder, op: Op, x: Value, divisor: Value) -> Value:
    """x // divisor (IDIV) or x % divisor (MOD) of int64 that are never negative, divisor not 0.

    So it traps for no operands, and is written before the loops in which they do not change.
    """
    name = "urem" if op is Op.MOD else "udiv"
    return b.pure(f"{name} i64 {x.text}, {divisor.text}", I64, x, divisor)
