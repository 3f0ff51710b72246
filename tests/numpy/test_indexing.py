"""Which ops an index becomes: no gather where slices do, else one gather or scatter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy
import pytest

import tinyjax
import tinyjax.numpy as np
from tinyjax import test_util
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.engine.tracing import stage
from tinyjax.engine.values import shaped_abstractify

x = np.arange(24.0).reshape(2, 3, 4)
rows = np.array([1, 0])
signed = np.array([1, -1])


def ops_of(f: Any, *args: Any) -> Counter[Op]:
    """How often each op occurs in the staged function."""
    tree = tinyjax.tree.structure((args, {}))
    body = stage(f, tree, [shaped_abstractify(a) for a in args], "jit").body
    return Counter(n.op for n in toposort([body]))


SLICES = {Op.PARAM, Op.TUPLE, Op.SLICE, Op.FLIP, Op.RESHAPE}

STATIC = [
    lambda x: x[0],
    lambda x: x[-1, ..., None],
    lambda x: x[:, ::-2, 1:3],
    lambda x: x[..., 2:0:-1],
    lambda x: x[None, 1, :, 0],
]


@pytest.mark.parametrize("f", STATIC)
def test_a_static_index_is_slices_only(f: Any) -> None:
    assert set(ops_of(f, x)) <= SLICES


def test_a_whole_slice_is_nothing() -> None:
    assert set(ops_of(lambda x: x[:, ...], x)) == {Op.PARAM, Op.TUPLE}


def test_a_traced_position_is_a_dynamic_slice() -> None:
    found = ops_of(lambda x, i: x[:, i, ::2], x, 1)
    assert found[Op.DYNAMIC_SLICE] == 1
    assert not found[Op.GATHER]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[i, ::-1, i],
        lambda x, i: x[i[:, None], i],
        lambda x, i: np.take(x, i, axis=2),
        lambda x, i: np.take_along_axis(x, i[:, None, None], 2),
    ],
)
def test_an_index_array_is_one_gather(f: Any) -> None:
    assert ops_of(f, x, rows)[Op.GATHER] == 1


def test_known_positions_that_are_not_negative_need_no_arithmetic() -> None:
    assert not ops_of(lambda x: x[rows], x)[Op.WHERE]
    assert ops_of(lambda x: x[signed], x)[Op.WHERE] == 1


WRITES: list[tuple[Any, Op]] = [
    (lambda x, i: x.at[0].set(1.0), Op.DYNAMIC_UPDATE),
    (lambda x, i: x.at[1, :2].add(1.0), Op.DYNAMIC_UPDATE),
    (lambda x, i: x.at[:, ::2].multiply(2.0), Op.WHERE),
    (lambda x, i: x.at[x > 3].set(0.0), Op.WHERE),
    (lambda x, i: x.at[i].set(0.0), Op.SCATTER),
    (lambda x, i: x.at[i, ..., ::2].add(1.0), Op.SCATTER),
    (lambda x, i: x.at[i[0]].set(0.0), Op.SCATTER),
]


@pytest.mark.parametrize(("f", "op"), WRITES)
def test_a_write_is_one_op(f: Any, op: Op) -> None:
    found = ops_of(f, x, rows)
    updates = {Op.DYNAMIC_UPDATE, Op.SCATTER, Op.WHERE}
    if op is Op.WHERE:
        updates -= {Op.WHERE}
        assert found[op] == 1
        assert not any(found[u] for u in updates)
    else:
        assert found[op] == 1
        assert not any(found[u] for u in {Op.DYNAMIC_UPDATE, Op.SCATTER} - {op})


def test_a_write_at_a_traced_place_outside_is_dropped_and_a_read_is_clamped() -> None:
    written = tinyjax.jit(lambda x, i: x.at[i].set(0.0))(x, 7)
    assert np.array_equal(written, x)
    assert np.array_equal(tinyjax.jit(lambda x, i: x[i])(x, 7), x[1])
    assert np.array_equal(tinyjax.jit(lambda x, i: x[i])(x, -1), x[1])


def test_typed_keys_are_indexed_by_their_outer_shape() -> None:
    keys = tinyjax.random.split(tinyjax.random.key(0), 6).reshape(2, 3)
    data = numpy.asarray(tinyjax.random.key_data(keys))
    for index in (0, (1, 2), (slice(None), rows), (slice(None), None, 1)):
        got = tinyjax.random.key_data(keys[index])
        numpy.testing.assert_array_equal(numpy.asarray(got), data[index])
    swapped = tinyjax.random.key_data(keys.at[0].set(keys[1]))
    numpy.testing.assert_array_equal(numpy.asarray(swapped)[0], data[1])


def test_an_index_taken_under_grad_may_depend_on_values() -> None:
    def f(v: Any) -> Any:
        return v[v > 0].sum() + v[int(np.argmax(v))] ** 2

    v = np.array([1.0, -2.0, 3.0])
    assert np.array_equal(tinyjax.grad(f)(v), np.array([1.0, 0.0, 7.0]))


MULTIPLIED: list[Any] = [
    lambda v, i: v.at[i].multiply(v[1]),
    lambda v, i: v.at[i].divide(v[1]),
    lambda v, i: v.reshape(5, 1).at[i, 0].multiply(v[1]),
    lambda v, i: tinyjax.vmap(lambda k: v.at[k].multiply(v[1]))(np.stack([i, i + 1])),
    lambda v, i: tinyjax.lax.fori_loop(0, 3, lambda k, c: c.at[k + i].multiply(c[k]), v),
]


@pytest.mark.parametrize("f", MULTIPLIED)
def test_a_product_at_one_traced_place_has_a_derivative(f: Any) -> None:
    v = np.arange(1.0, 6.0)
    test_util.check_grads(tinyjax.jit(lambda v: f(v, np.array(2))), (v,), order=2)


def test_writes_at_one_traced_place_are_known_not_to_repeat() -> None:
    for name in ("set", "add", "multiply"):
        written = tinyjax.make_jaxpr(lambda v, i, n=name: getattr(v.at[i], n)(v[0]))(np.ones(5), 2)
        assert "unique_indices=True" in str(written)
