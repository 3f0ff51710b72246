"""Python functions over arrays: vectorize, apply_along_axis, apply_over_axes, frompyfunc, ufunc."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import build as b
from tinyjax.core.errors import ConcretizationTypeError
from tinyjax.core.shapes import broadcast_shapes
from tinyjax.core.source import api_boundary
from tinyjax.engine.array import Array
from tinyjax.engine.values import asarray, finish
from tinyjax.engine.vectorize import vmap
from tinyjax.lax.control_flow import fori_loop, scan
from tinyjax.numpy.indexing import concrete
from tinyjax.numpy.promotion import ArrayLike, canonical_axis, checked
from tinyjax.numpy.shaping import broadcast_to, stack

NAME = r"[A-Za-z_][A-Za-z_0-9]*|\d+"
CORE = rf"\((?:(?:{NAME})(?:,(?:{NAME}))*)?,?\)"
SIGNATURE = re.compile(rf"^{CORE}(?:,{CORE})*->{CORE}(?:,{CORE})*$")

Core = tuple[str, ...]


def parse_signature(signature: str) -> tuple[list[Core], list[Core]]:
    """Core dimensions of inputs and outputs of `(m,n),(n)->(m)`."""
    text = re.sub(r"\s+", "", signature)
    if not SIGNATURE.match(text):
        raise ValueError(f"not a valid gufunc signature: {signature}")
    sides = text.split("->")
    found = [
        [tuple(re.findall(NAME, core)) for core in re.findall(r"\(([^)]*)\)", side)]
        for side in sides
    ]
    return found[0], found[1]


def check_sizes(sizes: dict[str, int], shape: tuple[int, ...], core: Core, what: str) -> None:
    """Record the sizes of core dimensions; one name has one size."""
    for name, size in zip(core, shape, strict=True):
        if name.isdigit() and int(name) != size:
            raise ValueError(f"{what}: core dimension {name} has size {size}")
        if sizes.setdefault(name, size) != size:
            raise ValueError(
                f"inconsistent size for core dimension {name!r} of {what}: {size} vs {sizes[name]}"
            )


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Any = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """A function of scalars (or of arrays with core dimensions) mapped over broadcast arguments.

    `signature` names core dimensions, as "(m,n),(n)->(m)"; `excluded` are positions or names of
    arguments that are passed as they are, and so is None. One vmap per broadcast axis.
    """
    if any(not isinstance(e, (str, int)) for e in excluded):
        raise TypeError(
            "jax.numpy.vectorize can only exclude integer or string arguments, but excluded="
            f"{set(excluded)!r}"
        )
    if any(isinstance(e, int) and e < 0 for e in excluded):
        raise ValueError(f"excluded={excluded!r} contains negative numbers")

    @functools.wraps(pyfunc)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fixed = {i: a for i, a in enumerate(args) if i in excluded or a is None}
        named = {k: v for k, v in kwargs.items() if k in excluded or v is None}
        mapped_names = [k for k in kwargs if k not in named]
        mapped = [asarray(a) for i, a in enumerate(args) if i not in fixed]
        mapped += [asarray(kwargs[k]) for k in mapped_names]

        def call(*inner: Any) -> Any:
            rest = iter(inner)
            positional = [fixed[i] if i in fixed else next(rest) for i in range(len(args))]
            return pyfunc(*positional, **named, **dict(zip(mapped_names, rest, strict=True)))

        if signature is None:
            cores: list[Core] = [()] * len(mapped)
            outs: list[Core] | None = None
        else:
            cores, outs = parse_signature(signature)
            if len(cores) != len(mapped):
                raise TypeError(
                    f"wrong number of positional arguments: expected {len(cores)}, got "
                    f"{len(mapped)}"
                )
        sizes: dict[str, int] = {}
        leads = []
        for i, (x, core) in enumerate(zip(mapped, cores, strict=True)):
            if x.ndim < len(core):
                raise ValueError(
                    f"input with shape {x.shape} does not have enough dimensions for all core "
                    f"dimensions {core}"
                )
            split = x.ndim - len(core)
            check_sizes(sizes, x.shape[split:], core, f"input {i}")
            leads.append(x.shape[:split])
        lead = broadcast_shapes(*leads) if leads else ()
        checked_call = call if outs is None else with_output_check(call, outs, sizes)
        return mapped_call(checked_call, mapped, leads, lead)

    return api_boundary(wrapped)


def with_output_check(
    call: Callable[..., Any], outs: list[Core], sizes: dict[str, int]
) -> Callable[..., Any]:
    """`call` whose outputs must have the core dimensions of the signature."""

    def checked_call(*args: Any) -> Any:
        out = call(*args)
        values = out if isinstance(out, tuple) else (out,)
        if len(values) != len(outs):
            raise TypeError(
                f"wrong number of output arguments: expected {len(outs)}, got {len(values)}"
            )
        known = dict(sizes)
        for value, core in zip(values, outs, strict=True):
            shape = np.shape(value)
            if len(shape) != len(core):
                raise ValueError(
                    f"output shape {shape} does not match core dimensions {core} of the signature"
                )
            check_sizes(known, shape, core, "output")
        return out

    return checked_call


def mapped_call(
    call: Callable[..., Any],
    arrays: list[Array],
    leads: list[tuple[int, ...]],
    lead: tuple[int, ...],
) -> Any:
    """One vmap per broadcast axis; an operand that does not vary along it is passed whole."""
    rank = len(lead)
    f = call
    axes_of: list[list[bool]] = []
    for d in range(rank):
        axes_of.append(
            [
                d >= rank - len(own)
                and own[d - (rank - len(own))] != 1
                or (lead[d] == 1 and d >= rank - len(own))
                for own in leads
            ]
        )
    operands = []
    for x, own in zip(arrays, leads, strict=True):
        node = x.node
        dropped = tuple(i for i, s in enumerate(own) if s == 1 and lead[rank - len(own) + i] != 1)
        operands.append(finish(b.squeeze(node, dropped)) if dropped else x)
    for d in reversed(range(rank)):
        flags = axes_of[d]
        if not any(flags):  # an axis of size 1 that all operands lack cannot be
            continue
        f = vmap(f, in_axes=tuple(0 if used else None for used in flags))
    return f(*operands)


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any
) -> Array:
    """A function of vectors mapped over all vectors along an axis."""
    (n,) = checked("apply_along_axis", arr)
    place = canonical_axis(axis, n.ndim)
    f: Callable[..., Any] = lambda x: func1d(x, *args, **kwargs)
    for _ in range(n.ndim - place - 1):
        f = vmap(f, in_axes=1, out_axes=-1)
    for _ in range(place):
        f = vmap(f, in_axes=0, out_axes=0)
    return f(finish(n))  # type: ignore[no-any-return]


def apply_over_axes(func: Callable[..., Any], a: ArrayLike, axes: Sequence[int]) -> Array:
    """`func(a, axis)` for one axis after the other, keeping the rank."""
    out = asarray(a)
    for axis in axes:
        made = func(out, axis)
        if made.ndim == out.ndim - 1:
            place = canonical_axis(axis, out.ndim)
            made = finish(b.unsqueeze(made.node, place))
        if made.ndim != out.ndim:
            raise ValueError("function is not returning an array of the correct shape")
        out = made
    return out


class ufunc:
    """An elementwise function with `reduce`, `accumulate`, `at`, `outer` and `reduceat`.

    Made by `frompyfunc`. The binary methods fold with the function itself by a scan, in order;
    `identity` is what a reduction of nothing gives.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ) -> None:
        self._func = func
        self.nin, self.nout, self.identity = nin, nout, identity
        self.nargs = nin if nargs is None else nargs
        self.__name__ = name or getattr(func, "__name__", "ufunc")
        self.__doc__ = func.__doc__
        self._call = call or vectorize(func)
        self._own = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}
        self.__signature__ = inspect.signature(func) if callable(func) else None

    def __call__(self, *args: ArrayLike, out: None = None, where: None = None) -> Any:
        return self._call(*args)

    def __repr__(self) -> str:
        return f"<jnp.ufunc {self.__name__!r}>"

    def __hash__(self) -> int:
        return hash((self._func, self.nin, self.nout))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and (self._func, self.nin, self.nout) == (
            other._func,
            other.nin,
            other.nout,
        )

    def _binary(self, method: str) -> None:
        if self.nin != 2 or self.nout != 1:
            raise ValueError(f"{method} only supported for binary ufuncs with one output")

    def reduce(
        self,
        a: ArrayLike,
        axis: int | None = 0,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayLike | None = None,
    ) -> Array:
        """Fold an axis (all axes if None)."""
        self._binary("reduce")
        if self._own["reduce"] is not None:
            return self._own["reduce"](  # type: ignore[no-any-return]
                a, axis, dtype, None, keepdims, initial, where
            )
        x = asarray(a)
        if dtype is not None:
            x = x.astype(dtype)
        kept = x.shape
        if axis is None:
            place, n = 0, b.reshape(x.node, (x.size,))
            kept = (1,) * len(kept)
        else:
            place, n = canonical_axis(axis, x.ndim), x.node
            kept = tuple(1 if i == place else s for i, s in enumerate(kept))
        n = b.moveaxis(n, place, 0)
        start = initial if initial is not None else self.identity
        if where is not None and start is None:
            raise ValueError(f"reduce with where needs an initial value, as {self} has no identity")
        if start is None:
            if not n.shape[0]:
                raise ValueError("zero-size array to reduction operation with no identity")
            first = finish(b.squeeze(b.slice_axis(n, 0, 0, 1), (0,)))
            n = b.slice_axis(n, 0, 1, n.shape[0])
        else:
            first = finish(b.broadcast(b.cast(asarray(start).node, n.dtype), n.shape[1:]))
        xs: Any = finish(n)
        if where is None:
            step = lambda c, v: (asarray(self._call(c, v)), None)
        else:
            mask = broadcast_to(asarray(where), x.shape).node
            mask = b.reshape(mask, (x.size,)) if axis is None else b.moveaxis(mask, place, 0)
            xs = (finish(n), finish(mask))
            step = lambda c, v: (
                finish(b.where(v[1].node, asarray(self._call(c, v[0])).node, c.node)),
                None,
            )
        out_array = scan(step, first, xs)[0]
        return finish(b.reshape(out_array.node, kept)) if keepdims else out_array

    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: Any = None, out: None = None) -> Array:
        """Fold an axis, keeping every partial result."""
        self._binary("accumulate")
        if self._own["accumulate"] is not None:
            return self._own["accumulate"](a, axis, dtype)  # type: ignore[no-any-return]
        x = asarray(a)
        if dtype is not None:
            x = x.astype(dtype)
        place = canonical_axis(axis, x.ndim)
        n = b.moveaxis(x.node, place, 0)
        if not n.shape[0]:
            return x
        head = b.slice_axis(n, 0, 0, 1)

        def step(c: Any, v: Any) -> Any:
            made = asarray(self._call(c, v))
            return made, made

        rest = scan(step, finish(b.squeeze(head, (0,))), finish(b.slice_axis(n, 0, 1, n.shape[0])))[
            1
        ]
        return finish(b.moveaxis(b.concat([b.cast(head, rest.dtype), rest.node], 0), 0, place))

    def at(
        self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, /, *, inplace: bool = True
    ) -> Array:
        """`a` with the function applied at indices, once per occurrence; `inplace` is False."""
        if inplace:
            raise NotImplementedError(
                "JAX arrays are immutable: pass inplace=False to get the updated array."
            )
        x: Any = asarray(a)
        if self.nin == 1:
            return x.at[indices].apply(self._call)  # type: ignore[no-any-return]
        self._binary("at")
        if self._own["at"] is not None:
            return self._own["at"](x, indices, b)  # type: ignore[no-any-return]
        if b is None:
            raise ValueError("ufunc.at of a binary function needs a second operand")
        where: Any = asarray(indices) if not isinstance(indices, tuple) else indices
        if isinstance(where, tuple) or not where.ndim:
            return x.at[where].set(self._call(x[where], b))  # type: ignore[no-any-return]
        values = broadcast_to(asarray(b), (*where.shape, *x.shape[1:]))
        flat_where: Any = where.reshape(-1)
        flat_values: Any = values.reshape(where.size, *x.shape[1:])

        def step(i: Any, c: Any) -> Any:
            k = flat_where[i]
            return c.at[k].set(asarray(self._call(c[k], flat_values[i])).astype(c.dtype))

        return fori_loop(0, int(where.size), step, x)  # type: ignore[no-any-return]

    def outer(self, A: ArrayLike, B: ArrayLike, /) -> Any:
        """The function of all pairs of elements."""
        self._binary("outer")
        p, q = asarray(A), asarray(B)
        wide = b.reshape(p.node, (*p.shape, *(1,) * q.ndim))
        return self._call(finish(wide), q)

    def reduceat(
        self, a: ArrayLike, indices: Any, axis: int = 0, dtype: Any = None, out: None = None
    ) -> Array:
        """Fold slices: from each index to the next one, or one element if that is not larger."""
        self._binary("reduceat")
        if self._own["reduceat"] is not None:
            return self._own["reduceat"](a, indices, axis, dtype)  # type: ignore[no-any-return]
        x: Any = asarray(a)
        known = concrete(asarray(indices))
        if known is None:
            raise ConcretizationTypeError(
                asarray(indices), "  ufunc.reduceat needs static indices."
            )
        place = canonical_axis(axis, x.ndim)
        stops = [*known[1:].tolist(), x.shape[place]]
        parts = []
        for start, stop in zip(known.tolist(), stops, strict=True):
            chosen = b.slice_axis(x.node, place, start, max(stop, start + 1))
            parts.append(self.reduce(finish(chosen), place, dtype))
        return stack(parts, place)


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A `ufunc` from a function of scalars."""
    return ufunc(func, nin, nout, identity=identity)
