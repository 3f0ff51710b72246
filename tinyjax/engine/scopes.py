"""Small tools around tracing: names, constants at trace time, forgetting caches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tinyjax.core.errors import require_callable
from tinyjax.core.source import named_scope
from tinyjax.engine.tracing import name_of, traces
from tinyjax.engine.values import shaped_abstractify
from tinyjax.interpreters.trace import no_traces


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """`fun` with its operations recorded under a name."""
    require_callable(fun)
    label = name or name_of(fun)

    @functools.wraps(fun, updated=())
    def named(*args: Any, **kwargs: Any) -> Any:
        with named_scope(label):
            return fun(*args, **kwargs)

    return named


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Run operations on known values at once, also while a function is being staged, here or inside.

    For constants that a traced function needs in Python; a value that depends on traced arguments
    stays traced.
    """
    with no_traces(folding=True):
        yield


def clear_caches() -> None:
    """Forget all traces (and with them the programs made of them)."""
    traces.clear()


def typeof(x: Any) -> Any:
    """The abstract value of an array or number: shape, dtype, weak type."""
    return shaped_abstractify(x)
