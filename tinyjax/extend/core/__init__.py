"""Jaxprs as data, by JAX's names: `tinyjax.extend.core`. See docs/writing_an_interpreter.md.

The set of primitives is closed (core/ops.py): new operations are functions with `custom_jvp`,
`custom_vjp` and `custom_vmap` rules, not new primitives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.errors import InconclusiveDimensionOperation
from tinyjax.engine.array import Array
from tinyjax.engine.jaxprs import (
    ClosedJaxpr,
    DropVar,
    Effect,
    Jaxpr,
    JaxprEqn,
    JaxprTypeError,
    Literal,
    Var,
    check_jaxpr,
    gensym,
    jaxpr_as_fun,
    jaxprs_in_params,
    new_jaxpr_eqn,
    subjaxprs,
)
from tinyjax.engine.primitives import Primitive
from tinyjax.engine.values import is_array_like
from tinyjax.extend.core import primitives
from tinyjax.interpreters.trace import state

Effects = frozenset[Effect]
no_effects: Effects = frozenset()
array_types = (Array, np.ndarray, np.generic)


def concrete_or_error(force: Callable[[Any], Any] | None, val: Any, context: str = "") -> Any:
    """`force(val)`. Raises: `ConcretizationTypeError` if `val` has no value in Python.

    `context` changes nothing: the error names the user's line.
    """
    return val if force is None else force(val)


def primal_dtype_to_tangent_dtype(primal_dtype: Any) -> Any:
    """float0 for dtypes without derivatives."""
    return primal_dtype if dtypes.is_inexact(primal_dtype) else dtypes.float0


def mapped_aval(size: int, axis: int | None, aval: Aval) -> Aval:
    """The aval of one example: without axis `axis`, which has this size."""
    if axis is None:
        return aval
    if aval.shape[axis] != size:
        raise ValueError(f"axis {axis} of {aval.str_short()} does not have size {size}")
    return aval.update(shape=aval.shape[:axis] + aval.shape[axis + 1 :])


def unmapped_aval(size: int, axis: int | None, aval: Aval, explicit_mesh_axis: Any = None) -> Aval:
    """The aval of a batch: with a new axis `axis` of this size.

    `explicit_mesh_axis` is for meshes and changes nothing.
    """
    if axis is None:
        return aval
    return aval.update(shape=(*aval.shape[:axis], size, *aval.shape[axis:]))


def valid_jaxtype(x: Any) -> bool:
    """Whether `x` may be an argument of an operation."""
    return is_array_like(x)


@dataclass(frozen=True, slots=True)
class DebugInfo:
    """What a jaxpr was traced from, for `Jaxpr(debug_info=...)`. Kept, and not looked at."""

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None = None
    result_paths: Any = None


class OpaqueTraceState:
    """Equal to another while the same traces are open: a library's objects may remember it."""

    def __init__(self) -> None:
        self._traces = tuple(state.traces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self._traces == other._traces

    def __hash__(self) -> int:
        return hash(self._traces)


def get_opaque_trace_state(convention: str | None = None) -> OpaqueTraceState:
    """What is being traced now, to compare. `convention` is for other layouts of it; there is one."""
    return OpaqueTraceState()


def nonempty_axis_env_DO_NOT_USE() -> bool:
    """Whether a named axis is open."""
    return bool(state.axes)


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """The open named axes."""
    return list(state.axes)


def unsafe_am_i_under_a_jit_DO_NOT_USE() -> bool:
    """Whether a jit is being traced."""
    return any(t.kind == "jit" for t in state.traces)


def unsafe_am_i_under_a_vmap_DO_NOT_USE() -> bool:
    """Whether a vmap is being traced."""
    return any(t.kind == "vmap" for t in state.traces)


__all__ = [
    "ClosedJaxpr",
    "DebugInfo",
    "DropVar",
    "Effect",
    "Effects",
    "InconclusiveDimensionOperation",
    "Jaxpr",
    "JaxprEqn",
    "JaxprTypeError",
    "Literal",
    "Primitive",
    "Var",
    "array_types",
    "check_jaxpr",
    "concrete_or_error",
    "gensym",
    "get_opaque_trace_state",
    "jaxpr_as_fun",
    "jaxprs_in_params",
    "mapped_aval",
    "new_jaxpr_eqn",
    "no_effects",
    "nonempty_axis_env_DO_NOT_USE",
    "primal_dtype_to_tangent_dtype",
    "primitives",
    "subjaxprs",
    "unmapped_aval",
    "unsafe_am_i_under_a_jit_DO_NOT_USE",
    "unsafe_am_i_under_a_vmap_DO_NOT_USE",
    "unsafe_get_axis_names_DO_NOT_USE",
    "valid_jaxtype",
]
