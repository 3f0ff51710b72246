"""Options of jnp functions: none is accepted and ignored; what JAX refuses is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax as oracle
import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.oracle import Case, check, refuses, x64

M = np.float32([[1, 2], [3, 4]])
X = np.float32([3, 1, 2, 2])
OUTSIDE = np.int32([0, 5, -1, 1])
N = np.int32([[1, 2], [3, 4]])

SAME: dict[str, Case] = {
    f"take_along_axis {mode} {wrap}": (
        lambda J, mode=mode, wrap=wrap: J.numpy.take_along_axis(
            X, np.int32([0, 3, -1, 1]), 0, mode=mode, wrap_negative_indices=wrap
        )
    )
    for mode in (None, "fill", "clip")
    for wrap in (None, True, False)
} | {
    "take_along_axis in bounds": lambda J: J.numpy.take_along_axis(
        X, np.int32([0, 3, 1]), 0, mode="promise_in_bounds"
    ),
    "take clip": lambda J: J.numpy.take(X, OUTSIDE, mode="clip"),
    "take wrap": lambda J: J.numpy.take(X, OUTSIDE, mode="wrap"),
    "take fill": lambda J: J.numpy.take(X, OUTSIDE, mode="fill", fill_value=-7.0),
    "precision of two": lambda J: J.numpy.matmul(M, M, precision=("highest", "default")),
    "wide products": lambda J: J.numpy.matmul(N, N, preferred_element_type=np.float32),
    "histogram of one": lambda J: J.numpy.histogram(X[:1], 3),
}


@pytest.mark.parametrize("name", SAME)
def test_options_do_what_they_do_in_jax(name: str):
    check(SAME[name], 1e-6)


WEIGHTED: dict[str, Callable[..., Any]] = {
    "aweights of cov": lambda J, w: J.numpy.cov(M[:, :1] * X, aweights=w),
    "fweights of cov": lambda J, w: J.numpy.cov(M[:, :1] * X, fweights=w.astype(int)),
    "polyfit": lambda J, w: J.numpy.polyfit(X, X * X, 1, w=w),
    "histogram2d": lambda J, w: J.numpy.histogram2d(X, X, 2, weights=w),
    "average": lambda J, w: J.numpy.average(X, weights=w),
}


@pytest.mark.parametrize("weight", [np.float64, np.int64, "bfloat16"], ids=str)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_take_part_in_promotion(name: str, weight: Any):
    with x64():
        check(lambda J: WEIGHTED[name](J, J.numpy.array([1, 2, 1, 3], weight)), 1e-5)


STEPPED = (
    (1000, 2000, 0.1),
    (100.0, 101.0, 0.01),
    (0, 3, 0.3),
    (5, 0, -1),
    (0.5, 40, 1),
    (-3, 3, 2),
)


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float8_e5m2", "int32", "uint8"])
@pytest.mark.parametrize("bounds", STEPPED, ids=str)
def test_elements_of_arange_are_each_rounded_on_their_own(bounds, dtype):
    """NumPy multiplies the difference of the first two, which for narrow floats is far off."""
    check(lambda J: J.numpy.arange(*bounds, dtype=dtype), 1e-7)
    if dtype != "uint8":  # which floats outside of it saturate in
        check(lambda J: J.numpy.arange(*map(J.numpy.float32, bounds), dtype=dtype), 1e-7)


REFUSED: dict[str, tuple[Case, str]] = {
    **{
        f"{name} in place": (
            lambda J, name=name, q=q: getattr(J.numpy, name)(X, *q, overwrite_input=True),
            f"jax.numpy.{name} does not support overwrite_input=True",
        )
        for name, q in (
            ("median", ()), ("nanmedian", ()), ("quantile", (0.5,)), ("nanquantile", (0.5,)),
            ("percentile", (5.0,)), ("nanpercentile", (5.0,)),
        )
    },
    "meshgrid of views": (lambda J: J.numpy.meshgrid(X, X, copy=False), "only supports copy=True"),
    "kind": (lambda J: J.numpy.sort(X, kind="heapsort"), "'kind' argument to sort is not supported"),
    "order": (lambda J: J.numpy.argsort(X, order="a"), "'order' argument to argsort is not"),
    "memory order": (lambda J: J.numpy.copy(M, order="F"), "got order='F'"),
    "method of digitize": (lambda J: J.numpy.digitize(X, X, method="x"), "'x' is an invalid value"),
    "truth values in a range": (lambda J: J.numpy.arange(2, dtype=bool), "arange"),
    "a complex range": (lambda J: J.numpy.arange(0, 3j), "arange"),
    "mode of take": (lambda J: J.numpy.take(X, OUTSIDE, mode="drop"), "Invalid mode 'drop'"),
    **{
        f"precision of {name}": (
            lambda J, f=f: f(J.numpy),
            "precision must be None, a lax.Precision, one of default, high",
        )
        for name, f in {
            "matmul": lambda np_: np_.matmul(M, M, precision="sharp"),
            "einsum": lambda np_: np_.einsum("ij,jk", M, M, precision="sharp"),
            "vdot": lambda np_: np_.vdot(X, X, precision=3),
            "convolve": lambda np_: np_.convolve(X, X, precision="sharp"),
        }.items()
    },
    "narrow products": (
        lambda J: J.numpy.matmul(N, N, preferred_element_type="bfloat16"),
        "preferred_element_type of bfloat16 for result type of int32",
    ),
    "other products": (
        lambda J: J.numpy.convolve(X, X, preferred_element_type=np.int32),
        "preferred_element_type int32 is incompatible with operands of dtype float32",
    ),
    "std as integer": (lambda J: J.numpy.std(X, dtype=int), "jnp.std must be inexact"),
    "nanstd as integer": (lambda J: J.numpy.nanstd(X, dtype=int), "jnp.nanstd must be inexact"),
    "cov as integer": (lambda J: J.numpy.cov(M, dtype=int), "jnp.cov must be inexact"),
    "corrcoef as integer": (lambda J: J.numpy.corrcoef(M, dtype=int), "must be inexact"),
    "geometric as float": (
        lambda J: J.random.geometric(J.random.key(0), 0.5, dtype=np.float32),
        "must be an int dtype, got float32",
    ),
    "weights of another shape": (
        lambda J: J.numpy.histogramdd(M, weights=X),
        "one weight for each of 2 samples, got shape (4,)",
    ),
    "range": (lambda J: J.numpy.histogram(X, range=1.0), "sequence of two scalars, got 1.0"),
    "size": (lambda J: J.numpy.nonzero(X, size="a"), "size must be an integer, got 'a'"),
    "decimals": (lambda J: J.numpy.round(X, None), "decimals must be an integer, got None"),
    "count": (lambda J: J.numpy.linspace(0, 1, "a"), "num must be an integer, got 'a'"),
    "bound": (lambda J: J.numpy.arange((0, 1)), "None arguments, got (0, 1)"),
    "array bound": (lambda J: J.numpy.arange(X), "arguments must be scalars; got f32[4]"),
    "diagonal": (lambda J: J.numpy.diagonal(M, axis1=0, axis2=0), "got 0 and 0"),
    "None": (lambda J: J.numpy.matmul(None, M), "got <class 'NoneType'> at position 0"),
    "scalar polynomial": (lambda J: J.numpy.polyder(1.0), "one-dimensional array, got shape ()"),
    "permutation": (lambda J: J.numpy.transpose(M, (5,)), "permutation (5,) for operand shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_and_named(name: str):
    refuses(*REFUSED[name], __file__)


def test_a_histogram_of_nothing_has_the_same_borders_with_a_symbolic_size():
    count = jax.jit(lambda x: jnp.histogram(x, 3), dynamic_shapes=({0: jax.Dim("n", 0, 10)},))
    for x in (X[:0], X[:1], X):
        for ours, plain in zip(count(x), jnp.histogram(x, 3), strict=True):
            np.testing.assert_allclose(ours, plain)


def test_a_fan_of_zero_is_named():
    with pytest.raises(ZeroDivisionError, match=r"fan_in of shape \(0, 3\) is 0"):
        jax.nn.initializers.he_normal()(jax.random.key(0), (0, 3))
    with pytest.raises(ValueError, match="in_axis 2 is out of bounds"):
        jax.nn.initializers.he_normal(in_axis=2)(jax.random.key(0), (3, 3))


@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "float32", "complex64"])
def test_byteswap_reverses_the_bytes_of_each_part(dtype):
    x = (np.arange(6).reshape(2, 3) * (3 + 1j if dtype == "complex64" else 3)).astype(dtype)
    for swap in (lambda v: v.byteswap(), jax.jit(lambda v: v.byteswap())):
        assert np.asarray(swap(jnp.asarray(x))).tobytes() == x.byteswap().tobytes()


@pytest.mark.parametrize("optimize", ["auto", True, "greedy", [(0, 1), (0, 1)]])
def test_the_path_of_an_einsum_is_that_of_jax_and_can_be_given(optimize: Any):
    operands = [np.ones(shape, "f4") for shape in ((2, 30), (30, 4), (4, 5))]
    text = "ij,jk,kl->il"
    path, report = jnp.einsum_path(text, *operands, optimize=optimize)
    assert path == oracle.numpy.einsum_path(text, *operands, optimize=optimize)[0]
    assert "Complete contraction:  ij,jk,kl->il" in report
    assert jnp.einsum(text, *operands, optimize=path).shape == (2, 5)
