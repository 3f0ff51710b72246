"""Symbolic dimensions: sizes of axes that are known when a program runs, not when it is made.

`Dim("n", 1, 4096)` is a size between two bounds. Arithmetic on it gives `DimExpr`s, polynomials
with integer coefficients in the dimensions (and in quotients, remainders, maxima and minima that
are none), in one normal form: equal expressions are one object. They stand in shapes where integers
stand.

    n = Dim("n", 1, 4096)
    2 * n + n == 3 * n          # True
    (n * 8) // 8                # n
    n >= 1                      # True, by the bounds
    n > 5                       # raises InconclusiveDimensionOperation: never a guess

Two comparisons are decided without knowing: a size that may be 0 or 1 is *not* equal to the
literals 0 and 1. An axis of unknown size is an axis like any other: it is not broadcast, dropped or
skipped, which is right for sizes 0 and 1 as well.

Cost: an operation is linear in the number of terms. References: the polynomials of shape
polymorphism in JAX's export, torch.export.Dim (names, bounds).
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import numpy as np

from tinyjax.core.describe import describe_value
from tinyjax.core.errors import InconclusiveDimensionOperation
from tinyjax.core.source import HIDDEN, api_boundary, call_site, user_line

Size = Any
"""An int or a DimExpr."""


class Atom:
    """What polynomials are made of: a dimension, or an operation that is not a polynomial.

    A dimension whose sizes are multiples of a number counts in units of it: for `Dim("n", 8, 64,
    multiple_of=8)` n is 8 times the atom, so that `n // 8` is the atom, and `n // 8 * 8` is n.
    `low` and `high` are in units too.
    """

    __slots__ = ("args", "high", "kind", "low", "multiple", "name")

    def __init__(
        self, kind: str, name: str, args: tuple[Size, ...], low: int, high: int, multiple: int = 1
    ) -> None:
        self.kind, self.name, self.args = kind, name, args
        self.low, self.high, self.multiple = low, high, multiple

    def value(self, sizes: Mapping[Atom, Size]) -> Size:
        """Its value where dimensions have these."""
        if self.kind == "dim":
            return sizes[self] // self.multiple
        a, b = (evaluate(x, sizes) for x in self.args)
        return OPERATIONS[self.kind](a, b)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return atom, (self.kind, self.name, self.args, self.low, self.high, self.multiple)


UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "floor_divide": "floordiv",
    "remainder": "mod", "divide": "truediv", "power": "pow", "equal": "eq", "not_equal": "ne",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
"""NumPy's names of the operators."""
REFLECTED = {
    "eq": "__eq__", "ne": "__ne__", "lt": "__gt__", "le": "__ge__", "gt": "__lt__", "ge": "__le__",
}  # fmt: skip
"""Comparisons from the other side."""

Monomial = tuple[Atom, ...]

_atoms: dict[Any, Atom] = {}
_expressions: dict[Any, DimExpr] = {}


def atom(
    kind: str, name: str, args: tuple[Size, ...], low: int, high: int, multiple: int = 1
) -> Atom:
    """The interned atom of these fields."""
    key = (kind, name, tuple(map(_key, args)), low, high, multiple)
    found = _atoms.get(key)
    return found if found is not None else _atoms.setdefault(key, Atom(*key[:2], args, *key[3:]))


def _key(x: Size) -> Any:
    return ("dim", id(x)) if isinstance(x, DimExpr) else int(x)


def _atom_order(a: Atom) -> Any:
    return a.name, a.low, a.high, a.multiple


def _order(monomial: Monomial) -> Any:
    return -len(monomial), tuple(map(_atom_order, monomial))


