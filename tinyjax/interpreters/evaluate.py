"""The reference evaluator: nodes -> ndarrays, one NumPy row per stage-1 op.

What an op means is what its row here computes (`docs/ops.md` says it in words); emitters are tested
against it, and eager execution on the CPU is this module. Values are C-contiguous ndarrays, rank 0
included; nodes with several results have lists; typed keys are their uint32 data. Rows never write
to operands, so values may share memory inside one evaluation; outputs own theirs.

`apply_op` runs one node, `evaluate` open nodes, `evaluate_body` a closed body. Walks are iterative;
a body's order is found once and kept in `body.derived`, so a loop pays only for its operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core import dtypes, memory
from tinyjax.core.avals import Aval
from tinyjax.core.body import substitute_params
from tinyjax.core.errors import CallbackResultError, deleted, fill_text
from tinyjax.core.ops import BODIES, IDENTITIES, MOVEMENT, Op
from tinyjax.core.uop import UOp, toposort
from tinyjax.interpreters import convert as conversions
from tinyjax.interpreters import evaluate_elementwise as el
from tinyjax.interpreters import evaluate_folds as folds
from tinyjax.interpreters import evaluate_indexed as indexed
from tinyjax.interpreters import evaluate_movement as movement
from tinyjax.interpreters import host, special, threefry
from tinyjax.interpreters.evaluate_movement import on_keys_too
from tinyjax.interpreters.quiet import quietly

Array = np.ndarray[Any, Any]
Value = Any  # an ndarray, or a list of them for nodes with several results
Row = Callable[[UOp, list[Array]], Value]


class CheckFailed(ValueError):
    """The condition of a CHECK did not hold."""


# --- leaves -----------------------------------------------------------------------------------

_constants: dict[Any, Array] = {}
_CONSTANTS_KEPT = 4096


def constant(node: UOp, args: list[Array]) -> Array:
    """The literal, read-only and shared between evaluations."""
    found = _constants.get(node.arg)
    if found is None:
        dtype, raw, _ = node.arg
        found = np.frombuffer(raw, dtype).reshape(()) if raw else np.zeros((), dtype)
        found.setflags(write=False)
        if len(_constants) >= _CONSTANTS_KEPT:
            _constants.clear()
        _constants[node.arg] = found
    return found


def iota(node: UOp, args: list[Array]) -> Array:
    """Position along an axis, converted to the dtype."""
    of, axis = node.arg
    y = memory.empty(of.shape, of.dtype)
    line = conversions.convert(np.arange(of.shape[axis]), of.dtype)
    y[...] = line.reshape(-1, *(1,) * (of.ndim - 1 - axis))
    return y


def buffer(node: UOp, args: list[Array]) -> Array:
    """The value in memory."""
    if node.arg.deleted:
        raise deleted(node.aval)
    return node.arg.value  # type: ignore[no-any-return]


# --- comparisons of typed keys ----------------------------------------------------------------


def equality(f: np.ufunc, words: Callable[..., Any]) -> Row:
    """Row of == or !=; typed keys compare all their words."""
    plain = el.predicate(f)

    def row(node: UOp, args: list[Array]) -> Array:
        dtype = node.src[0].aval.dtype
        if type(dtype) is not dtypes.KeyDType:
            return plain(node, args)
        x, y = (movement.pack_words(a, dtype) for a in args)
        z = memory.empty(node.aval.shape, dtypes.bool_)
        words(f(x, y), axis=-1, out=z)
        return z

    return row


# --- calls and control flow -------------------------------------------------------------------


def call(node: UOp, args: list[Array]) -> list[Array]:
    """The body applied; derivative rules play no part here."""
    return evaluate_body(node.src[0], args)


def scan(node: UOp, args: list[Array]) -> list[Array]:
    """The body once per step, ys stacked along a new leading axis."""
    info, body = node.arg, node.src[0]
    first_x = info.num_consts + info.num_carry
    consts, carry, xs = args[: info.num_consts], args[info.num_consts : first_x], args[first_x:]
    out = node.aval.elts[info.num_carry :]
    ys = [memory.empty(storage_shape(a), storage_dtype(a)) for a in out]
    steps = range(info.length)
    run = plan_of(body)
    for i in reversed(steps) if info.reverse else steps:
        results = run([*consts, *carry, *(x[i, ...] for x in xs)])
        carry = results[: info.num_carry]
        for y, value in zip(ys, results[info.num_carry :]):
            y[i] = value
    return [*carry, *ys]


def while_loop(node: UOp, args: list[Array]) -> list[Array]:
    """The body as long as the condition holds."""
    info = node.arg
    c, b = info.cond_consts, info.cond_consts + info.body_consts
    cond_consts, body_consts, carry = args[:c], args[c:b], args[b:]
    holds, step = plan_of(node.src[0]), plan_of(node.src[1])
    while holds([*cond_consts, *carry])[0]:
        carry = step([*body_consts, *carry])
    return carry


def cond(node: UOp, args: list[Array]) -> list[Array]:
    """The branch that the clamped index names; the others do not run."""
    chosen = min(max(int(args[0]), 0), node.arg - 1)
    return evaluate_body(node.src[chosen], args[1:])


def custom_lin(node: UOp, args: list[Array]) -> list[Array]:
    """The jvp rule, if there is one; a map known only by its transpose has no values."""
    if node.arg.forward is not None:
        return evaluate_body(node.arg.forward, args)
    raise TypeError(
        f"can't apply forward-mode differentiation (jvp) to a custom_vjp function"
        f"{f' ({node.arg.name})' if node.arg.name else ''}: only its reverse-mode rule is known. Give it a jvp rule too (f.defjvp)."
    )


# --- the outside world ------------------------------------------------------------------------


def callback(node: UOp, args: list[Array]) -> list[Array]:
    """Call the user's function with ndarrays; its results must have the stated avals.

    Under vmaps an effect is called once per example: the loop of the innermost vmap is the
    outermost, as if each vmap had made its effect one per example.
    """
    info = node.arg
    if info.pure:
        return called(info, info.out, args)
    *args, token = args
    if not info.levels:
        return [*called(info, info.out, args), token]
    shapes = [storage_shape(of) for of in info.out]
    outs = [memory.empty(shape, storage_dtype(of)) for shape, of in zip(shapes, info.out)]
    depth = len(info.levels)
    lone = [of.update(shape=of.shape[depth:]) for of in info.out]
    batched = [[on[i] for on, _ in info.levels] for i in range(len(args))]
    for place in np.ndindex(*(size for _, size in info.levels)):
        # axes of a value: the last vmap's first
        mine = [
            a[tuple(p for p, on in zip(place, flags) if on)[::-1]]
            for a, flags in zip(args, batched)
        ]
        for out, value in zip(outs, called(info, lone, mine)):
            out[place[::-1]] = value
    return [*outs, token]


AS_DECLARED = "  Return what result_shape_dtypes declares, or declare there what is returned."
"""What the results of a callback must be."""


def called(info: Any, out: Sequence[Aval], args: Sequence[Array]) -> list[Array]:
    """One call of a callback, its results checked.

    NumPy makes 64-bit arrays of Python's numbers; without x64 they fit where 32 bits are declared, as
    wherever an array comes in. Any other dtype could lose something unsaid, as complex numbers their
    imaginary parts.
    """
    found = info.callback(*args)
    found = [] if found is None and not out else found
    values = list(found) if isinstance(found, (list, tuple)) else [found]
    if len(values) != len(out):
        raise CallbackResultError(
            f"callback returned {len(values)} values, {len(out)} were declared.\n{AS_DECLARED}"
        )
    checked = []
    for value, of in zip(values, out):
        y = np.asarray(value)
        if y.shape != storage_shape(of):
            raise CallbackResultError(
                f"callback returned shape {y.shape}, {of.str_short()} was declared.\n{AS_DECLARED}"
            )
        if not holds_as(y.dtype, storage_dtype(of)):
            raise CallbackResultError(
                f"callback returned dtype {y.dtype}, {of.str_short()} was declared.\n{AS_DECLARED}"
            )
        checked.append(movement.contiguous(y.astype(storage_dtype(of))))
    return checked


def holds_as(found: Any, declared: Any) -> bool:
    """Whether an array of dtype `found` is one of dtype `declared`, 64 bits being 32 without x64."""
    return found == declared or (
        found.kind in "iufc" and bool(dtypes.canonicalize_dtype(found) == declared)
    )


def check(node: UOp, args: list[Array]) -> list[Array]:
    """Raise the message when the condition does not hold; hand on the token."""
    holds, *values, token = args
    if not node.arg.debug and not holds.all():
        raise CheckFailed(check_message(node.arg, values))
    return [token]


def check_message(info: Any, values: Sequence[Array]) -> str:
    """The message of a failed check, its values filled in."""
    if info.tree is None:
        return str(info.message)
    given, named = info.tree.unflatten(list(values))
    return fill_text("check", str(info.message), given, named)


def host_call(node: UOp, args: list[Array]) -> list[Array]:
    """A routine of `host.ROUTINES`, its results in the declared dtypes."""
    info = node.arg
    if info.routine not in host.ROUTINES:
        raise ValueError(f"unknown host routine {info.routine!r}: {', '.join(host.ROUTINES)}")
    found = host.ROUTINES[info.routine](info.params, *args)
    return [
        np.ascontiguousarray(y).astype(of.dtype, copy=False).reshape(of.shape)
        for y, of in zip(found, info.out)
    ]


def identity(node: UOp, args: list[Array]) -> Array:
    """The operand."""
    return args[0]


def copy(node: UOp, args: list[Array]) -> Array:
    """The operand in fresh memory."""
    return memory.copy_of(args[0])


def dimension(node: UOp, args: list[Array]) -> Array:
    """A symbolic size has no value; it is one in compiled programs."""
    return np.asarray(operator.index(node.arg), np.int64)


# --- the table --------------------------------------------------------------------------------

EVAL: dict[Op, Row] = {
    Op.CONST: constant,
    Op.IOTA: iota,
    Op.DIM: dimension,
    Op.BUFFER: buffer,
    Op.TUPLE: lambda node, args: list(args),
    Op.GETTUPLE: lambda node, args: args[0][node.arg],
    # one operand
    Op.NEG: el.unary(np.negative),
    Op.ABS: el.by_kind(
        real=el.unary(np.abs),
        complex=el.magnitude,
        integer=el.unary(np.abs),
    ),
    Op.SIGN: el.by_kind(
        real=el.unary(el.real_sign),
        complex=el.unary(el.writing(el.complex_sign)),
        integer=el.unary(np.sign),
    ),
    Op.FLOOR: el.unary(np.floor),
    Op.CEIL: el.unary(np.ceil),
    Op.ROUND: el.unary(np.rint),
    Op.TRUNC: el.unary(np.trunc),
    Op.SQRT: el.unary(np.sqrt),
    Op.RSQRT: el.by_kind(
        real=el.unary(el.real_rsqrt), complex=el.unary(el.writing(el.complex_rsqrt))
    ),
    Op.CBRT: el.unary(np.cbrt),
    Op.EXP: el.unary(el.rounded_once(np.exp)),
    Op.EXP2: el.unary(el.rounded_once(np.exp2)),
    Op.EXPM1: el.by_kind(
        real=el.unary(el.rounded_once(np.expm1)), complex=el.unary(el.writing(el.complex_expm1))
    ),
    Op.LOG: el.unary(el.rounded_once(np.log)),
    Op.LOG2: el.unary(el.rounded_once(np.log2)),
    Op.LOG1P: el.by_kind(real=el.unary(np.log1p), complex=el.unary(el.writing(el.complex_log1p))),
    Op.SIN: el.unary(np.sin),
    Op.COS: el.unary(np.cos),
    Op.TAN: el.unary(el.rounded_once(np.tan)),
    Op.ASIN: el.unary(el.rounded_once(np.arcsin)),
    Op.ACOS: el.unary(np.arccos),
    Op.ATAN: el.unary(np.arctan),
    Op.SINH: el.unary(np.sinh),
    Op.COSH: el.unary(el.rounded_once(np.cosh)),
    Op.TANH: el.unary(np.tanh),
    Op.ASINH: el.unary(np.arcsinh),
    Op.ACOSH: el.unary(np.arccosh),
    Op.ATANH: el.unary(np.arctanh),
    Op.LOGISTIC: el.by_kind(
        real=el.unary(el.logistic), complex=el.unary(el.writing(el.complex_logistic))
    ),
    Op.ERF: el.unary(el.writing(special.erf)),
    Op.ERFC: el.unary(el.writing(special.erfc)),
    Op.ERFINV: el.unary(el.writing(special.erfinv)),
    Op.LGAMMA: el.unary(el.writing(special.lgamma)),
    Op.DIGAMMA: el.unary(el.writing(special.digamma)),
    Op.IS_FINITE: el.predicate(np.isfinite),
    Op.NOT: el.unary(np.invert),
    Op.POPCOUNT: el.popcount,
    Op.CLZ: el.count_leading_zeros,
    Op.REAL: el.real_part,
    Op.IMAG: el.imag_part,
    Op.CONJ: el.unary(np.conjugate),
    Op.CAST: conversions.cast,
    Op.BITCAST: conversions.bitcast,
    Op.REDUCE_PRECISION: conversions.reduce_precision,
    # two and three operands
    Op.ADD: el.binary(np.add),
    Op.SUB: el.binary(np.subtract),
    Op.MUL: el.binary(np.multiply),
    Op.DIV: el.by_kind(
        real=el.binary(np.divide),
        complex=el.binary(el.writing(el.complex_div)),
        integer=el.binary(el.writing(el.int_div)),
    ),
    Op.REM: el.by_kind(real=el.binary(np.fmod), integer=el.binary(el.writing(el.int_rem))),
    Op.POW: el.binary(np.power),
    Op.MAX: el.by_kind(
        real=el.binary(el.real_max),
        complex=el.binary(el.writing(el.complex_max)),
        integer=el.binary(el.larger),
    ),
    Op.MIN: el.by_kind(
        real=el.binary(el.real_min),
        complex=el.binary(el.writing(el.complex_min)),
        integer=el.binary(el.smaller),
    ),
    Op.ATAN2: el.by_kind(
        real=el.binary(el.rounded_once(np.arctan2)), complex=el.binary(el.writing(el.complex_atan2))
    ),
    Op.NEXTAFTER: el.next_after,
    Op.AND: el.binary(np.bitwise_and),
    Op.OR: el.binary(np.bitwise_or),
    Op.XOR: el.binary(np.bitwise_xor),
    Op.SHL: el.binary(np.left_shift),
    Op.SHRL: el.shift_right_logical,
    Op.SHRA: el.shift_right_arithmetic,
    Op.IDIV: el.binary(np.floor_divide),
    Op.MOD: el.binary(np.mod),
    Op.CMPEQ: equality(np.equal, np.all),
    Op.CMPNE: equality(np.not_equal, np.any),
    Op.CMPLT: el.by_kind(
        real=el.predicate(np.less),
        complex=el.predicate(el.writing(el.complex_less)),
        integer=el.predicate(np.less),
    ),
    Op.CMPLE: el.by_kind(
        real=el.predicate(np.less_equal),
        complex=el.predicate(el.writing(el.complex_less_equal)),
        integer=el.predicate(np.less_equal),
    ),
    Op.COMPLEX: el.make_complex,
    Op.WHERE: on_keys_too(el.select),
    # movement
    Op.RESHAPE: on_keys_too(movement.reshape),
    Op.PERMUTE: on_keys_too(movement.permute),
    Op.EXPAND: on_keys_too(movement.expand),
    Op.PAD: on_keys_too(movement.pad),
    Op.SLICE: on_keys_too(movement.slice_),
    Op.FLIP: on_keys_too(movement.flip),
    Op.CONCAT: on_keys_too(movement.concat),
    Op.WINDOW: on_keys_too(movement.window),
    # folds, contraction, indexed
    Op.REDUCE: folds.reduce,
    Op.ARGREDUCE: folds.argreduce,
    Op.PREFIX: folds.prefix,
    Op.DOT: folds.dot,
    Op.GATHER: on_keys_too(indexed.gather),
    Op.SCATTER: on_keys_too(indexed.scatter),
    Op.DYNAMIC_SLICE: on_keys_too(indexed.dynamic_slice),
    Op.DYNAMIC_UPDATE: on_keys_too(indexed.dynamic_update),
    Op.SORT: folds.sort,
    Op.RANDOM_BITS: threefry.random_bits,
    Op.FFT: folds.fft,
    # calls and control flow
    Op.CALL: call,
    Op.SCAN: scan,
    Op.WHILE: while_loop,
    Op.COND: cond,
    Op.CUSTOM_LIN: custom_lin,
    # identities
    Op.STOP_GRADIENT: identity,
    Op.NAME: identity,
    Op.OPTIMIZATION_BARRIER: identity,
    Op.REMAT: identity,
    Op.PCAST: identity,
    Op.KEY_WRAP: identity,
    Op.KEY_UNWRAP: identity,
    Op.COPY: copy,
    # the outside world
    Op.HOST_CALL: host_call,
    Op.CALLBACK: callback,
    Op.CHECK: check,
}

NOT_EVALUATED: dict[Op, str] = {
    Op.VAR: "an open variable has no value of its own; give it in `env` or by `leaf`",
    Op.PARAM: "an input of a body; give it in `env`",
    **dict.fromkeys(
        (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.PPERMUTE, Op.ALL_TO_ALL),
        "a collective has a value only on a mesh, or after vmap has rewritten it",
    ),
    Op.AXIS_INDEX: "the axis is open only inside vmap, pmap or shard_map",
    Op.KERNEL: "a kernel written by the user runs as a program",
}
"""Stage-1 ops without a row, with the reason."""

SILENT = MOVEMENT | IDENTITIES | frozenset(
    {
        Op.WHERE, Op.BITCAST, Op.NOT, Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHRL, Op.SHRA, Op.POPCOUNT,
        Op.CLZ, Op.REAL, Op.IMAG, Op.CONJ, Op.COMPLEX, Op.GATHER, Op.DYNAMIC_SLICE, Op.IOTA,
        Op.DYNAMIC_UPDATE, Op.SORT, Op.RANDOM_BITS, Op.CALLBACK, Op.CHECK, Op.TUPLE, Op.GETTUPLE,
        Op.KEY_WRAP, Op.KEY_UNWRAP, Op.CONST, Op.BUFFER,
    }
)  # fmt: skip
"""Ops whose rows raise no floating-point flags."""


# --- storage of avals -------------------------------------------------------------------------


def storage_shape(of: Aval) -> tuple[int, ...]:
    """Shape of the ndarray that holds values of this aval."""
    return of.shape + of.dtype.key_shape if dtypes.is_key(of.dtype) else of.shape


def storage_dtype(of: Aval) -> Any:
    """Dtype of the ndarray that holds values of this aval."""
    return dtypes.uint32 if dtypes.is_key(of.dtype) else of.dtype


def owned(value: Array) -> Array:
    """`value`, copied if it is a view, read-only, not C-contiguous or not aligned."""
    flags = value.flags
    if type(value.base) is not np.ndarray and flags.writeable and flags.c_contiguous:
        return memory.aligned(value)
    return memory.copy_of(value)


# --- closed bodies ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A body as a list of steps over numbered values. Call it with the arguments.

    A step is (row, node, operand places, place of the result, places not needed afterwards).
    """

    num_values: int
    params: tuple[tuple[int, int], ...]  # (slot, place)
    constants: tuple[tuple[int, Array], ...]
    steps: tuple[tuple[Row, UOp, tuple[int, ...], int, tuple[int, ...]], ...]
    outputs: tuple[int, ...]

    def __call__(self, args: Sequence[Array]) -> list[Array]:
        """Values of the outputs; they may share memory with arguments and each other."""
        values: list[Any] = [None] * self.num_values
        for slot, place in self.params:
            values[place] = args[slot]
        for place, value in self.constants:
            values[place] = value
        for row, node, operands, place, dead in self.steps:
            values[place] = row(node, [values[i] for i in operands])
            for i in dead:
                values[i] = None
        return [values[i] for i in self.outputs]


