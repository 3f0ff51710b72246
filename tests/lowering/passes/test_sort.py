"""sort: insertion for short rows, radix for long ones; rows are shared out."""

from __future__ import annotations

import tinyjax
from tests.golden import AVX512, assert_text, f32
from tinyjax import numpy as jnp
from tinyjax.lowering.passes import codes_of


def actions(f, *args):
    """The decisions of the kernels that sort."""
    kernels = tinyjax.jit(f).lower(*args).kernels
    made = [code for k in kernels if k.title() == "sort" for code in codes_of(k, AVX512)]
    return "\n".join(", ".join(code.actions) for code in made)


def test_a_short_row_is_sorted_by_insertion():
    assert_text(
        actions(jnp.sort, f32[20]),
        """
        insertion(20), tasks(1 of 1 rows)""",
    )


def test_a_long_row_is_sorted_by_its_digits():
    assert_text(
        actions(jnp.sort, f32[1000]),
        """
        radix(1000), tasks(1 of 1 rows)""",
    )


def test_rows_are_shared_out():
    assert_text(
        actions(lambda x: jnp.argsort(x, axis=0), f32[500, 300]),
        """
        radix(500), tasks(60 of 5 rows)""",
    )
