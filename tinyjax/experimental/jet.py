"""Taylor mode by JAX's name: `tinyjax.experimental.jet.jet`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.describe import describe_value
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_structure, tree_unflatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import bind, derivative, leave, lift_leaves
from tinyjax.engine.tracing import argument_paths, output_nodes
from tinyjax.engine.values import finish_all, lift
from tinyjax.interpreters import jet as interpreter
from tinyjax.interpreters.linearize import tangent_aval
from tinyjax.interpreters.trace import open_trace

ALONE = "  Give each array of a tree as an argument of its own, and a list as jnp.asarray(it)."
"""What to do with what is no array."""


@api_boundary
def jet(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    factorial_scaled: bool = True,
    **_: Any,
) -> tuple[Any, Any]:
    """`(fun(*primals), series of the result)`: derivatives of `fun` along curves, to high order.

    `series[i]` lists the derivatives of argument i's curve at 0, from the first on; so does the
    series of each result, a list in place of it. With `factorial_scaled=False` both are Taylor
    coefficients, derivatives divided by factorials. Shapes and dtypes of terms are those of the
    primals. Cost: order**2 products per nonlinear operation; loops run once.
    Raises: ValueError if the arguments' series differ in length, or a primal or term is no array.
    Example: `jet(jnp.sin, (0.0,), ((1.0, 0.0, 0.0),))` is `(0.0, [1.0, 0.0, -1.0])`.
    """
    if len(primals) != len(series):
        raise ValueError(
            f"jet needs a series for each primal, got {len(primals)} primals and {len(series)} series.\n"
            "  Give both as tuples of equal length: jet(f, (x,), ((x1, x2),))."
        )
    if len({len(terms) for terms in series}) != 1:
        raise ValueError(
            "jet terms have inconsistent lengths for different arguments: "
            f"{[len(terms) for terms in series]}.\n  Fill the shorter with zeros, jnp.zeros_like(x)."
        )
    order = len(series[0])
    for i, (primal, terms) in enumerate(zip(primals, series, strict=True)):
        if tree_structure(primal).num_nodes != 1 or tree_structure(primal).num_leaves != 1:
            raise ValueError(
                f"primal value at position {i} is not an array, got {describe_value(primal)}.\n{ALONE}"
            )
        for j, term in enumerate(terms):
            if tree_structure(term).num_nodes != 1 or tree_structure(term).num_leaves != 1:
                raise ValueError(
                    f"term {j} for argument {i} is not an array, got {describe_value(term)}.\n{ALONE}"
                )
    paths = argument_paths(fun, primals, {})
    nodes, tree = lift_leaves(tuple(primals), lambda: paths, "primals of jet")
    weights = [1 / math.factorial(k) if factorial_scaled else 1.0 for k in range(1, order + 1)]
    given = [
        [scaled(term_of(t, n, path), w) for t, w in zip(terms, weights, strict=True)]
        for n, terms, path in zip(nodes, series, paths, strict=True)
    ]
    with open_trace("jet", fun, staging=False) as trace:
        variables = bind(trace, nodes, paths)
        out = fun(*tree_unflatten(tree, [Array(v) for v in variables]))
        outs, out_tree = output_nodes(out, fun, "jet")
        seeds = {
            v: terms if dtypes.is_inexact(v.dtype) else [None] * order
            for v, terms in zip(variables, given, strict=True)
        }
        outs, rows = interpreter.jet([*outs, *trace.chain.tokens], seeds, order)  # type: ignore[arg-type]
        if trace.chain.tokens:
            trace.chain.last = outs.pop()
            rows.pop()
        terms_out = [
            scaled(derivative(t, tangent_aval(o.aval)), 1 / w)
            for o, row in zip(outs, rows, strict=True)
            for t, w in zip(row, weights, strict=True)
        ]
        mapping = dict(zip(variables, nodes, strict=True))
        final = finish_all(leave(trace, [*outs, *terms_out], mapping))
    count = len(outs)
    lists = [final[count + i * order : count + (i + 1) * order] for i in range(count)]
    return tree_unflatten(out_tree, final[:count]), tree_unflatten(out_tree, lists)


def term_of(term: Any, primal: UOp, path: str) -> UOp:
    """A term of an argument's series in the type of its tangent."""
    node = lift(term, path)
    if node.shape != primal.shape:
        raise ValueError(
            f"jet: a term for {path} has shape {node.shape}, the argument has {primal.shape}.\n"
            f"  Give a term of that shape, as jnp.zeros_like({path}) is."
        )
    return b.cast_like(node, tangent_aval(primal.aval))


def scaled(node: UOp, factor: float) -> UOp:
    """The node times a number."""
    return (
        node
        if factor == 1.0 or not dtypes.is_inexact(node.dtype)
        else b.mul(node, b.like(node, factor))
    )
