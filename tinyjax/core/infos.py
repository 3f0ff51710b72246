"""Static data (`arg`) of the ops that need more than a tuple. Frozen, hashable, compared by value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What a CALL means beyond applying its body.

    `kind`: jit, function, checkpoint, custom_jvp, custom_vjp, composite, named. `rule` is the
    identity of user-given derivative rules (custom kinds, `function(grad_fxn=)`); it is erased
    when the call is lowered. `policy` says what a checkpoint keeps; `repeat` is a body for the
    last so many operands: the effects of computing it again, which its transposition and the
    application of its derivative have.
    """

    kind: str
    name: str = ""
    precompile: bool = False
    precompile_backward: bool = False
    inline: bool = False
    prevent_cse: bool = True
    policy: Callable[..., Any] | None = None
    rule: Any = None
    params: tuple[Any, ...] = ()
    repeat: tuple[Any, int] | None = None


@dataclass(frozen=True, slots=True)
class DerivedRule:
    """A custom derivative rule made of another: it has the kinds of rules that one has."""

    rule: Any

    @property
    def has_jvp(self) -> bool:
        """Whether there is a forward rule."""
        return bool(self.rule.has_jvp)

    @property
    def has_vjp(self) -> bool:
        """Whether there is a pair of reverse rules."""
        return bool(self.rule.has_vjp)

    @property
    def applies(self) -> bool:
        """Whether a derivative that is taken now is the rule's."""
        return bool(getattr(self.rule, "applies", True))

    @property
    def passes(self) -> dict[int, int]:
        """Results whose derivative is that of an operand, and which one."""
        return dict(getattr(self.rule, "passes", ()))

    @property
    def count(self) -> int | None:
        """How many of a call's arguments are those of the user; the others are captures."""
        found: int | None = getattr(self.rule, "count", None)
        return found

    @property
    def cut(self) -> frozenset[int]:
        """Outputs that have no derivative: what a reverse rule wrote to mutable arrays."""
        found: frozenset[int] = getattr(self.rule, "cut", frozenset())
        return found


@dataclass(frozen=True, slots=True)
class ScanInfo:
    """SCAN over `(*consts, *carry, *xs)`; its body maps `(*consts, *carry, *x)` to `(*carry, *y)`."""

    num_consts: int
    num_carry: int
    length: int
    reverse: bool = False
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class WhileInfo:
    """WHILE: `cond(*cond_consts, *carry) -> bool`, `body(*body_consts, *carry) -> carry`."""

    cond_consts: int
    body_consts: int


@dataclass(frozen=True, slots=True)
class DotInfo:
    """Contraction: axis pairs summed over, axis pairs kept as batch, the result dtype.

    Result axes: batch, then the free axes of x, then those of y (both in order).
    """

    contract: tuple[Axes, Axes]
    batch: tuple[Axes, Axes] = ((), ())
    dtype: Any = None
    precision: Any = None


@dataclass(frozen=True, slots=True)
class GatherInfo:
    """XLA's gather: index vectors lie along the last axis of the indices.

    `mode`: "fill" (out of bounds gives the fill operand, or NaN / the least value / False),
    "clip", or "promise_in_bounds".
    """

    offset_dims: Axes
    collapsed_slice_dims: Axes
    start_index_map: Axes
    slice_sizes: Axes
    operand_batching_dims: Axes = ()
    start_indices_batching_dims: Axes = ()
    mode: str = "fill"
    indices_are_sorted: bool = False
    unique_indices: bool = False


@dataclass(frozen=True, slots=True)
class ScatterInfo:
    """XLA's scatter with a fixed combiner `kind`: set, add, mul, min, max.

    `mode`: "fill" (out-of-bounds updates are dropped), "clip" (the window is moved inside), or
    "promise_in_bounds". Updates are applied in row-major order of the index array.
    """

    kind: str
    update_window_dims: Axes
    inserted_window_dims: Axes
    scatter_dims_to_operand_dims: Axes
    operand_batching_dims: Axes = ()
    scatter_indices_batching_dims: Axes = ()
    mode: str = "fill"
    indices_are_sorted: bool = False
    unique_indices: bool = False


