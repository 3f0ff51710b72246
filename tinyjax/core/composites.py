"""Composites: softmax, its kin, norms and attention as one CALL each, found in users' formulas.

A composite is `CALL(kind="composite")` whose plain body is the formula itself: raising draws a line
around nodes and changes no bit of any value. Behind the line, derivatives use the equation of the
whole (interpreters/composites.py) and lowering may compute it in blocks (lowering/blocks.py). The
library's own functions make the same calls (engine/composites.py).

Normal form, up to which a formula is recognised:

* A fold over axes is one REDUCE of the very node that appears in the formula.
* It comes back to the operand's shape by EXPAND, after any RESHAPE that adds or drops axes of size
  1; each axis that was kept runs along itself. As a scalar it needs no movement.
* Elementwise ops with scalars (`/ n`, `+ eps`) may stand before, between or after that movement.
* STOP_GRADIENT on the maximum, and 0 in place of an infinite maximum, make no difference: the
  formulas do not depend on what is subtracted.
* Dtypes are equal throughout: a CAST inside a formula makes it another formula.

One bottom-up walk (core/rewrite.py) over a table indexed by the op at the root, so that a graph
without composites costs a dictionary lookup per node. Bodies are entered, each once. Nothing is
looked for in bodies of composites and of linear calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isclose, prod

from tinyjax.core import dtypes, sites
from tinyjax.core.body import close, fresh_var, open_body
from tinyjax.core.infos import CallInfo
from tinyjax.core.ops import BODIES, ELEMENTWISE, Op
from tinyjax.core.rewrite import P, Rules, rewrite
from tinyjax.core.uop import UOp, const_value, get, substitute, toposort, tuple_of

KIND = "composite"


def is_composite(node: UOp, name: str) -> bool:
    """Whether a node is the only result of a composite of this name."""
    if node.op is not Op.GETTUPLE or node.src[0].op is not Op.CALL:
        return False
    info = node.src[0].arg
    return bool(info.kind == KIND and info.name == name and len(node.src[0].aval.elts) == 1)


def summed_axes(body: UOp) -> tuple[int, ...] | None:
    """The axes that the body of a softmax, log_softmax or logsumexp sums over.

    Read off the body, so that it holds after vmap has moved them. None if there are several sums.
    """
    found = {
        n.arg[1] for n in toposort(body.src, bodies=True) if n.op is Op.REDUCE and n.arg[0] == "add"
    }
    return found.pop() if len(found) == 1 else None


def outlined(name: str, root: UOp, leaves: Sequence[UOp]) -> UOp:
    """`root` as the result of a composite of `leaves`, which its body is closed over."""
    variables = [fresh_var(leaf.aval) for leaf in leaves]
    inside = substitute([root], dict(zip(leaves, variables, strict=True)))
    return composite_call(name, inside[0], variables, leaves)


def composite_call(
    name: str, root: UOp, variables: Sequence[UOp], args: Sequence[UOp], number: int | None = None
) -> UOp:
    """The composite that computes `root` from `variables`, applied to `args`."""
    body, captured = close([root], variables)
    assert not captured, f"the formula of a {name} captures {captured}"
    params = () if number is None else (number,)
    return get(UOp(Op.CALL, (body, *args), CallInfo(KIND, name, params=params)), 0)


def literal(n: UOp) -> float | None:
    """The real number a scalar stands for: a literal or a difference of two (n - ddof)."""
    if not dtypes.is_float(n.dtype):
        return None
    if n.op is Op.SUB and all(s.op is Op.CONST for s in n.src):
        return float(const_value(n.src[0])) - float(const_value(n.src[1]))
    return float(const_value(n)) if n.op is Op.CONST else None


# --- values spread over an operand's shape --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A value seen over a larger shape: axis `a` of it runs along axis `places[a]` of the node."""

    node: UOp
    places: tuple[int | None, ...]

    @staticmethod
    def over(node: UOp, shape: tuple[int, ...]) -> Spread:
        """The node where its axes, if it has any, are those of `shape`."""
        same = node.shape == shape
        return Spread(node, tuple(range(len(shape))) if same else (None,) * len(shape))

    def bare(self) -> Spread | None:
        """What lies behind movement that only spreads; None if an axis is moved in another way."""
        node, places = self.node, self.places
        while True:
            if node.op is Op.STOP_GRADIENT:
                node = node.src[0]
                continue
            if node.op is Op.EXPAND:
                source, (shape, dims) = node.src[0], node.arg
                back = {d: i for i, d in enumerate(dims) if source.shape[i] == shape[d]}
            elif node.op is Op.RESHAPE:
                source = node.src[0]
                kept = [i for i, s in enumerate(source.shape) if s != 1]
                made = [i for i, s in enumerate(node.shape) if s != 1]
                if [source.shape[i] for i in kept] != [node.shape[i] for i in made]:
                    return None
                back = dict(zip(made, kept, strict=True))
            else:
                return Spread(node, places)
            node, places = source, tuple(None if p is None else back.get(p) for p in places)

    def operand(self, *ops: Op) -> Spread | None:
        """The operand of an elementwise op that is one of `ops`, all others being scalars."""
        bare = self.bare()
        if bare is None or bare.node.op not in ops:
            return None
        wide = [s for s in bare.node.src if s.ndim] or [s for s in bare.node.src if s.src]
        first = bare.node.src[0] is wide[0] if wide else False
        if len(wide) != 1 or wide[0].ndim != bare.node.ndim or not (first or ops != (Op.DIV,)):
            return None
        return Spread(wide[0], bare.places)

    def fold(self, kind: str, of: UOp) -> tuple[int, ...] | None:
        """The axes, if this is a reduction of `of` spread over the shape of `of`."""
        bare = self.bare()
        if bare is None or bare.node.op is not Op.REDUCE or bare.node.src[0] is not of:
            return None
        axes: tuple[int, ...] = bare.node.arg[1]
        rest = [i for i in range(of.ndim) if i not in axes]
        back: dict[int, int] = {a: j for j, a in enumerate(rest)}
        same = all(p == back.get(a) for a, p in enumerate(bare.places) if of.shape[a] != 1)
        return axes if same and bare.node.arg[0] == kind else None

    def total(self) -> Spread | None:
        """The sum, if this is a mean: a sum over n elements divided by n or multiplied by 1/n."""
        bare = self.bare()
        found = bare and (bare.operand(Op.DIV) or bare.operand(Op.MUL))
        inner = found and found.bare()
        if not bare or not found or not inner or inner.node.op is not Op.REDUCE:
            return None
        by = literal(bare.node.src[1] if bare.node.src[0] is found.node else bare.node.src[0])
        count = prod([inner.node.src[0].shape[a] for a in inner.node.arg[1]])
        if by is None or bare.node.op is Op.DIV and not by:
            return None
        if not isclose(count * (by if bare.node.op is Op.MUL else 1 / by), 1, rel_tol=0.01):
            return None
        return inner

    def mean(self, of: UOp) -> tuple[int, ...] | None:
        """The axes, if this is a mean of `of` spread over the shape of `of`."""
        total = self.total()
        return None if total is None else total.fold("add", of)


