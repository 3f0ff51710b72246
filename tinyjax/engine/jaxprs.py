"""Jaxprs as data: equations, variables and literals, for programs that read or interpret them.

A closed body is a graph; `ClosedJaxpr` shows it the way JAX does, as a list of equations in
dependency order. Every equation can be applied again (`eqn.primitive.bind(*args, **eqn.params)`),
so an interpreter is a loop over `jaxpr.eqns` with an environment; docs/writing_an_interpreter.md
builds two. What differs from JAX follows from the graph: equal expressions are one equation, what
no result depends on is not there, and jnp functions are not calls of their own.

Jaxprs may also be made from equations (`Jaxpr(constvars, invars, outvars, eqns)`): evaluating one
stages its equations like any other function.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyjax.core.avals import TOKEN, Aval, aval
from tinyjax.core.body import close, hoist_memory, params_of, sources
from tinyjax.core.ops import Op
from tinyjax.core.printer import Jaxpr as Printed
from tinyjax.core.printer import (
    Sites,
    aval_text,
    inner_inputs,
    letters,
    print_body,
    site_text,
    value_text,
)
from tinyjax.core.sites import KEY as SITES_KEY
from tinyjax.core.source import api_boundary
from tinyjax.core.uop import UOp, const, const_value, substitute, token_of, toposort, tuple_of
from tinyjax.engine.array import Array
from tinyjax.engine.primitives import Params, Primitive, argreduce_equations, primitive_of, several
from tinyjax.engine.values import finish_all, lift
from tinyjax.interpreters.trace import open_trace


class JaxprTypeError(TypeError):
    """A jaxpr whose equations do not fit together."""


class Var:
    """A variable of a jaxpr. Compared by identity."""

    __slots__ = ("aval", "name")

    def __init__(self, aval: Aval, name: str = "?") -> None:
        self.aval, self.name = aval, name

    def __repr__(self) -> str:
        return self.name


class DropVar(Var):
    """A result that nothing reads."""

    __slots__ = ()

    def __init__(self, aval: Aval) -> None:
        super().__init__(aval, "_")


class Literal:
    """A scalar written where it is used: `val` is a Python number if weakly typed, else NumPy's."""

    __slots__ = ("aval", "val")

    def __init__(self, val: Any, aval: Aval | None = None) -> None:
        self.val = val
        self.aval: Aval = lift(val).aval if aval is None else aval

    @property
    def hash(self) -> int:
        """Hash of the value."""
        return hash((np.asarray(self.val).tobytes(), self.aval))

    @property
    def node(self) -> UOp:
        """The literal as a node of exactly this type."""
        if type(self.val) is Array:
            return self.val.node
        return const(np.asarray(self.val), self.aval.dtype, self.aval.weak_type)

    def __repr__(self) -> str:
        return f"{self.val}:{aval_text(self.aval)}"


