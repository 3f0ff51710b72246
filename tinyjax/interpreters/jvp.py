"""Forward-mode derivatives: nodes over variables -> (nodes, tangent nodes).

A tangent of `None` is structurally zero, and values without a derivative (integers, bools, keys)
always have it. A rule gets the *new* primal node, whose `src` are the new primal operands, and one
tangent per operand; it returns the tangent. So `exp` reuses its own value, and rules of nodes with
bodies may replace their primal: `jvp` of a CALL is a forward call that also returns residuals and a
call that is linear in the tangents (interpreters/linearize.py).

Reference: Griewank and Walther, "Evaluating Derivatives", ch. 3; conventions for complex values
are JAX's (bilinear, no conjugation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes, sites
from tinyjax.core.dims import largest
from tinyjax.core.infos import GatherInfo
from tinyjax.core.ops import BODIES, STEPS, Op
from tinyjax.core.uop import UOp, Var, depends_on, get, substitute, toposort

Tangent = UOp | None
JvpRule = Callable[..., Any]  # a tangent, a list of them, or (new primal, tangents)


def add_tangents(x: Tangent, y: Tangent) -> Tangent:
    """x + y where either may be zero."""
    if x is None:
        return y
    return x if y is None else b.add(x, y)


def instantiate(x: Tangent, like: UOp) -> UOp:
    """A tangent as a node: zeros where it is structurally zero."""
    return b.zeros(like.aval) if x is None else x


# --- elementwise ------------------------------------------------------------------------------------


def scaled(derivative: Callable[[UOp, UOp], UOp]) -> JvpRule:
    """dy = dx * f'(y, x) for an op of one operand."""
    return lambda y, dx: b.mul(dx, derivative(y, y.src[0]))


def zero(*_: Any) -> None:
    """Locally constant."""
    return None


def number(x: UOp, value: float) -> UOp:
    """`value` in the dtype of x."""
    return b.like(x, value)


def square_plus(x: UOp, constant: float) -> UOp:
    """x*x + constant"""
    return b.add(b.square(x), number(x, constant))


def abs_rule(y: UOp, dx: UOp) -> UOp:
    """dx where x >= 0, else -dx, as JAX at zero; for complex x, Re(dx conj(x)/|x|)"""
    x = y.src[0]
    if not dtypes.is_complex(x.dtype):
        return b.where(b.ge(x, b.like(x, 0)), dx, b.neg(dx))
    # Not sign(x), whose derivative counts as zero: this one has a second derivative.
    safe = b.where(b.eq(y, b.like(y, 0)), b.ones(y.aval), y)
    return b.real(b.mul(dx, b.div(b.conj(x), b.cast(safe, x.dtype))))


def cast_rule(y: UOp, dx: UOp) -> Tangent:
    """Linear between inexact dtypes, else constant."""
    return b.cast_like(dx, y.aval) if dtypes.is_inexact(y.dtype) else None


def fill(t: UOp, y: UOp) -> UOp:
    """A scalar operand's tangent broadcast to the result's shape."""
    return b.fill_to(t, y.shape)


def add_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """d(a + b)"""
    total = add_tangents(da, db)
    return None if total is None else fill(total, y)


def sub_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """d(a - b)"""
    if db is None:
        return None if da is None else fill(da, y)
    return fill(b.neg(db), y) if da is None else b.sub(da, db)


def product_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """d(ab) = da b + a db"""
    x, z = y.src
    left = None if da is None else b.mul(da, z)
    right = None if db is None else b.mul(x, db)
    return add_tangents(left, right)


def quotient_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """d(a/b) = da/b - (a/b) db/b"""
    z = y.src[1]
    left = None if da is None else b.div(da, z)
    right = None if db is None else b.mul(db, b.neg(b.div(y, z)))
    return add_tangents(left, right)


