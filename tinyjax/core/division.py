"""Floor division and modulo of sums by a constant d > 0.

    multiples of d leave the sum         (d*X + R) // d = X + R//d           R between one or two d
    common factors are divided out       (g*X + B) // (g*d) = X//d           if 0 <= B < g
    nested quotients are one             (X + L//g) // d = (g*X + L) // (g*d)
    nested remainders are one            (L % (d*e)) % d = L % d,  (L % (d*e)) // d = (L//d) % e

and what must stay is a quotient or remainder atom. **Progress**: each rule lowers the number of
quotients and remainders, or that number stays and the dividends get smaller.

Reference: Granlund and Montgomery 1994 for floor division; the rules are proved in the tests by
enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tinyjax.core.facts import ZERO, Form, Terms, int_value, integer
from tinyjax.core.intervals import INT64_SPAN, within
from tinyjax.core.ops import Op
from tinyjax.core.sums import Sums
from tinyjax.core.uop import UOp

RESIDUES: tuple[Callable[[int, int], int], ...] = (
    lambda c, d: c // d if c >= 0 else -(-c // d),
    lambda c, d: c // d,
    lambda c, d: (2 * c + d) // (2 * d),
)
"""How many times d is taken out of a coefficient: towards zero, down, to the nearest. The first is
what stays when none makes the rest smaller than d."""


class Division(Sums):
    """Sums with quotients and remainders."""

    def divide(self, form: Form, d: int) -> tuple[Form, Form]:
        """(form // d, form % d), rounding down, d > 0."""
        if d > 1 and all(n.op is not Op.MOD for n, _ in form[1]) and self.exact(form):
            whole, rest = self._split(form, d)
            low, high = self.limits(rest)
            if 0 <= low and high < d:  # as for a row-major position taken apart again
                return whole, rest
        return self.quotient(form, d), self.remainder(form, d)

    def _split(self, form: Form, d: int) -> tuple[Form, Form]:
        """(W, R) with form = d*W + R, R as small as one look at each coefficient makes it.

        Where R lies in [0, d), it is the remainder and W the quotient.
        """
        best: tuple[Form, Form] | None = None
        for choose in RESIDUES:
            over: list[tuple[UOp, int]] = []
            rest: list[tuple[UOp, int]] = []
            for n, c in form[1]:
                q = choose(c, d)
                if q:
                    over.append((n, q))
                if c != q * d:
                    rest.append((n, c - q * d))
            left: Form = (form[0], tuple(rest))
            low, high = self.limits(left)
            k = low // d
            found: tuple[Form, Form] = (k, tuple(over)), (form[0] - k * d, tuple(rest))
            if high - k * d < d:
                return found
            if best is None:
                best = found
        assert best is not None
        return best

    def _common_factor(self, form: Form, d: int) -> tuple[Form, Form, int] | None:
        """(X, B, g) with form = g*X + B, 0 <= B < g and g > 1 dividing d; the largest such g."""
        terms = sorted(form[1], key=lambda t: -abs(t[1]))
        g = d
        for count, (_, c) in enumerate(terms, 1):
            g = math.gcd(g, c)
            if g == 1:
                return None
            if count < len(terms) and terms[count][1] % g == 0:
                continue
            large = {n for n, _ in terms[:count]}
            small: Form = (form[0], tuple(t for t in form[1] if t[0] not in large))
            low, high = self.limits(small)
            k = low // g
            if high - k * g < g:
                over = tuple((n, c // g) for n, c in form[1] if n in large)
                return (k, over), (small[0] - k * g, small[1]), g
        return None

    def quotient(self, form: Form, d: int) -> Form:
        """form // d, rounding down, d > 0."""
        if d == 1:
            return form
        if not form[1]:
            return form[0] // d, ()
        if not self.exact(form):
            return self._quotient_atom(form, d)
        whole, rest = self._split(form, d)
        if not self.exact(rest):
            return self._quotient_atom(form, d)
        low, high = self.limits(rest)
        if 0 <= low and high < d:
            return whole
        return self.plus(whole, self._small_quotient(rest, d))

    def _small_quotient(self, form: Form, d: int) -> Form:
        """form // d where no coefficient reaches d."""
        factor = self._common_factor(form, d)
        if factor is not None:
            return self.quotient(factor[0], d // factor[2])
        inner = only(form[1], Op.IDIV, 1)
        if inner is not None:  # (X + L//g) // d
            value, g = self.linear(inner.src[0]), int_value(inner.src[1])
            joined = self._make(form[0] * g, {n: c * g for n, c in form[1] if n is not inner})
            joined = self.plus(joined, value)
            if self.exact(value) and self.exact(joined):
                return self.quotient(joined, d * g)
        if len(form[1]) == 1 and form[0] == 0 and form[1][0][1] == 1:
            atom = form[1][0][0]
            held = self.fact(atom).whole if atom.op is Op.MOD else None
            if held is not None and held[2] % d == 0 and self.exact(held[0]):  # (L % (d*e)) // d
                return self.remainder(self.quotient(held[0], d), held[2] // d)
        return self._quotient_atom(form, d)

    def _quotient_atom(self, form: Form, d: int) -> Form:
        low, high = self.limits(form)
        if not within((low, high), INT64_SPAN):
            low, high = INT64_SPAN
        if low // d == high // d:
            return low // d, ()
        atom = self._atom(Op.IDIV, (self.node(form), integer(d)), (low // d, high // d))
        return self._of_atom(atom)

    def remainder(self, form: Form, d: int) -> Form:
        """form % d, the sign of d, d > 0."""
        if d == 1:
            return ZERO
        if not form[1]:
            return form[0] % d, ()
        if not self.exact(form):
            return self._remainder_atom(form, d, self._quotient_atom(form, d))
        for n, c in form[1]:
            held = self.fact(n).whole if n.op is Op.MOD else None
            if held is not None and c * held[2] % d == 0:  # (X + c*(L%a)) % d, d divides c*a
                inner = self.plus(self.plus(form, (0, ((n, 1),)), -c), held[0], c)
                if self.exact(held[0]) and self.exact(inner):
                    return self.remainder(inner, d)
        whole, rest = self._split(form, d)
        if not self.exact(rest):
            return self._remainder_atom(form, d, self._quotient_atom(form, d))
        low, high = self.limits(rest)
        if 0 <= low and high < d:
            return rest
        factor = self._common_factor(rest, d)
        if factor is not None:
            large, small, g = factor
            return self.plus(self.scale(self.remainder(large, d // g), g), small)
        return self._remainder_atom(rest, d, self._small_quotient(rest, d))

    def _remainder_atom(self, form: Form, d: int, quotient: Form) -> Form:
        low, high = self.limits(form)
        if not within((low, high), INT64_SPAN):
            low, high = INT64_SPAN
        span = (0, d - 1) if low < 0 else (low, high) if high < d else (0, min(high, d - 1))
        atom = self._atom(Op.MOD, (self.node(form), integer(d)), span)
        fact = self.fact(atom)
        if fact.whole is None:
            fact.whole = form, quotient, d
        return self._of_atom(atom)


def only(terms: Terms, op: Op, coefficient: int) -> UOp | None:
    """The only atom of this kind, if its coefficient is as given and its divisor a literal."""
    found = [(n, c) for n, c in terms if n.op is op]
    if len(found) != 1 or found[0][1] != coefficient:
        return None
    return found[0][0] if found[0][0].src[1].op is Op.CONST else None
