"""Graph ops as primitives: JAX's names and parameters for the nodes of a jaxpr, and the way back.

`primitive_of(node)` says how a node is shown in an equation (primitive, operands, params);
`Primitive.bind(*args, **params)` makes such a node again. The two are inverse to each other, so a
program that walks over equations can apply any of them without knowing the graph.

An op that JAX has too carries JAX's name and parameters (`reduce_sum`, `broadcast_in_dim`, ...); one
that it lacks carries the op's name in lower case and the fields of its static data. Ops with bodies
show them as `ClosedJaxpr` (engine/jaxprs.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import TupleAval, aval
from tinyjax.core.body import fresh_id
from tinyjax.core.dimension_numbers import (
    FftType,
    GatherDimensionNumbers,
    GatherScatterMode,
    RoundingMethod,
    ScatterDimensionNumbers,
)
from tinyjax.core.infos import (
    CallbackInfo,
    CallInfo,
    CheckInfo,
    CustomLinInfo,
    DotInfo,
    GatherInfo,
    HostCallInfo,
    ScanInfo,
    ScatterInfo,
    WhileInfo,
)
from tinyjax.core.ops import BINARY, UNARY, Op
from tinyjax.core.uop import UOp, const, const_value, get, results, token_of
from tinyjax.engine.array import Array
from tinyjax.engine.effects import next_token, perform
from tinyjax.engine.policies import node_policy
from tinyjax.engine.values import finish, finish_all, lift
from tinyjax.interpreters.effects import START, inserted, without

Params = dict[str, Any]
Show = Callable[[UOp], Params]
Make = Callable[[Sequence[UOp], Mapping[str, Any]], UOp]


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """An operation by name. Compared by identity; `lax.add_p`, `lax.scan_p` and so on are these.

    `bind` applies it to arrays, numbers or traced values: one array, or a list of them if
    `multiple_results`. Parameters of JAX that mean nothing here (`sharding`, `accuracy`) may be left
    out.
    """

    name: str
    make: Make | None = None
    multiple_results: bool = False

    def __post_init__(self) -> None:
        if self.make is None:
            raise TypeError(
                f"Primitive({self.name!r}): new primitives cannot be made, the set of operations is "
                "closed.\n  Write a function, with custom_jvp, custom_vjp and custom_vmap for rules of "
                "its own, and pure_callback for what only the host can compute."
            )

    def bind(self, *args: Any, **params: Any) -> Any:
        """Apply the operation. Raises: TypeError if shapes or dtypes do not fit."""
        assert self.make is not None
        nodes = [lift(a) for a in args]
        place = token_of(nodes)
        if place is not None:  # its own token, wherever the equations are applied
            nodes[place] = next_token(without(nodes, place))
            node = self.make(nodes, params)
            return inserted(perform(node), token_of(results(node)), Array(START))
        node = self.make(nodes, params)
        return finish_all(results(node)) if self.multiple_results else finish(node)

    def get_bind_params(self, params: Mapping[str, Any]) -> tuple[list[Any], Params]:
        """(functions to pass first, parameters) for `bind`; there are no such functions here."""
        return [], dict(params)

    def __repr__(self) -> str:
        return self.name


PRIMITIVES: dict[str, Primitive] = {}
"""All that are known by name. Host routines join when first seen."""

SHOW: dict[Op, tuple[str, Show]] = {}
"""Name and parameters of the ops that are always shown under one name."""


def by_attribute(name: str, module: str) -> Primitive:
    """`add_p` -> the primitive `add`. Raises: AttributeError, as modules do."""
    plain = ATTRIBUTES.get(name, name.removesuffix("_p"))
    found = PRIMITIVES.get(plain) or PRIMITIVES.get(plain.replace("_", "-"))
    if found is None or not name.endswith("_p"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return found


ATTRIBUTES = {"remat_p": "remat2"}
"""Names that do not follow from the primitive's."""


def define(name: str, make: Make, multiple_results: bool = False) -> Primitive:
    """Enter a primitive into the table."""
    made = Primitive(name, make, multiple_results)
    PRIMITIVES[name] = made
    return made


def op_entry(op: Op, name: str, show: Show, arg: Callable[[Mapping[str, Any]], Any]) -> None:
    """An op with one name whose static data follows from the parameters alone."""
    SHOW[op] = name, show
    define(name, lambda src, params: UOp(op, tuple(src), arg(params)))