Atom = Var | Literal


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a jaxpr does beside computing its results."""

    name: str
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """Where an equation was made: `site` as core/source.py records it, or None."""

    site: Any = None

    @property
    def name_stack(self) -> tuple[Any, ...]:
        """The open `named_scope`s."""
        pair = isinstance(self.site, tuple) and len(self.site) == 2
        return self.site[1] if pair and isinstance(self.site[1], tuple) else ()

    def __str__(self) -> str:
        return site_text(self.site)


class JaxprEqn:
    """`outvars = primitive[params] invars`"""

    __slots__ = ("ctx", "effects", "invars", "outvars", "params", "primitive", "source_info")

    def __init__(
        self,
        invars: Sequence[Atom],
        outvars: Sequence[Var],
        primitive: Primitive,
        params: Params,
        effects: frozenset[Effect] = frozenset(),
        source_info: SourceInfo | None = None,
        ctx: Any = None,
    ) -> None:
        self.invars, self.outvars = list(invars), list(outvars)
        self.primitive, self.params, self.effects = primitive, params, effects
        self.source_info, self.ctx = source_info or SourceInfo(), ctx

    def replace(self, **fields: Any) -> JaxprEqn:
        """The same with some fields replaced."""
        kept = {name: getattr(self, name) for name in self.__slots__}
        kept.update(fields)
        return JaxprEqn(**kept)

    def __repr__(self) -> str:
        left = " ".join(f"{v.name}:{aval_text(v.aval)}" for v in self.outvars)
        inside = " ".join(f"{k}={_param_text(v)}" for k, v in self.params.items() if v is not None)
        args = " ".join(v.name if isinstance(v, Var) else repr(v) for v in self.invars)
        head = f"{left} = " if left else ""
        return f"{head}{self.primitive}{f'[{inside}]' if inside else ''} {args}".rstrip()


def _param_text(x: Any) -> str:
    if isinstance(x, ClosedJaxpr | Jaxpr):
        return " ".join(line.strip() for line in str(x).splitlines())
    if isinstance(x, tuple) and any(isinstance(v, ClosedJaxpr) for v in x):
        return "(" + ", ".join(_param_text(v) for v in x) + ")"
    return x.name if isinstance(x, enum.Enum) else value_text(x)


class Jaxpr:
    """Equations over variables: `invars` are arguments, `constvars` the values closed over."""

    __slots__ = ("_body", "constvars", "debug_info", "effects", "eqns", "invars", "outvars")

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[JaxprEqn],
        effects: frozenset[Effect] | None = None,
        debug_info: Any = None,
    ) -> None:
        self.constvars, self.invars = list(constvars), list(invars)
        self.outvars, self.eqns, self.debug_info = list(outvars), list(eqns), debug_info
        found = frozenset(e for eqn in self.eqns for e in eqn.effects)
        self.effects = found if effects is None else frozenset(effects)
        self._body: UOp | None = None

    @property
    def in_avals(self) -> list[Aval]:
        """Types of the arguments."""
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[Aval]:
        """Types of the results."""
        return [v.aval for v in self.outvars]

    @property
    def body(self) -> UOp:
        """The graph: a closed body over (*invars, *constvars)."""
        if self._body is None:
            variables = [*self.invars, *self.constvars]
            with open_trace("jaxpr", None, staging=True) as trace:
                nodes = [trace.variable(v.aval) for v in variables]
                count = len(self.invars)
                given = [Array(n) for n in nodes]
                outs = eval_jaxpr(self, given[count:], *given[:count])
                self._body, captured = close([lift(o) for o in outs], nodes, keep_memory=True)
            if captured:
                raise JaxprTypeError("the equations mention traced values that are not variables")
        return self._body

    def replace(self, **fields: Any) -> Jaxpr:
        """The same with some of constvars, invars, outvars, eqns, effects, debug_info replaced."""
        kept = {
            name: getattr(self, name)
            for name in ("constvars", "invars", "outvars", "eqns", "debug_info")
        }
        kept.update(fields)
        return Jaxpr(**kept)

    def __str__(self) -> str:
        return print_body(self.body, len(self.invars) + len(self.constvars))

    __repr__ = __str__


class ClosedJaxpr:
    """A jaxpr and the values of its constvars. `print` it; in a notebook bodies fold.

    Two of them are equal if they are the same graph.
    """

    __slots__ = ("consts", "jaxpr", "sites")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any], sites: Sites | None = None) -> None:
        if len(consts) != len(jaxpr.constvars):
            raise ValueError(
                f"a jaxpr of {len(jaxpr.constvars)} constvars was given {len(consts)} consts"
            )
        self.jaxpr, self.consts, self.sites = jaxpr, list(consts), sites or {}

    eqns = property(lambda self: self.jaxpr.eqns)
    invars = property(lambda self: self.jaxpr.invars)
    outvars = property(lambda self: self.jaxpr.outvars)
    constvars = property(lambda self: self.jaxpr.constvars)
    in_avals = property(lambda self: self.jaxpr.in_avals)
    out_avals = property(lambda self: self.jaxpr.out_avals)
    effects = property(lambda self: self.jaxpr.effects)
    debug_info = property(lambda self: self.jaxpr.debug_info)
    literals = property(lambda self: self.consts)
    body = property(lambda self: self.jaxpr.body)

    @property
    def closed_body(self) -> UOp:
        """The graph with the consts as leaves in memory: what a node with bodies holds."""
        body: UOp = self.jaxpr.body
        if not self.consts:
            return body
        first = len(self.invars)
        values = [lift(c) for c in self.consts]
        if any(v.free for v in values):
            raise JaxprTypeError("a jaxpr that is a parameter cannot hold traced consts")
        mapping = {
            n: values[n.arg[0] - first]
            for n in toposort(body.src)
            if n.op is Op.PARAM and n.arg[0] >= first
        }
        return tuple_of(substitute(body.src, mapping))

    def replace(self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Any] | None = None) -> Any:
        """The same with jaxpr or consts replaced."""
        return ClosedJaxpr(
            self.jaxpr if jaxpr is None else jaxpr,
            self.consts if consts is None else consts,
            self.sites,
        )

    def map_jaxpr(self, f: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """The same consts with `f(jaxpr)`."""
        return ClosedJaxpr(f(self.jaxpr), self.consts, self.sites)

    def _printed(self, source_info: bool = False) -> Printed:
        inputs = len(self.invars) + len(self.constvars)
        return Printed(self.body, inputs, self.sites if source_info else None)

    def pretty_print(self, *, source_info: bool = False, **options: Any) -> str:
        """The text; with `source_info`, the user's line behind each equation."""
        return str(self._printed(source_info))

    def __str__(self) -> str:
        return str(self._printed())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._printed()._repr_html_()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClosedJaxpr) and self.body is other.body

    def __hash__(self) -> int:
        return hash(self.body)


