"""Flat bodies: a closed stage-1 body -> one without calls, typed keys, weak types or marks.

After this pass a body has PARAM and CONST leaves and only ops that compute something. What is left
of CALL is `precompile=True` (nested programs); SCAN, WHILE and COND hold flat bodies. Erased:
STOP_GRADIENT, NAME, PCAST, custom rules, weak flags. Kept: OPTIMIZATION_BARRIER, which ends a group
of fusion, and REMAT, because its id is what keeps a recomputation apart from the value it
recomputes; ids are renumbered so that equal bodies stay one object. Common subexpressions are
shared by hash-consing and what no output reads is never visited.

Typed keys become their uint32 words: `key_shape` is appended to the shape, so KEY_WRAP and
KEY_UNWRAP are identities and every op that may move keys gets trailing axes that it leaves alone.

Cost: one walk over the body and one over each inlined body per call site.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval, aval
from tinyjax.core.composites import KIND
from tinyjax.core.errors import LoweringError
from tinyjax.core.infos import WhileInfo
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.shapes import same_shape
from tinyjax.core.uop import UOp, const, const_value, get, param, substitute, toposort, tuple_of
from tinyjax.lowering.blocks import in_row_blocks

UINT32 = np.dtype(np.uint32)
INT64 = np.dtype(np.int64)
ERASED = frozenset({Op.STOP_GRADIENT, Op.NAME, Op.PCAST, Op.KEY_WRAP, Op.KEY_UNWRAP})


def storage_aval(of: Aval) -> Aval:
    """The aval of a value in memory: not weak, keys as uint32 words along trailing axes."""
    if dtypes.is_key(of.dtype):
        return aval((*of.shape, *of.dtype.key_shape), UINT32)
    return of.strip_weak_type()


def inline(body: UOp) -> UOp:
    """closed body -> flat body: calls inlined, keys as words, no marks or weak types

    Equal bodies give the same object. Kept on the body, so that a loop body or a program shared
    by many sites is flattened once.
    """
    flat: UOp | None = body.derived.get("inline")
    if flat is None:
        ids = itertools.count(1)
        flat = tuple_of(_Inliner(ids).outputs(body, None))
        body.derived["inline"] = flat
        flat.derived["inline"] = flat
    return flat


class _Inliner:
    """One flattening: maps nodes of the body (and of the bodies called in it) to flat ones."""

    def __init__(self, ids: Iterator[int]) -> None:
        self.ids = ids

    def outputs(self, body: UOp, args: tuple[UOp, ...] | None) -> list[UOp]:
        """Flat outputs of `body` applied to flat arguments (None: its own parameters)."""
        done: dict[UOp, UOp] = {}
        for node in toposort(body.src):
            if node.op is Op.PARAM:
                slot, of = node.arg
                done[node] = param(slot, storage_aval(of)) if args is None else args[slot]
            else:
                done[node] = self.node(node, tuple(done[s] for s in node.operands))
        return [done[o] for o in body.src]

    def node(self, n: UOp, src: tuple[UOp, ...]) -> UOp:
        op, arg = n.op, n.arg
        if op in ERASED:
            return src[0]
        if op is Op.COPY and arg is None:
            return src[0]
        if op is Op.CALL and not arg.precompile:
            body = in_row_blocks(inline(n.src[0])) if arg.kind == KIND else n.src[0]
            return tuple_of(self.outputs(body, src))
        if op is Op.GETTUPLE:
            return get(src[0], arg)
        if op is Op.CONST:
            return UOp(Op.CONST, (), (arg[0], arg[1], False))
        if op is Op.IOTA:
            return UOp(Op.IOTA, (), (arg[0].strip_weak_type(), arg[1]))
        if op is Op.REMAT:
            return UOp(Op.REMAT, src, next(self.ids))
        if op is Op.CALLBACK and arg.pure:
            return UOp(op, src, replace(arg, sequence=next(self.ids)))
        if op is Op.CUSTOM_LIN and arg.forward is not None:
            return tuple_of(self.outputs(arg.forward, src))
        if op is Op.CUSTOM_LIN:
            raise LoweringError(
                "can't apply forward-mode differentiation (jvp) to a custom_vjp function: "
                f"{arg.name or 'it'} has only a reverse rule. Give it a jvp rule too (f.defjvp)."
            )
        if op is Op.CAST:
            return src[0] if src[0].aval.dtype == arg[0] else UOp(op, src, (arg[0], False))
        if op is Op.WHERE and src[0].op is Op.CONST and not src[0].aval.shape:
            chosen = src[1] if const_value(src[0]) else src[2]
            return _fill_leading(chosen, storage_aval(n.aval).shape)
        if op is Op.WHILE:
            cond, body = n.bodies
            return UOp(op, (inline(cond), inline(_running(cond, body, arg)), *src), arg)
        if n.bodies:
            return UOp(op, (*map(inline, n.bodies), *src), arg)
        handles_keys = any(
            s is not f and _has_keys(s) for s, f in zip(n.operands, src, strict=True)
        )
        if handles_keys:
            return _key_node(n, src)
        if op in ELEMENTWISE:
            return _elementwise(op, src, arg)
        if op is Op.RESHAPE:
            return _reshape(src[0], arg)
        return UOp(op, src, arg)


def _running(cond: UOp, body: UOp, info: WhileInfo) -> UOp:
    """The body of a loop, knowing that the condition holds in it if that is a carry itself."""
    (holds,) = cond.src
    if holds.op is not Op.PARAM or holds.arg[0] < info.cond_consts:
        return body
    slot = holds.arg[0] - info.cond_consts + info.body_consts
    return tuple_of(substitute(body.src, {param(slot, holds.aval): const(True, np.bool_)}))


def _has_keys(n: UOp) -> bool:
    return isinstance(n.aval, Aval) and dtypes.is_key(n.aval.dtype)


def _reshape(x: UOp, shape: tuple[int, ...]) -> UOp:
    """reshape(reshape(x)) -> reshape(x); nothing if the shape stays"""
    if x.op is Op.RESHAPE:
        x = x.src[0]
    return x if same_shape(x.aval.shape, shape) else UOp(Op.RESHAPE, (x,), shape)


def _elementwise(op: Op, src: tuple[UOp, ...], arg: Any) -> UOp:
    """f(expand(scalar), y) -> f(scalar, y): rank-0 operands broadcast for free."""
    shape = next((s.aval.shape for s in src if s.aval.shape), ())
    if shape:
        bare = tuple(s.src[0] if s.op is Op.EXPAND and not s.src[0].aval.shape else s for s in src)
        if all(not s.aval.shape for s in bare):
            return UOp(Op.EXPAND, (UOp(op, bare, arg),), (shape, ()))
        src = bare
    return UOp(op, src, arg)


# --- typed keys ---------------------------------------------------------------------------------


def _key_shape(n: UOp) -> tuple[int, ...]:
    return next(s.aval.dtype.key_shape for s in n.operands if _has_keys(s))


def _expand_trailing(x: UOp, shape: tuple[int, ...]) -> UOp:
    """x with further axes of the target shape behind its own."""
    return x if x.aval.shape == shape else UOp(Op.EXPAND, (x,), (shape, tuple(range(x.aval.ndim))))


def _fill_leading(x: UOp, shape: tuple[int, ...]) -> UOp:
    """x repeated along new leading axes."""
    if x.aval.shape == shape:
        return x
    lead = len(shape) - x.aval.ndim
    return UOp(Op.EXPAND, (x,), (shape, tuple(range(lead, len(shape)))))


def _key_node(n: UOp, src: tuple[UOp, ...]) -> UOp:
    """A node that moves, selects or compares keys, over their words."""
    rule = KEY_RULES.get(n.op)
    if rule is None:
        raise LoweringError(f"{n.op.name} is not defined on typed keys")
    return rule(n, src, _key_shape(n))


def _key_pad(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    """PAD fills with a scalar; the words of the fill key differ, so they are selected by a mask."""
    x, fill = src
    config = (*n.arg, *((0, 0, 0),) * len(key))
    words = UOp(Op.PAD, (x, const(0, UINT32)), config)
    true = UOp(Op.EXPAND, (const(True, np.bool_),), (x.aval.shape, ()))
    inside = UOp(Op.PAD, (true, const(False, np.bool_)), config)
    return UOp(Op.WHERE, (inside, words, _fill_leading(fill, words.aval.shape)))


def _key_window(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    """The window axis comes last: move it in front of the words."""
    out = UOp(Op.WINDOW, src, n.arg)
    rank, words = out.aval.ndim, len(key)
    front = rank - 1 - words
    return UOp(Op.PERMUTE, (out,), (*range(front), rank - 1, *range(front, rank - 1)))


def _key_where(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    shape = (*n.aval.shape, *key)
    cond = src[0] if not src[0].aval.shape else _expand_trailing(src[0], shape)
    return UOp(Op.WHERE, (cond, _fill_leading(src[1], shape), _fill_leading(src[2], shape)))


def _key_compare(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    """Keys are equal when all words are."""
    shape = (*n.aval.shape, *key)
    same = UOp(n.op, (_fill_leading(src[0], shape), _fill_leading(src[1], shape)))
    axes = tuple(range(len(shape) - len(key), len(shape)))
    return UOp(Op.REDUCE, (same,), ("and" if n.op is Op.CMPEQ else "or", axes))


def _key_gather(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    """The words are a window of full size at the end; a fill key is selected afterwards."""
    rank = n.aval.ndim
    words = tuple(range(rank, rank + len(key)))
    info = replace(
        n.arg, offset_dims=n.arg.offset_dims + words, slice_sizes=n.arg.slice_sizes + key
    )
    out = UOp(Op.GATHER, src[:2], info)
    if len(src) == 2 or info.mode != "fill":
        return out
    ones = UOp(Op.EXPAND, (const(True, np.bool_),), (src[0].aval.shape, ()))
    inside = UOp(Op.GATHER, (ones, src[1], const(False, np.bool_)), info)
    return UOp(Op.WHERE, (inside, out, _fill_leading(src[2], out.aval.shape)))


def _key_scatter(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    rank = src[2].aval.ndim - len(key)
    words = tuple(range(rank, rank + len(key)))
    return UOp(Op.SCATTER, src, replace(n.arg, update_window_dims=n.arg.update_window_dims + words))


def _key_sort(n: UOp, src: tuple[UOp, ...], key: tuple[int, ...]) -> UOp:
    """Keys that are moved along: each of their words is an operand of its own."""
    count = math.prod(key)
    words: list[list[UOp]] = []
    for s, flat in zip(n.operands, src, strict=True):
        if _has_keys(s):
            rows = _reshape(flat, (*s.aval.shape, count))
            words.append([_word(rows, i) for i in range(count)])
        else:
            words.append([flat])
    node = UOp(Op.SORT, tuple(itertools.chain(*words)), n.arg)
    moved = iter(range(len(node.src)))
    results = []
    for s, flat, parts in zip(n.operands, src, words, strict=True):
        out = [get(node, next(moved)) for _ in parts]
        if _has_keys(s):
            columns = tuple(_reshape(w, (*s.aval.shape, 1)) for w in out)
            results.append(_reshape(UOp(Op.CONCAT, columns, s.aval.ndim), flat.aval.shape))
        else:
            results += out
    return tuple_of(results)


def _word(rows: UOp, i: int) -> UOp:
    """Word i of keys [*s, words]."""
    *shape, _ = rows.aval.shape
    part = (*((0, size, 1) for size in shape), (i, i + 1, 1))
    return _reshape(UOp(Op.SLICE, (rows,), part), tuple(shape))


def _zeros(count: int) -> tuple[UOp, ...]:
    return (const(0, INT64),) * count


KEY_RULES: dict[Op, Callable[[UOp, tuple[UOp, ...], tuple[int, ...]], UOp]] = {
    Op.RESHAPE: lambda n, src, key: _reshape(src[0], (*n.arg, *key)),
    Op.PERMUTE: lambda n, src, key: UOp(
        Op.PERMUTE, src, (*n.arg, *range(n.aval.ndim, n.aval.ndim + len(key)))
    ),
    Op.EXPAND: lambda n, src, key: UOp(
        Op.EXPAND,
        src,
        (
            (*n.arg[0], *key),
            (*n.arg[1], *range(len(n.arg[0]), len(n.arg[0]) + len(key))),
        ),
    ),
    Op.SLICE: lambda n, src, key: UOp(Op.SLICE, src, (*n.arg, *((0, k, 1) for k in key))),
    Op.FLIP: lambda n, src, key: UOp(Op.FLIP, src, n.arg),
    Op.CONCAT: lambda n, src, key: UOp(Op.CONCAT, src, n.arg),
    Op.PAD: _key_pad,
    Op.WINDOW: _key_window,
    Op.WHERE: _key_where,
    Op.CMPEQ: _key_compare,
    Op.CMPNE: _key_compare,
    Op.GATHER: _key_gather,
    Op.SCATTER: _key_scatter,
    Op.SORT: _key_sort,
    Op.DYNAMIC_SLICE: lambda n, src, key: UOp(
        Op.DYNAMIC_SLICE, (*src, *_zeros(len(key))), (*n.arg, *key)
    ),
    Op.DYNAMIC_UPDATE: lambda n, src, key: UOp(Op.DYNAMIC_UPDATE, (*src, *_zeros(len(key)))),
    Op.REMAT: lambda n, src, key: UOp(Op.REMAT, src, n.arg),
    Op.OPTIMIZATION_BARRIER: lambda n, src, key: UOp(n.op, src),
    Op.COPY: lambda n, src, key: UOp(Op.COPY, src, n.arg),
    Op.TUPLE: lambda n, src, key: UOp(Op.TUPLE, src),
    Op.HOST_CALL: lambda n, src, key: UOp(Op.HOST_CALL, src, n.arg),
    Op.CALLBACK: lambda n, src, key: UOp(Op.CALLBACK, src, n.arg),
}
"""(node, flat sources, key shape) -> flat node, for the ops that are legal on keys."""
