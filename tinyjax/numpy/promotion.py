"""What every `tinyjax.numpy` function does with its operands: promote dtypes, broadcast shapes."""

from __future__ import annotations

import warnings
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.config import config
from tinyjax.core.errors import BroadcastError, make_error
from tinyjax.core.shapes import broadcast_shapes, same_shape
from tinyjax.core.shapes import canonical_axis as canonical_axis
from tinyjax.core.uop import UOp
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish, is_array_like, lift

ArrayLike = Any


def checked(name: str, *args: Any) -> list[UOp]:
    """Operands as nodes; lists and other objects are refused as JAX refuses them."""
    nodes = []
    for position, a in enumerate(args):
        if not is_array_like(a):
            raise TypeError(
                f"{name} requires ndarray or scalar arguments, got {type(a)} at position "
                f"{position}."
                + (" Convert it with jnp.asarray." if isinstance(a, (list, tuple)) else "")
            )
        nodes.append(lift(a))
    return nodes


def no_out(name: str, out: Any) -> None:
    """Arrays do not change, so there is nothing to write to."""
    if out is not None:
        raise NotImplementedError(f"The 'out' argument to jnp.{name} is not supported.")


def promote_dtypes(nodes: list[UOp]) -> list[UOp]:
    """All in the common dtype of the lattice."""
    first = nodes[0].aval
    if all(n.aval.dtype == first.dtype and n.aval.weak_type == first.weak_type for n in nodes):
        return nodes
    dtype, weak = dtypes.result_type_of_pairs(*((n.dtype, n.aval.weak_type) for n in nodes))
    return [b.cast(n, dtype, weak) for n in nodes]


def promote_inexact(nodes: list[UOp]) -> list[UOp]:
    """All in the common dtype, made floating if it is not inexact."""
    dtype, weak = dtypes.result_type_of_pairs(*((n.dtype, n.aval.weak_type) for n in nodes))
    if not dtypes.is_inexact(dtype):
        dtype = dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(dtype))
    return [b.cast(n, dtype, weak) for n in nodes]


def broadcast_shapes_of(name: str, nodes: list[UOp]) -> tuple[int, ...]:
    """The common shape, or an error with the operands' own shapes."""
    shapes = [n.shape for n in nodes]
    first = shapes[0]
    if all(same_shape(s, first) for s in shapes):
        return first
    try:
        shape = broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(str(s) for s in shapes)
        raise make_error(
            BroadcastError,
            f"{name} got incompatible shapes for broadcasting: {listed}",
            rule="axes are aligned at the end; sizes must be equal or 1",
            fix="Reshape one operand (x[:, None]) so that the axes meant are aligned.",
        ) from None
    if config.jax_numpy_rank_promotion != "allow":
        check_rank_promotion(name, shapes)
    return shape


def check_rank_promotion(name: str, shapes: list[tuple[int, ...]]) -> None:
    """What the option jax_numpy_rank_promotion asks for."""
    nonscalar = {len(s) for s in shapes if s}
    if len(nonscalar) < 2:
        return
    message = (
        f"Operands could not be broadcast together for {name} on shapes "
        f"{' '.join(map(str, shapes))} and with the config option jax_numpy_rank_promotion="
        f"{config.jax_numpy_rank_promotion!r}."
    )
    if config.jax_numpy_rank_promotion == "raise":
        raise ValueError(message)
    warnings.warn(message, stacklevel=4)


def broadcast(name: str, nodes: list[UOp]) -> list[UOp]:
    """All of one shape; scalars stay scalars (ops broadcast them)."""
    shape = broadcast_shapes_of(name, nodes)
    return [
        n if not n.shape or same_shape(n.shape, shape) else b.broadcast(n, shape) for n in nodes
    ]


def operands(name: str, *args: ArrayLike) -> list[UOp]:
    """Promoted and broadcast nodes."""
    return broadcast(name, promote_dtypes(checked(name, *args)))


def inexact_operands(name: str, *args: ArrayLike) -> list[UOp]:
    """Promoted to floating or complex, and broadcast."""
    return broadcast(name, promote_inexact(checked(name, *args)))


def canonical_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """None (all), an int or a sequence as increasing non-negative axes."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (tuple, list)):
        axes = tuple(canonical_axis(a, ndim) for a in axis)
        if len(set(axes)) != len(axes):
            raise ValueError(f"duplicate value in 'axis': {tuple(axis)}")
        return axes
    return (canonical_axis(axis, ndim),)


def result(node: UOp) -> Array:
    """The array of a node (alias that reads well at the end of a function)."""
    return finish(node)