# --- from graphs to equations -----------------------------------------------------------------------


def literal_of(node: UOp) -> Literal:
    """A CONST; a Python number if lifting that gives the node back, else NumPy's."""
    if node.aval is TOKEN:
        return Literal(Array(node), node.aval)
    value = const_value(node)
    if node.aval.weak_type and value.dtype.kind in "biufc":
        number = value.item()
        if lift(number) is node:
            return Literal(number, node.aval)
    return Literal(value, node.aval)


class _Names:
    """Fresh variables a, b, c, ..."""

    def __init__(self) -> None:
        self.count = 0

    def var(self, of: Aval) -> Var:
        self.count += 1
        return Var(of, letters(self.count - 1))


def closed_jaxpr(
    body: UOp,
    avals: Sequence[Aval | None],
    consts: Sequence[Any] = (),
    sites: Sites | None = None,
) -> ClosedJaxpr:
    """A body over (*arguments of these avals, *consts) as equations.

    The aval of an argument may be None if the body reads it. Memory that a body of a derivative
    rule holds is shown as further consts. `sites` are the sources of nodes, if not those that the
    body is known with. Cost: linear in the nodes; bodies inside are shown when
    their equation is made.
    """
    key = ("jaxpr", tuple(avals))
    known_sites = body.derived.get(SITES_KEY)
    kept = not consts and sites is None
    if kept:
        of, found = body.derived.get(key, (None, None))
        if found is not None and of is known_sites:
            return found  # type: ignore[no-any-return]
    plain = body
    sites = sources(body) if sites is None else sites
    body, leaves = hoist_memory(body, len(avals) + len(consts))
    consts = [*consts, *(Array(leaf) for leaf in leaves)]
    known = params_of(body)
    names = _Names()
    env: dict[UOp, Atom] = {}
    variables = []
    kinds = [*avals, *(lift(c).aval for c in consts)]
    for slot, given in enumerate(kinds):
        of = known.get(slot, given)
        variables.append(names.var(aval((), np.dtype(np.bool_)) if of is None else of))
    for node in toposort(body.src):
        if node.op is Op.PARAM:
            env[node] = variables[node.arg[0]]
    eqns = equations(body, env, names, sites)
    # A token among the consts is that of a whole program, whose results are the user's.
    whole = TOKEN in kinds[len(avals) :]
    outvars = [env[o] for o in body.src if not (whole and o.aval is TOKEN)]
    count = len(avals)
    jaxpr = Jaxpr(variables[count:], variables[:count], outvars, eqns)
    jaxpr._body = body
    made = ClosedJaxpr(jaxpr, consts, sites)
    if kept:
        plain.derived[key] = known_sites, made
    return made


