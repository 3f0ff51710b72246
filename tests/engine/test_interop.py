"""Arrays beside other libraries: DLPack both ways, NumPy's protocols, copies, pickles,
notebooks."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax.dlpack import from_dlpack, is_supported_dtype
from tinyjax.engine import dlpack as implementation

SHARED = ["float32", "int8", "uint16", "bool", "complex64", "float16"]
NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


def address(x: Any) -> int:
    return int(np.asarray(x).ctypes.data)


# --- export ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SHARED)
def test_numpy_reads_our_memory_without_a_copy(dtype: str) -> None:
    x = jnp.asarray(np.array([[0, 1], [1, 1]], dtype))
    y = np.from_dlpack(x)
    assert y.ctypes.data == address(x)
    assert not y.flags.writeable
    np.testing.assert_array_equal(y, np.asarray(x))


@pytest.mark.parametrize("dtype", [*SHARED, *NARROW])
def test_torch_reads_our_memory_without_a_copy(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = jnp.asarray(np.array([[0, 1, 0], [1, 1, 0]])).astype(dtype)
    y = torch.from_dlpack(x)
    assert str(y.dtype).endswith(dtype)
    assert y.data_ptr() == address(x)
    wide = y.numpy() if dtype == "complex64" else y.to(torch.float32).numpy()
    np.testing.assert_array_equal(wide, np.asarray(x.astype(wide.dtype)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_reads_our_memory_without_a_copy(dtype: str) -> None:
    oracle = pytest.importorskip("jax")
    x = jnp.arange(32).astype(dtype)
    y = oracle.dlpack.from_dlpack(x)
    assert y.unsafe_buffer_pointer() == address(x)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_exported_memory_is_aligned_for_consumers() -> None:
    for size in (1, 3, 17, 1000):
        for x in (jnp.ones(size) + 1, jax.jit(lambda x: x * 2)(jnp.ones(size))):
            assert np.from_dlpack(x).ctypes.data % 64 == 0
            assert np.from_dlpack(x).ctypes.data == address(x)


def test_the_exported_memory_outlives_the_array() -> None:
    x = jnp.arange(1000.0) * 2
    y = np.from_dlpack(x)
    del x
    gc.collect()
    junk = [jnp.zeros(1000) + i for i in range(8)]
    np.testing.assert_array_equal(y, np.arange(1000.0) * 2)
    del junk


def test_export_keeps_no_references() -> None:
    x = jnp.arange(4.0)
    x.__dlpack__(max_version=(1, 0))
    before = sys.getrefcount(x)
    for _ in range(200):
        x.__dlpack__(max_version=(1, 0))
        x.__dlpack__()
    assert sys.getrefcount(x) == before


def test_a_copy_may_be_asked_for() -> None:
    x = jnp.arange(4.0)
    y = np.from_dlpack(x, copy=True)
    y[0] = 7
    assert float(x[0]) == 0


def test_an_exported_buffer_is_not_donated() -> None:
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(64.0)
    seen = np.from_dlpack(x)
    f(x)
    np.testing.assert_array_equal(seen, np.arange(64.0))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: jax.random.key(0).__dlpack__(), "key_data"),
        (lambda: jnp.ones(2, jnp.int4).__dlpack__(), "int4"),
        (lambda: jnp.ones(2).__dlpack__(dl_device=(2, 0)), "device (2, 0)"),
        (lambda: jnp.ones(2).__dlpack__(stream=1), "stream"),
    ],
)
def test_what_cannot_be_exported_says_why(make: Any, text: str) -> None:
    with pytest.raises(BufferError) as error:
        make()
    assert text in str(error.value)


def test_a_traced_array_cannot_be_exported() -> None:
    with pytest.raises(jax.errors.TracerArrayConversionError, match="argument x of jit"):
        jax.jit(lambda x: np.from_dlpack(x))(jnp.ones(2))
    with pytest.raises(jax.errors.TracerArrayConversionError, match="would drop its gradient"):
        jax.grad(lambda x: np.from_dlpack(x).sum())(jnp.ones(2))


# --- import ------------------------------------------------------------------------------------


def aligned(values: Any) -> np.ndarray[Any, Any]:
    """A NumPy array at an address that needs no copy."""
    values = np.asarray(values)
    space = np.zeros(values.nbytes + 64, np.uint8)
    start = -space.ctypes.data % 64
    out = space[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def test_aligned_memory_is_taken_without_a_copy_and_kept_alive() -> None:
    source = aligned(np.arange(12, dtype=np.float32).reshape(3, 4))
    where = source.ctypes.data
    x = from_dlpack(source)
    assert address(x) == where
    del source
    gc.collect()
    np.testing.assert_array_equal(x, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(jax.jit(lambda v: v + 1)(x), np.arange(1, 13).reshape(3, 4))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_torch_tensors_come_in(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    t = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype))
    x = from_dlpack(t)
    assert x.dtype == ("int32" if dtype == "int64" else getattr(jnp, dtype, dtype))
    np.testing.assert_array_equal(np.asarray(x.astype("float32")), [[0, 1, 1], [1, 0, 1]])


def test_a_torch_tensor_is_released_when_the_array_goes() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros(1024)
    gone = weakref.ref(t.untyped_storage())
    x = from_dlpack(t)
    shared = address(x) == t.data_ptr()
    del t, x
    gc.collect()
    assert gone() is None or not shared


@pytest.mark.parametrize(
    "view",
    [lambda a: a.T, lambda a: a[::2], lambda a: a[::-1], lambda a: a[:, 1:], lambda a: a[:0]],
    ids=["transposed", "strided", "reversed", "offset", "empty"],
)
def test_other_layouts_are_copied(view: Any) -> None:
    source = aligned(np.arange(12, dtype=np.float32).reshape(4, 3))
    x = from_dlpack(view(source))
    np.testing.assert_array_equal(x, view(source))
    before = np.array(x)
    source[...] = -1
    np.testing.assert_array_equal(x, before)


def test_copy_arguments_are_honoured() -> None:
    source = aligned(np.arange(8, dtype=np.float32))
    assert address(from_dlpack(source, copy=True)) != source.ctypes.data
    assert address(from_dlpack(source, copy=False)) == source.ctypes.data
    with pytest.raises(ValueError, match="row-major"):
        from_dlpack(source[::2], copy=False)


def test_a_capsule_is_consumed_by_name_only() -> None:
    with pytest.raises(TypeError, match="must have __dlpack__"):
        from_dlpack(np.arange(3.0).__dlpack__())


def test_numpy_s_name_for_it_is_the_same_import() -> None:
    t = pytest.importorskip("torch").arange(64.0).to(dtype=pytest.importorskip("torch").bfloat16)
    x = jnp.from_dlpack(t)
    assert x.dtype == jnp.bfloat16
    np.testing.assert_array_equal(x.astype(np.float32), np.arange(64.0))
    source = jnp.zeros(16)  # aligned when it is exported
    seen = np.from_dlpack(source)
    assert address(jnp.from_dlpack(seen)) == address(source)
    assert address(jnp.from_dlpack(seen, copy=True)) != address(source)
    with pytest.raises(ValueError, match="row-major"):
        jnp.from_dlpack(seen[::2], copy=False)
    with pytest.raises(TypeError, match="must have __dlpack__"):
        jnp.from_dlpack(3)


def test_asarray_copies_on_request() -> None:
    x = jnp.arange(3.0)
    y = jnp.asarray(x, copy=True)
    assert jnp.asarray(x) is x is jnp.asarray(x, copy=False)
    assert y is not x and address(y) != address(x)


def test_our_own_arrays_pass_through() -> None:
    x = jnp.arange(3.0)
    assert x.is_ready() and x.block_until_ready() is x
    assert from_dlpack(x) is x


def test_supported_dtypes() -> None:
    assert all(is_supported_dtype(d) for d in (*SHARED, jnp.bfloat16, jnp.float8_e4m3fn))
    assert not is_supported_dtype(jnp.int4)
    assert not is_supported_dtype(jax.random.key(0).dtype)


@pytest.mark.parametrize("dtype", list(implementation.NARROW))
def test_narrow_floats_survive_a_round_trip_in_place(dtype: Any) -> None:
    x = jnp.asarray(np.array([1, 2, 0.5], np.float32).astype(dtype))

    class Foreign:
        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return x.__dlpack_device__()

    y = from_dlpack(Foreign())
    assert y.dtype == x.dtype
    assert address(y) == address(x)


# --- NumPy -------------------------------------------------------------------------------------


def test_asarray_is_a_read_only_view() -> None:
    x = jnp.arange(4.0)
    view = np.asarray(x)
    assert np.shares_memory(view, np.asarray(x))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    copied = np.array(x)
    copied[0] = 5
    assert float(x[0]) == 0


def test_asarray_converts_dtypes_and_honours_copy() -> None:
    x = jnp.arange(4)
    assert np.asarray(x, np.float64).dtype == np.float64
    assert np.asarray(x, copy=True).flags.writeable
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, np.float64, copy=False)


def test_numpy_functions_and_operators_take_arrays() -> None:
    x = jnp.arange(3.0)
    assert type(np.sin(x)) is np.ndarray
    assert type(np.ones(3, np.float32) + x) is jax.Array
    assert type(np.float32(2) * x) is jax.Array


def test_numpy_operands_are_snapshots() -> None:
    source = np.arange(3.0, dtype=np.float32)

    def f(x: Any) -> Any:
        y = x + source
        source[0] = 100
        return (y * x).sum()

    np.testing.assert_array_equal(jax.grad(f)(jnp.zeros(3)), [0, 1, 2])


def test_dtypes_without_a_meaning_here_are_refused() -> None:
    with pytest.raises(TypeError, match="not a valid JAX"):
        jnp.asarray(np.array(["a"]))
    with pytest.raises(TypeError, match="key_data"):
        np.asarray(jax.random.key(0))


# --- copies, pickles, notebooks -------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_equal_in_all_that_shows(duplicate: Any) -> None:
    for x in (
        jnp.arange(6).reshape(2, 3), jnp.asarray(2.0), jnp.ones(3, jnp.bfloat16), jax.random.key(3),
        jax.random.split(jax.random.key(0), 3), jnp.zeros((0, 2)),
    ):  # fmt: skip
        y = duplicate(x)
        assert (y.shape, y.dtype, y.weak_type) == (x.shape, x.dtype, x.weak_type)
        raw = jax.random.key_data if str(x.dtype).startswith("key") else (lambda v: v)
        np.testing.assert_array_equal(np.asarray(raw(y)), np.asarray(raw(x)))


def test_a_copy_survives_the_deletion_of_the_original() -> None:
    x = jnp.arange(3.0)
    y, z = copy.copy(x), copy.deepcopy(x)
    x.delete()
    np.testing.assert_array_equal(y, [0, 1, 2])
    np.testing.assert_array_equal(z, [0, 1, 2])
    with pytest.raises(RuntimeError, match="has been deleted"):
        x + 1


def test_pickling_a_traced_array_is_an_error_that_names_it() -> None:
    with pytest.raises(jax.errors.TracerArrayConversionError, match="argument x of jit"):
        jax.jit(lambda x: pickle.dumps(x))(jnp.ones(2))


def test_html_shows_type_facts_and_values() -> None:
    text = jnp.arange(4.0)._repr_html_()
    assert "f32[4]" in text
    assert "max 3" in text
    assert "[0., 1., 2., 3.]" in text


def test_html_of_matrices_is_a_heat_map_and_of_large_ones_a_sample() -> None:
    text = jnp.ones((200, 300))._repr_html_()
    assert text.count("<title>") == 32 * 32
    assert "[199, 299] = 1" in text
    assert "32 of 200 rows, 32 of 300 columns" in text


def test_html_of_small_matrices_shows_their_numbers() -> None:
    assert "[[0., 1.],\n [2., 3.]]" in jnp.arange(4.0).reshape(2, 2)._repr_html_()


def test_html_is_readable_on_dark_pages() -> None:
    """No colour of text or background is set, and the cells near zero let the page shine through."""
    text = jnp.linspace(-1, 1, 81).reshape(9, 9)._repr_html_()
    assert "color:" not in text and "background" not in text
    assert 'fill-opacity="0.00"' in text
    assert 'fill-opacity="1.00"' in text


def test_html_says_how_many_elements_are_not_finite() -> None:
    text = jnp.asarray([1.0, np.nan, np.inf, -np.inf])._repr_html_()
    assert "max 1 · 1 NaN · 2 infinite" in text
    assert 'fill="#888"' in jnp.full((9, 9), np.nan)._repr_html_()


def test_html_of_long_and_deep_arrays_is_short() -> None:
    for x in (jnp.arange(10_000), jnp.zeros((9, 9, 9, 9)), jnp.zeros((500, 1))):
        assert len(x._repr_html_()) < 1000


def test_html_of_a_deleted_array_says_so() -> None:
    x = jnp.ones(3)
    x.delete()
    assert "f32[3]" in x._repr_html_() and "deleted" in x._repr_html_()


def test_html_of_a_traced_array_names_its_function() -> None:
    seen = []
    jax.jit(lambda x: seen.append(x._repr_html_()) or x)(jnp.ones(2))
    assert "traced by jit of" in seen[0]
    assert "f32[2]" in seen[0]


def test_html_of_keys_shows_their_data() -> None:
    assert "key&lt;fry&gt;" in jax.random.key(0)._repr_html_()


def test_printing_a_differentiated_value_shows_its_numbers() -> None:
    seen = []
    jax.grad(lambda x: seen.append((repr(x), str(x))) or x.sum())(jnp.arange(2.0))
    assert seen == [("Array([0., 1.], dtype=float32, differentiated)", "[0. 1.]")]


def test_small_dtypes_print() -> None:
    assert "bfloat16" in repr(jnp.ones(2, ml_dtypes.bfloat16))
