"""Dtypes: what an element is, and which dtype two of them promote to.

A dtype is an `np.dtype` (ml_dtypes included) or a `KeyDType`, the dtype of typed PRNG keys. The
weak flag of Python scalars is not part of a dtype: it travels beside it, as a pair (dtype, weak).
Promotion is a least upper bound in a graph whose nodes are dtypes and the weak kinds int, float
and complex: https://docs.jax.dev/en/latest/type_promotion.html.

With x64 off, 64-bit dtypes are narrowed by `canonicalize_dtype` (silently: data and defaults) or
`user_dtype` (a dtype that the user wrote: `jax_explicit_x64_dtypes` decides). Nothing else narrows.

Everything here runs for every operation of a trace, so answers come from dicts and caches; the
options they depend on are part of the cache keys.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from tinyjax.core.config import config
from tinyjax.core.errors import DtypeArgumentError

Pair = tuple[Any, bool]


# The dtypes.

bool_ = np.dtype(np.bool_)
uint2, uint4 = np.dtype(ml_dtypes.uint2), np.dtype(ml_dtypes.uint4)
int2, int4 = np.dtype(ml_dtypes.int2), np.dtype(ml_dtypes.int4)
uint8, uint16 = np.dtype(np.uint8), np.dtype(np.uint16)
uint32, uint64 = np.dtype(np.uint32), np.dtype(np.uint64)
int8, int16 = np.dtype(np.int8), np.dtype(np.int16)
int32, int64 = np.dtype(np.int32), np.dtype(np.int64)
float4_e2m1fn = np.dtype(ml_dtypes.float4_e2m1fn)
float6_e2m3fn = np.dtype(ml_dtypes.float6_e2m3fn)
float6_e3m2fn = np.dtype(ml_dtypes.float6_e3m2fn)
float8_e3m4 = np.dtype(ml_dtypes.float8_e3m4)
float8_e4m3 = np.dtype(ml_dtypes.float8_e4m3)
float8_e8m0fnu = np.dtype(ml_dtypes.float8_e8m0fnu)
float8_e4m3b11fnuz = np.dtype(ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = np.dtype(ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
float8_e5m2fnuz = np.dtype(ml_dtypes.float8_e5m2fnuz)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float16, float32, float64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
complex64, complex128 = np.dtype(np.complex64), np.dtype(np.complex128)
float0 = np.dtype([("float0", np.void, 0)])
"""Tangent dtype of what has no derivative (bool, int, keys): zero bytes, one possible value."""

# 1-bit integers exist from ml_dtypes 0.6 on.
NARROW_UNSIGNED = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in ("uint1", "uint2", "uint4")
    if hasattr(ml_dtypes, name)
)
NARROW_SIGNED = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in ("int1", "int2", "int4")
    if hasattr(ml_dtypes, name)
)
FLOAT8 = (
    float8_e3m4, float8_e4m3, float8_e8m0fnu, float8_e4m3b11fnuz,
    float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz,
)  # fmt: skip
FLOAT6 = (float6_e2m3fn, float6_e3m2fn)
FLOAT4 = (float4_e2m1fn,)
SMALL_FLOATS = FLOAT4 + FLOAT6 + FLOAT8

UNSIGNED = (*NARROW_UNSIGNED, uint8, uint16, uint32, uint64)
SIGNED = (*NARROW_SIGNED, int8, int16, int32, int64)
FLOATS = (*SMALL_FLOATS, bfloat16, float16, float32, float64)
COMPLEXES = (complex64, complex128)
NUMERIC = UNSIGNED + SIGNED + FLOATS + COMPLEXES

DTYPES: dict[str, np.dtype[Any]] = {dtype.name: dtype for dtype in (bool_, *NUMERIC)}
"""Every array dtype but float0 and keys, by name."""


# Typed PRNG keys.


class extended(np.generic):
    """Scalar class of dtypes that are not NumPy's; for `issubdtype` only."""


class prng_key(extended):
    """Scalar class of key dtypes; for `issubdtype`, and for jaxtyping, which matches its name."""


@dataclass(frozen=True, slots=True)
class KeyImpl:
    """A PRNG implementation as data: its name, its tag in a dtype's name, its words per key."""

    name: str
    tag: str
    key_shape: tuple[int, ...]


