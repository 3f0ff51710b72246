"""`tinyjax.random` against jax: the same bits, and distributions to a few ulp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinyjax as jax
from tests.oracle import Case, check, numbers, raises, x64

A = np.float32([0.3, 1.0, 2.5, 10.0])
P = np.float32([0.1, 0.5, 0.9])

# Results that are equal bit for bit.
EXACT: dict[str, Case] = {
    "key": lambda J: J.random.key(3),
    "key of a bool": lambda J: J.random.key(True),
    "key negative": lambda J: J.random.key(-5),
    "PRNGKey": lambda J: J.random.PRNGKey(1234567),
    "PRNGKey array": lambda J: J.random.PRNGKey(np.uint32(7)),
    "split": lambda J: J.random.split(J.random.key(0)),
    "split many": lambda J: J.random.split(J.random.key(0), 5),
    "split shape": lambda J: J.random.split(J.random.PRNGKey(0), (2, 3)),
    "fold_in of large numbers": lambda J: [
        J.random.fold_in(J.random.key(0), i) for i in (2**31, 2**32 - 1, np.int32(-1))
    ],
    "fold_in": lambda J: J.random.fold_in(J.random.key(0), 42),
    "fold_in raw": lambda J: J.random.fold_in(J.random.PRNGKey(0), np.uint32(4000000000)),
    "key_data": lambda J: J.random.key_data(J.random.key(9)),
    "wrap_key_data": lambda J: J.random.wrap_key_data(np.uint32([1, 2])),
    "key_impl": lambda J: str(J.random.key_impl(J.random.PRNGKey(0))),
    "clone": lambda J: J.random.clone(J.random.key(2)),
    "bits": lambda J: J.random.bits(J.random.key(0), (3, 2)),
    "bits 8": lambda J: J.random.bits(J.random.key(0), (5,), np.uint8),
    "bits 16": lambda J: J.random.bits(J.random.key(0), (5,), np.uint16),
    "uniform": lambda J: J.random.uniform(J.random.key(0), (4, 3)),
    "uniform raw": lambda J: J.random.uniform(J.random.PRNGKey(0), (4, 3)),
    "uniform bf16": lambda J: J.random.uniform(J.random.key(0), (5,), J.numpy.bfloat16),
    "uniform f16": lambda J: J.random.uniform(J.random.key(0), (5,), np.float16),
    "randint": lambda J: J.random.randint(J.random.key(0), (10,), 0, 7),
    "randint wide": lambda J: J.random.randint(J.random.key(0), (4,), -(2**31), 2**31 - 1),
    "randint u8": lambda J: J.random.randint(J.random.key(0), (10,), 0, 256, np.uint8),
    "randint between floats": lambda J: J.random.randint(J.random.key(0), (9,), -1.9, 5.7),
    "randint of few bits": lambda J: [
        J.random.randint(J.random.key(0), (40,), low, high, kind)
        for kind in (np.int8, np.uint8, np.int16, np.uint16)
        for low, high in ((0, 100), (-5, 255), (-(10**6), 10**6), (9, 9), (7, np.int8([3] * 40)))
    ],
    "randint arrays": lambda J: J.random.randint(J.random.key(0), (3,), np.int32([0, 5, 9]), 10),
    "bernoulli": lambda J: J.random.bernoulli(J.random.key(0), P, (4, 3)),
    "bernoulli high": lambda J: J.random.bernoulli(J.random.key(0), P, (4, 3), mode="high"),
    "permutation": lambda J: J.random.permutation(J.random.key(0), 12),
    "permutation array": lambda J: J.random.permutation(J.random.key(0), numbers(4, 3)),
    "permutation axis": lambda J: J.random.permutation(J.random.key(0), numbers(4, 5), axis=1),
    "permutation independent": lambda J: J.random.permutation(
        J.random.key(0), numbers(4, 5), independent=True
    ),
    "choice": lambda J: J.random.choice(J.random.key(0), 10, (4,)),
    "choice array": lambda J: J.random.choice(J.random.key(0), numbers(6, 2), (3,)),
    "choice no replacement": lambda J: J.random.choice(J.random.key(0), 10, (4,), replace=False),
    "choice weights": lambda J: (
        J.random.choice(J.random.key(0), 3, (8,), p=np.float32([0.2, 0.5, 0.3]))
    ),
    "choice weights unique": lambda J: J.random.choice(
        J.random.key(0), 4, (3,), replace=False, p=np.float32([0.1, 0.2, 0.3, 0.4])
    ),
    "categorical": lambda J: J.random.categorical(J.random.key(0), numbers(4, 5)),
    "categorical axis shape": lambda J: J.random.categorical(
        J.random.key(0), numbers(5, 4), axis=0, shape=(3, 4)
    ),
    "categorical unique": lambda J: J.random.categorical(
        J.random.key(0), numbers(6), shape=(3,), replace=False
    ),
    "rademacher": lambda J: J.random.rademacher(J.random.key(0), (6,)),
    "vmapped": lambda J: (
        J.vmap(lambda k: J.random.uniform(k, (2,)))(J.random.split(J.random.key(0), 3))
    ),
    "vmapped raw": lambda J: J.vmap(lambda k: J.random.bits(k, (2, 2)))(
        J.random.split(J.random.PRNGKey(0), 3)
    ),
    "vmapped split": lambda J: J.vmap(J.random.split)(J.random.split(J.random.key(1), 3)),
    "vmapped fold_in": lambda J: (
        J.vmap(lambda i: J.random.fold_in(J.random.key(1), i))(np.arange(4))
    ),
    "vmapped permutation": lambda J: J.vmap(lambda k: J.random.permutation(k, 5))(
        J.random.split(J.random.key(1), 3)
    ),
    "jitted": lambda J: J.jit(lambda k: J.random.randint(k, (5,), 0, 100))(J.random.key(5)),
    "in scan": lambda J: J.lax.scan(
        lambda k, _: (J.random.split(k)[0], J.random.uniform(k)), J.random.key(0), None, length=3
    ),
    "indexed keys": lambda J: J.random.split(J.random.key(0), 4)[1:3],
    "stacked keys": lambda J: J.numpy.stack([J.random.key(0), J.random.key(1)]),
    "key dtype": lambda J: str(J.random.key(0).dtype),
    "keys filled with numbers": lambda J: [
        J.numpy.zeros((2,), J.random.key(0).dtype),
        J.numpy.full((2,), 3, J.random.key(0).dtype),
        J.lax.full((2,), 3, J.random.key(0).dtype),
        J.jit(J.numpy.ones_like)(J.random.split(J.random.key(0))),
        J.vmap(J.numpy.zeros_like)(J.random.split(J.random.key(0))),
        J.lax.full_like(J.random.split(J.random.key(0)), 7),
    ],
    "keys filled with a key": lambda J: J.numpy.full_like(
        J.random.split(J.random.key(0)), J.random.key(3)
    ),
    "keys are equal": lambda J: J.random.split(J.random.key(0)) != J.random.key(1),
    "key seed under jit": lambda J: J.jit(J.random.key)(3),
}  # fmt: skip

# Results through transcendental functions.
CLOSE: dict[str, Case] = {
    "uniform range": lambda J: J.random.uniform(J.random.key(0), (3,), minval=-1.0, maxval=A[:3]),
    "normal": lambda J: J.random.normal(J.random.key(0), (4, 3)),
    "normal bf16": lambda J: J.random.normal(J.random.key(0), (4,), J.numpy.bfloat16),
    "normal complex": lambda J: J.random.normal(J.random.key(0), (3,), np.complex64),
    "truncated_normal": lambda J: J.random.truncated_normal(J.random.key(0), -1.0, 2.0, (5,)),
    "exponential": lambda J: J.random.exponential(J.random.key(0), (5,)),
    "gumbel": lambda J: J.random.gumbel(J.random.key(0), (5,)),
    "gumbel high": lambda J: J.random.gumbel(J.random.key(0), (5,), mode="high"),
    "laplace": lambda J: J.random.laplace(J.random.key(0), (5,)),
    "logistic": lambda J: J.random.logistic(J.random.key(0), (5,)),
    "cauchy": lambda J: J.random.cauchy(J.random.key(0), (5,)),
    "gamma": lambda J: J.random.gamma(J.random.key(0), A, (3, 4)),
    "loggamma": lambda J: J.random.loggamma(J.random.key(0), A / 10),
    "beta": lambda J: J.random.beta(J.random.key(0), A, A[::-1]),
    "t": lambda J: J.random.t(J.random.key(0), A, (4,)),
    "f": lambda J: J.random.f(J.random.key(0), A, A[::-1]),
    "pareto": lambda J: J.random.pareto(J.random.key(0), A),
    "weibull_min": lambda J: J.random.weibull_min(J.random.key(0), 2.0, 1.5, (4,)),
    "weibull_min of arrays": lambda J: [
        J.random.weibull_min(J.random.key(0), 2.0, A),
        J.random.weibull_min(J.random.key(0), A, 1.5, (2, 1)),
    ],
    "maxwell": lambda J: J.random.maxwell(J.random.key(0), (4,)),
    "double_sided_maxwell": lambda J: (
        J.random.double_sided_maxwell(J.random.key(0), 1.0, 2.0, (4,))
    ),
    "rayleigh": lambda J: J.random.rayleigh(J.random.key(0), A),
    "lognormal": lambda J: J.random.lognormal(J.random.key(0), A),
    "geometric": lambda J: J.random.geometric(J.random.key(0), P),
    "ball": lambda J: J.random.ball(J.random.key(0), 3, shape=(2,)),
    "multivariate_normal": lambda J: J.random.multivariate_normal(
        J.random.key(0), np.float32([1, 2]), np.float32([[2, 0.5], [0.5, 1]]), (3,)
    ),
    "orthogonal": lambda J: J.random.orthogonal(J.random.key(0), 3),
    "triangular": lambda J: J.random.triangular(J.random.key(0), 0.0, 0.3, 1.0, (5,)),
    "wald": lambda J: J.random.wald(J.random.key(0), 1.5, (5,)),
    "poisson small": lambda J: J.random.poisson(J.random.key(0), A, (3, 4)),
    "poisson large": lambda J: J.random.poisson(J.random.key(0), A * 20, (3, 4)),
    "poisson zero": lambda J: J.random.poisson(J.random.key(0), 0.0, (3,)),
    "loggamma gradient": lambda J: J.grad(lambda a: J.random.loggamma(J.random.key(0), a).sum())(A),
    "normal scale gradient": lambda J: J.grad(
        lambda s: (s * J.random.normal(J.random.key(0), (4,))).sum()
    )(2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_bits_are_those_of_jax(name: str) -> None:
    check(EXACT[name], 0.0)


LOOSE = {"gamma gradient": 5e-4, "loggamma gradient": 5e-4, "beta gradient": 5e-4}


@pytest.mark.parametrize("name", CLOSE)
def test_distributions_are_those_of_jax(name: str) -> None:
    check(CLOSE[name], LOOSE.get(name, 3e-5 if "bf16" not in name else None))


@pytest.mark.parametrize(
    "name", ["key", "bits", "uniform", "randint", "permutation", "choice", "bernoulli"]
)
def test_bits_are_those_of_jax_with_x64(name: str) -> None:
    with x64():
        check(EXACT[name], 0.0)


REFUSED: list[tuple[Case, str]] = [
    (lambda J: J.random.uniform(3), "PRNG key"),
    (lambda J: J.random.uniform(J.random.split(J.random.key(0))), "single key"),
    (lambda J: J.random.uniform(J.random.key(0), (2,), np.int32), "dtype"),
    (lambda J: J.random.randint(J.random.key(0), (2,), 0, 3, np.float32), "integer dtypes"),
    (lambda J: J.random.choice(J.random.key(0), 3, (4,), replace=False), "larger sample"),
    (lambda J: J.random.key(1.5), "must be an integer"),
    (lambda J: J.random.key(np.arange(3)), "scalar"),
    (lambda J: J.random.fold_in(J.random.key(0), np.arange(2)), "scalar"),
    (lambda J: J.random.bernoulli(J.random.key(0), 0.5, mode="mid"), "mode"),
    (lambda J: J.random.fold_in(J.random.key(0), -1), "out of bounds for uint32"),
    (lambda J: J.random.fold_in(J.random.key(0), 2**32), "out of bounds for uint32"),
    (lambda J: bool(J.random.key(0)), "Python bool"),
    (lambda J: J.jit(bool)(J.random.key(0)), "boolean conversion"),
    (lambda J: int(J.random.key(0)), "Python int"),
    (lambda J: float(J.random.key(0)), "Python float"),
]

# Whatever computes with keys or orders them.
ARITHMETIC: dict[str, Case] = {
    name: lambda J, name=name: getattr(J.numpy, name)(J.random.split(J.random.key(0)))
    for name in "sum prod max min nanmax cumsum cumprod sort exp mean negative".split()
} | {
    name: lambda J, name=name: getattr(J.lax, name)(
        J.random.split(J.random.key(0)), J.random.split(J.random.key(1))
    )
    for name in "add lt le gt ge max sort_key_val".split()
} | {
    "order": lambda J: J.random.key(0) < J.random.key(1),
    "search": lambda J: J.numpy.searchsorted(
        J.random.split(J.random.key(0)), J.random.split(J.random.key(1))
    ),
    "accumulate": lambda J: J.random.split(J.random.key(0)).at[0].add(J.random.key(1)),
    "segments": lambda J: J.ops.segment_sum(J.random.split(J.random.key(0)), np.int32([0, 0])),
    "cumulative": lambda J: J.lax.cummax(J.random.split(J.random.key(0))),
}  # fmt: skip


def test_keys_are_moved_by_a_sort_of_numbers() -> None:
    keys = jax.random.split(jax.random.key(0), (3, 2))
    order = np.int32([[3, 1], [1, 3], [2, 2]])
    for transform in (lambda f: f, jax.jit, jax.checkpoint):
        moved = transform(lambda k: jax.lax.sort((order, k), dimension=0, num_keys=1)[1])(keys)
        expected = jax.numpy.stack([keys[[1, 2, 0], 0], keys[[0, 2, 1], 1]], axis=1)
        np.testing.assert_array_equal(jax.random.key_data(moved), jax.random.key_data(expected))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_keys_have_no_arithmetic_and_no_order(name: str) -> None:
    assert isinstance(raises(ARITHMETIC[name]), TypeError)


@pytest.mark.parametrize(("case", "text"), REFUSED)
def test_what_jax_refuses_is_refused_with_the_reason(case: Case, text: str) -> None:
    assert text in str(raises(case))


def test_the_gradient_of_a_gamma_variate_moves_the_quantile() -> None:
    """Along the implicit derivative the distribution function at the sample does not change."""
    special = jax.lax
    a = jax.numpy.float32(2.5)
    keys = jax.random.split(jax.random.key(3), 20)
    draw = lambda k, al: jax.random.gamma(k, al)
    x = jax.vmap(draw, in_axes=(0, None))(keys, a)
    dx: Any = jax.vmap(jax.grad(draw, argnums=1), in_axes=(0, None))(keys, a)
    h = 1e-2
    moved = special.igamma(jax.numpy.full(20, a + h), x + h * dx)
    np.testing.assert_allclose(moved, special.igamma(jax.numpy.full(20, a), x), atol=2e-4)


# --- options of the configuration ---------------------------------------------------------------


def seeded(J: Any) -> Any:
    with J.enable_custom_prng(True):
        typed = J.random.PRNGKey(3)
    J.config.update("jax_random_seed_offset", 5)
    try:
        return typed, J.random.PRNGKey(3), J.random.key(np.int32(3)), J.random.PRNGKey(-1)
    finally:
        J.config.update("jax_random_seed_offset", 0)


def test_seeds_follow_the_configuration() -> None:
    check(seeded)


def test_raw_keys_can_be_refused_or_warned_of() -> None:
    raw, typed = jax.random.PRNGKey(0), jax.random.key(0)
    with jax.legacy_prng_key("error"):
        with pytest.raises(ValueError, match="Legacy uint32 key array"):
            jax.random.normal(raw)
        jax.random.normal(typed)
    with jax.legacy_prng_key("warn"), pytest.warns(UserWarning, match="Legacy uint32 key array"):
        jax.random.split(raw)


TRANSFORMED: dict[str, tuple[float, ...]] = {
    "uniform": (), "logistic": (), "gumbel": (), "exponential": (), "laplace": (), "cauchy": (),
    "pareto": (2.0,), "weibull_min": (1.0, 2.0), "truncated_normal": (-1.0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_rare_draws_are_those_of_jax_too(name: str):
    """A few draws do not show where a distribution begins."""
    draw = lambda J: getattr(J.random, name)(J.random.key(1), *TRANSFORMED[name], shape=(50_000,))
    check(draw, 4e-7)
