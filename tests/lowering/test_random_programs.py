"""Random programs: plan and kernels give exactly what the evaluator gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.bodies import arg, run
from tests.lowering.random_programs import Program
from tinyjax.core.infos import ScanInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, tuple_of
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


def loop_of(program: Program, length: int, reverse: bool) -> tuple[UOp, list[np.ndarray]]:
    """A SCAN whose body is the program: a constant, one or two carries, the third parameter an x."""
    const, carry, x = program.pool[:3]
    fits = [n for n in program.pool if n.aval is carry.aval and n is not carry]
    carry_out = fits[-1] if fits else carry
    body = tuple_of([carry_out, *program.outputs])
    xs = np.stack([np.roll(program.args[2], i) for i in range(length)])
    params = [arg(i, a.shape, a.dtype) for i, a in enumerate((*program.args[:2], xs))]
    node = UOp(Op.SCAN, (body, *params), ScanInfo(1, 1, length, reverse))
    assert const.arg[0] == 0 and x.arg[0] == 2
    return tuple_of([get(node, i) for i in range(len(node.aval.elts))]), [*program.args[:2], xs]


@pytest.mark.parametrize("seed", range(3000, 3040))
def test_loops(seed):
    body, args = loop_of(Program(seed, 20), seed % 4 + 1, seed % 2 == 0)
    lowered = lower(body, 3)
    wanted = evaluate_body(body, args)
    agree(lowered.interpret(args), wanted)
    if seed % 4 == 0:
        agree(run(lowered, args), wanted)
