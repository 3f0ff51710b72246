"""Abstract values: what is known of an array before it exists. Interned, compared by identity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinyjax.core import dtypes
from tinyjax.core.dims import Size
from tinyjax.core.errors import SizeError

Shape = tuple[Size, ...]


class Interned(type):
    """Calling the class gives the interned object too: users write `ShapedArray((3,), float)`."""

    def __call__(
        cls, shape: Sequence[Any], dtype: Any, weak_type: bool = False, *, sharding: Any = None
    ) -> Aval:
        return aval(tuple(shape), dtypes.as_dtype(dtype), weak_type)


class Aval(metaclass=Interned):
    """Shape, dtype and weak flag of one array; equal ones are one object. Ours are made by `aval`."""

    __slots__ = ("dtype", "ndim", "shape", "size", "weak_type")

    shape: Shape
    dtype: Any
    weak_type: bool
    ndim: int
    size: int

    def __init__(self, shape: Shape, dtype: Any, weak_type: bool) -> None:
        self.shape, self.dtype, self.weak_type = shape, dtype, weak_type
        self.ndim, self.size = len(shape), math.prod(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the value stored densely."""
        return self.size * int(self.dtype.itemsize)

    def update(
        self, shape: Shape | None = None, dtype: Any = None, weak_type: bool | None = None
    ) -> Aval:
        """The same with some fields replaced."""
        return aval(
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.weak_type if weak_type is None else weak_type,
        )

    def strip_weak_type(self) -> Aval:
        """The same, not weakly typed."""
        return aval(self.shape, self.dtype) if self.weak_type else self

    def to_tangent_aval(self) -> Aval:
        """That of a tangent: float0 for what has no derivative."""
        if dtypes.is_inexact(self.dtype):
            return self
        return aval(self.shape, dtypes.float0)

    def str_short(self, short_dtypes: bool = True) -> str:
        """`f32[8,3]`, as jaxprs print it; without `short_dtypes`, `float32[8,3]`."""
        if not short_dtypes:
            return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
        if self is TOKEN:
            return "token"
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self.str_short()}{weak})"

    def __reduce__(self) -> tuple[Any, ...]:
        return aval, (self.shape, self.dtype, self.weak_type)


class TupleAval:
    """The avals of a node with several results."""

    __slots__ = ("elts",)

    elts: tuple[Aval, ...]

    def __init__(self, elts: tuple[Aval, ...]) -> None:
        self.elts = elts

    def __repr__(self) -> str:
        return f"({', '.join(a.str_short() for a in self.elts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple_aval, (self.elts,)


_avals: dict[tuple[Shape, Any, bool], Aval] = {}
_tuples: dict[tuple[Aval, ...], TupleAval] = {}


def aval(shape: Shape, dtype: Any, weak_type: bool = False) -> Aval:
    """The interned aval of these fields (`dict.setdefault` is atomic, so threads agree).

    Raises: SizeError for a negative size.
    """
    key = (shape, dtype, weak_type)
    found = _avals.get(key)
    if found is None:
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise SizeError(f"Shapes must be non-negative, got {shape}.")
        made: Aval = object.__new__(Aval)
        made.__init__(shape, dtype, weak_type)  # type: ignore[misc]
        found = _avals.setdefault(key, made)
    return found


TOKEN = aval((), dtypes.bool_, True)
"""What an effect takes from the one before it and hands to the next: the chain of tokens keeps
effects in order and alive. No user's bool is weakly typed, so this aval is its own mark; lowered it
is one byte like any other value, and no pass needs to know of it."""


def tuple_aval(elts: tuple[Aval, ...]) -> TupleAval:
    """The interned aval of several results."""
    found = _tuples.get(elts)
    if found is None:
        found = _tuples.setdefault(elts, TupleAval(elts))
    return found
