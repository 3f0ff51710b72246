"""Symbolic shapes as text: "b, 2*n" -> the shape (b, 2*n) over `Dim`s, with constraints as text.

    shape       = [entry {"," entry} [","]], perhaps in parentheses
    entry       = sum | "_" (the size of `like`) | "..." (the rest of `like`; last)
    sum         = product {("+" | "-") product}
    product     = power {"*" power}
    power       = factor ["^" number]
    factor      = "-" factor | number | name | function "(" sum "," sum ")" | "(" sum ")"
    function    = "floordiv" | "mod" | "max" | "min"
    constraint  = sum (">=" | "<=" | "==") sum

A scope gives names their bounds. Constraints may bound one dimension ("n >= 4", "2*n + 1 <= 99"),
say what divides it ("mod(n, 8) == 0"), or define it ("n == 4", "m == 2*n + 1"); what else they say
must follow from that. JAX's dimensions have no upper bound; here memory is planned for the largest
size, so that a dimension without one gets LARGEST.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from tinyjax.core.dims import (
    OPERATIONS,
    Atom,
    Dim,
    DimExpr,
    Size,
    bounds_of,
    dims_of,
    evaluate,
    is_symbolic,
    linear,
)
from tinyjax.core.errors import InconclusiveDimensionOperation

LARGEST = 4096
"""Upper bound of a dimension whose constraints give none (or twice its lower bound, if that is more).
Programs plan memory for the product of all bounds: two dimensions of a million would be more than
machines have."""

ANY = 1 << 62
"""Upper bound of a dimension while constraints are read."""

TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\.\.\.|[><=]=|\S)")


class _Parser:
    """Reads a text from left to right. `size_of` gives the size of a name."""

    def __init__(self, text: str, what: str, size_of: Callable[[str], Size]) -> None:
        self.text, self.what, self.size_of = text, what, size_of
        self.tokens = [(m[1], m.start(1)) for m in TOKEN.finditer(text)] + [("", len(text))]
        self.at = 0

    @property
    def next(self) -> str:
        """The token to be read; "" at the end."""
        return self.tokens[self.at][0]

    def take(self, *wanted: str) -> str:
        """The next token if it is one of these, or "" ."""
        if not self.next or self.next not in wanted:
            return ""
        self.at += 1
        return self.tokens[self.at - 1][0]

    def need(self, token: str) -> None:
        """Read this token. Raises: ValueError if there is another."""
        if not self.take(token):
            raise self.error(f"expected {token!r}")

    def error(self, why: str, at: int | None = None) -> ValueError:
        """The error at a token, by default the next one."""
        token, place = self.tokens[self.at if at is None else at]
        found = f", found {token!r}" if token else ", found the end"
        return ValueError(
            f"syntax error in {self.what} {self.text!r}: {why}{found if at is None else ''}.\n"
            f"  {self.text}\n  {' ' * place}^"
        )

    def shape(self, like: Sequence[Any] | None) -> tuple[Size, ...]:
        """A whole shape; `like` fills in `_` and `...`."""
        if self.next == "(" and self.enclosed():
            self.at = 1
            del self.tokens[-2]
        sizes: list[Size] = []
        while self.next:
            at = self.at
            if self.take("..."):
                sizes += self.known(like, at)[len(sizes) :]
                self.take(",")
                break
            sizes.append(self.entry(like, len(sizes)))
            if self.next and not self.take(","):
                raise self.error("expected ',' or an operator")
        self.end()
        if like is not None and len(sizes) != len(like):
            raise self.error(f"it has {len(sizes)} axes, but the shape {tuple(like)} has others", 0)
        return tuple(sizes)

    def enclosed(self) -> bool:
        """Whether the "(" at the start closes at the end of the text."""
        depth = 0
        for i, (token, _) in enumerate(self.tokens):
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth == 0:
                return i == len(self.tokens) - 2
        raise self.error("this '(' is not closed", 0)

    def entry(self, like: Sequence[Any] | None, axis: int) -> Size:
        """The size of one axis."""
        at = self.at
        if self.take("_"):
            known = self.known(like, at)
            if axis >= len(known):
                raise self.error(f"the shape {tuple(known)} has no axis {axis}", at)
            return known[axis]
        size = self.sum()
        if bounds_of(size)[1] < 0:
            raise self.error(f"the size {size} is negative", at)
        if like is not None and axis < len(like) and isinstance(size, int):
            of = like[axis]
            if isinstance(of, int) and of != size:
                raise self.error(f"axis {axis} of the shape {tuple(like)} has size {of}", at)
        return size

    def known(self, like: Sequence[Any] | None, at: int) -> Sequence[Any]:
        """The shape that placeholders stand for."""
        if like is None:
            raise self.error("a placeholder needs the shape that it stands for: give `like`", at)
        return like

    def relation(self) -> tuple[Size, str, Size]:
        """A whole constraint."""
        left, sign = self.sum(), self.take(">=", "<=", "==")
        if not sign:
            raise self.error("expected '==', '>=' or '<='")
        right = self.sum()
        self.end()
        return (right, ">=", left) if sign == "<=" else (left, sign, right)

    def end(self) -> None:
        """Raises: ValueError if there is more to read."""
        if self.next:
            raise self.error("expected an operator or the end")

    def sum(self) -> Size:
        total = self.product()
        while self.next in ("+", "-"):
            sign = 1 if self.take("+", "-") == "+" else -1
            total = total + sign * self.product()
        return total

    def product(self) -> Size:
        total = self.power()
        while self.take("*"):
            total = total * self.power()
        return total

    def power(self) -> Size:
        base = self.factor()
        if not self.take("^"):
            return base
        if not self.next.isdigit():
            raise self.error("expected a number as the exponent")
        return math.prod([base] * int(self.take(self.next)))

    def factor(self) -> Size:
        at, token = self.at, self.next
        if self.take("-"):
            return -self.factor()
        if self.take("("):
            size = self.sum()
            self.need(")")
            return size
        if token.isdigit():
            return int(self.take(token))
        if token in OPERATIONS:
            self.take(token)
            self.need("(")
            a = self.sum()
            self.need(",")
            b = self.sum()
            self.need(")")
            try:
                return OPERATIONS[token](a, b)
            except ZeroDivisionError as error:
                raise self.error(str(error), at) from None
        if token.isidentifier() and token != "_":
            self.take(token)
            if self.next == "(":
                raise self.error(
                    f"{token} is no function of sizes: use {', '.join(OPERATIONS)}", at
                )
            return self.size_of(token)
        raise self.error("expected a number, a name, a function or '('")


class SymbolicScope:
    """Names for dimensions, and what constraints say of them.

    Shapes that are read in one scope share its dimensions: `n` is the same size in all of them. A
    dimension is the `Dim` of its name, bounds and divisor, so equal ones of two scopes are equal.

    Raises: ValueError for a constraint that is none of the forms above, or that no size meets.
    """

    def __init__(self, constraints_str: Sequence[str] = ()) -> None:
        if isinstance(constraints_str, str):
            raise ValueError(
                f"The symbolic constraints should be a sequence of strings. Got {constraints_str!r}"
            )
        self.constraints = tuple(constraints_str)
        self._limits: dict[Atom, tuple[int, int, int]] = {}
        self._defined: dict[Atom, Size] = {}
        rules = (self._define, self._limit, self._imply)
        left = [_Parser(c, "symbolic constraint", unbounded).relation() for c in self.constraints]
        for rule in rules:
            left = [relation for relation in left if not rule(*relation)]
        for limited in self._limits:
            self.size_of(limited.name)

    def _define(self, x: Size, sign: str, y: Size) -> bool:
        """Whether it is an equation that gives a dimension: its name stands for the rest then."""
        if sign != "==":
            return False
        difference = self._known(x) - self._known(y)
        for a in dims_of([self._known(x), self._known(y)]):
            slope, rest = linear(difference, a)
            if slope and isinstance(rest, int) and rest % slope:
                raise self._error(x, sign, y, "holds for no size")
            if slope and (isinstance(rest, int) or abs(slope) == 1):
                self._defined[a] = -rest // slope if isinstance(rest, int) else -rest * slope
                return True
        return False

    def _limit(self, x: Size, sign: str, y: Size) -> bool:
        """Whether it bounds a dimension, or says what divides it."""
        difference = self._known(x) - self._known(y)
        dims = dims_of([difference])
        if len(dims) != 1:
            return False
        (a,) = dims
        low, high, multiple = self._limits.get(a, (-ANY, ANY, 1))
        slope, rest = linear(difference, a)
        if sign == "==":
            divisor = divisor_of(difference, a)
            if not divisor:
                return False
            multiple = math.lcm(multiple, divisor)
        elif slope > 0:
            low = max(low, -(rest // slope))
        elif slope < 0:
            high = min(high, rest // -slope)
        else:
            return False
        self._limits[a] = low, high, multiple
        return True

    def _imply(self, x: Size, sign: str, y: Size) -> bool:
        """Raises: ValueError unless it follows from the others."""
        a, b = self._final(x), self._final(y)
        try:
            holds = a == b if sign == "==" else a >= b
        except InconclusiveDimensionOperation:
            raise self._error(x, sign, y, "relates dimensions as bounds cannot") from None
        if not holds:
            raise self._error(x, sign, y, "contradicts the others")
        return True

    def _error(self, x: Size, sign: str, y: Size, why: str) -> ValueError:
        return ValueError(
            f"The symbolic constraint {x} {sign} {y} {why}.\n  A constraint may bound a dimension "
            "('n >= 4'), say what divides it ('mod(n, 8) == 0') or define it ('m == 2*n')."
        )

    def _known(self, x: Size) -> Size:
        """x with what is defined in place of names."""
        return evaluate(x, {a: self._defined.get(a, DimExpr.of_atom(a)) for a in dims_of([x])})

    def _final(self, x: Size) -> Size:
        """x over the dimensions of this scope."""
        return evaluate(x, {a: self.size_of(a.name) for a in dims_of([x])})

    def size_of(self, name: str) -> Size:
        """The size that a name stands for."""
        a = unbounded(name).atom
        if a in self._defined:
            return self._final(self._defined[a])
        low, high, multiple = self._limits.get(a, (-ANY, ANY, 1))
        low = -(-(1 if low == -ANY else max(0, low)) // multiple) * multiple
        high = (max(LARGEST, 2 * low) if high == ANY else high) // multiple * multiple
        if low > high:
            raise ValueError(f"No size of {name} meets the constraints of {self}.")
        return low if low == high else Dim(name, low, high, multiple_of=multiple)

    def __repr__(self) -> str:
        return f"SymbolicScope({', '.join(map(repr, self.constraints))})"


def divisor_of(x: DimExpr, a: Atom) -> int:
    """The number d for which x is mod(a, d), up to a factor; 0 if it is something else."""
    (monomial, _), *rest = x.terms
    (mod, *others) = monomial
    if rest or others or mod.kind != "mod" or mod.args[0] is not DimExpr.of_atom(a):
        return 0
    return mod.args[1] if isinstance(mod.args[1], int) else 0


def unbounded(name: str) -> Dim:
    """A dimension before its constraints are known."""
    return Dim(name, 0, ANY)


def is_symbolic_dim(p: Any) -> TypeGuard[DimExpr]:
    """Whether a size is symbolic."""
    return is_symbolic(p)


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Size, ...]:
    """The shape that a text stands for: `symbolic_shape("b, 2*n", constraints=("n <= 512",))`.

    `_` takes the size of that axis of `like`, and `...` all further ones; None is "...". Dimensions
    are 1 to 4096 unless the constraints give other bounds: sizes at calls are checked against them,
    and memory is planned for the largest.
    Raises: ValueError for a text that is no shape, with the place; for a constraint that cannot be
    kept; for both `scope` and `constraints`.
    """
    if scope is not None and constraints:
        raise ValueError("Cannot specify both a `scope` and `constraints`.")
    if shape_spec is None:
        shape_spec = "..."
    if not isinstance(shape_spec, str):
        raise ValueError(
            f"polymorphic shape spec should be None or a string. Found {shape_spec!r}."
        )
    if scope is None:
        scope = SymbolicScope(constraints)
    return _Parser(shape_spec, "symbolic shape", scope.size_of).shape(like)