def row_of(node: UOp) -> Row:
    """The row of a node's op."""
    row = EVAL.get(node.op)
    if row is None:
        why = NOT_EVALUATED.get(node.op, "not an op of jaxprs")
        raise TypeError(f"{node!r} cannot be evaluated: {why}")
    return row


def make_plan(body: UOp) -> Plan:
    """Order the body's nodes and find where each value dies. Cost: one walk."""
    order = toposort(body.src)
    place = {node: i for i, node in enumerate(order)}
    kept = {place[o] for o in body.src}
    last_use: dict[int, int] = {}
    for i, node in enumerate(order):
        for s in node.operands:
            last_use[place[s]] = i
    dying: dict[int, list[int]] = {}
    for value, step in last_use.items():
        if value not in kept:
            dying.setdefault(step, []).append(value)
    params, constants, steps = [], [], []
    for i, node in enumerate(order):
        if node.op is Op.PARAM:
            params.append((node.arg[0], i))
        elif node.op is Op.CONST:
            constants.append((i, constant(node, [])))
        else:
            operands = tuple(place[s] for s in node.operands)
            steps.append((row_of(node), node, operands, i, tuple(dying.get(i, ()))))
    outputs = tuple(place[o] for o in body.src)
    return Plan(len(order), tuple(params), tuple(constants), tuple(steps), outputs)


