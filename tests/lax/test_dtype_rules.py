"""Which dtypes the functions of lax take, and what they give: all of them, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import tinyjax
from tinyjax import lax
from tinyjax.errors import DtypeError

DTYPES: dict[str, Any] = {
    "bool": np.bool_, "int8": np.int8, "uint8": np.uint8, "int32": np.int32, "uint32": np.uint32,
    "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32,
    "complex64": np.complex64, "key": None,
}  # fmt: skip
ONE = (
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e bitwise_not cbrt ceil clz conj cos "
    "cosh digamma erf erf_inv erfc exp exp2 expm1 floor imag is_finite lgamma log log1p logistic "
    "neg population_count real reciprocal round rsqrt sign sin sinh sqrt square tan tanh cumsum "
    "cumprod cummax cummin"
).split()
TWO = (
    "add atan2 bitwise_and bitwise_or bitwise_xor complex div ge gt igamma igammac le lt max min "
    "mul nextafter pow rem shift_left shift_right_arithmetic shift_right_logical sub zeta dot"
).split()


def at_zero(J: Any, f: Callable[..., Any], x: Any, **options: Any) -> Any:
    numbers = J.lax.ScatterDimensionNumbers((), (0,), (0,))
    return f(x, np.zeros((1, 1), np.int32), x[:1], numbers, **options)


CASES: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda J, x, name=name: getattr(J.lax, name)(x) for name in ONE},
    **{name: lambda J, x, name=name: getattr(J.lax, name)(x, x) for name in TWO},
    **{
        name: lambda J, x, name=name: getattr(J.lax, name)(x, (0,))
        for name in ("reduce_sum", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor")
    },
    **{
        name: lambda J, x, name=name: at_zero(J, getattr(J.lax, name), x)
        for name in ("scatter_add", "scatter_sub", "scatter_mul")
    },
    "integer_pow": lambda J, x: J.lax.integer_pow(x, 3),
    "reduce_precision": lambda J, x: J.lax.reduce_precision(x, 5, 3),
    "argmax": lambda J, x: J.lax.argmax(x, 0, np.int32) if x.dtype != J.random.key(0).dtype else 0,
    "argmax to floats": lambda J, x: J.lax.argmax(x, 0, np.float32),
    "convert": lambda J, x: J.lax.convert_element_type(x, np.complex64),
    "bitcast": lambda J, x: J.lax.bitcast_convert_type(x, np.uint8),
    "bitcast wider": lambda J, x: J.lax.bitcast_convert_type(x, np.complex64),
    "select_n": lambda J, x: J.lax.select_n(x, np.zeros(4), np.ones(4)),
    "gather indices": lambda J, x: J.lax.gather(
        np.ones(4), x[:, None], J.lax.GatherDimensionNumbers((), (0,), (0,)), (1,)
    ),
    "dot with float32": lambda J, x: J.lax.dot(np.ones(4, np.float32), x),
    "dot narrower": lambda J, x: J.lax.dot(x, x, preferred_element_type=np.int8),
    "einsum narrower": lambda J, x: J.numpy.einsum("i,i", x, x, preferred_element_type=np.int8),
    "conv to int32": lambda J, x: J.lax.conv_general_dilated(
        x[None, None], x[None, None], (1,), "SAME", preferred_element_type=np.int32
    ),
    "mul to int32": lambda J, x: J.lax.mul(x, x, out_dtype=np.int32),
    "rfft": lambda J, x: J.lax.fft(x, "RFFT", (4,)),
    "lu": lambda J, x: J.lax.linalg.lu(x.reshape(2, 2)) if x.dtype.itemsize > 2 else 0,
    "reduce with add": lambda J, x: J.lax.reduce(x, x[0], J.lax.add, (0,)),
    "approx_max_k": lambda J, x: J.lax.approx_max_k(x, 2),
}  # fmt: skip


def outcome(J: Any, case: Callable[[Any, Any], Any], name: str) -> Any:
    """Dtypes and shapes of the results, or the built-in class of the exception."""
    try:
        if DTYPES[name] is None:
            keys = J.random.split(J.random.key(0), 4)
            out = J.eval_shape(lambda: case(J, keys))
        else:
            out = J.eval_shape(lambda x: case(J, x), J.ShapeDtypeStruct((4,), DTYPES[name]))
    except Exception as e:
        return next(c for c in type(e).__mro__ if c.__module__ == "builtins")
    return [(str(x.dtype), x.shape) for x in J.tree.leaves(out)]


@pytest.mark.parametrize("name", CASES)
def test_dtypes_are_taken_and_refused_as_in_jax(name: str):
    for dtype in DTYPES:
        theirs, ours = outcome(jax, CASES[name], dtype), outcome(tinyjax, CASES[name], dtype)
        if theirs is AssertionError:  # JAX forgot keys
            assert ours is TypeError
            continue
        if isinstance(theirs, type) and isinstance(ours, type):
            assert issubclass(ours, theirs), f"{dtype}: {ours}, JAX raises {theirs}"
            continue
        assert ours == theirs, dtype


def test_a_refused_dtype_is_named_with_what_is_accepted():
    with pytest.raises(DtypeError, match="mul does not accept dtype bool at position 0") as e:
        lax.mul(True, True)
    assert "accepted dtypes are integer, floating, complexfloating" in str(e.value)
    assert "at test_dtype_rules.py" in str(e.value)
    assert "use the function of jnp" in str(e.value)
    with pytest.raises(ValueError, match="Cannot convert_element_type from key<fry> to int32"):
        lax.convert_element_type(tinyjax.random.key(0), np.int32)
    with pytest.raises(TypeError, match="must not be narrower than the original type"):
        lax.dot(np.ones(2, np.int32), np.ones(2, np.int32), preferred_element_type=np.int8)


def test_products_of_two_dtypes_have_the_wider_range():
    small = np.asarray([1, 2], ml_dtypes.float8_e4m3fn)
    assert lax.dot(np.float32([1, 2]), small) == 5
    assert lax.dot(np.int32([1, 2]), np.asarray([1, 2], ml_dtypes.int4)).dtype == np.int32
