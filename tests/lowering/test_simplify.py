"""Stage-1 rewrites: what each makes, and that no bit of a result changes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.bodies import arg
from tests.lowering.kernels import same_bits
from tinyjax.core import build as B
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, const, toposort, tuple_of
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering.simplify import is_exact, rules, simplify

F32, I32, BOOL, C64 = map(np.dtype, (np.float32, np.int32, np.bool_, np.complex64))
X, I, Z = arg(0, (3, 4)), arg(0, (3, 4), I32), arg(0, (3, 4), C64)
B_ = arg(0, (3, 4), BOOL)
VALUES = np.array([0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -7, 0.1, 2], F32)


def op(kind: Op, *src: Any, info: Any = None) -> UOp:
    of = next(s.aval.dtype for s in src if isinstance(s, UOp))
    return UOp(kind, tuple(s if isinstance(s, UOp) else const(s, of) for s in src), info)


def cast(x: UOp, dtype: Any) -> UOp:
    return UOp(Op.CAST, (x,), (np.dtype(dtype), False))


REWRITES: dict[str, tuple[UOp, UOp]] = {
    "negation twice": (op(Op.NEG, op(Op.NEG, X)), X),
    "not twice": (op(Op.NOT, op(Op.NOT, B_)), B_),
    "times one": (op(Op.MUL, X, 1.0), X),
    "one times": (op(Op.MUL, 1, I), I),
    "over one": (op(Op.DIV, X, 1.0), X),
    "minus zero": (op(Op.SUB, X, 0.0), X),
    "plus minus zero": (op(Op.ADD, -0.0, X), X),
    "integer plus zero": (op(Op.ADD, I, 0), I),
    "halved": (op(Op.DIV, X, 2.0), op(Op.MUL, X, 0.5)),
    "over a small power": (op(Op.DIV, X, -(2.0**-20)), op(Op.MUL, X, -(2.0**20))),
    "maximum with itself": (op(Op.MAX, X, X), X),
    "a choice between equals": (op(Op.WHERE, arg(1, (3, 4), BOOL), X, X), X),
    "real part": (op(Op.REAL, op(Op.COMPLEX, X, op(Op.NEG, X))), X),
    "imaginary part": (op(Op.IMAG, op(Op.COMPLEX, X, op(Op.NEG, X))), op(Op.NEG, X)),
    "to a wider float and back": (cast(cast(X, np.float64), F32), X),
    "to a wider integer and back": (cast(cast(I, np.int64), I32), I),
    "from a bool and back": (cast(cast(B_, F32), BOOL), B_),
    "three reshapes": (
        op(Op.RESHAPE, op(Op.RESHAPE, op(Op.RESHAPE, X, info=(12,)), info=(2, 6)), info=(3, 4)), X,
    ),
    "transposed twice": (op(Op.PERMUTE, op(Op.PERMUTE, X, info=(1, 0)), info=(1, 0)), X),
    "expanded twice": (
        op(Op.EXPAND, op(Op.EXPAND, X, info=((3, 1, 4), (0, 2))), info=((2, 3, 5, 4), (1, 2, 3))),
        op(Op.EXPAND, X, info=((2, 3, 5, 4), (1, 3))),
    ),
    "inside": (op(Op.EXP, op(Op.NEG, op(Op.NEG, op(Op.MUL, X, 1.0)))), op(Op.EXP, X)),
}  # fmt: skip
KEPT: dict[str, UOp] = {
    "plus zero": op(Op.ADD, X, 0.0),
    "minus minus zero": op(Op.SUB, X, -0.0),
    "zero minus": op(Op.SUB, 0.0, X),
    "over three": op(Op.DIV, X, 3.0),
    "over a power without inverse": op(Op.DIV, X, 2.0**-127 * 2.0**-20),
    "over zero": op(Op.DIV, X, 0.0),
    "integers halved": op(Op.DIV, I, 2),
    "complex times one": op(Op.MUL, Z, 1.0),
    "to a narrower float and back": cast(cast(X, np.float16), F32),
    "to an integer and back": cast(cast(X, I32), F32),
    "integers through floats": cast(cast(I, F32), I32),
    "a scalar times ones": op(Op.MUL, arg(0, ()), B.full((2,), const(1.0, F32))),
}


def array_of(x: UOp) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return VALUES.reshape(3, 4).astype(x.aval.dtype) if x.aval.shape else VALUES[2]


def same_results(before: UOp, after: UOp) -> None:
    inputs = sorted({n for n in toposort([before]) if n.op is Op.PARAM}, key=lambda n: n.arg[0])
    args = [array_of(n) for n in inputs]
    with np.errstate(all="ignore"):
        wanted, found = (np.asarray(evaluate_body(tuple_of([b]), args)[0]) for b in (before, after))
    same_bits(found, wanted)


@pytest.mark.parametrize("name", REWRITES)
def test_it_becomes(name: str) -> None:
    before, wanted = REWRITES[name]
    assert simplify(tuple_of([before])).src == (wanted,)
    same_results(before, wanted)


@pytest.mark.parametrize("name", KEPT)
def test_it_stays(name: str) -> None:
    body = tuple_of([KEPT[name]])
    assert simplify(body) is body


def test_every_rule_is_used_here() -> None:
    from tinyjax import record_rewrites

    with record_rewrites() as log:
        simplify(tuple_of([before for before, _ in REWRITES.values()]))
    assert {rule for _, rule, _, _ in log} == {r.name for r in rules.rules}


def test_exact_conversions_hold_every_value_of_small_types() -> None:
    kinds = [np.dtype(k) for k in ("bool", "i1", "u1", "i2", "u2", "f2", "f4", "f8")]
    kinds.append(np.dtype(ml_dtypes.bfloat16))
    for a in kinds:
        if a.itemsize > 2:
            continue
        codes = np.arange(2 if a == BOOL else 1 << 8 * a.itemsize)
        values = codes.astype(f"u{a.itemsize}").view(a) if a != BOOL else codes.astype(a)
        for b in kinds:
            with np.errstate(all="ignore"):
                back, wide = values.astype(b).astype(a), values.astype(np.float64)
                if is_exact(a, b):
                    np.testing.assert_array_equal(back.astype(np.float64), wide)