def plan_of(body: UOp) -> Plan:
    """The body's plan, made once."""
    plan = body.derived.get("evaluate")
    if plan is None:
        plan = body.derived["evaluate"] = make_plan(body)
    return plan


def evaluate_body(body: UOp, args: Sequence[Array]) -> list[Array]:
    """The outputs of a closed body for these arguments.

    They may be arguments or share memory with them: callers that hand values out use `owned`.
    """
    return quietly(plan_of(body), args)


# --- open nodes -------------------------------------------------------------------------------


def apply_op(node: UOp, args: list[Array]) -> Value:
    """The value of one node from those of its operands (bodies are not operands).

    The result is C-contiguous; for ops in SHARING it may be an operand's memory.
    """
    row = EVAL.get(node.op) or row_of(node)
    return row(node, args) if node.op in SILENT else quietly(row, node, args)


def evaluate(
    outputs: Sequence[UOp],
    env: dict[UOp, Any] | None = None,
    leaf: Callable[[UOp], Any] | None = None,
    release: bool = False,
    run: Callable[[UOp, list[Array]], Value] | None = None,
) -> list[Value]:
    """Values of `outputs`; `env` is a memo of node values that is read and filled.

    Nodes with bodies that are worth compiling go to `run`, if given, else are interpreted.
    Variables and parameters must be in `env` or be known to `leaf`. With `release`, values computed
    here and not asked for are dropped from `env` as soon as their last reader has run. Outputs own
    their memory, except leaves given by the caller, which are returned as they are.
    """
    env = {} if env is None else env
    missing = [o for o in outputs if o not in env]
    if missing:
        quietly(_evaluate, missing, env, leaf, release, run)
    if len(outputs) == 1:
        (o,) = outputs
        env[o] = memory.aligned(env[o]) if o.op in FRESH else _owned_output(o, env, set())
        return [env[o]]
    taken: set[int] = set()
    for o in dict.fromkeys(outputs):
        env[o] = _owned_output(o, env, taken)
    return [env[o] for o in outputs]


