"""What is refused, and how the message names it; where tinyjax does better than JAX."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy
import pytest

import tinyjax
import tinyjax.numpy as np
from tests.oracle import Case, raises
from tinyjax.errors import (
    BroadcastError,
    ConcretizationTypeError,
    DotShapeError,
    JAXIndexError,
    NonConcreteBooleanIndexError,
)

x = np.arange(6.0).reshape(2, 3)
v = np.arange(4.0)

CASES: list[tuple[str, Any, type[Exception], str]] = [
    ("static index", lambda: x[5], IndexError, "index 5 is out of bounds for axis 0 with size 2"),
    ("second axis", lambda: x[0, -4], IndexError, "-4 is out of bounds for axis 1 with size 3"),
    ("static write", lambda: x.at[2].set(0), IndexError, "index 2 is out of bounds for axis 0"),
    ("NumPy integer", lambda: x[numpy.int64(2)], IndexError, "axis 0 with size 2"),
    ("many indices", lambda: x[0, 0, 0], IndexError, "Too many indices: array is 2-dimensional"),
    ("masked", lambda: np.sin(numpy.ma.array([1.0], mask=[1])), ValueError, "masked arrays"),
    ("two ellipses", lambda: x[..., ...], IndexError, "single ellipsis"),
    ("list", lambda: x[[0, 1]], TypeError, "Using a non-tuple sequence for multidimensional"),
    ("string", lambda: x["a"], TypeError, "JAX does not support string indexing; got idx='a'"),
    ("float", lambda: x[1.0], TypeError, "Indexer must have integer or boolean type"),
    ("float array", lambda: x[np.ones(2)], TypeError, "got indexer with type float32"),
    ("object", lambda: x[object()], IndexError, "only integers, slices"),
    ("mask shape", lambda: x[np.ones(3, bool)], IndexError, "boolean index did not match shape"),
    ("zero step", lambda: x[::0], ValueError, "slice step cannot be zero"),
    ("float slice", lambda: x[1.5:], TypeError, "'float' object cannot be interpreted"),
    ("index shapes", lambda: x[np.arange(2), np.arange(3)], ValueError, "Incompatible shapes"),
    ("update shape", lambda: x.at[0].set(np.ones(2)), ValueError, "requested type=f32[3]"),
    ("mode", lambda: x.at[0].set(1, mode="bogus"), ValueError, 'Unknown gather mode "bogus"'),
    ("assignment", lambda: x.__setitem__(0, 1), TypeError, "x.at[idx].set(y)"),
    ("operator list", lambda: x + [1, 2], TypeError, "unsupported operand type(s) for +"),
    ("operator str", lambda: x + "a", TypeError, "unsupported operand type"),
    ("compare list", lambda: x == [1, 2], TypeError, "unsupported operand type(s) for =="),
    ("function list", lambda: np.sin([1.0]), TypeError, "sin requires ndarray or scalar arguments"),
    ("add shapes", lambda: x + v, (TypeError), "for broadcasting: (2, 3), (4,)"),
    ("dot", lambda: np.dot(x, x), DotShapeError, "contracts axis 1 of a (size 3) with axis 0 of b"),
    ("matmul", lambda: x @ v, TypeError, "of a (size 3) with axis 0 of b (size 4)"),
    ("matmul scalar", lambda: x @ 3.0, ValueError, "must have ndim at least 1"),
    ("einsum size", lambda: np.einsum("ij,jk", x, x), TypeError, "sizes 3 and 2 for the label 'j'"),
    ("einsum rank", lambda: np.einsum("i,i", x, v), ValueError, "operand 0 has 2 dimensions"),
    ("einsum label", lambda: np.einsum("ij->k", x), ValueError, "'k' is not in any operand"),
    ("reshape", lambda: x.reshape(4), TypeError, "cannot reshape array of shape (2, 3) (size 6)"),
    ("reshape -1", lambda: x.reshape(4, -1), TypeError, "into shape (4, -1)"),
    ("concatenate", lambda: np.concatenate([x, v]), TypeError, "arrays 0 and 1: ranks differ"),
    ("concatenate size", lambda: np.concatenate([x, x.T]), TypeError, "along axis 0 only"),
    ("stack", lambda: np.stack([x, v]), ValueError, "must have the same shape"),
    ("axis", lambda: np.sum(x, axis=2), ValueError, "axis 2 is out of bounds for array"),
    ("duplicate axis", lambda: np.sum(x, axis=(0, 0)), ValueError, "duplicate value in 'axis'"),
    ("transpose", lambda: np.transpose(x, (0, 0)), TypeError, "isn't a permutation"),
    ("squeeze", lambda: np.squeeze(x, 0), ValueError, "not equal to one"),
    ("split", lambda: np.split(v, 3), ValueError, "equal division"),
    ("empty max", lambda: np.max(np.zeros((0,))), ValueError, "zero-size array to reduction"),
    ("negative power", lambda: np.arange(3) ** -1, TypeError, "negative powers"),
    ("held negative power", lambda: 2 ** np.int32(-3), TypeError, "got power(i32[], -3)"),
    ("format", lambda: f"{v:.2f}", TypeError, "is for scalars; got f32[4]"),
    ("float of complex", lambda: float(np.complex64(1)), TypeError, "must be a real number"),
    ("int of complex", lambda: int(np.complex64(1)), TypeError, "must be a real number"),
    ("take from nothing", lambda: np.take(np.zeros((0, 4)), 0), IndexError, "from an empty axis"),
    ("no array", lambda: np.asarray(None), ValueError, "None is not a valid value"),
    ("mode with a mask", lambda: x.at[x > 1].set(0, mode="up"), ValueError, 'mode "up"'),
    ("choose by floats", lambda: np.choose(v, [x]), ValueError, "must be integer typed"),
    ("subtract bool", lambda: np.array(True) - np.array(True), TypeError, "bool"),
    ("pad mode", lambda: np.pad(x, 1, mode="bogus"), NotImplementedError, "'bogus'"),
    ("searchsorted", lambda: np.searchsorted(x, v), ValueError, "1-dimensional"),
    ("side", lambda: np.searchsorted(v, 1, side="up"), ValueError, "'up' is an invalid value"),
    ("solve", lambda: np.linalg.solve(x, v), ValueError, "a=[..., m, m]"),
    ("inv", lambda: np.linalg.inv(x), ValueError, "[..., n, n], got (2, 3)"),
    ("put", lambda: np.put(x, 0, 1), ValueError, "inplace=False"),
    ("vectorize", lambda: np.vectorize(np.dot, signature="(n)->")(v), ValueError, "signature"),
    ("vectorize size", lambda: np.vectorize(np.dot, signature="(n),(n)->()")(v, x),
     ValueError, "'n'"),
    ("rfft", lambda: np.fft.rfft(x + 1j), ValueError, "only real valued inputs"),
    ("len", lambda: len(np.array(1.0)), TypeError, "len() of unsized object"),
    ("iteration", lambda: list(np.array(1.0)), TypeError, "iteration over a 0-d array"),
    ("bool", lambda: bool(x), ValueError, "truth value"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "error", "text"), CASES, ids=[c[0] for c in CASES])
def test_refused(name: str, f: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        f()
    assert text in str(caught.value)


TRACED: list[tuple[str, Any, type[Exception], str]] = [
    ("mask", lambda m: x[m], NonConcreteBooleanIndexError, "jnp.nonzero(mask, size="),
    ("mask update", lambda m: x.at[m].set(v), NonConcreteBooleanIndexError, "one value for all"),
    ("nonzero", np.nonzero, ConcretizationTypeError, "size argument of jnp.nonzero"),
    ("unique", np.unique, ConcretizationTypeError, "size argument"),
    ("bincount", lambda m: np.bincount(m[0].astype(int)), ConcretizationTypeError, "`length`"),
    ("repeat", lambda m: np.repeat(v[:2], m[:, 0]), ConcretizationTypeError, "total_repeat_length"),
    ("slice", lambda m: v[: m.sum()], IndexError, "dynamic_slice"),
    ("shape", lambda m: np.zeros(m.sum()), TypeError, "Shapes must be 1D sequences of concrete"),
    ("int", lambda m: v[int(m.sum())], ConcretizationTypeError, "argument m"),
    ("setdiff1d", lambda m: np.setdiff1d(m, m), ConcretizationTypeError, "`size`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "f", "error", "text"), TRACED, ids=[c[0] for c in TRACED])
def test_traced_values_decide_no_shape(
    name: str, f: Any, error: type[Exception], text: str
) -> None:
    def named(m: Any) -> Any:
        return f(m)

    with pytest.raises(error) as caught:
        tinyjax.jit(named)(x > 2)
    assert text in str(caught.value)


def test_a_shape_error_shows_what_the_user_wrote() -> None:
    params, batch = {"w1": np.ones((8, 4))}, np.ones(3)
    with pytest.raises(DotShapeError) as caught:
        np.dot(params["w1"], batch)
    text = str(caught.value)
    assert "a = params['w1']  f32[8,4]" in text
    assert "b = batch  f32[3]" in text
    assert 'np.dot(params["w1"], batch)' in text


def test_a_transposed_matrix_is_suggested() -> None:
    with pytest.raises(DotShapeError, match="Perhaps b should be transposed"):
        np.dot(x, np.ones((4, 3)))


def test_a_mode_allows_a_static_index_out_of_range() -> None:
    assert np.array_equal(x.at[9].get(mode="clip"), x[1])
    assert np.all(np.isnan(x.at[9].get(mode="fill")))
    assert np.array_equal(x.at[9].set(1.0, mode="drop"), x)


AXES: dict[str, Case] = {
    "swapaxes": lambda J: J.numpy.swapaxes(J.numpy.ones((2, 3)), 0, 2),
    "argmax": lambda J: J.numpy.argmax(J.numpy.ones((2, 3)), 2),
    "argmin": lambda J: J.numpy.ones((2, 3)).argmin(-3),
    "split": lambda J: J.numpy.split(J.numpy.ones((2, 3)), 1, 2),
    "moveaxis": lambda J: J.numpy.moveaxis(J.numpy.ones((2, 3)), 2, 0),
    "sum": lambda J: J.numpy.sum(J.numpy.ones((2, 3)), 2),
    "cumsum": lambda J: J.numpy.cumsum(J.numpy.ones((2, 3)), 2),
    "concatenate": lambda J: J.numpy.concatenate([J.numpy.ones((2, 3))] * 2, 2),
    "stack": lambda J: J.numpy.stack([J.numpy.ones((2, 3))] * 2, 3),
    "expand_dims": lambda J: J.numpy.expand_dims(J.numpy.ones((2, 3)), 3),
    "squeeze": lambda J: J.numpy.squeeze(J.numpy.ones((2, 3)), 2),
    "flip": lambda J: J.numpy.flip(J.numpy.ones((2, 3)), 2),
    "take": lambda J: J.numpy.take(J.numpy.ones((2, 3)), 0, axis=2),
    "T of a scalar": lambda J: J.numpy.float32(1.5).transpose(1, 0),
    "T of a scalar, 5": lambda J: J.numpy.float32(1.5).transpose(5),
    "T of a scalar, equal": lambda J: J.numpy.transpose(J.numpy.float32(1.5), (0, 0)),
    "permute_dims of a scalar": lambda J: J.numpy.permute_dims(J.numpy.float32(1.5), (1, 0)),
    "T of a vector": lambda J: J.numpy.ones(3).transpose(1, 0),
    "T of a vector, 5": lambda J: J.numpy.ones(3).transpose(5),
    "T of a vector, equal": lambda J: J.numpy.transpose(J.numpy.ones(3), (0, -1)),
    "permute_dims of a vector": lambda J: J.numpy.permute_dims(J.numpy.ones(3), (1, 0)),
    "T of a matrix": lambda J: J.numpy.ones((2, 3)).transpose(0),
    "T of a matrix, 5": lambda J: J.numpy.ones((2, 3)).transpose(5, 0),
}


@pytest.mark.parametrize("name", AXES)
def test_axes_that_an_array_does_not_have_raise_the_class_that_jax_raises(name: str) -> None:
    raises(AXES[name])


def reduce_by_add(w: Any, v: Any) -> Any:
    return functools.reduce(np.add, [w, v])


def larger(w: Any, v: Any) -> Any:
    return max(w, v)


def larger_of_unknown(w: Any, v: Any) -> Any:
    return max(w + 0, v + 0)


def total(w: Any, v: Any) -> Any:
    return sum([v], w)


def place(w: Any, v: Any) -> Any:
    return [w].index(v)


def same(w: Any, v: Any) -> Any:
    return (w,) == (v,)


def partial(w: Any, v: Any) -> Any:
    return functools.partial(np.add, w)(v)


@pytest.mark.parametrize(
    "f", [reduce_by_add, larger, larger_of_unknown, total, place, same, partial]
)
def test_no_expression_is_named_that_is_not_the_operand(f: Any) -> None:
    with pytest.raises(BroadcastError) as caught:
        f(x, v)
    operands = str(caught.value).split("\n")[1]
    assert operands in ("  x  f32[2,3]      y  f32[4]", "  x  f32[4]      y  f32[2,3]")


def test_operands_are_named_wherever_they_are_looked_up() -> None:
    held = types.SimpleNamespace(w=x, several=[v, (v, x)])
    params = {"w": x, "v": v}
    for f, wanted in [
        (lambda: v in x, "self = x  f32[2,3]      item = v  f32[4]"),
        (
            lambda: np.add(held.w, held.several[-2]),
            "x = held.w  f32[2,3]      y = held.several[-2]",
        ),
        (lambda: params["w"] + params["v"], "x = params['w']  f32[2,3]      y = params['v']"),
        (lambda: np.add(x + 1, v), "x = x + 1  f32[2,3]      y = v  f32[4]"),
        (lambda: np.concatenate([x, v]), "arrays[0] = x  f32[2,3]      arrays[1] = v  f32[4]"),
    ]:
        with pytest.raises((TypeError, ValueError)) as caught:
            f()
        assert wanted in str(caught.value)


def test_a_traced_mask_with_a_value_for_each_element_is_a_where() -> None:
    mask = x > 2
    other = -x
    for value in (0.0, other, np.full((1,), 7.0)):
        got = tinyjax.jit(lambda m, v=value: x.at[m].set(v))(mask)
        assert np.array_equal(got, np.where(mask, value, x))
    rows = tinyjax.jit(lambda m: x.at[m].add(np.ones(3)))(np.array([True, False]))
    assert np.array_equal(rows, x.at[0].add(1.0))
    columns = tinyjax.jit(lambda m: x.at[:, m].multiply(3.0))(np.array([True, False, True]))
    assert np.array_equal(columns, x * np.array([3.0, 1.0, 3.0]))


def test_a_number_beyond_a_narrow_dtype_is_infinite_without_a_warning() -> None:
    one = np.float16(1)
    results = [one + 1e10, np.where(True, 1e10, one), np.full(2, one).at[0].set(1e10)[0]]
    results += [tinyjax.jit(lambda x: x * 1e10)(one), tinyjax.grad(lambda x: x * 1e10)(one)]
    assert [float(r) for r in results] == [numpy.inf] * 5
    assert bool(one < 1e10)


def test_a_lossy_update_warns() -> None:
    with pytest.warns(FutureWarning, match="cannot safely cast value from dtype=float32"):
        assert int(np.arange(3).at[0].set(1.5)[0]) == 1


def test_index_errors_are_index_errors_of_jax() -> None:
    with pytest.raises(JAXIndexError):
        x[7]
