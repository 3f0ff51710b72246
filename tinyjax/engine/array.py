"""`Array`: the one value type. A node of the graph, or memory that becomes a leaf when needed.

An Array that mentions no open variable is a value. Otherwise it is a tracer: Python may look at it
when its variables are bound (grad, jvp), and gets JAX's error when they are not (jit, vmap, scan).
`float(x)`, `np.asarray(x)` and their kin of a value being differentiated raise too: the plain
number would silently drop its gradient.

Operators, methods such as `.sum()`, and indexing are attached by tinyjax/numpy/array_methods.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyjax.core import dtypes
from tinyjax.core.avals import Aval
from tinyjax.core.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
    deleted,
    user_line,
)
from tinyjax.core.memory import copy_of
from tinyjax.core.ops import Op
from tinyjax.core.sites import origin
from tinyjax.core.source import api_boundary, call_site
from tinyjax.core.uop import NO_VARS, Buffer, UOp, toposort
from tinyjax.interpreters.trace import (
    differentiated,
    escaped,
    foreign,
    state,
    unbound,
    value_of,
)


def buffer_node(buffer: Buffer) -> UOp:
    """The leaf for a buffer. Not interned: an Array keeps its own, so one buffer has one leaf."""
    node = object.__new__(UOp)
    node.op, node.src, node.arg = Op.BUFFER, (), buffer
    node.aval, node.free = buffer.aval, NO_VARS
    node._active = node._derived = None
    return node


def refuse_escaped(node: UOp) -> None:
    """Raise if the node depends on a variable of a jit-like trace that has ended."""
    gone = escaped(node)
    if gone is not None:
        found = [s for s in map(origin, toposort([node])) if s is not None]
        line = user_line(found[-1][0]) if found else ""
        raise UnexpectedTracerError(
            f"Encountered an unexpected tracer: {node.aval.str_short()} escaped from "
            f"{gone.trace.describe()}, where it depends on argument {gone.path or 'unnamed'}.\n"
            + (f"  made {line.lstrip()}\n" if line else "")
            + "  A traced function must return what it computes; saving a value in a global, an "
            "attribute or a closure keeps an array that has no value."
        )


def refuse_detached(node: UOp) -> None:
    """Raise if an operation that nothing open can record depends on variables of a trace."""
    refuse_escaped(node)
    other = foreign(node)
    if other is not None:
        raise UnexpectedTracerError(
            f"Encountered an unexpected tracer: {node.aval.str_short()} depends on argument "
            f"{other.path or 'unnamed'} of {other.trace.describe()}, which runs on another thread.\n"
            "  An operation is recorded by the traces of its own thread: compute with traced values "
            "on the thread that traces, and give other threads functions to trace themselves."
        )


def placement() -> Any:
    """The module that knows where arrays lie; it stands on this file."""
    from tinyjax.engine import placement as module  # it stands on this file

    return module


def line_of_user() -> str:
    """The user's current line, as errors show it."""
    line = user_line(call_site())
    return f"{line}\n" if line else ""


ONE_ELEMENT = "  Take one element by an index, or all as lists with x.tolist()."
"""What to do with an array where one number is needed."""

NO_AXIS = "  A scalar has no axis: x.size is 1, and jnp.atleast_1d(x) has an axis of size 1."
"""What to do with a scalar where an axis is needed."""


