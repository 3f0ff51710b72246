"""checkpoint: keep a function's inputs (and what a policy names) and recompute the rest in reverse.

Policies (engine/policies.py) say which values may be kept; `saved_residuals` shows which are.
Reference: Griewank, "Achieving logarithmic growth of temporal and spatial complexity" (1992).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinyjax.core.avals import Aval
from tinyjax.core.config import MISSING
from tinyjax.core.errors import require_callable
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.calls import apply_call
from tinyjax.engine.custom_rules import positions
from tinyjax.engine.derivatives import lift_with_refs, vjp
from tinyjax.engine.policies import Policy, checkpoint_policies, node_policy
from tinyjax.engine.stages import make_jaxpr
from tinyjax.engine.tracing import argument_paths, name_of, stage, stage_cached, with_fixed
from tinyjax.engine.values import finish


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool | Sequence[bool] = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    concrete: Any = MISSING,
) -> Any:
    """`fun`, whose intermediate values are recomputed in the backward pass instead of kept.

    Traced abstractly, once per signature; static arguments are compared by value. Without `fun`, a
    decorator. Raises: NotImplementedError for `concrete`, which JAX removed: see `static_argnums`.
    Cost: one more forward computation in reverse mode; memory for inputs and what `policy` saves.
    """
    if concrete is not MISSING:
        raise NotImplementedError(
            "The `concrete` option to `jax.checkpoint` was removed in JAX v0.10.0. Mark the arguments "
            "that Python looks at static instead: jax.checkpoint(f, static_argnums=...)."
        )
    if fun is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    require_callable(fun)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    static = (*numbers, *(positions(fun, names) if names else ()))
    keep_apart = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)
    info = CallInfo(
        "checkpoint", name_of(fun), policy=node_policy(policy), prevent_cse=bool(keep_apart)
    )

    @functools.wraps(fun, updated=())
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        fixed = {i % len(args): args[i] for i in static if -len(args) <= i < len(args)}
        fixed_names = {k: kwargs[k] for k in names if k in kwargs}
        dynamic = tuple(a for i, a in enumerate(args) if i not in fixed)
        rest = {k: v for k, v in kwargs.items() if k not in fixed_names}

        def paths() -> list[str]:
            return argument_paths(fun, dynamic, rest)

        nodes, avals, refs, tree = lift_with_refs(
            (dynamic, rest), paths, "arguments of a checkpointed function"
        )
        statics = (tuple(sorted(fixed.items())), tuple(sorted(fixed_names.items())))
        partial = bool(fixed or fixed_names)
        run = with_fixed(fun, {**fixed, **fixed_names}, len(args)) if partial else fun
        if partial and not hashable(statics):
            traced = stage(run, tree, avals, "checkpoint", paths, fun)
        else:
            known = statics if partial else None
            traced = stage_cached(run, tree, avals, "checkpoint", paths, known, fun, fun)
        traced = traced.bound(refs, name_of(fun))
        return tree_unflatten(traced.out_tree, apply_call(traced, nodes, info))

    return checkpointed


def hashable(value: Any) -> bool:
    """Whether a cache can tell the value from others; what it cannot is traced each time."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


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


@api_boundary
def saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[Aval, str]]:
    """What reverse mode keeps of `f` at these arguments (arrays or shapes): (aval, where from) each.

    Nothing is computed. An equal value that is kept twice is listed once.
    """
    require_callable(f)
    from tinyjax.engine.jaxprs import Literal  # only for people who look

    leaves, tree = tree_flatten((args, kwargs))

    def residuals(*flat: Any) -> Any:
        def of_leaves(*moving: Any) -> Any:
            given, named = tree_unflatten(tree, moving)
            return f(*given, **named)

        return vjp(of_leaves, *flat)[1]

    closed = make_jaxpr(residuals)(*leaves)
    kept = dict.fromkeys(v for v in closed.outvars if not isinstance(v, Literal))
    found = [(v.aval, "from a literal") for v in closed.outvars if isinstance(v, Literal)]
    found += [(v.aval, "from a constant") for v in closed.constvars if v in kept]
    paths = argument_paths(f, args, kwargs)
    found += [
        (v.aval, f"from the argument {path}")
        for v, path in zip(closed.invars, paths, strict=True)
        if v in kept
    ]
    for eqn in closed.eqns:
        found += [(v.aval, origin(eqn, i)) for i, v in enumerate(eqn.outvars) if v in kept]
    return found


def origin(eqn: Any, index: int) -> str:
    """Where a result of an equation comes from; that of a checkpoint is looked up inside."""
    name = eqn.primitive.name
    if name == "remat2":
        inner = eqn.params["jaxpr"]
        result = inner.outvars[index]
        for made in inner.eqns:
            if result in made.outvars:
                return origin(made, made.outvars.index(result))
    what = f"output of {name}"
    if name == "name":
        what = f"named {eqn.params['name']!r}"
    elif name == "jit":
        what = f"output of jitted function {eqn.params['name']!r}"
    where = str(eqn.source_info)
    return f"{what} from {where}" if where else what


@api_boundary
def print_saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print `saved_residuals`, one value a line."""
    for of, source in saved_residuals(f, *args, **kwargs):
        print(f"{of.str_short()} {source}")


__all__ = [
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "print_saved_residuals",
    "remat",
    "saved_residuals",
]
