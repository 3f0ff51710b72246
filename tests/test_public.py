"""Public modules beside the big ones: jacobians, test_util, scipy, devices, typing,
flatten_util."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax.flatten_util as oracle_flatten_util
import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tests.oracle import Case, check, numbers, pullback, raises

assert oracle_flatten_util  # jax loads it on request only
X = numbers(4)
M = numbers(3, 4)
P = np.abs(X) + np.float32(0.2)
U = np.float32([0.05, 0.3, 0.5, 0.999])


def two(J: Any) -> Any:
    return lambda x, y: {"a": x["u"] * y[0], "b": (y**2).sum()}


TREE = {"u": X[:2], "v": X[2:]}
JACOBIANS: dict[str, Case] = {
    "jacfwd": lambda J: J.jacfwd(lambda x: J.numpy.sin(M @ x))(X),
    "jacrev": lambda J: J.jacrev(lambda x: J.numpy.sin(M @ x))(X),
    "jacfwd tree": lambda J: J.jacfwd(two(J), argnums=(0, 1))(TREE, X),
    "jacrev tree": lambda J: J.jacrev(two(J), argnums=(0, 1))(TREE, X),
    "jacfwd aux": lambda J: J.jacfwd(lambda x: (x * 2, {"n": x.sum()}), has_aux=True)(X),
    "jacrev aux": lambda J: J.jacrev(lambda x: (x * 2, 3.0), has_aux=True)(X),
    "hessian": lambda J: J.hessian(lambda x: (x**3).sum() * x[0])(X),
    "hessian tree": lambda J: J.hessian(lambda t: (t["u"] ** 2).sum() * t["v"][0])(TREE),
    "jacobian scalar": lambda J: J.jacobian(lambda x: x**2)(2.0),
    "under jit": lambda J: J.jit(J.jacfwd(lambda x: x * x.sum()))(X),
    "holomorphic": lambda J: (
        J.jacrev(lambda z: z**2, holomorphic=True)(X.astype(np.complex64) * 1j)
    ),
    "custom_gradient": lambda J: J.grad(
        J.custom_gradient(lambda x: (x**2, lambda g: (g * 7 * x,)))
    )(2.0),
    "closure_convert": lambda J: J.grad(
        lambda s: (lambda f, consts: f(2.0, *consts))(*J.closure_convert(lambda x: x * s, 1.0))
    )(3.0),
    "ravel_pytree": lambda J: J.flatten_util.ravel_pytree({"a": M, "b": [1.0, X]})[0],
    "unravel": lambda J: (lambda v, f: f(v * 2))(*J.flatten_util.ravel_pytree({"a": M, "b": (X,)})),
    "named_call": lambda J: J.named_call(lambda x: x + 1, name="step")(X),
    "device_get": lambda J: J.device_get({"a": J.numpy.ones(3)}),
    "device_put": lambda J: J.device_put({"a": X, "b": 2}, J.devices()[0]),
    "typeof": lambda J: (J.typeof(X).shape, str(J.typeof(1.0).dtype)),
}  # fmt: skip


@pytest.mark.parametrize("name", JACOBIANS)
def test_transformations_are_those_of_jax(name: str) -> None:
    check(JACOBIANS[name], 1e-5)


ONE = (
    "gammaln gamma digamma erf erfc erfinv expit logit entr i0 i0e i1 i1e ndtr log_ndtr ndtri "
    "gammasgn "
    "factorial"
).split()
TWO = "betaln beta xlogy xlog1py rel_entr kl_div gammainc gammaincc boxcox boxcox1p poch".split()
SPECIAL: dict[str, Case] = {}
for _n in ONE:
    _x = U if _n in ("erfinv", "logit", "ndtri", "entr") else P
    SPECIAL[_n] = lambda J, n=_n, x=_x: getattr(J.scipy.special, n)(x)
    if _n not in ("gammasgn", "factorial", "gamma"):
        SPECIAL[f"{_n} gradient"] = lambda J, n=_n, x=_x: pullback(
            J, getattr(J.scipy.special, n), x
        )
for _n in TWO:
    SPECIAL[_n] = lambda J, n=_n: getattr(J.scipy.special, n)(P, P[::-1])
SPECIAL |= {
    "log_ndtr tails": lambda J: J.scipy.special.log_ndtr(np.float32([-30, -11, -5, 0, 5, 30])),
    "ndtri tails": lambda J: J.scipy.special.ndtri(np.float32([1e-7, 1e-3, 0.5, 0.9999, 0, 1, 2])),
    "softmax over all": lambda J: J.scipy.special.softmax(M),
    "log_softmax axis": lambda J: J.scipy.special.log_softmax(M, axis=0),
    "xlogy zero": lambda J: J.scipy.special.xlogy(0.0, np.float32([0, 1])),
    "entr edges": lambda J: J.scipy.special.entr(np.float32([0, -1, 1])),
    "polygamma": lambda J: J.scipy.special.polygamma(1, P),
    "zeta": lambda J: J.scipy.special.zeta(P + 1, P),
    "multigammaln": lambda J: J.scipy.special.multigammaln(P + 2, 3),
    "logsumexp": lambda J: J.scipy.special.logsumexp(M, axis=1, b=np.abs(M)),
    "betainc": lambda J: J.scipy.special.betainc(P, P[::-1], U),
    "norm.pdf": lambda J: J.scipy.stats.norm.pdf(X, 1.0, 2.0),
    "norm.logpdf": lambda J: J.scipy.stats.norm.logpdf(X, loc=1, scale=P),
    "norm.cdf": lambda J: J.scipy.stats.norm.cdf(X),
    "norm.logcdf": lambda J: J.scipy.stats.norm.logcdf(X * 10),
    "norm.ppf": lambda J: J.scipy.stats.norm.ppf(U, 1.0, 2.0),
    "norm.sf": lambda J: J.scipy.stats.norm.sf(X),
    "norm.isf": lambda J: J.scipy.stats.norm.isf(U),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_are_those_of_jax(name: str) -> None:
    check(SPECIAL[name], 1e-4)


S = np.float32([[4, 1, 0.5], [1, 3, 0.2], [0.5, 0.2, 2]])
R = numbers(3, 2)
LINALG: dict[str, Case] = {
    "cholesky": lambda J: J.scipy.linalg.cholesky(S),
    "cho_solve": lambda J: J.scipy.linalg.cho_solve(J.scipy.linalg.cho_factor(S), R),
    "cho_solve lower": lambda J: J.scipy.linalg.cho_solve(
        J.scipy.linalg.cho_factor(S, lower=True), R[:, 0]
    ),
    "solve_triangular": lambda J: J.scipy.linalg.solve_triangular(S, R, trans="T", lower=True),
    "solve": lambda J: J.scipy.linalg.solve(S, R),
    "inv": lambda J: J.scipy.linalg.inv(S),
    "det": lambda J: J.scipy.linalg.det(S[::-1]),
    "eigh": lambda J: J.scipy.linalg.eigh(S, eigvals_only=True),
    "lu": lambda J: J.scipy.linalg.lu(S[::-1]),
    "lu_solve": lambda J: J.scipy.linalg.lu_solve(J.scipy.linalg.lu_factor(S[::-1]), R, trans=1),
    "block_diag": lambda J: J.scipy.linalg.block_diag(S, R, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_is_that_of_jax(name: str) -> None:
    check(LINALG[name], 2e-5)


def test_unravelling_another_vector_is_refused() -> None:
    def case(J: Any) -> Any:
        return J.flatten_util.ravel_pytree({"a": M})[1](X)

    assert "input of shape (12,), got shape (4,)" in str(raises(case))


# --- test_util -----------------------------------------------------------------------------------


def test_right_derivatives_pass_and_wrong_ones_fail() -> None:
    jax.test_util.check_grads(lambda x, t: jnp.sin(x) * t["k"], (X, {"k": X * 2}), order=2)

    @jax.custom_jvp
    def wrong(x: Any) -> Any:
        return x**2

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), 3 * tangents[0]))
    for mode in ("fwd", "rev"):
        with pytest.raises(AssertionError):
            jax.test_util.check_grads(wrong, (X,), order=1, modes=(mode,))


def test_second_derivatives_are_checked_too() -> None:
    @jax.custom_jvp
    def right_once(x: Any) -> Any:
        return x**3

    right_once.defjvp(lambda p, t: (right_once(*p), jax.lax.stop_gradient(3 * p[0] ** 2) * t[0]))
    jax.test_util.check_grads(right_once, (X,), order=1)
    with pytest.raises(AssertionError):
        jax.test_util.check_grads(right_once, (X,), order=2)


# --- devices, callbacks, tracing tools ------------------------------------------------------------


def test_there_is_one_device() -> None:
    assert jax.device_count() == jax.local_device_count() == len(jax.devices("cpu")) == 1
    assert jax.default_backend() == jax.devices()[0].platform == "cpu"
    assert (jax.process_index(), jax.process_count()) == (0, 1)
    with pytest.raises(RuntimeError, match="Unknown backend: 'tpu'"):
        jax.devices("tpu")
    with pytest.raises(ValueError, match="only device"):
        jax.device_put(X, "gpu:0")


def test_an_array_is_made_from_its_parts() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    x = jax.make_array_from_callback((4,), sharding, lambda index: X[index])
    np.testing.assert_array_equal(x, X)
    with pytest.raises(ValueError, match="returned shape"):
        jax.make_array_from_callback((5,), sharding, lambda index: X)


def test_pure_callbacks_run_in_every_transformation_but_derivatives() -> None:
    spec = jax.ShapeDtypeStruct((), np.float32)
    f = lambda x: jax.pure_callback(lambda v: np.sin(v), spec, x, vmap_method="sequential")
    np.testing.assert_allclose(f(X[0]), np.sin(X[0]), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(X), np.sin(X), rtol=1e-6)
    with pytest.raises(ValueError, match="callbacks do not support JVP"):
        jax.grad(f)(X[0])


def test_values_are_available_while_staging_if_asked_for() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            count = int(jnp.arange(4).sum())
        return x * count

    assert float(f(2.0)) == 12


def test_clearing_caches_traces_anew() -> None:
    count = [0]

    def f(x: Any) -> Any:
        count[0] += 1
        return x + 1

    jax.jit(f)(X)
    jax.jit(f)(X)
    assert count == [1]
    jax.clear_caches()
    jax.jit(f)(X)
    assert count == [2]


# --- annotations ----------------------------------------------------------------------------------


def test_arrays_work_in_jaxtyping_annotations() -> None:
    jaxtyping = pytest.importorskip("jaxtyping")
    beartype = pytest.importorskip("beartype")
    Array, Float, Int, Bool, Key = (
        jax.Array, jaxtyping.Float, jaxtyping.Int, jaxtyping.Bool, jaxtyping.Key
    )  # fmt: skip

    def matvec(a, x):  # type: ignore[no-untyped-def]
        return (a * x[None, : a.shape[1]]).sum(1)

    matvec.__annotations__ = {
        "a": Float[Array, "m n"], "x": Float[Array, "n"], "return": Float[Array, "m"],
    }  # fmt: skip
    matvec = jaxtyping.jaxtyped(typechecker=beartype.beartype)(matvec)
    assert matvec(jnp.ones((2, 3)), jnp.ones(3)).shape == (2,)
    with pytest.raises(jaxtyping.TypeCheckError):
        matvec(jnp.ones((2, 3)), jnp.ones(4))
    for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float16, jnp.float32):
        assert isinstance(jnp.ones((2, 3), dtype), Float[Array, "b d"])
    assert isinstance(jnp.arange(3), Int[Array, "n"])
    assert isinstance(jnp.ones(3, bool), Bool[Array, "n"])
    assert not isinstance(jnp.ones(3), Int[Array, "n"])
    assert isinstance(jnp.ones((2, 2), jnp.bfloat16), jaxtyping.BFloat16[Array, "n n"])
    assert isinstance(jax.random.key(0), Key[Array, ""])


def test_isinstance_of_tracer_and_typing_names() -> None:
    seen: list[bool] = []
    jax.jit(lambda x: seen.append(isinstance(x, jax.core.Tracer)) or x)(1.0)
    jax.grad(lambda x: seen.append(isinstance(x, jax.core.Tracer)) or x)(1.0)
    assert seen == [True, True]
    assert not isinstance(jnp.ones(2), jax.core.Tracer)
    assert isinstance(1.0, jax.typing.ArrayLike)
    assert jax.__version__.count(".") == 2


LAZY = ["scipy", "test_util", "dlpack", "flatten_util", "custom_derivatives", "stages"]


def test_rare_modules_load_when_first_used() -> None:
    code = f"""
import sys, tinyjax
names = {LAZY}
print([n for n in names if f"tinyjax.{{n}}" in sys.modules])
print(all(getattr(tinyjax, n).__name__ == f"tinyjax.{{n}}" for n in names))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
    with pytest.raises(AttributeError, match="no attribute 'numpyy'"):
        _ = jax.numpyy
