"""Jaxprs as data: equations as JAX spells them, evaluating, rebuilding and checking them."""

from __future__ import annotations

from typing import Any

import jax as oracle
import jax.extend.core as oracle_extend
import numpy as np
import pytest

import tinyjax
from tests.oracle import numbers
from tinyjax import api_util, lax
from tinyjax import numpy as jnp
from tinyjax.custom_batching import custom_vmap
from tinyjax.extend import core as extend
from tinyjax.extend import linear_util
from tinyjax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

X = numbers(4)
M = numbers(3, 4)

PROGRAMS: dict[str, tuple[Any, ...]] = {
    "elementwise": (lambda J, x: J.numpy.exp(x) * J.numpy.sin(x) - x / 3.0, X),
    "movement": (lambda J, x: J.numpy.pad(x.T[::-1, 1:].reshape(-1), (1, 2)), M),
    "broadcast": (lambda J, x: J.lax.broadcast_in_dim(x, (2, 4), (1,)), X),
    "reductions": (lambda J, x: (x.sum(0), x.max(1), x.prod(), J.numpy.argmin(x, 0)), M),
    "cumulative": (lambda J, x: J.lax.cumsum(x, reverse=True) + J.lax.cummax(x), X),
    "dot": (lambda J, x: x @ x.T, M),
    "select": (lambda J, x: J.lax.select(x > 0, x, -x), X),
    "convert": (lambda J, x: x.astype("int32").astype("bfloat16"), X),
    "bits": (lambda J, x: J.lax.bitcast_convert_type(x, "int32") >> 3, X),
    "sort": (lambda J, x: J.lax.sort((x, x * 2), num_keys=1), X),
    "gather": (lambda J, x: J.numpy.take(x, np.int32([2, 0, 9]), mode="fill"), X),
    "scatter": (lambda J, x: J.numpy.asarray(x).at[np.int32([1, 1])].add(2.0).at[0].max(5.0), X),
    "slices": (
        lambda J, x: J.lax.dynamic_update_slice(x, J.lax.dynamic_slice(x, (1,), (2,)), (0,)),
        X,
    ),
    "fft": (lambda J, x: J.lax.fft(x.astype("complex64"), J.lax.FftType.FFT, (4,)), X),
    "cond": (lambda J, x: J.lax.cond(x.sum() > 0, lambda v: v + 1, lambda v: v * 2, x), X),
    "scan": (lambda J, x: J.lax.scan(lambda c, v: (c * 0.5 + v, c), x[0], x), X),
    "while": (lambda J, x: J.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1.5, x), X),
    "jit": (lambda J, x: J.jit(lambda v: v * 2)(x) + J.jit(lambda v: v * 3)(x), X),
    "checkpoint": (lambda J, x: J.checkpoint(lambda v: J.numpy.sin(v) * 2)(x), X),
    "custom": (lambda J, x: J.nn.relu(x) + J.nn.silu(x), X),
    "cholesky": (
        lambda J, x: J.lax.linalg.cholesky(x @ x.T + 3 * np.eye(3, dtype="f4")),
        M,
    ),
    "literals out": (lambda J, x: (x, 2.0), X),
    "random": (lambda J, x: x + J.random.normal(J.random.key(3), (4,)), X),
}  # fmt: skip


def staged(name: str) -> tuple[ClosedJaxpr, Any]:
    fun, x = PROGRAMS[name]
    return tinyjax.make_jaxpr(lambda v: fun(tinyjax, v))(x), x