class DimExpr:
    """A size that depends on symbolic dimensions. Made by arithmetic; immutable and interned."""

    __slots__ = ("__weakref__", "_bounds", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    _bounds: tuple[int, int] | None

    @property
    def bounds(self) -> tuple[int, int]:
        """Inclusive bounds."""
        if self._bounds is None:
            self._bounds = _bounds(self)
        return self._bounds

    @staticmethod
    def of_atom(a: Atom) -> DimExpr:
        """The size that is just this atom."""
        return _of(a)

    # --- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if not is_size(other):
            return _real("add", self, other)
        return _sum((self, 1), (other, 1))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if not is_size(other):
            return _real("sub", self, other)
        return _sum((self, 1), (other, -1))

    def __rsub__(self, other: Any) -> Any:
        if not is_size(other):
            return _real("sub", other, self)
        return _sum((other, 1), (self, -1))

    def __neg__(self) -> Any:
        return _sum((self, -1))

    def __mul__(self, other: Any) -> Any:
        if not is_size(other):
            return _real("mul", self, other)
        found: dict[Monomial, int] = {}
        for m, c in self.terms:
            for n, d in _terms(other):
                both = tuple(sorted((*m, *n), key=_atom_order))
                found[both] = found.get(both, 0) + c * d
        return _make(found)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return divide(self, other) if is_size(other) else _real("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return divide(other, self) if is_size(other) else _real("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return remainder(self, other) if is_size(other) else _real("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return remainder(other, self) if is_size(other) else _real("mod", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and other >= 0:
            return math.prod([self] * other)
        return _real("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _real("pow", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _real("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real("truediv", other, self)

    # --- comparisons ----------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if not is_size(other):
            return NotImplemented
        low, high = bounds_of(self - other)
        if low > 0 or high < 0:
            return False
        if low == high == 0:
            return True
        if not isinstance(other, DimExpr) and other in (0, 1):
            return False  # an axis of unknown size is an axis like any other
        raise inconclusive(f"{self} == {other}", self, other)

    def __ne__(self, other: object) -> Any:
        found = self.__eq__(other)
        return found if found is NotImplemented else not found

    def __hash__(self) -> int:
        return id(self) >> 4

    def __ge__(self, other: Any) -> Any:
        return _at_least(self, other, 0, ">=") if is_size(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return _at_least(self, other, 1, ">") if is_size(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return not _at_least(self, other, 1, "<=") if is_size(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return not _at_least(self, other, 0, "<") if is_size(other) else NotImplemented

    def __bool__(self) -> bool:
        return bool(self != 0)

    # --- as a number ----------------------------------------------------------------------------

    def __index__(self) -> int:
        raise _error(
            f"The symbolic dimension {self} has no value while a function is traced: it stands for "
            f"every size {describe(self)}.",
            "For a loop over it use lax.fori_loop or lax.scan; as a number in a formula it can be "
            "used as it is; sizes may be compared as far as the bounds decide.",
        )

    __int__ = __float__ = __complex__ = __index__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators of NumPy numbers and arrays with sizes; NumPy's functions need values."""
        name = UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or options:
            raise _error(
                f"np.{ufunc.__name__} computes with values, and the symbolic dimension {self} has "
                f"none while a function is traced: it stands for every size {describe(self)}.",
                f"jnp.{ufunc.__name__} takes sizes as arrays.",
            )
        x, y = inputs
        if isinstance(x, DimExpr):
            return getattr(x, f"__{name}__")(y)
        return getattr(y, REFLECTED.get(name, f"__r{name}__"))(x)

    def __jax_array__(self) -> Any:
        return _convert(self)

    def __str__(self) -> str:
        parts: list[str] = []
        for m, c in self.terms:
            body = "*".join(a.name for a in m)
            unit = math.prod(a.multiple for a in m)
            common = math.gcd(c, unit)
            size = abs(c) // common
            if common != unit:
                body = f"floordiv({body}, {unit // common})"
            text = str(size) if not m else body if size == 1 else f"{size}*{body}"
            parts.append(("- " if c < 0 else "+ ") + text)
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    __repr__ = __str__

    def __copy__(self) -> DimExpr:
        return self

    def __deepcopy__(self, memo: Any) -> DimExpr:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_terms, (self.terms,)


class Dim(DimExpr):
    """A symbolic dimension: `Dim("n", 1, 4096)` is a size from 1 to 4096, both included.

    Two of the same name, bounds and `multiple_of` are the same dimension. `multiple_of=8` says that
    sizes are multiples of 8, so that `n // 8` is exact.

    Raises: ValueError for a name that is no identifier or for bounds that hold no size; TypeError for
    a bound that is no integer.
    """

    __slots__ = ()

    @api_boundary
    def __new__(cls, name: str, min: int = 1, max: int = 1 << 20, *, multiple_of: int = 1) -> Dim:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"Dim: the name must be an identifier, got {name!r}.")
        min, max = as_int(min, "min of Dim"), as_int(max, "max of Dim")
        multiple_of = as_int(multiple_of, "multiple_of of Dim")
        if multiple_of < 1:
            raise ValueError(f"multiple_of of Dim must be at least 1, got {multiple_of}.")
        low, high = -(-min // multiple_of), max // multiple_of
        if not 0 <= low < high:
            raise ValueError(
                f"Dim({name!r}, {min}, {max}"
                + (f", multiple_of={multiple_of}" if multiple_of != 1 else "")
                + "): needs 0 <= min < max with more than one size between; for one size use the int."
            )
        made = _make({(atom("dim", name, (), low, high, multiple_of),): multiple_of})
        assert isinstance(made, Dim)
        return made

    @property
    def atom(self) -> Atom:
        """The dimension as a part of expressions."""
        return self.terms[0][0][0]

    @property
    def name(self) -> str:
        """Its name."""
        return self.atom.name


def _terms(x: Size) -> Iterable[tuple[Monomial, int]]:
    if isinstance(x, DimExpr):
        return x.terms
    return (((), int(x)),) if x else ()


def _sum(*parts: tuple[Size, int]) -> Size:
    found: dict[Monomial, int] = {}
    for x, factor in parts:
        for m, c in _terms(x):
            found[m] = found.get(m, 0) + factor * c
    return _make(found)


def _make(terms: Mapping[Monomial, int]) -> Size:
    """The interned expression, or the int that it is."""
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return _make_terms(tuple(sorted(kept.items(), key=lambda t: _order(t[0]))))


def _make_terms(terms: tuple[tuple[Monomial, int], ...]) -> DimExpr:
    found = _expressions.get(terms)
    if found is None:
        (m, c), *more = terms
        is_dim = not more and len(m) == 1 and m[0].kind == "dim" and c == m[0].multiple
        made = object.__new__(Dim if is_dim else DimExpr)
        made.terms, made._bounds = terms, None
        found = _expressions.setdefault(terms, made)
    return found


# --- bounds -------------------------------------------------------------------------------------

REFINED = 4
"""How many quotients, maxima and minima an expression may have for its bounds to be refined: each
doubles the work."""


def _bounds(x: DimExpr) -> tuple[int, int]:
    """Those of interval arithmetic, refined by what ties an operation to its operands.

    max(a, b) is a or b, and at least both. q = a // d, for a number d > 0, is (a - a % d) / d, and
    a % b, for b > 0, is one of 0, ..., b - 1. So n - n // 2 is at least 1 and n - min(n, 3) at least
    0, which intervals alone do not tell.
    """
    low, high = _interval(x.terms, lambda a: (a.low, a.high))
    if any(len(m) > 1 for m, _ in x.terms):
        a, b = _interval(_from_low(x.terms), lambda a: (0, a.high - a.low))
        low, high = max(low, a), min(high, b)
    atoms = {a: None for m, _ in x.terms for a in m}
    others = [a for a in atoms if a.kind != "dim"]
    if len(others) > REFINED:
        return low, high
    for each in others:
        of, by = each.args
        if each.kind == "floordiv":
            if not isinstance(by, int) or by < 0:
                continue
            a, b = bounds_of(_replaced(x, each, of - remainder(of, by), by))
            a, b = -(-a // by), b // by
        elif each.kind == "mod":
            if isinstance(by, int) or bounds_of(by)[0] < 0:
                continue
            ends = [bounds_of(_replaced(x, each, value)) for value in (0, by - 1)]
            a, b = min(e[0] for e in ends), max(e[1] for e in ends)
        else:
            ends = [bounds_of(_replaced(x, each, value)) for value in each.args]
            grows = _grows(x, each) * (1 if each.kind == "max" else -1)
            a = (max if grows > 0 else min)(e[0] for e in ends)
            b = (min if grows < 0 else max)(e[1] for e in ends)
        low, high = max(low, a), min(high, b)
    return low, high


Terms = Iterable[tuple[Monomial, int]]


def _interval(terms: Terms, span: Callable[[Atom], tuple[int, int]]) -> tuple[int, int]:
    """Bounds of a polynomial, each term on its own."""
    low = high = 0
    for m, c in terms:
        a = b = c
        for first, last in map(span, m):
            ends = (a * first, a * last, b * first, b * last)
            a, b = min(ends), max(ends)
        low, high = low + a, high + b
    return low, high


def _from_low(terms: Terms) -> Terms:
    """The polynomial with atoms counted from their lower bounds: m*n - n, if m is at least 1, has
    coefficients of one sign then."""
    found: dict[Monomial, int] = {}
    for m, c in terms:
        parts: dict[Monomial, int] = {(): c}
        for a in m:
            grown = {tuple(sorted((*p, a), key=_atom_order)): k for p, k in parts.items()}
            for p, k in parts.items():
                grown[p] = grown.get(p, 0) + k * a.low
            parts = grown
        for p, k in parts.items():
            found[p] = found.get(p, 0) + k
    return found.items()


def _grows(x: DimExpr, of: Atom) -> int:
    """1 if x grows with an atom, -1 if it falls, 0 if that is not known."""
    signs = set()
    for m, c in x.terms:
        if of in m:
            known = m.count(of) == 1 and all(a.low >= 0 for a in m if a is not of)
            signs.add((1 if c > 0 else -1) if known else 0)
    return signs.pop() if len(signs) == 1 else 0


def _replaced(x: DimExpr, old: Atom, new: Size, scale: int = 1) -> Size:
    """`scale` times x, where `old` is `new / scale`. x is linear in it, else its bounds are used."""
    made: Size = 0
    for m, c in x.terms:
        count = m.count(old)
        if not count:
            made = made + _make({m: c * scale})
        else:
            rest = list(m)
            rest.remove(old)
            made = made + _make({tuple(rest): c}) * new
    return made


# --- questions ----------------------------------------------------------------------------------


def is_size(x: Any) -> bool:
    """Whether x is an int or a symbolic size."""
    return isinstance(x, (int, DimExpr, np.integer))


def as_size(x: Any, name: str = "a size") -> Size:
    """A size that a user gives as argument `name`. Raises: TypeError for what is no integer."""
    return x if isinstance(x, DimExpr) else as_int(x, name)


def as_int(x: Any, name: str) -> int:
    """The integer that a user gives as argument `name`. Raises: TypeError for other things."""
    try:
        return int(operator.index(x))
    except TypeError as error:
        if type(error) is not TypeError:  # a tracer's error says more
            raise
        raise TypeError(f"{name} must be an integer, got {describe_value(x)}.") from None


def as_sizes(xs: Any, name: str) -> tuple[Size, ...]:
    """The sizes that a user gives as argument `name`. Raises: TypeError for other things."""
    if isinstance(xs, (str, bytes, dict)) or not hasattr(xs, "__iter__"):
        raise TypeError(f"{name} must be a sequence of integers, got {describe_value(xs)}.")
    return tuple(as_size(x, f"each element of {name}") for x in xs)


def is_symbolic(x: Any) -> bool:
    """Whether a size is symbolic."""
    return isinstance(x, DimExpr)


def bounds_of(x: Size) -> tuple[int, int]:
    """Inclusive bounds of a size."""
    return x.bounds if isinstance(x, DimExpr) else (int(x), int(x))


def largest(x: Size) -> int:
    """Upper bound of a size: what memory is planned for."""
    return bounds_of(x)[1]


def evaluate(x: Size, sizes: Mapping[Atom, Size]) -> Size:
    """The value of a size where dimensions have these: an int, or a size if one of them is symbolic."""
    if not isinstance(x, DimExpr):
        return int(x)
    return sum(c * math.prod(a.value(sizes) for a in m) for m, c in x.terms)


def dims_of(sizes: Iterable[Size]) -> list[Atom]:
    """The dimensions that sizes mention, in order of first mention."""
    found: dict[Atom, None] = {}
    stack = list(sizes)[::-1]
    while stack:
        x = stack.pop()
        if isinstance(x, DimExpr):
            for m, _ in x.terms:
                for a in m:
                    if a.kind == "dim":
                        found[a] = None
                    else:
                        stack.extend(a.args)
    return list(found)


def linear(size: Size, atom: Atom) -> tuple[int, Size]:
    """(slope, rest) of a size that is slope * atom + rest; a slope of 0 if that is not its form."""
    if not is_symbolic(size):
        return 0, size
    slope = next((c for monomial, c in size.terms if monomial == (atom,)), 0)
    rest = size - slope * DimExpr.of_atom(atom)
    return (0 if atom in dims_of([rest]) else slope), rest


def describe(*sizes: Any) -> str:
    """`with 1 <= n <= 4096` for the dimensions of sizes."""
    parts = []
    for a in dims_of(sizes):
        unit = a.multiple
        multiple = f", a multiple of {unit}" if unit != 1 else ""
        parts.append(f"{a.low * unit} <= {a.name} <= {a.high * unit}{multiple}")
    return "with " + " and ".join(parts) if parts else ""


def inconclusive(what: str, *operands: Any) -> InconclusiveDimensionOperation:
    """The error of a comparison that the bounds do not decide."""
    return _error(
        f"Symbolic dimension comparison '{what}' is inconclusive: it holds for some sizes and not "
        f"for others, {describe(*operands)}.",
        "Give the dimension narrower bounds, use the same Dim for axes that are equal, or compare as "
        "arrays (jnp.asarray(n) < 5).",
    )


def _error(what: str, fix: str) -> InconclusiveDimensionOperation:
    """With the user's line if it is there that a size was used; else the boundary adds it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    ours = frame is None or HIDDEN[frame.f_code.co_filename]
    lines = [what, "" if ours else user_line(call_site()), f"  {fix}"]
    return InconclusiveDimensionOperation("\n".join(filter(None, lines)))


def _at_least(x: Size, y: Size, margin: int, sign: str) -> bool:
    """x >= y + margin, asked by a comparison of this sign."""
    low, high = bounds_of(x - y)
    if low >= margin:
        return True
    if high < margin:
        return False
    raise inconclusive(f"{x} {sign} {y}", x, y)


# --- division, extremes -------------------------------------------------------------------------


def divide(x: Size, y: Size) -> Size:
    """x // y, rounded down. Raises: ZeroDivisionError if y may be 0."""
    low, high = bounds_of(y)
    if low <= 0 <= high:
        raise ZeroDivisionError(f"division of {x} by {y}, which may be 0")
    if not isinstance(x, DimExpr) and not isinstance(y, DimExpr):
        return int(x) // int(y)
    exact, rest = _exact(x, y)
    if isinstance(rest, int) and isinstance(y, int):
        return exact + rest // y
    if isinstance(rest, int) and rest == 0:
        return exact
    if isinstance(y, int) and y > 0 and rest.terms[0][1] < 0:
        return exact - divide(y - 1 - rest, y)  # -n // 2 is -((n + 1) // 2): one form of both
    ends = [a // b for a in bounds_of(rest) for b in (low, high)]
    if min(ends) == max(ends):
        return exact + min(ends)
    name = f"floordiv({rest}, {y})"
    return exact + _of(atom("floordiv", name, (rest, y), min(ends), max(ends)))


def remainder(x: Size, y: Size) -> Size:
    """x % y, with the sign of y."""
    low, high = bounds_of(y)
    if low <= 0 <= high:
        raise ZeroDivisionError(f"remainder of {x} by {y}, which may be 0")
    if not isinstance(x, DimExpr) and not isinstance(y, DimExpr):
        return int(x) % int(y)
    _, rest = _exact(x, y)
    if isinstance(rest, int) and isinstance(y, int):
        return rest % y
    first, last = bounds_of(rest)
    if first >= 0 and last < low:
        return rest
    ends = (0, high - 1) if low > 0 else (low + 1, 0)
    return _of(atom("mod", f"mod({rest}, {y})", (rest, y), *ends))


def _exact(x: Size, y: Size) -> tuple[Size, Size]:
    """(q, r) with x = q*y + r: what the leading term of y divides of the terms of x."""
    lead, factor = next(iter(_terms(y)))
    quotient: Size = 0
    rest = x
    done: set[Monomial] = set()
    while True:
        for m, c in _terms(rest):
            whole = c // factor if not m else abs(c) // abs(factor) * (1 if c * factor > 0 else -1)
            if whole and m not in done and all(m.count(a) >= lead.count(a) for a in lead):
                break
        else:
            return quotient, rest
        done.add(m)
        left = list(m)
        for a in lead:
            left.remove(a)
        part = _make({tuple(left): whole})
        quotient, rest = quotient + part, rest - part * y


def _of(a: Atom) -> DimExpr:
    return _make_terms((((a,), 1),))


def maximum(x: Size, y: Size) -> Size:
    """max(x, y)"""
    return _extreme("max", x, y)


def minimum(x: Size, y: Size) -> Size:
    """min(x, y)"""
    return _extreme("min", x, y)


def max_dim(d1: Any, d2: Any) -> Size:
    """The larger of two sizes that a user gives: `Dim`s, expressions of such, or ints.

    Raises: TypeError for what is no integer.
    """
    return maximum(as_size(d1, "d1"), as_size(d2, "d2"))


def min_dim(d1: Any, d2: Any) -> Size:
    """The smaller of two sizes, as `max_dim`."""
    return minimum(as_size(d1, "d1"), as_size(d2, "d2"))


def _extreme(kind: str, x: Size, y: Size) -> Size:
    of = max if kind == "max" else min
    if not isinstance(x, DimExpr) and not isinstance(y, DimExpr):
        return of(x, y)
    low, high = bounds_of(x - y)
    if low >= 0 or high <= 0:
        return x if (low >= 0) == (kind == "max") else y
    (a, b), (c, d) = bounds_of(x), bounds_of(y)
    return _of(atom(kind, f"{kind}({x}, {y})", (x, y), of(a, c), of(b, d)))


OPERATIONS: dict[str, Callable[[Size, Size], Size]] = {
    "floordiv": divide,
    "mod": remainder,
    "max": maximum,
    "min": minimum,
}
"""What atoms do that are no dimensions."""


# --- arrays: installed by the engine ------------------------------------------------------------


def _no_arrays(x: DimExpr) -> Any:
    raise TypeError(f"{x} cannot be an array here")


_convert: Callable[[DimExpr], Any] = _no_arrays
_arithmetic: Callable[[str, Any, Any], Any] | None = None


def install(convert: Callable[[DimExpr], Any], arithmetic: Callable[[str, Any, Any], Any]) -> None:
    """How a symbolic size becomes an array, and its arithmetic with what is no size."""
    global _convert, _arithmetic
    _convert, _arithmetic = convert, arithmetic


def _real(name: str, x: Any, y: Any) -> Any:
    """An operation whose result is no size: on numbers, also NumPy's, and its arrays."""
    numbers = (int, float, complex, DimExpr, np.generic, np.ndarray)
    if _arithmetic is None or not all(isinstance(v, numbers) for v in (x, y)):
        return NotImplemented
    return _arithmetic(name, x, y)
