"""Jaxprs as text and HTML. (Kernels and programs: core/kernel_text.py.)

A jaxpr is printed depth first from its outputs, left to right, so the text depends on structure
alone, not on what was made when. It is the golden-test format:

    { lambda a:f32[8,4] b:f32[4,3]. let
        c:f32[8,3] = dot[contract=((1),(0))] a b
        d:f32[8,3] = max c 0.0
      in (d,) }

* one equation per line; literals are written where they are used, with their type unless the other
  operands say it; a weakly typed value is marked `f32[]{weak}`;
* `arg` is printed by name, except for what the result's type already says (`reshape a`, `cast a`);
* bodies are closed, so each has letters of its own; one that is used twice is printed once on top,
  `let layer = { lambda ... } in`; others stand where they are used;
* what an open or captured graph takes from outside stands before a semicolon: `{ lambda
x:f32[3]; a`.

Cost: linear in the number of nodes and the length of the text.
"""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import TOKEN, Aval, TupleAval
from tinyjax.core.body import sources as body_sources
from tinyjax.core.dims import DimExpr
from tinyjax.core.ops import ELEMENTWISE, Op
from tinyjax.core.source import Location, describe_source, locate
from tinyjax.core.uop import UOp, const_value, toposort

LINE = 100
"""Equations and bodies longer than this are broken."""

Sites = Mapping[UOp, Any]
"""Node -> site, (site, name stack), or text. Bodies inside have tables of their own."""


# --- small texts ----------------------------------------------------------------------------------


def letters(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("a") + digit) + name
    return name


def aval_text(of: Any) -> str:
    """`f32[8,3]`, `f32[]{weak}`"""
    if isinstance(of, TupleAval):
        return "(" + ", ".join(aval_text(a) for a in of.elts) + ")"
    return str(of.str_short()) + ("{weak}" if of.weak_type and of is not TOKEN else "")


def literal_text(node: UOp, typed: bool) -> str:
    """The value of a CONST, `0.0` or `0.0:f32[]`."""
    value = const_value(node)
    text = str(value.item()) if value.dtype.kind in "bciuf" and value.itemsize == 8 else str(value)
    return f"{text}:{aval_text(node.aval)}" if typed else text


def value_text(x: Any) -> str:
    """Static data in an equation; never an address."""
    if isinstance(x, tuple | list):
        return "(" + ",".join(value_text(v) for v in x) + ")"
    if isinstance(x, Aval | TupleAval):
        return aval_text(x)
    if isinstance(x, np.dtype) or dtypes.is_key(x):
        return dtypes.short_name(x)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        inner = " ".join(f"{k}={v}" for k, v in changed_fields(x))
        return f"{type(x).__name__}({inner})"
    if isinstance(x, str | int | float | complex | bool | bytes | DimExpr) or x is None:
        return str(x)
    name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
    return str(name or type(x).__name__)


