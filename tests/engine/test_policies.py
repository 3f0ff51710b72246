"""Checkpoint policies by JAX's convention, what they keep, and how it is shown."""

from __future__ import annotations

from typing import Any

import jax as oracle
import jax.ad_checkpoint as oracle_ad_checkpoint
import numpy as np
import pytest

import tinyjax
from tests.oracle import Case, check, numbers, raises
from tinyjax import ad_checkpoint, lax
from tinyjax import checkpoint_policies as P
from tinyjax import numpy as jnp

assert oracle_ad_checkpoint  # jax loads it on request only
W, X = numbers(3, 4), numbers(2, 3)


def block(w: Any, x: Any) -> Any:
    hidden = ad_checkpoint.checkpoint_name(jnp.tanh(jnp.sin(x @ w)), "hidden")
    return jnp.sum(jnp.exp(hidden) * 2)


def kept(policy: Any) -> list[str]:
    """What is kept beside the arguments, without the place, which is a line of `block`."""
    found = tinyjax.ad_checkpoint.saved_residuals(tinyjax.checkpoint(block, policy=policy), W, X)
    assert all(s.startswith("from the argument") or s.endswith(" in block") for _, s in found)
    words = [source.split(" from ")[0] for _, source in found if "argument" not in source]
    return [w.removeprefix("output of ") for w in words]


