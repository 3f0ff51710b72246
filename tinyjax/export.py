"""Exported functions: a jitted function staged for given types, saved to bytes and called later.

    exported = export(jit(f))(*args)          # arrays or ShapeDtypeStructs
    data = exported.serialize(vjp_order=1)    # bytes, to a file say
    deserialize(data).call(*args)             # in another process, without the source of f

The bytes hold the graph in the format of core/serialize.py and the arrays that the function closes
over, behind a header with a version and a checksum; nothing in them is executed when they are read.
Derivatives travel as exported functions of their own, up to `vjp_order`, so custom rules are kept.
Forward mode needs nothing more: J v is the transpose of the exported ct -> J^T ct, applied to v.

Arguments may have symbolic sizes: the export is one graph for all of them, and so is the program
that runs calls at once. Inside another trace, a call binds the graph to the sizes it has there.

Layout: `MAGIC`, format version (4 bytes, little endian), SHA-256 of the rest, length of the
description (8 bytes), the description (JSON), the arrays one after the other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.bind_sizes import bind_sizes
from tinyjax.core.body import hoist_memory
from tinyjax.core.config import config
from tinyjax.core.dims import Atom, Size, evaluate
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import Op
from tinyjax.core.serialize import (
    VERSION,
    SerializationError,
    decode,
    decode_body,
    decode_tree,
    encode,
    encode_body,
    encode_tree,
    register_node,
)
from tinyjax.core.size_text import SymbolicScope, is_symbolic_dim, symbolic_shape
from tinyjax.core.source import api_boundary
from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.core.tree import tree_flatten_with_path, tree_unflatten
from tinyjax.core.treedef import PyTreeDef, keystr, tree_flatten
from tinyjax.core.treematch import flatten_axes
from tinyjax.core.uop import UOp, buffer, results
from tinyjax.engine.array import Array
from tinyjax.engine.custom_rules import custom_jvp, custom_vjp
from tinyjax.engine.derivatives import float0_zeros, linear_transpose, vjp
from tinyjax.engine.jaxprs import ClosedJaxpr, closed_jaxpr
from tinyjax.engine.jit import Jitted, as_buffer, jit
from tinyjax.engine.sized import find_sizes
from tinyjax.engine.stages import PLATFORM, ShapeDtypeStruct, Stages, struct_of
from tinyjax.engine.values import finish_all, lift, shaped_abstractify
from tinyjax.interpreters.trace import state

MAGIC = b"TINYJAX-EXPORT\n"
minimum_supported_calling_convention_version = 1
maximum_supported_calling_convention_version = VERSION
FROM_BYTES = "  Pass what exported.serialize() returned, read from a file in binary mode."
"""What to do where bytes are expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A function for arguments of exactly these types, whose sizes may be symbolic. `call` it, or
    `serialize` it.

    `in_tree` is of (args, kwargs); avals are flat. `body` is a closed body over the flat arguments
    and then `consts`. `derivative` gives the exported vjp, if there is one. `rules_kept`: the calls
    in `body` still have their derivative rules, which do not travel.
    """

    fun_name: str
    in_tree: PyTreeDef
    in_avals: tuple[Aval, ...]
    out_tree: PyTreeDef
    out_avals: tuple[Aval, ...]
    body: UOp
    consts: tuple[Array, ...]
    derivative: Callable[[], Exported] | None = field(default=None, repr=False)
    platforms: tuple[str, ...] = (PLATFORM,)
    disabled_safety_checks: tuple[Any, ...] = ()
    calling_convention_version: int = VERSION
    nr_devices: int = 1
    rules_kept: bool = True
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The function to read."""
        return closed_jaxpr(self.body, self.in_avals, self.consts)

    def has_vjp(self) -> bool:
        """Whether reverse mode is possible."""
        return self.derivative is not None

    def vjp(self) -> Exported:
        """`(*flat args, *cotangents of inexact results) -> cotangents of inexact args`.

        Raises: ValueError if it was not exported with a derivative.
        """
        if self.derivative is None:
            raise ValueError(
                f"No VJP is available for the exported {self.fun_name}: serialize it with "
                "vjp_order=1 or higher."
            )
        if "vjp" not in self._cache:
            self._cache["vjp"] = self.derivative()
        return self._cache["vjp"]  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in ("mlir_module", "mlir_module_serialized"):
            raise AttributeError(
                f"An exported function has no {name!r}: nothing here is made of MLIR. `jaxpr` shows "
                "the program, `serialize()` gives the bytes to keep."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @api_boundary
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The function applied; differentiable in both modes if `has_vjp()`, as often as `vjp_order`
        says.

        Symbolic sizes are those of the arguments; called by a function that is symbolic itself, they
        are its sizes. Inside of jit, grad, vmap and the like they are numbers of that trace.
        Raises: ValueError if the tree, a shape or a dtype is not that of the export, or a symbolic
        size is out of its bounds or is two sizes.
        """
        leaves, tree = tree_flatten((args, kwargs))
        if tree != self.in_tree:
            raise ValueError(
                "The invocation args and kwargs must have the same pytree structure as when the "
                f"function '{self.fun_name}' was exported: called with {tree}, exported with "
                f"{self.in_tree}.\n  Call it with the containers and keywords of the export."
            )
        nodes = [lift(x) for x in leaves]
        sizes = self._sizes([n.aval for n in nodes])
        traced = state.staging or any(n.free for n in nodes) or config.jax_disable_jit
        of = self._bound(sizes) if sizes and traced else self
        return tree_unflatten(self.out_tree, of._flat()(*map(Array, nodes)))

    def _sizes(self, avals: Sequence[Aval]) -> dict[Atom, Size]:
        """The values of the dimensions for arguments of these avals."""
        for i, (given, of) in enumerate(zip(avals, self.in_avals, strict=True)):
            fits = len(given.shape) == len(of.shape) and all(
                is_symbolic_dim(s) or (not is_symbolic_dim(v) and s == v)
                for v, s in zip(given.shape, of.shape, strict=True)
            )
            if not fits:
                raise ValueError(
                    f"Shape mismatch for {self._paths()[i]}: expected {of.shape} and called with "
                    f"{given.shape}.\n  Pad it, or export with jax.export.symbolic_shape for an axis "
                    "that varies."
                )
            if given.dtype != of.dtype:
                raise ValueError(
                    f"Dtype mismatch for {self._paths()[i]}: expected {of.dtype} and called with "
                    f"{given.dtype}.\n  Convert it with .astype({of.dtype.name!r})."
                )
        return find_sizes(self.in_avals, avals, self._paths)

    def _bound(self, sizes: dict[Atom, Size]) -> Exported:
        """The same with values for its dimensions; kept per values."""
        key = tuple(sizes.items())
        if key not in self._cache:

            def at(of: Aval) -> Aval:
                return of.update(shape=tuple(evaluate(s, sizes) for s in of.shape))

            self._cache[key] = dataclasses.replace(
                self,
                in_avals=tuple(map(at, self.in_avals)),
                out_avals=tuple(map(at, self.out_avals)),
                body=bind_sizes(self.body, sizes),
                derivative=self.derivative and (lambda: self.vjp()._bound(sizes)),
                _cache={},
            )
        return self._cache[key]  # type: ignore[no-any-return]

    def _paths(self) -> list[str]:
        """Names of the arguments, for messages."""
        example = tree_unflatten(self.in_tree, range(len(self.in_avals)))
        args, kwargs = tree_flatten_with_path(example[0])[0], tree_flatten_with_path(example[1])[0]
        return [f"args{keystr(p)}" for p, _ in args] + [f"kwargs{keystr(p)}" for p, _ in kwargs]

    def _plain(self, *values: Any) -> list[Array]:
        """The body applied to flat arguments, with the derivative that its operations have."""
        operands = [lift(v) for v in (*values, *self.consts)]
        if not self.body.src:
            return []
        return finish_all(
            results(UOp(Op.CALL, (self.body, *operands), CallInfo("jit", self.fun_name)))
        )

    def _constant(self, value: Any) -> Any:
        """`value`, of which no derivative may be taken."""

        def refuse(primals: Any, tangents: Any) -> Any:
            raise ValueError(
                f"The forward derivative of the deserialized {self.fun_name} cannot be differentiated "
                "once more: differentiate the reverse one, as in jacfwd(jacrev(f)) or jax.hessian, "
                "and serialize with vjp_order=2."
            )

        same = custom_jvp(lambda x: x)
        same.defjvp(refuse)
        return same(value)

    def _flat(self) -> Any:
        """The function of flat arguments, with its rules."""
        if "flat" in self._cache:
            return self._cache["flat"]

        def flat(*values: Any) -> Any:
            return self._plain(*values)

        flat.__name__ = self.fun_name
        ruled = custom_vjp(flat)
        moving = [i for i, a in enumerate(self.in_avals) if inexact(a)]
        floating = [inexact(o) for o in self.out_avals]

        def bwd(values: Any, cts: Any) -> Any:
            given = [ct for ct, moves in zip(cts, floating, strict=True) if moves]
            found = iter(self.vjp().call(*values, *given))
            return tuple(
                next(found) if inexact(a) else float0_zeros(a.shape) for a in self.in_avals
            )

        def jvp(values: Any, tangents: Any) -> Any:
            outs = ruled(*values)
            at = values if self.rules_kept else [self._constant(v) for v in values]
            pull = self.vjp()._plain
            kinds = [struct_of(a) for a in pull_avals(self.out_avals)]
            push = linear_transpose(lambda *cts: pull(*at, *cts), *kinds)
            found = iter(push([tangents[i] for i in moving]))
            return outs, [
                next(found) if moves else float0_zeros(o.shape)
                for o, moves in zip(self.out_avals, floating, strict=True)
            ]

        ruled.defvjp(lambda *values: (ruled(*values), values), bwd)
        ruled.defjvp(jvp)
        axes = [
            {k: s for k, s in enumerate(a.shape) if is_symbolic_dim(s)} or None
            for a in self.in_avals
        ]
        self._cache["flat"] = jit(
            lambda *values: ruled(*values), dynamic_shapes=axes if any(axes) else None
        )
        return self._cache["flat"]

    # --- saving ------------------------------------------------------------------------------------

    @api_boundary
    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The function as bytes, with derivatives up to `vjp_order`.

        Raises: ValueError (`SerializationError`) if the function calls back into Python or its
        trees hold nodes without a registered serialisation.
        """
        arrays: list[bytes] = []
        text = json.dumps(self._describe(vjp_order, arrays), separators=(",", ":")).encode()
        rest = len(text).to_bytes(8, "little") + text + b"".join(arrays)
        head = MAGIC + VERSION.to_bytes(4, "little") + hashlib.sha256(rest).digest()
        return bytearray(head + rest)

    def _describe(self, vjp_order: int, arrays: list[bytes]) -> dict[str, Any]:
        """The description; the arrays of consts are appended to `arrays`."""
        consts = []
        for c in self.consts:
            value = as_buffer(lift(c)).value
            arrays.append(np.ascontiguousarray(value).tobytes())
            consts.append([encode(c.aval), encode(value.dtype), list(value.shape)])
        if vjp_order > 0 and not self.has_vjp():
            self.vjp()
        return {
            "name": self.fun_name,
            "in_tree": encode_tree(self.in_tree),
            "in_avals": [encode(a) for a in self.in_avals],
            "out_tree": encode_tree(self.out_tree),
            "out_avals": [encode(a) for a in self.out_avals],
            "platforms": list(self.platforms),
            "nodes": encode_body(self.body),
            "consts": consts,
            "vjp": self.vjp()._describe(vjp_order - 1, arrays) if vjp_order > 0 else None,
        }


def pull_avals(outs: Sequence[Aval]) -> list[Aval]:
    """Of the cotangents that an exported vjp takes."""
    return [o.strip_weak_type() for o in outs if inexact(o)]


def inexact(of: Aval) -> bool:
    """Whether values of this aval have derivatives."""
    return bool(dtypes.is_inexact(of.dtype))


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
) -> Callable[..., Exported]:
    """A function of arguments (arrays, numbers or `ShapeDtypeStruct`s) that returns the `Exported`.

    Raises: ValueError if `fun_jit` is not the result of `jit`, or for platforms other than the CPU.
    """
    if not isinstance(fun_jit, Jitted):
        raise ValueError(
            f"Function to be exported must be the result of `jit` but is: {fun_jit}.\n"
            "  Wrap it: export(jax.jit(f))(*args)."
        )
    unknown = [p for p in platforms or () if p != PLATFORM]
    if unknown:
        raise ValueError(
            f"cannot export for platforms {unknown}: there is only {PLATFORM!r}.\n"
            "  Leave `platforms` out."
        )

    @api_boundary
    def exported(*args: Any, **kwargs: Any) -> Exported:
        stages = Stages.of(fun_jit, args, kwargs)
        if any(c.free for c in stages.traced.captured):
            raise ValueError(
                f"cannot export {stages.fun_name}: it closes over a traced value.\n"
                "  Pass the value as an argument, or export outside of the function that is traced."
            )
        if stages.traced.effects:
            raise ValueError(
                f"cannot export {stages.fun_name}: it prints, checks or calls back into Python, "
                "which another process does not have.\n  Remove debug.print, debug.callback, "
                "io_callback and checks from what is exported, or return what they would show."
            )
        if stages.traced.refs:
            raise ValueError(
                f"cannot export {stages.fun_name}: it reads or writes a Ref of this process. Pass "
                "the array as an argument and return what would be written."
            )
        return from_stages(stages, tuple(disabled_checks))

    return exported


