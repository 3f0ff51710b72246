"""Taylor mode: nodes over variables with power series -> nodes and their power series.

The coefficients of x are x_0 (the node itself), x_1, ..., x_N of x(t) = sum x_k t^k; `None` is a zero
coefficient. Three kinds of op:

* ops that are linear where the derivative exists: coefficient k is the forward rule (jvp.py) applied
  to coefficients k;
* products and quotients: Cauchy's formula;
* all others through their derivative: y' is an expression in y, the operands x and x', namely what
  the forward rule gives, so k y_k is coefficient k-1 of that expression. It needs y up to k-1 only;
  exp' = exp x' is the classic recurrence. No op needs a Taylor rule of its own.

Calls are opened. Loops and branches carry the coefficients of what they carry.
Cost: order**2 operations per nonlinear node. Reference: Griewank and Walther, "Evaluating
Derivatives", ch. 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tinyjax.core import build as b
from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval
from tinyjax.core.body import fresh_var, open_body, open_calls, reclose
from tinyjax.core.infos import ScanInfo, WhileInfo
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.uop import UOp, Var, get, results, toposort, tuple_of
from tinyjax.interpreters.effects import slice_avals
from tinyjax.interpreters.jvp import (
    _PARTIAL,
    EXTERNAL,
    JVP,
    NOT_DIFFERENTIABLE,
    Tangent,
    add_tangents,
    instantiate,
)
from tinyjax.interpreters.linearize import BODY_JVP, tangent_aval

Coefficients = list[Tangent]

LINEAR = frozenset(
    {
        Op.NEG, Op.REAL, Op.IMAG, Op.CONJ, Op.COMPLEX, Op.CAST, Op.REDUCE_PRECISION, Op.ADD, Op.SUB,
        Op.MAX, Op.MIN, Op.WHERE, Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SLICE, Op.FLIP,
        Op.CONCAT, Op.WINDOW, Op.ARGREDUCE, Op.GATHER, Op.DYNAMIC_SLICE, Op.DYNAMIC_UPDATE, Op.SORT,
        Op.FFT, Op.NAME, Op.OPTIMIZATION_BARRIER, Op.REMAT, Op.COPY, Op.PCAST, Op.ALL_REDUCE,
        Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.PPERMUTE, Op.ALL_TO_ALL,
    }
)  # fmt: skip
"""Linear, or linear in pieces (the choice has no derivative)."""


def is_linear(node: UOp) -> bool:
    """Whether coefficients pass through the forward rule one by one."""
    if node.op is Op.REDUCE:
        return bool(node.arg[0] != "mul")
    if node.op is Op.PREFIX:
        return bool(node.arg[0] == "add")
    if node.op is Op.ABS:
        return not dtypes.is_complex(node.src[0].dtype)
    if node.op is Op.SCATTER:
        return bool(node.arg.kind in ("add", "set", "max", "min"))
    return bool(node.op in LINEAR)


def product(y: UOp, x: UOp, z: UOp) -> UOp:
    """MUL or DOT, as y is, of other operands."""
    return b.mul(x, z) if y.op is Op.MUL else UOp(Op.DOT, (x, z), y.arg)


def total(terms: Sequence[Tangent]) -> Tangent:
    """Sum of those that are not zero."""
    out: Tangent = None
    for t in terms:
        out = add_tangents(out, t)
    return out


class Series:
    """Coefficients of nodes up to `order`, for variables with given coefficients (of t, t^2, ...)."""

    def __init__(self, inputs: dict[UOp, Coefficients], order: int) -> None:
        self.order = order
        self.variables: set[Var] = {v.arg for v in inputs}
        self.known: dict[UOp, Coefficients] = {}  # those of node 0, 1, ..., as far as computed
        self.dots: set[Var] = set()  # variables for derivatives of nodes
        self.shifted: dict[UOp, UOp] = {}  # such a variable -> the node it belongs to
        self.slopes: dict[UOp, list[Tangent]] = {}
        self.parts: dict[UOp, list[Coefficients]] = {}  # of nodes with several results
        for v, terms in inputs.items():
            self.known[v] = [v, *terms]

    def depends(self, node: UOp) -> bool:
        """Whether the node may have coefficients."""
        return not self.variables.isdisjoint(node.free)

    def coefficient(self, node: UOp, k: int) -> Tangent:
        """Coefficient k, computed before."""
        if not self.depends(node):
            return None if k else node
        if node in self.shifted:
            term = self.coefficient(self.shifted[node], k + 1)
            return None if term is None else b.mul(term, b.like(term, k + 1))
        return self.known[node][k]

    def done(self, node: UOp, k: int) -> bool:
        """Whether coefficients up to k are there."""
        if node in self.shifted or not self.depends(node):
            return True
        return len(self.known.get(node, ())) > k

    def extend(self, root: UOp, k: int) -> None:
        """Compute coefficient k of `root` and of what it is made of; lower ones are there."""
        for node in toposort([root], keep=lambda n: not self.done(n, k)):
            while len(self.known.setdefault(node, [])) <= k:
                at = len(self.known[node])
                self.known[node].append(self.compute(node, at) if at else self.value(node))

    def start(self, node: UOp) -> UOp:
        """Coefficient 0."""
        found = self.coefficient(node, 0)
        return b.zeros(tangent_aval(node.aval)) if found is None else found

    def value(self, node: UOp) -> UOp:
        """Coefficient 0: the node itself, or over the values of the derivatives it mentions."""
        if self.dots.isdisjoint(node.free):
            return node
        src = tuple(self.start(s) for s in node.src)
        return get(src[0], node.arg) if node.op is Op.GETTUPLE else node.with_src(src)

    def compute(self, node: UOp, k: int) -> Tangent:
        """Coefficient k >= 1 of a node; its operands' are there up to k, its own up to k - 1."""
        if node.op is Op.TUPLE or node.op is Op.VAR:
            return None
        if node.op is Op.GETTUPLE:
            parent = node.src[0]
            return self.parts[parent][node.arg][k] if parent in self.parts else None
        if node.op in NOT_DIFFERENTIABLE:
            return None
        operands = [self.coefficient(s, k) for s in node.src]
        if node.op is Op.MUL or node.op is Op.DOT:
            return self.cauchy(node, k)
        if node.op is Op.DIV:
            return self.quotient(node, k)
        if is_linear(node):
            return self.several(node, forward_rule(node, operands))
        slope = self.slope(node)
        if isinstance(node.aval, Aval):
            return self.integrated(slope[0], k)
        return self.several(node, [self.integrated(t, k) for t in slope])

    def several(self, node: UOp, found: Any) -> Tangent:
        """Keep coefficients of a node with several results beside it."""
        if isinstance(node.aval, Aval):
            return found  # type: ignore[no-any-return]
        rows = self.parts.setdefault(node, [[r] for r in results(self.start(node))])
        for row, t in zip(rows, found if found is not None else [None] * len(rows), strict=True):
            row.append(t)
        return None

    def cauchy(self, node: UOp, k: int) -> Tangent:
        """(xz)_k = sum_j x_j z_{k-j}"""
        x, z = node.src
        terms = []
        for j in range(k + 1):
            left, right = self.coefficient(x, j), self.coefficient(z, k - j)
            if left is not None and right is not None:
                terms.append(product(node, left, right))
        return total(terms)

    def quotient(self, node: UOp, k: int) -> Tangent:
        """(x/z)_k = (x_k - sum_{j>=1} z_j (x/z)_{k-j}) / z_0"""
        x, z = node.src
        terms = [self.coefficient(x, k)]
        for j in range(1, k + 1):
            left, right = self.coefficient(z, j), self.known[node][k - j]
            if left is not None and right is not None:
                terms.append(b.neg(b.mul(left, right)))
        top = total(terms)
        bottom = self.coefficient(z, 0)
        return None if top is None or bottom is None else b.fill_to(b.div(top, bottom), node.shape)

    def integrated(self, slope: Tangent, k: int) -> Tangent:
        """y_k from coefficient k - 1 of the derivative."""
        if slope is None:
            return None
        self.extend(slope, k - 1)
        term = self.coefficient(slope, k - 1)
        return None if term is None else b.mul(term, b.like(term, 1 / k))

    def slope(self, node: UOp) -> list[Tangent]:
        """dy/dt as nodes over y, its operands, and variables for their derivatives."""
        if node not in self.slopes:
            dots: list[Tangent] = []
            for s in node.src:
                if not self.depends(s) or not inexact(s):
                    dots.append(None)
                    continue
                dot = fresh_var(tangent_aval(s.aval))
                self.variables.add(dot.arg)
                self.dots.add(dot.arg)
                self.shifted[dot] = s
                dots.append(dot)
            found = forward_rule(node, dots)
            self.slopes[node] = found if isinstance(found, list) else [found]
        return self.slopes[node]


