"""Python numbers where the dtype is given: the default dtype of their kind has no say."""

from __future__ import annotations

import jax
import pytest

import tinyjax
import tinyjax.numpy as jnp
from tests.oracle import Case, check

DTYPES = ("int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64", "int4")
NUMBERS = (2**32 - 1, 2**31, 2**31 - 1, 300, 7, -1, -(2**31) - 1, 2**40)

MADE: dict[str, Case] = {
    "array": lambda J, d, x: J.numpy.array(x, d),
    "list": lambda J, d, x: J.numpy.array([x, 1], d),
    "list with an array": lambda J, d, x: J.numpy.array([J.numpy.ones((), d), x], d),
    "type": lambda J, d, x: getattr(J.numpy, d)(x),
    "full": lambda J, d, x: J.numpy.full(2, x, d),
    "full_like": lambda J, d, x: J.numpy.full_like(J.numpy.zeros(2, d), x),
    "lax.full": lambda J, d, x: J.lax.full((2,), x, d),
    "lax.full_like": lambda J, d, x: J.lax.full_like(J.numpy.zeros(2), x, d),
    "convert": lambda J, d, x: J.lax.convert_element_type(x, J.numpy.dtype(d)),
    "set": lambda J, d, x: J.numpy.zeros(2, d).at[0].set(x),
    "add": lambda J, d, x: J.numpy.ones(2, d).at[0].add(x),
    "fill of get": lambda J, d, x: J.numpy.ones(2, d).at[5].get(mode="fill", fill_value=x),
    "fill of take": lambda J, d, x: J.numpy.take(J.numpy.ones(2, d), 5, fill_value=x),
}


def outcome(case: Case, J, dtype: str, x: float):
    """Dtype and value, or the class of the error."""
    try:
        value = case(J, dtype, x)
    except OverflowError:
        return "OverflowError"
    return value.dtype.name, value.astype("complex64").tolist()


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MADE)
def test_a_number_is_made_in_the_dtype_that_is_asked_for(name: str, dtype: str):
    for x in NUMBERS:
        ours, theirs = (repr(outcome(MADE[name], J, dtype, x)) for J in (tinyjax, jax))
        assert ours == theirs, x


def test_a_seed_of_32_bits_is_a_number():
    assert int(jnp.uint32(0xDEADBEEF)) == 0xDEADBEEF
    check(lambda J: J.random.PRNGKey(0) ^ J.numpy.uint32(0xFFFFFFFF))


def test_what_an_integer_dtype_cannot_hold_is_refused():
    for x, dtype in ((-1, "uint8"), (256, "uint8"), (1e40, "int32")):
        with pytest.raises(OverflowError):
            jnp.array(x, dtype)
    with pytest.raises(ValueError, match="cannot convert float NaN to integer"):
        jnp.int32(float("nan"))
