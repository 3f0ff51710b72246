"""Dtypes against JAX's, over whole tables and in both x64 modes."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import types
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tinyjax.core import config as options
from tinyjax.core import dtypes

ALL = tuple(dtypes.DTYPES.values())
PYTHON = (bool, int, float, complex)
BOTH = pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
PROMOTIONS = pytest.mark.parametrize("promotion", ["standard", "strict"])
ABSTRACT = (
    np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact,
    np.floating, np.complexfloating, np.bool_,
)  # fmt: skip


@pytest.fixture(scope="module")
def jax() -> Any:
    return pytest.importorskip("jax")


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The result, or the name of the error's kind; x64 warnings are tested on their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return function(*args, **kwargs)
        except ValueError:
            return "ValueError"
        except TypeError:
            return "TypeError"


def operand(dtype: Any, weak: bool) -> Any:
    """What JAX asks an operand for, without its making an array."""
    aval = types.SimpleNamespace(dtype=dtype, weak_type=weak)
    return types.SimpleNamespace(dtype=dtype, shape=(), aval=aval)


def differences(ours: Any, theirs: Any, cases: Any) -> list[Any]:
    """The cases on which two functions differ, with both answers."""
    found = ((case, outcome(ours, *case), outcome(theirs, *case)) for case in cases)
    return [row for row in found if row[1] != row[2]]


# Promotion.


@BOTH
@PROMOTIONS
def test_promote_types_is_jax_on_every_pair(jax: Any, x64: bool, promotion: str) -> None:
    kinds = (*ALL, int, float, complex)
    with (
        options.enable_x64(x64), options.numpy_dtype_promotion(promotion),
        jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion),
    ):  # fmt: skip
        cases = itertools.product(kinds, kinds)
        assert differences(dtypes.promote_types, jax.numpy.promote_types, cases) == []


@BOTH
@PROMOTIONS
def test_result_type_is_jax_on_every_pair_of_weak_and_strong(
    jax: Any, x64: bool, promotion: str
) -> None:
    narrowed = {dtypes.int64, dtypes.uint64, dtypes.float64, dtypes.complex128}
    tiny = (*dtypes.NARROW_SIGNED, *dtypes.NARROW_UNSIGNED)  # weak ones: a KeyError in jax 0.10
    operands = [
        operand(dtype, weak)
        for dtype in ALL
        if x64 or dtype not in narrowed
        for weak in ((False,) if dtype in tiny else (False, True))
    ]

    def ours(*args: Any) -> Any:
        return dtypes.result_type(*args, return_weak_type_flag=True)

    def theirs(*args: Any) -> Any:
        return jax.dtypes.result_type(*args, return_weak_type_flag=True)

    with (
        options.enable_x64(x64), options.numpy_dtype_promotion(promotion),
        jax.enable_x64(x64), jax.numpy_dtype_promotion(promotion),
    ):  # fmt: skip
        pairs = itertools.chain(itertools.product(operands), itertools.product(operands, operands))
        assert differences(ours, theirs, pairs) == []
        draw = random.Random(0)
        triples = [tuple(draw.choices(operands, k=3)) for _ in range(2000)]
        assert differences(ours, theirs, triples) == []


def test_64_bit_arrays_promote_with_x64_off_as_in_jax(jax: Any) -> None:
    with jax.enable_x64(True):
        names = ("int64", "uint64", "float64", "complex128", "int32", "float32", "bool")
        arrays = {name: jax.numpy.zeros((), name) for name in names}
    with jax.enable_x64(False), options.enable_x64(False):
        for a, b in itertools.product(names, names):
            flag = {"return_weak_type_flag": True}
            theirs = outcome(jax.dtypes.result_type, arrays[a], arrays[b], **flag)
            ours = outcome(dtypes.result_type_of_pairs, (np.dtype(a), False), (np.dtype(b), False))
            assert ours == theirs, (a, b)


@BOTH
def test_python_scalars_and_types_promote_as_in_jax(jax: Any, x64: bool) -> None:
    args = (
        True, 3, 2.5, 1j, int, float, complex, bool, None, "int8", np.float16, np.int8(3),
        np.zeros(2, "int32"), np.zeros(2), np.dtype("uint8"), np.zeros(2, ml_dtypes.bfloat16),
    )  # fmt: skip

    def ours(*args: Any) -> Any:
        return dtypes.result_type(*args, return_weak_type_flag=True)

    def theirs(*args: Any) -> Any:
        return jax.dtypes.result_type(*args, return_weak_type_flag=True)

    with options.enable_x64(x64), jax.enable_x64(x64):
        for case in itertools.product(args, args):
            assert outcome(ours, *case) == outcome(theirs, *case), case


def test_lattice_promote_keeps_a_weak_dtype_that_is_no_default() -> None:
    weak16, weak32 = (dtypes.float16, True), (dtypes.float32, True)
    assert dtypes.lattice_promote(weak16, weak16) == (dtypes.float16, True)
    assert dtypes.lattice_promote(weak16, (dtypes.int32, True)) == (dtypes.float16, True)
    assert dtypes.lattice_promote(weak16, weak32) == (dtypes.float32, True)
    assert dtypes.lattice_promote(weak16) == (dtypes.float16, True)
    assert dtypes.result_type_of_pairs(weak16, weak16)[0] == dtypes.default_float_dtype()


def test_bool_is_never_weak() -> None:
    assert dtypes.lattice_promote((dtypes.bool_, True)) == (dtypes.bool_, False)
    assert dtypes.lattice_promote((dtypes.bool_, True), (dtypes.int8, True))[1] is True


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ("float8_e4m3fn", "float32", "8-bit floats do not support implicit promotion"),
        ("float6_e2m3fn", "float32", "6-bit floats"),
        ("float4_e2m1fn", "float32", "4-bit floats"),
        ("int4", "int32", r"x.astype\('int32'\)"),
    ],
)
def test_a_missing_promotion_says_why_and_what_to_write(a: str, b: str, words: str) -> None:
    with pytest.raises(dtypes.TypePromotionError, match=words):
        dtypes.lattice_promote((np.dtype(a), False), (np.dtype(b), False))


def test_strict_promotion_names_the_option() -> None:
    pairs = (dtypes.int32, False), (dtypes.float32, False)
    with options.numpy_dtype_promotion("strict"):
        with pytest.raises(dtypes.TypePromotionError, match="jax_numpy_dtype_promotion=strict"):
            dtypes.lattice_promote(*pairs)
        assert dtypes.lattice_promote((dtypes.float32, False), (dtypes.int32, True)) == (
            dtypes.float32,
            False,
        )
    assert dtypes.lattice_promote(*pairs) == (dtypes.float32, False)


def test_keys_and_float0_promote_with_themselves_only() -> None:
    for dtype in (dtypes.KeyDType("rbg"), dtypes.float0):
        assert dtypes.lattice_promote((dtype, False), (dtype, False)) == (dtype, False)
        with pytest.raises(ValueError, match="not a valid dtype for type promotion"):
            dtypes.lattice_promote((dtype, False), (dtypes.float32, False))
    key = dtypes.KeyDType("rbg")
    assert dtypes.promote_types(key, key) is key


# x64.


@BOTH
def test_canonicalize_dtype_is_jax(jax: Any, x64: bool) -> None:
    cases = [(x,) for x in (*ALL, *PYTHON, "float", "int", "complex", np.float64, np.uint8)]
    with options.enable_x64(x64), jax.enable_x64(x64):
        assert differences(dtypes.canonicalize_dtype, jax.dtypes.canonicalize_dtype, cases) == []


def test_canonicalize_dtype_refuses_keys_unless_told() -> None:
    key = dtypes.KeyDType("threefry2x32")
    assert dtypes.canonicalize_dtype(key, allow_extended_dtype=True) is key
    with pytest.raises(ValueError, match="keys are not numbers"):
        dtypes.canonicalize_dtype(key)


def test_a_python_number_has_its_own_type() -> None:
    for x in (True, 2, 2.0, 2j):
        assert dtypes.scalar_type_of(x) is dtypes.scalar_type_of(type(x)) is type(x)


def test_an_explicit_64_bit_dtype_warns_at_the_users_line() -> None:
    with options.enable_x64(False), pytest.warns(UserWarning) as caught:
        assert dtypes.user_dtype("float64", "zeros") == dtypes.float32
    assert str(caught[0].message).startswith(
        "Explicitly requested dtype float64 requested in zeros is not available, and will be "
        "truncated to dtype float32."
    )
    assert caught[0].filename == __file__


def test_explicit_x64_dtypes_may_raise_or_allow() -> None:
    with options.enable_x64(False), options.explicit_x64_dtypes("error"):
        with pytest.raises(ValueError, match="requested dtype complex128 is not available"):
            dtypes.user_dtype(np.complex128)
    with options.enable_x64(False), options.explicit_x64_dtypes("allow"):
        assert dtypes.user_dtype(np.complex128) == dtypes.complex128
        assert dtypes.canonicalize_dtype(np.complex128) == dtypes.complex64
    with options.enable_x64(True), options.explicit_x64_dtypes("error"):
        assert dtypes.user_dtype(np.complex128) == dtypes.complex128


@pytest.mark.parametrize("mode", ["warn", "error", "allow"])
def test_promotion_to_64_bits_obeys_the_explicit_mode_as_in_jax(jax: Any, mode: str) -> None:
    with jax.enable_x64(True):
        wide, narrow = jax.numpy.zeros((), "float64"), jax.numpy.zeros((), "float32")
    before = jax.config.jax_explicit_x64_dtypes
    jax.config.update("jax_explicit_x64_dtypes", mode)
    try:
        with jax.enable_x64(False):
            theirs = outcome(jax.dtypes.result_type, wide, narrow)
    finally:
        jax.config.update("jax_explicit_x64_dtypes", before)
    pairs = (dtypes.float64, False), (dtypes.float32, False)
    with options.enable_x64(False), options.explicit_x64_dtypes(mode):
        ours = outcome(dtypes.result_type_of_pairs, *pairs)
    assert ours == ("ValueError" if mode == "error" else (theirs, False))
    assert (theirs == "ValueError") == (mode == "error")


@BOTH
def test_python_scalars_have_the_default_dtypes(x64: bool) -> None:
    with options.enable_x64(x64):
        bits = 64 if x64 else 32
        assert dtypes.python_scalar_dtype(bool) == dtypes.bool_
        assert dtypes.python_scalar_dtype(int) == np.dtype(f"int{bits}")
        assert dtypes.python_scalar_dtype(float) == np.dtype(f"float{bits}")
        assert dtypes.python_scalar_dtype(complex) == np.dtype(f"complex{2 * bits}")
        assert dtypes.python_scalar_dtype(int, 2 ** (bits - 1) - 1) == np.dtype(f"int{bits}")
        with pytest.raises(OverflowError, match=f"too large to convert to int{bits}"):
            dtypes.python_scalar_dtype(int, 2 ** (bits - 1))
        assert dtypes.as_dtype(float) == dtypes.default_float_dtype() == np.dtype(f"float{bits}")


# Reading dtypes.


def test_as_dtype_returns_one_object_per_dtype() -> None:
    for dtype in ALL:
        assert dtypes.as_dtype(dtype) is dtype
        assert dtypes.as_dtype(dtype.type) is dtype
        assert dtypes.as_dtype(dtype.name) is dtype
    assert dtypes.as_dtype("f4") is dtypes.float32
    assert dtypes.as_dtype(np.longlong) is dtypes.int64
    assert dtypes.as_dtype("float") is dtypes.float64
    assert dtypes.as_dtype(dtypes.float0) is dtypes.float0


def test_as_dtype_reads_scalar_type_objects() -> None:
    class float32:
        dtype = dtypes.float32

    assert dtypes.as_dtype(float32) is dtypes.float32
    assert dtypes.user_dtype(float32) is dtypes.float32


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (None, ValueError, "dtype must be specified"),
        (np.zeros(2), ValueError, "use dtype=x.dtype"),
        (np.float32(2), ValueError, "use dtype=x.dtype"),
        ("object", TypeError, "not a valid array type"),
        (">f4", TypeError, "native byte order"),
        ("datetime64[s]", TypeError, "not a valid array type"),
        ("flot32", TypeError, "'flot32' not understood"),
        (3, TypeError, "3 not understood"),
    ],
)
def test_what_is_no_dtype_says_so(bad: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dtypes.as_dtype(bad)


# Subtypes and facts.


def test_issubdtype_is_jax_on_every_pair(jax: Any) -> None:
    kinds = (*ALL, *ABSTRACT, *PYTHON, np.float32, ml_dtypes.int4, ml_dtypes.bfloat16, "int8")
    cases = itertools.product(kinds, kinds)
    assert differences(dtypes.issubdtype, jax.numpy.issubdtype, cases) == []


def test_issubdtype_of_keys_is_jax(jax: Any) -> None:
    ours, theirs = dtypes.KeyDType("threefry2x32"), jax.random.key(0).dtype
    for mine, his in (
        (dtypes.extended, jax.dtypes.extended),
        (dtypes.prng_key, jax.dtypes.prng_key),
    ):
        assert dtypes.issubdtype(ours, mine) is jax.numpy.issubdtype(theirs, his) is True
        assert dtypes.issubdtype(dtypes.float32, mine) is False
    for kind in ABSTRACT:
        assert dtypes.issubdtype(ours, kind) == jax.numpy.issubdtype(theirs, kind), kind
    assert dtypes.issubdtype(ours, ours)
    assert not dtypes.issubdtype(ours, dtypes.KeyDType("rbg"))
    assert not dtypes.issubdtype(ours, dtypes.uint32)


def test_isdtype_is_jax(jax: Any) -> None:
    names = (
        "bool", "signed integer", "unsigned integer", "integral", "real floating",
        "complex floating", "numeric",
    )  # fmt: skip
    kinds = (*names, np.float32, "int4", ("bool", "integral"), ("numeric", bool), "nonsense")
    assert differences(dtypes.isdtype, jax.numpy.isdtype, itertools.product(ALL, kinds)) == []
    key = dtypes.KeyDType("rbg")
    assert not dtypes.isdtype(key, "numeric") and dtypes.isdtype(key, key)


def test_finfo_and_iinfo_are_jax(jax: Any) -> None:
    floats = ("bits", "eps", "max", "min", "tiny", "smallest_subnormal", "nmant", "nexp", "dtype")
    for dtype in (*dtypes.FLOATS, *dtypes.COMPLEXES):
        for name in floats:
            theirs = getattr(jax.numpy.finfo(dtype), name)
            assert getattr(dtypes.finfo(dtype), name) == theirs, (dtype, name)
    for dtype in (*dtypes.SIGNED, *dtypes.UNSIGNED):
        for name in ("bits", "min", "max"):
            assert getattr(dtypes.iinfo(dtype), name) == getattr(jax.numpy.iinfo(dtype), name)
    assert dtypes.finfo(float).dtype == jax.numpy.finfo(float).dtype
    assert dtypes.iinfo(int).bits == jax.numpy.iinfo(int).bits
    assert dtypes.finfo(np.zeros(2, np.float16)).dtype == np.float16
    with pytest.raises(ValueError, match="not inexact"):
        dtypes.finfo(np.int32)
    with pytest.raises(ValueError, match="Invalid integer data type"):
        dtypes.iinfo(np.float32)


def test_kinds_partition_the_dtypes() -> None:
    for dtype in ALL:
        kinds = (dtypes.is_bool, dtypes.is_integer, dtypes.is_float, dtypes.is_complex)
        true = [kind for kind in kinds if kind(dtype)]
        assert len(true) == 1, dtype
        python = {
            dtypes.is_bool: bool,
            dtypes.is_integer: int,
            dtypes.is_float: float,
            dtypes.is_complex: complex,
        }
        assert dtypes.scalar_type_of(dtype) is python[true[0]]
        assert dtypes.scalar_type_of(np.zeros(2, dtype)) is python[true[0]]
        assert dtypes.is_inexact(dtype) == (dtypes.is_float(dtype) or dtypes.is_complex(dtype))
        assert dtypes.is_unsigned(dtype) == dtype.name.startswith("uint")
        assert dtypes.is_signed(dtype) == (
            dtype.name.startswith(("int", "float", "bfloat", "complex"))
        )
        assert not dtypes.is_key(dtype)
    for none in (dtypes.float0, dtypes.KeyDType("rbg")):
        assert not any(
            kind(none) for kind in (dtypes.is_bool, dtypes.is_inexact, dtypes.is_integer)
        )


def test_short_names_are_those_of_jaxprs(jax: Any) -> None:
    for dtype in ALL:
        theirs = jax.core.ShapedArray((), dtype).str_short(short_dtypes=True)
        assert f"{dtypes.short_name(dtype)}[]" == theirs
    assert dtypes.short_name(dtypes.float8_e4m3fn) == "f8_e4m3fn"
    assert dtypes.short_name(dtypes.KeyDType("threefry2x32")) == "key<fry>"
    assert dtypes.short_name(dtypes.float0) == "float0"


@pytest.mark.parametrize(
    ("name", "bits"),
    [("int4", 4), ("uint2", 2), ("bool", 8), ("float8_e5m2", 8), ("float6_e2m3fn", 6),
     ("bfloat16", 16), ("uint64", 64), ("complex64", 64), ("complex128", 128)],
)  # fmt: skip
def test_bit_width_counts_meaningful_bits(name: str, bits: int) -> None:
    assert dtypes.bit_width(np.dtype(name)) == bits


def test_bit_width_of_keys_and_float0() -> None:
    assert dtypes.bit_width(dtypes.KeyDType("rbg")) == 128
    assert dtypes.bit_width(dtypes.float0) == 0


def test_related_dtypes() -> None:
    assert dtypes.to_inexact_dtype("int8") == dtypes.float32
    assert dtypes.to_inexact_dtype("int2") == dtypes.float32
    assert dtypes.to_inexact_dtype("uint64") == dtypes.float64
    assert dtypes.to_inexact_dtype("bfloat16") == dtypes.bfloat16
    assert dtypes.to_floating_dtype("complex128") == dtypes.float64
    assert dtypes.to_floating_dtype("bool") == dtypes.float32
    assert dtypes.to_complex_dtype("float16") == dtypes.complex64
    assert dtypes.to_complex_dtype("int64") == dtypes.complex128


# Keys.


def test_key_dtypes_describe_themselves_as_in_jax(jax: Any) -> None:
    for name in dtypes.KEY_IMPLS:
        ours, theirs = dtypes.KeyDType(name), jax.random.key(0, impl=name).dtype
        assert (repr(ours), ours.name, ours.itemsize) == (
            repr(theirs),
            theirs.name,
            theirs.itemsize,
        )
        assert ours.type.__name__ == theirs.type.__name__ == "prng_key"
        data = jax.random.key_data(jax.random.key(0, impl=name))
        assert ours.key_shape == data.shape


def test_key_dtypes_are_interned_hashable_and_survive_copies() -> None:
    key = dtypes.KeyDType("threefry2x32")
    assert dtypes.KeyDType("threefry2x32") is key
    assert dtypes.KeyDType(key.impl) is key
    assert pickle.loads(pickle.dumps(key)) is key
    assert copy.deepcopy(key) is key
    assert len({key, dtypes.KeyDType("rbg"), np.dtype("uint32")}) == 3
    assert key != dtypes.uint32 and dtypes.uint32 != key
    with pytest.raises(ValueError, match=r"unknown PRNG implementation 'fry'; known: threefry2x32"):
        dtypes.KeyDType("fry")


def test_jaxtyping_recognises_keys() -> None:
    jaxtyping = pytest.importorskip("jaxtyping")

    class Array:
        shape = (3,)
        dtype: Any = dtypes.KeyDType("threefry2x32")

    array = Array()
    assert isinstance(array, jaxtyping.Key[Array, "n"])
    assert not isinstance(array, jaxtyping.UInt[Array, "n"])
    assert not isinstance(array, jaxtyping.Key[Array, "n m"])
