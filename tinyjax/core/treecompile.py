"""Flattening and unflattening of one structure as straight-line Python, compiled with `exec`.

This is what a jitted function runs on every call: `compile_flatten` makes the guard that checks the
structure and reads the leaves, `compile_unflatten` the code that packs the results. Children are
named, so deep nesting does not make deep expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyjax.core.treedef import PyTreeDef

SEQUENCES = ("tuple", "list", "namedtuple")
"""Kinds of nodes that are iterable over their children."""

COMPILE_AFTER = 8
"""Uses of `unflatten` before it is compiled, which costs as much as some tens of uses."""

COMPILE_MAX_NODES = 4000
"""Larger structures stay interpreted: compiling would take tens of milliseconds."""

FILENAME = "<tinyjax pytree>"
"""Shown by profilers; source.py takes it for one of our files."""


def values_getter(keys: tuple[Any, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """dict -> its values at `keys`, as a tuple."""
    if len(keys) > 1:
        return itemgetter(*keys)
    if keys:
        (only,) = keys
        return lambda d: (d[only],)
    return lambda d: ()


def literal(keys: tuple[Any, ...]) -> bool:
    """Whether the keys can stand in source text."""
    return all(type(k) is str or type(k) is int for k in keys)


def compile_unflatten(
    of: PyTreeDef, count_error: Callable[[Any], Exception]
) -> Callable[[Iterable[Any]], Any]:
    """`unflatten` of one structure as straight-line code: unpack, then one display per node.

    Children come first and have names, so nesting does not deepen the expressions.
    """
    names: dict[str, Any] = {"count_error": count_error}
    lines: list[str] = []
    leaf = iter(range(of.num_leaves))

    def emit(part: PyTreeDef) -> str:
        node = part._node
        if node is None:
            return f"l{next(leaf)}"
        if node.kind == "none":
            return "None"
        parts = [emit(c) for c in part._children]
        listed = ", ".join(parts)
        number = len(lines)
        if node.kind == "tuple":
            text = f"({listed},)" if parts else "()"
        elif node.kind == "list":
            text = f"[{listed}]"
        elif node.kind == "dict" and literal(part._aux):
            text = "{" + ", ".join([f"{k!r}: {p}" for k, p in zip(part._aux, parts)]) + "}"
        elif node.kind == "namedtuple":
            names[f"f{number}"] = node.type
            text = f"f{number}({listed})"
        else:
            names[f"f{number}"], names[f"a{number}"] = node.unflatten, part._aux
            text = f"f{number}(a{number}, ({listed}{',' if parts else ''}))"
        lines.append(f"t{number} = {text}")
        return f"t{number}"

    result = emit(of)
    unpack = [f"[{', '.join([f'l{i}' for i in range(of.num_leaves)])}] = leaves"]
    body = [
        "if type(leaves) is not list and type(leaves) is not tuple: leaves = list(leaves)",
        f"if len(leaves) != {of.num_leaves}: raise count_error(leaves)",
        *(unpack if of.num_leaves else []),
        *lines,
        f"return {result}",
    ]
    compiled: Callable[[Iterable[Any]], Any] = define("unflatten", "leaves", body, names)
    return compiled


def compile_flatten(of: PyTreeDef, names: dict[str, Any]) -> Callable[[Any], list[Any] | None]:
    """The structure guard of `of`: check every node, then every leaf's type in one operation.

    `names` are the registry's: `nodes`, `same(aux, aux)`, `known(types)`, `are_leaves(xs)`.
    """
    names = dict(names)
    lines: list[str] = []
    leaves: list[str] = []

    def emit(part: PyTreeDef, x: str) -> None:
        node, parts = part._node, part._children
        if node is None:
            leaves.append(x)
            return
        number = len(lines)
        if node.kind == "none":
            lines.append(f"if {x} is not None: return None")
            return
        check = f"type({x}) is not c{number}"
        names[f"c{number}"] = node.type
        if node.kind in SEQUENCES:
            if node.kind == "namedtuple":  # the class may be registered later, as something else
                check, names[f"c{number}"] = f"nodes.get(type({x})) is not c{number}", node
            lines.append(f"if {check} or len({x}) != {len(parts)}: return None")
            unpack = x
        elif node.kind == "dict":
            lines.append(f"if {check} or len({x}) != {len(parts)}: return None")
            names[f"g{number}"] = values_getter(part._aux)
            unpack = f"g{number}({x})"
        elif node.fields is not None:
            data, meta = node.fields
            lines.append(f"if {check}: return None")
            if meta:
                names[f"a{number}"] = part._aux
                mine = "".join([f"{x}.{f}, " for f in meta])
                lines.append(f"if not same(a{number}, ({mine})): return None")
            unpack = "(" + "".join([f"{x}.{f}, " for f in data]) + ")"
        else:
            names[f"g{number}"], names[f"a{number}"] = node.flatten, part._aux
            lines.append(f"if {check}: return None")
            lines.append(f"x{number}, aux = g{number}({x})")
            lines.append(
                f"if len(x{number}) != {len(parts)} or not same(a{number}, aux): return None"
            )
            unpack = f"x{number}"
        if not parts:
            return
        if all(c._node is None for c in parts):
            leaves.append(f"*{unpack}")
            return
        children = [f"x{number}_{i}" for i in range(len(parts))]
        lines.append(f"[{', '.join(children)}] = {unpack}")
        for c, name in zip(parts, children):
            emit(c, name)

    emit(of, "x")
    body = [
        "try:",
        *[f"  {line}" for line in lines],
        f"  leaves = [{', '.join(leaves)}]",
        "except KeyError: return None",
        "return leaves if known(map(type, leaves)) or are_leaves(leaves) else None",
    ]
    compiled: Callable[[Any], list[Any] | None] = define("flatten", "x", body, names)
    return compiled


def define(name: str, argument: str, body: list[str], names: dict[str, Any]) -> Any:
    """The function with this body; `names` are its globals."""
    text = f"def {name}({argument}):\n" + "\n".join([f"  {line}" for line in body])
    exec(compile(text, FILENAME, "exec"), names)
    return names[name]
