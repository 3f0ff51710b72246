"""Compiled programs, interpreted plans and the evaluator agree on random graphs.

1,000 graphs run every time, 100,000 with `-m slow`. A failure prints the case, reduced.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings

from tests.bounds import different, evaluate_with_bounds
from tests.differential import Tally, disagreement, run_compiled, run_interpreted
from tests.graphs import Graph, graph, graphs
from tinyjax.core import build as B
from tinyjax.core.avals import aval
from tinyjax.core.config import config
from tinyjax.core.ops import J, Op
from tinyjax.core.uop import UOp, param, substitute, toposort, tuple_of
from tinyjax.core.verify import StageError
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering import codegen
from tinyjax.lowering.inline import inline
from tinyjax.lowering.prepare import prepare
from tools.reduce_case import print_case, reduce_case

CHUNK = 50
SMALL = 5  # recipes of a graph in the runs that must be short


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        yield


def report(made: Graph, why: str, run) -> str:
    """The failing case, as small as it gets, as a test."""

    def fails(body, args):
        try:
            return bool(disagreement(Graph(body, args), run))
        except Exception:
            return False

    try:
        body, args = reduce_case(made.body, made.args, fails)
    except ValueError:  # it raises instead of giving wrong numbers
        body, args = made.body, made.args
    return f"seed {made.seed}: {why}\n{print_case(body, args, notes=why)}"


def compare(seeds, run, count) -> Tally:
    """Every graph of these seeds agrees."""
    tally = Tally()
    for seed in seeds:
        made = graph(seed, count)
        why = disagreement(made, run, tally)
        assert not why, report(made, why, run)
    return tally


@pytest.mark.parametrize("chunk", range(20))
def test_compiled_programs_equal_the_evaluator(chunk):
    tally = compare(range(chunk * CHUNK, (chunk + 1) * CHUNK), run_compiled, SMALL)
    assert tally.graphs == CHUNK
    assert tally.bounded > 0.8 * tally.elements  # else nearly anything would pass


@pytest.mark.parametrize("chunk", range(4))
def test_interpreted_plans_equal_the_evaluator(chunk):
    first = 100_000 + chunk * CHUNK
    tally = compare(range(first, first + CHUNK), run_interpreted, SMALL)
    assert tally.bounded > 0.8 * tally.elements


@given(graphs(SMALL))
@settings(max_examples=60)
def test_compiled_programs_equal_the_evaluator_on_what_hypothesis_finds(made):
    assert not disagreement(made)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100))
def test_many_compiled_programs_equal_the_evaluator(chunk):
    compare(range(10_000 + chunk * 1000, 11_000 + chunk * 1000), run_compiled, 8)


@pytest.mark.parametrize("level", [1, 2])
def test_stages_hold_between_passes(level):
    with verifying(level):
        compare(range(200_000, 200_040), run_compiled, SMALL)


class verifying:
    """The option set for a while."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __enter__(self) -> None:
        self.before = config.tinyjax_verify
        config.update("tinyjax_verify", self.level)

    def __exit__(self, *_) -> None:
        config.update("tinyjax_verify", self.before)


def test_a_graph_is_the_same_for_its_seed():
    for seed in range(30):
        a, b = graph(seed), graph(seed)
        assert a.body is b.body
        assert [x.tobytes() for x in a.args] == [x.tobytes() for x in b.args]


def test_the_generator_reaches_every_op_it_is_for():
    found = {n.op for seed in range(3000) for n in toposort(graph(seed, 6).body.src, bodies=True)}
    without = "VAR BUFFER HOST_CALL CALLBACK CHECK KERNEL CUSTOM_LIN STOP_GRADIENT PCAST KEY_WRAP"
    without += " KEY_UNWRAP ALL_REDUCE ALL_GATHER REDUCE_SCATTER PPERMUTE ALL_TO_ALL AXIS_INDEX"
    assert {op.name for op in Op if op.stages & J} - {op.name for op in found} == set(
        without.split()
    )


def test_a_wrong_result_is_noticed_beyond_its_bound_and_not_within():
    for seed in range(200):
        made = graph(seed, SMALL)
        for value, error in evaluate_with_bounds(made.body, made.args):
            assert not different(value, value, error).any()
            if value.size and value.dtype == np.float32 and error is None:
                wrong = np.where(np.isfinite(value), np.nextafter(value, np.float32(np.inf)), 0)
                assert different(wrong.astype(np.float32), value, error).any()


def test_flattening_and_its_normal_form_keep_the_results():
    """The passes over stage 1, each against the evaluator on what came before it."""
    for seed in range(300_000, 300_100):
        made = graph(seed, SMALL)
        for changed in (inline(made.body), prepare(inline(made.body))):
            found = evaluate_body(changed, made.args)
            wanted = evaluate_with_bounds(made.body, made.args)
            for got, (value, error) in zip(found, wanted, strict=True):
                assert not different(got, value, error).any(), made


def test_a_pass_that_changes_a_result_is_named(monkeypatch):
    """merge_ranges, replaced by one that loses the last iteration of a loop."""
    x = param(0, aval((3, 5), np.dtype(np.float32)))
    body = tuple_of([B.sum_(B.mul(x, x), [1])])

    def shortened(sink):
        ranges = [n for n in toposort([sink]) if n.op is Op.RANGE and n.arg[1] == "reduce"]
        smaller = {
            r: UOp(Op.RANGE, (B.scalar(4, np.dtype(np.int64)),), r.arg) for r in ranges
        }  # fmt: skip
        return substitute([sink], smaller)[0]

    monkeypatch.setattr(codegen, "merge_ranges", shortened)
    with verifying(2), pytest.raises(StageError, match="pass merge_ranges changes what"):
        run_compiled(body, [np.ones((3, 5), np.float32)])
