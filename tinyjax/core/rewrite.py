"""Patterns, tables of named rewrite rules, and the one driver that applies them.

    simplify = Rules("simplify")
    x, c, d = P.any("x"), P.number("c"), P.number("d")

    @simplify.rule(P.idiv(P.mul(x, c), d), when=lambda c, d: d != 0 and c % d == 0)
    def divide_exact_multiple(x, c, d):
        \"""(x*c)//d -> x*(c//d), when d divides c\"""
        return mul(x, integer(c // d))

Patterns are data. A rule gets what the pattern bound, by the names of its parameters, and
returns the replacement or None. Rules are tried in the order in which they were registered;
tables join with `+`.

`rewrite(roots, table)` is one bottom-up walk: a node is rebuilt over its rewritten sources and
offered to the rules of its op; the nodes of a replacement are offered to the rules as they are
met, so nothing is swept again and again. When no rule fits, the node is final, for this walk and
for all its users.

Per table and op, the patterns are turned into one Python function when the first node of that op is
met (nothing is compiled at import): about 0.3 us for a node on which no rule fits.

A replacement that leads back to the node it replaces is an endless rewrite; `RewriteLoopError`
names the last rules applied. core/record.py keeps every rewrite for people to read, and counts for
tests to bound.

Cost: linear in nodes and rewrites. Reference for bottom-up rewriting with memo: Visser, "Stratego"
(2001), strategy `bottomup`; the table-of-rules style is tinygrad's.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tinyjax.core.errors import InvariantError
from tinyjax.core.ops import BODIES, Op
from tinyjax.core.record import Step, expression_text, note_walk, recording
from tinyjax.core.source import GENERATED
from tinyjax.core.uop import UOp, const_value, get

F = TypeVar("F", bound=Callable[..., Any])

MAX_CHAIN = 1000
"""Replacements of replacements of one node before the rewrite counts as endless."""
BLAMED = 5
"""Rules named in the error."""


class RewriteLoopError(InvariantError):
    """A rewrite does not end. The message names the rules that undo each other."""


# --- patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pattern:
    """A shape of nodes. Make them with `P`.

    `ops`: the kinds that fit, None for any. `src`: patterns of the sources, None if they do not
    matter. `rest`: more sources may follow those of `src`; the name binds them as a tuple. `name`
    binds the node (`value`: its Python number, for a literal). `arg` must be equal, `dtype` must be
    equal. `any_order`: the two sources may be exchanged.
    """

    ops: frozenset[Op] | None = None
    src: tuple[Pattern, ...] | None = None
    name: str | None = None
    arg: Any = None
    dtype: Any = None
    rest: str | None = None
    any_order: bool = False
    value: bool = False
    equals: Any = None

    def __post_init__(self) -> None:
        if self.any_order and (self.src is None or len(self.src) != 2):
            raise TypeError("any_order is for patterns of two sources")

    def __str__(self) -> str:
        if self.equals is not None:
            return repr(self.equals)
        if self.ops is None or self.src is None:
            return self.name or "_"
        kinds = "|".join(sorted(op.name.lower() for op in self.ops))
        inner = ", ".join(map(str, self.src)) + (f", *{self.rest}" if self.rest else "")
        return f"{kinds}({inner})" + (f" as {self.name}" if self.name else "")


class _Op:
    """`P.add`: makes patterns of one op."""

    __slots__ = ("ops",)

    def __init__(self, ops: frozenset[Op]) -> None:
        self.ops = ops

    def __call__(
        self,
        *src: Pattern | float,
        name: str | None = None,
        arg: Any = None,
        dtype: Any = None,
        rest: str | None = None,
        any_order: bool = False,
    ) -> Pattern:
        """Sources in order (numbers match literals); none at all matches any sources."""
        given = tuple(s if isinstance(s, Pattern) else P.literal(s) for s in src)
        sources = given if given or rest else None
        dtype = None if dtype is None else np.dtype(dtype)
        return Pattern(self.ops, sources, name, arg, dtype, rest, any_order)


class _Patterns:
    """`P`: `P.add(x, y)`, `P.any("x")`, `P.number("c")`, `P.const("c")`, `P.literal(0)`,
    `P.of(ops)`."""

    def __getattr__(self, op: str) -> _Op:
        name = op.rstrip("_").upper()  # and_, or_, not_
        if name not in Op.__members__:
            raise AttributeError(f"P.{op}: there is no op {name}")
        return _Op(frozenset((Op[name],)))

    def of(self, ops: Iterable[Op]) -> _Op:
        """Any of several ops: `P.of(MOVEMENT)(x, name="move")`."""
        return _Op(frozenset(ops))

    def any(self, name: str | None = None, dtype: Any = None) -> Pattern:
        """Any node; the same name twice means the same node."""
        return Pattern(name=name, dtype=None if dtype is None else np.dtype(dtype))

    def const(self, name: str | None = None, dtype: Any = None) -> Pattern:
        """A literal; binds the node."""
        kinds = frozenset((Op.CONST,))
        return Pattern(kinds, name=name, dtype=None if dtype is None else np.dtype(dtype))

    def number(self, name: str, dtype: Any = None) -> Pattern:
        """A literal; binds its Python number."""
        kinds = frozenset((Op.CONST,))
        of = None if dtype is None else np.dtype(dtype)
        return Pattern(kinds, name=name, dtype=of, value=True)

    def literal(self, value: float) -> Pattern:
        """A literal equal to `value` (so 0 fits -0.0 too)."""
        return Pattern(frozenset((Op.CONST,)), equals=value)


P = _Patterns()


# --- rules and tables -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rule:
    """One rewrite: a name, what it matches, when, and what it makes."""

    name: str
    pattern: Pattern
    make: Callable[..., UOp | None]
    when: Callable[..., bool] | None
    text: str


class Rules:
    """A named table of rules, indexed by the op at the root of their patterns."""

    def __init__(self, name: str, rules: Iterable[Rule] = ()) -> None:
        self.name = name
        self.rules: list[Rule] = list(rules)
        self._matchers: dict[Op, Matcher | None] = {}

    def rule(
        self, *patterns: Pattern, when: Callable[..., bool] | None = None, name: str = ""
    ) -> Callable[[F], F]:
        """Register a function (or a lambda, with `name`) for one or several patterns."""

        def register(make: F) -> F:
            called = name or make.__name__
            if called == "<lambda>":
                raise TypeError(f"a lambda in {self.name} needs name=: it appears in logs")
            for pattern in patterns:
                if pattern.ops is None:
                    raise TypeError(f"{called}: a rule needs an op at its root")
                text = inspect.getdoc(make) or str(pattern)
                self.rules.append(Rule(called, pattern, make, when, text))
            self._matchers.clear()
            return make

        return register

    def __add__(self, other: Rules) -> Rules:
        return Rules(f"{self.name}+{other.name}", [*self.rules, *other.rules])

    def __len__(self) -> int:
        return len(self.rules)

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.rules)} rules"]
        for rule in self.rules:
            first = rule.text.splitlines()[0] if rule.text else str(rule.pattern)
            lines.append(f"  {rule.name:<32} {first}")
        return "\n".join(lines)

    def matcher(self, op: Op) -> Matcher | None:
        """The function that applies the first fitting rule to a node of this op; None without
        rules."""
        try:
            return self._matchers[op]
        except KeyError:
            pass
        rules = [r for r in self.rules if r.pattern.ops is not None and op in r.pattern.ops]
        found = compile_matcher(self.name, op, rules)[0] if rules else None
        self._matchers[op] = found
        return found

    def source(self, op: Op) -> str:
        """The generated Python of `matcher(op)`."""
        rules = [r for r in self.rules if r.pattern.ops is not None and op in r.pattern.ops]
        return compile_matcher(self.name, op, rules)[1] if rules else ""


Matcher = Callable[[UOp, Any], "tuple[UOp, Rule] | None"]


# --- patterns to Python ---------------------------------------------------------------------------


class _Writer:
    """Writes the test of one pattern as nested statements; a failed test leaves the block."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.lines: list[str] = []
        self.bound: dict[str, str] = {}
        self.count = itertools.count()

    def constant(self, value: Any) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = value
        return name

    def need(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): break")

    def match(self, pattern: Pattern, at: str, order: dict[int, bool], root: bool = False) -> None:
        """Tests `at` against `pattern`; `order` says which any_order patterns are exchanged."""
        if pattern.ops is not None and not root:
            if len(pattern.ops) == 1:
                self.need(f"{at}.op is {self.constant(next(iter(pattern.ops)))}")
            else:
                self.need(f"{at}.op in {self.constant(pattern.ops)}")
        if pattern.dtype is not None:
            self.need(f"getattr({at}.aval, 'dtype', None) == {self.constant(pattern.dtype)}")
        if pattern.arg is not None:
            self.need(f"{at}.arg == {self.constant(pattern.arg)}")
        if pattern.equals is not None:
            self.need(f"const_value({at}) == {self.constant(pattern.equals)}")
        if pattern.name is not None:
            made = f"const_value({at}).item()" if pattern.value else at
            if pattern.name in self.bound:
                test = "==" if pattern.value else "is"
                self.need(f"{self.bound[pattern.name]} {test} {made}")
            else:
                variable = f"v{next(self.count)}"
                self.lines.append(f"{variable} = {made}")
                self.bound[pattern.name] = variable
        if pattern.src is None:
            return
        if pattern.rest is None:
            self.need(f"len({at}.src) == {len(pattern.src)}")
        else:
            self.need(f"len({at}.src) >= {len(pattern.src)}")
            variable = f"v{next(self.count)}"
            self.lines.append(f"{variable} = {at}.src[{len(pattern.src)}:]")
            self.bound[pattern.rest] = variable
        sources = []
        for i in range(len(pattern.src)):
            variable = f"n{next(self.count)}"
            self.lines.append(f"{variable} = {at}.src[{i}]")
            sources.append(variable)
        if order.get(id(pattern)):
            sources.reverse()
        for inner, variable in zip(pattern.src, sources):
            self.match(inner, variable, order)


