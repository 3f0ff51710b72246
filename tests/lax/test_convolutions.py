"""Convolutions and their gradients against JAX, jitted: layouts, strides, dilations, groups."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tinyjax

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
LAYOUTS = [
    (NHWC, (2, 9, 10, 6), (3, 2, 6, 8)),
    (NHWC, (2, 7, 11, 16), (3, 3, 16, 40)),
    (NCHW, (2, 6, 9, 20), (8, 6, 3, 2)),
    (NCHW, (2, 16, 12, 24), (40, 16, 3, 3)),
]
WINDOWS = [  # strides, padding, dilation of the input, dilation of the kernel
    ((1, 1), "SAME", (1, 1), (1, 1)),
    ((2, 1), "SAME", (1, 1), (1, 1)),
    ((1, 1), ((1, 2), (0, 3)), (1, 1), (2, 1)),
    ((2, 2), ((1, 0), (2, 1)), (1, 2), (1, 2)),
    ((1, 1), ((-1, 0), (1, -2)), (2, 1), (1, 1)),
]


def value_and_gradients(J, x, w, **options):
    def loss(x, w):
        return J.numpy.sin(J.lax.conv_general_dilated(x, w, **options)).sum()

    out = J.lax.conv_general_dilated(x, w, **options)
    return (out, *J.grad(loss, argnums=(0, 1))(x, w))


def agree(x_shape, w_shape, **options):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    found = tinyjax.jit(lambda x, w: value_and_gradients(tinyjax, x, w, **options))(x, w)
    wanted = jax.jit(lambda x, w: value_and_gradients(jax, x, w, **options))(x, w)
    for got, want in zip(found, wanted, strict=True):
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_layout_and_window(layout, window):
    names, x, w = layout
    strides, padding, spread, dilation = window
    agree(
        x, w, window_strides=strides, padding=padding, lhs_dilation=spread,
        rhs_dilation=dilation, dimension_numbers=names,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("w", "groups", "batches"),
    [((3, 3, 4, 12), 2, 1), ((3, 3, 1, 16), 8, 1), ((3, 3, 8, 12), 1, 2)],
    ids=["grouped", "depthwise", "batch groups"],
)
def test_groups(w, groups, batches):
    agree(
        (4, 9, 9, 8), w, window_strides=(1, 1), padding="SAME", dimension_numbers=NHWC,
        feature_group_count=groups, batch_group_count=batches,
    )  # fmt: skip


def test_the_gradient_of_a_convolution_is_two_contractions_of_windows():
    def loss(x, w):
        return tinyjax.lax.conv_general_dilated(x, w, (1, 1), "SAME").sum()

    x, w = np.ones((2, 8, 9, 9), np.float32), np.ones((4, 8, 3, 3), np.float32)
    text = str(tinyjax.make_jaxpr(tinyjax.grad(loss, argnums=(0, 1)))(x, w))
    assert text.count("= dot[") == 2 and "slice" not in text
    assert text.count("= window[") == 4  # of x for the weights, of the cotangent for the input


WRONG = {
    "strides": {"window_strides": (1, 1)},
    "pads": {"padding": [(0, 0), (0, 0)]},
    "name of padding": {"padding": "BOGUS"},
    "transposed, padded by name": {"padding": "VALID", "lhs_dilation": (2,)},
    "zero dilation of the kernel": {"rhs_dilation": (0,)},
    "zero dilation of the input": {"lhs_dilation": (0,)},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_windows_raise_what_jax_raises(name):
    x, w = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 3), np.float32)
    options = {"window_strides": (1,), "padding": [(0, 0)], **WRONG[name]}
    with pytest.raises(Exception) as expected:
        jax.lax.conv_general_dilated(x, w, **options)
    with pytest.raises(expected.type):
        tinyjax.lax.conv_general_dilated(x, w, **options)


@pytest.mark.parametrize("name", ["window_strides", "lhs_dilation", "rhs_dilation"])
@pytest.mark.parametrize("numbers", [(0,), (1, 1)])
def test_strides_and_dilations_are_positive_and_one_for_each_axis(name, numbers):
    x, w = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 3), np.float32)
    options = {"window_strides": (1,), "padding": "VALID", name: numbers}
    with pytest.raises((TypeError, ValueError), match=name):
        tinyjax.lax.conv_general_dilated(x, w, **options)


def test_windows_of_a_reduction_are_one_for_each_axis():
    for J in (jax, tinyjax):
        with pytest.raises(TypeError, match="window_dimensions"):
            J.lax.reduce_window(J.numpy.ones((2, 5)), 0.0, J.lax.add, (2,), (1, 1), "SAME")


@pytest.mark.parametrize("config", [[(-9, 0, 0), (0, 0, 0)], [(0, 0, -1), (0, 0, 0)], [(0, 0, 0)]])
def test_impossible_padding_is_a_value_error(config):
    for J in (jax, tinyjax):
        with pytest.raises(ValueError, match="pad"):
            J.lax.pad(J.numpy.ones((2, 3)), 1.0, config)