KEPT: dict[str, tuple[Any, list[str]]] = {
    "nothing": (P.nothing_saveable, []),
    "dots": (P.dots_saveable, ["dot_general"]),
    "checkpoint_dots": (P.checkpoint_dots, ["dot_general"]),
    "dots without batch": (P.dots_with_no_batch_dims_saveable, ["dot_general"]),
    "offloaded dots": (P.offload_dot_with_no_batch_dims("device", "host"), ["dot_general"]),
    "names": (P.save_only_these_names("hidden"), ["named 'hidden'"]),
    "other names": (P.save_only_these_names("other"), []),
    "any names but": (P.save_any_names_but_these("other"), ["named 'hidden'"]),
    "any names but it": (P.save_any_names_but_these("hidden"), []),
    "both": (
        P.save_from_both_policies(P.dots_saveable, P.save_only_these_names("hidden")),
        ["dot_general", "named 'hidden'"],
    ),
    "saved and offloaded": (
        P.save_and_offload_only_these_names(
            names_which_can_be_saved=["other"],
            names_which_can_be_offloaded=["hidden"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        ["named 'hidden'"],
    ),
    "by primitive": (lambda prim, *_, **params: prim is lax.sin_p, ["sin"]),
    "by shape": (lambda prim, *avals, **_: prim.name == "sin" and avals[0].shape == (2, 4), ["sin"]),
    "recompute": (lambda *_, **__: ad_checkpoint.Recompute, []),
    "offload": (
        lambda prim, *_, **__: ad_checkpoint.Offloadable("a", "b") if prim.name == "exp" else False,
        ["exp"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_a_policy_keeps_what_it_says(name: str):
    policy, want = KEPT[name]
    assert kept(policy) == want
    f = tinyjax.checkpoint(block, policy=policy)
    plain = tinyjax.grad(block, (0, 1))(W, X)
    for got, of in zip(tinyjax.jit(tinyjax.grad(f, (0, 1)))(W, X), plain, strict=True):
        np.testing.assert_allclose(got, of, rtol=1e-5)


def test_a_batched_product_is_no_dot_without_batch_axes():
    f = lambda x: jnp.sin(jnp.einsum("bij,bjk->bik", x, x)).sum()
    x = numbers(2, 3, 3)
    saved = lambda policy: [
        source
        for _, source in ad_checkpoint.saved_residuals(tinyjax.checkpoint(f, policy=policy), x)
        if "dot" in source
    ]
    assert len(saved(P.dots_saveable)) == 1 and not saved(P.dots_with_no_batch_dims_saveable)


def test_equal_policies_share_what_is_derived():
    assert P.save_only_these_names("a", "b") is P.save_only_these_names("a", "b")


def test_saved_residuals_tell_where_values_come_from():
    scale = jnp.arange(3.0)

    def f(x: Any) -> Any:
        return jnp.sum(tinyjax.jit(jnp.sin)(x["a"] * scale) ** 2 * x["b"])

    found = ad_checkpoint.saved_residuals(f, {"a": jnp.ones(3), "b": jnp.ones(3)})
    words = [s.split(" from test")[0] for _, s in found]
    assert "from a constant" in words and "from the argument x['b']" in words
    assert any(w.startswith("output of jitted function 'sin'") for w in words)
    assert all(of.dtype == np.float32 for of, _ in found)


def test_saved_residuals_are_printed_one_a_line(capsys):
    ad_checkpoint.print_saved_residuals(lambda x: jnp.sin(x), X)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("f32[2,3] ")


def flagged(x: Any, mode: str, twice: bool = False) -> Any:
    y = jnp.sin(x) if mode == "sin" else x
    return (y * 2 if twice else y).sum()


@pytest.mark.parametrize("options", [{"static_argnums": (1, 2)}, {"static_argnames": "mode"}])
@pytest.mark.parametrize("mode", ["sin", "none"])
def test_static_arguments_of_checkpoint(mode: str, options: Any):
    f = tinyjax.checkpoint(flagged, **options)
    want = tinyjax.grad(flagged)(X, mode)
    np.testing.assert_allclose(tinyjax.grad(lambda x: f(x, mode))(X), want, rtol=1e-6)
    np.testing.assert_allclose(tinyjax.jit(tinyjax.grad(lambda x: f(x, mode)))(X), want, rtol=1e-6)


def test_static_arguments_by_keyword():
    f = tinyjax.checkpoint(flagged, static_argnames=("mode", "twice"))
    for twice in (False, True):
        want = tinyjax.grad(lambda x, t=twice: flagged(x, "sin", t))(X)
        got = tinyjax.grad(lambda x, t=twice: f(x, mode="sin", twice=t))(X)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_static_arguments_that_have_no_hash_are_traced_each_time():
    runs = []

    def scaled(x: Any, factors: list[float]) -> Any:
        runs.append(factors)
        return jnp.sin(x * factors[0]).sum()

    f = tinyjax.checkpoint(scaled, static_argnums=1)
    for factors in ([2.0], [2.0], [3.0]):
        want = tinyjax.grad(scaled)(X, factors)
        runs.clear()
        np.testing.assert_allclose(tinyjax.grad(f)(X, factors), want, rtol=1e-6)
        assert runs == [factors]


def test_checkpoint_is_a_decorator():
    decorated: Case = lambda J: J.checkpoint(lambda x: x * 2)(X)
    check(decorated)


def test_names_that_are_both_saved_and_offloaded_are_refused():
    case: Case = lambda J: J.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"],
        names_which_can_be_offloaded=["a"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    raises(case)


def test_policies_see_into_jitted_functions():
    inner = tinyjax.jit(lambda w, x: ad_checkpoint.checkpoint_name(jnp.sin(x @ w), "inner"))
    f = lambda w, x: jnp.sum(jnp.exp(tinyjax.jit(inner)(w, x)))
    cases = ((P.dots_saveable, "dot_general"), (P.save_only_these_names("inner"), "'inner'"))
    for policy, want in cases:
        wrapped = tinyjax.checkpoint(f, policy=policy)
        found = [s for _, s in ad_checkpoint.saved_residuals(wrapped, W, X) if "argument" not in s]
        assert len(found) == 1 and want in found[0]
        for got, of in zip(
            tinyjax.grad(wrapped, (0, 1))(W, X), tinyjax.grad(f, (0, 1))(W, X), strict=True
        ):
            np.testing.assert_allclose(got, of, rtol=1e-5)


def looped(J: Any) -> Any:
    """A loop with a contraction and a named value per step, read from behind."""
    name = J.ad_checkpoint.checkpoint_name

    def f(w: Any, x: Any) -> Any:
        def step(c: Any, _: None) -> Any:
            c = J.numpy.sin(name(J.jit(J.numpy.matmul)(c, w), "hidden"))
            return c, c

        c, ys = J.lax.scan(step, x, None, length=5)
        return J.numpy.sum(c * ys[0])

    return f


def twice(J: Any) -> Any:
    """Two loops, one after the other, and values that only one of two saved ones needs."""

    def f(w: Any, x: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            return J.numpy.tanh(c @ w) * r, J.numpy.sin(c)

        c, ys = J.lax.scan(step, x, J.numpy.ones(3))
        return J.numpy.sum(J.lax.scan(step, c, ys.sum((1, 2)), reverse=True)[0] @ w)

    return f


def nested(J: Any) -> Any:
    """A loop in a loop."""
    name = J.ad_checkpoint.checkpoint_name

    def f(w: Any, x: Any) -> Any:
        def inner(c: Any, _: None) -> Any:
            return J.numpy.sin(name(c @ w, "hidden")), None

        def outer(c: Any, _: None) -> Any:
            return J.lax.scan(inner, J.numpy.cos(c), None, length=3)[0], None

        return J.numpy.sum(J.lax.scan(outer, x, None, length=5)[0] ** 2)

    return f


def branching(J: Any) -> Any:
    """Branches that keep different things, one of them none."""
    name = J.ad_checkpoint.checkpoint_name

    def f(w: Any, x: Any) -> Any:
        branches = (
            lambda w, x: J.numpy.sin(name(x @ w, "hidden")).sum(),
            lambda w, x: J.numpy.tanh(J.numpy.exp(w @ J.numpy.sin(w)) @ w).sum(),
            lambda w, x: x.sum(),
        )
        return J.lax.switch(J.numpy.int32(x[0, 0] > 0), branches, w, J.numpy.sin(x))

    return f


def branching_in_a_loop(J: Any) -> Any:
    """Branches in a loop, a loop in one of them."""
    name = J.ad_checkpoint.checkpoint_name

    def f(w: Any, x: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            def loop(c: Any) -> Any:
                return J.lax.scan(lambda c, _: (J.numpy.sin(c @ w), None), c, None, length=2)[0]

            other = lambda c: J.numpy.cos(name(J.numpy.sin(c), "hidden") * 2)
            return J.lax.cond(i % 2 == 0, loop, other, c), None

        return J.numpy.sum(J.lax.scan(step, x, J.numpy.arange(4))[0] ** 2)

    return f


SEEN: dict[str, Any] = {
    "nothing": lambda P: P.nothing_saveable,
    "dots": lambda P: P.dots_saveable,
    "names": lambda P: P.save_only_these_names("hidden"),
    "other names": lambda P: P.save_only_these_names("other"),
    "both": lambda P: P.save_from_both_policies(
        P.dots_saveable, P.save_only_these_names("hidden")
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", [looped, twice, nested, branching, branching_in_a_loop])
@pytest.mark.parametrize("name", SEEN)
def test_policies_see_into_loops_and_branches_as_jaxs_do(name: str, program: Any):
    from jax._src.ad_checkpoint import saved_residuals  # not public there

    w, x = numbers(4, 4), numbers(2, 4)
    pairs = [(oracle, saved_residuals), (tinyjax, ad_checkpoint.saved_residuals)]
    found, derivatives = [], []
    for J, residuals in pairs:
        f = J.checkpoint(program(J), policy=SEEN[name](J.checkpoint_policies))
        found.append(sorted(of.shape for of, _ in residuals(f, w, x)))
        g = J.grad(f, (0, 1))
        derivatives.append([*g(w, x), *J.jit(g)(w, x), *J.jvp(g, (w, x), (w, x))[1]])
    assert found[0] == found[1]
    for want, got in zip(*derivatives, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_a_value_that_only_a_saved_one_needs_is_not_saved_too():
    everything = tinyjax.checkpoint(lambda x: jnp.sin(jnp.exp(x)), policy=P.everything_saveable)
    assert len(ad_checkpoint.saved_residuals(everything, X)) == 2  # exp(x) and cos(exp(x))
    f = tinyjax.checkpoint(block, policy=P.everything_saveable)
    words = [source for _, source in ad_checkpoint.saved_residuals(f, W, X)]
    assert not any(s.startswith("output of dot_general") for s in words)


def test_what_a_scan_saves_is_not_computed_again():
    def f(w: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(c @ w), None), x, None, length=8)[0])

    w, x = numbers(16, 16), numbers(16, 16)
    flops = [
        tinyjax.jit(tinyjax.value_and_grad(g)).lower(w, x).cost["flops"]
        for g in (
            f,
            tinyjax.checkpoint(f, policy=P.dots_saveable),
            tinyjax.checkpoint(f, policy=P.nothing_saveable),
        )
    ]
    product = 2 * 16**3 * 8
    assert flops[1] - flops[0] < product / 4 < product <= flops[2] - flops[1]


@pytest.mark.parametrize("program", [nested, branching_in_a_loop])
def test_what_is_saved_inside_is_not_computed_again(program: Any):
    w, x = numbers(16, 16), numbers(4, 16)
    f = program(tinyjax)
    flops = [
        tinyjax.jit(tinyjax.value_and_grad(g)).lower(w, x).cost["flops"]
        for g in (
            tinyjax.checkpoint(f, policy=P.dots_saveable),
            tinyjax.checkpoint(f, policy=P.nothing_saveable),
        )
    ]
    products = 15 if program is nested else 8  # of branches, the dearer one is counted
    assert flops[1] - flops[0] > 0.9 * products * 2 * 4 * 16 * 16
