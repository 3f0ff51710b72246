"""Every order of grad, jvp, vmap, jit, function and checkpoint, over many programs, equals JAX's.

Each transformation here maps a function `f(x, extra) -> tree` to another such function of the same
`x` and `extra`, so that any order of them, repetitions included, makes sense: grad is that of a
weighted sum of the outputs, jvp has a fixed direction, vmap runs over two examples made from x.
An order is written outermost first: ("jit", "grad") is jit(grad(f)).

The oracle leaves out jit, function and checkpoint, which do not change what a function computes.
The slow set runs all orders up to length 4 (1,554 of each program) and those of length 5 with at
most three derivatives; the default one a sample in which every pair of transformations occurs. Half
of the time is XLA's, for the oracle's results. TINYJAX_TEST_SUBJECT=jax runs JAX against itself,
which tests the programs and this file.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import traceback

import jax as oracle
import numpy as np
import pytest

from tests.programs import PROGRAMS, Program

subject = importlib.import_module(os.environ.get("TINYJAX_TEST_SUBJECT", "tinyjax"))

Order = tuple[str, ...]

MAX_LENGTH = 5
MAX_DERIVATIVES = 4  # in orders shorter than MAX_LENGTH; one less in those
SAMPLE = {2: 1, 3: 1, 4: 1, 5: 1}  # orders of each length that a program gets in the default run
# Of an output's largest magnitude (at least 1). JAX with jit and without differ by at most 2e-15
# (orders up to length 2); higher derivatives amplify rounding, and ours may fuse otherwise.
TOLERANCE = 1e-10
# What halves XLA's compile time; the results are run once.
QUICK_COMPILATION = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

KEEP_VALUES = {"jit", "function", "checkpoint"}


@pytest.fixture(autouse=True)
def float64():
    with oracle.enable_x64(True), subject.enable_x64(True):
        yield


# ---- the transformations as maps of f(x, extra) --------------------------------------------------


def fixed_values(jax, shape):
    """Arbitrary numbers of both signs, different at each position."""
    return np.cos(1.0 + np.arange(np.prod(shape, dtype=int))).reshape(shape)


def grad(jax, f, depth, order):
    def weighted_sum(x, extra):
        leaves = jax.tree.leaves(f(x, extra))
        return sum(jax.numpy.sum(fixed_values(jax, leaf.shape) * leaf) for leaf in leaves)

    return jax.grad(weighted_sum)


def jvp(jax, f, depth, order):
    def value_and_tangent(x, extra):
        direction = jax.tree.map(lambda leaf: jax.numpy.asarray(fixed_values(jax, leaf.shape)), x)
        value, tangent = jax.jvp(lambda x: f(x, extra), (x,), (direction,))
        return value, jax.tree.map(lambda leaf: leaf if leaf.dtype != jax.float0 else None, tangent)

    return value_and_tangent


def vmap(jax, f, depth, order):
    """The innermost vmap, the third, ... map over `extra` as well."""
    jnp = jax.numpy
    maps_extra = order[depth + 1 :].count("vmap") % 2 == 0

    def over_two_examples(x, extra):
        xs = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.9 * leaf + 0.05]), x)
        if maps_extra:
            extra = jax.tree.map(lambda i: jnp.stack([i, jnp.flip(i) if i.ndim else i]), extra)
        return jax.vmap(f, in_axes=(0, 0 if maps_extra else None))(xs, extra)

    return over_two_examples


def jit(jax, f, depth, order):
    return jax.jit(f)


def function(jax, f, depth, order):
    """tinyjax's own transformation; precompiled where it stands at an odd depth."""
    if jax.__name__ == "jax":
        return jax.jit(f)
    return jax.function(f, precompile=True) if depth % 2 else jax.function(f)


def checkpoint(jax, f, depth, order):
    return jax.checkpoint(f)


TRANSFORMATIONS = {t.__name__: t for t in (grad, jvp, vmap, jit, function, checkpoint)}


def transform(jax, program: Program, order: Order):
    f = program.make(jax)
    for depth in reversed(range(len(order))):
        f = TRANSFORMATIONS[order[depth]](jax, f, depth, order)
    return f


