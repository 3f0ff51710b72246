"""`function`: a Python function as one CALL, differentiated as one forward and one backward call.

With `precompile=True` the body is compiled as a program of its own, once per signature, and shared
by all call sites; `precompile_backward=True` does the same for the backward call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tinyjax.core.infos import CallInfo
from tinyjax.core.source import api_boundary
from tinyjax.core.tree import all_leaves
from tinyjax.engine.custom_rules import custom_vjp
from tinyjax.engine.jit import Jitted, Names, Numbers, checked_options
from tinyjax.engine.tracing import Traced, name_of


class MethodOfClass:
    """A function that, as a method, may be called through its class, as in `Base.method(self, x)`, for a
    `self` that is no pytree and so no argument."""

    owner: type | None = None  # the class of which it is a method

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.owner is not None and args and isinstance(args[0], self.owner):
            if all_leaves([args[0]]):
                return self.__get__(args[0])(*args[1:], **kwargs)  # type: ignore[attr-defined]
        return super().__call__(*args, **kwargs)  # type: ignore[misc]


class Function(MethodOfClass, Jitted):
    """A function that stays one call in the graph."""

    def __init__(
        self, fun: Callable[..., Any], info: CallInfo, allow_implicit: bool, **options: Any
    ) -> None:
        super().__init__(fun, info=info, kind="function", **options)
        self.allow_implicit = allow_implicit

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: arrays of `self` are implicit inputs, or `self` is an argument if a pytree.

        What an object holds may change between calls, so its traces are not kept; equal ones are
        the same body, so nothing is compiled again.
        """
        if instance is None:
            return self
        if not all_leaves([instance]):
            return functools.partial(self, instance)
        bound = functools.partial(self.fun, instance)
        of_self = next(iter(inspect.signature(self.fun).parameters), None)
        shapes = self.dynamic_shapes
        made = Function(
            bound,
            self.info,
            self.allow_implicit,
            static_argnums=[i - (i > 0) for i in self.static_argnums if i] or None,
            static_argnames=[x for x in self.static_argnames if x != of_self] or None,
            dynamic_shapes=shapes[1:] if isinstance(shapes, (tuple, list)) else shapes,
        )
        made.keep_traces = False
        return functools.update_wrapper(made, self.fun, updated=())

    def _stage(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Traced, Any, Any]:
        traced, nodes, donated = super()._stage(args, kwargs)
        if traced.captured and not self.allow_implicit:
            listed = ", ".join(c.aval.str_short() for c in traced.captured)
            raise ValueError(
                f"function {name_of(self.fun)} with allow_implicit=False captures "
                f"{len(traced.captured)} arrays from outside: {listed}.\n"
                "  Pass them as arguments, or allow implicit inputs."
            )
        return traced, nodes, donated


class Ruled(MethodOfClass, custom_vjp):
    """A function with `grad_fxn`."""

    def __init__(self, made: Function, grad_fxn: Callable[..., Any]) -> None:
        super().__init__(made)
        self.made, self.grad_fxn = made, grad_fxn
        self.defvjp(lambda *args: (made(*args), args), lambda args, ct: grad_fxn(ct, *args))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: `grad_fxn(ct, self, *args)`; its entry for a `self` that is no pytree is None."""
        if instance is None or not all_leaves([instance]):
            return super().__get__(instance, owner)
        bound = self.made.__get__(instance, owner)
        bound.__signature__ = inspect.signature(self.made.fun.__get__(instance))

        def of_arguments(ct: Any, *args: Any) -> Any:
            found = self.grad_fxn(ct, instance, *args)
            if not isinstance(found, (tuple, list)) or not found or found[0] is not None:
                raise TypeError(
                    f"grad_fxn of method {name_of(self.made.fun)} must return a tuple with None for "
                    f"self, which is no array or pytree, and a cotangent per argument; got {found!r}."
                )
            return tuple(found[1:])

        return Ruled(bound, of_arguments)


@api_boundary
def function(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    precompile: bool = False,
    precompile_backward: bool = False,
    allow_implicit: bool = True,
    grad_fxn: Callable[..., Any] | None = None,
    name: str | None = None,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    dynamic_shapes: Any = None,
) -> Any:
    """Make `fun` one call: printed, cached, differentiated and (if asked) compiled as a unit.

    Works with and without arguments, on functions and methods, with pytrees in and out; arrays that
    `fun` closes over become inputs of the call (`allow_implicit=False` forbids them).
    `grad_fxn(cotangent, *args)` replaces the derivative rule: it gets the cotangent of the output
    (a tree like it) and the arguments, and returns a tuple with a cotangent, or None, per argument
    (of a method: `self` is the first).
    `dynamic_shapes` as in `jit`: one trace and one program for arguments of a range of sizes.
    Raises: TypeError for a value that an option does not take.
    Example: `@function(precompile=True)`.
    """
    given = {
        "precompile": precompile,
        "precompile_backward": precompile_backward,
        "allow_implicit": allow_implicit,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "dynamic_shapes": dynamic_shapes,
    }
    options = checked_options("function", given)
    if grad_fxn is not None and not callable(grad_fxn):
        raise TypeError(
            f"grad_fxn of function must be a function of (cotangent, *args), got {grad_fxn!r}."
        )
    if fun is None:
        return functools.partial(function, grad_fxn=grad_fxn, name=name, **options)
    flags = {k: options.pop(k) for k in ("precompile", "precompile_backward")}
    made = Function(fun, CallInfo("function", name or name_of(fun), **flags), **options)
    return made if grad_fxn is None else Ruled(made, grad_fxn)
