"""Vectorisation: nodes over variables of one example -> nodes over all examples.

The batch axis comes first in every batched value; users' axes matter only at the border. A rule
gets the node, its new operands, which of them are batched and the batch size; it returns the new
node and whether its results are batched. Elementwise ops share one rule, because operands are of
full shape or scalars.

Reference: the conventions of JAX's vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes, sites
from tinyjax.core.avals import TOKEN, Aval, TupleAval
from tinyjax.core.body import fresh_var, open_body, open_vars, reclose
from tinyjax.core.errors import make_error
from tinyjax.core.infos import (
    CallInfo,
    DerivedRule,
    GatherInfo,
    ScanInfo,
    ScatterInfo,
    each_backward,
    nonzero,
)
from tinyjax.core.ops import COMPARISONS, ELEMENTWISE, Op
from tinyjax.core.uop import (
    UOp,
    depends_on,
    get,
    results,
    token_of,
    toposort,
    tuple_of,
)
from tinyjax.interpreters.effects import (
    NewEffects,
    apply_rule,
    has_effects,
    inserted,
    of_repeat,
    token_index,
    token_through,
    without,
)
from tinyjax.interpreters.trace import Chain, open_chain, state

Flags = tuple[bool, ...]
BatchRule = Callable[[UOp, Sequence[UOp], Flags, int], tuple[UOp, Any]]


def spread(x: UOp, size: int) -> UOp:
    """`size` copies of an unbatched value along a new first axis."""
    return b.expand(x, (size, *x.shape), tuple(range(1, x.ndim + 1)))


def batched(x: UOp, flag: bool, size: int) -> UOp:
    """The value with a batch axis, added if it has none. The token of effects never has one."""
    return x if flag or x.aval is TOKEN else spread(x, size)


def every(body: UOp) -> Flags:
    """All outputs batched (but the token)."""
    return tuple(o.aval is not TOKEN for o in body.src)


def shifted(axes: Sequence[int]) -> tuple[int, ...]:
    """Axis numbers with the batch axis in front."""
    return tuple(a + 1 for a in axes)


# --- elementwise and movement ---------------------------------------------------------------------


def elementwise_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Give every operand the result's shape, or leave it an unbatched scalar."""
    shape = n.aval.shape
    new = []
    for x, flag in zip(src, flags, strict=True):
        if flag and x.ndim == 1 and shape:
            x = b.expand(x, (size, *shape), (0,))
        elif not flag and x.ndim:
            x = spread(x, size)
        new.append(x)
    return UOp(n.op, tuple(new), n.arg), True


