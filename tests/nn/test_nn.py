"""`tinyjax.nn` against jax: values and derivatives, also at infinities, NaN and large numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tinyjax as jax
from tests.oracle import Case, check, numbers, pullback, raises

X = numbers(4, 6)
# 0 and ties are where derivatives are a convention; the rest is where formulas overflow.
EDGE = np.array([0.0, 1.0, -1.0, 6.0, -3.0, 3.0, 100.0, -100.0, 1e4, -1e4], np.float32)
WILD = np.array([np.inf, -np.inf, np.nan], np.float32)
B = numbers(4, 6, seed=3) > 0

ACTIVATIONS = (
    "relu relu6 sigmoid hard_sigmoid softplus soft_sign silu swish hard_silu hard_swish "
    "log_sigmoid tanh "
    "hard_tanh leaky_relu elu celu selu gelu mish sparse_plus sparse_sigmoid squareplus identity"
).split()

CASES: dict[str, Case] = {}
for _n in ACTIVATIONS:
    CASES[_n] = lambda J, n=_n: (getattr(J.nn, n)(X), getattr(J.nn, n)(EDGE))
    CASES[f"{_n} gradient"] = lambda J, n=_n: (
        pullback(J, getattr(J.nn, n), X), pullback(J, getattr(J.nn, n), EDGE)
    )  # fmt: skip
    if _n not in ("identity",):
        CASES[f"{_n} wild"] = lambda J, n=_n: getattr(J.nn, n)(WILD)
CASES |= {
    "relu int": lambda J: J.nn.relu(np.int32([-1, 2])),
    "gelu exact": lambda J: J.nn.gelu(X, approximate=False),
    "gelu exact gradient": lambda J: pullback(J, lambda x: J.nn.gelu(x, approximate=False), X),
    "gelu bf16": lambda J: J.nn.gelu(X.astype(ml_dtypes.bfloat16)),
    "elu alpha": lambda J: J.nn.elu(X, 0.5),
    "celu alpha": lambda J: J.nn.celu(X, 2.0),
    "leaky slope": lambda J: J.nn.leaky_relu(X, 0.3),
    "squareplus b": lambda J: J.nn.squareplus(X, 2.0),
    "glu": lambda J: J.nn.glu(X),
    "glu axis": lambda J: J.nn.glu(X, axis=0),
    "softmax": lambda J: J.nn.softmax(X),
    "softmax axes": lambda J: J.nn.softmax(X, axis=(0, 1)),
    "softmax none": lambda J: J.nn.softmax(X, axis=None),
    "softmax where": lambda J: J.nn.softmax(X, where=B),
    "softmax large": lambda J: J.nn.softmax(X * 1e4),
    "softmax infinite": lambda J: J.nn.softmax(np.float32([[0, -np.inf], [np.inf, 0]])),
    "softmax gradient": lambda J: pullback(J, J.nn.softmax, X),
    "softmax bf16": lambda J: J.nn.softmax(X.astype(ml_dtypes.bfloat16)),
    "softmax second": lambda J: (
        J.grad(lambda x: J.grad(lambda y: J.nn.softmax(y)[0, 0])(x)[0, 1])(X)
    ),
    "log_softmax": lambda J: J.nn.log_softmax(X),
    "log_softmax where": lambda J: J.nn.log_softmax(X, where=B),
    "log_softmax large": lambda J: J.nn.log_softmax(X * 1e4),
    "log_softmax gradient": lambda J: pullback(J, lambda x: J.nn.log_softmax(x, axis=0), X),
    "logsumexp": lambda J: J.nn.logsumexp(X, axis=1),
    "logsumexp all": lambda J: J.nn.logsumexp(X),
    "logsumexp keepdims": lambda J: J.nn.logsumexp(X, axis=0, keepdims=True),
    "logsumexp weights": lambda J: J.nn.logsumexp(X, axis=1, b=np.abs(X)),
    "logsumexp sign": lambda J: J.nn.logsumexp(X, axis=1, b=X, return_sign=True),
    "logsumexp where": lambda J: J.nn.logsumexp(X, axis=1, where=B),
    "logsumexp infinite": lambda J: (
        J.nn.logsumexp(np.float32([[-np.inf] * 2, [np.inf, 1]]), axis=1)
    ),
    "logsumexp infinite gradient": lambda J: J.grad(lambda x: J.nn.logsumexp(x))(
        np.float32([-np.inf, 0, 1])
    ),
    "logsumexp gradient": lambda J: pullback(J, lambda x: J.nn.logsumexp(x, axis=1), X),
    "logmeanexp": lambda J: J.nn.logmeanexp(X, axis=1),
    "logmeanexp where": lambda J: J.nn.logmeanexp(X, axis=1, where=B),
    "log1mexp": lambda J: J.nn.log1mexp(np.abs(X) + 0.1),
    "log1mexp gradient": lambda J: pullback(J, J.nn.log1mexp, np.abs(X) + np.float32(0.1)),
    "standardize": lambda J: J.nn.standardize(X),
    "standardize given": lambda J: J.nn.standardize(X, mean=0.5, variance=2.0),
    "standardize where": lambda J: J.nn.standardize(X, where=B),
    "standardize gradient": lambda J: pullback(J, lambda x: J.nn.standardize(x, axis=0), X),
    "one_hot": lambda J: J.nn.one_hot(np.array([0, 2, 5, -1]), 4),
    "one_hot axis": lambda J: J.nn.one_hot(np.array([[0, 2]]), 3, axis=0, dtype=np.int32),
    "one_hot scalar": lambda J: J.nn.one_hot(1, 3),
    "relu6 of integers": lambda J: J.nn.relu6(np.arange(-1, 9)).astype(np.float32),
    "standardize stable": lambda J: J.nn.standardize(X, algorithm="stable"),
}  # fmt: skip

Q, K = numbers(2, 5, 4, 8), numbers(2, 7, 2, 8, seed=1)
V = numbers(2, 7, 2, 8, seed=2)
MASK = numbers(2, 4, 5, 7, seed=4) > -1
BIAS = numbers(1, 4, 5, 7, seed=5)
CASES |= {
    "attention": lambda J: J.nn.dot_product_attention(Q, K, V),
    "attention bias": lambda J: J.nn.dot_product_attention(Q, K, V, bias=BIAS),
    "attention mask": lambda J: J.nn.dot_product_attention(Q, K, V, mask=MASK),
    "attention causal": lambda J: J.nn.dot_product_attention(Q, K, V, is_causal=True),
    "attention scale": lambda J: J.nn.dot_product_attention(Q, K, V, scale=0.3),
    "attention lengths": lambda J: J.nn.dot_product_attention(
        Q, K, V, query_seq_lengths=np.int32([3, 5]), key_value_seq_lengths=np.int32([7, 4])
    ),
    "attention window": lambda J: J.nn.dot_product_attention(Q, K, V, local_window_size=(2, 1)),
    "attention unbatched": lambda J: J.nn.dot_product_attention(Q[0], K[0], V[0]),
    "attention residual": lambda J: J.nn.dot_product_attention(Q, K, V, return_residual=True),
    "attention bf16": lambda J: J.nn.dot_product_attention(
        *(x.astype(ml_dtypes.bfloat16) for x in (Q, K, V))
    ),
    "attention gradient": lambda J: pullback(
        J, lambda q, k, v: J.nn.dot_product_attention(q, k, v, is_causal=True), Q, K, V
    ),
}  # fmt: skip


def test_a_number_between_classes_is_none_of_them() -> None:
    """jax says the same, with a warning about floats."""
    hot = jax.nn.one_hot(np.float32([0, 1.5, 2]), 3)
    np.testing.assert_array_equal(hot, [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_jax(name: str) -> None:
    check(CASES[name], 1e-5 if "bf16" not in name else None)


INITIALIZERS: dict[str, Case] = {
    n: lambda J, n=n: getattr(J.nn.initializers, n)()(J.random.key(0), (6, 4))
    for n in (
        "glorot_uniform glorot_normal lecun_uniform lecun_normal he_uniform he_normal "
        "xavier_uniform "
        "xavier_normal kaiming_uniform kaiming_normal uniform normal truncated_normal"
    ).split()
}
INITIALIZERS |= {
    "zeros": lambda J: J.nn.initializers.zeros(J.random.key(0), (2, 3)),
    "ones": lambda J: J.nn.initializers.ones(J.random.key(0), (2, 3), np.int32),
    "constant": lambda J: J.nn.initializers.constant(3)(J.random.key(0), (2, 3)),
    "orthogonal": lambda J: J.nn.initializers.orthogonal(2.0)(J.random.key(0), (6, 4)),
    "orthogonal axis": lambda J: (
        J.nn.initializers.orthogonal(column_axis=0)(J.random.key(0), (3, 5))
    ),
    "delta_orthogonal": lambda J: (
        J.nn.initializers.delta_orthogonal()(J.random.key(0), (3, 3, 2, 4))
    ),
    "fan_geo_avg": lambda J: J.nn.initializers.variance_scaling(2.0, "fan_geo_avg", "uniform")(
        J.random.key(0), (3, 3, 4, 8)
    ),
    "axes": lambda J: J.nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2, batch_axis=(3,))(
        J.random.key(0), (2, 3, 4, 5)
    ),
    "bf16": lambda J: J.nn.initializers.he_normal()(J.random.key(0), (6, 4), J.numpy.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_draw_the_numbers_of_jax(name: str) -> None:
    check(INITIALIZERS[name], 2e-5 if name != "bf16" else None)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (lambda J: J.nn.glu(numbers(3)), "divisible by 2"),
        (lambda J: J.nn.initializers.he_normal()(J.random.key(0), (3,)), "1-dimensional"),
        (
            lambda J: J.nn.initializers.variance_scaling(1.0, "fan", "normal")(
                J.random.key(0), (3, 3)
            ),
            "invalid mode",
        ),
    ],
)  # fmt: skip
def test_what_jax_refuses_is_refused_with_the_reason(case: Case, text: str) -> None:
    try:
        message = str(raises(case))
    except AssertionError as e:  # jax asserts where we explain
        message = str(e)
    assert text in message