def maximum(top: Spread) -> Spread:
    """Behind the 0 that stands for an infinite maximum, if there is one."""
    bare = top.bare()
    if bare is None or bare.node.op is not Op.WHERE or bare.node.src[0].op is not Op.IS_FINITE:
        return top
    finite, value, _ = bare.node.src
    return Spread(value, bare.places) if finite.src[0] is value else top


# --- the patterns ---------------------------------------------------------------------------------

composites = Rules("raise_composites")
x, y, top, total = P.any("x"), P.any("y"), P.any("top"), P.any("total")
spread_log = P.of({Op.EXPAND, Op.LOG, Op.GETTUPLE})(name="spread")
spread_rsqrt = P.of({Op.EXPAND, Op.RSQRT})(name="scale")
spread_sqrt = P.of({Op.EXPAND, Op.SQRT})(name="scale")


def exponential_axes(e: UOp) -> tuple[UOp, tuple[int, ...]] | None:
    """(x, axes) if `e` is exp(x - max(x, axes))."""
    if e.op is not Op.EXP or e.src[0].op is not Op.SUB:
        return None
    x, top = e.src[0].src
    axes = maximum(Spread.over(top, x.shape)).fold("max", x)
    return None if axes is None else (x, axes)


@composites.rule(P.div(P.exp(P.sub(x, top), name="e"), total, name="n"))
def raise_softmax(n: UOp, e: UOp, total: UOp) -> UOp | None:
    """exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x), both over the same axes"""
    found = exponential_axes(e)
    if found is None or Spread.over(total, e.shape).fold("add", e) != found[1]:
        return None
    return outlined("softmax", n, [found[0]])