def equations(
    body: UOp, env: dict[UOp, Atom], names: _Names, sites: Mapping[UOp, Any]
) -> list[JaxprEqn]:
    """The nodes of a body as equations in dependency order; `env` gets their variables."""
    order = toposort([body])
    read: dict[UOp, set[int]] = {}
    for node in order:
        if node.op is Op.GETTUPLE:
            read.setdefault(node.src[0], set()).add(node.arg)
    parts: dict[UOp, list[Var]] = {}
    made: list[JaxprEqn] = []
    for node in order:
        if node in env or node is body:
            continue
        if node.op is Op.CONST:
            env[node] = literal_of(node)
            continue
        if node.op is Op.GETTUPLE:
            env[node] = parts[node.src[0]][node.arg]
            continue
        source = SourceInfo(sites.get(node))
        used = frozenset(read.get(node, ()))
        if several(node):
            outs = [names.var(a) if i in used else DropVar(a) for i, a in enumerate(node.aval.elts)]
            parts[node] = outs
        else:
            outs = [names.var(node.aval)]
            env[node] = outs[0]
        if node.op is Op.ARGREDUCE:
            operand = env[node.src[0]]
            for i, prim, params in argreduce_equations(node, used):
                made.append(JaxprEqn([operand], [outs[i]], prim, params, source_info=source))
            continue
        shown = _closer(node)
        prim, operands, params = primitive_of(node, shown)
        if node.op is Op.HOST_CALL and not prim.multiple_results:
            outs = parts[node][:1]
        made.append(
            JaxprEqn(
                [env[s] for s in operands], outs, prim, params, effects_of(node, params), source
            )
        )
    return made


def shown(node: UOp) -> tuple[Primitive, list[UOp], Params]:
    """The primitive that makes the value of a node, its operands and parameters."""
    source = node.src[0] if node.op is Op.GETTUPLE else node
    if source.op is Op.ARGREDUCE:
        ((_, prim, params),) = argreduce_equations(source, frozenset((node.arg,)))
        return prim, list(source.src), params
    return primitive_of(source, _closer(source))


def _closer(node: UOp) -> Callable[[UOp], ClosedJaxpr]:
    return lambda body: closed_jaxpr(body, inner_inputs(node, body))


def effects_of(node: UOp, params: Params) -> frozenset[Effect]:
    """What applying the node does beside its results; that of its bodies included."""
    if token_of(node.operands) is None:
        return frozenset()
    if node.op is Op.CALLBACK:
        return frozenset((Effect(f"{node.arg.kind}_callback", bool(node.arg.ordered)),))
    if node.op is Op.CHECK:
        return frozenset((Effect("check"),))
    return frozenset(e for inner in jaxprs_in_params(params) for e in inner.effects)


# --- evaluation and walks -----------------------------------------------------------------------------


