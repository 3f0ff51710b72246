"""Arguments with symbolic sizes: `jit(f, dynamic_shapes=...)`, and finding the sizes at a call.

    n = Dim("n", 1, 4096)
    step = jit(f, dynamic_shapes={"tokens": {1: n}})       # by name, axis 1 of `tokens`
    step = jit(f, dynamic_shapes=(None, (None, n)))        # by place, a size or None per axis

A specification is a prefix of the argument's tree: it counts for all arrays below. Axes without a
symbolic size keep the size they have at the call, as everywhere in jit. What a call finds are the
values of the dimensions, checked against their bounds; the function is traced for the symbolic
sizes, once.

Inside another trace (a jitted function called by a jitted one, under grad or vmap) sizes are what
they are there, and `dynamic_shapes` does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinyjax.core.avals import Aval
from tinyjax.core.dims import (
    Atom,
    Dim,
    DimExpr,
    Size,
    bounds_of,
    describe,
    dims_of,
    evaluate,
    is_symbolic,
    linear,
)
from tinyjax.core.shapes import same_shape
from tinyjax.core.treedef import tree_flatten

Axes = Mapping[int, Size]
Equation = tuple[int, int, DimExpr, Size]
"""Argument, axis, the symbolic size, the actual one."""


def is_axes(spec: Any) -> bool:
    """Whether a specification is of the axes of arrays: {axis: size}, or a size or None for each."""
    if isinstance(spec, dict):
        return bool(spec) and all(isinstance(k, int) for k in spec)
    return isinstance(spec, (tuple, list)) and any(is_symbolic(s) for s in spec)


def axes_of(spec: Any, path: str) -> Axes:
    """{axis: symbolic size} of a specification of axes."""
    items = spec.items() if isinstance(spec, dict) else enumerate(spec)
    found: dict[int, Size] = {}
    for axis, size in items:
        if size is None:
            continue
        if not is_symbolic(size):
            raise TypeError(
                f"dynamic_shapes of {path}: axis {axis} has {size!r}; give a Dim (or an expression of "
                "Dims), or None for an axis whose size is part of the signature."
            )
        found[axis] = size
    return found


def specified(arg: Any, spec: Any, path: str) -> list[Axes]:
    """The symbolic axes of each array of an argument."""
    count = len(tree_flatten(arg)[0])
    if spec is None:
        return [{}] * count
    if is_axes(spec):
        return [axes_of(spec, path)] * count
    if isinstance(spec, dict) and isinstance(arg, dict):
        unknown = set(spec) - set(arg)
        if not unknown:
            return [
                axes
                for key in sorted(arg)
                for axes in specified(arg[key], spec.get(key), f"{path}[{key!r}]")
            ]
    elif isinstance(spec, (tuple, list)) and isinstance(arg, (tuple, list)):
        if len(spec) == len(arg):
            return [
                axes
                for i, (a, s) in enumerate(zip(arg, spec, strict=True))
                for axes in specified(a, s, f"{path}[{i}]")
            ]
    raise ValueError(
        f"dynamic_shapes of {path} does not fit it: {spec!r} for {tree_flatten(arg)[1]}.\n"
        "  For an array give {axis: Dim} or (Dim or None, ...) with an entry per axis; for a tree "
        "the same, for all arrays in it, or a tree of such."
    )


def by_argument(fun: Callable[..., Any], spec: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The specifications of positional and keyword arguments."""
    if isinstance(spec, (tuple, list)):
        if len(spec) > len(args):
            raise ValueError(
                f"dynamic_shapes has {len(spec)} entries for {len(args)} positional arguments.\n"
                "  Give a dict by name for arguments that are passed by keyword."
            )
        return [*spec, *[None] * (len(args) - len(spec))], dict.fromkeys(kwargs)
    if not isinstance(spec, dict):
        raise TypeError(
            f"dynamic_shapes must be a tuple with an entry per argument or a dict by argument name, "
            f"got {spec!r}."
        )
    names = [p.name for p in inspect.signature(fun).parameters.values()]
    unknown = set(spec) - set(names) - set(kwargs)
    if unknown:
        raise ValueError(
            f"dynamic_shapes names {', '.join(sorted(map(repr, unknown)))}, but the arguments are "
            f"{', '.join(names)}."
        )
    given = [spec.get(name) for name in names[: len(args)]]
    given += [None] * (len(args) - len(given))
    return given, {k: spec.get(k) for k in kwargs}


def symbolic_avals(
    fun: Callable[..., Any],
    spec: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    avals: Sequence[Any],
    paths: Callable[[], list[str]],
) -> list[Any]:
    """The avals of the arguments with the symbolic sizes that `dynamic_shapes` gives them.

    Raises: ValueError for an axis that an array does not have, or a size out of bounds.
    """
    given, named = by_argument(fun, spec, args, kwargs)
    names = [p.name for p in inspect.signature(fun).parameters.values()]
    axes: list[Axes] = []
    for i, (arg, each) in enumerate(zip(args, given, strict=True)):
        axes += specified(arg, each, names[i] if i < len(names) else f"args[{i}]")
    for key in sorted(kwargs):
        axes += specified(kwargs[key], named[key], key)
    made: list[Any] = []
    for i, (of, symbolic) in enumerate(zip(avals, axes, strict=True)):
        shape = list(of.shape) if symbolic else []
        for axis, size in symbolic.items():
            if not -len(shape) <= axis < len(shape):
                raise ValueError(
                    f"dynamic_shapes of {paths()[i]}: it has no axis {axis}, its shape is {of.shape}.\n"
                    "  Axes are counted from 0."
                )
            shape[axis] = size
        made.append(of.update(shape=tuple(shape)) if symbolic else of)
    return made


