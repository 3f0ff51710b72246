"""Mutable arrays inside traced functions: new_ref, `ref[...]`, `ref[...] = v`, freeze.

A `Ref` is a name for whatever array it holds now, so inside one function writing is assignment. A
function that is staged (jit, scan, cond, ...) and touches a Ref from outside gets its value as one
more input and gives it back as one more output, as it does with the token of effects
(interpreters/trace.py); whoever applies it, now or from a cache, passes the value of then. A loop
carries it. Nothing is aliased: the planner finds out where an update may be done in place.

A Ref that is an argument of a staged function is one from outside whose identity is that of the
call: the trace has a placeholder for it (`AbstractRef` in its key), and `Traced.bound` says which Ref
that is. Transformations that map or differentiate what a Ref holds open it up (`opened`).
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import tree_unflatten
from tinyjax.core.treedef import PyTreeDef
from tinyjax.core.uop import UOp, Var
from tinyjax.engine.array import Array
from tinyjax.engine.values import finish_all, lift, shaped_abstractify, to_array
from tinyjax.interpreters.trace import Cell, Trace, differentiated, differentiated_outside, state


class Ref:
    """A mutable array. Make one with `new_ref`; `ref[index]` reads, `ref[index] = value` writes.

    `trace` is that of the function that made it. (Not `aval`: what has one is taken for an array.)
    """

    __slots__ = ("__weakref__", "aval_", "cell", "trace")

    def __init__(self, node: UOp, start: UOp | None = None) -> None:
        self.aval_: Aval = node.aval
        self.cell = Cell(node, start)
        self.trace: Trace | None = state.traces[-1] if state.traces else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.aval_.shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self.aval_.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.aval_.ndim

    @property
    def size(self) -> Any:
        """Number of elements."""
        return self.aval_.size

    @property
    def node(self) -> UOp:
        """The value it holds here, for a backward rule.

        Raises: ValueError if its function has ended: what it stands for is not known any more.
        """
        if self.trace is not None and not self.trace.open:
            raise ValueError(
                "a bwd uses a Ref that is an argument of a jitted function, or was made in it, and "
                f"the function has ended: {self.trace.describe()}.\n  Close over the Ref, or call the "
                "function with the rule directly in the one that is differentiated."
            )
        return current(self)

    def put(self, node: UOp) -> None:
        """Let it hold a value made by transposition, which the innermost derivative does not see."""
        cell, outer = cell_of(self), differentiated_outside([node])
        for trace in reversed(state.traces):
            if trace is self.trace or keeps_refs(trace):
                break
            refuse_value(self, node, trace, outer)
            trace.touched.append(cell)
        cell.node = node

    def __len__(self) -> int:
        return len(Array(current(self)))

    @api_boundary
    def __getitem__(self, index: Any) -> Any:
        return read(self) if index is Ellipsis else read(self)[index]

    @api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        old = read(self)
        shape = self.shape if index is Ellipsis else old[index].shape
        new = checked_value(self, shape, value, "swap")
        written: Any = old.at[index].set(new)
        assign(self, written.node)

    def __repr__(self) -> str:
        return f"Ref({self.aval_.str_short()})" if state.traces else repr(read(self)).replace(
            "Array", "Ref", 1
        )  # fmt: skip


def checked_value(ref: Ref, shape: tuple[int, ...], value: Any, what: str) -> Array:
    """A value to be written where a Ref has `shape`, in its dtype; scalars are spread."""
    node = lift(value)
    kept, _ = dtypes.lattice_promote((node.dtype, node.aval.weak_type), (ref.dtype, False))
    if kept != ref.dtype or not (node.dtype == ref.dtype or node.aval.weak_type):
        raise ValueError(
            f"Invalid dtype for `{what}`. Ref dtype: {ref.dtype.name}. Value dtype: "
            f"{node.dtype.name}.\n  Convert the value with .astype."
        )
    if node.shape and node.shape != shape:
        raise ValueError(
            f"Invalid shape for `{what}`. Ref shape: {ref.shape}. Expected shape: {shape}. Value "
            f"shape: {node.shape}.\n  Bring the value to that shape, as jnp.broadcast_to(value, {shape}) "
            "does."
        )
    return finish_all([b.cast(node, ref.dtype)])[0]


def read(ref: Ref) -> Array:
    """The array a Ref holds here."""
    return Array(current(ref))


def keeps_refs(trace: Trace) -> bool:
    """Whether what is written inside is a result: staged functions, backward rules that run early."""
    return trace.staging or trace.chain.deferred


def cell_of(ref: Ref) -> Cell:
    """Where its value stands: in the innermost staged function that touches it, or in itself."""
    for trace in reversed(state.traces):
        if trace is ref.trace:
            break
        if keeps_refs(trace):
            cell = trace.cells.get(ref)
            if cell is None:
                start = trace.variable(ref.aval_, "a Ref from outside")
                cell = trace.cells[ref] = Cell(start, start)
            return cell
    return ref.cell


def current(ref: Ref) -> UOp:
    """The value of a Ref as a node."""
    return cell_of(ref).node


def mentions(node: UOp, trace: Trace) -> bool:
    """Whether a node depends on variables of a trace, through bound ones too."""

    def reaches(v: Var) -> bool:
        return v.trace is trace or (v.bound is not None and mentions(v.bound, trace))

    return any(reaches(v) for v in node.free)


def assign(ref: Ref, node: UOp) -> None:
    """Let a Ref hold another value."""
    cell = cell_of(ref)
    for trace in reversed(state.traces):
        if trace is ref.trace or keeps_refs(trace):
            break
        if mentions(node, trace) or trace.kind == "vmap":
            refuse_value(ref, node, trace, differentiated(node))
            trace.touched.append(cell)
    cell.node = node


def mapped(ref: Ref) -> Trace | None:
    """The vmap inside of which a Ref from outside of it must not be written here."""
    for trace in reversed(state.traces):
        if trace is ref.trace or keeps_refs(trace):
            break
        if trace.kind == "vmap":
            return trace
    return None


def refuse_value(ref: Ref, node: UOp, trace: Trace, active: Iterable[Var]) -> None:
    """Raise ValueError for a Ref from outside of a vmap (how often is `+= 1` then done?), and for one
    from outside of a derivative if the value depends on its variables among `active`."""
    where = f"array reference of type Ref{{{ref.aval_.str_short()}}} from outside of "
    if trace.kind == "vmap":
        raise ValueError(
            f"performing a set/swap operation with vmapped value on an unbatched {where}"
            f"{trace.describe()}. Move the array reference to be an argument of the vmapped "
            "function."
        )
    if any(v.trace is trace for v in active):
        raise ValueError(
            "performing a set/swap operation with a differentiated value on a "
            f"non-differentiated {where}{trace.describe()}: the derivative would be lost. "
            "Return the value, or say with lax.stop_gradient that it is constant."
        )


@api_boundary
def new_ref(init_val: Any, *, memory_space: Any = None, kind: str | None = None) -> Ref:
    """A mutable array that holds `init_val`."""
    node = lift(init_val)
    return Ref(to_array(b.cast(node, node.dtype)).node)


@api_boundary
def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """A mutable array of this shape and dtype, to be written before it is read (it holds zeros)."""
    return Ref(to_array(b.zeros(shaped_abstractify(ty).strip_weak_type())).node)


def free_ref(ref: Ref) -> None:
    """Say that a Ref is not used any more; its memory is free when nothing names it."""


@api_boundary
def freeze(ref: Ref) -> Array:
    """The array that a Ref holds; the Ref is not to be used afterwards."""
    return read(ref)


def get(ref: Ref, idx: Any = ...) -> Array:
    """`ref[idx]`"""
    found: Array = ref[idx]
    return found


def set(ref: Ref, idx: Any, value: Any) -> None:
    """`ref[idx] = value`"""
    ref[idx] = value


def swap(ref: Ref, idx: Any, value: Any) -> Array:
    """Write, and return what was there."""
    old: Array = ref[idx]
    ref[idx] = value
    return old


def addupdate(ref: Ref, idx: Any, value: Any) -> None:
    """`ref[idx] += value`, but each of several equal indices adds."""
    if idx is Ellipsis:
        ref[...] = read(ref) + value
        return
    here: Any = read(ref)
    checked_value(ref, here[idx].shape, value, "addupdate")
    ref[...] = here.at[idx].add(value)


class RefArgument(TypeError, ValueError):
    """A Ref stands where an array must (JAX raises either): transformations that can, open it up."""


@dataclass(frozen=True, slots=True)
class AbstractRef:
    """Stands for a Ref among the avals of arguments."""

    inner_aval: Aval

    shape = property(lambda self: self.inner_aval.shape)
    dtype = property(lambda self: self.inner_aval.dtype)
    weak_type = property(lambda self: self.inner_aval.weak_type)

    def str_short(self) -> str:
        """`Ref{f32[3]}`"""
        return f"Ref{{{self.inner_aval.str_short()}}}"


def parameter(trace: Trace, of: Aval, path: str) -> Ref:
    """A Ref that is an argument of the innermost trace."""
    start = trace.variable(of, path)
    return Ref(start, start)


def touched(ref: Ref, nodes: Sequence[UOp]) -> bool:
    """Whether a function with these results reads or writes its parameter `ref`."""
    start = ref.cell.start
    assert start is not None
    return ref.cell.node is not start or any(start.arg in n.free for n in nodes)


def refuse_twice(refs: Sequence[Ref], name: str) -> None:
    """Raise ValueError if a Ref was passed twice: what is written by one name would not be seen by
    the other."""
    if len(builtins.set(map(id, refs))) != len(refs):
        raise ValueError(
            "only one reference to a mutable array may be passed as an argument to a function, but "
            f"{name} was given one twice.\n  Pass it once."
        )


def refuse_closed_over(refs: Sequence[Ref], closed: Sequence[Ref], name: str) -> None:
    """Raise ValueError if an argument is closed over too, for the same reason."""
    for ref in refs:
        if any(ref is c for c in closed):
            raise ValueError(
                f"when tracing {name}, a mutable array reference of type "
                f"Ref{{{ref.aval_.str_short()}}} was both closed over and passed as an argument.\n"
                "  Use the argument inside the function."
            )


def opened(fun: Callable[..., Any], tree: PyTreeDef, leaves: Sequence[Any], name: str) -> Any:
    """A function of flat leaves, Refs replaced by the arrays they hold, that returns `fun`'s result
    and what its Refs hold in the end; and the places of the Refs.

    Raises: ValueError if a Ref was passed twice.
    """
    places = [i for i, x in enumerate(leaves) if isinstance(x, Ref)]
    refuse_twice([leaves[i] for i in places], name)

    @functools.wraps(fun, updated=())
    def flat(values: Sequence[Any]) -> Any:
        mine = list(values)
        for i in places:
            mine[i] = Ref(lift(mine[i]))
        args, kwargs = tree_unflatten(tree, mine)
        out = fun(*args, **kwargs)
        return out, [read(mine[i]) for i in places]

    return flat, places


def through(leaves: Sequence[Any], places: Sequence[int], call: Callable[[list[Any]], Any]) -> Any:
    """Apply an opened function: arrays go in for Refs, and what comes out goes into them."""
    out, after = call(held(leaves))
    store([leaves[i] for i in places], after)
    return out


def held(leaves: Sequence[Any]) -> list[Any]:
    """Leaves, what it holds in place of each Ref."""
    return [read(x) if isinstance(x, Ref) else x for x in leaves]


def store(refs: Sequence[Ref], values: Sequence[Array]) -> None:
    """Let Refs hold these arrays."""
    for ref, value in zip(refs, values, strict=True):
        assign(ref, value.node)
