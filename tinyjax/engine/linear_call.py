"""linear_call: a linear function with a transpose written by the user."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.body import close, fresh_var, reclose
from tinyjax.core.infos import Backward, CustomLinInfo
from tinyjax.core.ops import Op
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef, tree_flatten
from tinyjax.core.uop import UOp, results
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import lift_leaves
from tinyjax.engine.tracing import name_of, output_nodes
from tinyjax.engine.values import finish_all
from tinyjax.interpreters.trace import open_trace


class Half:
    """One direction of the pair, `(*residuals, *linear args) -> outputs`, staged when needed."""

    def __init__(self, fun: Callable[..., Any], example: Callable[[], tuple[Any, list[Aval]]]):
        self.fun, self.example = fun, example
        self.other: Half = self

    @functools.cached_property
    def staged(self) -> tuple[UOp, PyTreeDef]:
        """The closed body and the tree of its results."""
        args, avals = self.example()
        with open_trace("linear_call", self.fun, True) as trace:
            own = [trace.variable(a) for a in avals]
            tree = tree_flatten(args)[1]
            result = self.fun(*tree_unflatten(tree, [Array(v) for v in own]))
            nodes, out_tree = output_nodes(result, self.fun, "linear_call")
            body, captured = close(nodes, own, keep_memory=True)
        if captured:
            raise ValueError(
                f"linear_call: {name_of(self.fun)} closes over a traced value, "
                f"{captured[0].aval.str_short()}. Pass it in residual_args."
            )
        return body, out_tree

    def apply(self, held: Sequence[UOp], given: Sequence[UOp]) -> list[UOp]:
        """The map applied. Its transpose is the other half, whose transpose is this one."""
        body = self.staged[0]
        outs = [o.aval.strip_weak_type() for o in body.src]
        kinds = [h.aval for h in held]

        def backward(zero: tuple[bool, ...]) -> UOp:
            residuals = [fresh_var(k) for k in kinds]
            cts = [None if z else fresh_var(o) for z, o in zip(zero, outs, strict=True)]
            full = [b.zeros(o) if c is None else c for c, o in zip(cts, outs, strict=True)]
            live = [c for c in cts if c is not None]
            return reclose(self.other.apply(residuals, full), [*residuals, *live])

        info = CustomLinInfo(len(held), tuple(outs), Backward(backward), name_of(self.fun), body)
        return results(UOp(Op.CUSTOM_LIN, (*held, *given), info))


@api_boundary
def linear_call(
    fun: Callable[[Any, Any], Any],
    fun_transpose: Callable[[Any, Any], Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
    """`fun(residual_args, linear_args)`, linear in the latter; transposed by `fun_transpose`.

    `fun_transpose(residual_args, cotangent)` returns cotangents like `linear_args`; it is staged when
    first needed, and its own transpose is `fun`.
    Raises: TypeError if it returns another tree, or for linear arguments that are not inexact;
    ValueError if a function closes over a traced value.
    """
    held, res_tree = lift_leaves(residual_args, _unnamed, "residual_args of linear_call")
    given, lin_tree = lift_leaves(linear_args, _unnamed, "linear_args of linear_call")
    for n in given:
        if not dtypes.is_inexact(n.dtype):
            raise TypeError(
                "linear_call: linear arguments have a floating or complex dtype, got "
                f"{n.aval.str_short()}.\n  Pass integers and flags in residual_args."
            )
    residuals = tree_unflatten(res_tree, range(len(held)))
    kinds = [h.aval for h in held]
    linear = [n.aval.strip_weak_type() for n in given]
    forth = Half(
        fun, lambda: ((residuals, tree_unflatten(lin_tree, range(len(given)))), [*kinds, *linear])
    )
    out_tree = forth.staged[1]

    def back_example() -> tuple[Any, list[Aval]]:
        outs = [o.aval.strip_weak_type() for o in forth.staged[0].src]
        return (residuals, tree_unflatten(out_tree, range(len(outs)))), [*kinds, *outs]

    def transpose(r: Any, ct: Any) -> Any:
        result = fun_transpose(r, ct)
        tree = tree_flatten(result)[1]
        if tree != lin_tree:
            raise TypeError(
                "transpose output pytree structure must match that of linear inputs, got output "
                f"structure {tree} and input structure {lin_tree}.\n"
                "  Return a cotangent for each of the linear arguments, in their containers."
            )
        return result

    forth.other = Half(transpose, back_example)
    forth.other.other = forth
    values = [b.cast(n, n.dtype) for n in given]
    return tree_unflatten(out_tree, finish_all(forth.apply(held, values)))


def _unnamed() -> Any:
    return _Everything()


class _Everything:
    """A path for every leaf."""

    def __getitem__(self, index: int) -> str:
        return f"leaf {index}"
