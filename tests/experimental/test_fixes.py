"""What to do about a mistake: the last line of the message, after the user's line.

One row per message: the call, the exception, words of what happened, and the fix.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinyjax.numpy as jnp
from tests.messages import Mistake, tells
from tinyjax.experimental.jet import jet
from tinyjax.experimental.ode import odeint

X = np.ones(3, np.float32)
T = np.linspace(0, 1, 3, dtype=np.float32)

CASES: dict[str, Mistake] = {
    "jet without a series": (
        lambda: jet(jnp.sin, (1.0,), ()),
        ValueError,
        "got 1 primals and 0 series",
        "Give both as tuples of equal length: jet(f, (x,), ((x1, x2),)).",
    ),
    "jet of two orders": (
        lambda: jet(jnp.add, (1.0, 1.0), ((1.0,), (1.0, 2.0))),
        ValueError,
        "jet terms have inconsistent lengths for different arguments: [1, 2]",
        "Fill the shorter with zeros, jnp.zeros_like(x).",
    ),
    "jet of a tree": (
        lambda: jet(lambda d: d["a"], ({"a": 1.0},), ((1.0,),)),
        ValueError,
        "primal value at position 0 is not an array, got {'a': 1.0}",
        "Give each array of a tree as an argument of its own, and a list as jnp.asarray(it).",
    ),
    "term that is a tree": (
        lambda: jet(jnp.sin, (1.0,), (([1.0],),)),
        ValueError,
        "term 0 for argument 0 is not an array, got [1.0]",
        "Give each array of a tree as an argument of its own, and a list as jnp.asarray(it).",
    ),
    "term of another shape": (
        lambda: jet(lambda y: y, (X,), ((X[:2],),)),
        ValueError,
        "a term for y has shape (2,), the argument has (3,)",
        "Give a term of that shape, as jnp.zeros_like(y) is.",
    ),
    "text for an argument of odeint": (
        lambda: odeint(lambda y, t, k: y, X, T, "k"),
        TypeError,
        "must be arrays or scalars, but got 'k'",
        "Close over it, or fix it with functools.partial.",
    ),
    "times that are whole": (
        lambda: odeint(lambda y, t: y, X, np.arange(3)),
        TypeError,
        "t must be an array of floats",
        "Convert it: jnp.asarray(t, float).",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_comes_with_what_to_do(name: str) -> None:
    tells(CASES[name], __file__)
