"""Random programs: plan and kernels give exactly what the evaluator gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.bodies import run
from tests.lowering.random_programs import Program
from tinyjax.core.uop import tuple_of
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering.program import lower


def agree(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(60))
def test_interpreted_plans(seed):
    program = Program(seed, 40)
    body = tuple_of(program.outputs)
    agree(lower(body, 3).interpret(program.args), evaluate_body(body, program.args))


@pytest.mark.parametrize("seed", range(1000, 1025))
def test_compiled_programs(seed):
    program = Program(seed, 40)
    body = tuple_of(program.outputs)
    agree(run(lower(body, 3), program.args), evaluate_body(body, program.args))


@pytest.mark.parametrize("seed", range(2000, 2020))
def test_donated_arguments_may_be_overwritten(seed):
    program = Program(seed, 30)
    body = tuple_of(program.outputs)
    lowered = lower(body, 3, frozenset({0, 1, 2}))
    agree(lowered.interpret(program.args), evaluate_body(body, program.args))
