"""Rules that are told which derivatives are zero; linear_call."""

from __future__ import annotations

from typing import Any

import jax.custom_derivatives as oracle_custom_derivatives
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises

assert oracle_custom_derivatives  # jax loads it on request only
X = numbers(3)


def told(J: Any) -> tuple[Any, list[Any]]:
    """A function of two arguments and three results, and what its rules were told."""
    derivatives = J.custom_derivatives
    log: list[Any] = []
    is_zero = lambda ct: isinstance(ct, derivatives.SymbolicZero)

    @J.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return J.numpy.sin(x) * y, x + y, 3

    def fwd(x: Any, y: Any) -> Any:
        log.append((x.perturbed, y.perturbed))
        values = derivatives.custom_vjp_primal_tree_values((x, y))
        return f(*values), values

    def bwd(held: Any, cts: Any) -> Any:
        x, y = held
        log.append([is_zero(ct) or ct.shape for ct in cts] + [str(cts[2].dtype)])
        first, second, _ = cts
        a = 0.0 if is_zero(first) else first
        b = 0.0 if is_zero(second) else second
        return J.numpy.cos(x) * y * a + b, None if is_zero(first) else J.numpy.sin(x) * a * 7

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return f, log


LOSSES: dict[str, Any] = {
    "first": lambda J, f: J.grad(lambda x, y: f(x, y)[0]),
    "second": lambda J, f: J.grad(lambda x, y: f(x, y)[1], (0, 1)),
    "through jit": lambda J, f: J.grad(lambda x, y: J.jit(f)(x, y)[1] * 2),
    "both, other argument": lambda J, f: J.grad(lambda x, y: sum(f(x, y)[:2]), 1),
    "scan": lambda J, f: J.grad(
        lambda x, y: J.lax.scan(lambda c, _: (f(c, y)[0], None), x, None, length=2)[0]
    ),
}
CONTEXTS: dict[str, Any] = {
    "eager": lambda J, g: g(1.0, 2.0),
    "jit": lambda J, g: J.jit(g)(1.0, 2.0),
    "vmap": lambda J, g: J.vmap(g, (0, None))(X, 2.0),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_rules_are_told_what_jax_tells_them(loss: str, context: str):
    def case(J: Any) -> Any:
        f, log = told(J)
        return CONTEXTS[context](J, LOSSES[loss](J, f)), log

    (ours, our_log), (theirs, their_log) = case(tinyjax), case(__import__("jax"))
    for got, want in zip(tinyjax.tree.leaves(ours), tinyjax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    if loss != "scan":  # a loop's rules run as often as its carry's activity needs
        assert our_log == their_log
    else:
        assert [False, True] in [entry[:2] for entry in map(zeros_only, our_log)]


LOOKS: dict[str, Any] = {
    "first": lambda J, f: J.grad(lambda x: f(x, 3.0)[0])(2.0),
    "second": lambda J, f: J.grad(lambda x, y: f(x, y)[1], (0, 1))(2.0, 3.0),
    "both": lambda J, f: J.value_and_grad(lambda x: f(f(x, 2.0)[0], x)[1])(2.0),
    "stopped": lambda J, f: J.grad(lambda x: f(x, J.lax.stop_gradient(x))[0])(2.0),
    "not differentiated": lambda J, f: J.grad(lambda x: x * f(2.0, 3.0)[0])(2.0),
    "not used": lambda J, f: J.grad(lambda x: (f(x, 3.0), x * x)[1])(2.0),
    "vjp": lambda J, f: [
        back(np.float32(ct))
        for back in [J.vjp(lambda x: J.numpy.sin(f(x, 3.0)[0]), np.float32(2))[1]]
        for ct in (2, 3)
    ],
}


@pytest.mark.parametrize("name", LOOKS)
def test_rules_may_look_at_values_outside_of_jit(name: str):
    def case(J: Any) -> Any:
        log: list[Any] = []
        f = J.custom_vjp(lambda x, y: (log.append("f"), (x * y, x + y))[1])

        def fwd(x: Any, y: Any) -> Any:
            log.append((x.perturbed, y.perturbed, float(x.value)))
            factor = 10 if x.value > 1 else 1
            return (x.value * y.value, x.value + y.value), (x.value, y.value, factor)

        def bwd(held: Any, cts: Any) -> Any:
            x, y, factor = held
            zero = [isinstance(ct, J.custom_derivatives.SymbolicZero) for ct in cts]
            log.append((float(x), zero, [float(ct) for ct, z in zip(cts, zero) if not z]))
            a, b = (0.0 if z else ct for z, ct in zip(zero, cts, strict=True))
            return a * y * factor + b, a * x * factor + b

        f.defvjp(fwd, bwd, symbolic_zeros=True)
        return LOOKS[name](J, f), log

    (ours, our_log), (theirs, their_log) = case(tinyjax), case(__import__("jax"))
    for got, want in zip(tinyjax.tree.leaves(ours), tinyjax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert our_log == their_log


def zeros_only(entry: Any) -> list[Any]:
    return [x is True for x in entry]


def test_both_rules_have_flags_of_their_own():
    f = tinyjax.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, (x, y)), lambda r, ct: (ct * r[1], ct * r[0]))
    seen = []

    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(type(tangents[1]).__name__)
        return primals[0] * primals[1], tangents[0] * primals[1]

    f.defjvp(rule, symbolic_zeros=True)
    assert float(tinyjax.jvp(lambda x: f(x, 3.0), (2.0,), (1.0,))[1]) == 3.0
    assert seen == ["SymbolicZero"]
    assert float(tinyjax.grad(f)(2.0, 3.0)) == 3.0


ZEROS: dict[str, Case] = {
    "float": lambda J: J.custom_derivatives.zero_from_primal(2.0),
    "array": lambda J: J.custom_derivatives.zero_from_primal(J.numpy.ones((2, 3))),
    "integers": lambda J: J.custom_derivatives.zero_from_primal(J.numpy.arange(3)),
    "symbolic": lambda J: [
        (z.shape, str(z.dtype), z.ndim)
        for z in (
            J.custom_derivatives.zero_from_primal(J.numpy.ones((2, 3)), symbolic_zeros=True),
            J.custom_derivatives.SymbolicZero.from_primal_value(J.numpy.arange(3)),
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_of_a_primal(name: str):
    check(ZEROS[name], weak=False)


def divided(J: Any) -> Any:
    """x + x / d with a transpose that tells itself apart by a factor of five."""
    f = lambda r, x: x / r
    t = lambda r, ct: ct / r * 5
    return lambda x, d: x + J.custom_derivatives.linear_call(f, t, d, x)


def transposed(J: Any, f: Any) -> Any:
    return lambda y: J.linear_transpose(f, 1.0)(y)[0]


LINEAR: dict[str, Case] = {
    "value": lambda J: divided(J)(9.0, 3.0),
    "transpose": lambda J: transposed(J, lambda x: divided(J)(x, 3.0))(18.0),
    "twice": lambda J: transposed(J, transposed(J, lambda x: divided(J)(x, 3.0)))(18.0),
    "thrice": lambda J: transposed(
        J, transposed(J, transposed(J, lambda x: divided(J)(x, 3.0)))
    )(18.0),
    "jvp": lambda J: J.jvp(lambda x: divided(J)(x, 3.0), (1.0,), (1.0,)),
    "grad": lambda J: J.grad(divided(J))(2.0, 3.0),
    "jit": lambda J: J.jit(J.grad(divided(J)))(2.0, 3.0),
    "trees": lambda J: J.linear_transpose(
        lambda t: J.custom_derivatives.linear_call(
            lambda r, x: {"s": x[0] + x[1], "d": x[0] * r},
            lambda r, ct: (ct["s"] + ct["d"] * r, ct["s"]),
            2.0,
            t,
        ),
        (X, X),
    )({"s": X, "d": X}),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_call_is_that_of_jax(name: str):
    check(LINEAR[name], weak=False)


def test_linear_call_is_batched():
    out = tinyjax.vmap(tinyjax.grad(divided(tinyjax)), (0, None))(X, 3.0)
    np.testing.assert_allclose(out, np.full(3, 1 + 5 / 3), rtol=1e-6)


def test_a_transpose_of_another_tree_is_refused():
    raises(
        lambda J: J.grad(
            lambda x: J.custom_derivatives.linear_call(lambda r, x: x, lambda r, c: (c,), 1.0, x)
        )(1.0)
    )


def test_linear_arguments_are_inexact_and_captures_explicit():
    call = tinyjax.custom_derivatives.linear_call
    with pytest.raises(TypeError, match="floating or complex"):
        call(lambda r, x: x, lambda r, c: c, 1.0, 3)
    with pytest.raises(ValueError, match="residual_args"):
        tinyjax.jit(lambda a: call(lambda r, x: x * a, lambda r, c: c, 1.0, 2.0))(3.0)
