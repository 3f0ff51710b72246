"""Which values a linear map keeps: the cheapest cut, in bytes, through what may be recomputed."""

from __future__ import annotations

import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np

from tinyjax.core import build as b
from tinyjax.core.avals import aval
from tinyjax.core.body import fresh_var
from tinyjax.core.ops import Op
from tinyjax.core.uop import toposort
from tinyjax.interpreters.residuals import LITERALS, RECOMPUTABLE, choose_residuals

F4 = np.dtype("f4")


def var(*shape):
    return fresh_var(aval(shape, F4))


def test_an_input_is_kept_rather_than_what_follows_from_it_elementwise():
    x = var(100)
    assert choose_residuals([b.cos(b.sin(x))], {x}) == [x]


def test_a_contraction_is_never_recomputed():
    x, w = var(4, 100), var(100, 4)
    h = b.dot(x, w, ((1,), (0,)))
    assert choose_residuals([b.cos(h), b.sin(h)], {x, w}) == [h]


def test_the_narrow_place_is_cut():
    x = b.reduce("add", var(100, 8), (1,))
    wide = b.expand(x, (100, 50), (0,))
    assert choose_residuals([b.sin(wide), b.cos(wide)], ()) == [x]


def test_of_equal_cuts_the_one_nearest_to_the_linear_part_is_taken():
    x = b.reduce("add", var(100, 8), (1,))
    y = b.exp(x)
    assert choose_residuals([y], ()) == [y]


def test_outputs_of_the_body_are_free():
    x = b.reduce("add", var(100, 8), (1,))
    y = b.exp(x)
    z = b.sin(y)
    assert choose_residuals([b.cos(y), z], {y}) == [y]


def test_literals_are_not_kept():
    x = var(3)
    y = b.mul(x, b.scalar(2.0, F4))
    assert choose_residuals([y, b.scalar(1.0, F4)], {x}) == [x]


def test_a_barrier_is_not_seen_through():
    x = var(3)
    from tinyjax.core.uop import UOp

    y = UOp(Op.OPTIMIZATION_BARRIER, (b.sin(x),))
    assert choose_residuals([b.cos(y), b.sin(y)], {x}) == [y]


@st.composite
def graphs(draw):
    """A small graph of nodes of unequal size, its frontier, and what is free."""
    nodes = [var(draw(st.integers(1, 9))) for _ in range(2)]
    nodes = [b.reduce("add", b.expand(n, (*n.shape, 2), (0,)), (1,)) for n in nodes]
    for _ in range(draw(st.integers(1, 7))):
        x = draw(st.sampled_from(nodes))
        kind = draw(st.sampled_from(["unary", "binary", "slice", "widen", "sum"]))
        if kind == "unary":
            nodes.append(b.sin(x))
        elif kind == "binary":
            nodes.append(b.mul(b.sum_(draw(st.sampled_from(nodes)), (0,)), x))
        elif kind == "slice":
            nodes.append(b.slice_axis(x, 0, 0, max(1, x.shape[0] - 1)))
        elif kind == "widen":
            nodes.append(b.concat([x, x], 0))
        else:
            nodes.append(b.reshape(b.sum_(x, (0,)), (1,)))
    frontier = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3, unique=True))
    free = set(draw(st.lists(st.sampled_from(nodes), max_size=2)))
    return frontier, free


def reaches(node, kept):
    """Whether a node can be recomputed from kept values."""
    if node in kept or node.op in LITERALS:
        return True
    return node.op in RECOMPUTABLE and all(reaches(s, kept) for s in node.src)


def cost(kept, free):
    return sum(n.aval.nbytes for n in kept if n not in free)


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=150)
def test_the_cut_separates_and_no_smaller_one_does(graph):
    frontier, free = graph
    chosen = choose_residuals(frontier, free)
    assert all(reaches(n, set(chosen)) for n in frontier)
    candidates = [n for n in toposort(frontier) if n.op is not Op.VAR and n.op not in LITERALS]
    best = math.inf
    for size in range(min(len(candidates), 4) + 1):
        for kept in itertools.combinations(candidates, size):
            if all(reaches(n, set(kept) | free) for n in frontier):
                best = min(best, cost(kept, free))
    assert cost(chosen, free) <= best
