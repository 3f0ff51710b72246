"""Exceptions, and the one form in which errors are written.

Classes of JAX's names have JAX's bases; ours subclass what JAX raises in the same place, so that
programs which catch JAX's errors keep working. A message says what happened, the operands as the
user wrote them, the rule, and the smallest fix, and names the user's line:

    DotShapeError: dot contracts axis 1 of a (size 4) with axis 0 of b (size 3); …must be equal.
      a = params['w1']  f32[8,4]      b = x  f32[3]
      at train.py:31 in layer:  h = params['w1'] @ x
      Perhaps x should be transposed, or w1 initialised with in_dim=3.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tinyjax.core.describe import describe_operand, describe_tracer
from tinyjax.core.describe import describe_value as describe_value
from tinyjax.core.source import Site, call_site, fits, operand_parts, user_frame
from tinyjax.core.source import user_line as user_line

E = TypeVar("E", bound=Exception)


def publish(*classes: type) -> None:
    """Name the module users import the classes from; tracebacks print it."""
    for cls in classes:
        cls.__module__ = "tinyjax.errors"


# --- JAX's classes ------------------------------------------------------------------------------


class JAXTypeError(TypeError):
    """Base of the TypeErrors below."""


class JAXIndexError(IndexError):
    """Base of the IndexErrors below."""


class TracerMessage(Exception):
    """Mixin: the message from the tracer that was asked for its value.

    A tracer says where it comes from through `_origin_msg()`: function, argument path, line.
    A string instead of a tracer is the whole message.
    """

    what: ClassVar[str] = "{tracer} was used where a value is needed."
    fix: ClassVar[str] = ""

    def __init__(self, tracer: Any, context: str = "") -> None:
        super().__init__(tracer if isinstance(tracer, str) else self.compose(tracer, context))

    @classmethod
    def compose(cls, tracer: Any, context: str) -> str:
        """What happened · the caller's remark · where the tracer comes from · the fix."""
        origin: Callable[[], str] | None = getattr(tracer, "_origin_msg", None)
        head = cls.what.format(tracer=describe_tracer(tracer))
        lines = [head, context, origin() if origin is not None else "", user_line(call_site())]
        lines.append(cls.fix)
        return "\n".join([line.strip("\n") for line in lines if line])


class ConcretizationTypeError(TracerMessage, JAXTypeError):
    """The value of a traced array was needed in Python: `float(x)`, a shape, a `range`."""

    what = "Abstract tracer value encountered where concrete value is expected: {tracer}"
    fix = (
        "  Under jit, vmap or scan a traced argument has a shape and a dtype but no value. Compute "
        "with array operations, or mark the argument static (static_argnames), or take this step "
        "outside."
    )


class TracerBoolConversionError(ConcretizationTypeError):
    """`bool(x)` of a traced array: `if`, `while`, `and`, `or`, `not`, `assert`."""

    what = "Attempted boolean conversion of {tracer}."
    fix = (
        "  Use jnp.where, lax.cond or lax.while_loop, and jnp.logical_and/or/not; or mark the "
        "argument static with static_argnames if it takes few values."
    )


class TracerIntegerConversionError(ConcretizationTypeError):
    """`x.__index__()` of a traced array: `range(x)`, `a_list[x]`, a shape.

    In JAX it is no ConcretizationTypeError; but what JAX raises for a number that a function needs
    (`linspace(0, 1, n)`, `x.sum(axis)`) is one, and here it is this.
    """

    what = "The __index__() method was called on {tracer}"
    fix = (
        "  To index a Python list or NumPy array, make it a jax array first: jnp.asarray(xs)[i]. "
        "Loop with lax.fori_loop. A shape must not depend on traced values: mark the argument "
        "static with static_argnames."
    )


class TracerArrayConversionError(ConcretizationTypeError):
    """`np.asarray(x)` of a traced array: a NumPy function was given one. As above."""

    what = "The numpy.ndarray conversion method __array__() was called on {tracer}"
    fix = "  Use the jax.numpy function of the same name, or jax.pure_callback for host code."


class NonConcreteBooleanIndexError(TracerMessage, JAXIndexError):
    """`x[mask]` with a traced mask: the result's size would depend on values."""

    what = "Array boolean indices must be concrete; got {tracer}"
    fix = (
        "  To set or reduce use jnp.where(mask, …, …) or x.at[mask].set(…), whose sizes are fixed; "
        "to select use jnp.nonzero(mask, size=…)."
    )