def from_stages(stages: Stages, checks: tuple[Any, ...] = ()) -> Exported:
    """A staged function as an exported one."""
    traced = stages.traced
    count = len(stages.avals) + len(traced.captured)
    body, leaves = hoist_memory(traced.body, count)
    consts = finish_all([*traced.captured, *leaves])

    def derivative() -> Exported:
        return vjp_of(stages)

    return Exported(
        stages.fun_name,
        stages.in_tree,
        stages.avals,
        traced.out_tree,
        tuple(traced.out_avals),
        body,
        tuple(consts),
        derivative,
        disabled_safety_checks=checks,
    )


def vjp_of(stages: Stages) -> Exported:
    """The vjp of a staged function as an exported one."""
    traced, count = stages.traced, len(stages.avals)
    info = CallInfo("jit", stages.fun_name)
    moving = [i for i, a in enumerate(stages.avals) if inexact(a)]

    def pull(*values: Any) -> Any:
        args, cts = list(values[:count]), iter(values[count:])

        def of_moving(*given: Any) -> Any:
            full = list(args)
            for i, v in zip(moving, given, strict=True):
                full[i] = v
            operands = [*(lift(v) for v in full), *traced.captured]
            return finish_all(results(UOp(Op.CALL, (traced.body, *operands), info)))

        back = vjp(of_moving, *(args[i] for i in moving))[1]
        return back([next(cts) if inexact(o) else float0_zeros(o.shape) for o in traced.out_avals])

    pull.__name__ = f"vjp_{stages.fun_name}"
    kinds = [struct_of(a) for a in stages.avals]
    kinds += [struct_of(o) for o in pull_avals(traced.out_avals)]
    return from_stages(Stages.of(jit(pull), tuple(kinds), {}))


