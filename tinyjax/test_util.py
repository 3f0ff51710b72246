"""Derivatives against central differences, in one random direction: `tinyjax.test_util`.

A gradient that is wrong is wrong in almost every direction, so one is enough, and its cost does not
grow with the number of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.source import call_site, user_line
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.tree import tree_map, tree_structure
from tinyjax.core.treedef import tree_flatten
from tinyjax.engine.derivatives import jvp, vjp

# Relative and absolute, by dtype: the central difference loses half of the digits.
TOLERANCE = {
    "float64": 1e-5, "complex128": 1e-5, "float32": 2e-2, "complex64": 2e-2, "float16": 1e-1,
    "bfloat16": 1e-1,
}  # fmt: skip
STEP = {"float64": 1e-6, "complex128": 1e-6}
DEFAULT_STEP = 2e-3


def enabled(args: Any) -> Any:
    """Leaves as ndarrays of the dtypes that x64 mode allows: what the function will see."""
    return tree_map(lambda x: np.asarray(x, dtypes.canonicalize_dtype(np.asarray(x).dtype)), args)


def random_like(draw: np.random.Generator, x: Any) -> Any:
    """A direction: normal numbers for inexact leaves, float0 for the rest."""
    value = np.asarray(x)
    if not dtypes.is_inexact(value.dtype):
        return np.zeros(value.shape, dtypes.float0)
    direction = draw.normal(size=value.shape)
    if dtypes.is_complex(value.dtype):
        direction = direction + 1j * draw.normal(size=value.shape)
    return np.asarray(direction, dtypes.canonicalize_dtype(value.dtype))


def inner(x: Any, y: Any) -> complex:
    """The bilinear product of two trees, over inexact leaves."""
    total = 0.0 + 0.0j
    for a, b in zip(tree_flatten(x)[0], tree_flatten(y)[0], strict=True):
        if a.dtype != dtypes.float0 and b.dtype != dtypes.float0:
            total += complex(np.sum(np.asarray(a, np.complex128) * np.asarray(b, np.complex128)))
    return total


def moved(args: Any, direction: Any, by: float) -> Any:
    """args + by * direction."""

    def one(x: Any, d: Any) -> Any:
        if d.dtype == dtypes.float0:
            return x
        x = np.asarray(x)
        return np.asarray(x + np.asarray(d) * by, x.dtype)

    return tree_map(one, args, direction)


def numerical_jvp(f: Callable[..., Any], args: Any, direction: Any, eps: float | None) -> Any:
    """Central difference of f along a direction."""
    step = eps
    if step is None:
        kinds = {np.asarray(x).dtype.name for x in tree_flatten(args)[0]}
        step = max(
            [STEP.get(k, DEFAULT_STEP) for k in kinds if k in TOLERANCE], default=DEFAULT_STEP
        )
    high, low = f(*moved(args, direction, step)), f(*moved(args, direction, -step))

    def slope(p: Any, q: Any) -> Any:
        p, q = np.asarray(p), np.asarray(q)
        if not dtypes.is_inexact(p.dtype):
            return np.zeros(p.shape, dtypes.float0)
        wide = np.complex128 if dtypes.is_complex(p.dtype) else np.float64
        return (p.astype(wide) - q.astype(wide)) / (2 * step)

    return tree_map(slope, high, low)


def allowed(values: Any, given: float | None, default_of: dict[str, float]) -> float:
    """The tolerance that was asked for, or that of the least precise dtype."""
    if given is not None:
        return given
    kinds = [np.asarray(x).dtype.name for x in tree_flatten(values)[0]]
    return max([default_of[k] for k in kinds if k in default_of], default=1e-5)


def as_numbers(tree: Any) -> Any:
    """Leaves as ndarrays."""
    return tree_map(np.asarray, tree)


def assert_close(found: Any, wanted: Any, atol: float, rtol: float, what: str) -> None:
    """Leaf by leaf, relative to the largest element."""
    told = at_user_line(what)
    assert tree_structure(found) == tree_structure(wanted), f"trees differ: {told}"
    for x, y in zip(tree_flatten(found)[0], tree_flatten(wanted)[0], strict=True):
        if x.dtype == dtypes.float0:
            continue
        p = np.asarray(x).astype(y.dtype)
        scale = float(np.max(np.abs(y), initial=0.0))
        np.testing.assert_allclose(p, y, rtol=rtol, atol=atol * max(scale, 1.0), err_msg=told)


def at_user_line(what: str) -> str:
    """A text that names the user's line: NumPy's exceptions are not ours to complete."""
    return f"{what}\n{user_line(call_site())}"


def check_jvp(
    f: Callable[..., Any],
    f_jvp: Callable[..., Any],
    args: Sequence[Any],
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """`f_jvp(args, tangents)` gives the value of f and its derivative along a random direction."""
    args = enabled(tuple(args))
    draw = np.random.default_rng(0)
    direction = tree_map(lambda x: random_like(draw, x), tuple(args))
    value, tangent = f_jvp(tuple(args), direction)
    plain = f(*args)
    close, near = allowed(plain, atol, TOLERANCE), allowed(plain, rtol, TOLERANCE)
    assert_close(as_numbers(value), as_numbers(plain), close, near, err_msg or "value of f_jvp")
    numeric = numerical_jvp(f, tuple(args), direction, eps)
    assert_close(as_numbers(tangent), numeric, close, near, err_msg or "tangent of f_jvp")


def check_vjp(
    f: Callable[..., Any],
    f_vjp: Callable[..., Any],
    args: Sequence[Any],
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """`f_vjp(*args)` gives the value of f and its pullback: <ct, J v> = <J^T ct, v>."""
    args = enabled(tuple(args))
    draw = np.random.default_rng(1)
    value, pull = f_vjp(*args)
    plain = f(*args)
    close, near = allowed(plain, atol, TOLERANCE), allowed(plain, rtol, TOLERANCE)
    assert_close(as_numbers(value), as_numbers(plain), close, near, err_msg or "value of f_vjp")
    direction = tree_map(lambda x: random_like(draw, x), tuple(args))
    ct = tree_map(lambda x: random_like(draw, x), plain)
    numeric = numerical_jvp(f, tuple(args), direction, eps)
    left, right = inner(ct, numeric), inner(pull(ct), direction)
    size = max(abs(left), abs(right), 1.0)
    told = f"{err_msg or 'pullback of f_vjp'}: <ct, J v> is {left}, <J^T ct, v> is {right}"
    np.testing.assert_allclose(
        right, left, 0, (close + near) * size, equal_nan=False, err_msg=at_user_line(told)
    )


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Derivatives of f up to an order, in forward and reverse mode, against central differences."""
    at: tuple[Any, ...] = enabled(tuple(args))

    def check(g: Callable[..., Any], at: tuple[Any, ...], left: int) -> None:
        if "fwd" in modes:
            check_jvp(g, lambda primals, tangents: jvp(g, primals, tangents), at, atol, rtol, eps)
            if left > 1:
                check(lambda *xs: jvp(g, xs, fixed(xs))[1], at, left - 1)
        if "rev" in modes:
            check_vjp(g, lambda *xs: vjp(g, *xs), at, atol, rtol, eps)
            if left > 1:
                check(lambda *xs: pulled(g, xs), at, left - 1)

    def fixed(xs: Any) -> Any:
        draw = np.random.default_rng(2)
        return tree_map(lambda x: _shaped(draw, x), tuple(xs))

    def pulled(g: Callable[..., Any], xs: Any) -> Any:
        out, pull = vjp(g, *xs)
        draw = np.random.default_rng(3)
        cts = pull(tree_map(lambda y: _shaped(draw, y), out))
        return [x for x in tree_flatten(cts)[0] if x.dtype != dtypes.float0]

    check(f, at, order)


def _shaped(draw: np.random.Generator, x: Any) -> Any:
    """A fixed direction for a value that may be traced."""
    dtype = getattr(x, "dtype", np.asarray(0.0).dtype)
    return random_like(draw, np.zeros(np.shape(x), dtype))


__all__ = ["check_grads", "check_jvp", "check_vjp"]

_publish_functions(globals())