def is_legal(program: Program, order: Order) -> bool:
    derivatives = [name for name in reversed(order) if name in ("grad", "jvp")]
    if len(derivatives) > MAX_DERIVATIVES - (len(order) == MAX_LENGTH):
        return False
    if "grad" in derivatives and program.grad == "never":
        return False
    if "jvp" in derivatives and program.jvp == "never":
        return False
    return program.jvp == "always" or derivatives[:1] != ["jvp"]


def orders_of_length(length: int) -> list[Order]:
    return list(itertools.product(TRANSFORMATIONS, repeat=length))


# ---- comparison ----------------------------------------------------------------------------------


def leaves_by_path(jax, tree) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def run(jax, program: Program, order: Order, call=lambda f, *args: f(*args)) -> dict:
    arguments = jax.tree.map(jax.numpy.asarray, program.arguments())
    return leaves_by_path(jax, call(transform(jax, program, order), *arguments))


def call_compiled(f, *args):
    return oracle.jit(f, compiler_options=QUICK_COMPILATION)(*args)


expected_results: dict[tuple[str, Order], dict[str, np.ndarray]] = {}


def expected(program: Program, order: Order) -> dict[str, np.ndarray]:
    order = tuple(name for name in order if name not in KEEP_VALUES)
    if (program.name, order) not in expected_results:
        result = run(oracle, program, order, call_compiled)
        assert all(np.isfinite(leaf).all() for leaf in result.values()), (program.name, order)
        expected_results[program.name, order] = result
    return expected_results[program.name, order]


def check(program: Program, order: Order) -> None:
    want = expected(program, order)
    got = run(subject, program, order)
    assert list(got) == list(want)
    for path, leaf in want.items():
        assert got[path].dtype == leaf.dtype, path
        assert got[path].shape == leaf.shape, path
        error = np.max(np.abs(np.subtract(got[path], leaf, dtype=float)), initial=0.0)
        # Written so that a nan fails.
        assert error <= TOLERANCE * max(1.0, np.max(np.abs(leaf), initial=0.0)), (path, error)


# ---- tests ---------------------------------------------------------------------------------------


def sampled_cases() -> list:
    """Programs take turns at a shuffled round of all orders of each length."""
    cases = []
    for length, count in SAMPLE.items():
        orders = orders_of_length(length)
        random.Random(length).shuffle(orders)
        round_of_orders = itertools.cycle(orders)
        for program in PROGRAMS.values():
            legal = (order for order in round_of_orders if is_legal(program, order))
            for order in itertools.islice(legal, count):
                cases.append(pytest.param(program, order, id=f"{program.name}-{'.'.join(order)}"))
    return cases


@pytest.mark.parametrize("program, order", sampled_cases())
def test_sampled_order_of_transformations_agrees_with_jax(program: Program, order: Order, compared):
    agrees_in_all(program, [order], compared)


def agrees_in_all(program: Program, orders: list[Order], compared) -> None:
    failures, first = [], None
    for order in orders:
        try:
            check(program, order)
        except Exception as error:
            first = first or error
            last = traceback.format_exception_only(error)[-1].strip()
            failures.append(f"{'.'.join(order)}: {last}")
    compared("orders of transformations with JAX", len(orders), len(failures))
    if failures:
        text = f"{len(failures)} orders fail:\n" + "\n".join(failures[:20])
        raise AssertionError(text) from first


@pytest.mark.slow
@pytest.mark.parametrize("outermost", list(TRANSFORMATIONS))
@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_every_order_of_transformations_agrees_with_jax(program: Program, outermost: str, compared):
    orders = [(outermost, *inner) for n in range(MAX_LENGTH) for inner in orders_of_length(n)]
    try:
        agrees_in_all(program, [o for o in orders if is_legal(program, o)], compared)
    finally:
        oracle.clear_caches()


@pytest.mark.parametrize("program", list(PROGRAMS.values()), ids=list(PROGRAMS))
def test_value_and_derivative_agree_with_jax_and_are_worth_comparing(program: Program):
    for order in ((), ("jvp",) if program.grad == "never" else ("grad",)):
        assert any(np.abs(leaf).max() > 1e-3 for leaf in expected(program, order).values())
        check(program, order)


def test_the_sample_contains_every_ordered_pair():
    pairs = {case.values[1] for case in sampled_cases() if len(case.values[1]) == 2}
    assert pairs == set(orders_of_length(2))
