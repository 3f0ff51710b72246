"""jacfwd, jacrev, hessian: jvp or vjp, vmapped over the standard basis of the inputs or outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.errors import GradTypeError, require_callable
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_map, tree_unflatten
from tinyjax.core.treedef import tree_flatten
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.derivatives import (
    NOT_HOLOMORPHIC,
    Argnums,
    check_input_dtype,
    float0_zeros,
    jvp,
    lift_leaves,
    pick_arguments,
    picked_paths,
    vjp,
)
from tinyjax.engine.jit import jit
from tinyjax.engine.tracing import name_of
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.engine.vectorize import vmap


def standard_basis(nodes: Sequence[UOp]) -> list[Array]:
    """For leaves with n elements in all, n trees: leaf i of tree k is zero but for element k."""
    total = sum(n.aval.size for n in nodes)
    out, start = [], 0
    for n in nodes:
        size = n.aval.size
        shape = (total, size)
        hit = b.eq(b.iota(shape, 0), b.add(b.iota(shape, 1), b.scalar(start, b.INT32)))
        out.append(b.reshape(b.cast(hit, n.dtype), (total, *n.shape)))
        start += size
    return finish_all(out)


def split_last(leaf: Any, nodes: Sequence[UOp]) -> list[Array]:
    """[..., n] -> one array [..., *shape] per input leaf."""
    value = lift(leaf)
    axis, out, start = value.ndim - 1, [], 0
    for n in nodes:
        part = b.slice_axis(value, axis, start, start + n.aval.size)
        out.append(b.reshape(part, (*value.shape[:-1], *n.shape)))
        start += n.aval.size
    return finish_all(out)


def split_first(leaf: Any, nodes: Sequence[UOp]) -> list[Any]:
    """[n, ...] -> one array [*shape, ...] per output leaf; float0 zeros keep their kind."""
    if getattr(leaf, "dtype", None) == dtypes.float0:
        return [float0_zeros((*n.shape, *leaf.shape[1:])) for n in nodes]
    value = lift(leaf)
    out, start = [], 0
    for n in nodes:
        part = b.slice_axis(value, 0, start, start + n.aval.size)
        out.append(b.reshape(part, (*n.shape, *value.shape[1:])))
        start += n.aval.size
    return list(finish_all(out))


class Chosen:
    """The function of the arguments that are differentiated, the others fixed."""

    def __init__(
        self, fun: Any, argnums: Argnums, args: tuple[Any, ...], kwargs: Any, what: str
    ) -> None:
        self.fun, self.args, self.kwargs = fun, args, kwargs
        self.numbers, self.single = pick_arguments(fun, argnums, args, what)
        paths = picked_paths(fun, self.numbers, args)
        values = tuple(args[i] for i in self.numbers)
        self.nodes, self.tree = lift_leaves(values, lambda: paths, f"arguments of {what}")
        self.paths = paths
        self.values = tree_unflatten(self.tree, [finish(n) for n in self.nodes])

    def __call__(self, *chosen: Any) -> Any:
        full = list(self.args)
        for i, value in zip(self.numbers, chosen, strict=True):
            full[i] = value
        return self.fun(*full, **self.kwargs)

    def arrange(self, leaves: Sequence[Any]) -> Any:
        """Derivatives by input leaf, in the tree of the arguments."""
        out = tree_unflatten(self.tree, leaves)
        return out[0] if self.single else tuple(out)


def jacfwd(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Jacobian of `fun`, one column at a time in forward mode: good for few inputs.

    Shapes: for each output leaf, the tree of the arguments with leaves [*output, *input].
    Cost: that of one jvp batched over the number of inputs.
    """
    require_callable(fun)

    @functools.wraps(fun, updated=())
    @api_boundary
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        chosen = Chosen(fun, argnums, args, kwargs, "jacfwd")
        for node, path in zip(chosen.nodes, chosen.paths, strict=True):
            check_input_dtype(node, path, "jacfwd", holomorphic, False)
        basis = tree_unflatten(chosen.tree, standard_basis(chosen.nodes))

        def push(tangents: Any) -> Any:
            return jvp(chosen, chosen.values, tangents, has_aux=has_aux)

        out_axes = (None, -1, None) if has_aux else (None, -1)
        result = vmap(push, out_axes=out_axes)(tuple(basis))
        y, columns = result[0], result[1]
        if holomorphic:
            for leaf in tree_flatten(y)[0]:
                if not dtypes.is_complex(leaf.dtype):
                    raise GradTypeError(
                        "jacfwd with holomorphic=True requires outputs with complex dtype, but got "
                        f"{leaf.dtype.name}.\n{NOT_HOLOMORPHIC}"
                    )
        jacobian = tree_map(lambda j: chosen.arrange(split_last(j, chosen.nodes)), columns)
        return (jacobian, result[2]) if has_aux else jacobian

    return jacobian_of