def unary_shift(make: Callable[[Any, int], Any]) -> BatchRule:
    """A rule for ops of one operand whose arg changes by `make(arg, size)`."""

    def apply(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
        return UOp(n.op, (src[0],), make(n.arg, size)), True

    return apply


def reshape_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    return b.reshape(src[0], (size, *n.arg)), True


def permute_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    return b.permute(src[0], (0, *shifted(n.arg))), True


def pad_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """A batched fill is chosen where a mask padded alike says so."""
    x, fill = src
    config = ((0, 0, 0), *n.arg)
    if not flags[1]:
        return b.pad(x, config, fill), True
    shape = (size, *n.aval.shape)
    mask = b.pad(b.full(n.src[0].shape, b.scalar(True, b.BOOL)), n.arg, b.scalar(False, b.BOOL))
    inside = b.pad(batched(x, flags[0], size), config, b.like(n.src[1], 0))
    return b.where(spread(mask, size), inside, b.expand(fill, shape, (0,))), True


def concat_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    parts = [batched(x, f, size) for x, f in zip(src, flags, strict=True)]
    return b.concat(parts, n.arg + 1), True


def window_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    axis, *rest = n.arg
    return UOp(Op.WINDOW, (src[0],), (axis + 1, *rest)), True


# --- contraction and indexed ----------------------------------------------------------------------


def dot_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Both batched: a batch axis. One batched: a free axis, moved to the front if need be."""
    x, y = src
    info = n.arg
    (cx, cy), (bx, by) = info.contract, info.batch
    nb = len(bx)
    if flags[0] and flags[1]:
        contract = (shifted(cx), shifted(cy))
        batch = ((0, *shifted(bx)), (0, *shifted(by)))
        return UOp(Op.DOT, (x, y), replace(info, contract=contract, batch=batch)), True
    if flags[0]:
        new = replace(info, contract=(shifted(cx), cy), batch=(shifted(bx), by))
        return b.moveaxis(UOp(Op.DOT, (x, y), new), nb, 0), True
    free_x = x.ndim - len(cx) - nb
    free_y = y.ndim - 1 - len(cy) - nb
    if free_y == 0 and not dtypes.is_key(y.dtype) and info.dtype is None:
        swapped = replace(info, contract=(shifted(cy), cx), batch=(shifted(by), bx))
        return b.moveaxis(UOp(Op.DOT, (y, x), swapped), nb, 0), True
    new = replace(info, contract=(cx, shifted(cy)), batch=(bx, shifted(by)))
    return b.moveaxis(UOp(Op.DOT, (x, y), new), nb + free_x, 0), True


def gather_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Operand only: a full window axis. Indices only: a leading index axis. Both: batching dims."""
    x, indices, g = src[0], src[1], n.arg
    fill = src[2] if len(src) == 3 else None
    if fill is not None and flags[2]:
        plain, _ = (
            gather_rule(
                UOp(Op.GATHER, (n.src[0], n.src[1], b.like(n.src[2], 0)), g),
                (x, indices, b.like(n.src[2], 0)),
                (flags[0], flags[1], False),
                size,
            )
            if flags[0] or flags[1]
            else (spread(b.gather(x, indices, g, b.like(x, 0)), size), True)
        )
        ones = b.full(n.src[0].shape, b.scalar(True, b.BOOL))
        inside = b.gather(ones, indices, g, b.scalar(False, b.BOOL)) if not flags[1] else None
        if inside is None:
            inside, _ = gather_rule(
                UOp(Op.GATHER, (ones, n.src[1], b.scalar(False, b.BOOL)), g),
                (ones, indices, b.scalar(False, b.BOOL)),
                (False, True, False),
                size,
            )
        else:
            inside = spread(inside, size)
        return b.where(inside, plain, b.expand(fill, plain.shape, (0,))), True
    if flags[0] and not flags[1]:
        info = replace(
            g,
            offset_dims=(0, *shifted(g.offset_dims)),
            collapsed_slice_dims=shifted(g.collapsed_slice_dims),
            start_index_map=shifted(g.start_index_map),
            operand_batching_dims=shifted(g.operand_batching_dims),
            slice_sizes=(size, *g.slice_sizes),
        )
    elif not flags[0]:
        info = replace(
            g,
            offset_dims=shifted(g.offset_dims),
            start_indices_batching_dims=shifted(g.start_indices_batching_dims),
        )
    else:
        info = replace(
            g,
            offset_dims=shifted(g.offset_dims),
            collapsed_slice_dims=shifted(g.collapsed_slice_dims),
            start_index_map=shifted(g.start_index_map),
            operand_batching_dims=(0, *shifted(g.operand_batching_dims)),
            start_indices_batching_dims=(0, *shifted(g.start_indices_batching_dims)),
            slice_sizes=(1, *g.slice_sizes),
        )
    return b.gather(x, indices, info, fill), True


def scatter_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Indices unbatched: a window axis over the batch. Indices batched: batching dims."""
    s = n.arg
    x = batched(src[0], flags[0], size)
    updates = batched(src[2], flags[2], size)
    info = replace(
        s,
        update_window_dims=shifted(s.update_window_dims),
        inserted_window_dims=shifted(s.inserted_window_dims),
        scatter_dims_to_operand_dims=shifted(s.scatter_dims_to_operand_dims),
        operand_batching_dims=shifted(s.operand_batching_dims),
    )
    if flags[1]:
        info = replace(
            info,
            operand_batching_dims=(0, *info.operand_batching_dims),
            scatter_indices_batching_dims=(0, *shifted(s.scatter_indices_batching_dims)),
        )
    else:
        info = replace(info, update_window_dims=(0, *info.update_window_dims))
    return b.scatter(x, src[1], updates, info), True


def stack_starts(starts: Sequence[UOp], flags: Flags, size: int) -> UOp:
    """Index vectors [size, rank] from one start per axis, some of them batched."""
    dtype = starts[0].dtype
    columns = [
        b.reshape(batched(b.cast(s, dtype), f, size), (size, 1))
        for s, f in zip(starts, flags, strict=True)
    ]
    return b.concat(columns, 1)


def dynamic_slice_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Starts shared: one slice of all examples. Starts batched: a GATHER that clamps."""
    x, starts = src[0], src[1:]
    if not any(flags[1:]):
        zero = b.like(starts[0], 0) if starts else b.scalar(0, b.INT32)
        return b.dynamic_slice(x, (zero, *starts), (size, *n.arg)), True
    rank = n.src[0].ndim
    info = GatherInfo(
        offset_dims=tuple(range(1, rank + 1)),
        collapsed_slice_dims=(),
        start_index_map=tuple(range(rank)),
        slice_sizes=n.arg,
        mode="clip",
    )
    if flags[0]:
        info = replace(
            info,
            start_index_map=shifted(info.start_index_map),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(0,),
            slice_sizes=(1, *n.arg),
        )
    return b.gather(x, stack_starts(starts, flags[1:], size), info), True


def dynamic_update_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Starts shared: one update of all examples. Starts batched: a SCATTER that clamps."""
    x = batched(src[0], flags[0], size)
    update = batched(src[1], flags[1], size)
    starts = src[2:]
    if not any(flags[2:]):
        zero = b.like(starts[0], 0) if starts else b.scalar(0, b.INT32)
        return b.dynamic_update(x, update, (zero, *starts)), True
    rank = n.src[0].ndim
    info = ScatterInfo(
        "set",
        update_window_dims=tuple(range(1, rank + 1)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=tuple(range(1, rank + 1)),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
        mode="clip",
        indices_are_sorted=True,
        unique_indices=True,
    )
    return b.scatter(x, stack_starts(starts, flags[2:], size), update, info), True


def sort_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    axis, num_keys, stable = n.arg
    operands = tuple(batched(x, f, size) for x, f in zip(src, flags, strict=True))
    return UOp(Op.SORT, operands, (axis + 1, num_keys, stable)), True


def same_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Ops that treat leading axes alike."""
    return UOp(n.op, tuple(src), n.arg), True


def with_batch(avals: Sequence[Aval], size: int) -> tuple[Aval, ...]:
    """Avals with the batch axis."""
    return tuple(a.update(shape=(size, *a.shape)) for a in avals)


def host_call_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Library routines map over leading axes."""
    operands = tuple(batched(x, f, size) for x, f in zip(src, flags, strict=True))
    info = replace(n.arg, out=with_batch(n.arg.out, size), batch_ndim=n.arg.batch_ndim + 1)
    return UOp(Op.HOST_CALL, operands, info), True


def callback_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """One call for all examples if it is said to be vectorized, else one call each, in order."""
    if not n.arg.pure:
        if n.arg.kind == "io" and n.arg.ordered:
            raise ValueError(
                "Cannot `vmap` ordered IO callback: the order of its calls for different examples "
                "is not defined. Pass ordered=False (they come in order of the examples)."
            )
        levels = (*n.arg.levels, (flags[:-1], size))
        info = replace(n.arg, out=with_batch(n.arg.out, size), levels=levels)
        return UOp(n.op, tuple(src), info), (*(True,) * len(info.out), False)
    method = n.arg.vectorized
    if method is None:
        raise no_vmap_method(n)
    if method.startswith("sequential"):
        return batch_by_scan(n, src, flags, size), True
    operands = tuple(src)
    if method != "legacy_vectorized":
        fill = size if method == "broadcast_all" else 1
        operands = tuple(x if f else spread(x, fill) for x, f in zip(src, flags, strict=True))
    return UOp(n.op, operands, replace(n.arg, out=with_batch(n.arg.out, size))), True


def no_vmap_method(n: UOp) -> NotImplementedError:
    """How a callback is called for a batch is for its author to say."""
    source = sites.table().get(n)
    return make_error(
        NotImplementedError,
        "vmap is only supported for the pure_callback primitive when vmap_method is one of "
        "'sequential', 'sequential_unrolled', 'expand_dims', 'broadcast_all', or "
        "'legacy_vectorized'. Got vmap_method=None",
        site=source[0] if source else None,
        fix='Pass vmap_method="sequential" (one call per example), or "broadcast_all" if the '
        "callback takes arrays with a leading axis of examples.",
    )


def check_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """The condition must hold for every example; the message is that of the last that fails, as in
    JAX."""
    holds, *values, token = src
    if flags[0]:
        worst = b.last_true(b.not_(holds))
        holds = b.reduce("and", holds, (0,))
    else:
        worst = b.scalar(0, dtypes.int32)
    values = [
        b.reshape(b.dynamic_slice(v, [worst, *zero_starts(v)], (1, *v.shape[1:])), v.shape[1:])
        if f
        else v
        for v, f in zip(values, flags[1:-1], strict=True)
    ]
    return UOp(Op.CHECK, (holds, *values, token), n.arg), (False,)


def zero_starts(x: UOp) -> list[UOp]:
    """Starts of a slice that is whole along all axes but the first."""
    return [b.scalar(0, dtypes.int32)] * (x.ndim - 1)


def batch_by_scan(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> UOp:
    """One example after the other."""
    variables = [fresh_var(s.aval) for s in n.src]
    node = UOp(n.op, tuple(variables), n.arg)
    consts = [v for v, f in zip(variables, flags, strict=True) if not f]
    xs = [v for v, f in zip(variables, flags, strict=True) if f]
    body = reclose(results(node), [*consts, *xs])
    given = [s for s, f in zip(src, flags, strict=True) if not f]
    mapped = [s for s, f in zip(src, flags, strict=True) if f]
    info = ScanInfo(num_consts=len(given), num_carry=0, length=size)
    return UOp(Op.SCAN, (body, *given, *mapped), info)


# --- calls and control flow -----------------------------------------------------------------------


def batched_body(
    body: UOp, avals: Sequence[Aval], flags: Flags, size: int, force: Flags | None = None
) -> tuple[UOp, Flags]:
    """The body over all examples: args flagged have the batch axis first; which outputs have it.

    `avals` are those of one example. Outputs flagged in `force` get the axis in any case. Made once
    per (body, flags, size, force).
    """
    key = ("batch", flags, size, force)
    found = body.derived.get(key)
    if found is not None:
        return found  # type: ignore[no-any-return]
    params, outs = open_vars(body, avals)
    new_params = [
        fresh_var(a.update(shape=(size, *a.shape))) if f else p
        for p, a, f in zip(params, avals, flags, strict=True)
    ]
    inputs = {p: q for p, q, f in zip(params, new_params, flags, strict=True) if f}
    place = token_of(outs)
    with open_chain() as chain:
        if place is not None:
            chain.start = chain.last = params[token_of(params) or 0]
        values, out_flags = batch(outs, inputs, size, chain)
    if place is None and chain.last is not None:
        raise NewEffects(
            "the rule of a custom_vmap function prints, checks or calls back where the function does "
            "not, in a derivative rule or the condition of a loop.\n"
            "  Take the effects out of the rule given to def_vmap."
        )
    if force is not None:
        values = [
            batched(v, f, size) if want else v
            for v, f, want in zip(values, out_flags, force, strict=True)
        ]
        out_flags = [
            f or (want and v.aval is not TOKEN)
            for v, f, want in zip(values, out_flags, force, strict=True)
        ]
    new = reclose(values, new_params)
    out = (new, tuple(out_flags))
    body.derived[key] = out
    return out


def example(aval: Aval, flag: bool) -> Aval:
    """Aval of one example of a (perhaps batched) value."""
    return aval.update(shape=aval.shape[1:]) if flag else aval


def with_token(body: UOp, kinds: Sequence[Aval], flags: Flags) -> tuple[list[Aval], Flags]:
    """Parameters of a rule's body: a token comes last if it has effects."""
    return ([*kinds, TOKEN], (*flags, False)) if has_effects(body) else (list(kinds), flags)


@dataclass(frozen=True, slots=True)
class BatchedRule(DerivedRule):
    """A custom derivative rule over all examples: its closed bodies, batched.

    The user's Python rule is not run again; a batched cotangent of an unbatched argument is summed.
    """

    flags: Flags
    size: int
    num_out: int

    def _examples(self, avals: Sequence[Aval]) -> list[Aval]:
        return [example(a, f) for a, f in zip(avals, self.flags, strict=True)]

    def jvp_body(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, Flags]:
        """(args, tangents) -> (outputs, nonzero tangents), all outputs batched."""
        ones = self._examples(avals)
        body, out_zero = self.rule.jvp_body(ones, zero)
        inexact = [i for i, a in enumerate(ones) if dtypes.is_inexact(a.dtype)]
        flags = (*self.flags, *(self.flags[i] for i in inexact))
        kinds = [*ones, *(ones[i].strip_weak_type() for i in inexact)]
        kinds, flags = with_token(body, kinds, flags)
        new, _ = batched_body(body, kinds, flags, self.size, every(body))
        return new, out_zero

    def vjp_bodies(self, avals: Sequence[Aval], zero: Flags) -> tuple[UOp, UOp]:
        """Forward with batched outputs and residuals; backward with cotangents summed as needed."""
        ones = self._examples(avals)
        forward, backward = self.rule.vjp_bodies(ones, zero)
        new, res_flags = batched_body(
            forward,
            *with_token(forward, ones, self.flags),
            self.size,
            (True,) * self.num_out + (False,) * (len(forward.src) - self.num_out),
        )
        place = token_of(forward.src)
        res_flags = tuple(without(res_flags, place))
        held = without(forward.src, place)[self.num_out :]
        outs = [o.aval for o in forward.src[: self.num_out] if dtypes.is_inexact(o.dtype)]
        inexact = [f for a, f in zip(ones, self.flags, strict=True) if dtypes.is_inexact(a.dtype)]

        def summed(body: UOp, zero: Flags) -> UOp:
            given = nonzero(outs, zero)
            kinds = [*(h.aval for h in held), *(o.strip_weak_type() for o in given)]
            flags = (*res_flags[self.num_out :], *(True,) * len(given))
            return self._summed(body, *with_token(body, kinds, flags), inexact)

        return new, each_backward(backward, summed)

    def _summed(
        self, backward: UOp, kinds: Sequence[Aval], flags: Flags, wanted: Sequence[bool]
    ) -> UOp:
        """A batched backward body; cotangents of unbatched arguments are sums over the examples."""
        wanted = [*wanted, *[False] * has_effects(backward)]
        back, back_flags = batched_body(
            backward, kinds, flags, self.size, (False,) * len(backward.src)
        )
        params, values = open_vars(
            back,
            [
                k.update(shape=(self.size, *k.shape)) if f else k
                for k, f in zip(kinds, flags, strict=True)
            ],
        )
        fixed = []
        for v, is_batched, want in zip(values, back_flags, wanted, strict=True):
            if v.aval is TOKEN:
                pass
            elif is_batched and not want:
                v = b.sum_(v, (0,))
            elif not is_batched and want:
                v = spread(v, self.size)
            elif not is_batched and not want:
                v = b.mul(v, b.like(v, self.size))
            fixed.append(v)
        return reclose(fixed, params)


def call_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """The same call of the batched body; custom rules are batched with it."""
    info: CallInfo = n.arg
    body, args = n.src[0], src[1:]
    arg_flags = flags[1:]
    avals = [a.aval for a in n.src[1:]]
    if info.rule is None:
        new, out_flags = batched_body(body, avals, arg_flags, size)
        if info.repeat is not None:
            prints, count = info.repeat
            own = of_repeat(n, avals), tuple(of_repeat(n, arg_flags))
            kinds, which = with_token(prints, *own)
            info = replace(info, repeat=(batched_body(prints, kinds, which, size)[0], count))
        return UOp(Op.CALL, (new, *args), info), out_flags
    place = token_of(n.operands)
    if hasattr(info.rule, "batched"):
        return custom_vmap_rule(n, args, arg_flags, size)
    all_out = every(body)
    new, _ = batched_body(body, avals, arg_flags, size, all_out)
    rule = BatchedRule(info.rule, tuple(without(arg_flags, place)), size, sum(all_out))
    return UOp(Op.CALL, (new, *args), replace(info, rule=rule)), all_out


def custom_vmap_rule(n: UOp, args: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """The user's batching rule in place of the function (engine/custom_batching.py)."""
    place, out_place = token_of(n.operands), token_of(results(n))
    kinds = [a.aval for a in without(n.operands, place)]
    body, out_flags = n.arg.rule.batched(kinds, tuple(without(flags, place)), size)
    token = None if place is None else args[place]
    values, token = apply_rule(body, without(args, place), token)
    return tuple_of(inserted(values, out_place, token)), tuple(
        inserted(out_flags, out_place, False)
    )


def custom_lin_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """All outputs batched; the backward body returns a cotangent per tangent input, batched
    alike."""
    info = n.arg
    held = info.num_residuals
    operands = [
        *src[:held],
        *(batched(s, f, size) for s, f in zip(src[held:], flags[held:], strict=True)),
    ]

    def back(body: UOp, zero: Flags) -> UOp:
        outs = nonzero(info.out, zero)
        kinds = [*(s.aval for s in n.src[:held]), *outs]
        body_flags = (*flags[:held], *(True,) * len(outs))
        return batched_body(body, *with_token(body, kinds, body_flags), size, every(body))[0]

    new = replace(info, out=with_batch(info.out, size), backward=each_backward(info.backward, back))
    if info.forward is not None:
        kinds = [s.aval for s in n.src]
        body_flags = (*flags[:held], *(True,) * (len(kinds) - held))
        ahead, _ = batched_body(info.forward, kinds, body_flags, size, (True,) * len(info.out))
        new = replace(new, forward=ahead)
    return UOp(Op.CUSTOM_LIN, tuple(operands), new), (True,) * len(info.out)


def scan_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """Scan axis 0, batch axis 1 for xs and ys; which carries are batched is a fixed point."""
    info: ScanInfo = n.arg
    nc, nk = info.num_consts, info.num_carry
    body, args, old = n.src[0], src[1:], n.src[1:]
    arg_flags = list(flags[1:])
    avals = [a.aval for a in old[: nc + nk]]
    avals += [a.aval.update(shape=a.aval.shape[1:]) for a in old[nc + nk :]]
    carry = arg_flags[nc : nc + nk]
    while True:
        now = (*arg_flags[:nc], *carry, *arg_flags[nc + nk :])
        force = (*carry, *(False,) * (len(body.src) - nk))
        new, out_flags = batched_body(body, avals, now, size, force)
        if list(out_flags[:nk]) == carry:
            break
        carry = [a or c for a, c in zip(out_flags[:nk], carry, strict=True)]
    given = list(args[:nc])
    given += [
        batched(a, f, size) if want else a
        for a, f, want in zip(args[nc : nc + nk], arg_flags[nc : nc + nk], carry, strict=True)
    ]
    given += [
        b.moveaxis(x, 0, 1) if f else x
        for x, f in zip(args[nc + nk :], arg_flags[nc + nk :], strict=True)
    ]
    loop = UOp(Op.SCAN, (new, *given), info)
    values = []
    for i, f in enumerate(out_flags):
        value = get(loop, i)
        values.append(b.moveaxis(value, 1, 0) if f and i >= nk else value)
    return tuple_of(values), out_flags


def while_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """With a batched predicate: run while any example runs, and keep the finished ones as they
    are."""
    info = n.arg
    cc, bc = info.cond_consts, info.body_consts
    cond, body = n.src[:2]
    if has_io(body, ordered=True):
        raise ValueError(
            "Ordered IO effects not supported in vmap: an io_callback with ordered=True is one call, "
            "not one per example. Pass ordered=False."
        )
    args, old, arg_flags = src[2:], n.src[2:], flags[2:]
    avals = [a.aval for a in old]
    c_avals, b_avals, k_avals = avals[:cc], avals[cc : cc + bc], avals[cc + bc :]
    c_flags, b_flags = arg_flags[:cc], arg_flags[cc : cc + bc]
    carry = list(arg_flags[cc + bc :])
    while True:
        now = tuple(carry)
        new_body, out = batched_body(body, [*b_avals, *k_avals], (*b_flags, *now), size, now)
        if list(out) != carry:
            carry = list(out)
            continue
        new_cond, (pred,) = batched_body(cond, [*c_avals, *k_avals], (*c_flags, *now), size)
        wide = [a is not TOKEN for a in k_avals]
        if pred and carry != wide:
            carry = wide
            continue
        break
    given = [
        batched(a, f, size) if want else a
        for a, f, want in zip(args[cc + bc :], arg_flags[cc + bc :], carry, strict=True)
    ]
    consts_c, consts_b = args[:cc], args[cc : cc + bc]
    if not pred:
        node = UOp(Op.WHILE, (new_cond, new_body, *consts_c, *consts_b, *given), info)
        return node, tuple(carry)
    if has_io(body):
        raise NotImplementedError(
            "Unordered IO effects not supported in while_loop with batched predicate: the body runs "
            "until the last example is done, so an io_callback in it would be called for examples "
            "that are.\n  Map over the loop with lax.map, or use debug.callback."
        )
    vc = [fresh_var(a.aval) for a in consts_c]
    vb = [fresh_var(a.aval) for a in consts_b]
    vk = [fresh_var(a.aval) for a in given]
    (running,) = open_body(new_cond, [*vc, *vk])
    any_cond = reclose([b.reduce("or", running, (0,))], [*vc, *vk])
    stepped = open_body(new_body, [*vb, *vk])
    kept = [
        b.where(b.expand(running, s.shape, (0,)), s, k)
        if k.aval is not TOKEN  # examples that have ended are masked; their effects are not
        else s
        for s, k in zip(stepped, vk, strict=True)
    ]
    masked = reclose(kept, [*vc, *vb, *vk])
    node = UOp(
        Op.WHILE,
        (any_cond, masked, *consts_c, *consts_c, *consts_b, *given),
        replace(info, body_consts=cc + bc),
    )
    return node, tuple(carry)


def has_io(body: UOp, ordered: bool = False) -> bool:
    """Whether a body has an IO callback (an ordered one)."""
    if not has_effects(body):
        return False
    nodes = toposort([body], bodies=True)
    return any(
        n.op is Op.CALLBACK and n.arg.kind == "io" and n.arg.ordered >= ordered for n in nodes
    )


def cond_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, Any]:
    """A shared index keeps the branch. A batched one runs all branches and selects.

    Where an example does not take a branch, that branch sees its operands as constants, so that no
    NaN reaches the gradient through it (the select alone would give 0 * NaN).
    """
    number = n.arg
    branches, index, args = n.src[:number], src[number], src[number + 1 :]
    arg_flags = flags[number + 1 :]
    avals = [a.aval for a in n.src[number + 1 :]]
    if not flags[number]:
        out = [batched_body(br, avals, arg_flags, size)[1] for br in branches]
        union = tuple(any(f[i] for f in out) for i in range(len(branches[0].src)))
        new = [batched_body(br, avals, arg_flags, size, union)[0] for br in branches]
        return UOp(Op.COND, (*new, index, *args), number), union
    if any(map(has_io, branches)):
        raise NotImplementedError(
            "IO effect not supported in vmap-of-cond: with a predicate per example all branches run "
            "for all examples, so an io_callback would be called for a branch that is not taken.\n"
            "  Map over the branch with lax.map, or use debug.callback."
        )
    wide = [batched(a, f, size) for a, f in zip(args, arg_flags, strict=True)]
    all_out = every(branches[0])
    all_args = tuple(a is not TOKEN for a in avals)
    place = token_of(wide)
    chosen: list[UOp] = []
    for i in range(number) if place is not None else reversed(range(number)):
        position = b.like(index, i)
        if number == 1:
            mask = b.full((size,), b.scalar(True, b.BOOL))
        elif i == 0:
            mask = b.le(index, position)
        elif i == number - 1:
            mask = b.ge(index, position)
        else:
            mask = b.eq(index, position)
        guarded = [
            b.where(b.expand(mask, x.shape, (0,)), x, b.stop_gradient(x))
            if dtypes.is_inexact(x.dtype)
            else x
            for x in wide
        ]
        body, _ = batched_body(branches[i], avals, all_args, size, all_out)
        values = open_body(body, guarded)
        if place is not None:  # the effects of all branches, one branch after the other
            wide[place] = values[token_index(body)]
        chosen = (
            list(values)
            if not chosen
            else [
                b.where(b.expand(mask, v.shape, (0,)), v, c) if on else v
                for v, c, on in zip(values, chosen, all_out, strict=True)
            ]
        )
    return tuple_of(chosen), all_out


# --- collectives ----------------------------------------------------------------------------------
# Operands after the first are the axes' index variables. One that is batched says that this vmap
# is the
# participant axis; then the collective becomes an ordinary op over the batch axis.


def all_reduce_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """A reduction over the batch axis; what is left of the axes stays a collective."""
    kind, names = n.arg
    if not any(flags[1:]):
        return UOp(n.op, tuple(src), n.arg), True
    place = flags[1:].index(True)
    x = src[0]
    if flags[0]:
        x = b.reduce(kind, x, (0,))
    elif kind == "add":
        x = b.mul(x, b.like(x, size))
    rest = tuple(s for i, s in enumerate(src[1:]) if i != place)
    names = tuple(m for i, m in enumerate(names) if i != place)
    return (UOp(n.op, (x, *rest), (kind, names)) if rest else x), False


def all_gather_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """The batch axis becomes an axis of the value (or is joined to one, if tiled)."""
    name, axis, tiled, of = n.arg
    if not flags[1]:
        (new,) = with_batch((of,), size)
        return UOp(n.op, tuple(src), (name, axis + 1, tiled, new)), True
    x = b.moveaxis(batched(src[0], flags[0], size), 0, axis)
    return b.reshape(x, of.shape), False


def split_axis(x: UOp, axis: int, size: int) -> UOp:
    """An axis of size n*k as two, (n, k)."""
    return b.reshape(x, (*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :]))


