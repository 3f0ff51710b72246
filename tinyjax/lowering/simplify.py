"""Stage-1 rewrites that are exact for every value, NaN and zeros of both signs included.

Tracing and derivatives leave pairs that cancel once calls are inlined: conversions there and back,
transposes of transposes, factors of one, complex numbers taken apart again. A division by a power
of two becomes a multiplication, which rounds the same and costs a tenth.

Each rule makes the graph smaller, or replaces a DIV (which none makes). One bottom-up walk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.ops import Op
from tinyjax.core.rewrite import P, Rules, rewrite
from tinyjax.core.uop import UOp, const, const_value, tuple_of

rules = Rules("simplify")
x, y = P.any("x"), P.any("y")
FLOATS = ("bfloat16", "float16", "float32", "float64")


def simplify(body: UOp) -> UOp:
    """flat body -> the same without what cancels: casts, moves, factors of one, double negation"""
    done = rewrite(list(body.src), rules, pass_name="simplify")
    return body if tuple(done) == body.src else tuple_of(done)


def stands_for(made: UOp, node: UOp) -> UOp | None:
    """The replacement if it has the type of what it replaces (a scalar operand has not)."""
    same = made.aval.shape == node.aval.shape and made.aval.dtype == node.aval.dtype
    return made if same else None


# --- arithmetic -----------------------------------------------------------------------------------


@rules.rule(P.neg(P.neg(x)), P.not_(P.not_(x)))
def drop_double_negation(x: UOp) -> UOp:
    """-(-x) -> x, not not x -> x"""
    return x


@rules.rule(P.mul(x, P.literal(1), any_order=True, name="n"), P.div(x, P.literal(1), name="n"))
def drop_one(x: UOp, n: UOp) -> UOp | None:
    """x * 1, x / 1 -> x, for real numbers (inf + i times 1 + 0i has a NaN)"""
    return None if dtypes.is_complex(x.aval.dtype) else stands_for(x, n)


@rules.rule(
    P.add(x, P.const("zero"), any_order=True, name="n"), P.sub(x, P.const("zero"), name="n")
)
def drop_zero(x: UOp, zero: UOp, n: UOp) -> UOp | None:
    """x + -0.0, x - 0.0 -> x (x + 0.0 is not x for x = -0.0); integers: either"""
    value = const_value(zero)
    if value != 0 or dtypes.is_complex(zero.aval.dtype):
        return None
    negative = bool(np.signbit(np.asarray(value).astype(np.float64)))
    if dtypes.is_inexact(zero.aval.dtype) and negative != (n.op is Op.ADD):
        return None
    return stands_for(x, n)


@rules.rule(P.div(x, P.number("c")))
def multiply_by_inverse(x: UOp, c: Any) -> UOp | None:
    """x / c -> x * (1/c) where c is a power of two, for floats: both round the exact quotient"""
    dtype = x.aval.dtype
    if dtype.name not in FLOATS or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    info = dtypes.finfo(dtype)
    if not float(info.smallest_normal) <= abs(1.0 / c) <= float(info.max):
        return None
    return UOp(Op.MUL, (x, const(1.0 / c, dtype)))


@rules.rule(P.max(x, x, name="n"), P.min(x, x, name="n"), P.and_(x, x, name="n"),
            P.or_(x, x, name="n"))  # fmt: skip
def drop_twin(x: UOp, n: UOp) -> UOp | None:
    """max, min, and, or of x with itself -> x"""
    return stands_for(x, n)


@rules.rule(P.where(P.any(), x, x, name="n"))
def drop_choice(x: UOp, n: UOp) -> UOp | None:
    """where(c, x, x) -> x"""
    return stands_for(x, n)


@rules.rule(P.real(P.complex(x, y), name="n"))
def read_real_part(x: UOp, n: UOp) -> UOp | None:
    """real(complex(x, y)) -> x"""
    return stands_for(x, n)


@rules.rule(P.imag(P.complex(x, y), name="n"))
def read_imaginary_part(y: UOp, n: UOp) -> UOp | None:
    """imag(complex(x, y)) -> y"""
    return stands_for(y, n)


# --- conversions ----------------------------------------------------------------------------------


def is_exact(source: Any, target: Any) -> bool:
    """Whether every value of a dtype has itself in another."""
    if dtypes.is_bool(source):
        return True
    if dtypes.is_integer(source) and dtypes.is_integer(target):
        a, b = dtypes.iinfo(source), dtypes.iinfo(target)
        return bool(b.min <= a.min and a.max <= b.max)
    if source.name in FLOATS[:3] and dtypes.is_float(target):
        wider = bool(source.itemsize < target.itemsize)
        return wider and target.name in FLOATS[2:]
    return False


@rules.rule(P.cast(P.cast(x, name="wide"), name="n"))
def drop_conversion_there_and_back(x: UOp, wide: UOp, n: UOp) -> UOp | None:
    """cast(cast(x, wide), dtype of x) -> x, where wide holds every value of x"""
    if x.aval.dtype != n.aval.dtype or not is_exact(x.aval.dtype, wide.aval.dtype):
        return None
    return x


# --- movement -------------------------------------------------------------------------------------


@rules.rule(P.reshape(P.reshape(x), name="n"))
def merge_reshapes(x: UOp, n: UOp) -> UOp:
    """reshape(reshape(x, s), t) -> reshape(x, t)"""
    return UOp(Op.RESHAPE, (x,), n.arg)


@rules.rule(P.reshape(x, name="n"))
def drop_reshape(x: UOp, n: UOp) -> UOp | None:
    """reshape(x, shape of x) -> x"""
    return stands_for(x, n)


@rules.rule(P.permute(P.permute(x, name="inner"), name="n"))
def merge_permutes(x: UOp, inner: UOp, n: UOp) -> UOp:
    """permute(permute(x, p), q) -> permute(x, p after q)"""
    return UOp(Op.PERMUTE, (x,), tuple(inner.arg[axis] for axis in n.arg))


@rules.rule(P.permute(x, name="n"))
def drop_permute(x: UOp, n: UOp) -> UOp | None:
    """permute(x, every axis in its place) -> x"""
    return x if n.arg == tuple(range(len(n.arg))) else None


@rules.rule(P.expand(P.expand(x, name="inner"), name="n"))
def merge_expands(x: UOp, inner: UOp, n: UOp) -> UOp:
    """expand(expand(x, dims), more) -> expand(x, more of dims)"""
    shape, dims = n.arg
    return UOp(Op.EXPAND, (x,), (shape, tuple(dims[d] for d in inner.arg[1])))