def leaves(x: Any) -> list[np.ndarray]:
    return [np.asarray(v).astype("complex128") for v in tinyjax.tree.leaves(x)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_evaluating_the_equations_gives_the_value(name: str):
    jaxpr, x = staged(name)
    expected = leaves(PROGRAMS[name][0](tinyjax, x))
    run = extend.jaxpr_as_fun(jaxpr)
    for out in (run(x), tinyjax.jit(run)(x)):
        for got, want in zip(leaves(out), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-2 if name == "convert" else 2e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_equations_make_the_same_graph_again(name: str):
    jaxpr, _ = staged(name)
    extend.check_jaxpr(jaxpr.jaxpr)
    parts = jaxpr.constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns
    again = ClosedJaxpr(Jaxpr(*parts), jaxpr.consts)
    assert again.body is jaxpr.body and again == jaxpr and str(again) == str(jaxpr)


# Parameters that only a compiler of JAX's kind reads, or Python objects of its tracing.
NOT_OURS = {
    "donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh",
    "compiler_options_kvs", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "num_consts", "update_jaxpr",
    "name",
}  # fmt: skip


def shown(closed: Any) -> dict[str, dict[str, Any]]:
    """Parameters by primitive, of all equations, those of inner jaxprs included."""
    found: dict[str, dict[str, Any]] = {}
    for eqn in closed.jaxpr.eqns if hasattr(closed, "jaxpr") else closed.eqns:
        found.setdefault(eqn.primitive.name, dict(eqn.params))
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(inner, "eqns"):
                    found |= {k: v for k, v in shown(inner).items() if k not in found}
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_primitives_and_parameters_are_spelled_as_in_jax(name: str):
    fun, x = PROGRAMS[name]
    ours = shown(staged(name)[0])
    theirs = shown(oracle.make_jaxpr(lambda v: fun(oracle, v))(x))
    common = ours.keys() & theirs.keys()
    assert common or not theirs, (ours.keys(), theirs.keys())
    for prim in common:
        if prim == "cholesky":
            continue
        wanted = theirs[prim].keys() - NOT_OURS
        assert wanted <= ours[prim].keys(), (prim, wanted, ours[prim].keys())


def test_plain_parameters_have_the_values_of_jax():
    fun = lambda J: (
        lambda x: J.lax.pad(
            J.lax.transpose(J.lax.slice(x, (0, 1), (3, 4), (1, 2)), (1, 0)),
            0.0,
            [(1, 0, 2), (0, 0, 0)],
        ).sum(0)
    )
    ours = [(e.primitive.name, e.params) for e in tinyjax.make_jaxpr(fun(tinyjax))(M).eqns]
    theirs = [(e.primitive.name, e.params) for e in oracle.make_jaxpr(fun(oracle))(M).jaxpr.eqns]
    assert ours == theirs


def test_captured_arrays_are_consts():
    w = jnp.arange(4.0)
    jaxpr = tinyjax.make_jaxpr(lambda x, unused: x * w + 1)(X, 2.0)
    assert len(jaxpr.invars) == 2 and len(jaxpr.constvars) == 1
    assert jaxpr.in_avals[1].weak_type and [a.shape for a in jaxpr.out_avals] == [(4,)]
    np.testing.assert_array_equal(jaxpr.consts[0], w)
    other = tinyjax.core.eval_jaxpr(jaxpr.jaxpr, [w * 2], X, 0.0)
    np.testing.assert_allclose(other[0], X * (w * 2) + 1, rtol=1e-6)


def test_sub_jaxprs_are_where_jax_has_them():
    scan = staged("scan")[0].eqns
    (loop,) = [e for e in scan if e.primitive is lax.scan_p]
    inner = loop.params["jaxpr"]
    assert isinstance(inner, ClosedJaxpr) and inner.consts == []
    assert loop.params["num_carry"] == 1 and loop.params["length"] == 4
    (remat,) = staged("checkpoint")[0].eqns
    assert isinstance(remat.params["jaxpr"], Jaxpr)
    (branch,) = [e for e in staged("cond")[0].eqns if e.primitive is lax.cond_p]
    assert [len(j.eqns) for j in branch.params["branches"]] == [1, 1]
    assert len(list(extend.subjaxprs(staged("cond")[0].jaxpr))) == 2
    (loop,) = staged("while")[0].eqns
    assert {"cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"} == loop.params.keys()


def test_calls_with_rules_are_equations_with_jax_names_and_can_be_bound_again():
    f = custom_vmap(lambda x: x * 2.0)
    f.def_vmap(lambda size, batched, x: (x * 3.0, True))
    (call,) = tinyjax.make_jaxpr(f)(1.0).eqns
    assert call.primitive.name == "custom_vmap_call"
    assert len(call.params["call"].eqns) == 1 and "symbolic_zeros" not in call.params
    bound = lambda x: call.primitive.bind(x, **call.params)[0]
    assert float(bound(1.0)) == 2.0 and list(tinyjax.vmap(bound)(jnp.ones(2))) == [3.0, 3.0]


def test_every_kind_of_call_is_known_before_the_first_is_made():
    from tinyjax.engine.primitives import CALL_KINDS, PRIMITIVES

    before = set(PRIMITIVES)
    f = custom_vmap(lambda x: x * 2.0)
    f.def_vmap(lambda size, batched, x: (x * 2.0, True))
    root = lambda x: lax.custom_root(lambda y: y - x, x, lambda g, y: y, lambda g, y: y)
    solve = lambda x: lax.custom_linear_solve(lambda y: y, x, lambda g, y: y)
    for fun in (f, root, solve, tinyjax.checkpoint(jnp.sin), tinyjax.nn.relu, tinyjax.jit(jnp.sin)):
        tinyjax.make_jaxpr(fun)(1.0).eqns  # noqa: B018
    assert set(PRIMITIVES) == before and len(set(CALL_KINDS)) == len(CALL_KINDS)


def test_variables_are_shared_and_literals_are_typed():
    jaxpr = tinyjax.make_jaxpr(lambda x: (x + 2.0) * x)(X)
    add, mul = jaxpr.eqns
    assert add.outvars[0] is mul.invars[0] and add.invars[0] is jaxpr.invars[0] is mul.invars[1]
    literal = add.invars[1]
    assert isinstance(literal, Literal) and float(literal.val) == 2.0
    assert literal.aval.dtype == np.float32 and isinstance(add.outvars[0], Var)
    assert literal.hash == Literal(np.float32(2.0)).hash != Literal(np.float32(3.0)).hash


def test_results_that_are_not_read_are_dropped():
    jaxpr = tinyjax.make_jaxpr(lambda x: lax.sort((x, x * 2))[0])(X)
    assert [type(v) for v in jaxpr.eqns[-1].outvars] == [Var, extend.DropVar]
    only_index = tinyjax.make_jaxpr(lambda x: jnp.argmax(x))(X)
    assert [e.primitive.name for e in only_index.eqns] == ["argmax"]


def test_interpreters_may_be_differentiated_and_batched():
    jaxpr = tinyjax.make_jaxpr(lambda x: jnp.sin(x) * x)(1.0)
    f = lambda x: extend.jaxpr_as_fun(jaxpr)(x)[0]
    np.testing.assert_allclose(
        tinyjax.vmap(tinyjax.grad(f))(X), np.cos(X) * X + np.sin(X), rtol=1e-5
    )


def test_every_primitive_of_elementwise_ops_exists_in_jax_or_is_known_to_be_ours():
    from tinyjax.engine.primitives import PRIMITIVES

    def in_jax(name: str) -> bool:
        attribute = name.replace("-", "_") + "_p"
        spaces = (oracle.lax, oracle_extend.primitives, oracle.lax.linalg)
        return any(hasattr(m, attribute) for m in spaces)

    ours = {"trunc", "log2", "floor_divide", "floor_modulo", "window", "remat_barrier"}
    ours |= {"random_wrap", "random_unwrap", "pcast", "function", "composite", "linear", "remat2"}
    ours |= {"reduce_scatter", "check", "pure_callback", "io_callback", "debug_callback"}
    ours |= {"dim_as_value", "custom_vmap_call", "custom_linear_solve"}  # JAX's, not public there
    ours |= {"custom_root"}  # there a function
    unknown = {n for n in PRIMITIVES if not in_jax(n)} - ours
    assert not unknown, unknown


def test_names_with_p_are_the_primitives():
    jaxpr = tinyjax.make_jaxpr(lambda x: x + 1)(X)
    assert jaxpr.eqns[0].primitive is lax.add_p is extend.primitives.add_p
    assert lax.scatter_add_p.name == "scatter-add"
    np.testing.assert_array_equal(lax.add_p.bind(X, X), X + X)
    with pytest.raises(AttributeError, match="no_such_p"):
        _ = lax.no_such_p


def test_call_primitives_apply_a_jaxpr():
    closed = tinyjax.make_jaxpr(lambda x: (jnp.sin(x), x + 1))(X)
    for primitive in (extend.primitives.call_p, extend.primitives.closed_call_p):
        wave, plus = primitive.bind(X, call_jaxpr=closed)
        np.testing.assert_allclose(wave, np.sin(X), rtol=1e-6)
        np.testing.assert_array_equal(plus, X + 1)
    slope = tinyjax.grad(lambda x: primitive.bind(x, call_jaxpr=closed)[0].sum())(X)
    np.testing.assert_allclose(slope, np.cos(X), rtol=1e-6)


def test_a_function_of_trees_becomes_one_of_leaves():
    def f(x: Any, scale: Any) -> Any:
        return {"twice": 2 * x["a"], "all": x["b"] * scale}

    leaves, tree = tinyjax.tree.flatten((({"a": X, "b": X + 1},), {"scale": 3.0}))
    info = api_util.debug_info("test", f, ({"a": X, "b": X},), {"scale": 3.0})
    assert info.arg_names == ("x['a']", "x['b']", "scale")
    still = api_util.debug_info("test", f, (X, 3.0), {}, static_argnames=("scale",))
    assert still.arg_names == ("x",)
    flat, out_tree = api_util.flatten_fun(linear_util.wrap_init(f, debug_info=info), tree)
    with pytest.raises(linear_util.StoreException, match="called 0 times"):
        out_tree()
    closed = tinyjax.make_jaxpr(flat.call_wrapped)(*leaves)
    results = tinyjax.tree.unflatten(out_tree(), extend.jaxpr_as_fun(closed)(*leaves))
    np.testing.assert_array_equal(results["all"], 3 * (X + 1))
    np.testing.assert_array_equal(results["twice"], 2 * X)
    scaled = linear_util.wrap_init(f, {"scale": 5.0})
    positional, _ = api_util.flatten_fun_nokwargs(scaled, tree.children()[0])
    np.testing.assert_array_equal(positional.call_wrapped(*leaves[:2])[0], 5 * (X + 1))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        api_util.safe_map(lambda a, b: a, [1], [1, 2])


def test_check_jaxpr_names_what_does_not_fit():
    jaxpr = tinyjax.make_jaxpr(lambda x: jnp.sin(x) + x)(X).jaxpr
    with pytest.raises(extend.JaxprTypeError, match="not defined"):
        extend.check_jaxpr(jaxpr.replace(eqns=jaxpr.eqns[::-1]))
    wrong = jaxpr.eqns[0].replace(primitive=lax.reduce_sum_p, params={"axes": (0,)})
    with pytest.raises(extend.JaxprTypeError, match="inconsistent type"):
        extend.check_jaxpr(jaxpr.replace(eqns=[wrong, jaxpr.eqns[1]]))
    twice = jaxpr.replace(eqns=[jaxpr.eqns[0], jaxpr.eqns[0], jaxpr.eqns[1]])
    with pytest.raises(extend.JaxprTypeError, match="already bound"):
        extend.check_jaxpr(twice)


def test_eval_jaxpr_counts_its_arguments():
    jaxpr = tinyjax.make_jaxpr(lambda x: x + 1)(X)
    with pytest.raises(TypeError, match="1 arguments and 0 consts was given 2 and 0"):
        tinyjax.core.eval_jaxpr(jaxpr.jaxpr, [], X, X)


def test_the_state_of_traces_can_be_compared():
    outside = extend.get_opaque_trace_state()
    inside = []
    tinyjax.jit(lambda x: inside.append(extend.get_opaque_trace_state()) or x)(1.0)
    assert outside == extend.get_opaque_trace_state() and outside != inside[0]


def test_return_shape_keeps_the_tree():
    jaxpr, shape = tinyjax.make_jaxpr(lambda x: {"a": x.sum()}, return_shape=True)(M)
    want = oracle.make_jaxpr(lambda x: {"a": x.sum()}, return_shape=True)(M)[1]
    assert shape["a"].shape == want["a"].shape and str(shape["a"].dtype) == str(want["a"].dtype)
    assert isinstance(jaxpr, ClosedJaxpr)


def test_a_new_primitive_is_refused_and_the_error_says_what_to_write_instead():
    with pytest.raises(TypeError, match=r"Primitive\('foo'\).*closed(.|\n)*custom_vmap"):
        extend.Primitive("foo")


def test_a_jaxpr_keeps_its_debug_info():
    info = extend.DebugInfo("jit", "f at here.py:1", ("x",), ("result",))
    jaxpr = tinyjax.make_jaxpr(jnp.sin)(1.0).jaxpr
    assert jaxpr.replace(debug_info=info).debug_info == info