def reduce_scatter_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """Sum over the batch axis; each example keeps its part of an axis."""
    name, axis, tiled, of = n.arg
    if not flags[1]:
        (new,) = with_batch((of,), size)
        return UOp(n.op, tuple(src), (name, axis + 1, tiled, new)), True
    x = b.sum_(src[0], (0,)) if flags[0] else b.mul(src[0], b.like(src[0], size))
    x = split_axis(x, axis, size) if tiled else x
    return b.moveaxis(x, axis, 0), True


def ppermute_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """A static gather along the batch axis; examples that get nothing get zeros."""
    if not flags[1]:
        return UOp(n.op, tuple(src), n.arg), True
    x = batched(src[0], flags[0], size)
    sources = {j: i for i, j in n.arg[1]}
    none = b.zeros(n.src[0].aval)
    parts = [
        b.slice_axis(x, 0, sources[j], sources[j] + 1) if j in sources else b.unsqueeze(none, 0)
        for j in range(size)
    ]
    return b.concat(parts, 0), True


def all_to_all_rule(n: UOp, src: Sequence[UOp], flags: Flags, size: int) -> tuple[UOp, bool]:
    """The batch axis and a split axis change places."""
    name, split, concat, tiled, of = n.arg
    if not flags[1]:
        (new,) = with_batch((of,), size)
        return UOp(n.op, tuple(src), (name, split + 1, concat + 1, tiled, new)), True
    x = batched(src[0], flags[0], size)
    x = split_axis(x, split + 1, size) if tiled else x
    # [sender, ..., receiver, ...] -> [receiver, sender, ...] -> sender at the concatenated axis
    x = b.moveaxis(b.moveaxis(x, split + 1, 0), 1, concat + 1)
    return b.reshape(x, (size, *of.shape)), True


