"""Checkpoint policies by JAX's convention, what they keep, and how it is shown."""

from __future__ import annotations

from typing import Any

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
    """What is kept beside the arguments, without the place."""
    found = tinyjax.ad_checkpoint.saved_residuals(tinyjax.checkpoint(block, policy=policy), W, X)
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