def _evaluate(
    outputs: Sequence[UOp],
    env: dict[UOp, Any],
    leaf: Callable[[UOp], Any] | None,
    release: bool,
    run: Callable[[UOp, list[Array]], Value] | None,
) -> None:
    """Fill `env` up to `outputs`, depth first; a node waits on the stack for its operands.

    Buffers and literals are read where they are used and not put into `env`.
    """
    readers = _count_readers(outputs, env) if release else None
    for root in outputs:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in env:
                stack.pop()
                continue
            op = node.op
            operands = node.operands if op in BODIES else node.src
            args: list[Any] = []
            ready = True
            for s in operands:
                value = env.get(s)
                if value is None:
                    if s.op is Op.BUFFER:
                        value = buffer(s, args)
                    elif s.op is Op.CONST:
                        value = constant(s, args)
                    else:
                        stack.append(s)
                        ready = False
                        continue
                args.append(value)
            if not ready:
                continue
            if op in UNKNOWN and leaf is not None:
                env[node] = leaf(node)
            elif op is Op.CALL and readers is None and ran_as_rule(node):
                outs = substitute_params(node.src[0], node.operands)
                missing = [o for o in outs if o not in env]
                if missing:
                    stack += missing
                    continue
                env[node] = [env[o] for o in outs]
            elif run is not None and op in BODIES and worth_compiling(node):
                env[node] = run(node, args)
            else:
                row = EVAL.get(op) or row_of(node)
                env[node] = row(node, args)
            stack.pop()
            if readers is not None:
                for s in operands:
                    readers[s] -= 1
                    if not readers[s]:
                        env.pop(s, None)


