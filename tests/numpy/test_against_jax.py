"""Every case of `cases.py`: types as in JAX, values as in NumPy (or JAX), and the same under vmap.

Types come from `jax.eval_shape`, which compiles nothing; JAX computes values only where NumPy has
no such function or the number of results depends on values.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy
import pytest

import tinyjax
import tinyjax.errors
from tests.numpy.cases import OPERANDS, TABLES
from tests.oracle import Case, check

CASES = [case for table in TABLES.values() for case in table]


class Updatable(numpy.ndarray):  # type: ignore[type-arg]
    """A NumPy array with JAX's `.at`, written with `ufunc.at`."""

    @property
    def at(self) -> Updates:
        return Updates(self)


class Updates:
    """`x.at[index].add(values)` on a copy."""

    def __init__(self, array: Updatable) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> Any:
        return UpdatesAt(self.array, index)


class UpdatesAt:
    def __init__(self, array: Updatable, index: Any) -> None:
        self.array, self.index = array, index

    def set(self, values: Any) -> Any:
        out = self.array.copy()
        out[self.index] = values
        return out

    def __getattr__(self, name: str) -> Any:
        function = getattr(numpy, {"min": "minimum", "max": "maximum"}.get(name, name))

        def update(values: Any) -> Any:
            out = self.array.copy()
            function.at(out, self.index, numpy.asarray(values).astype(out.dtype))
            return out

        return update


ARRAYS = {name: value for name, value in OPERANDS.items() if isinstance(value, numpy.ndarray)}
SCALARS = {name: value for name, value in OPERANDS.items() if name not in ARRAYS}

# Results of these are lists or numbers of Python, or sizes: nothing is traced.
CONCRETE = (
    "item(", "tolist", "len(", ".size", ".ndim", ".nbytes", "float(", "int(", "bool(", " in v",
    "allclose", "broadcast_shapes", "np.size", "np.ndim", "nonzero()",
)  # fmt: skip


def names_in(case: str) -> list[str]:
    """The operands an expression mentions."""
    code = compile(case, "case", "eval")
    found = set(code.co_names)
    for const in code.co_consts:
        if hasattr(const, "co_names"):
            found |= set(const.co_names)
    return [name for name in ARRAYS if name in found]


def run(case: str, library: Any, operands: dict[str, Any]) -> Any:
    """The value of an expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(case, {"np": library, **SCALARS, **operands})


def leaves(result: Any) -> list[Any]:
    """Arrays and numbers of a result, in order."""
    if isinstance(result, (list, tuple)):
        return [leaf for part in result for leaf in leaves(part)]
    return [result]


def jax_types(case: str) -> list[Any] | None:
    """(shape, dtype, weak) of JAX's results; None where values are needed to know them."""
    names = names_in(case)

    def f(*values: Any) -> Any:
        return leaves(run(case, jax.numpy, dict(zip(names, values, strict=True))))

    try:
        out = jax.eval_shape(f, *(ARRAYS[name] for name in names))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        return None
    return [(o.shape, o.dtype, o.weak_type) for o in out]


def check_values(got: Any, want: Any, case: str) -> None:
    """Equal within the rounding of the narrower of the two dtypes."""
    got_array, wanted = numpy.asarray(got), numpy.asarray(want)
    assert got_array.shape == wanted.shape, case
    if got_array.dtype.kind in "fcV":
        single = got_array.dtype in (numpy.float32, numpy.complex64)
        close = 2e-2 if got_array.dtype.itemsize == 2 else 3e-5 if single else 1e-6
        numpy.testing.assert_allclose(
            got_array.astype("c16"), wanted.astype("c16"), rtol=close, atol=close, err_msg=case
        )
    else:
        numpy.testing.assert_array_equal(got_array, wanted, err_msg=case)


# With x64 on, the cases whose values JAX must compute are few enough to leave to the slow tests.
BOTH = [
    pytest.param(
        c, x64, marks=pytest.mark.slow if x64 and c.startswith("!") else (), id=f"{c}-{x64}"
    )
    for x64 in (False, True)
    for c in CASES
]