# --- symbolic sizes ----------------------------------------------------------------------------------------


def symbolic_args_specs(
    args: Any,
    shapes_specs: Any,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
) -> Any:
    """`ShapeDtypeStruct`s in the tree of `args`, with the shapes that texts give them.

    `shapes_specs` is a prefix of that tree, of texts as for `symbolic_shape`, whose `like` is the shape
    of the array; None keeps it as it is. All texts share one scope.
    Raises: ValueError as `symbolic_shape` does.
    """
    if scope is not None and constraints:
        raise ValueError(
            "Cannot specify both a `scope` and `constraints`.\n"
            "  Give the constraints to the scope: SymbolicScope(constraints)."
        )
    shared = SymbolicScope(constraints) if scope is None else scope
    leaves, tree = tree_flatten(args)
    texts = flatten_axes("shapes_specs", tree, shapes_specs, value_name="args")
    avals = map(shaped_abstractify, leaves)
    return tree_unflatten(
        tree,
        [
            ShapeDtypeStruct(symbolic_shape(text, scope=shared, like=a.shape), a.dtype)
            for text, a in zip(texts, avals, strict=True)
        ],
    )


# --- reading ----------------------------------------------------------------------------------------------


def deserialize(blob: bytes | bytearray) -> Exported:
    """The exported function of `serialize`.

    Raises: ValueError (`SerializationError`) if the bytes are not an exported function, were damaged
    or cut off, or have a format version that this release does not read.
    """
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"deserialize takes the bytes of `serialize`, got {type(blob).__name__}.\n{FROM_BYTES}"
        )
    data = bytes(blob)
    if not data.startswith(MAGIC):
        raise SerializationError(
            f"these bytes are not an exported function of tinyjax.\n{FROM_BYTES}"
        )
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    if not minimum_supported_calling_convention_version <= version <= VERSION:
        raise SerializationError(
            f"the exported function has format version {version}; this release reads versions "
            f"{minimum_supported_calling_convention_version} to {VERSION}.\n"
            "  Export the function again with this release."
        )
    start = len(MAGIC) + 4
    digest, rest = data[start : start + 32], data[start + 32 :]
    if hashlib.sha256(rest).digest() != digest:
        raise SerializationError(
            "the exported function is damaged: its checksum does not match.\n"
            "  Write the bytes of `serialize` again, to a file in binary mode."
        )
    size = int.from_bytes(rest[:8], "little")
    description = json.loads(rest[8 : 8 + size])
    return _read(description, _Reader(rest, 8 + size))


