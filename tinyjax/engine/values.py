"""Python and NumPy values as arrays: what a user may pass, and the node or buffer it becomes.

NumPy operands are snapshots: variables are evaluated after Python has run, so an alias the user
writes to later would be silently wrong.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.dims import DimExpr, as_size, install, is_symbolic
from tinyjax.core.errors import SizeError
from tinyjax.core.memory import aligned, copy_of, new_buffer
from tinyjax.core.ops import Op
from tinyjax.core.tree import tree_leaves
from tinyjax.core.uop import Buffer, UOp, const
from tinyjax.engine.array import Array, buffer_node, refuse_detached
from tinyjax.interpreters.trace import record_site, state, values_of

PYTHON_SCALARS = (bool, int, float, complex)


def is_array_like(x: Any) -> bool:
    """Whether `x` is accepted where an array is expected."""
    return isinstance(x, (Array, np.ndarray, np.generic, *PYTHON_SCALARS)) or hasattr(
        x, "__jax_array__"
    )


def lift(x: Any, argument: str = "") -> UOp:
    """The node of an array, NumPy array or Python number; numbers are weakly typed literals."""
    kind = type(x)
    if kind is Array:
        return x.node  # type: ignore[no-any-return]
    if kind is float or kind is int or kind is bool or kind is complex:
        return const(x, dtypes.python_scalar_dtype(kind, x), kind is not bool)
    if isinstance(x, np.generic) and x.dtype != dtypes.float0:
        dtype = dtypes.canonicalize_dtype(x.dtype)
        return const(np.asarray(x).astype(dtype), dtype)
    if isinstance(x, np.ndarray):
        return buffer_node(snapshot(x))
    if isinstance(x, Array):
        return x.node
    if isinstance(x, PYTHON_SCALARS):
        base: Any = next(t for t in PYTHON_SCALARS if isinstance(x, t))
        return const(base(x), dtypes.python_scalar_dtype(base, x), base is not bool)
    convert = getattr(x, "__jax_array__", None)
    if convert is not None:
        return lift(convert())
    where = f" for argument {argument}" if argument else ""
    raise TypeError(
        f"Value {x!r} of type {type(x)} is not a valid JAX type{where}. Arrays, NumPy arrays and "
        "Python numbers are; make others static (static_argnums) or convert them with jnp.asarray."
    )


def number(x: Any, dtype: Any) -> UOp:
    """A literal of `dtype` from a Python number, not by way of the default dtype of its kind.

    Raises: OverflowError or ValueError if an integer `dtype` of NumPy cannot hold it.
    """
    if isinstance(x, int) and dtypes.is_inexact(dtype) and not -(2**63) <= x < 2**63:
        x = float(x)  # ml_dtypes take none beyond 64 bits
    elif isinstance(x, int) and dtype.kind in "iu":  # int4 and the like wrap around
        limits = dtypes.iinfo(dtype)
        if not limits.min <= x <= limits.max:
            raise OverflowError(
                f"Python integer {x} out of bounds for {dtype.name}: it holds {limits.min} to "
                f"{limits.max}.\n  Choose a wider dtype (those of 64 bits need jax_enable_x64), or "
                "wrap it around with lax.convert_element_type."
            )
    return const(np.array(x, dtype), dtype)


def lift_for(x: Any, dtype: Any) -> UOp:
    """`lift(x)` for what will be cast to `dtype`: an int need not fit the default dtype.

    It keeps its low bits in an integer dtype, as an array of 64 bits would.
    """
    try:
        return lift(x)
    except OverflowError:
        if not isinstance(x, int) or dtypes.is_key(dtype):
            raise
        if not dtypes.is_integer(dtype):
            return number(x, dtype)
        if not -(2**63) <= x < 2**64:
            raise
        return const(np.asarray(x & (2**64 - 1), np.uint64), dtype)


def snapshot(x: np.ndarray) -> Buffer:
    """A copy of a NumPy array in memory of our own, in the dtype that x64 mode allows."""
    if x.dtype == object or x.dtype.kind in "SUMm":
        raise TypeError(
            f"Value of dtype {x.dtype} is not a valid JAX array type. Only arrays of numeric types "
            "are supported by JAX.\n  Convert it to numbers with .astype(float), or keep it in Python."
        )
    if type(x) is not np.ndarray and isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            "numpy masked arrays are not supported as direct inputs to JAX functions. Use "
            "arr.filled() to convert the value to a standard numpy array."
        )
    dtype = dtypes.canonicalize_dtype(x.dtype)
    of = aval(x.shape, dtype)
    buffer = new_buffer(of)
    np.copyto(buffer.value, x, casting="unsafe")
    return buffer


def own(value: np.ndarray, of: Aval) -> Buffer:
    """A buffer around an ndarray that nobody else writes to."""
    return Buffer(aligned(value), of)


def finish(node: UOp) -> Array:
    """The result of an operation: run now if nothing is open, else kept as a node."""
    if state.staging or (node.free and state.traces):
        record_site(node)
        return Array(node)
    if node.free:  # nothing is open here: from a finished trace, or from another thread's
        refuse_detached(node)
    return Array.from_buffer(Buffer(values_of([node])[0], node.aval))


def finish_all(nodes: list[UOp]) -> list[Array]:
    """`finish` for several results; those that can run are run together."""
    if state.staging:
        for n in nodes:
            record_site(n)
        return [Array(n) for n in nodes]
    if not state.traces:
        for n in nodes:
            if n.free:
                refuse_detached(n)
    now = [n for n in nodes if not n.free or not state.traces]
    values = dict(zip(now, values_of(now), strict=True)) if now else {}
    return [
        Array.from_buffer(Buffer(values[n], n.aval)) if n in values else Array(n) for n in nodes
    ]


def asarray(x: Any, argument: str = "") -> Array:
    """`x` as an Array."""
    return x if type(x) is Array else to_array(lift(x, argument))


def to_array(node: UOp) -> Array:
    """An Array for a leaf or an open node; literals stay literals while staging."""
    return finish(node) if node.src or not state.staging else Array(node)


def from_pickle(value: np.ndarray, key: Any, weak: bool) -> Array:
    """Rebuild a pickled array. A copy: what came out of band is the memory of someone else."""
    value = copy_of(value)
    if key is not None:
        lead = value.ndim - len(key.key_shape)
        return Array.from_buffer(Buffer(value, aval(value.shape[:lead], key)))
    return Array.from_buffer(Buffer(value, aval(value.shape, value.dtype, weak)))


def shaped_abstractify(x: Any, argument: str = "") -> Aval:
    """The aval of anything `lift` accepts, or of an object with shape and dtype."""
    if type(x) is Array:
        return x.aval
    if isinstance(x, (np.ndarray, np.generic)):
        return aval(np.shape(x), dtypes.canonicalize_dtype(x.dtype))
    if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, Array):
        dtype = x.dtype
        dtype = dtype if dtypes.is_key(dtype) else dtypes.canonicalize_dtype(dtype)
        return aval(tuple(x.shape), dtype, bool(getattr(x, "weak_type", False)))
    return lift(x, argument).aval  # type: ignore[no-any-return]


def canonical_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as a size or a sequence of sizes (0-d arrays count)."""
    if isinstance(shape, (int, np.integer, DimExpr)):
        return (as_size(shape),)
    if type(shape) is Array or isinstance(shape, np.ndarray):
        shape = shape.tolist() if shape.ndim else [shape]
    try:
        out = tuple(map(as_size, shape))
    except TypeError:
        given = shape if isinstance(shape, (tuple, list)) else ()
        traced = [s for s in given if type(s) is Array and s.is_tracer]
        raise TypeError(
            f"Shapes must be 1D sequences of concrete values of integer type, got {shape!r}."
            + "".join(
                f"\n{s._origin_msg()}\n  A shape must not depend on traced values: mark the argument "
                "static (static_argnames)."
                for s in traced[:1]
            )
        ) from None
    if any(s < 0 for s in out):
        raise SizeError(f"Shapes must be non-negative, got {out}.")
    return out


def block_until_ready(x: Any) -> Any:
    """`x` (a tree) once all its arrays have their values."""
    for leaf in tree_leaves(x):
        if hasattr(leaf, "block_until_ready"):
            leaf.block_until_ready()
    return x


# --- symbolic sizes -------------------------------------------------------------------------------


def size_array(size: DimExpr) -> Array:
    """A symbolic size as an array: a weakly typed integer, as a Python int would be."""
    dtype = dtypes.python_scalar_dtype(int, 0)
    return finish(UOp(Op.CAST, (UOp(Op.DIM, (), size),), (dtype, True)))


def size_arithmetic(name: str, x: Any, y: Any) -> Any:
    """An operation on sizes and numbers whose result is no size: as on arrays."""
    a, b = (size_array(v) if is_symbolic(v) else v for v in (x, y))
    return getattr(operator, name)(a, b)


install(size_array, size_arithmetic)