def jacrev(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Jacobian of `fun`, one row at a time in reverse mode: good for few outputs.

    Shapes: as `jacfwd`. Cost: that of one vjp batched over the number of outputs.
    """
    require_callable(fun)

    @functools.wraps(fun, updated=())
    @api_boundary
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        chosen = Chosen(fun, argnums, args, kwargs, "jacrev")
        for node, path in zip(chosen.nodes, chosen.paths, strict=True):
            check_input_dtype(node, path, "jacrev", holomorphic, allow_int)
        result = vjp(chosen, *chosen.values, has_aux=has_aux)
        y, pull = result[0], result[1]
        leaves, out_tree = tree_flatten(y)
        outs = [lift(leaf) for leaf in leaves]
        for out in outs:
            check_output_dtype(out, fun, holomorphic)
        basis = tree_unflatten(out_tree, standard_basis(outs))
        rows = vmap(lambda ct: tuple(real_leaves(pull(ct))))(basis) if outs else ()
        by_input = iter(rows)
        total = sum(o.aval.size for o in outs)
        flat = [
            next(by_input) if dtypes.is_inexact(n.dtype) else float0_zeros((total, *n.shape))
            for n in chosen.nodes
        ]
        parts = [split_first(leaf, outs) for leaf in flat]
        by_output = [chosen.arrange([column[i] for column in parts]) for i in range(len(outs))]
        jacobian = out_tree.unflatten(by_output)
        return (jacobian, result[2]) if has_aux else jacobian

    return jacobian_of


def real_leaves(tree: Any) -> list[Any]:
    """Leaves that have a derivative."""
    return [x for x in tree_flatten(tree)[0] if getattr(x, "dtype", None) != dtypes.float0]


def check_output_dtype(out: UOp, fun: Any, holomorphic: bool) -> None:
    """jacrev needs real outputs, complex ones with holomorphic=True."""
    if holomorphic and not dtypes.is_complex(out.dtype):
        raise GradTypeError(
            "jacrev with holomorphic=True requires outputs with complex dtype, but got "
            f"{out.dtype.name}.\n{NOT_HOLOMORPHIC}"
        )
    if not holomorphic and not dtypes.is_float(out.dtype):
        raise GradTypeError(
            "jacrev requires real-valued outputs (output dtype that is a sub-dtype of "
            "np.floating), "
            f"but {name_of(fun)} returned {dtypes.short_name(out.dtype)}.\n"
            + (
                "  Pass holomorphic=True if it is, or differentiate real and imaginary part."
                if dtypes.is_complex(out.dtype)
                else "  Return floats: convert with .astype(float)."
            )
        )


jacobian = jacrev


def hessian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Second derivatives: the forward-mode Jacobian of the reverse-mode one."""
    inner = jacrev(fun, argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums, has_aux=has_aux, holomorphic=holomorphic)


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: Argnums, has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(fwd, bwd) with `fwd(*args) -> (value, residuals)` and `bwd(residuals, ct) -> gradients`.

    The residuals are a pytree (the function that vjp returns), so both sides may be jitted.
    """
    require_callable(fun)

    def forward(*args: Any, **kwargs: Any) -> Any:
        chosen = Chosen(fun, argnums, args, kwargs, "fwd_and_bwd")
        return vjp(chosen, *chosen.values, has_aux=has_aux)

    def backward(residuals: Any, cotangent: Any) -> Any:
        out = residuals(cotangent)
        return out[0] if isinstance(argnums, (int, np.integer)) else out

    if not jitted:
        return forward, backward
    return jit(forward), jit(backward)