def _count_readers(outputs: Sequence[UOp], env: dict[UOp, Any]) -> dict[UOp, int]:
    """How often each node will be read; what must stay in `env` counts one more."""
    order = toposort(outputs, keep=lambda n: n not in env)
    readers = dict.fromkeys(order, 0)
    for node in order:
        for s in node.operands:
            readers[s] = readers.get(s, 1) + 1
    for o in outputs:
        readers[o] += 1
    return readers


def ran_as_rule(node: UOp) -> bool:
    """Whether what a call computes is what a rule has, that ran for it: a derivative opens the rule, and
    finds the values of what is inside."""
    return node.op is Op.CALL and bool(node.free) and getattr(node.arg.rule, "pinned", False)


def worth_compiling(node: UOp) -> bool:
    """Whether eager execution runs a node with bodies as a program: loops, branches, jit."""
    return node.op is not Op.CALL or node.arg.kind in ("jit", "function")


UNKNOWN = frozenset({Op.VAR, Op.PARAM, Op.AXIS_INDEX})
"""Leaves whose values only the caller knows."""
SHARING = IDENTITIES - {Op.COPY} | {
    Op.KEY_WRAP, Op.KEY_UNWRAP, Op.GETTUPLE, Op.CAST, Op.BITCAST, Op.RESHAPE, Op.CONST, Op.BUFFER,
    *UNKNOWN,
}  # fmt: skip
"""Ops whose value may be that of another node."""
FRESH = frozenset(EVAL) - SHARING - BODIES - {
    Op.TUPLE, Op.ARGREDUCE, Op.SORT, Op.CUSTOM_LIN, Op.HOST_CALL, Op.CALLBACK, Op.CHECK,
}  # fmt: skip
"""Ops with one result, which their row puts into memory that nothing else uses."""


def _owned_output(node: UOp, env: dict[UOp, Any], taken: set[int]) -> Value:
    """The value of an output in memory that neither a leaf nor another output uses.

    `taken` are the ids of the arrays of earlier outputs; this one's are added.
    """
    value = env[node]
    if node.op is Op.BUFFER or node.op in UNKNOWN:
        taken.add(id(value))
        return value
    if node.op in FRESH:
        value = memory.aligned(value)
        taken.add(id(value))
        return value
    shared = set(taken)
    source = node
    while source.op in SHARING and source.src:
        source = source.src[0]
        shared.add(id(_known(source, env)))
    if source.op in BODIES:
        shared.update(id(_known(s, env)) for s in source.operands)
    if ran_as_rule(source):
        shared.update(id(_known(o, env)) for o in substitute_params(source.src[0], source.operands))

    def own(array: Array) -> Array:
        array = memory.copy_of(array) if id(array) in shared else owned(array)
        shared.add(id(array))
        taken.add(id(array))
        return array

    return [own(v) for v in value] if type(value) is list else own(value)


def _known(node: UOp, env: dict[UOp, Any]) -> Value:
    return node.arg.value if node.op is Op.BUFFER else env.get(node)