KEY_IMPLS: dict[str, KeyImpl] = {
    impl.name: impl
    for impl in (
        KeyImpl("threefry2x32", "fry", (2,)),
        KeyImpl("threefry4x32", "fry4", (4,)),
        KeyImpl("rbg", "rbg", (4,)),
        KeyImpl("unsafe_rbg", "urbg", (4,)),
        KeyImpl("philox2x32", "phx2", (1,)),
        KeyImpl("philox4x32", "phx4", (2,)),
    )
}


class KeyDType:
    """dtype of typed PRNG keys: `key<fry>`. One object per implementation.

    Storage is uint32 with `key_shape` as trailing axes; shapes of avals leave those out.
    """

    __slots__ = ("impl", "itemsize", "key_shape", "name")

    _interned: ClassVar[dict[KeyImpl, KeyDType]] = {}
    type = prng_key
    kind = "K"

    impl: KeyImpl
    itemsize: int
    key_shape: tuple[int, ...]
    name: str

    def __new__(cls, impl: str | KeyImpl) -> KeyDType:
        if isinstance(impl, str):
            if impl not in KEY_IMPLS:
                raise ValueError(
                    f"unknown PRNG implementation {impl!r}; known: {', '.join(KEY_IMPLS)}"
                )
            impl = KEY_IMPLS[impl]
        found = cls._interned.get(impl)
        if found is None:
            found = object.__new__(cls)
            found.impl = impl
            found.itemsize = 4 * math.prod(impl.key_shape)
            found.key_shape = impl.key_shape
            found.name = f"key<{impl.tag}>"
            found = cls._interned.setdefault(impl, found)
        return found

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyDType, (self.impl,)


# Kinds. Each takes a dtype (not a dtype-like) and costs one set lookup.

_UNSIGNED, _SIGNED, _INTEGERS = frozenset(UNSIGNED), frozenset(SIGNED), frozenset(UNSIGNED + SIGNED)
_FLOATS, _COMPLEXES, _INEXACT = (
    frozenset(FLOATS),
    frozenset(COMPLEXES),
    frozenset(FLOATS + COMPLEXES),
)
_SIGNED_NUMBERS = _SIGNED | _INEXACT


def is_bool(dtype: Any) -> bool:
    """bool."""
    return dtype is bool_ or bool(dtype == bool_)


def is_integer(dtype: Any) -> bool:
    """Signed or unsigned integer of any width; not bool."""
    return dtype in _INTEGERS


def is_signed(dtype: Any) -> bool:
    """Has negative values: signed integers, floats, complex."""
    return dtype in _SIGNED_NUMBERS


def is_unsigned(dtype: Any) -> bool:
    """Unsigned integer; not bool."""
    return dtype in _UNSIGNED


def is_float(dtype: Any) -> bool:
    """Real floating point, float4 to float64."""
    return dtype in _FLOATS


def is_complex(dtype: Any) -> bool:
    """complex64 or complex128."""
    return dtype in _COMPLEXES


def is_inexact(dtype: Any) -> bool:
    """Float or complex: what has derivatives."""
    return dtype in _INEXACT


def is_key(dtype: Any) -> bool:
    """A typed PRNG key."""
    return type(dtype) is KeyDType


# From what a user writes to a dtype.

_PYTHON_DEFAULTS: dict[type, tuple[np.dtype[Any], np.dtype[Any]]] = {
    bool: (bool_, bool_),
    int: (int32, int64),
    float: (float32, float64),
    complex: (complex64, complex128),
}
"""Python scalar type -> (dtype with x64 off, dtype with x64 on)."""

_TO_32_BITS: dict[Any, np.dtype[Any]] = {
    int64: int32,
    uint64: uint32,
    float64: float32,
    complex128: complex64,
}

_KNOWN: dict[Any, Any] = {dtype: dtype for dtype in (*DTYPES.values(), float0)}
_KNOWN |= {dtype.type: dtype for dtype in DTYPES.values()}
_KNOWN |= DTYPES