class UnexpectedTracerError(JAXTypeError):
    """A traced value was used after its trace had ended: it escaped through a side effect."""


class KeyReuseError(JAXTypeError):
    """A PRNG key was used twice; split it first."""


class JaxprTypeError(TypeError):
    """A jaxpr is not well typed. Raised by checks, so a bug of ours or of a custom rule."""


class InconclusiveDimensionOperation(Exception):
    """A comparison of symbolic dimensions has no one answer."""


class JaxRuntimeError(RuntimeError):
    """A compiled program, a device or a driver failed."""


publish(
    JAXTypeError, JAXIndexError, ConcretizationTypeError, TracerBoolConversionError,
    TracerIntegerConversionError, TracerArrayConversionError, NonConcreteBooleanIndexError,
    UnexpectedTracerError, KeyReuseError, JaxprTypeError, InconclusiveDimensionOperation,
    JaxRuntimeError,
)  # fmt: skip


# --- ours ---------------------------------------------------------------------------------------


class ShapeError(TypeError):
    """Shapes of operands do not fit.

    The message names the arrays that the user gave: added where the exception leaves us
    (core/source.py), unless `make_error` was told its `operands`.
    """

    _tinyjax_operands = True


class BroadcastError(ShapeError, ValueError):
    """Shapes cannot be broadcast (NumPy raises ValueError, JAX's operators TypeError)."""


class SizeError(ShapeError, ValueError):
    """A size is negative (NumPy raises ValueError, JAX TypeError)."""


class DotShapeError(ShapeError, ValueError):
    """Ranks of a matrix product's operands, or contracted sizes, do not fit."""


class ReshapeError(ShapeError, ValueError):
    """A reshape changes the number of elements (JAX: TypeError, or NumPy's ValueError)."""


class ConcatenateError(ShapeError, ValueError):
    """Arrays to be joined differ in rank, or in size along another axis (JAX: TypeError, or
    ValueError from stack)."""


class DtypeError(TypeError):
    """An operation does not take this dtype, or strict promotion forbids the mixture."""


class DtypeArgumentError(DtypeError, ValueError):
    """What was given as a dtype is none (JAX raises TypeError or ValueError)."""


class AxisNumberError(ValueError, IndexError):
    """An axis that the array does not have (JAX raises one or the other; NumPy one that is both)."""


class LeafTypeError(TypeError):
    """An argument has a leaf that is not an array or number."""


class AxisError(NameError):
    """A collective names an axis that is not open here."""


class AxisSizeError(ValueError):
    """Arrays mapped together differ in size along the mapped axis."""


class AxesPrefixError(ValueError):
    """in_axes, out_axes or a sharding is not a prefix of the tree it is for."""


class GradTypeError(TypeError):
    """grad of a function or an argument that has no gradient: non-scalar output, int input."""


class NotLinearError(NotImplementedError):
    """linear_transpose of a function that is not linear."""


class CustomRuleError(TypeError):
    """A custom_jvp or custom_vjp rule does not match its function."""


class CarryTypeError(TypeError):
    """The carry of a loop changes its type, or branches return different types."""


class StaticArgumentError(ValueError):
    """A static argument is not hashable, or an argument name or number does not exist."""


class DonationError(RuntimeError):
    """An array was used after its buffer had been donated or deleted."""


class CallbackResultError(RuntimeError, ValueError):
    """A callback returned other arrays than were stated for it (JAX raises a RuntimeError)."""


class FormatError(KeyError, IndexError):
    """A text has a placeholder without a value (str.format raises KeyError or IndexError)."""

    __str__ = Exception.__str__  # that of KeyError is a repr


class ConfigError(AttributeError):
    """There is no such option."""


class IndexTypeError(TypeError):
    """An index is of a type that arrays do not take."""


class LoweringError(TypeError):
    """A node that has no lowering; says which and why."""


class InvariantError(AssertionError):
    """One of our own invariants broke. The message names the pass; please report it."""


class KernelBoundsError(InvariantError):
    """A kernel was about to read or write outside of a buffer (hardened mode)."""