class TracerMeta(type):
    """`isinstance(x, Tracer)` asks the array."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Array) and x.is_tracer


class Tracer(metaclass=TracerMeta):
    """An Array without a value of its own: active, depending on an unbound variable, or staged."""


class Array:
    """A JAX-style array. Build with `tinyjax.numpy` functions, not by calling the class."""

    __slots__ = ("__weakref__", "_buffer", "_node", "aval")

    _buffer: Buffer | None
    _node: UOp | None
    aval: Aval

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: UOp) -> None:
        self._node, self.aval = node, node.aval
        self._buffer = node.arg if node.op is Op.BUFFER else None

    @staticmethod
    def from_buffer(buffer: Buffer) -> Array:
        """A value in memory; its graph leaf is made when first needed."""
        self = object.__new__(Array)
        self._buffer, self._node, self.aval = buffer, None, buffer.aval
        return self

    if TYPE_CHECKING:  # attached by tinyjax/numpy/array_methods.py

        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __rtruediv__(self, other: Any) -> Array: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...
        def __pow__(self, other: Any) -> Array: ...
        def __rpow__(self, other: Any) -> Array: ...
        def __matmul__(self, other: Any) -> Array: ...
        def __rmatmul__(self, other: Any) -> Array: ...
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __divmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __rdivmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...
        def __eq__(self, other: object) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Array: ...  # type: ignore[override]
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __getitem__(self, index: Any) -> Array: ...
        def __contains__(self, item: Any) -> bool: ...
        def __round__(self, ndigits: int | None = None) -> Array: ...

        at: Any
        T: Array
        mT: Array
        real: Array
        imag: Array
        all: Callable[..., Array]
        any: Callable[..., Array]
        argmax: Callable[..., Array]
        argmin: Callable[..., Array]
        argpartition: Callable[..., Array]
        argsort: Callable[..., Array]
        astype: Callable[..., Array]
        byteswap: Callable[..., Array]
        choose: Callable[..., Array]
        clip: Callable[..., Array]
        clone: Callable[..., Array]
        compress: Callable[..., Array]
        conj: Callable[..., Array]
        conjugate: Callable[..., Array]
        copy: Callable[..., Array]
        cumprod: Callable[..., Array]
        cumsum: Callable[..., Array]
        diagonal: Callable[..., Array]
        dot: Callable[..., Array]
        flatten: Callable[..., Array]
        max: Callable[..., Array]
        mean: Callable[..., Array]
        min: Callable[..., Array]
        prod: Callable[..., Array]
        ptp: Callable[..., Array]
        ravel: Callable[..., Array]
        repeat: Callable[..., Array]
        reshape: Callable[..., Array]
        round: Callable[..., Array]
        searchsorted: Callable[..., Array]
        sort: Callable[..., Array]
        squeeze: Callable[..., Array]
        std: Callable[..., Array]
        sum: Callable[..., Array]
        swapaxes: Callable[..., Array]
        take: Callable[..., Array]
        trace: Callable[..., Array]
        transpose: Callable[..., Array]
        var: Callable[..., Array]
        view: Callable[..., Array]
        nonzero: Callable[..., tuple[Array, ...]]
        tobytes: Callable[..., bytes]

    # --- what it is ------------------------------------------------------------------------

    @property
    def node(self) -> UOp:
        """This array as a node of the graph."""
        if self._node is None:
            assert self._buffer is not None
            self._node = buffer_node(self._buffer)
        return self._node

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.aval.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.aval.dtype.itemsize)

    @property
    def weak_type(self) -> bool:
        """Whether the dtype yields in promotion, as that of a Python number does."""
        return self.aval.weak_type

    @property
    def is_tracer(self) -> bool:
        """Active, mentioning an unbound variable, or recorded while staging."""
        if self._buffer is not None:
            return False
        node = self.node
        if not node.free:
            return node.op is not Op.BUFFER and state.staging > 0
        return unbound(node) is not None or bool(differentiated(node))

    # --- its value -------------------------------------------------------------------------

    @property
    def _value(self) -> np.ndarray:
        """The value, if Python may have it; typed keys give their uint32 data."""
        if self._buffer is not None:
            if self._buffer.deleted:
                raise deleted(self.aval)
            return self._buffer.value
        self._look(ConcretizationTypeError)
        return value_of(self.node)

    def _look(self, error: type[Exception]) -> None:
        """Raise `error` unless every variable this depends on is bound."""
        node = self.node
        refuse_escaped(node)
        if unbound(node) is not None or (not node.free and state.staging):
            raise error(self)

    def _plain(self, error: type[Exception], verb: str) -> np.ndarray:
        """The value for uses that leave the graph: not allowed when it is being differentiated."""
        if self._buffer is None:
            self._look(error)
            on = differentiated(self.node)
            if on:
                var = min(on, key=lambda v: v.path)
                raise error(
                    f"Abstract tracer value encountered where concrete value is expected: {verb} "
                    "of "
                    f"{self._short()} inside {var.trace.describe()} would drop its gradient with "
                    f"respect to {var.path or 'the argument'}.\n"
                    + line_of_user()
                    + "  Use array operations to keep the gradient; or say that it is constant "
                    "with jax.lax.stop_gradient(x), or return the value with has_aux=True."
                )
        return self._value

    def _short(self) -> str:
        return f"{self.aval.str_short()}"

    def _origin_msg(self) -> str:
        """Which function and argument this depends on, for error messages."""
        if self._buffer is not None:
            return ""
        var = unbound(self.node)
        if var is None or var.trace is None:
            return "  It was made while a function is being traced."
        path = f" argument {var.path}" if var.path else " an argument"
        return f"  It depends on{path} of {var.trace.describe()}."

    def _refuse_keys(self, kind: str) -> None:
        if dtypes.is_key(self.aval.dtype):
            raise TypeError(
                f"typed PRNG keys cannot be converted to Python {kind}; got {self._short()}. "
                "Their words are jax.random.key_data(keys)."
            )

    @api_boundary
    def __bool__(self) -> bool:
        if self._buffer is None:
            self._look(TracerBoolConversionError)
        self._refuse_keys("bool")
        if self.aval.size != 1:
            what = "an empty array" if self.aval.size == 0 else "an array with several elements"
            raise ValueError(
                f"The truth value of {what} is ambiguous ({self._short()}). Use a.any() or a.all()."
            )
        return bool(self._value.reshape(()))

    @api_boundary
    def __index__(self) -> int:
        if self._buffer is None:
            self._look(TracerIntegerConversionError)
        if self.aval.shape or not dtypes.is_integer(self.aval.dtype):
            raise TypeError(
                "Only integer scalar arrays can be converted to a scalar index; got "
                f"{self._short()}.\n"
                + (ONE_ELEMENT if self.aval.shape else "  Convert it: int(x).")
            )
        return int(self._value)

    @api_boundary
    def __int__(self) -> int:
        if self._buffer is None:
            self._look(ConcretizationTypeError)
        self._refuse_keys("int")
        return int(self._scalar("int", self._value))

    @api_boundary
    def __float__(self) -> float:
        self._refuse_keys("float")
        return float(self._scalar("float", self._plain(ConcretizationTypeError, "float()")))

    @api_boundary
    def __complex__(self) -> complex:
        self._refuse_keys("complex")
        return complex(self._scalar("complex", self._plain(ConcretizationTypeError, "complex()")))

    def _scalar(self, kind: str, value: np.ndarray) -> Any:
        if self.aval.size != 1 or self.aval.shape:
            raise TypeError(
                f"Only scalar arrays can be converted to Python {kind}; got {self._short()}.\n"
                + ONE_ELEMENT
            )
        if kind != "complex" and dtypes.is_complex(self.aval.dtype):
            raise TypeError(
                f"{kind}() argument must be a real number, not {self._short()}. Take x.real first."
            )
        return value[()]

    @api_boundary
    def item(self, *args: int) -> Any:
        """The element (at an index, if given) as a Python number."""
        if self._buffer is None:
            self._look(ConcretizationTypeError)
        self._refuse_keys("numbers")
        return self._value.item(*args)

    @api_boundary
    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        self._refuse_keys("numbers")
        return self._plain(ConcretizationTypeError, "tolist()").tolist()

    @api_boundary
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtypes.is_key(self.aval.dtype):
            raise TypeError(
                "JAX array with PRNG key dtype cannot be converted to a NumPy array. "
                "Use jax.random.key_data(arr) if you wish to extract the underlying integer array."
            )
        value = self._plain(TracerArrayConversionError, "np.asarray()")
        if dtype is not None and np.dtype(dtype) != value.dtype:
            if copy is False:
                raise ValueError(
                    f"a copy is needed to convert {self._short()} to {np.dtype(dtype)}, but copy=False "
                    "was given.\n  Leave `copy` out, or ask for the dtype that the array has."
                )
            return value.astype(dtype)
        if copy:
            return value.copy()
        value.flags.writeable = False  # seen from now on: it is not to be donated
        return value.view()

    @api_boundary
    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError(f"len() of unsized object\n{NO_AXIS}")
        return int(self.aval.shape[0])

    @api_boundary
    def __iter__(self) -> Iterator[Array]:
        if not self.aval.shape:
            raise TypeError(f"iteration over a 0-d array\n{NO_AXIS}")
        return iter([self[i] for i in range(self.aval.shape[0])])

    @api_boundary
    def __format__(self, spec: str) -> str:
        if not self.aval.shape and spec:
            if self._buffer is None:
                self._look(ConcretizationTypeError)
            return format(self._value[()], spec)
        if spec and not self.is_tracer:
            raise TypeError(
                f"format {spec!r} is for scalars; got {self._short()}.\n"
                "  Print with np.printoptions(precision=...), or format the elements one by one."
            )
        return format(repr(self) if self.is_tracer else str(self), spec)

    def __repr__(self) -> str:
        from tinyjax.engine.display import array_repr  # only for people who look

        return array_repr(self)

    def __str__(self) -> str:
        if dtypes.is_key(self.aval.dtype) or (self._buffer is None and self._hidden()):
            return repr(self)
        return str(self._value)

    def _hidden(self) -> bool:
        """Whether Python may not see the value now."""
        node = self.node
        return unbound(node) is not None or (not node.free and state.staging > 0)

    def _repr_html_(self) -> str:
        from tinyjax.engine.display import array_html  # only for people who look

        return array_html(self)

    def __deepcopy__(self, memo: Any) -> Array:
        return self.__copy__()

    def __copy__(self) -> Array:
        """A value gets memory of its own, since either may be donated; a traced array is itself."""
        if self._buffer is None:
            return self
        return Array.from_buffer(Buffer(copy_of(self._value), self.aval))

    def __reduce__(self) -> tuple[Any, ...]:
        from tinyjax.engine.values import from_pickle  # it stands on this file

        if dtypes.is_key(self.aval.dtype):
            return from_pickle, (self._value, self.aval.dtype, self.aval.weak_type)
        return from_pickle, (np.asarray(self), None, self.aval.weak_type)

    # --- where it is -------------------------------------------------------------------------

    def block_until_ready(self) -> Array:
        """This array, once its value is there (on the CPU it is when a call returns)."""
        return self

    def is_ready(self) -> bool:
        """Whether the value is there; it is."""
        return True

    def copy_to_host_async(self) -> None:
        """Nothing to do on the CPU."""

    def delete(self) -> None:
        """Give the memory back now; later uses raise."""
        if self._buffer is not None:
            self._buffer.deleted, self._buffer.address = True, 0
            self._buffer.value = np.empty(0, self._buffer.value.dtype)

    def is_deleted(self) -> bool:
        """Whether the memory was donated or deleted."""
        return self._buffer is not None and self._buffer.deleted

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all of it is in this process."""
        return True

    @property
    def sharding(self) -> Any:
        """How it lies on devices.

        Raises: AttributeError for a traced array, which lies nowhere (so `hasattr` tells); the
        properties below raise ConcretizationTypeError, as in JAX.
        """
        if self.is_tracer:
            raise AttributeError(
                f"The 'sharding' attribute is not available on a traced {self._short()}.\n"
                "  Look at it outside of the traced function, or at jax.jit(f)(x).sharding."
            )
        return placement().sharding_of(self)

    @property
    def device(self) -> Any:
        """The device it lies on, or its sharding if there are several."""
        sharding = self.sharding
        return next(iter(sharding.device_set)) if sharding.num_devices == 1 else sharding

    def devices(self) -> set[Any]:
        """The devices that hold a part of it."""
        return placement().sharding_of(self).device_set  # type: ignore[no-any-return]

    @property
    def committed(self) -> bool:
        """Whether it was put on a device or sharding other than the first device."""
        module = placement()
        return module.sharding_of(self) != module.ON_FIRST  # type: ignore[no-any-return]

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device that holds a part holds all of it."""
        return placement().sharding_of(self).is_fully_replicated  # type: ignore[no-any-return]

    @property
    def addressable_shards(self) -> list[Any]:
        """The parts, as `Shard`s: device, index, replica_id, and a copy of the data."""
        return placement().shards(self)  # type: ignore[no-any-return]

    global_shards = addressable_shards

    def addressable_data(self, index: int) -> Array:
        """A copy of the data of one shard."""
        return self.addressable_shards[index].data  # type: ignore[no-any-return]

    def to_device(self, device: Any, *, stream: Any = None) -> Array:
        """`jax.device_put(x, device)`; `stream` is for GPUs and changes nothing."""
        from tinyjax.engine.devices import device_put  # it stands on this file

        return device_put(self, device)  # type: ignore[no-any-return]

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        from tinyjax.engine.dlpack import export  # it stands on this file

        return export(self, stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