def as_dtype(x: Any) -> Any:
    """The dtype that `x` names: a dtype, a scalar type, a name; Python's types mean the defaults.

    64-bit dtypes are kept; see `canonicalize_dtype` and `user_dtype`.
    Raises: ValueError for None and for arrays, TypeError for what is no array dtype.
    """
    try:
        found = _KNOWN.get(x)
    except TypeError:  # unhashable: an array, or a dtype as NumPy's list of fields
        found = None
    if found is not None:
        return found
    if type(x) is KeyDType:
        return x
    if isinstance(x, type) and x in _PYTHON_DEFAULTS:
        return _PYTHON_DEFAULTS[x][config.jax_enable_x64]
    return _uncommon_dtype(x)


def _uncommon_dtype(x: Any) -> Any:
    """`as_dtype` for NumPy's other spellings and for scalar-type objects with a `dtype`."""
    if x is None:
        raise ValueError("dtype must be specified, got None.")
    own = getattr(x, "dtype", None)
    if isinstance(own, (np.dtype, KeyDType)):
        if hasattr(x, "shape") and not isinstance(x, type):
            raise DtypeArgumentError(
                "Passing an array as a dtype argument is not supported; "
                "instead of dtype=x use dtype=x.dtype."
            )
        return as_dtype(own)
    try:
        dtype = np.dtype(x)
    except TypeError:
        raise TypeError(f"dtype {x!r} not understood") from None
    if dtype not in _KNOWN:
        raise TypeError(
            f"dtype {x!r} is not a valid array type here: arrays hold bool, integers, floats, "
            "complex numbers or PRNG keys in native byte order."
        )
    return _KNOWN[dtype]


def _as_numpy_dtype(x: Any) -> Any:
    """`as_dtype`, but Python's types mean NumPy's 64-bit ones; as finfo and promote_types do."""
    if isinstance(x, type) and x in _PYTHON_DEFAULTS:
        return _PYTHON_DEFAULTS[x][1]
    return as_dtype(x)


def python_scalar_dtype(kind: type, value: Any = None) -> np.dtype[Any]:
    """The dtype of Python scalars of type bool, int, float or complex (weak, except bool).

    Raises: OverflowError if `value`, an int, does not fit.
    """
    dtype = _PYTHON_DEFAULTS[kind][config.jax_enable_x64]
    if kind is int and value is not None:
        info = iinfo(dtype)
        if not info.min <= value <= info.max:
            raise OverflowError(f"Python int {value} too large to convert to {dtype}")
    return dtype


def default_int_dtype() -> np.dtype[Any]:
    """int32, or int64 with x64 on."""
    return int64 if config.jax_enable_x64 else int32


def default_uint_dtype() -> np.dtype[Any]:
    """uint32, or uint64 with x64 on."""
    return uint64 if config.jax_enable_x64 else uint32


def default_float_dtype() -> np.dtype[Any]:
    """float32, or float64 with x64 on."""
    return float64 if config.jax_enable_x64 else float32


def default_complex_dtype() -> np.dtype[Any]:
    """complex64, or complex128 with x64 on."""
    return complex128 if config.jax_enable_x64 else complex64


def default_dtype(dtype: Any) -> np.dtype[Any]:
    """The default dtype of the same kind: what a weakly typed result becomes."""
    if dtype in _FLOATS:
        return default_float_dtype()
    if dtype in _COMPLEXES:
        return default_complex_dtype()
    if dtype in _SIGNED:
        return default_int_dtype()
    return default_uint_dtype() if dtype in _UNSIGNED else bool_


# x64.


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """The dtype with 64-bit ones narrowed to 32 bits when x64 is off; silent.

    Raises: ValueError for a key dtype unless `allow_extended_dtype`.
    """
    dtype = _as_numpy_dtype(dtype)
    if type(dtype) is KeyDType:
        if not allow_extended_dtype:
            raise ValueError(f"expected a numeric dtype, got {dtype}: keys are not numbers")
        return dtype
    return dtype if config.jax_enable_x64 else _TO_32_BITS.get(dtype, dtype)