@api_boundary
def eval_jaxpr(
    jaxpr: Jaxpr, consts: Sequence[Any], *args: Any, propagate_source_info: bool = True
) -> list[Any]:
    """Results of a jaxpr on arrays, numbers or traced values; equation by equation.

    `propagate_source_info` changes nothing: what is made has the lines of the jaxpr.
    Raises: TypeError if the number of arguments or consts differs, or if types do not fit.
    """
    if len(args) != len(jaxpr.invars) or len(consts) != len(jaxpr.constvars):
        raise TypeError(
            f"eval_jaxpr: a jaxpr of {len(jaxpr.invars)} arguments and {len(jaxpr.constvars)} "
            f"consts was given {len(args)} and {len(consts)}.\n  Pass arrays, not trees: "
            "eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(args))."
        )
    env: dict[Var, Any] = dict(zip(jaxpr.invars, args, strict=True))
    env.update(zip(jaxpr.constvars, consts, strict=True))

    def read(v: Atom) -> Any:
        return Array(v.node) if isinstance(v, Literal) else env[v]

    for eqn in jaxpr.eqns:
        out = eqn.primitive.bind(*map(read, eqn.invars), **eqn.params)
        values = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, values, strict=True))
    return list(finish_all([lift(read(v)) for v in jaxpr.outvars]))


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The function `*args -> results` of a jaxpr."""
    return functools.partial(eval_jaxpr, closed_jaxpr.jaxpr, closed_jaxpr.consts)


def jaxprs_in_params(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for v in value if isinstance(value, tuple | list) else (value,):
            if isinstance(v, Jaxpr):
                yield v
            elif isinstance(v, ClosedJaxpr):
                yield v.jaxpr


def subjaxprs(jaxpr: Jaxpr) -> Iterator[Jaxpr]:
    """The jaxprs directly inside: not those inside of them."""
    for eqn in jaxpr.eqns:
        yield from jaxprs_in_params(eqn.params)


def new_jaxpr_eqn(
    invars: Sequence[Atom],
    outvars: Sequence[Var],
    primitive: Primitive,
    params: Params,
    effects: frozenset[Effect] = frozenset(),
    source_info: SourceInfo | None = None,
    ctx: Any = None,
) -> JaxprEqn:
    """An equation."""
    return JaxprEqn(invars, outvars, primitive, params, effects, source_info, ctx)


def gensym(suffix: str = "") -> Callable[[Aval], Var]:
    """A source of fresh variables."""
    names = _Names()

    def fresh(of: Aval) -> Var:
        made = names.var(of)
        made.name += suffix
        return made

    return fresh


def check_jaxpr(jaxpr: Jaxpr) -> None:
    """Check that variables are defined before they are read, once, and that all types fit.

    Raises: `JaxprTypeError` naming the equation.
    """
    defined: set[Var] = set()

    def define(variables: Sequence[Var], where: str) -> None:
        for v in variables:
            if v in defined and not isinstance(v, DropVar):
                raise JaxprTypeError(f"Variable '{v}' already bound in {where}")
            defined.add(v)

    def read(v: Atom, where: str) -> None:
        if isinstance(v, Var) and v not in defined:
            raise JaxprTypeError(f"Variable '{v}' not defined in {where}")

    define([*jaxpr.constvars, *jaxpr.invars], "the arguments")
    with open_trace("jaxpr", None, staging=True) as trace:
        for eqn in jaxpr.eqns:
            for v in eqn.invars:
                read(v, f"equation {eqn}")
            args = [
                Array(v.node if isinstance(v, Literal) else trace.variable(v.aval))
                for v in eqn.invars
            ]
            try:
                out = eqn.primitive.bind(*args, **eqn.params)
            except (TypeError, ValueError) as error:
                raise JaxprTypeError(f"in equation {eqn}: {error}") from None
            values = out if eqn.primitive.multiple_results else [out]
            if len(values) != len(eqn.outvars):
                raise JaxprTypeError(f"equation {eqn} has {len(values)} results")
            for v, value in zip(eqn.outvars, values, strict=True):
                if (v.aval.shape, v.aval.dtype) != (value.aval.shape, value.aval.dtype):
                    raise JaxprTypeError(
                        f"inconsistent type of '{v}' in equation {eqn}: the equation gives "
                        f"{value.aval.str_short()}"
                    )
            define(eqn.outvars, f"equation {eqn}")
    for out_var in jaxpr.outvars:
        read(out_var, "the results")
    for inner in subjaxprs(jaxpr):
        check_jaxpr(inner)
