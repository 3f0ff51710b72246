"""Why a jitted function was traced again: what differs from the signatures seen before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinyjax.core.avals import Aval
from tinyjax.core.config import config
from tinyjax.core.treedef import PyTreeDef
from tinyjax.interpreters.trace import state


def log(text: str, *args: object) -> None:
    """A warning in the log "tinyjax"."""
    import logging  # a fiftieth of the time it takes to import this package, for people who look

    logging.getLogger("tinyjax").warning(text, *args)


class Signature:
    """What one trace was made for, options and named axes of the time included."""

    __slots__ = ("avals", "axes", "options", "paths", "statics", "tree")

    def __init__(
        self, tree: PyTreeDef, avals: Sequence[Aval], statics: Any, paths: Sequence[str]
    ) -> None:
        self.tree, self.avals, self.statics, self.paths = tree, tuple(avals), statics, list(paths)
        self.options = config.trace_options()
        self.axes = {name: size for name, (size, _) in state.axes.items()}

    def describe(self) -> str:
        """`x: f32[3], y: f32[] (weak)`"""
        pairs = zip(self.paths, self.avals, strict=True)
        return ", ".join(f"{path}: {describe(a)}" for path, a in pairs)

    def difference(self, other: Signature) -> list[str]:
        """What changed from `other` to this, a line each; empty if nothing did."""
        if self.tree != other.tree:
            return [f"the tree of the arguments: {other.tree} -> {self.tree}"]
        lines = []
        for path, old, new in zip(self.paths, other.avals, self.avals, strict=True):
            if old is not new:
                lines.append(f"{path}: {describe(old)} -> {describe(new)}")
        return [
            *lines,
            *changes("static", dict(other.statics), dict(self.statics)),
            *changes("option", other.options, self.options),
            *changes("size of axis", other.axes, self.axes),
        ]


def changes(what: str, before: dict[Any, Any], now: dict[Any, Any]) -> list[str]:
    """A line for each value that is another one now; None where there is none."""
    names = dict.fromkeys((*before, *now))
    return [
        f"{what} {name}: {before.get(name)!r} -> {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def describe(a: Aval) -> str:
    """`f32[3] (weak)`"""
    return a.str_short() + (" (weak)" if a.weak_type else "")


class History:
    """The traces of one jitted function: how many, and why the last one was needed."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun
        self.hits = 0
        self.signatures: list[Signature] = []
        self.reasons: list[list[str]] = []

    @property
    def misses(self) -> int:
        """How often the function was traced."""
        return len(self.signatures)

    def miss(
        self,
        tree: PyTreeDef,
        avals: Sequence[Aval],
        statics: Any,
        paths: Callable[[], Sequence[str]],
        limit: int | None,
    ) -> None:
        """Note a trace; raise if there may be no more."""
        new = Signature(tree, avals, statics, paths())
        if not self.signatures:
            reason = ["the first call"]
        else:
            nearest = min(self.signatures, key=lambda s: len(new.difference(s)))
            reason = new.difference(nearest) or ["values of an outer trace, or a cleared cache"]
        if limit is not None and self.misses >= limit:
            name = getattr(self.fun, "__name__", repr(self.fun))
            lines = "\n".join(f"    {line}" for line in reason)
            raise RuntimeError(
                f"{name} may be traced {limit} times (max_traces) and would be traced "
                f"again:\n{lines}\n"
                "  Keep shapes and dtypes fixed (pad), or make Python values arrays."
            )
        self.report(new, reason)
        self.signatures.append(new)
        self.reasons.append(reason)

    def report(self, new: Signature, reason: Sequence[str]) -> None:
        """What the configuration wants of a trace: an error, a line in the log, its reason."""
        name = getattr(self.fun, "__name__", repr(self.fun))
        if config.jax_no_tracing:
            raise RuntimeError(
                f"re-tracing function {name} for `jit`, but 'no_tracing' is set. It is needed because "
                f"of {'; '.join(reason)}.\n"
                "  Call it with such arguments before tracing is forbidden."
            )
        if config.jax_log_compiles:
            log("Tracing and compiling %s for (%s)", name, new.describe())
        if config.jax_explain_cache_misses:
            log("TRACING CACHE MISS for %s because of %s", name, "; ".join(reason))

    def __str__(self) -> str:
        name = getattr(self.fun, "__name__", repr(self.fun))
        lines = [f"{name}: {self.misses} traces, {self.hits} general-path hits"]
        for i, (signature, reason) in enumerate(zip(self.signatures, self.reasons, strict=True)):
            lines.append(f"  trace {i + 1}: ({signature.describe()})")
            lines += [f"    because of {line}" for line in reason]
        return "\n".join(lines)

    __repr__ = __str__


def explain(f: Any) -> History:
    """What a jitted function was traced for and why: print the result.

    Example: `print(explain(step))`.
    """
    history = getattr(f, "history", None)
    if not isinstance(history, History):
        raise TypeError(
            f"explain needs a jitted function; got {f!r}.\n  Keep what jit returns and call and explain "
            "that: step = jax.jit(f)."
        )
    return history
