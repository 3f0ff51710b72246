"""checkpoint: keep a function's inputs (and what a policy names) and recompute the rest in reverse.

Policies are predicates on nodes: they say which values may be saved.
Reference: Griewank, "Achieving logarithmic growth of temporal and spatial complexity" (1992).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.calls import apply_call
from tinyjax.engine.derivatives import lift_leaves
from tinyjax.engine.tracing import argument_paths, name_of, stage_cached
from tinyjax.engine.values import finish

Policy = Callable[[UOp], bool]


def everything_saveable(node: UOp) -> bool:
    """Save all (no recomputation)."""
    return True


def nothing_saveable(node: UOp) -> bool:
    """Save the inputs only."""
    return False


def dots_saveable(node: UOp) -> bool:
    """Save results of contractions."""
    return node.op is Op.DOT


def dots_with_no_batch_dims_saveable(node: UOp) -> bool:
    """Save results of contractions without batch axes (weights times activations)."""
    return node.op is Op.DOT and not node.arg.batch[0]


@functools.lru_cache(maxsize=256)
def save_only_these_names(*names: str) -> Policy:
    """Save values that `checkpoint_name` gave one of these names."""

    def policy(node: UOp) -> bool:
        return node.op is Op.NAME and node.arg in names

    return policy


@functools.lru_cache(maxsize=256)
def save_any_names_but_these(*names: str) -> Policy:
    """Save named values except these."""

    def policy(node: UOp) -> bool:
        return node.op is Op.NAME and node.arg not in names

    return policy


@functools.lru_cache(maxsize=256)
def save_anything_except_these_names(*names: str) -> Policy:
    """Save all but values with these names."""

    def policy(node: UOp) -> bool:
        return not (node.op is Op.NAME and node.arg in names)

    return policy


@functools.lru_cache(maxsize=256)
def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """Save what either policy saves."""

    def policy(node: UOp) -> bool:
        return first(node) or second(node)

    return policy


class checkpoint_policies:
    """The named policies."""

    everything_saveable = staticmethod(everything_saveable)
    nothing_saveable = staticmethod(nothing_saveable)
    dots_saveable = staticmethod(dots_saveable)
    checkpoint_dots = staticmethod(dots_saveable)
    dots_with_no_batch_dims_saveable = staticmethod(dots_with_no_batch_dims_saveable)
    checkpoint_dots_with_no_batch_dims = staticmethod(dots_with_no_batch_dims_saveable)
    save_only_these_names = staticmethod(save_only_these_names)
    save_any_names_but_these = staticmethod(save_any_names_but_these)
    save_anything_except_these_names = staticmethod(save_anything_except_these_names)
    save_from_both_policies = staticmethod(save_from_both_policies)


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    concrete: bool = False,
) -> Any:
    """`fun`, whose intermediate values are recomputed in the backward pass instead of kept.

    Traced abstractly, once per signature.
    Cost: one more forward computation in reverse mode; memory for inputs and what `policy` saves.
    """
    if fun is None:
        return functools.partial(
            checkpoint, prevent_cse=prevent_cse, policy=policy, static_argnums=static_argnums
        )
    if not callable(fun):
        raise TypeError(f"Expected a callable value, got {fun!r}")
    static = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    info = CallInfo("checkpoint", name_of(fun), policy=policy, prevent_cse=prevent_cse)

    @functools.wraps(fun, updated=())
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        fixed = {i % len(args): args[i] for i in static}
        dynamic = tuple(a for i, a in enumerate(args) if i not in fixed)

        def paths() -> list[str]:
            return argument_paths(fun, dynamic, kwargs)

        nodes, tree = lift_leaves((dynamic, kwargs), paths, "arguments of a checkpointed function")

        def run(*rest: Any, **named: Any) -> Any:
            it = iter(rest)
            return fun(*(fixed[i] if i in fixed else next(it) for i in range(len(args))), **named)

        avals = tuple(n.aval for n in nodes)
        statics = tuple(sorted(fixed.items())) if fixed else None
        traced = stage_cached(
            run if fixed else fun, tree, avals, "checkpoint", paths, statics, fun, fun
        )
        return tree_unflatten(traced.out_tree, apply_call(traced, nodes, info))

    return checkpointed


remat = checkpoint


def checkpoint_name(x: Any, name: str) -> Any:
    """`x`, known to checkpoint policies as `name`. Works on trees."""
    leaves, tree = tree_flatten(x)
    return tree_unflatten(
        tree,
        [
            finish(UOp(Op.NAME, (leaf.node,), name)) if type(leaf) is Array else leaf
            for leaf in leaves
        ],
    )
