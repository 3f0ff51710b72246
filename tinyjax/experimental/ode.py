"""odeint: adaptive Runge-Kutta (Dormand-Prince 5(4)) with the continuous adjoint for reverse mode.

The state is one vector. A step goes from t to t + h with seven stages, the last of which is the
first of the next step. The difference to the embedded fourth-order result is the error estimate; a
step whose error is within tolerance is taken, and the next h is chosen so that the error would be
just within it. Values at the output times come from a quartic through the ends and the middle of the
step that passes them.

Reverse mode integrates the adjoint equation backwards from output time to output time, together
with the state; nothing is kept but the outputs. References: Dormand and Prince (1980); Shampine,
"Some practical Runge-Kutta formulas" (1986), for the middle; Hairer, Norsett and Wanner, "Solving
Ordinary Differential Equations I", II.4, for step sizes; Chen et al., "Neural Ordinary Differential
Equations" (2018), for the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tinyjax.numpy as jnp
from tinyjax import lax
from tinyjax.core import dtypes
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_map, tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_vjp
from tinyjax.engine.derivatives import apply_effectful, float0_zeros, vjp
from tinyjax.engine.jit import jit
from tinyjax.engine.tracing import argument_paths, name_of, stage_cached
from tinyjax.engine.values import finish_all, is_array_like, lift, shaped_abstractify
from tinyjax.engine.vectorize import vmap
from tinyjax.flatten_util import ravel_pytree

NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""The last row is also the fifth-order result."""
ERROR = (
    35 / 384 - 1951 / 21600, 0.0, 500 / 1113 - 22642 / 50085, 125 / 192 - 451 / 720,
    -2187 / 6784 + 12231 / 42400, 11 / 84 - 649 / 6300, -1 / 60,
)  # fmt: skip
MIDDLE = (
    6025192743 / 30085553152 / 2, 0.0, 51252292925 / 65400821598 / 2,
    -2691868925 / 45128329728 / 2, 187940372067 / 1594534317056 / 2,
    -1776094331 / 19743644256 / 2, 11237099 / 235043384 / 2,
)  # fmt: skip
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0

Field = Callable[[Any, Any], Any]


def combined(weights: Sequence[float], slopes: Sequence[Any]) -> Any:
    """sum of w * k"""
    parts = [k * w for w, k in zip(weights, slopes, strict=False) if w]
    return sum(parts[1:], parts[0])


def rms(x: Any) -> Any:
    """Root of the mean square."""
    return jnp.sqrt(jnp.mean(jnp.abs(x) ** 2))


def try_step(f: Field, y: Any, slope: Any, t: Any, h: Any) -> tuple[Any, Any, Any, Any]:
    """(state, slope, error, quartic) after a step; the quartic is in the fraction of the step."""
    scale = h.astype(y.dtype)
    slopes = [slope]
    new = y
    for node, row in zip(NODES[1:], STAGES[1:], strict=True):
        new = y + scale * combined(row, slopes)
        slopes.append(f(new, t + node * h))
    middle = y + scale * combined(MIDDLE, slopes)
    first, last = scale * slopes[0], scale * slopes[-1]
    quartic = (
        2 * (last - first) - 8 * (y + new) + 16 * middle,
        5 * first - 3 * last + 18 * y + 14 * new - 32 * middle,
        last - 4 * first - 11 * y - 5 * new + 16 * middle,
        first,
        y,
    )
    return new, slopes[-1], scale * combined(ERROR, slopes), quartic


def at_fraction(quartic: Sequence[Any], s: Any) -> Any:
    """Horner's rule."""
    value = quartic[0]
    for c in quartic[1:]:
        value = value * s + c
    return value


