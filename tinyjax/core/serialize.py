"""Closed bodies and pytree structures as text, and back: a stable format without pickle.

A body is a JSON list of nodes in dependency order, each `[op name, [source numbers], static data]`.
Static data are tagged values, since JSON has neither tuples nor dtypes:

    null, true, 3, "s"          themselves          {"t": [...]}   tuple      {"f": "0x1.8p+0"}  float
    {"c": [re, im]}  complex    {"b": "00ff"} bytes {"l": [...]}   list       {"d": "float32"}   dtype
    {"k": "threefry2x32"}  typed key dtype          {"a": [shape, dtype, weak]}  aval
    {"i": ["ScanInfo", {field: value}]}  an info of core/infos.py, fields at their defaults left out
    {"s": [[2, [["n", 1, 64, 1]]], [1, []]]}  the symbolic size 2*n + 1: terms of a coefficient and
        factors, which are dimensions [name, low, high, multiple] or operations ["max", size, size]

A dimension with a multiple counts in units of it, its bounds too (core/dims.py). Sizes are made again
by arithmetic, so what was one size is one object.

Nothing in a text is executed: reading makes nodes, whose constructor checks shapes and dtypes. Names
of ops, infos and their fields are part of the format; VERSION changes when one changes meaning.
Version 2 has symbolic sizes; version 1 is the same without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes, infos
from tinyjax.core.avals import Aval, aval
from tinyjax.core.dims import OPERATIONS, Atom, Dim, DimExpr, Size
from tinyjax.core.ops import Op
from tinyjax.core.tree import default_registry
from tinyjax.core.treedef import PyTreeDef
from tinyjax.core.uop import UOp, toposort

VERSION = 2

INFOS = {
    cls.__name__: cls
    for cls in (
        infos.CallInfo, infos.ScanInfo, infos.WhileInfo, infos.DotInfo, infos.GatherInfo,
        infos.ScatterInfo, infos.HostCallInfo, infos.CustomLinInfo,
    )
}  # fmt: skip


class SerializationError(ValueError):
    """Something that has no serialised form, or a text that is not one."""


# --- static data --------------------------------------------------------------------------------------


def encode(x: Any) -> Any:
    """Static data as JSON. Raises: `SerializationError` for what the format lacks."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return {"f": x.hex()}
    if type(x) is complex:
        return {"c": [x.real.hex(), x.imag.hex()]}
    if type(x) is bytes:
        return {"b": x.hex()}
    if type(x) is tuple:
        return {"t": [encode(v) for v in x]}
    if type(x) is list:
        return {"l": [encode(v) for v in x]}
    if isinstance(x, Aval):
        return {"a": [[encode(s) for s in x.shape], encode(x.dtype), x.weak_type]}
    if isinstance(x, DimExpr):
        return {"s": [[c, [encode_factor(a) for a in m]] for m, c in x.terms]}
    if dtypes.is_key(x):
        return {"k": x.impl.name}
    if isinstance(x, np.dtype):
        return {"d": x.name}
    if isinstance(x, np.generic):
        return encode(x.item())
    if type(x).__name__ in INFOS and isinstance(x, INFOS[type(x).__name__]):
        fields = {
            f.name: encode(getattr(x, f.name))
            for f in dataclasses.fields(x)
            if f.default is dataclasses.MISSING or getattr(x, f.name) != f.default
        }
        return {"i": [type(x).__name__, fields]}
    raise SerializationError(
        f"{x!r} of type {type(x).__name__} has no serialised form: only functions of arrays without "
        "Python callbacks can be exported"
    )


def encode_factor(a: Atom) -> list[Any]:
    """A factor of a term of a symbolic size."""
    if a.kind == "dim":
        return [a.name, a.low, a.high, a.multiple]
    return [a.kind, *map(encode, a.args)]


def decode_factor(x: Any) -> Size:
    """The inverse of `encode_factor`, as a size. Raises: ValueError for impossible bounds."""
    if len(x) == 4:
        name, low, high, multiple = x
        return Dim(name, low * multiple, high * multiple, multiple_of=multiple) // multiple
    kind, a, b = x
    return OPERATIONS[kind](decode(a), decode(b))


def decode(x: Any) -> Any:
    """The inverse of `encode`. Raises: `SerializationError`."""
    if not isinstance(x, dict):
        return x
    if len(x) != 1:
        raise SerializationError(f"not a tagged value: {x!r}")
    ((tag, value),) = x.items()
    rule = DECODE.get(tag)
    if rule is None:
        raise SerializationError(f"unknown tag {tag!r}")
    return rule(value)


def _info(value: Any) -> Any:
    name, fields = value
    if name not in INFOS:
        raise SerializationError(f"unknown info {name!r}")
    return INFOS[name](**{k: decode(v) for k, v in fields.items()})