@composites.rule(P.sub(P.sub(x, top, name="shifted"), spread_log, name="n"))
def raise_log_softmax(n: UOp, x: UOp, top: UOp, shifted: UOp, spread: UOp) -> UOp | None:
    """(x - max(x)) - log(sum(exp(x - max(x)))) -> log_softmax(x)"""
    axes = maximum(Spread.over(top, x.shape)).fold("max", x)
    inner = Spread.over(spread, x.shape).operand(Op.LOG)
    if not axes or inner is None or inner.fold("add", UOp(Op.EXP, (shifted,))) != axes:
        return None
    return outlined("log_softmax", n, [x])


@composites.rule(P.sub(x, spread_log, name="n"))
def raise_difference_from_logsumexp(n: UOp, x: UOp, spread: UOp) -> UOp | None:
    """x - logsumexp(x) -> log_softmax(x)"""
    bare = Spread.over(spread, x.shape).bare()
    if bare is None or not is_composite(bare.node, "logsumexp"):
        return None
    call = bare.node.src[0]
    axes = summed_axes(call.src[0])
    if axes is None or call.src[1:] != (x,):
        return None
    kept = [i for i in range(x.ndim) if i not in axes]
    # With the summed axes kept at size 1 the result has the rank of x, else only the others.
    own = kept if bare.node.ndim == len(kept) else range(x.ndim)
    back = {a: j for j, a in enumerate(own) if a in kept}
    if any(p != back.get(a) for a, p in enumerate(bare.places) if x.shape[a] != 1):
        return None
    return outlined("log_softmax", n, [x])


@composites.rule(P.add(P.log(total, name="log"), top, name="n", any_order=True))
def raise_logsumexp(n: UOp, log: UOp, total: UOp, top: UOp) -> UOp | None:
    """log(sum(exp(x - max(x)))) + max(x) -> logsumexp(x)"""
    summed, added = Spread.over(total, n.shape).bare(), Spread.over(top, n.shape).bare()
    if summed is None or summed.node.op is not Op.REDUCE or summed.node.arg[0] != "add":
        return None
    found = exponential_axes(summed.node.src[0])
    if found is None or found[1] != summed.node.arg[1] or added is None:
        return None
    x, axes = found
    largest = maximum(added)
    largest = largest.bare() or largest
    if largest.node is not UOp(Op.REDUCE, (x,), ("max", axes)) or largest.places != summed.places:
        return None
    return outlined("logsumexp", n, [x])


def raise_norm(n: UOp, x: UOp, scale: UOp, root: Op) -> UOp | None:
    """The norm that multiplies `x` by (or divides it by) the root of a mean square of it."""
    sum_ = Spread.over(scale, x.shape).operand(root)
    square = sum_ and sum_.operand(Op.ADD)
    bare = sum_ and sum_.bare()
    if square is None or bare is None:
        return None
    epsilon = [s for s in bare.node.src if s is not square.node and s.op is not Op.CONST]
    if x.op is Op.SUB:
        source, center = x.src
        axes = Spread.over(center, source.shape).mean(source)
        if axes is not None and mean_square_axes(square, source, axes) == axes:
            return outlined("layer_norm", n, [source, *epsilon])
    return outlined("rms_norm", n, [x, *epsilon]) if square.mean(UOp(Op.MUL, (x, x))) else None