def first_step(f: Field, y: Any, slope: Any, t: Any, rtol: float, atol: float) -> Any:
    """A step size for which an Euler step is about right (Hairer et al., II.4)."""
    scale = atol + jnp.abs(y) * rtol
    size, speed = rms(y / scale), rms(slope / scale)
    small = (size < 1e-5) | (speed < 1e-5)
    h0 = jnp.where(small, 1e-6, 0.01 * size / jnp.where(speed == 0, 1.0, speed))
    bend = rms((f(y + h0.astype(y.dtype) * slope, t + h0) - slope) / scale) / h0
    most = jnp.maximum(speed, bend)
    flat = most <= 1e-15
    h1 = jnp.where(
        flat, jnp.maximum(1e-6, h0 * 1e-3), (0.01 / jnp.where(flat, 1.0, most)) ** (1 / 5)
    )
    return jnp.minimum(100 * h0, h1).astype(t.dtype)


def integrate(
    f: Field, y0: Any, ts: Any, rtol: float, atol: float, mxstep: float, hmax: float
) -> Any:
    """The states at `ts`, [len(ts), n]."""
    slope = f(y0, ts[0])
    h = jnp.minimum(first_step(f, y0, slope, ts[0], rtol, atol), hmax).astype(ts.dtype)
    flat = (*(jnp.zeros_like(y0) for _ in range(4)), y0)

    def until(carry: Any, target: Any) -> tuple[Any, Any]:
        def running(state: Any) -> Any:
            count, (_, _, t, h, _, _) = state
            return (t < target) & (count < mxstep) & (h > 0)

        def advance(state: Any) -> Any:
            count, (y, slope, t, h, begin, quartic) = state
            new, new_slope, error, new_quartic = try_step(f, y, slope, t, h)
            largest = jnp.maximum(jnp.abs(y), jnp.abs(new))
            ratio = rms(error / (atol + rtol * largest))
            growth = SAFETY * jnp.where(ratio == 0, 1e-10, ratio) ** (-1 / 5)
            growth = jnp.clip(growth, jnp.where(ratio < 1, 1.0, SHRINK), GROW)
            next_h = jnp.minimum(h * growth, hmax).astype(h.dtype)
            taken = (new, new_slope, t + h, next_h, t, new_quartic)
            kept = (y, slope, t, next_h, begin, quartic)
            choose = lambda p, q: jnp.where(ratio <= 1, p, q)
            return count + 1, tree_map(choose, taken, kept)

        carry = lax.while_loop(running, advance, (0, carry))[1]
        _, _, t, _, begin, quartic = carry
        width = t - begin
        fraction = jnp.where(width > 0, (target - begin) / jnp.where(width > 0, width, 1), 0)
        return carry, at_fraction(quartic, fraction.astype(y0.dtype))

    carry = (y0, slope, ts[0], h, ts[0], flat)
    later = lax.scan(until, carry, ts[1:])[1]
    return jnp.concatenate([y0[None], later])


def adjoint(func: Any, options: Sequence[float], res: Any, g: Any) -> tuple[Any, ...]:
    """Cotangents of (y0, ts, args) by integrating backwards between output times."""
    ys, ts, args = res
    leaves, tree = tree_flatten(args)
    moving = [dtypes.is_inexact(x.dtype) for x in leaves]

    def of_moving(y: Any, t: Any, *given: Any) -> Any:
        rest = iter(given)
        full = [next(rest) if on else x for x, on in zip(leaves, moving, strict=True)]
        return func(y, t, *tree_unflatten(tree, full))

    live = [x for x, on in zip(leaves, moving, strict=True) if on]

    def backwards(state: Any, s: Any, *given: Any) -> Any:
        y, y_bar, _, _ = state
        slope, pull = vjp(of_moving, y, -s, *given)
        y_dot, t_dot, *more = pull(y_bar)
        return -slope, y_dot, t_dot, more

    def segment(carry: Any, i: Any) -> tuple[Any, Any]:
        y_bar, t0_bar, arg_bars = carry
        t_bar = jnp.real(jnp.sum(func(ys[i], ts[i], *args) * g[i])).astype(ts.dtype)
        start = (ys[i], y_bar, t0_bar - t_bar, arg_bars)
        span = jnp.stack([-ts[i], -ts[i - 1]])
        rtol, atol, mxstep, hmax = options
        end = odeint(backwards, start, span, *live, rtol=rtol, atol=atol, mxstep=mxstep, hmax=hmax)
        _, y_bar, t0_bar, arg_bars = tree_map(lambda x: x[1], end)
        return (y_bar + g[i - 1], t0_bar, arg_bars), t_bar

    zero = jnp.zeros((), ts.dtype)
    carry = (g[-1], zero, [jnp.zeros_like(x) for x in live])
    order = jnp.arange(len(ts) - 1, 0, -1)
    (y_bar, t0_bar, arg_bars), t_bars = lax.scan(segment, carry, order)
    found = iter(arg_bars)
    full = [
        next(found) if on else float0_zeros(x.shape) for x, on in zip(leaves, moving, strict=True)
    ]
    return y_bar, jnp.concatenate([t0_bar[None], t_bars[::-1]]), tree_unflatten(tree, full)