@pytest.mark.parametrize(("case", "x64"), BOTH)
def test_values_and_types(case: str, x64: bool) -> None:
    plain = case.lstrip("!")
    with jax.enable_x64(x64), tinyjax.enable_x64(x64):
        arrays = {name: tinyjax.numpy.asarray(ARRAYS[name]) for name in names_in(plain)}
        got = leaves(run(plain, tinyjax.numpy, arrays))
        types = None if any(part in plain for part in CONCRETE) else jax_types(plain)
        if case.startswith("!") or types is None:
            given = {name: jax.numpy.asarray(ARRAYS[name]) for name in arrays}
            want = leaves(run(plain, jax.numpy, given))
            types = [
                (w.shape, w.dtype, w.weak_type) if isinstance(w, jax.Array) else None for w in want
            ]
        else:
            views = {name: value.view(Updatable) for name, value in ARRAYS.items()}
            want = leaves(run(plain, numpy, views))
    assert len(got) == len(want) == len(types)
    for g, w, kind in zip(got, want, types, strict=True):
        if kind is not None:
            assert (g.shape, g.dtype, g.weak_type) == kind
        check_values(g, w, plain)


@pytest.mark.parametrize("base", ["i8", "u", "h", "bf", "c", "t", "s", "x"])
def test_the_exponent_that_python_knows_does_not_promote(base: str) -> None:
    exponents: list[Case] = [
        lambda J: True,
        lambda J: numpy.int64(2),
        lambda J: numpy.array(2),
        lambda J: J.numpy.int32(2),
        lambda J: J.numpy.uint8(3),
        lambda J: J.numpy.array([2]),
    ]
    for exponent in exponents:
        check(lambda J, e=exponent: J.numpy.power(OPERANDS[base], e(J)))
        check(lambda J, e=exponent: J.jit(J.numpy.power)(OPERANDS[base], e(J)))


def needs_values(case: str) -> bool:
    """Whether an expression cannot be traced."""
    return any(part in case for part in CONCRETE) or jax_types(case) is None


@pytest.mark.parametrize("case", [c.lstrip("!") for c in CASES])
def test_vmap_is_a_loop(case: str) -> None:
    """Over copies of the operands, so that every batch rule meets every form of its op."""
    names = names_in(case)
    if not names:
        return
    alone = {name: tinyjax.numpy.asarray(ARRAYS[name]) for name in names}
    want = leaves(run(case, tinyjax.numpy, alone))

    def f(*values: Any) -> Any:
        return leaves(run(case, tinyjax.numpy, dict(zip(names, values, strict=True))))

    stacked = [numpy.stack([ARRAYS[name]] * 2) for name in names]
    try:
        got = tinyjax.vmap(f)(*stacked)
    except (
        tinyjax.errors.ConcretizationTypeError,
        tinyjax.errors.TracerIntegerConversionError,
        tinyjax.errors.TracerArrayConversionError,
        tinyjax.errors.NonConcreteBooleanIndexError,
    ):
        assert needs_values(case)
        return
    for g, w in zip(got, want, strict=True):
        for i in range(2):
            check_values(numpy.asarray(g)[i], w, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c.lstrip("!") for c in CASES])
def test_compiled_equals_eager(case: str) -> None:
    """The program that jit compiles gives what the evaluator gives."""
    names = names_in(case)
    if not names or needs_values(case):
        return
    given = [tinyjax.numpy.asarray(ARRAYS[name]) for name in names]

    def f(*values: Any) -> Any:
        return leaves(run(case, tinyjax.numpy, dict(zip(names, values, strict=True))))

    want, got = f(*given), tinyjax.jit(f)(*given)
    for g, w in zip(got, want, strict=True):
        if hasattr(w, "dtype"):
            assert g.dtype == w.dtype
        check_values(g, w, case)