def unordered(pattern: Pattern) -> list[Pattern]:
    """The any_order patterns inside a pattern."""
    inner = [p for s in pattern.src or () for p in unordered(s)]
    return [pattern, *inner] if pattern.any_order else inner


def argument_names(f: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's positional parameters. (`inspect.signature` takes a millisecond.)"""
    code = f.__code__
    return tuple(code.co_varnames[: code.co_argcount])


def parameters(f: Callable[..., Any], rule: str, bound: dict[str, str]) -> str:
    """The arguments of a call of `f`: what the pattern bound, by parameter name; `ctx` is the
    context."""
    names = argument_names(f)
    required = len(names) - len(f.__defaults__ or ())
    given = []
    for i, name in enumerate(names):
        if name == "ctx":
            given.append("ctx")
        elif name in bound:
            given.append(bound[name])
        elif i < required:
            raise TypeError(f"rule {rule}: its pattern binds no {name!r}, only {sorted(bound)}")
        else:
            break
    return ", ".join(given)


def compile_matcher(table: str, op: Op, rules: Sequence[Rule]) -> tuple[Matcher, str]:
    """One function for all rules of an op, and its source."""
    scope: dict[str, Any] = {"const_value": const_value}
    lines = ["def matcher(n, ctx):"]
    for rule in rules:
        swaps = unordered(rule.pattern)
        for turned in itertools.product((False, True), repeat=len(swaps)):
            writer = _Writer(scope)
            order = {id(p): t for p, t in zip(swaps, turned)}
            writer.match(rule.pattern, "n", order, root=True)
            if rule.when is not None:
                call = parameters(rule.when, rule.name, writer.bound)
                writer.need(f"{writer.constant(rule.when)}({call})")
            call = parameters(rule.make, rule.name, writer.bound)
            lines.append(f"    while True:  # {rule.name}")
            lines += ["        " + line for line in writer.lines]
            lines.append(f"        made = {writer.constant(rule.make)}({call})")
            lines.append("        if made is None or made is n: break")
            lines.append(f"        return made, {writer.constant(rule)}")
    lines.append("    return None")
    source = "\n".join(lines)
    filename = f"{GENERATED} {table} {op.name.lower()}>"
    exec(compile(source, filename, "exec"), scope)
    return scope["matcher"], source


# --- the driver -----------------------------------------------------------------------------------


def rebuilt(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """The same op over other sources; reading a result of a TUPLE folds at once."""
    if node.op is Op.GETTUPLE and src[0].op is Op.TUPLE:
        return get(src[0], node.arg)
    return UOp(node.op, src, node.arg)


class _Walk:
    """One bottom-up walk. `done` maps a node to its final form."""

    def __init__(self, rules: Rules, name: str, ctx: Any, bodies: bool) -> None:
        self.rules, self.name, self.ctx, self.bodies = rules, name, ctx, bodies
        self.done: dict[UOp, UOp] = {}
        self.last: list[str] = []
        self.steps: list[Step] | None = [] if recording() else None
        self.nodes = self.rewrites = 0

    def run(self, root: UOp) -> UOp:
        """The final form of a node.

        The stack holds (node, waiting for, depth of replacements). `waiting` is None while the
        sources are being made, else the replacement whose final form the node takes.
        """
        done, matchers = self.done, self.rules._matchers
        stack: list[tuple[UOp, UOp | None, int]] = [(root, None, 0)]
        replaced: set[UOp] = set()
        while stack:
            node, waiting, depth = stack.pop()
            if waiting is not None:
                done[node] = done[waiting]
                replaced.discard(node)
                continue
            if node in done:
                continue
            if node in replaced:
                raise self.loop(node, "leads back to a node that is being rewritten")
            src = node.src
            opaque = len(node.bodies) if node.op in BODIES and not self.bodies else 0
            pending = [s for s in src[opaque:] if s not in done]
            if pending:
                stack.append((node, None, depth))
                stack += [(s, None, depth) for s in reversed(pending)]
                continue
            new = src[:opaque] + tuple([done[s] for s in src[opaque:]])
            made = node if new == src else rebuilt(node, new)
            if made is not node:
                if made in done:
                    done[node] = done[made]
                    continue
                if made in replaced:
                    raise self.loop(made, "leads back to a node that is being rewritten")
            self.nodes += 1
            op = made.op
            matcher = matchers[op] if op in matchers else self.rules.matcher(op)
            found = None if matcher is None else matcher(made, self.ctx)
            if found is None:
                done[node] = done[made] = made
                continue
            after, rule = found
            self.note(rule, made, after)
            if depth >= MAX_CHAIN:
                raise self.loop(made, f"was replaced {MAX_CHAIN} times over")
            for n in {node, made}:
                replaced.add(n)
                stack.append((n, after, depth))
            stack.append((after, None, depth + 1))
        return done[root]

    def note(self, rule: Rule, before: UOp, after: UOp) -> None:
        self.rewrites += 1
        self.last = [*self.last[-BLAMED + 1 :], rule.name]
        if before.aval is not after.aval and not self.same_kind(before, after):
            raise InvariantError(
                f"pass {self.name}: rule {rule.name} changed {before!r} into {after!r}"
            )
        if self.steps is not None:
            self.steps.append(Step(self.name, rule.name, before, after))

    @staticmethod
    def same_kind(before: UOp, after: UOp) -> bool:
        """Whether a replacement has the type of what it replaces, the weak flag aside."""
        a, b = before.aval, after.aval
        if not hasattr(a, "dtype") or not hasattr(b, "dtype"):
            return True  # effects and tuples: the stage verifier looks at them
        return bool(a.shape == b.shape and a.dtype == b.dtype)

    def loop(self, node: UOp, why: str) -> RewriteLoopError:
        return RewriteLoopError(
            f"pass {self.name}: {expression_text(node, 120)} {why}. "
            f"Last rules applied: {', '.join(self.last)}"
        )


def rewrite(
    roots: Sequence[UOp],
    rules: Rules,
    *,
    pass_name: str = "",
    ctx: Any = None,
    bodies: bool = False,
    memo: dict[UOp, UOp] | None = None,
) -> list[UOp]:
    """`roots` rewritten by `rules` in one bottom-up walk.

    `ctx` is passed to rules with a parameter of that name. Bodies of calls and loops are left alone
    unless `bodies`. `memo` maps nodes to their final form; it is read and filled.
    Raises: `RewriteLoopError` naming the last rules, when rules undo each other.
    """
    walk = _Walk(rules, pass_name or rules.name, ctx, bodies)
    if memo is not None:
        walk.done = memo
    try:
        return [walk.run(r) for r in roots]
    finally:
        note_walk(walk.name, walk.nodes, walk.rewrites, walk.steps)