@dataclass(slots=True)
class _Reader:
    """Takes arrays from the end of the bytes, in order."""

    data: bytes
    at: int

    def take(self, of: Any, dtype: Any, shape: Sequence[int]) -> Array:
        """The next array."""
        kind: Aval = decode(of)
        value = np.ndarray(tuple(shape), decode(dtype), self.data, self.at).copy()
        self.at += value.nbytes
        return finish_all([buffer(value, kind)])[0]


def _read(description: dict[str, Any], reader: _Reader) -> Exported:
    consts = tuple(reader.take(*c) for c in description["consts"])
    inner = description["vjp"]
    derivative = None
    if inner is not None:
        made = _read(inner, reader)
        derivative = functools.partial(lambda x: x, made)
    return Exported(
        description["name"],
        decode_tree(description["in_tree"]),
        tuple(decode(a) for a in description["in_avals"]),
        decode_tree(description["out_tree"]),
        tuple(decode(a) for a in description["out_avals"]),
        decode_body(description["nodes"]),
        consts,
        derivative,
        platforms=tuple(description["platforms"]),
        rules_kept=False,
    )


# --- trees of the user's -------------------------------------------------------------------------------------


def register_pytree_node_serialization(
    nodetype: type,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> type:
    """Let arguments and results of exported functions hold nodes of a registered pytree type.

    `from_children` changes nothing: nodes are made by the function that the type is registered with.
    """
    register_node(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata)
    return nodetype


def register_namedtuple_serialization(nodetype: type, *, serialized_name: str) -> type:
    """Let arguments and results of exported functions hold a namedtuple."""
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise ValueError(f"Use `jax.export.register_pytree_node_serialization` for {nodetype}")
    register_node(nodetype, serialized_name, lambda aux: b"", lambda data: None)
    return nodetype


def default_export_platform() -> str:
    """The platform of `export` without `platforms`."""
    return PLATFORM


@dataclass(frozen=True, slots=True)
class DisabledSafetyCheck:
    """A check of exports that a user turns off; accepted and recorded, there is none to turn off."""

    name: str

    @staticmethod
    def platform() -> DisabledSafetyCheck:
        """The check that the platform is the exported one."""
        return DisabledSafetyCheck("platform")

    @staticmethod
    def custom_call(target_name: str) -> DisabledSafetyCheck:
        """The check that a custom call is stable."""
        return DisabledSafetyCheck(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """The target, if this is about a custom call."""
        kind, _, target = self.name.partition(":")
        return target if kind == "custom_call" else None


__all__ = [
    "DisabledSafetyCheck",
    "Exported",
    "SymbolicScope",
    "default_export_platform",
    "deserialize",
    "export",
    "is_symbolic_dim",
    "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "symbolic_args_specs",
    "symbolic_shape",
]

_publish_functions(globals())