def mean_square_axes(square: Spread, x: UOp, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of a variance of `x`: a mean of (x - mean(x))**2, the mean taken over `axes`."""
    total = square.total()
    if total is None or total.node.src[0].op is not Op.MUL:
        return None
    product = total.node.src[0]
    delta = product.src[0]
    if product.src[1] is not delta or delta.op is not Op.SUB or delta.src[0] is not x:
        return None
    if Spread.over(delta.src[1], x.shape).mean(x) != axes:
        return None
    return total.fold("add", product)


@composites.rule(P.mul(x, spread_rsqrt, name="n", any_order=True))
def raise_norm_by_rsqrt(n: UOp, x: UOp, scale: UOp) -> UOp | None:
    """(x - mean(x)) * rsqrt(mean((x - mean(x))**2) + eps) -> layer_norm(x);
    x * rsqrt(mean(x**2) + eps) -> rms_norm(x)"""
    return raise_norm(n, x, scale, Op.RSQRT)


@composites.rule(P.div(x, spread_sqrt, name="n"))
def raise_norm_by_sqrt(n: UOp, x: UOp, scale: UOp) -> UOp | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) -> layer_norm(x);
    x / sqrt(mean(x**2) + eps) -> rms_norm(x)"""
    return raise_norm(n, x, scale, Op.SQRT)


# --- attention ------------------------------------------------------------------------------------

REGION = ELEMENTWISE | {
    Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.STOP_GRADIENT, Op.CONST, Op.IOTA,
}  # fmt: skip
"""What may stand between the scores and the softmax: scales, masks and biases."""


@dataclass(slots=True)
class Found:
    """Attention calls of one walk: the values that must not be read by anything else."""

    values: list[tuple[UOp, UOp]]


@composites.rule(P.dot(x, y, name="n"))
def raise_attention(n: UOp, ctx: Found) -> UOp | None:
    """dot(softmax(f(dot(q, k)), axis of k), v) -> attention(q, k, v), f elementwise"""
    for side in (0, 1):
        made = attention_of(n, side, ctx)
        if made is not None:
            return made
    return None


def attention_of(n: UOp, side: int, ctx: Found) -> UOp | None:
    """The attention whose weights are operand `side` of a contraction."""
    contract = n.arg.contract[side]
    if len(contract) != 1:
        return None
    weights, axis = n.src[side], contract[0]
    while not is_composite(weights, "softmax"):
        step = before_movement(weights, axis)
        if step is None:
            return None
        weights, axis = step
    logits = weights.src[0].src[1]
    if summed_axes(weights.src[0].src[0]) != (axis,):
        return None
    inputs = region_inputs(logits)
    scores = [s for s in inputs if s.op is Op.DOT]
    if len(scores) != 1 or not keys_along(logits, axis, scores[0]):
        return None
    (score,) = scores
    extras = [s for s in inputs if s is not score]
    args = [*score.src, n.src[1 - side], *extras]
    # Queries, keys and values are parameters of their own, even where they are the same value.
    variables = [fresh_var(a.aval) for a in args]
    mapping = {score: UOp(Op.DOT, tuple(variables[:2]), score.arg)}
    mapping.update(zip(extras, variables[3:], strict=True))
    (inside,) = substitute([n.src[side]], mapping)
    pair = (inside, variables[2])[:: 1 if side == 0 else -1]
    ctx.values.append((score, weights))
    root = UOp(Op.DOT, pair, n.arg)
    return composite_call("attention", root, variables, args, len(ctx.values) - 1)


def before_movement(n: UOp, axis: int) -> tuple[UOp, int] | None:
    """The operand of a CAST, PERMUTE or RESHAPE, and which of its axes becomes `axis`."""
    if n.op is Op.CAST:
        return n.src[0], axis
    if n.op is Op.PERMUTE:
        return n.src[0], n.arg[axis]
    if n.op is Op.RESHAPE:
        found = reshaped_axes(n.shape, n.src[0].shape).get(axis)
        return None if found is None else (n.src[0], found)
    return None


def reshaped_axes(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int]:
    """Axes (larger than 1) that a reshape leaves whole: those with as many elements before them."""

    def starts(shape: tuple[int, ...]) -> dict[tuple[int, int], int]:
        found, before = {}, 1
        for i, size in enumerate(shape):
            if size != 1:
                found[before, size] = i
            before *= size
        return found

    after = starts(new)
    return {i: after[key] for key, i in starts(old).items() if key in after}


def region_inputs(root: UOp) -> list[UOp]:
    """What the elementwise region under `root` is computed from, literals aside."""
    found: dict[UOp, None] = {}
    for n in toposort([root], keep=lambda m: m.op in REGION):
        found.update((s, None) for s in n.src if s.op not in REGION)
    return list(found) if root.op in REGION else [root]


def keys_along(logits: UOp, axis: int, score: UOp) -> bool:
    """Whether `axis` of the logits is a free axis of the scores, and others are left for rows."""
    node = logits
    while node is not score:
        if node.op in ELEMENTWISE:
            node = next(s for s in node.src if s.ndim and reaches(s, score))
            continue
        step = before_movement(node, axis)
        if step is None:
            return False
        node, axis = step
    batch = len(score.arg.batch[0])
    first = score.src[0].ndim - batch - len(score.arg.contract[0])
    second = score.ndim - batch - first
    return axis >= batch and first > 0 and second > 0


def reaches(n: UOp, score: UOp) -> bool:
    """Whether the region under `n` contains the scores."""
    return n is score or score in region_inputs(n)


settle = Rules("settle_attention")


@settle.rule(P.call(name="n"))
def settle_attention(n: UOp, ctx: frozenset[int]) -> UOp | None:
    """attention whose scores or weights are read elsewhere -> its plain body; others lose their
    number"""
    if n.arg.kind != KIND or not n.arg.params:
        return None
    if n.arg.params[0] in ctx:
        return UOp(Op.TUPLE, tuple(open_body(n.src[0], n.src[1:])))
    return UOp(Op.CALL, n.src, replace(n.arg, params=()))


# --- bodies and the pass --------------------------------------------------------------------------

inside = Rules("raise_in_bodies")


@inside.rule(P.of(BODIES)(name="n"))
def enter_bodies(n: UOp) -> UOp | None:
    """op(body, ...) -> op(raised body, ...), but for a checkpoint whose policy looks at its values"""
    if n.op is Op.CALL and (n.arg.kind in (KIND, "linear") or n.arg.policy is not None):
        return None
    bodies = tuple(raised_body(body) for body in n.bodies)
    return None if bodies == n.bodies else UOp(n.op, (*bodies, *n.operands), n.arg)


everywhere = composites + inside


def raise_composites(
    roots: Sequence[UOp], memo: dict[UOp, UOp] | None = None, table: Rules = everywhere
) -> list[UOp]:
    """`roots` with the composites in them as calls; values are the same, bit for bit.

    `memo` is filled with what each node became. `table` is `everywhere`, or `inside` for bodies
    only. Attention is raised only where nothing else reads its scores or weights: they would have
    to be in memory anyway. Cost: one walk; a second one if attention was found.
    """
    found = Found([])
    memo = {} if memo is None else memo
    out = rewrite(roots, table, pass_name="raise_composites", ctx=found, memo=memo)
    if not found.values:
        return out
    left = set(toposort(out))
    shared = frozenset(i for i, pair in enumerate(found.values) if not left.isdisjoint(pair))
    settled: dict[UOp, UOp] = {}
    out = rewrite(out, settle, pass_name="settle_attention", ctx=shared, memo=settled)
    memo.update((node, settled[new]) for node, new in memo.items() if new in settled)
    return out


def raised_body(body: UOp) -> UOp:
    """A closed body with its composites raised: the same object if there are none. Kept on it."""
    found: UOp | None = body.derived.get("raised")
    if found is None:
        memo: dict[UOp, UOp] = {}
        found = tuple_of(raise_composites(body.src, memo))
        table = body.derived.get(sites.KEY)
        if table and found is not body:
            found.derived[sites.KEY] = {memo.get(n, n): source for n, source in table.items()}
        body.derived["raised"] = found
        found.derived["raised"] = found
    return found
