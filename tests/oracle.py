"""jax as the oracle: the same expression in both libraries, compared in all that a user can see.

A case is a function of the library, `lambda J: J.lax.exp(x)`, called with jax and with tinyjax. Eager
jax is used, since it compiles each operation once a run and jit would compile each case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import tinyjax

Case = Callable[[Any], Any]

# Relative to the largest magnitude of a result: both libraries round sums in their own order.
TOLERANCE = {
    "float64": 1e-12, "complex128": 1e-12, "float32": 4e-6, "complex64": 4e-6, "bfloat16": 2e-2,
    "float16": 2e-3,
}  # fmt: skip


@contextmanager
def x64(on: bool = True) -> Iterator[None]:
    """64-bit types in both libraries."""
    with jax.enable_x64(on), tinyjax.enable_x64(on):
        yield


def raw(x: Any) -> Any:
    """A leaf as an ndarray (key data for typed keys)."""
    dtype = getattr(x, "dtype", None)
    if str(dtype).startswith("key<"):
        library = tinyjax if isinstance(x, tinyjax.Array) else jax
        return np.asarray(library.random.key_data(x))
    return np.asarray(x)


def assert_same(ours: Any, theirs: Any, tolerance: float | None = None, weak: bool = True) -> None:
    """Trees, shapes, dtypes, weak types equal; values equal, or within the dtype's tolerance."""
    mine, my_tree = tinyjax.tree.flatten(ours)
    other, other_tree = jax.tree.flatten(theirs)
    assert str(my_tree) == str(other_tree)
    for a, b in zip(mine, other, strict=True):
        if isinstance(b, (str, type, np.dtype)):
            assert str(a) == str(b)
            continue
        if hasattr(b, "dtype") and not isinstance(a, int):
            assert str(a.dtype) == str(b.dtype), f"dtype {a.dtype}, jax has {b.dtype}"
        p, q = raw(a), raw(b)
        assert p.shape == q.shape, f"shape {p.shape}, jax has {q.shape}"
        if weak and hasattr(b, "weak_type") and hasattr(a, "weak_type"):  # float0 is NumPy's
            assert a.weak_type == b.weak_type, f"weak_type {a.weak_type}, jax has {b.weak_type}"
        kind = str(p.dtype)
        if kind == "[('float0', 'V')]" or not p.size:
            continue
        allowed = TOLERANCE.get(kind, 0.0) if tolerance is None else tolerance
        if kind.startswith(("bfloat16", "float8", "float16")):
            p, q = p.astype(np.float32), q.astype(np.float32)
        if not allowed or p.dtype.kind not in "fc":
            np.testing.assert_array_equal(p, q)
            continue
        finite = np.abs(q[np.isfinite(q)])
        scale = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(p, q, rtol=allowed, atol=allowed * min(scale, 1e6))


def check(case: Case, tolerance: float | None = None, weak: bool = True) -> None:
    """The case gives the same in both libraries."""
    theirs = case(jax)
    assert_same(case(tinyjax), theirs, tolerance, weak)


def raises(case: Case) -> Exception:
    """Our exception for a case that jax refuses too; a program that catches jax's catches it."""
    try:
        case(jax)
    except Exception as e:
        theirs = e
    else:
        raise AssertionError("jax accepts this case")
    try:
        case(tinyjax)
    except Exception as e:
        builtin = next(c for c in type(theirs).__mro__ if c.__module__ == "builtins")
        assert isinstance(e, builtin), (
            f"{type(e).__name__}: {e}; jax raises {type(theirs).__name__}"
        )
        return e
    raise AssertionError(f"accepted, but jax raises {type(theirs).__name__}: {theirs}")


def refuses(case: Case, fragment: str, file: str) -> None:
    """`raises`, with `fragment` and a line of the test file in the message."""
    message = str(raises(case))
    assert fragment in message
    assert f"at {os.path.basename(file)}:" in message


def numbers(
    *shape: int, seed: int = 0, dtype: Any = np.float32, low: float = -2.0, high: float = 2.0
) -> Any:
    """Uniform numbers that no test depends on otherwise."""
    draw = np.random.default_rng(seed + sum(shape) * 7919)
    values = draw.uniform(low, high, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * draw.uniform(low, high, shape)
    if np.dtype(dtype).kind in "iu":
        return np.asarray(draw.integers(int(low), int(high) + 1, shape), dtype)
    return np.asarray(values, dtype)


def pullback(J: Any, f: Callable[..., Any], *args: Any) -> Any:
    """Cotangents of the arguments for fixed, unequal cotangents of all outputs."""
    outs, back = J.vjp(f, *args)
    cts = J.tree.map(
        lambda o: np.asarray(
            np.cos(np.arange(o.size)).reshape(o.shape), o.dtype
        ) if np.issubdtype(o.dtype, np.inexact) or str(o.dtype) == "bfloat16"
        else np.zeros(o.shape, jax.dtypes.float0),
        outs,
    )  # fmt: skip
    return back(cts)


def pushforward(J: Any, f: Callable[..., Any], *args: Any) -> Any:
    """Values and tangents along fixed directions of the arguments."""

    def direction(a: Any) -> Any:
        a = np.asarray(a)
        return np.asarray(np.sin(1.0 + np.arange(a.size)).reshape(a.shape), a.dtype)

    return J.jvp(f, args, tuple(direction(a) for a in args))
