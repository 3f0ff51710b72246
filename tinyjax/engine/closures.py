"""closure_convert and custom_gradient: rules for functions that close over traced values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinyjax.core import dtypes
from tinyjax.core.errors import CustomRuleError, describe_value, make_error, require_callable
from tinyjax.core.source import api_boundary, function_location
from tinyjax.core.tree import register_pytree_node_class, tree_structure, tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_vjp
from tinyjax.engine.derivatives import apply_effectful
from tinyjax.engine.refs import current
from tinyjax.engine.tracing import argument_paths, name_of, stage
from tinyjax.engine.values import asarray, finish_all, lift, shaped_abstractify


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """(pure function of (*args, *consts), consts): what `fun` closes over becomes arguments.

    Only inexact captures that are being traced are hoisted; others stay. Used to write custom rules
    of higher-order functions.
    """
    leaves, tree = tree_flatten((example_args, {}))
    avals = [shaped_abstractify(x) for x in leaves]
    paths = lambda: argument_paths(fun, example_args, {})
    traced = stage(fun, tree, avals, "closure_convert", paths)
    moving = [bool(c.free) and dtypes.is_inexact(c.dtype) for c in traced.captured]
    hoisted = [Array(c) for c, on in zip(traced.captured, moving, strict=True) if on]
    in_tree = tree_structure(example_args)

    @api_boundary
    def converted(*args_consts: Any) -> Any:
        count = len(args_consts) - len(hoisted)
        given, consts = args_consts[:count], iter(args_consts[count:])
        flat, given_tree = tree_flatten(given)
        if given_tree != in_tree:
            raise TypeError(
                f"the closure-converted {name_of(fun)} was called with arguments of structure "
                f"{given_tree}, but was converted for {in_tree}.\n"
                "  Pass arguments like the examples, and then what was closed over: converted(*args, "
                "*consts)."
            )
        captured: list[UOp] = [
            lift(next(consts)) if on else c for c, on in zip(traced.captured, moving, strict=True)
        ]
        given_nodes = [*(lift(x) for x in flat), *captured]
        given_nodes += [current(r) for r in traced.refs]
        outs = traced.deliver(finish_all(apply_effectful(fun, traced.body, given_nodes)))
        return tree_unflatten(traced.out_tree, outs)

    return converted, hoisted


@register_pytree_node_class
class Residuals:
    """A backward function without closure, and the values it needs (the leaves)."""

    def __init__(self, back: Callable[..., Any], consts: Any) -> None:
        self.back, self.consts = back, consts

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.consts,), self.back

    @classmethod
    def tree_unflatten(cls, back: Any, children: Any) -> Residuals:
        return cls(back, *children)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun(*args) -> (value, vjp)`, with `vjp(ct)` a cotangent per argument (a tuple, if
    several).

    Raises: TypeError (`CustomRuleError`) where `fun` is called and returns something else.
    """
    require_callable(fun)

    def pair(*args: Any) -> Any:
        found = fun(*args)
        if not isinstance(found, (tuple, list)) or len(found) != 2 or not callable(found[1]):
            raise make_error(
                CustomRuleError,
                f"the function of custom_gradient, {function_location(fun)}, must return a pair "
                f"(value, vjp) with a function vjp(ct), got {describe_value(found)}",
                fix="Return the value and a function from its cotangent to those of the arguments.",
            )
        return found

    @functools.wraps(fun, updated=())
    def value(*args: Any) -> Any:
        return pair(*args)[0]

    rule = custom_vjp(value)

    def fwd(*args: Any) -> Any:
        out, back = pair(*args)
        example = tree_unflatten(tree_structure(out), [asarray(x) for x in tree_flatten(out)[0]])
        converted, consts = closure_convert(back, example)
        return out, Residuals(converted, consts)

    def bwd(residuals: Residuals, ct: Any) -> Any:
        result = residuals.back(ct, *residuals.consts)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    rule.defvjp(fwd, bwd)
    return rule