@api_boundary
def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = np.inf,
    hmax: float = np.inf,
) -> Any:
    """The solution of `dy/dt = func(y, t, *args)` with `y(t[0]) = y0` at the times `t`.

    `y0` is a tree of arrays, and `func` returns one like it; times increase. At most `mxstep` steps
    are taken per output time, of at most `hmax`. Differentiable in reverse mode (again, too) with
    respect to `y0`, `t`, `args` and what `func` closes over.
    Shapes: leaves of the result are [len(t), *shape in y0]. Raises: TypeError if an argument is no
    array or the times are not floating. The tolerances suit float64 (`enable_x64`); in float32 give
    larger ones. Cost of a derivative: one integration backwards of twice the size, no memory for
    steps. `func` is traced and the solver compiled once per function, shapes and options.
    Source: see the module.
    """
    for leaf in tree_flatten(args)[0]:
        if not is_array_like(leaf):
            raise TypeError(
                f"The contents of odeint *args must be arrays or scalars, but got {leaf!r}.\n"
                "  Close over it, or fix it with functools.partial."
            )
    if not is_array_like(t) or not dtypes.is_float(jnp.asarray(t).dtype):
        raise TypeError(
            f"t must be an array of floats, but got {t!r}.\n  Convert it: jnp.asarray(t, float)."
        )
    t = jnp.asarray(t)
    options = (float(rtol), float(atol), float(mxstep), float(hmax))
    example = (y0, t[0], *args)
    leaves, tree = tree_flatten((example, {}))
    avals = tuple(shaped_abstractify(x) for x in leaves)
    traced = stage_cached(func, tree, avals, "odeint", lambda: argument_paths(func, example, {}))
    solvers = traced.body.derived.setdefault("odeint", {})
    key = (tree, traced.out_tree, options)
    if traced.refs:
        raise ValueError(
            f"the function given to odeint ({name_of(func)}) uses a Ref from outside.\n  Pass what it "
            "holds, ref[...], as one of the args."
        )
    if key not in solvers:
        solvers[key] = jit(solver(func, traced.body, traced.out_tree, options))
    return solvers[key](y0, t, tree_map(jnp.asarray, args), [Array(c) for c in traced.captured])


def solver(
    func: Any, body: UOp, out_tree: PyTreeDef, options: Sequence[float]
) -> Callable[..., Any]:
    """(y0, times, args, captured values of `func`) -> solution, for a staged `func`."""

    def solution(y0: Any, t: Any, args: Any, captured: Any) -> Any:
        start, unravel = ravel_pytree(y0)

        def field(y: Any, s: Any, *given: Any) -> Any:
            nodes = [lift(x) for x in tree_flatten((unravel(y), s, given))[0]]
            slope = tree_unflatten(out_tree, finish_all(apply_effectful(func, body, nodes)))
            return ravel_pytree(slope)[0].astype(y.dtype)

        def solve(y: Any, ts: Any, given: Any) -> Any:
            return integrate(lambda v, s: field(v, s, *given), y, ts, *options)

        rule = custom_vjp(solve)

        def fwd(y: Any, ts: Any, given: Any) -> Any:
            ys = rule(y, ts, given)
            return ys, (ys, ts, given)

        rule.defvjp(fwd, lambda res, g: adjoint(field, options, res, g))
        return vmap(unravel)(rule(start, t, (*args, *captured)))

    return solution