publish(
    ShapeError, BroadcastError, SizeError, DotShapeError, ReshapeError, ConcatenateError, DtypeError,
    DtypeArgumentError, AxisNumberError,
    FormatError, LeafTypeError, AxisError, AxisSizeError, AxesPrefixError, GradTypeError, CustomRuleError,
    CarryTypeError, StaticArgumentError, DonationError, ConfigError, IndexTypeError, InvariantError,
    CallbackResultError,
    KernelBoundsError, NotLinearError,
)  # fmt: skip


# --- the form -----------------------------------------------------------------------------------


def make_error(
    cls: Callable[[str], E],
    what: str,
    *,
    rule: str = "",
    operands: Mapping[str, Any] | None = None,
    fix: str = "",
    site: Site | None = None,
) -> E:
    """An exception in the house form. Nothing is looked up unless one is made.

    `what` is one sentence with JAX's sense; `rule` completes it ("sizes must be equal"); `operands`
    maps the function's parameter names to what the user passed, in the order of the call; `fix` is
    the smallest change that would help. `site` defaults to the user's current line.
    Example: `raise make_error(DotShapeError, "dot contracts …", rule="sizes must be equal",
    operands={"a": a, "b": b}, fix="Perhaps b should be transposed.")`
    """
    head = what.rstrip(".")
    head = f"{head}; {rule.rstrip('.')}." if rule else f"{head}."
    lines = [head]
    if operands:
        lines.append(operand_line(operands, site))
    lines.append(user_line(call_site() if site is None else site))
    if fix:
        lines.append(f"  {fix}")
    error = cls("\n".join([line for line in lines if line]))
    if operands:
        error._tinyjax_operands = False  # type: ignore[attr-defined]
    return error


def require_callable(*functions: Any, what: str = "Expected a callable value") -> None:
    """Refuse what is no function; `what` is JAX's text, without its period. Raises: TypeError."""
    for f in functions:
        if not callable(f):
            raise TypeError(
                f"{what}, got {describe_value(f)}.\n"
                "  Pass the function itself, f, and not what it returns, f(x)."
            )


def deleted(of: Any) -> DonationError:
    """For the use of an array whose memory is gone."""
    return DonationError(
        f"Array has been deleted with shape={of.str_short()}: it was donated to a jitted function "
        "or `.delete()` was called.\n  Use the function's result, or call it with a copy."
    )


def fill_text(
    what: str,
    text: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fill: Callable[..., str] = str.format,
) -> str:
    """`text.format(*args, **kwargs)` of the function `what`. Raises: FormatError."""
    try:
        return fill(text, *args, **kwargs)
    except KeyError as error:
        missing = f"{{{error.args[0]}}}"
    except IndexError:
        missing = "one of its placeholders"
    raise make_error(
        FormatError,
        f"the text {text!r} of {what} has no value for {missing}, given are: "
        + ", ".join([f"{len(args)} positional", *kwargs]),
        fix="Pass a value for each placeholder; a brace that is meant as such is written twice.",
    )


def operand_line(operands: Mapping[str, Any], site: Site | None = None) -> str:
    """`  a = params['w1']  f32[8,4]      b = x  f32[3]`."""
    texts = written_operands(operands, site)
    parts = [describe_operand(name, texts.get(name, ""), x) for name, x in operands.items()]
    return "  " + "      ".join(parts)


def written_operands(operands: Mapping[str, Any], site: Site | None = None) -> dict[str, str]:
    """Parameter name -> text in the user's source, as far as the call's form tells.

    The user's expression may be another function that got here by a detour (`solve(A, b)` ends in
    a dot). So what the live frame tells is looked up, and an expression that stands for a value of
    another shape discards all texts.
    """
    frame = user_frame() if site is None else None
    if site is None:
        if frame is None:
            return {}
        site = (frame.f_code, frame.f_lasti)
    found = operand_parts(site, frame)
    positional = [part for keyword, part in found if keyword is None]
    keywords = {keyword: part for keyword, part in found if keyword in operands}
    rest = [name for name in operands if name not in keywords]
    if len(positional) < len(rest):
        return {}
    parts = {name: part for name, part in [*zip(rest, positional), *keywords.items()] if name}
    if frame and not all(fits(part, operands[name], frame) for name, part in parts.items()):
        return {}
    return {name: ast.unparse(part) for name, part in parts.items()}