# --- elementwise ------------------------------------------------------------------------------------

RENAMED = {
    "ERFINV": "erf_inv", "POPCOUNT": "population_count", "SHL": "shift_left",
    "SHRL": "shift_right_logical", "SHRA": "shift_right_arithmetic", "CMPEQ": "eq", "CMPNE": "ne",
    "CMPLT": "lt", "CMPLE": "le", "IDIV": "floor_divide", "MOD": "floor_modulo",
}  # fmt: skip
ACCURACY = frozenset("exp exp2 log log1p expm1 sin cos tan tanh logistic sqrt rsqrt cbrt".split())
"""Those to which JAX gives a parameter `accuracy`."""


def _elementwise(op: Op) -> None:
    name = RENAMED.get(op.name, op.name.lower())
    extra: Params = {}
    if name in ACCURACY:
        extra["accuracy"] = None
    elif name == "mul":
        extra["out_dtype"] = None
    elif name == "round":
        extra["rounding_method"] = RoundingMethod.TO_NEAREST_EVEN
    op_entry(op, name, lambda n: dict(extra), lambda p: None)


for _op in sorted(UNARY | BINARY, key=lambda op: op.name):
    if _op not in (Op.CAST, Op.BITCAST, Op.REDUCE_PRECISION):
        _elementwise(_op)

op_entry(
    Op.CAST,
    "convert_element_type",
    lambda n: {"new_dtype": n.arg[0], "weak_type": n.arg[1], "sharding": None},
    lambda p: (dtypes.as_dtype(p["new_dtype"]), bool(p.get("weak_type", False))),
)
op_entry(
    Op.BITCAST,
    "bitcast_convert_type",
    lambda n: {"new_dtype": n.arg},
    lambda p: dtypes.as_dtype(p["new_dtype"]),
)
op_entry(
    Op.REDUCE_PRECISION,
    "reduce_precision",
    lambda n: {"exponent_bits": n.arg[0], "mantissa_bits": n.arg[1]},
    lambda p: (p["exponent_bits"], p["mantissa_bits"]),
)


def _select_n(src: Sequence[UOp], params: Mapping[str, Any]) -> UOp:
    """`select_n(which, when false, when true)`: WHERE has the cases the other way round."""
    which, low, high = src
    return UOp(Op.WHERE, (which, high, low))


define("select_n", _select_n)

# --- leaves and movement ------------------------------------------------------------------------------

op_entry(
    Op.IOTA,
    "iota",
    lambda n: {
        "dtype": n.arg[0].dtype, "shape": n.arg[0].shape, "dimension": n.arg[1], "sharding": None,
    },
    lambda p: (aval(tuple(p["shape"]), dtypes.as_dtype(p["dtype"])), p["dimension"]),
)  # fmt: skip
op_entry(
    Op.RESHAPE,
    "reshape",
    lambda n: {"new_sizes": n.arg, "dimensions": None, "sharding": None},
    lambda p: tuple(p["new_sizes"]),
)
op_entry(
    Op.PERMUTE,
    "transpose",
    lambda n: {"permutation": n.arg},
    lambda p: tuple(p["permutation"]),
)
op_entry(
    Op.EXPAND,
    "broadcast_in_dim",
    lambda n: {"shape": n.arg[0], "broadcast_dimensions": n.arg[1], "sharding": None},
    lambda p: (tuple(p["shape"]), tuple(p["broadcast_dimensions"])),
)
op_entry(
    Op.PAD,
    "pad",
    lambda n: {"padding_config": n.arg},
    lambda p: tuple(tuple(c) for c in p["padding_config"]),
)
op_entry(
    Op.FLIP,
    "rev",
    lambda n: {"dimensions": n.arg},
    lambda p: tuple(p["dimensions"]),
)
op_entry(Op.CONCAT, "concatenate", lambda n: {"dimension": n.arg}, lambda p: p["dimension"])
op_entry(
    Op.WINDOW,
    "window",
    lambda n: dict(zip(("axis", "size", "stride", "dilation"), n.arg, strict=True)),
    lambda p: (p["axis"], p["size"], p["stride"], p["dilation"]),
)


def _slice_params(n: UOp) -> Params:
    start, stop, step = zip(*n.arg, strict=True) if n.arg else ((), (), ())
    strides = None if all(s == 1 for s in step) else step
    return {"start_indices": start, "limit_indices": stop, "strides": strides}


