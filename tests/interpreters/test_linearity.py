"""linear_transpose takes what is linear up to constants, and names the operation that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, raises
from tinyjax.errors import NotLinearError

X = np.arange(3.0, dtype=np.float32)


def transposed(f: Any, x: Any = X) -> Case:
    """The transpose of `f(J, x)` at cotangents of one."""

    def case(J: Any) -> Any:
        of = lambda x: f(J, x)
        out = J.eval_shape(of, x)
        return J.linear_transpose(of, x)(J.tree.map(lambda o: J.numpy.ones(o.shape, o.dtype), out))

    return case


def with_rule(J: Any) -> Any:
    f = J.custom_jvp(lambda x: x * 2)
    f.defjvps(lambda t, out, x: t * 2)
    return f


PAIR = (np.float32(1), np.float32(2))
C3 = np.ones(3, np.complex64)
LINEAR = {
    "a constant is added": lambda J, x: 2 * x + J.numpy.ones(3),
    "a constant": lambda J, x: J.numpy.ones(3),
    "by a known value": lambda J, x: x * J.numpy.sin(2.0) / 3,
    "what is not used": lambda J, x: (J.numpy.sin(x), x)[1],
    "sums": lambda J, x: J.numpy.cumsum(x)[::-1] + J.numpy.mean(x) + J.numpy.sum(x * X),
    "a product with a matrix": lambda J, x: J.numpy.ones((2, 3)) @ x,
    "indices": lambda J, x: x[np.array([0, 0, 1])],
    "written": lambda J, x: x.at[0].set(1.0).at[1].add(x[2]).at[2].multiply(3.0),
    "padded": lambda J, x: J.numpy.pad(x, 1, constant_values=1.0),
    "chosen": lambda J, x: J.numpy.where(X > 0, x, 1.0),
    "jit": lambda J, x: J.jit(lambda y: y * 2)(x),
    "scan": lambda J, x: J.lax.scan(lambda c, a: (c + a, c), 1.0, x),
    "loop": lambda J, x: J.lax.fori_loop(0, 3, lambda i, c: c * 2, x),
    "branch": lambda J, x: J.lax.cond(True, lambda a: a * 2, lambda a: a * 3, x),
    "checkpoint": lambda J, x: J.checkpoint(lambda a: a * 2)(x),
    "cast": lambda J, x: x.astype("float16"),
    "a rule": lambda J, x: with_rule(J)(x),
}
LINEAR_OF_OTHERS = {
    "several": (lambda J, x: (x[0] * 2 + x[1], x[0]), PAIR),
    "complex": (lambda J, x: (x.real, x.conj(), J.numpy.fft.fft(x)), C3),
    "integers": (lambda J, x: x * 2, np.arange(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_transposes_are_jaxs(name: str):
    check(transposed(LINEAR[name]), weak=False)


@pytest.mark.parametrize("name", LINEAR_OF_OTHERS)
def test_transposes_of_other_arguments_are_jaxs(name: str):
    check(transposed(*LINEAR_OF_OTHERS[name]), weak=False)


NOT_LINEAR = {
    "sin": lambda J, x: J.numpy.sin(x),
    "abs": lambda J, x: abs(x),
    "mul": lambda J, x: x * x,
    "div": lambda J, x: 1 / x,
    "dot": lambda J, x: x @ x,
    "max": lambda J, x: J.nn.relu(x),
    "cmplt": lambda J, x: J.numpy.where(x > 0, x, 0.0),
    "stop_gradient": lambda J, x: J.lax.stop_gradient(x),
    "sort": lambda J, x: J.numpy.sort(x),
    "floor": lambda J, x: J.numpy.floor(x),
    "exp": lambda J, x: J.jit(lambda y: J.numpy.exp(y))(x),
    "cos": lambda J, x: J.lax.scan(lambda c, a: (c + J.numpy.cos(a), c), 0.0, x)[0],
    "tanh": lambda J, x: J.checkpoint(J.numpy.tanh)(x),
    "log": lambda J, x: J.lax.cond(True, J.numpy.log, lambda a: a, x),
    "sqrt": lambda J, x: J.lax.scan(lambda c, _: (J.numpy.sqrt(c), c), x, None, length=2),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_named_with_its_line(name: str):
    f = NOT_LINEAR[name]
    with pytest.raises(Exception):  # noqa: B017 (jax raises AssertionError for products)
        transposed(f)(__import__("jax"))
    with pytest.raises(NotLinearError, match=f"Transpose rule for '{name}'") as caught:
        transposed(f)(tinyjax)
    assert f"test_linearity.py:{f.__code__.co_firstlineno} in" in str(caught.value)


REFUSED: dict[str, Case] = {
    "products of arguments": lambda J: J.linear_transpose(lambda x: x[0] @ x[1], (X, X))(1.0),
    "floats to integers": transposed(lambda J, x: x.astype("int32")),
    "shape of the cotangent": lambda J: J.linear_transpose(lambda x: x * 2, X)(X[:2]),
    "tree of the cotangent": lambda J: J.linear_transpose(lambda x: x * 2, X)((X,)),
    "dtype of the cotangent": lambda J: J.linear_transpose(lambda x: x * 2, X)(np.arange(3)),
    "solver": lambda J: J.grad(
        lambda b: J.lax.custom_linear_solve(
            lambda x: J.numpy.sin(x) * 2, b, lambda _, b: b / 2, transpose_solve=lambda _, b: b / 2
        ).sum()
    )(X),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in REFUSED if n != "products of arguments"])
def test_what_jax_refuses_is_refused(name: str):
    raises(REFUSED[name])


def test_the_function_is_traced_once():
    traces = []
    back = tinyjax.linear_transpose(lambda x: (traces.append(1), x * 2)[1], X)
    assert back(X)[0].tolist() == back(X)[0].tolist() == (2 * X).tolist()
    assert len(traces) == 1