class Backward:
    """A backward body that is made when it is known which cotangents are zero.

    `make(zero)` returns a closed body `(*residuals, *nonzero cotangents) -> cotangents of the tangent
    inputs`, given for each output whether its cotangent is zero. Made once per pattern; but
    `look(zero, cotangents)`, if given, makes one that may depend on the values of the cotangents.
    `refs` are the mutable arrays that the body asked for last takes and gives, as `CustomLinInfo.refs`,
    and `captured` the nodes that it takes after them.
    """

    refs: tuple[Any, ...] = ()
    captured: Sequence[Any] = ()

    def __init__(
        self,
        make: Callable[[tuple[bool, ...]], Any],
        look: Callable[[tuple[bool, ...], Sequence[Any]], Any] | None = None,
    ) -> None:
        self._make, self.look = make, look
        self._made: dict[tuple[bool, ...], tuple[Any, tuple[Any, ...], Sequence[Any]]] = {}

    def body(self, zero: tuple[bool, ...], known: Sequence[Any] | None = None) -> Any:
        """The body for this pattern, and for cotangents whose values are known if so given."""
        if known is not None and self.look is not None:
            return self.look(zero, known)
        if zero not in self._made:
            made = self._make(zero)
            self._made[zero] = made, self.refs, self.captured
        found, self.refs, self.captured = self._made[zero]
        return found


def each_backward(backward: Any, change: Callable[[Any, tuple[bool, ...]], Any]) -> Any:
    """A backward body, or each that a `Backward` makes, changed: `change(body, zero cotangents)`."""
    if not isinstance(backward, Backward):
        return None if backward is None else change(backward, ())

    def changed(zero: tuple[bool, ...]) -> Any:
        body = backward.body(zero)
        made.refs, made.captured = backward.refs, backward.captured
        return change(body, zero)

    made = Backward(changed)
    return made


def nonzero(items: Sequence[Any], zero: tuple[bool, ...]) -> list[Any]:
    """Those whose cotangents a backward body takes: all, unless it was made for a pattern."""
    return (
        [x for x, is_zero in zip(items, zero, strict=True) if not is_zero] if zero else list(items)
    )


@dataclass(frozen=True, slots=True)
class CustomLinInfo:
    """A linear map known only by its transpose (`custom_vjp`).

    `backward` is a closed body `(*residuals, *cotangents of the outputs) -> cotangents of the
    tangent inputs`, or a `Backward` that makes one for the cotangents that are not zero (None: reverse
    mode is an error); `out` are the avals of the outputs; `name` is the user's function, for errors.
    `forward`, if the user gave a jvp rule too, is a closed body `(*residuals, *tangents) ->
    tangents of the outputs`: what forward mode and evaluation use. `refs` are the mutable arrays that
    the backward body takes (after the cotangents) and gives (last) the values of.
    """

    num_residuals: int
    out: tuple[Any, ...]
    backward: Any
    name: str = ""
    forward: Any = None
    refs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCallInfo:
    """A named host routine (see interpreters/host.py) with its static parameters and result avals."""

    routine: str
    params: tuple[Any, ...]
    out: tuple[Any, ...]
    # How many leading axes the routine maps over by itself.
    batch_ndim: int = 0


@dataclass(frozen=True, slots=True)
class CallbackInfo:
    """A Python callback of ndarrays.

    `kind`: "pure" (may run any number of times; `sequence` keeps two equal calls apart), "io" or
    "debug" (an effect: the last operand and the last result are tokens, the rest as stated).
    `vectorized` says how vmap calls a pure one. `levels` are the vmaps an effect is under, innermost
    first: per level which operands have its axis, and its size; examples are called one by one.
    """

    callback: Callable[..., Any]
    out: tuple[Any, ...]
    kind: str = "pure"
    sequence: int = 0
    ordered: bool = False
    vectorized: str | None = None
    levels: tuple[tuple[tuple[bool, ...], int], ...] = ()

    @property
    def pure(self) -> bool:
        """Whether it is no effect."""
        return self.kind == "pure"


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """A runtime check of `(condition, *values, token) -> token`.

    Raises `message` when the condition does not hold, formatted with the values (a tree of
    positional and keyword arguments). A `debug` check counts only where errors are made values.
    """

    message: str
    tree: Any = None
    debug: bool = False