def _slice_arg(p: Mapping[str, Any]) -> Any:
    strides = p.get("strides") or (1,) * len(p["start_indices"])
    return tuple(zip(p["start_indices"], p["limit_indices"], strides, strict=True))


op_entry(Op.SLICE, "slice", _slice_params, _slice_arg)

# --- reductions, contraction --------------------------------------------------------------------------

REDUCE = {
    "add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min",
    "and": "reduce_and", "or": "reduce_or", "xor": "reduce_xor",
}  # fmt: skip
WITH_SHARDING = ("add", "max", "min", "mul")
PREFIX = {"add": "cumsum", "mul": "cumprod", "max": "cummax", "min": "cummin"}


def _fold(kind: str) -> Make:
    return lambda src, p: UOp(Op.REDUCE, tuple(src), (kind, tuple(sorted(p["axes"]))))


def _prefix(kind: str) -> Make:
    return lambda src, p: UOp(
        Op.PREFIX, tuple(src), (kind, p["axis"], bool(p.get("reverse", False)))
    )


def _argreduce(kind: str) -> Make:
    def make(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
        dtype = dtypes.as_dtype(p["index_dtype"])
        return get(UOp(Op.ARGREDUCE, tuple(src), (kind, p["axes"][0], dtype)), 1)

    return make


def _all_reduce(kind: str) -> Make:
    return lambda src, p: UOp(Op.ALL_REDUCE, tuple(src), (kind, tuple(p["axes"])))


ALL_REDUCE = {"add": "psum", "max": "pmax", "min": "pmin"}

for _kind, _name in REDUCE.items():
    define(_name, _fold(_kind))
for _kind, _name in PREFIX.items():
    define(_name, _prefix(_kind))
for _kind in ("max", "min"):
    define(f"arg{_kind}", _argreduce(_kind))
for _kind, _name in ALL_REDUCE.items():
    define(_name, _all_reduce(_kind))


def _dot_params(n: UOp) -> Params:
    info: DotInfo = n.arg
    return {
        "dimension_numbers": (info.contract, info.batch),
        "precision": info.precision,
        "preferred_element_type": n.dtype,
        "out_sharding": None,
    }


def _dot(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    contract, batch = (
        tuple(tuple(int(i) for i in axes) for axes in pair) for pair in p["dimension_numbers"]
    )
    dtype = p.get("preferred_element_type")
    if dtype is not None:
        dtype = dtypes.as_dtype(dtype)
        dtype = None if dtype == src[0].dtype else dtype
    info = DotInfo(contract, batch, dtype, p.get("precision"))  # type: ignore[arg-type]
    return UOp(Op.DOT, tuple(src), info)


SHOW[Op.DOT] = "dot_general", _dot_params
define("dot_general", _dot)


def _fft_arg(p: Mapping[str, Any]) -> Any:
    kind = p["fft_type"]
    return (kind.value if isinstance(kind, FftType) else kind, tuple(p["fft_lengths"]))


op_entry(
    Op.FFT,
    "fft",
    lambda n: {"fft_type": FftType(n.arg[0]), "fft_lengths": n.arg[1]},
    _fft_arg,
)

# --- indexed ------------------------------------------------------------------------------------------

GATHER_DIMS = GatherDimensionNumbers._fields
SCATTER_DIMS = ScatterDimensionNumbers._fields


def _gather_params(n: UOp) -> Params:
    info: GatherInfo = n.arg
    value = const_value(n.src[2]) if len(n.src) == 3 and n.src[2].op is Op.CONST else None
    return {
        "dimension_numbers": GatherDimensionNumbers(*(getattr(info, f) for f in GATHER_DIMS)),
        "slice_sizes": info.slice_sizes,
        "indices_are_sorted": info.indices_are_sorted,
        "unique_indices": info.unique_indices,
        "mode": GatherScatterMode(info.mode),
        "fill_value": value,
    }


def _gather(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    """A fill value that is not a literal is a third operand."""
    info = GatherInfo(
        **p["dimension_numbers"]._asdict(),
        slice_sizes=tuple(p["slice_sizes"]),
        mode=GatherScatterMode.from_any(p.get("mode")).value,
        indices_are_sorted=bool(p.get("indices_are_sorted", False)),
        unique_indices=bool(p.get("unique_indices", False)),
    )
    value = p.get("fill_value")
    extra = () if value is None else (const(value, src[0].dtype),)
    return UOp(Op.GATHER, (*src, *extra), info)


define("gather", _gather)

SCATTER = {
    "set": "scatter", "add": "scatter-add", "mul": "scatter-mul", "min": "scatter-min",
    "max": "scatter-max",
}  # fmt: skip


def _scatter_params(n: UOp) -> Params:
    info: ScatterInfo = n.arg
    return {
        "dimension_numbers": ScatterDimensionNumbers(*(getattr(info, f) for f in SCATTER_DIMS)),
        "indices_are_sorted": info.indices_are_sorted,
        "unique_indices": info.unique_indices,
        "mode": GatherScatterMode(info.mode),
        "update_jaxpr": None,
        "update_consts": (),
    }


def _scatter(kind: str) -> Make:
    def make(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
        info = ScatterInfo(
            kind,
            **p["dimension_numbers"]._asdict(),
            mode=GatherScatterMode.from_any(p.get("mode")).value,
            indices_are_sorted=bool(p.get("indices_are_sorted", False)),
            unique_indices=bool(p.get("unique_indices", False)),
        )
        return UOp(Op.SCATTER, tuple(src), info)

    return make


for _kind, _name in SCATTER.items():
    define(_name, _scatter(_kind))

op_entry(Op.DIM, "dim_as_value", lambda n: {"dim": n.arg}, lambda p: p["dim"])
op_entry(
    Op.DYNAMIC_SLICE,
    "dynamic_slice",
    lambda n: {"slice_sizes": n.arg},
    lambda p: tuple(p["slice_sizes"]),
)
op_entry(Op.DYNAMIC_UPDATE, "dynamic_update_slice", lambda n: {}, lambda p: None)

SORT_FIELDS = ("dimension", "num_keys", "is_stable")
SHOW[Op.SORT] = "sort", lambda n: dict(zip(SORT_FIELDS, n.arg, strict=True))
define("sort", lambda src, p: UOp(Op.SORT, tuple(src), tuple(p[f] for f in SORT_FIELDS)), True)

op_entry(
    Op.RANDOM_BITS,
    "random_bits",
    lambda n: {"shape": n.arg[0], "bit_width": n.arg[1]},
    lambda p: (tuple(p["shape"]), p["bit_width"]),
)

# --- identities ---------------------------------------------------------------------------------------

for _op in (Op.STOP_GRADIENT, Op.OPTIMIZATION_BARRIER, Op.KEY_UNWRAP):
    op_entry(
        _op,
        "random_unwrap" if _op is Op.KEY_UNWRAP else _op.name.lower(),
        lambda n: {},
        lambda p: None,
    )
op_entry(Op.NAME, "name", lambda n: {"name": n.arg}, lambda p: p["name"])
op_entry(Op.REMAT, "remat_barrier", lambda n: {}, lambda p: fresh_id())
op_entry(Op.KEY_WRAP, "random_wrap", lambda n: {"impl": n.arg}, lambda p: p["impl"])
op_entry(Op.COPY, "copy", lambda n: {"device": n.arg}, lambda p: p.get("device"))
op_entry(Op.PCAST, "pcast", lambda n: {"axis_name": n.arg}, lambda p: p["axis_name"])

# --- collectives ----------------------------------------------------------------------------------------


def _tuple_entry(op: Op, name: str, fields: Sequence[str]) -> None:
    """An op whose static data is a tuple: one parameter per part."""
    op_entry(
        op,
        name,
        lambda n: dict(zip(fields, n.arg, strict=True)),
        lambda p: tuple(p[f] for f in fields),
    )


_tuple_entry(Op.PPERMUTE, "ppermute", ("axis_name", "perm"))
_tuple_entry(
    Op.ALL_GATHER, "all_gather", ("axis_name", "all_gather_dimension", "tiled", "out_aval")
)
_tuple_entry(
    Op.REDUCE_SCATTER, "reduce_scatter", ("axis_name", "scatter_dimension", "tiled", "out_aval")
)
_tuple_entry(
    Op.ALL_TO_ALL, "all_to_all", ("axis_name", "split_axis", "concat_axis", "tiled", "out_aval")
)
op_entry(Op.AXIS_INDEX, "axis_index", lambda n: {"axis_name": n.arg}, lambda p: p["axis_name"])

# --- calls and control flow -------------------------------------------------------------------------------

CALL_NAMES = {
    "checkpoint": "remat2", "custom_jvp": "custom_jvp_call", "custom_vjp": "custom_vjp_call",
    "custom_vmap": "custom_vmap_call",
}  # fmt: skip
CALL_JAXPR = {
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call",
}  # fmt: skip
CALL_KINDS = (
    "jit", "function", "checkpoint", "composite", "linear",
    "custom_jvp", "custom_vjp", "custom_vmap", "custom_root", "custom_linear_solve",
)  # fmt: skip
OWN_CALL_FIELDS = tuple(
    f.name for f in dataclasses.fields(CallInfo) if f.name not in ("kind", "name")
)


def body_of(jaxpr: Any) -> UOp:
    """The graph of a `ClosedJaxpr`, or of a `Jaxpr` without constvars."""
    return jaxpr.closed_body if hasattr(jaxpr, "closed_body") else jaxpr.body  # type: ignore[no-any-return]


def call_primitive(kind: str) -> Primitive:
    """The primitive of calls of a kind."""
    name = CALL_NAMES.get(kind, kind)
    found = PRIMITIVES.get(name)
    if found is not None:
        return found

    def make(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
        own = {f: p[f] for f in OWN_CALL_FIELDS if f in p}
        own["policy"] = node_policy(own.get("policy"))
        info = CallInfo(kind, p.get("name", ""), **own)
        return UOp(Op.CALL, (body_of(p[CALL_JAXPR.get(name, "jaxpr")]), *src), info)

    return define(name, make, True)


for _kind in CALL_KINDS:
    call_primitive(_kind)


def _plain_call(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    return UOp(Op.CALL, (body_of(p["call_jaxpr"]), *src), CallInfo("jit", p.get("name", "")))


# No jaxpr has these; libraries have rules for them, and jaxprs edited as data may use them.
for _name in ("call", "closed_call"):
    define(_name, _plain_call, True)


def call_params(n: UOp, close: Callable[[UOp], Any]) -> Params:
    """JAX's parameters of the call, then those of our own that are not at their defaults."""
    info: CallInfo = n.arg
    name = CALL_NAMES.get(info.kind, info.kind)
    params: Params = {CALL_JAXPR.get(name, "jaxpr"): close(n.src[0]), "name": info.name}
    if name == "jit":
        params |= {
            "donated_invars": (False,) * len(n.operands), "keep_unused": False, "inline": info.inline,
        }  # fmt: skip
    elif name == "remat2":
        if not params["jaxpr"].consts:
            params["jaxpr"] = params["jaxpr"].jaxpr  # open, as JAX has it
        params |= {
            "prevent_cse": info.prevent_cse, "differentiated": False, "policy": getattr(info.policy, "policy", info.policy),
        }  # fmt: skip
    elif info.kind in ("custom_jvp", "custom_vjp"):
        params["symbolic_zeros"] = bool(getattr(info.rule, "symbolic_zeros", False))
    defaults = {f.name: f.default for f in dataclasses.fields(CallInfo)}
    for field in OWN_CALL_FIELDS:
        value = getattr(info, field)
        if field not in params and value != defaults[field]:
            params[field] = value
    return params


def _scan(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    info = ScanInfo(
        p["num_consts"], p["num_carry"], p["length"], bool(p.get("reverse")), p.get("unroll", 1)
    )
    return UOp(Op.SCAN, (body_of(p["jaxpr"]), *src), info)


def _while(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    bodies = body_of(p["cond_jaxpr"]), body_of(p["body_jaxpr"])
    return UOp(Op.WHILE, (*bodies, *src), WhileInfo(p["cond_nconsts"], p["body_nconsts"]))


def _cond(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
    branches = [body_of(j) for j in p["branches"]]
    return UOp(Op.COND, (*branches, *src), len(branches))


define("scan", _scan, True)
define("while", _while, True)
define("cond", _cond, True)


def control_flow(n: UOp, close: Callable[[UOp], Any]) -> tuple[Primitive, Params]:
    """SCAN, WHILE, COND and CALL; `close` makes a body a `ClosedJaxpr`."""
    info = n.arg
    if n.op is Op.CALL:
        return call_primitive(info.kind), call_params(n, close)
    if n.op is Op.SCAN:
        return PRIMITIVES["scan"], {
            "jaxpr": close(n.src[0]), "length": info.length, "reverse": info.reverse,
            "unroll": info.unroll, "num_consts": info.num_consts, "num_carry": info.num_carry,
        }  # fmt: skip
    if n.op is Op.WHILE:
        return PRIMITIVES["while"], {
            "cond_jaxpr": close(n.src[0]), "body_jaxpr": close(n.src[1]),
            "cond_nconsts": info.cond_consts, "body_nconsts": info.body_consts,
        }  # fmt: skip
    return PRIMITIVES["cond"], {"branches": tuple(close(br) for br in n.bodies)}


# --- the outside world --------------------------------------------------------------------------------------

INFOS: dict[Op, type[Any]] = {
    Op.CUSTOM_LIN: CustomLinInfo,
    Op.HOST_CALL: HostCallInfo,
    Op.CALLBACK: CallbackInfo,
    Op.CHECK: CheckInfo,
}


def by_fields(op: Op, name: str, multiple_results: bool = True) -> Primitive:
    """A primitive whose parameters are the fields of the op's static data."""
    found = PRIMITIVES.get(name)
    if found is not None:
        return found
    known = {f.name for f in dataclasses.fields(INFOS[op])}

    def make(src: Sequence[UOp], p: Mapping[str, Any]) -> UOp:
        info = INFOS[op](**{k: v for k, v in p.items() if k in known})
        if op is Op.CALLBACK and info.pure:  # a second application is a second call
            info = replace(info, sequence=fresh_id())
        node = UOp(op, tuple(src), info)
        return node if multiple_results else get(node, 0)

    return define(name, make, multiple_results)


def external(n: UOp) -> tuple[Primitive, Params]:
    """Host routines, callbacks, checks, and linear maps known by their transpose."""
    params = {f.name: getattr(n.arg, f.name) for f in dataclasses.fields(n.arg)}
    if n.op is Op.HOST_CALL:
        return by_fields(n.op, n.arg.routine, len(n.aval.elts) > 1), params
    if n.op is Op.CALLBACK:
        return by_fields(n.op, f"{n.arg.kind}_callback"), params
    return by_fields(n.op, n.op.name.lower()), params


# --- from nodes to equations ----------------------------------------------------------------------------------


def primitive_of(n: UOp, close: Callable[[UOp], Any]) -> tuple[Primitive, list[UOp], Params]:
    """How a node is shown: primitive, operands, parameters. (ARGREDUCE: see `jaxprs.equations`.)"""
    found = SHOW.get(n.op)
    if found is not None:
        return PRIMITIVES[found[0]], list(n.src), found[1](n)
    if n.bodies:
        made, params = control_flow(n, close)
        return made, list(n.operands), params
    if n.op is Op.WHERE:
        which, high, low = n.src
        return PRIMITIVES["select_n"], [which, low, high], {}
    if n.op is Op.REDUCE:
        shown: Params = {"axes": n.arg[1]}
        if n.arg[0] in WITH_SHARDING:
            shown["out_sharding"] = None
        return PRIMITIVES[REDUCE[n.arg[0]]], list(n.src), shown
    if n.op is Op.PREFIX:
        shown = {"axis": n.arg[1], "reverse": n.arg[2]}
        return PRIMITIVES[PREFIX[n.arg[0]]], list(n.src), shown
    if n.op is Op.ALL_REDUCE:
        return PRIMITIVES[ALL_REDUCE[n.arg[0]]], list(n.src), {"axes": n.arg[1]}
    if n.op is Op.GATHER:
        shown = _gather_params(n)
        kept = n.src[:2] if shown["fill_value"] is not None else n.src
        return PRIMITIVES["gather"], list(kept), shown
    if n.op is Op.SCATTER:
        return PRIMITIVES[SCATTER[n.arg.kind]], list(n.src), _scatter_params(n)
    made, params = external(n)
    return made, list(n.src), params


def argreduce_equations(n: UOp, read: frozenset[int]) -> list[tuple[int, Primitive, Params]]:
    """ARGREDUCE as JAX writes it: `argmax` for the index, `reduce_max` for the value, as read."""
    kind, axis, dtype = n.arg
    found: list[tuple[int, Primitive, Params]] = []
    if 0 in read:
        params: Params = {"axes": (axis,), "out_sharding": None}
        found.append((0, PRIMITIVES[f"reduce_{kind}"], params))
    if 1 in read:
        params = {"axes": (axis,), "index_dtype": np.dtype(dtype)}
        found.append((1, PRIMITIVES[f"arg{kind}"], params))
    return found


def several(n: UOp) -> bool:
    """Whether the node has several results (one equation, a list of variables)."""
    return isinstance(n.aval, TupleAval)