DECODE: dict[str, Callable[[Any], Any]] = {
    "f": float.fromhex,
    "c": lambda v: complex(float.fromhex(v[0]), float.fromhex(v[1])),
    "b": bytes.fromhex,
    "t": lambda v: tuple(decode(e) for e in v),
    "l": lambda v: [decode(e) for e in v],
    "a": lambda v: aval(tuple(decode(s) for s in v[0]), decode(v[1]), bool(v[2])),
    "s": lambda v: sum(c * math.prod(map(decode_factor, m)) for c, m in v),
    "k": dtypes.KeyDType,
    "d": dtypes.as_dtype,
    "i": _info,
}


# --- bodies --------------------------------------------------------------------------------------------


def plain_call(info: infos.CallInfo) -> infos.CallInfo:
    """A call as it computes: rules for derivatives and checkpointing do not travel."""
    if info.rule is None and info.policy is None and info.kind != "checkpoint":
        return dataclasses.replace(info, repeat=None)
    return infos.CallInfo("jit", info.name)


def encode_body(body: UOp) -> list[Any]:
    """Nodes of a closed body, those of the bodies in it included; the last one is the body."""
    order = toposort([body], bodies=True)
    number = {n: i for i, n in enumerate(order)}
    rows = []
    for node in order:
        if node.op is Op.CALLBACK or node.op is Op.KERNEL:
            raise SerializationError(
                "the function calls back into Python (debug.print, pure_callback, io_callback or a "
                "kernel of the user's); such a call cannot be exported"
            )
        if node.op is Op.BUFFER or node.op is Op.VAR:
            raise SerializationError(f"the body is not closed: it holds {node!r}")
        arg = plain_call(node.arg) if node.op is Op.CALL else node.arg
        rows.append([node.op.name, [number[s] for s in node.src], encode(arg)])
    return rows


def decode_body(rows: Sequence[Any]) -> UOp:
    """The inverse of `encode_body`. Raises: `SerializationError` naming the node."""
    nodes: list[UOp] = []
    for i, row in enumerate(rows):
        try:
            name, src, arg = row
            if any(not 0 <= s < i for s in src):
                raise SerializationError("it reads a later node")
            nodes.append(UOp(Op[name], tuple(nodes[s] for s in src), decode(arg)))
        except SerializationError as error:
            raise SerializationError(f"node {i}: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SerializationError(f"node {i} is not valid: {row!r} ({error})") from error
    if not nodes or nodes[-1].op is not Op.TUPLE:
        raise SerializationError("the last node is not a body")
    return nodes[-1]


# --- pytrees --------------------------------------------------------------------------------------------

CONTAINERS: dict[str, type] = {"none": type(None), "tuple": tuple, "list": list, "dict": dict}


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFormat:
    """How a registered pytree node travels: a name, and its auxiliary data as bytes."""

    kind: type
    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]


NODE_FORMATS: dict[str, NodeFormat] = {}


def register_node(
    kind: type, name: str, to_bytes: Callable[[Any], bytes], from_bytes: Callable[[bytes], Any]
) -> None:
    """Give a registered pytree node type a serialised form. Raises: ValueError if it has one."""
    taken = NODE_FORMATS.get(name)
    if taken is not None or any(f.kind is kind for f in NODE_FORMATS.values()):
        raise ValueError(f"Duplicate serialization registration for {kind!r} or name {name!r}")
    NODE_FORMATS[name] = NodeFormat(kind, to_bytes, from_bytes)


def encode_tree(tree: PyTreeDef) -> Any:
    """A structure: "*" for a leaf, else [name, data, children]."""
    data = tree.node_data()
    if data is None:
        return "*"
    kind, aux = data
    children = [encode_tree(c) for c in tree.children()]
    for name, plain in CONTAINERS.items():
        if kind is plain:
            return [name, encode(aux) if name == "dict" else None, children]
    for name, form in NODE_FORMATS.items():
        if form.kind is kind:
            return [f"node:{name}", form.to_bytes(aux).hex(), children]
    raise SerializationError(
        f"Cannot serialize PyTree node type {kind}: register it with "
        "export.register_pytree_node_serialization or register_namedtuple_serialization"
    )


def decode_tree(x: Any) -> PyTreeDef:
    """The inverse of `encode_tree`."""
    if x == "*":
        return PyTreeDef.from_node_data_and_children(default_registry, None, ())
    name, data, children = x
    parts = [decode_tree(c) for c in children]
    if name.startswith("node:"):
        form = NODE_FORMATS.get(name[5:])
        if form is None:
            raise SerializationError(
                f"PyTree node type {name[5:]!r} is not registered for serialization here"
            )
        node_data = form.kind, form.from_bytes(bytes.fromhex(data))
    elif name in CONTAINERS:
        node_data = CONTAINERS[name], decode(data)
    else:
        raise SerializationError(f"unknown container {name!r}")
    return PyTreeDef.from_node_data_and_children(default_registry, node_data, parts)
