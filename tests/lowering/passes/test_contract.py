"""contract: the native functions of a contraction, by their names; a machine with AVX-512."""

from __future__ import annotations

import tinyjax as jax
from tests.golden import AVX512, assert_text, f32
from tinyjax import numpy as jnp
from tinyjax.lowering.passes import codes_of


def parts(f, *args):
    """What each function of the one kernel is called."""
    (kernel,) = jax.jit(f).lower(*args).kernels
    actions = [action for code in codes_of(kernel, AVX512) for action in code.actions]
    return ", ".join(action.partition("(")[0] for action in actions)


def test_a_small_product_reads_its_operands_where_they_are():
    assert_text(
        parts(jnp.matmul, f32[64, 64], f32[64, 64]),
        """
        dot""",
    )


def test_a_large_product_packs_what_it_reads_often():
    assert_text(
        parts(jnp.matmul, f32[1024, 1024], f32[1024, 1024]),
        """
        dot_pack_b, dot""",
    )


def test_an_operand_is_computed_while_it_is_packed():
    assert_text(
        parts(lambda a, b: (2 * a).T @ b, f32[1024, 1024], f32[1024, 1024]),
        """
        dot_pack_a, dot_pack_b, dot""",
    )


def test_a_long_contraction_of_few_results_is_cut_and_added_up():
    assert_text(
        parts(jnp.matmul, f32[16, 100_000], f32[100_000, 16]),
        """
        dot, dot_sum""",
    )