def rem_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """a rem b = a - b trunc(a/b)"""
    x, z = y.src
    right = None if db is None else b.mul(db, b.neg(b.unary(Op.TRUNC, b.div(x, z))))
    total = add_tangents(da, right)
    return None if total is None else fill(total, y)


def pow_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """d(a**b) = da b a**(b-1) + db log(a) a**b, 0 where b = 0, and log(0) counted as 0"""
    x, e = y.src
    left = right = None
    if da is not None:
        flat = b.eq(e, number(e, 0))
        lower = b.where(flat, b.fill_to(number(e, 1), e.shape), b.sub(e, number(e, 1)))
        slope = b.mul(e, b.pow_(x, lower))
        left = b.mul(da, b.where(flat, number(slope, 0), slope))
    if db is not None:
        safe = b.where(b.eq(x, number(x, 0)), b.fill_to(number(x, 1), x.shape), x)
        right = b.mul(db, b.mul(b.log(safe), y))
    return add_tangents(left, right)


def extreme_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """max and min pass the tangent of the chosen operand, half of each at a tie"""
    x, z = y.src
    half, one, none = number(y, 0.5), number(y, 1), number(y, 0)

    def share(mine: UOp, other: UOp) -> UOp:
        win = b.gt(mine, other) if y.op is Op.MAX else b.lt(mine, other)
        return b.where(win, one, b.where(b.eq(mine, other), half, none))

    left = None if da is None else b.mul(da, share(x, z))
    right = None if db is None else b.mul(db, share(z, x))
    total = add_tangents(left, right)
    return None if total is None else fill(total, y)


def atan2_rule(y: UOp, dy: Tangent, dx: Tangent) -> Tangent:
    """d atan2(y, x) = (x dy - y dx) / (x^2 + y^2)"""
    top, side = y.src
    norm = b.add(b.square(side), b.square(top))
    left = None if dy is None else b.mul(dy, b.div(side, norm))
    right = None if dx is None else b.mul(dx, b.neg(b.div(top, norm)))
    return add_tangents(left, right)


def where_rule(y: UOp, dc: Tangent, da: Tangent, db: Tangent) -> Tangent:
    """Choose between tangents."""
    if da is None and db is None:
        return None
    none = b.like(y, 0)
    out = b.where(y.src[0], none if da is None else da, none if db is None else db)
    return fill(out, y)


def complex_rule(y: UOp, dre: Tangent, dim: Tangent) -> UOp:
    """Complex of the tangents."""
    re, im = y.src
    out = b.complex_(instantiate(dre, re), instantiate(dim, im))
    return fill(out, y)