def inexact(node: UOp) -> bool:
    """Whether the node has one value, which has tangents."""
    return isinstance(node.aval, Aval) and dtypes.is_inexact(node.dtype)


def forward_rule(node: UOp, dots: Sequence[Tangent]) -> Any:
    """Tangent of a node (a list for several results), given those of its operands."""
    if all(d is None for d in dots):
        return None if isinstance(node.aval, Aval) else [None] * len(node.aval.elts)
    if node.op in EXTERNAL:
        return BODY_JVP[node.op](node, dots)[1]
    rule = JVP.get(node.op)
    if rule is None:
        raise NotImplementedError(f"no derivative is known for {node.op.name.lower()}")
    if node.op in _PARTIAL:
        found = rule(node, *dots)
    elif dots[0] is None:
        return None if isinstance(node.aval, Aval) else [None] * len(node.aval.elts)
    else:
        found = rule(node, dots[0])
    return found[1] if isinstance(found, tuple) else found


# --- bodies -----------------------------------------------------------------------------------------------


class Layout:
    """Values and their coefficients as one flat list: each value, then its coefficients if inexact.

    `spread(values, rows)` lists them group by group: (values of the group, coefficients of it).
    """

    def __init__(self, kinds: Sequence[Aval], order: int) -> None:
        self.kinds, self.order = list(kinds), order
        self.inexact = [i for i, a in enumerate(kinds) if dtypes.is_inexact(a.dtype)]

    @property
    def extra(self) -> int:
        """How many coefficients there are."""
        return self.order * len(self.inexact)

    def flat(self, values: Sequence[UOp], rows: Sequence[Coefficients]) -> list[UOp]:
        """Values, then the coefficients of each inexact one."""
        more = [
            b.cast_like(instantiate(t, values[i]), tangent_aval(values[i].aval))
            for i in self.inexact
            for t in rows[i]
        ]
        return [*values, *more]

    def variables(self) -> tuple[list[UOp], list[Coefficients]]:
        """Fresh ones."""
        values = [fresh_var(a) for a in self.kinds]
        rows: list[Coefficients] = [[None] * self.order for _ in values]
        for i in self.inexact:
            rows[i] = [fresh_var(tangent_aval(self.kinds[i])) for _ in range(self.order)]
        return values, rows

    def unflat(self, items: Sequence[UOp]) -> tuple[list[UOp], list[Coefficients]]:
        """The inverse of `flat`."""
        count = len(self.kinds)
        values, rest = list(items[:count]), iter(items[count:])
        rows: list[Coefficients] = [[None] * self.order for _ in values]
        for i in self.inexact:
            rows[i] = [next(rest) for _ in range(self.order)]
        return values, rows