BATCH: dict[Op, BatchRule] = {
    **dict.fromkeys(ELEMENTWISE | COMPARISONS, elementwise_rule),
    Op.RESHAPE: reshape_rule,
    Op.PERMUTE: permute_rule,
    Op.EXPAND: unary_shift(lambda arg, size: ((size, *arg[0]), (0, *shifted(arg[1])))),
    Op.PAD: pad_rule,
    Op.SLICE: unary_shift(lambda arg, size: ((0, size, 1), *arg)),
    Op.FLIP: unary_shift(lambda arg, size: shifted(arg)),
    Op.CONCAT: concat_rule,
    Op.WINDOW: window_rule,
    Op.REDUCE: unary_shift(lambda arg, size: (arg[0], shifted(arg[1]))),
    Op.ARGREDUCE: unary_shift(lambda arg, size: (arg[0], arg[1] + 1, arg[2])),
    Op.PREFIX: unary_shift(lambda arg, size: (arg[0], arg[1] + 1, arg[2])),
    Op.DOT: dot_rule,
    Op.GATHER: gather_rule,
    Op.SCATTER: scatter_rule,
    Op.DYNAMIC_SLICE: dynamic_slice_rule,
    Op.DYNAMIC_UPDATE: dynamic_update_rule,
    Op.SORT: sort_rule,
    Op.RANDOM_BITS: same_rule,
    Op.FFT: same_rule,
    Op.STOP_GRADIENT: same_rule,
    Op.NAME: same_rule,
    Op.OPTIMIZATION_BARRIER: same_rule,
    Op.REMAT: same_rule,
    Op.COPY: same_rule,
    Op.PCAST: same_rule,
    Op.KEY_WRAP: same_rule,
    Op.KEY_UNWRAP: same_rule,
    Op.HOST_CALL: host_call_rule,
    Op.CALLBACK: callback_rule,
    Op.CHECK: check_rule,
    Op.CALL: call_rule,
    Op.CUSTOM_LIN: custom_lin_rule,
    Op.SCAN: scan_rule,
    Op.WHILE: while_rule,
    Op.COND: cond_rule,
    Op.ALL_REDUCE: all_reduce_rule,
    Op.ALL_GATHER: all_gather_rule,
    Op.REDUCE_SCATTER: reduce_scatter_rule,
    Op.PPERMUTE: ppermute_rule,
    Op.ALL_TO_ALL: all_to_all_rule,
}
"""One rule per op that can have a batched operand."""


