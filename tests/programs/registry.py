"""What a program is, and the table of all of them.

A `Program` builds, from a JAX-like module, a function `f(x, extra) -> tree`: `x` is a tree of
float64 arrays to differentiate, `extra` a tree of integers (possibly empty) that are arguments all
the same, and the results are float64, integer or boolean arrays. Arguments and results are small,
values and the derivatives of every program are finite, and the first ones are not all zero.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

Tree = Any
Function = Callable[[Tree, Tree], Tree]


@dataclass(frozen=True)
class Program:
    """`make(jax)` gives the function; `x()` and `extra()` make its arguments, always the same."""

    name: str
    make: Callable[[ModuleType], Function]
    x: Callable[[np.random.Generator], Tree]
    extra: Callable[[np.random.Generator], Tree]
    grad: str = "always"  # where JAX allows it: always, or never (a while loop)
    jvp: str = "always"  # or "after grad" (a custom vjp rule), or never (one whose fwd uses it)

    def arguments(self) -> tuple[Tree, Tree]:
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return self.x(rng), self.extra(rng)


PROGRAMS: dict[str, Program] = {}


def program(x, extra=lambda rng: (), **limits):
    """Register the decorated `make(jax) -> f` under its name."""

    def register(make):
        assert make.__name__ not in PROGRAMS
        PROGRAMS[make.__name__] = Program(make.__name__, make, x, extra, **limits)
        return make

    return register


def normals(*shape: int):
    return lambda rng: rng.standard_normal(shape)


def tree_of(**makers):
    return lambda rng: {name: make(rng) for name, make in makers.items()}


def submodule(jax: ModuleType, name: str) -> ModuleType:
    """One that users import by itself."""
    return importlib.import_module(f"{jax.__name__}.{name}")