def body_jet(body: UOp, groups: Sequence[Layout], outs: Sequence[int], order: int) -> UOp:
    """A body over the flat groups whose outputs, in parts of these sizes, are flat groups too."""
    values: list[UOp] = []
    rows: list[Coefficients] = []
    params: list[UOp] = []
    for group in groups:
        own, own_rows = group.variables()
        values += own
        rows += own_rows
        params += group.flat(own, own_rows)
    primal = open_body(body, values)
    found, terms = jet(primal, dict(zip(values, rows, strict=True)), order)
    flat: list[UOp] = []
    start = 0
    for size in outs:
        part = found[start : start + size]
        layout = Layout([o.aval for o in part], order)
        flat += layout.flat(part, terms[start : start + size])
        start += size
    return reclose(flat, params)


def scan_jet(node: UOp, rows: Sequence[Coefficients], order: int) -> list[Coefficients]:
    """A scan over values and coefficients."""
    info: ScanInfo = node.arg
    body, args = node.src[0], node.src[1:]
    kinds = slice_avals(args, info)
    ends = (0, info.num_consts, info.num_consts + info.num_carry, len(args))
    groups = [Layout(kinds[i:j], order) for i, j in zip(ends, ends[1:], strict=False)]
    sizes = (info.num_carry, len(body.src) - info.num_carry)
    new = body_jet(body, groups, sizes, order)
    given: list[UOp] = []
    for group, i, j in zip(groups, ends, ends[1:], strict=False):
        given += group.flat(args[i:j], rows[i:j])
    counts = [len(g.kinds) + g.extra for g in groups]
    loop = UOp(Op.SCAN, (new, *given), replace(info, num_consts=counts[0], num_carry=counts[1]))
    return read_groups(loop, [o.aval for o in body.src], sizes, order)