def with_new_effects(
    rule: BatchRule, node: UOp, src: Sequence[UOp], flags: Flags, size: int
) -> tuple[UOp, Any]:
    """The rule for a node without effects when those over all examples have some: users' rules do."""
    chain, count = state.chains[-1], len(node.bodies)
    token = chain.take()
    wide, at, out = token_through(node, token)
    given = [*wide.bodies, *inserted(src[count:], at, token)]
    made, out_flags = rule(wide, given, tuple(inserted(flags, count + at, False)), size)
    *values, chain.last = *without(results(made), out), get(made, out)
    return tuple_of(values), tuple(without(out_flags, out))


def batch(
    outputs: Sequence[UOp], inputs: Mapping[UOp, UOp], size: int, chain: Chain
) -> tuple[list[UOp], list[bool]]:
    """Outputs over all examples and which of them are batched.

    `inputs` maps each variable of one example to its value with the batch axis first. Outputs that
    mention none of the variables come back as they are, unbatched.
    `chain` is the open one. It begins with the token that the first effect among the nodes takes, if
    there are any, and grows with them; effects that users' rules for vmap add come between those that
    they are computed between.
    Cost: one walk over the nodes that mention the variables.
    """
    new: dict[UOp, UOp] = dict(inputs)
    flag: dict[UOp, Any] = dict.fromkeys(inputs, True)
    recent = chain.last  # the token, of one example, that stands for the chain's last
    starts = [] if recent is None else [recent]
    wanted = depends_on(outputs, [v.arg for v in (*inputs, *starts)])
    ends = [o for o in outputs if o.aval is TOKEN]  # first: what effects need comes before the rest
    for node in toposort([*ends, *outputs], keep=wanted):
        if node in new:
            continue
        src = tuple(new.get(s, s) for s in node.src)
        if node.op is Op.GETTUPLE:
            parent = flag.get(node.src[0], False)
            new[node] = get(src[0], node.arg)
            flag[node] = parent if isinstance(parent, bool) else parent[node.arg]
            continue
        flags = tuple(bool(flag.get(s, False)) for s in node.src)
        if node.op is Op.TUPLE:
            new[node], flag[node] = node.with_src(src), flags
            continue
        if not any(flags):
            new[node], flag[node] = node.with_src(src), False
        else:
            rule = BATCH.get(node.op)
            if rule is None:
                raise NotImplementedError(f"vmap has no rule for {node.op.name.lower()}")
            before = chain.last
            try:
                new[node], flag[node] = rule(node, src, flags, size)
            except NewEffects:
                new[node], flag[node] = with_new_effects(rule, node, src, flags, size)
            sites.rewritten(new[node], node)
            if recent is not None and chain.last is not before and chain.last is not None:
                new[recent] = chain.last
        if recent is not None and isinstance(node.aval, TupleAval) and TOKEN in node.aval.elts:
            place = node.aval.elts.index(TOKEN)
            recent, chain.last = get(node, place), get(new[node], place)
            new[recent], flag[recent] = chain.last, False
    return [new.get(o, o) for o in outputs], [bool(flag.get(o, False)) for o in outputs]