def changed_fields(info: Any, without: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Fields of a dataclass that differ from their defaults."""
    return [
        (f.name, value_text(getattr(info, f.name)))
        for f in dataclasses.fields(info)
        if f.name not in without and getattr(info, f.name) != f.default
    ]


# --- op names and args ----------------------------------------------------------------------------

Fields = list[tuple[str, str]]


def named(*names: str) -> Callable[[UOp], Fields]:
    """Names for the parts of a tuple `arg` (or for all of one that is not a tuple)."""

    def fields(n: UOp) -> Fields:
        values = n.arg if len(names) > 1 else (n.arg,)
        return [(k, value_text(v)) for k, v in zip(names, values) if k]

    return fields


def slice_fields(n: UOp) -> Fields:
    start, stop, step = zip(*n.arg) if n.arg else ((), (), ())
    found = [("start", value_text(start)), ("stop", value_text(stop))]
    return found if all(s == 1 for s in step) else [*found, ("step", value_text(step))]


def pad_fields(n: UOp) -> Fields:
    lo, hi, interior = zip(*n.arg) if n.arg else ((), (), ())
    found = [("lo", value_text(lo)), ("hi", value_text(hi))]
    return [*found, ("interior", value_text(interior))] if any(interior) else found


def info_fields(n: UOp) -> Fields:
    return changed_fields(n.arg, ("kind", "out"))


def callback_fields(n: UOp) -> Fields:
    return changed_fields(n.arg, ("out", "sequence"))


def nothing(n: UOp) -> Fields:
    """What the type of the result says, or what the op's name does."""
    return []


FIELDS: dict[Op, Callable[[UOp], Fields]] = {
    Op.CALLBACK: callback_fields,
    Op.IOTA: named("", "axis"),
    Op.DIM: named("size"),
    Op.CAST: nothing,
    Op.BITCAST: nothing,
    Op.REDUCE_PRECISION: named("exponent_bits", "mantissa_bits"),
    Op.RESHAPE: nothing,
    Op.PERMUTE: named("perm"),
    Op.EXPAND: named("", "dims"),
    Op.PAD: pad_fields,
    Op.SLICE: slice_fields,
    Op.FLIP: named("axes"),
    Op.CONCAT: named("axis"),
    Op.WINDOW: named("axis", "size", "stride", "dilation"),
    Op.REDUCE: named("", "axes"),
    Op.ARGREDUCE: named("", "axis", ""),
    Op.DYNAMIC_SLICE: named("sizes"),
    Op.SORT: named("axis", "num_keys", "stable"),
    Op.RANDOM_BITS: named("shape", "width"),
    Op.FFT: named("", "lengths"),
    Op.COND: nothing,
    Op.NAME: named("name"),
    Op.REMAT: named("id"),
    Op.KEY_WRAP: nothing,
    Op.COPY: lambda n: [] if n.arg is None else [("device", value_text(n.arg))],
    Op.AXIS_INDEX: named("axis_name"),
    Op.PCAST: named("axis_name"),
    Op.ALL_REDUCE: lambda n: [("axis_name", value_text(n.arg[1]))],
    Op.PPERMUTE: lambda n: [("axis_name", value_text(n.arg[0])), ("perm", value_text(n.arg[1]))],
}


def arg_fields(node: UOp) -> Fields:
    """The static data of a node, by name."""
    rule = FIELDS.get(node.op)
    if rule is not None:
        return rule(node)
    if node.arg is None:
        return []
    if dataclasses.is_dataclass(node.arg):
        return info_fields(node)
    if node.op is Op.PREFIX:
        return [("axis", value_text(node.arg[1]))] + ([("reverse", "True")] if node.arg[2] else [])
    return [("arg", value_text(node.arg))]


def op_name(node: UOp) -> str:
    """`add`, `reduce_max`, `scatter_add`, `jit`: lowercase, with the kind where there is one."""
    op, arg = node.op, node.arg
    name = op.name.lower()
    if op is Op.CALL:
        return str(arg.kind)
    if op in (Op.REDUCE, Op.ARGREDUCE, Op.PREFIX, Op.ALL_REDUCE):
        return f"{name}_{arg[0]}"
    if op is Op.FFT:
        return str(arg[0])
    return f"{name}_{arg.kind}" if op is Op.SCATTER else name


BODY_NAMES = {Op.CALL: ("body",), Op.SCAN: ("body",), Op.WHILE: ("cond", "body")}


# --- source lines ---------------------------------------------------------------------------------


def site_text(site: Any) -> str:
    """`train.py:31 in layer (jvp(dense))`"""
    if site is None or isinstance(site, str):
        return site or ""
    if isinstance(site, Location):
        return str(site)
    if isinstance(site[1], tuple):
        return describe_source(site)
    return str(locate(site))


def site_link(site: Any) -> str:
    """The address of the line, for HTML; empty if it has no file."""
    if site is None or isinstance(site, str):
        return ""
    if not isinstance(site, Location):
        site = site[0] if isinstance(site[1], tuple) else site
        if site is None:
            return ""
        site = locate(site)
    return f"file://{os.path.abspath(site.file)}#L{site.line}"


# --- jaxprs ---------------------------------------------------------------------------------------


class _Body:
    """One printed body: its lines, and the site of each line that is an equation."""

    __slots__ = ("lines", "sites")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sites: dict[int, Any] = {}

    def joined(self) -> list[str]:
        """The lines, on one if there is at most one equation and it fits."""
        if len(self.lines) <= 3:
            parts = [line.strip() for line in self.lines]
            one = " ".join(p for p in parts if p)
            if len(one) <= LINE and not self.sites:
                return [one]
        return self.lines


class _Printer:
    """Prints one graph; `show(body)` gives the lines that stand for a body where it is used."""

    def __init__(self, sites: Sites, show: Callable[[UOp], list[str]]) -> None:
        self.sites, self.show = sites, show

    def body(self, roots: Sequence[UOp], inputs: Sequence[Any]) -> _Body:
        """`{ lambda inputs. let equations in (roots) }`; `inputs` are avals or None per slot."""
        order = toposort(roots)
        count = 0
        names: dict[UOp, str] = {}
        results: dict[UOp, list[str]] = {}
        binders: list[str] = []
        outside = [n for n in order if n.op is Op.VAR or n.op is Op.BUFFER]
        for node in outside:
            names[node] = letters(count)
            count += 1
        seen = {n.arg[0]: n for n in order if n.op is Op.PARAM}
        slots = max([len(inputs), *(s + 1 for s in seen)])
        for slot in range(slots):
            known = (
                seen[slot].aval if slot in seen else inputs[slot] if slot < len(inputs) else None
            )
            if known is None:
                binders.append("_")
                continue
            name = letters(count)
            count += 1
            binders.append(f"{name}:{aval_text(known)}")
            if slot in seen:
                names[seen[slot]] = name
        read: dict[UOp, set[int]] = {}
        for node in order:
            if node.op is Op.GETTUPLE:
                read.setdefault(node.src[0], set()).add(node.arg)
        made = _Body()
        equations: list[tuple[list[str], Any]] = []
        for node in order:
            if node in names or node.op is Op.CONST:
                continue
            if node.op is Op.GETTUPLE:
                names[node] = results[node.src[0]][node.arg]
                continue
            if isinstance(node.aval, TupleAval):
                got = []
                for i in range(len(node.aval.elts)):
                    got.append(letters(count) if i in read.get(node, ()) else "_")
                    count += got[-1] != "_"
                results[node] = got
                left = " ".join(f"{g}:{aval_text(a)}" for g, a in zip(got, node.aval.elts))
                names[node] = "(" + ", ".join(got) + ")"
            else:
                names[node] = letters(count)
                count += 1
                left = f"{names[node]}:{aval_text(node.aval)}"
            equations.append((self.equation(node, left, names), self.sites.get(node)))
        lead = " ".join(f"{names[n]}:{aval_text(n.aval)}" for n in outside) + ";" if outside else ""
        head = " ".join(p for p in ("{ lambda", lead, *binders) if p)
        made.lines.append(head + ". let")
        for lines, site in equations:
            if site is not None:
                made.sites[len(made.lines)] = site
            made.lines += ["    " + line for line in lines]
        outs = [self.operand(r, names, typed=True) for r in roots]
        made.lines.append("  in (" + ", ".join(outs) + ("," if len(outs) == 1 else "") + ") }")
        return made

    def operand(self, node: UOp, names: Mapping[UOp, str], typed: bool) -> str:
        """A name, or a literal."""
        return literal_text(node, typed) if node.op is Op.CONST else names[node]

    def equation(self, node: UOp, left: str, names: Mapping[UOp, str]) -> list[str]:
        """`c:f32[8,3] = dot[contract=((1),(0))] a b`, on several lines if long."""
        parts: list[list[str]] = []
        bodies = node.bodies
        fields = arg_fields(node)
        if node.op is Op.CALL and fields and fields[0][0] == "name":
            parts.append([f"name={fields.pop(0)[1]}"])
        if node.op is Op.COND:
            shown = [self.show(b) for b in bodies]
            inner = [line for lines in shown for line in _indented(lines, 2)]
            parts.append(["branches=(", *inner, ")"])
        else:
            for name, body in zip(BODY_NAMES.get(node.op, ()), bodies):
                lines = self.show(body)
                parts.append([f"{name}={lines[0]}", *lines[1:]])
        parts += [[f"{k}={v}"] for k, v in fields]
        dtype_known = node.op in ELEMENTWISE and any(
            s.op is not Op.CONST for s in node.src[1 if node.op is Op.WHERE else 0 :]
        )
        args = " ".join(self.operand(s, names, not dtype_known) for s in node.operands)
        op = (f"{left} = " if left else "") + op_name(node)
        tail = f" {args}" if args else ""
        if not parts:
            return [op + tail]
        flat = f"{op}[{' '.join(p[0] for p in parts)}]{tail}"
        if all(len(p) == 1 for p in parts) and len(flat) + 4 <= LINE:
            return [flat]
        return [f"{op}[", *(line for p in parts for line in _indented(p, 2)), f"]{tail}"]


def _indented(lines: Iterable[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def body_uses(body: UOp) -> dict[UOp, list[UOp]]:
    """The closed bodies below a body, inner ones first, with the nodes that use them."""
    uses: dict[UOp, list[UOp]] = {}
    order = toposort([body], bodies=True)
    for node in order:
        for b in node.bodies:
            uses.setdefault(b, []).append(node)
    return {n: uses[n] for n in order if n in uses}


def body_name(body: UOp, users: Sequence[UOp], taken: set[str]) -> str:
    """A name for a shared body: that of the call, or of the op."""
    user = users[0]
    name = (
        (user.arg.name or user.arg.kind) if user.op is Op.CALL else f"{user.op.name.lower()}_body"
    )
    name = "".join(ch if ch.isalnum() else "_" for ch in name).strip("_") or "body"
    unique, i = name, 1
    while unique in taken:
        unique, i = f"{name}_{i}", i + 1
    taken.add(unique)
    return unique


Inputs = int | Sequence[Any]


def input_avals(inputs: Inputs) -> Sequence[Any]:
    """Avals of the parameters; of a mere count, those not read print as `_`."""
    return [None] * inputs if isinstance(inputs, int) else inputs


def print_body(body: UOp, inputs: Inputs = 0, sites: Sites | None = None) -> str:
    """The text of a closed body (a TUPLE).

    `inputs`: the avals of its parameters or how many there are; those that the body does not read
    are known from nowhere else. `sites`: source of nodes, printed behind their equations.
    """
    return print_graph(body.src, inputs, sites)


def print_graph(roots: Sequence[UOp], inputs: Inputs = 0, sites: Sites | None = None) -> str:
    """The text of nodes, open or closed."""
    root = UOp(Op.TUPLE, tuple(roots))
    texts: dict[UOp, list[str]] = {}
    printer = _Printer(sites or {}, lambda b: texts[b])
    taken: set[str] = set()
    top: list[str] = []
    for body, users in body_uses(root).items():
        places = sum(u.bodies.count(body) for u in users)
        printer.sites = body_sources(body) if sites else {}
        lines = printer.body(body.src, inner_inputs(users[0], body))
        if places > 1:
            name = body_name(body, users, taken)
            shown = with_sites(lines)
            top += [f"let {name} = {shown[0]}", *shown[1:]]
            top[-1] += " in"
            texts[body] = [name]
        else:
            texts[body] = with_sites(lines)
    printer.sites = sites or {}
    return "\n".join(top + with_sites(printer.body(root.src, input_avals(inputs))))


def with_sites(body: _Body) -> list[str]:
    """The lines of a body with the source of each equation in a column on the right."""
    if not body.sites:
        return body.joined()
    lines = list(body.lines)
    width = max(len(lines[i]) for i in body.sites)
    for i, site in body.sites.items():
        text = site_text(site)
        if text:
            lines[i] = f"{lines[i]:<{min(width, LINE)}}  # {text}"
    return lines


def inner_inputs(user: UOp, body: UOp) -> list[Any]:
    """Avals of the parameters of a body, from the node that uses it (None where a scan slices)."""
    args, info = user.operands, user.arg
    if user.op is Op.CALL:
        return [a.aval for a in args]
    if user.op is Op.COND:
        return [a.aval for a in args[1:]]
    if user.op is Op.SCAN:
        sliced = [
            a.aval.update(shape=a.aval.shape[1:]) for a in args[info.num_consts + info.num_carry :]
        ]
        return [a.aval for a in args[: info.num_consts + info.num_carry]] + sliced
    carry = [a.aval for a in args[info.cond_consts + info.body_consts :]]
    if body is user.src[0]:
        return [a.aval for a in args[: info.cond_consts]] + carry
    return [a.aval for a in args[info.cond_consts : info.cond_consts + info.body_consts]] + carry


class Jaxpr:
    """A closed body to look at: `print(jaxpr)`; in a notebook bodies fold and lines are links."""

    __slots__ = ("body", "inputs", "sites")

    def __init__(self, body: UOp, inputs: Inputs = 0, sites: Sites | None = None) -> None:
        self.body, self.inputs, self.sites = body, inputs, sites or {}

    def __str__(self) -> str:
        return print_body(self.body, self.inputs, self.sites)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jaxpr) and self.body is other.body

    def __hash__(self) -> int:
        return hash(self.body)

    @property
    def in_avals(self) -> list[Any]:
        """Types of the parameters; None for one that is not read and whose type was not given."""
        found = list(input_avals(self.inputs))
        for n in toposort(self.body.src):
            if n.op is Op.PARAM:
                found += [None] * (n.arg[0] + 1 - len(found))
                found[n.arg[0]] = n.aval
        return found

    @property
    def out_avals(self) -> list[Any]:
        """Types of the results."""
        return [o.aval for o in self.body.src]

    def _repr_html_(self) -> str:
        names: dict[UOp, str] = {}
        taken: set[str] = set()
        printer = _Printer(self.sites, lambda b: [names[b]])
        parts = []
        for body, users in body_uses(self.body).items():
            names[body] = body_name(body, users, taken)
            made = printer.body(body.src, inner_inputs(users[0], body))
            parts.append(
                f"<details><summary><code>{html.escape(names[body])} = "
                f"{html.escape(made.lines[0])}</code></summary>{html_lines(made)}</details>"
            )
        made = printer.body(self.body.src, input_avals(self.inputs))
        return "<div class='tinyjax-jaxpr'>" + "".join(parts) + html_lines(made) + "</div>"


def html_lines(body: _Body) -> str:
    """The lines of a body as a `<pre>`, with links to the source."""
    out = []
    for i, line in enumerate(body.lines):
        text = html.escape(line)
        if i in body.sites:
            site = body.sites[i]
            link, words = site_link(site), html.escape(site_text(site))
            style = "color:inherit;text-decoration:none"
            words = (
                f"<a style='{style}' href='{html.escape(link)}'># {words}</a>"
                if link
                else f"# {words}"
            )
            text += f"  <span style='opacity:0.6'>{words}</span>"
        out.append(text)
    return "<pre style='line-height:1.3;overflow-x:auto'>" + "\n".join(out) + "</pre>"