def read_groups(
    node: UOp, kinds: Sequence[Aval], sizes: Sequence[int], order: int
) -> list[Coefficients]:
    """[value, coefficients...] of each result of a node whose results are flat groups."""
    items = results(node)
    out: list[Coefficients] = []
    at = start = 0
    for size in sizes:
        layout = Layout(kinds[start : start + size], order)
        values, rows = layout.unflat(items[at : at + size + layout.extra])
        out += [[v, *r] for v, r in zip(values, rows, strict=True)]
        start, at = start + size, at + size + layout.extra
    return out


def while_jet(node: UOp, rows: Sequence[Coefficients], order: int) -> list[Coefficients]:
    """A loop over values and coefficients; the condition sees values."""
    info: WhileInfo = node.arg
    cond, body = node.src[:2]
    args = node.src[2:]
    cc, bc = info.cond_consts, info.body_consts
    kinds = [a.aval for a in args]
    consts, carry = Layout(kinds[cc : cc + bc], order), Layout(kinds[cc + bc :], order)
    count = len(carry.kinds)
    new_body = body_jet(body, [consts, carry], (count,), order)
    own = [fresh_var(k) for k in kinds[:cc]]
    values, more = carry.variables()
    new_cond = reclose(open_body(cond, [*own, *values]), [*own, *carry.flat(values, more)])
    given = consts.flat(args[cc : cc + bc], rows[cc : cc + bc])
    state = carry.flat(args[cc + bc :], rows[cc + bc :])
    loop = UOp(
        Op.WHILE,
        (new_cond, new_body, *args[:cc], *given, *state),
        replace(info, body_consts=len(given)),
    )
    return read_groups(loop, carry.kinds, (count,), order)


def cond_jet(node: UOp, rows: Sequence[Coefficients], order: int) -> list[Coefficients]:
    """Branches over values and coefficients."""
    number = node.arg
    args = node.src[number + 1 :]
    layout = Layout([a.aval for a in args], order)
    count = len(node.src[0].src)
    branches = [body_jet(br, [layout], (count,), order) for br in node.bodies]
    choice = UOp(Op.COND, (*branches, node.src[number], *layout.flat(args, rows[1:])), number)
    return read_groups(choice, [o.aval for o in node.src[0].src], (count,), order)


BODY_JET: dict[Op, Callable[[UOp, Sequence[Coefficients], int], list[Coefficients]]] = {
    Op.SCAN: scan_jet,
    Op.WHILE: while_jet,
    Op.COND: cond_jet,
}


# --- the driver ---------------------------------------------------------------------------------------------


def jet(
    outputs: Sequence[UOp], inputs: dict[UOp, Coefficients], order: int
) -> tuple[list[UOp], list[Coefficients]]:
    """Outputs and their coefficients 1 to `order`, given those of variables."""
    series = Series(inputs, order)
    new: dict[UOp, UOp] = {}
    outputs = open_calls(outputs, lambda info: True)
    for node in toposort(outputs, keep=series.depends):
        if node.op is Op.VAR:
            continue
        src = tuple(new.get(s, s) for s in node.src)
        if node.op is Op.GETTUPLE:
            made = get(src[0], node.arg)
        elif node.op in BODIES:
            fixed = node.with_src(src)
            rows = [
                [series.coefficient(s, k) if s.aval is not TOKEN else None for k in orders(order)]
                for s in fixed.operands
            ]
            columns = BODY_JET[node.op](fixed, rows, order)
            made = tuple_of([row[0] for row in columns if row[0] is not None])
            for row in columns:
                if row[0] is not None:
                    series.known.setdefault(row[0], row)
        else:
            made = node.with_src(src)
        new[node] = made
        if made.op is not Op.TUPLE:
            for k in range(order + 1):
                series.extend(made, k)
    found = [new.get(o, o) for o in outputs]
    return found, [[series.coefficient(o, k) for k in orders(order)] for o in found]


def orders(order: int) -> range:
    """1, ..., order"""
    return range(1, order + 1)
