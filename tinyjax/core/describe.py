"""Values in the words of messages: `f32[8,4]`, short reprs, a call with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def describe_value(x: Any) -> str:
    """`f32[8,4]` for arrays, short reprs for the rest."""
    aval = getattr(x, "aval", x)
    short = getattr(aval, "str_short", None)
    if short is not None:
        return str(short())
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]"
    text = " ".join(repr(x).split())
    return text if len(text) <= 60 else text[:59] + "…"


def short_dtype(dtype: Any) -> str:
    """f32, bf16, i8: `dtypes.short_name`, which is above this module."""
    name = str(getattr(dtype, "name", dtype))
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short)
    return name


def describe_tracer(tracer: Any) -> str:
    """`traced array with shape float32[3]`, in JAX's words."""
    shape, dtype = getattr(tracer, "shape", None), getattr(tracer, "dtype", None)
    if shape is None or dtype is None:
        return str(tracer)
    name = getattr(dtype, "name", dtype)
    return f"traced array with shape {name}[{','.join(map(str, shape))}]"


def describe_operand(name: str, text: str, value: Any) -> str:
    """`a = params['w1']  f32[8,4]`: a parameter, what the user wrote for it, and what that is.

    If it is an argument of a traced function, by another name, its path is told: `a = w (argument
    params['w1'])  f32[8,4]`.
    """
    path = argument_path(value)
    text = text if len(text) <= 60 else text[:59] + "…"
    if path and path not in (name, text):
        text = f"{text} (argument {path})" if text else f"argument {path}"
    shown = " = ".join([part for part in (name, text) if part]) if text != name else name
    return f"{shown}  {describe_value(value)}".lstrip()


def argument_path(value: Any) -> str:
    """`params['w1']` for what is an argument of a function that is being traced."""
    node = getattr(value, "node", value)
    path = getattr(getattr(node, "arg", None), "path", "")
    return path if isinstance(path, str) else ""


def parameter_names(fun: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the positional parameters, those before `*args`."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]


def describe_call(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """`glu(x = f32[4,4], axis = None)`"""
    names = parameter_names(fun)
    shown = [f"{name} = {_shown(x)}" for name, x in zip(names, args, strict=False)]
    shown += [_shown(x) for x in args[len(names) :]]
    shown += [f"{name} = {_shown(x)}" for name, x in kwargs.items()]
    return f"{fun.__name__}({', '.join(shown)})"


def _shown(x: Any) -> str:
    """Lists and tuples with their arrays in short."""
    if type(x) in (list, tuple) and 0 < len(x) <= 8:
        inside = ", ".join(_shown(v) for v in x)
        text = f"[{inside}]" if type(x) is list else f"({inside}{',' * (len(x) == 1)})"
        return text if len(text) <= 60 else text[:59] + "…"
    try:
        return describe_value(x)
    except Exception:  # a repr of the user's that fails; the message is about something else
        return f"<{type(x).__name__}>"