def user_dtype(x: Any, where: str = "") -> Any:
    """The dtype that the user asked for, in function `where`, as the x64 options allow it.

    With x64 off a 64-bit dtype warns and is narrowed, raises or is kept, as
    `jax_explicit_x64_dtypes` says. Python's own types mean the defaults and never warn.
    """
    dtype = as_dtype(x)
    if config.jax_enable_x64 or dtype not in _TO_32_BITS:
        return dtype
    return _narrow_explicit(dtype, where)


def _narrow_explicit(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """A 64-bit dtype, asked for by name, while x64 is off."""
    mode = config.jax_explicit_x64_dtypes
    if mode == "allow":
        return dtype
    requested = f"Explicitly requested dtype {dtype}{f' requested in {where}' if where else ''}"
    if mode == "error":
        raise ValueError(
            f"{requested} is not available. To enable 64-bit dtypes, set jax_enable_x64, or "
            "jax_explicit_x64_dtypes to 'allow'."
        )
    narrow = _TO_32_BITS[dtype]
    warnings.warn(
        f"{requested} is not available, and will be truncated to dtype {narrow}. To enable 64-bit "
        "dtypes, set the jax_enable_x64 configuration option or the TINYJAX_ENABLE_X64 "
        "environment variable.",
        stacklevel=_user_stacklevel(),
    )
    return narrow


def _user_stacklevel() -> int:
    """The `stacklevel` at which `warnings.warn` in our caller points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tinyjax."):
        level, frame = level + 1, frame.f_back
    return level


# Promotion.


class TypePromotionError(ValueError):
    """Two dtypes have no implicit promotion."""


class KeyPromotionError(TypePromotionError, TypeError):
    """Typed keys do not mix with numbers: a TypeError too, as arithmetic with a key is in JAX."""


Node = Any  # np.dtype, or int, float, complex for the weak kinds


def _standard_lattice(x64: bool) -> dict[Node, tuple[Node, ...]]:
    """Each node's next higher nodes.

    With x64 off, uint32 with a signed integer makes int32: that is the one promotion which would
    make a 64-bit dtype from narrower ones.
    """
    return {
        bool_: (int,),
        int: (uint8, int8, *NARROW_UNSIGNED, *NARROW_SIGNED),
        **dict.fromkeys(NARROW_UNSIGNED + NARROW_SIGNED, ()),
        uint8: (uint16, int16),
        uint16: (uint32, int32),
        uint32: (uint64, int64 if x64 else int32),
        uint64: (float,),
        int8: (int16,),
        int16: (int32,),
        int32: (int64,),
        int64: (float,),
        float: (*SMALL_FLOATS, bfloat16, float16, complex),
        **dict.fromkeys(SMALL_FLOATS, ()),
        bfloat16: (float32,),
        float16: (float32,),
        float32: (float64, complex64),
        float64: (complex128,),
        complex: (complex64,),
        complex64: (complex128,),
        complex128: (),
    }


def _strict_lattice() -> dict[Node, tuple[Node, ...]]:
    """Weak kinds promote to any dtype of the same or a higher kind; dtypes to themselves only."""
    return {
        int: (float, *UNSIGNED, *SIGNED),
        float: (complex, *FLOATS),
        complex: COMPLEXES,
        **dict.fromkeys((bool_, *NUMERIC), ()),
    }


def _upper_bounds(lattice: dict[Node, tuple[Node, ...]]) -> dict[Node, frozenset[Node]]:
    """Every node's reachable set, itself included."""
    bounds = {}
    for node in lattice:
        reached, todo = {node}, [node]
        while todo:
            new = [above for above in lattice[todo.pop()] if above not in reached]
            reached.update(new)
            todo.extend(new)
        bounds[node] = frozenset(reached)
    return bounds


@functools.cache
def _bounds_of(strict: bool, x64: bool) -> dict[Node, frozenset[Node]]:
    return _upper_bounds(_strict_lattice() if strict else _standard_lattice(x64))


@functools.lru_cache(4096)
def _least_upper_bound(strict: bool, x64: bool, nodes: tuple[Node, ...]) -> Node:
    """The lowest node above all of `nodes`, which JAX's lattice makes unique if there is one."""
    bounds = _bounds_of(strict, x64)
    for node in nodes:
        if node not in bounds:
            if is_key(node):
                raise KeyPromotionError(
                    f"dtype={node} is not a valid dtype for type promotion: keys do not mix with other "
                    "dtypes. Use jax.random.split or fold_in to make new keys."
                )
            raise TypePromotionError(
                f"dtype={node} is not a valid dtype for type promotion: it is no number."
            )
    common = frozenset.intersection(*(bounds[node] for node in nodes))
    # A shortcut that is also JAX's answer when one of the nodes is above all the others.
    lowest = common & frozenset(nodes) or {node for node in common if common <= bounds[node]}
    if len(lowest) != 1:
        raise TypePromotionError(_no_promotion(strict, nodes))
    return next(iter(lowest))


def _no_promotion(strict: bool, nodes: tuple[Node, ...]) -> str:
    """Why these have no common dtype, and what to write instead."""
    names = tuple(node.__name__ if isinstance(node, type) else str(node) for node in nodes)
    message = f"Input dtypes {names} have no available implicit dtype promotion path"
    if strict:
        return (
            f"{message} when jax_numpy_dtype_promotion=strict. Cast the inputs to the output dtype "
            "explicitly, or set jax_numpy_dtype_promotion=standard."
        )
    groups = (
        (FLOAT8, "8-bit floats", "float32"),
        (FLOAT6, "6-bit floats", "float32"),
        (FLOAT4, "4-bit floats", "float32"),
        (NARROW_SIGNED + NARROW_UNSIGNED, "1-bit, 2-bit and 4-bit integers", "int32"),
    )
    for group, words, wider in groups:
        if any(node in group for node in nodes):
            return (
                f"{message}. To avoid unintended promotion, {words} do not support implicit "
                f"promotion; cast explicitly, e.g. x.astype('{wider}')."
            )
    return f"{message}. Cast the inputs to the output dtype explicitly."


def _node(dtype: Any, weak: bool) -> Node:
    """The lattice node of a pair."""
    if not weak or dtype == bool_:
        return dtype
    return scalar_type_of(dtype)


@functools.lru_cache(8192)
def _promote_pairs(strict: bool, x64: bool, pairs: tuple[Pair, ...]) -> tuple[Any, bool, bool]:
    """(dtype, weak, the dtype was computed: if it is 64-bit, the x64 options apply)."""
    dtypes = tuple(dict.fromkeys(dtype for dtype, _ in pairs))
    all_weak = all(weak for _, weak in pairs)
    if len(pairs) == 1 or (len(dtypes) == 1 and not all_weak):
        # Trivial, and the only way for keys and float0.
        return dtypes[0], all_weak and dtypes[0] != bool_, False
    if all_weak and not strict:
        # Bound of the dtypes: the weak kinds alone would lose a weak dtype that is not a default.
        nodes = dtypes
    else:
        nodes = tuple(dict.fromkeys(_node(dtype, weak) for dtype, weak in pairs))
    node = _least_upper_bound(strict, x64, nodes)
    if isinstance(node, type):  # of weak kinds, and of int64 with uint64: a weak float
        return _PYTHON_DEFAULTS[node][x64], True, False
    return node, all_weak and not strict and node != bool_, True


def lattice_promote(*pairs: Pair) -> Pair:
    """The (dtype, weak) of an operation over operands with these (dtype, weak).

    Raises: TypePromotionError where no implicit promotion exists (float8 with another float, mixed
    dtypes in strict mode, keys with numbers).
    Cost: one cache lookup.
    """
    x64 = config.jax_enable_x64
    strict = config.jax_numpy_dtype_promotion == "strict"
    dtype, weak, computed = _promote_pairs(strict, x64, pairs)
    if computed and not x64 and dtype in _TO_32_BITS:
        dtype = _narrow_explicit(dtype, "")
    return dtype, weak


def result_type_of_pairs(*pairs: Pair) -> Pair:
    """`lattice_promote`, with a weak result given the default dtype of its kind."""
    dtype, weak = lattice_promote(*pairs)
    return (default_dtype(dtype), True) if weak else (dtype, False)


def dtype_and_weak(x: Any) -> Pair:
    """The (dtype, weak) of a value, a dtype, or a Python scalar type; None means default float.

    Arrays of ours keep their dtype; foreign arrays are canonicalised; a dtype counts as written by
    the user (`user_dtype`).
    """
    kind = x if isinstance(x, type) else type(x)
    if kind in _PYTHON_DEFAULTS:
        return _PYTHON_DEFAULTS[kind][config.jax_enable_x64], kind is not bool
    if x is None:
        return default_float_dtype(), False
    if isinstance(x, (np.ndarray, np.generic)):  # first: a missing attribute costs 0.4 us
        return canonicalize_dtype(x.dtype), False
    aval = getattr(x, "aval", None)
    if aval is not None:
        return aval.dtype, aval.weak_type
    if isinstance(x, (type, str, np.dtype, KeyDType)):
        return user_dtype(x, "dtype"), False
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        try:
            dtype = np.asarray(x).dtype
        except (TypeError, ValueError):
            raise TypeError(f"Cannot determine dtype of {x!r}") from None
    elif not hasattr(x, "shape"):
        return user_dtype(dtype, "dtype"), False  # a scalar-type object such as jnp.float32
    return canonicalize_dtype(dtype, allow_extended_dtype=True), False


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """The dtype (or, on request, (dtype, weak)) of an operation over these values or dtypes."""
    if not args:
        raise ValueError("at least one array or dtype is required")
    dtype, weak = result_type_of_pairs(*map(dtype_and_weak, args))
    return (dtype, weak) if return_weak_type_flag else dtype


def promote_types(a: Any, b: Any) -> Any:
    """The dtype to which a binary operation casts; int, float and complex themselves are weak."""
    nodes = tuple(x if x is int or x is float or x is complex else as_dtype(x) for x in (a, b))
    if nodes[0] is nodes[1] and is_key(nodes[0]):
        return nodes[0]
    strict = config.jax_numpy_dtype_promotion == "strict"
    return _as_numpy_dtype(_least_upper_bound(strict, config.jax_enable_x64, nodes))


# Related dtypes.

_TO_INEXACT: dict[Any, np.dtype[Any]] = {
    dtype: float64 if dtype in (int64, uint64) else float32 for dtype in (bool_, *UNSIGNED, *SIGNED)
}


def to_inexact_dtype(dtype: Any) -> Any:
    """The float dtype in which bools and integers are computed; floats and complex unchanged.

    Raises: TypeError for typed keys.
    """
    dtype = _as_numpy_dtype(dtype)
    if type(dtype) is KeyDType:
        raise TypeError(f"Cannot interpret '{dtype}' as a data type of numbers: keys are none")
    return _TO_INEXACT.get(dtype, dtype)


def to_floating_dtype(dtype: Any) -> Any:
    """`to_inexact_dtype`, and the dtype of the parts for complex."""
    dtype = to_inexact_dtype(dtype)
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of the parts of a complex dtype; for internal use, so it takes dtypes only."""
    return float32 if dtype == complex64 else float64


def to_complex_dtype(dtype: Any) -> np.dtype[Any]:
    """complex128 for 64-bit dtypes, complex64 for all narrower ones."""
    return complex128 if to_inexact_dtype(dtype) in (float64, complex128) else complex64


def scalar_type_of(x: Any) -> type:
    """bool, int, float or complex: the Python type of an element of an array, dtype or number."""
    kind = x if isinstance(x, type) else type(x)
    if kind in _PYTHON_DEFAULTS:
        return kind
    dtype = _dtype_or_dtype_of(x)
    if dtype in _FLOATS:
        return float
    if dtype in _INTEGERS:
        return int
    if dtype in _COMPLEXES:
        return complex
    if dtype == bool_:
        return bool
    raise TypeError(f"dtype {dtype} has no Python scalar type")


# Facts.


@functools.cache
def _finfo(dtype: Any) -> Any:
    if dtype not in _INEXACT:
        raise ValueError(f"data type {dtype} not inexact: finfo is for floats, iinfo for integers")
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


@functools.cache
def _iinfo(dtype: Any) -> Any:
    if dtype not in _INTEGERS:
        raise ValueError(f"Invalid integer data type {dtype}: iinfo is for integers")
    return ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]


def finfo(dtype: Any) -> Any:
    """Limits of a float dtype or array (of the parts, for complex): eps, max, tiny, bits, …"""
    return _finfo(_dtype_or_dtype_of(dtype))


def iinfo(int_type: Any) -> Any:
    """Limits of an integer dtype or array: min, max, bits."""
    return _iinfo(_dtype_or_dtype_of(int_type))


def _dtype_or_dtype_of(x: Any) -> Any:
    """Where NumPy also takes an array for its dtype."""
    is_array = not isinstance(x, (type, np.dtype)) and hasattr(x, "shape")
    return _as_numpy_dtype(x.dtype if is_array else x)


@functools.cache
def _has_inf(dtype: Any) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isinf(np.array(math.inf).astype(dtype).astype(complex128)))


@functools.cache
def bit_width(dtype: Any) -> int:
    """Meaningful bits of an element (4 for int4, which NumPy stores in 8); 8 for bool.

    complex64 has 64; a key all of its words; float0 none.
    """
    if dtype == bool_:
        return 8
    if dtype in _INTEGERS:
        return int(_iinfo(dtype).bits)
    if dtype in _FLOATS:
        return int(_finfo(dtype).bits)
    return 8 * int(dtype.itemsize)


@functools.cache
def short_name(dtype: Any) -> str:
    """As jaxprs print it: bool, f32, bf16, i32, u8, c64, f8_e4m3fn, key<fry>, float0."""
    if dtype == float0:
        return "float0"
    name: str = dtype.name
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short)
    return name


# Subtypes.

_ABSTRACT = {
    **{dtype.type: (np.signedinteger, np.integer) for dtype in NARROW_SIGNED},
    **{dtype.type: (np.unsignedinteger, np.integer) for dtype in NARROW_UNSIGNED},
    **{dtype.type: (np.floating, np.inexact) for dtype in (*SMALL_FLOATS, bfloat16)},
}
"""The abstract classes that ml_dtypes' scalar types would inherit from if they were NumPy's."""


def issubdtype(a: Any, b: Any) -> bool:
    """NumPy's `issubdtype`, for ml_dtypes and for key dtypes too."""
    return _issubdtype(
        a if isinstance(a, (type, np.dtype, KeyDType)) else _dtype_of_any(a),
        b if isinstance(b, (type, np.dtype, KeyDType)) else _dtype_of_any(b),
    )


def _dtype_of_any(x: Any) -> Any:
    """`x` as any NumPy dtype (strings and records too), or the key dtype of a scalar object."""
    own = getattr(x, "dtype", None)
    return own if isinstance(own, KeyDType) else np.dtype(x)


def _scalar_class(x: Any) -> type:
    """The NumPy scalar class of a dtype, a scalar class or a scalar-type object."""
    if isinstance(x, KeyDType):
        return x.type
    if isinstance(x, type) and issubclass(x, np.generic):
        return x
    kind: type = np.dtype(x).type
    return kind


@functools.lru_cache(2048)
def _issubdtype(a: Any, b: Any) -> bool:
    if isinstance(b, KeyDType):
        return a is b
    a, b = _scalar_class(a), _scalar_class(b)
    if a in _ABSTRACT:
        return b in (a, *_ABSTRACT[a], np.number, np.generic)
    return issubclass(a, b)


_KINDS: dict[str, frozenset[Any]] = {
    "bool": frozenset({bool_}),
    "signed integer": _SIGNED,
    "unsigned integer": _UNSIGNED,
    "integral": _INTEGERS,
    "real floating": _FLOATS,
    "complex floating": _COMPLEXES,
    "numeric": frozenset(NUMERIC),
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether the dtype is of `kind`: an array-API kind name, a dtype, or a tuple of those."""
    dtype = _as_numpy_dtype(dtype)
    for option in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(option, str) and option in _KINDS:
            if dtype in _KINDS[option]:
                return True
            continue
        try:
            named = _as_numpy_dtype(option)
        except (TypeError, ValueError):
            if isinstance(option, str):
                raise ValueError(
                    f"Unrecognized kind={option!r}: expected one of {list(_KINDS)} or a dtype name"
                ) from None
            raise TypeError(
                f"Expected kind to be a dtype, string, or tuple; got kind={option!r}"
            ) from None
        if dtype == named:
            return True
    return False