def trigamma(x: UOp) -> UOp:
    """Second derivative of lgamma: recurrence to x >= 8, then the asymptotic series.

    Reflection pi^2/sin^2(pi x) below 1/2. Source: Abramowitz and Stegun 6.4.6, 6.4.7, 6.4.12.
    """
    small = b.lt(x, number(x, 0.5))
    z = b.where(small, b.sub(number(x, 1), x), x)
    total = b.full(x.shape, number(x, 0))
    for _ in range(8):
        total = b.add(total, b.reciprocal(b.square(z)))
        z = b.add(z, number(z, 1))
    r = b.reciprocal(b.square(z))
    series = number(z, 0)
    for bernoulli in (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = b.mul(r, b.add(series, number(z, bernoulli)))
    inv = b.reciprocal(z)
    tail = b.add(inv, b.add(b.mul(r, number(z, 0.5)), b.mul(inv, series)))
    value = b.add(total, tail)
    sine = b.sin(b.mul(x, number(x, math.pi)))
    reflected = b.sub(b.div(number(x, math.pi**2), b.square(sine)), value)
    return b.where(small, reflected, value)


# --- movement and reductions -----------------------------------------------------------------------------


def same_op(y: UOp, dx: UOp, *others: Tangent) -> UOp:
    """A linear op applies to the tangent as to the value; the other operands are static."""
    return UOp(y.op, (dx, *y.src[1:]), y.arg)


def pad_rule(y: UOp, dx: Tangent, dfill: Tangent) -> Tangent:
    """Linear in value and fill."""
    if dx is None and dfill is None:
        return None
    x, value = y.src
    return UOp(Op.PAD, (instantiate(dx, x), instantiate(dfill, value)), y.arg)


def concat_rule(y: UOp, *dxs: Tangent) -> Tangent:
    """Linear in all operands."""
    parts = [instantiate(d, x) for d, x in zip(dxs, y.src, strict=True)]
    return UOp(Op.CONCAT, tuple(parts), y.arg)


def others_product(x: UOp, axis: int) -> UOp:
    """For each element along `axis` the product of all *other* elements; zeros are no trouble."""
    one = b.like(x, 1)
    config = [(0, 0, 0)] * x.ndim
    size = x.shape[axis]
    config[axis] = (1, -1, 0)
    before = b.pad(b.prefix("mul", x, axis), config, one)
    config[axis] = (-1, 1, 0)
    after = b.pad(b.prefix("mul", x, axis, reverse=True), config, one)
    return b.mul(before, after) if size else x


def reduce_rule(y: UOp, dx: UOp) -> Tangent:
    """sum: linear. max, min: shared between ties. product: each factor times all the others."""
    x, (kind, axes) = y.src[0], y.arg
    if kind == "add":
        return same_op(y, dx)
    if kind in ("max", "min"):
        keep = tuple(i for i in range(x.ndim) if i not in axes)
        hit = b.cast_like(b.eq(x, b.expand(y, x.shape, keep)), x.aval)
        return b.div(b.sum_(b.mul(dx, hit), axes), b.sum_(hit, axes))
    if kind == "mul":
        keep = tuple(i for i in range(x.ndim) if i not in axes)
        flat_shape = (*(x.shape[i] for i in keep), b.prod([x.shape[i] for i in axes]))
        flat = b.reshape(b.permute(x, keep + axes), flat_shape)
        dflat = b.reshape(b.permute(dx, keep + axes), flat_shape)
        last = len(keep)
        return b.sum_(b.mul(dflat, others_product(flat, last)), (last,))
    return None


def argreduce_rule(y: UOp, dx: UOp) -> list[Tangent]:
    """The value moves with the element at the index."""
    axis = y.arg[1]
    x, index = y.src[0], get(y, 1)
    keep = tuple(i for i in range(x.ndim) if i != axis)
    places = b.iota(x.shape, axis, index.dtype)
    hit = b.eq(places, b.expand(index, x.shape, keep))
    return [b.sum_(b.where(hit, dx, b.like(dx, 0)), (axis,)), None]


COMBINE = {"add": b.add, "mul": b.mul, "max": b.max_, "min": b.min_}


def prefix_by_doubling(x: UOp, kind: str, axis: int, reverse: bool) -> UOp:
    """PREFIX as log2(n) shifted combinations, each of which has a derivative.

    Source: Hillis and Steele, "Data parallel algorithms" (1986).
    """
    neutral = {"mul": 1, "max": -np.inf, "min": np.inf}[kind]
    step = 1
    while step < largest(x.shape[axis]):
        config = [(0, 0, 0)] * x.ndim
        config[axis] = (-step, step, 0) if reverse else (step, -step, 0)
        x = COMBINE[kind](x, b.pad(x, config, b.like(x, neutral)))
        step *= 2
    return x


def prefix_rule(y: UOp, dx: UOp) -> Tangent:
    """Cumulative sum is linear; the others are differentiated through doubling steps."""
    kind, axis, reverse = y.arg
    if kind == "add":
        return same_op(y, dx)
    v = UOp(Op.VAR, (), Var(y.src[0].aval))
    unrolled = prefix_by_doubling(v, kind, axis, reverse)
    (out,), (tangent,) = jvp([unrolled], {v: dx})
    return None if tangent is None else substitute([tangent], {v: y.src[0]})[0]


def dot_rule(y: UOp, da: Tangent, db: Tangent) -> Tangent:
    """Bilinear."""
    x, z = y.src
    left = None if da is None else UOp(Op.DOT, (da, z), y.arg)
    right = None if db is None else UOp(Op.DOT, (x, db), y.arg)
    return add_tangents(left, right)


# --- indexed -------------------------------------------------------------------------------------------------


def gather_rule(y: UOp, dx: Tangent, dindex: Tangent, dfill: Tangent = None) -> Tangent:
    """Linear in the operand; what is out of bounds is constant (the fill's tangent, if any)."""
    if dx is None and dfill is None:
        return None
    x = y.src[0]
    fill_value = b.like(x, 0) if dfill is None else dfill
    return b.gather(instantiate(dx, x), y.src[1], y.arg, fill_value)


def scatter_rule(y: UOp, dx: Tangent, dindex: Tangent, du: Tangent) -> Tangent:
    """Linear for add and set (row-major order decides between duplicates); max and min share the
    tangent between all that attain the result; products need unique indices, as in JAX."""
    if dx is None and du is None:
        return None
    x, indices, updates = y.src
    kind = y.arg.kind
    if kind in ("add", "set"):
        return b.scatter(instantiate(dx, x), indices, instantiate(du, updates), y.arg)
    if kind in ("max", "min"):
        return scatter_extreme_rule(y, dx, du)
    if not (y.arg.unique_indices or du is None):
        raise NotImplementedError(
            "scatter_mul with indices that may repeat has no derivative: pass unique_indices=True "
            "if they do not, or combine the updates first."
        )
    left = None if dx is None else b.scatter(dx, indices, updates, y.arg)
    right = None
    if du is not None:
        here = b.gather(x, indices, gather_of_scatter(y.arg, x.shape, updates.shape), b.like(x, 0))
        base = b.zeros(x.aval)
        right = b.scatter(base, indices, b.mul(here, du), replace(y.arg, kind="add"))
    return add_tangents(left, right)


def scatter_extreme_rule(y: UOp, dx: Tangent, du: Tangent) -> UOp:
    """Old values and updates equal to the result share its tangent."""
    x, indices, updates = y.src
    read = gather_of_scatter(y.arg, x.shape, updates.shape)
    into = replace(y.arg, kind="add")
    kept = b.cast_like(b.eq(x, y), x.aval)
    hit = b.cast_like(b.eq(updates, b.gather(y, indices, read, b.like(x, 0))), updates.aval)
    moved = b.scatter(
        b.zeros(x.aval) if dx is None else b.mul(dx, kept),
        indices,
        b.zeros(updates.aval) if du is None else b.mul(du, hit),
        into,
    )
    return b.div(moved, b.scatter(kept, indices, hit, into))


def gather_of_scatter(info: Any, operand: tuple[int, ...], updates: tuple[int, ...]) -> GatherInfo:
    """The gather that reads what a scatter with this info writes."""
    skip = set(info.inserted_window_dims) | set(info.operand_batching_dims)
    windows = iter(updates[i] for i in info.update_window_dims)
    sizes = tuple(1 if i in skip else next(windows) for i in range(len(operand)))
    return GatherInfo(
        offset_dims=info.update_window_dims,
        collapsed_slice_dims=info.inserted_window_dims,
        start_index_map=info.scatter_dims_to_operand_dims,
        slice_sizes=sizes,
        operand_batching_dims=info.operand_batching_dims,
        start_indices_batching_dims=info.scatter_indices_batching_dims,
        mode=info.mode,
        indices_are_sorted=info.indices_are_sorted,
        unique_indices=info.unique_indices,
    )


def dynamic_update_rule(y: UOp, dx: Tangent, du: Tangent, *starts: Tangent) -> Tangent:
    """Linear in operand and update."""
    if dx is None and du is None:
        return None
    x, update = y.src[:2]
    return UOp(Op.DYNAMIC_UPDATE, (instantiate(dx, x), instantiate(du, update), *y.src[2:]))


def take_along(x: UOp, index: UOp, axis: int) -> UOp:
    """x[..., index[..., i, ...], ...] along `axis`; all other axes are batch axes of a GATHER."""
    if 0 in x.shape:  # no slice of size 1 fits an empty axis
        return b.reshape(x, index.shape)
    others = tuple(i for i in range(x.ndim) if i != axis)
    info = GatherInfo(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        slice_sizes=(1,) * x.ndim,
        operand_batching_dims=others,
        start_indices_batching_dims=others,
        mode="promise_in_bounds",
        unique_indices=True,
    )
    return b.gather(x, b.reshape(index, (*index.shape, 1)), info)


def sort_rule(y: UOp, *dxs: Tangent) -> tuple[UOp, list[Tangent]]:
    """Sort a permutation along with the operands; tangents are moved by it."""
    axis, num_keys, stable = y.arg
    shape = y.src[0].shape
    places = b.iota(shape, axis)
    *values, order = b.sort((*y.src, places), axis, num_keys, stable)
    tangents = [None if d is None else take_along(d, order, axis) for d in dxs]
    return b_tuple(values), tangents


def b_tuple(values: Sequence[UOp]) -> UOp:
    """TUPLE, so that GETTUPLE of a replaced primal folds."""
    return UOp(Op.TUPLE, tuple(values))


LN2 = math.log(2.0)

JVP: dict[Op, JvpRule] = {
    Op.NEG: lambda y, dx: b.neg(dx),
    Op.ABS: abs_rule,
    **dict.fromkeys(STEPS, zero),
    Op.SQRT: lambda y, dx: b.div(b.mul(dx, number(y, 0.5)), y),
    Op.RSQRT: scaled(lambda y, x: b.mul(number(y, -0.5), b.div(y, x))),
    Op.CBRT: scaled(lambda y, x: b.div(number(y, 1 / 3), b.square(y))),
    Op.EXP: scaled(lambda y, x: y),
    Op.EXP2: scaled(lambda y, x: b.mul(y, number(y, LN2))),
    Op.EXPM1: scaled(lambda y, x: b.add(y, number(y, 1))),
    Op.LOG: lambda y, dx: b.div(dx, y.src[0]),
    Op.LOG2: lambda y, dx: b.div(dx, b.mul(y.src[0], number(y, LN2))),
    Op.LOG1P: lambda y, dx: b.div(dx, b.add(y.src[0], number(y, 1))),
    Op.SIN: scaled(lambda y, x: b.cos(x)),
    Op.COS: scaled(lambda y, x: b.neg(b.sin(x))),
    Op.TAN: scaled(lambda y, x: square_plus(y, 1)),
    Op.ASIN: scaled(lambda y, x: b.rsqrt(b.sub(number(x, 1), b.square(x)))),
    Op.ACOS: scaled(lambda y, x: b.neg(b.rsqrt(b.sub(number(x, 1), b.square(x))))),
    Op.ATAN: lambda y, dx: b.div(dx, square_plus(y.src[0], 1)),
    Op.SINH: scaled(lambda y, x: b.unary(Op.COSH, x)),
    Op.COSH: scaled(lambda y, x: b.unary(Op.SINH, x)),
    Op.TANH: scaled(lambda y, x: b.sub(number(y, 1), b.square(y))),
    Op.ASINH: scaled(lambda y, x: b.rsqrt(square_plus(x, 1))),
    Op.ACOSH: scaled(lambda y, x: b.rsqrt(b.mul(b.sub(x, number(x, 1)), b.add(x, number(x, 1))))),
    Op.ATANH: lambda y, dx: b.div(
        dx, b.mul(b.sub(number(y, 1), y.src[0]), b.add(number(y, 1), y.src[0]))
    ),
    Op.LOGISTIC: scaled(lambda y, x: b.mul(y, b.sub(number(y, 1), y))),
    Op.ERF: scaled(
        lambda y, x: b.mul(number(x, 2 / math.sqrt(math.pi)), b.exp(b.neg(b.square(x))))
    ),
    Op.ERFC: scaled(
        lambda y, x: b.mul(number(x, -2 / math.sqrt(math.pi)), b.exp(b.neg(b.square(x))))
    ),
    Op.ERFINV: scaled(lambda y, x: b.mul(number(x, math.sqrt(math.pi) / 2), b.exp(b.square(y)))),
    Op.LGAMMA: scaled(lambda y, x: b.unary(Op.DIGAMMA, x)),
    Op.DIGAMMA: scaled(lambda y, x: trigamma(x)),
    Op.REAL: lambda y, dx: b.real(dx),
    Op.IMAG: lambda y, dx: b.imag(dx),
    Op.CONJ: lambda y, dx: b.conj(dx),
    Op.COMPLEX: complex_rule,
    Op.CAST: cast_rule,
    Op.REDUCE_PRECISION: same_op,
    Op.ADD: add_rule,
    Op.SUB: sub_rule,
    Op.MUL: product_rule,
    Op.DIV: quotient_rule,
    Op.REM: rem_rule,
    Op.POW: pow_rule,
    Op.MAX: extreme_rule,
    Op.MIN: extreme_rule,
    Op.ATAN2: atan2_rule,
    Op.WHERE: where_rule,
    Op.RESHAPE: lambda y, dx: b.reshape(dx, y.arg),
    Op.PERMUTE: lambda y, dx: b.permute(dx, y.arg),
    Op.EXPAND: same_op,
    Op.PAD: pad_rule,
    Op.SLICE: same_op,
    Op.FLIP: same_op,
    Op.CONCAT: concat_rule,
    Op.WINDOW: same_op,
    Op.REDUCE: reduce_rule,
    Op.ARGREDUCE: argreduce_rule,
    Op.PREFIX: prefix_rule,
    Op.DOT: dot_rule,
    Op.GATHER: gather_rule,
    Op.SCATTER: scatter_rule,
    Op.DYNAMIC_SLICE: same_op,
    Op.DYNAMIC_UPDATE: dynamic_update_rule,
    Op.SORT: sort_rule,
    Op.FFT: same_op,
    Op.NAME: lambda y, dx: dx,
    Op.OPTIMIZATION_BARRIER: lambda y, dx: dx,
    Op.REMAT: lambda y, dx: dx,
    Op.COPY: lambda y, dx: dx,
    Op.PCAST: same_op,
    Op.ALL_GATHER: same_op,
    Op.REDUCE_SCATTER: same_op,
    Op.PPERMUTE: same_op,
    Op.ALL_TO_ALL: same_op,
}
"""One rule per op with a derivative; ops with bodies are in linearize.py (`BODY_JVP`)."""

NOT_DIFFERENTIABLE: dict[Op, str] = {
    Op.IS_FINITE: "bool result",
    Op.NOT: "bits",
    Op.POPCOUNT: "bits",
    Op.CLZ: "bits",
    Op.BITCAST: "bits",
    Op.AND: "bits",
    Op.OR: "bits",
    Op.XOR: "bits",
    Op.SHL: "bits",
    Op.SHRL: "bits",
    Op.SHRA: "bits",
    Op.CMPEQ: "bool result",
    Op.CMPNE: "bool result",
    Op.CMPLT: "bool result",
    Op.CMPLE: "bool result",
    Op.IDIV: "integers",
    Op.MOD: "integers",
    Op.RANDOM_BITS: "bits",
    Op.STOP_GRADIENT: "constant by definition",
    Op.KEY_WRAP: "keys",
    Op.KEY_UNWRAP: "keys",
    Op.AXIS_INDEX: "integers",
    Op.CONST: "leaf",
    Op.IOTA: "leaf",
    Op.DIM: "leaf",
    Op.VAR: "leaf",
    Op.PARAM: "leaf",
    Op.BUFFER: "leaf",
}

# Rules that decide for themselves what a missing tangent means; all others are called only with
# the first operand's tangent present.
_PARTIAL = frozenset(
    {
        Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.REM, Op.POW, Op.MAX, Op.MIN, Op.ATAN2, Op.WHERE,
        Op.COMPLEX, Op.PAD, Op.CONCAT, Op.DOT, Op.GATHER, Op.SCATTER, Op.DYNAMIC_UPDATE, Op.SORT,
    }
)  # fmt: skip


def all_reduce_rule(y: UOp, dx: UOp) -> UOp:
    """psum is linear; pmax and pmin share the tangent between the participants that attain them."""
    kind, names = y.arg
    if kind == "add":
        return same_op(y, dx)
    hit = b.cast_like(b.eq(y.src[0], y), dx.aval)
    axes = y.src[1:]
    total = UOp(Op.ALL_REDUCE, (b.mul(dx, hit), *axes), ("add", names))
    return b.div(total, UOp(Op.ALL_REDUCE, (hit, *axes), ("add", names)))


JVP[Op.ALL_REDUCE] = all_reduce_rule


def jvp(
    outputs: Sequence[UOp],
    tangents: Mapping[UOp, UOp],
    memo: tuple[dict[UOp, UOp], dict[UOp, Any]] | None = None,
) -> tuple[list[UOp], list[Tangent]]:
    """Outputs and their tangents, given the tangents of some variables.

    Outputs come back because calls with active arguments are replaced by their augmented form.
    Cost: one walk over the nodes that mention the variables, but for those in `memo`: what earlier
    calls with the same tangents made of nodes, and their tangents.
    """
    new: dict[UOp, UOp]
    dot: dict[UOp, Any]
    new, dot = ({}, {}) if memo is None else memo
    dot |= tangents
    wanted = depends_on(outputs, [v.arg for v in tangents])
    order = toposort(outputs, keep=lambda n: n not in new and wanted(n))
    for node in order:
        if node.op is Op.VAR:
            continue
        src = tuple(new.get(s, s) for s in node.src)
        dsrc = [dot.get(s) for s in node.src]
        if node.op is Op.GETTUPLE:
            new[node] = get(src[0], node.arg)
            dot[node] = None if dsrc[0] is None else dsrc[0][node.arg]
            continue
        if node.op is Op.TUPLE:
            new[node], dot[node] = node.with_src(src), dsrc
            continue
        if all(d is None for d in dsrc):
            new[node] = node.with_src(src)
            continue
        if node.op in BODIES or node.op in EXTERNAL:
            from tinyjax.interpreters.linearize import BODY_JVP  # its rules call jvp again

            new[node], dot[node] = BODY_JVP[node.op](node.with_src(src), dsrc)
            continue
        y = node.with_src(src)
        new[node] = y
        rule = JVP.get(node.op)
        if rule is None:
            if node.op in NOT_DIFFERENTIABLE:
                continue
            raise NotImplementedError(f"no forward derivative is known for {node.op.name.lower()}")
        if node.op not in _PARTIAL and dsrc[0] is None:
            continue
        result = rule(y, *dsrc) if node.op in _PARTIAL else rule(y, dsrc[0])
        if isinstance(result, tuple):
            new[node], result = result
        dot[node] = result
    if sites.tracing():
        sites.inherit(order)
        for node in order:
            sites.rewritten(new.get(node), node)
            sites.rewritten(dot.get(node), node, "jvp")
    return [new.get(o, o) for o in outputs], [dot.get(o) for o in outputs]


# Ops without bodies of their own whose rule needs more than their operands' tangents.
EXTERNAL = frozenset({Op.CUSTOM_LIN, Op.CALLBACK, Op.HOST_CALL, Op.CHECK, Op.KERNEL})