def find_sizes(
    symbolic: Sequence[Aval], actual: Sequence[Aval], paths: Callable[[], list[str]]
) -> dict[Atom, Size]:
    """The values of the dimensions for which symbolic avals are the actual ones.

    Actual sizes may be symbolic themselves, as where one function of symbolic sizes is called by
    another; the values are sizes then.
    Raises: TypeError where ranks, fixed sizes or dtypes differ; ValueError for a size out of bounds
    or two different sizes for one dimension; each names the argument and the axis.
    """
    found: dict[Atom, Size] = {}
    where: dict[Atom, tuple[int, int]] = {}
    later: list[Equation] = []
    for i, (of, given) in enumerate(zip(symbolic, actual, strict=True)):
        if of.ndim != given.ndim or of.dtype != given.dtype:
            raise mismatch(paths()[i], of, given)
        for axis, (size, value) in enumerate(zip(of.shape, given.shape, strict=True)):
            if isinstance(size, Dim):
                atom = size.atom
                if atom not in found:
                    check_bounds(size, value, lambda: axis_of(paths()[i], axis))  # noqa: B023
                    found[atom], where[atom] = value, (i, axis)
                elif not same_size(found[atom], value):
                    j, first = where[atom]
                    raise ValueError(
                        f"{axis_of(paths()[i], axis)} has size {value}, but "
                        f"{axis_of(paths()[j], first)} has size {found[atom]}; both are {atom.name}.\n"
                        "  Sizes of one Dim must be equal; give the axes different Dims if they need "
                        "not be."
                    )
            elif is_symbolic(size):
                later.append((i, axis, size, value))
            elif not same_size(size, value):
                raise mismatch(paths()[i], of, given)
    solve(later, found, lambda i, axis: axis_of(paths()[i], axis))
    return found


def solve(
    equations: list[Equation], found: dict[Atom, Size], place: Callable[[int, int], str]
) -> None:
    """Add the dimensions that axes tell whose sizes are expressions, and check those axes.

    An axis tells a dimension if all others in its size are known and the size is linear in it.
    Raises: ValueError if an axis does not have the size that it should, or tells nothing.
    """
    waiting = list(equations)
    while waiting:
        ready = (k for k, (_, _, size, _) in enumerate(waiting) if told(size, found) is not None)
        i, axis, size, value = waiting.pop(next(ready, 0))
        new = told(size, found)
        if new is None:
            names = ", ".join(a.name for a in dims_of([size]) if a not in found)
            raise ValueError(
                f"{place(i, axis)} has size {value} and is {size}, from which {names} cannot be told.\n"
                f"  Let an axis of some argument be {names} itself."
            )
        for atom, slope, rest in new:
            found[atom] = (value - rest) // slope * atom.multiple
        if not same_size(evaluate(size, found), value):
            raise ValueError(
                f"{place(i, axis)} has size {value}, but it is {size} = {evaluate(size, found)} where "
                + ", ".join(f"{a.name} = {found[a]}" for a in dims_of([size]))
                + f".\n  Pad or cut the axis to {evaluate(size, found)}."
            )
        for atom, _, _ in new:
            where = f"{atom.name} (from {place(i, axis)}, which is {size})"
            check_bounds(dim_of(atom), found[atom], lambda: where)  # noqa: B023


def told(size: DimExpr, found: Mapping[Atom, Size]) -> list[tuple[Atom, int, Size]] | None:
    """The dimension that an axis of this size tells, as (atom, slope, rest) of slope * atom + rest;
    [] if all are known, None if it tells none."""
    unknown = [a for a in dims_of([size]) if a not in found]
    if len(unknown) != 1:
        return None if unknown else []
    (atom,) = unknown
    slope, rest = linear(evaluate(size, {**found, atom: dim_of(atom)}), atom)
    return [(atom, slope, rest)] if slope else None


def dim_of(atom: Atom) -> DimExpr:
    """The dimension as a size."""
    return DimExpr.of_atom(atom) * atom.multiple  # type: ignore[no-any-return]


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal whatever the values of dimensions."""
    return same_shape((a,), (b,))


def check_bounds(size: DimExpr, value: Size, where: Callable[[], str]) -> None:
    """Raise if a dimension may not have a value."""
    (atom,) = dims_of([size])
    low, high = bounds_of(value)
    unit = atom.multiple
    if atom.low * unit <= low and high <= atom.high * unit and same_size(value % unit, 0):
        return
    raise ValueError(
        f"{where()} has size {value} {describe(value)}".rstrip()
        + f", but its dimension is symbolic {describe(size)}.\n  Widen the bounds of "
        f"Dim({atom.name!r}, ...), pad the array, or compile for this size alone, without a Dim."
    )


def axis_of(path: str, axis: int) -> str:
    """For messages."""
    return f"axis {axis} of argument {path}"


def mismatch(path: str, of: Aval, given: Aval) -> TypeError:
    """The error for an argument that the symbolic aval does not describe."""
    return TypeError(
        "Argument types differ from the types for which this computation was compiled: argument "
        f"{path} compiled for {of.str_short()}, called with {given.str_short()}.\n"
        "  Convert the argument, or lower and compile the function for what it is."
    )
