"""bounded_while: a while loop with a static bound on its steps, differentiable in reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinyjax.core.config import config
from tinyjax.core.dims import as_int
from tinyjax.core.errors import require_callable
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.engine.array import Array
from tinyjax.engine.checkpoint import checkpoint
from tinyjax.engine.derivatives import lift_leaves
from tinyjax.lax.control_flow import cond, scan, stage_while, tree_paths


@api_boundary
def bounded_while(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int,
    base: int = 16,
) -> Any:
    """`while_loop(cond_fun, body_fun, init_val)` that stops after `max_steps` steps at the latest.

    Differentiable in both modes. If the bound ends the loop, the value is that after `max_steps`
    steps: `cond_fun` of the result says so. The loop is a tree of scans, `base` wide and
    log(max_steps) high; a node of it keeps its input alone and recomputes what is below. What lies
    behind the end of the loop is skipped.

    Raises: ValueError for a negative bound or a base below 2, TypeError for one that is no integer;
    TypeError as `while_loop`.
    Cost: condition and body are staged once more, to check them. A derivative evaluates `body_fun`
    once per level more, and keeps base * levels values, levels = log(max_steps) / log(base), where
    one scan of max_steps steps would keep max_steps.
    Source: Griewank, "Achieving logarithmic growth of temporal and spatial complexity" (1992); as a
    tree of scans with early exit: Kidger, "On Neural Differential Equations" (2021).
    """
    what = "lax.bounded_while: body_fun and cond_fun arguments should be callable"
    require_callable(body_fun, cond_fun, what=what)
    steps = as_int(max_steps, "max_steps of bounded_while")
    base = as_int(base, "base of bounded_while")
    if steps < 0:
        raise ValueError(f"max_steps of bounded_while must not be negative, got {max_steps}")
    if base < 2:
        raise ValueError(f"base of bounded_while must be at least 2, got {base}")
    if not config.jax_disable_jit:
        nodes, carry = lift_leaves(
            init_val, lambda: tree_paths("init_val", init_val), "init_val of bounded_while"
        )
        nodes = stage_while("bounded_while", cond_fun, body_fun, nodes, carry)[2]
        init_val = tree_unflatten(carry, [Array(n) for n in nodes])

    def guarded(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`run`, if the loop is not at its end."""
        return lambda value: cond(cond_fun(value), run, lambda v: v, value)

    def repeated(run: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
        return lambda value: scan(lambda v, _: (guarded(run)(v), None), value, None, times)[0]

    def tree(count: int) -> Callable[[Any], Any]:
        """Exactly `count` guarded steps: whole subtrees, then what is left."""
        if count <= base:
            return repeated(body_fun, count)
        size = base
        while size * base < count:
            size *= base
        below = checkpoint(tree(size))
        whole, rest = divmod(count, size)
        first = repeated(below, whole)
        if not rest:
            return first
        last = guarded(checkpoint(tree(rest)))
        return lambda value: last(first(value))

    return tree(steps)(init_val)
