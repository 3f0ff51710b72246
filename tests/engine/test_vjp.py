"""vjp, linearize, linear_transpose: what they return crosses transformations as a pytree."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.oracle import check, raises

x3 = np.array([1.0, 2.0, 3.0], np.float32)
m = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CASES = {}


def case(name):
    def register(f):
        CASES[name] = f
        return f

    return register


@case("the gradient of |z|^2 at 1+2j is 2-4j")
def vjp_absz2(J):
    o, b = J.vjp(lambda z: J.numpy.abs(z) ** 2, np.complex64(1 + 2j))
    return o, b(J.numpy.ones_like(o))


@case("an integer primal has a float0 cotangent")
def vjp_int_in(J):
    o, b = J.vjp(lambda x, n: x * n, 2.0, 3)
    return o, b(1.0)


@case("aux")
def vjp_aux(J):
    o, b, a = J.vjp(lambda x: (x * x, x + 1), 3.0, has_aux=True)
    return o, b(1.0), a


@case("linearize")
def linz(J):
    o, l = J.linearize(lambda x, y: (x * y, x + 2), 3.0, 4.0)
    return o, l(1.0, 2.0)


@case("linear_transpose")
def lintr(J):
    return J.linear_transpose(lambda x: 2 * x, 1.0)(3.0)


@case("linear_transpose of avals")
def lintr2(J):
    return J.linear_transpose(
        lambda x, y: 2 * x + 3 * y,
        J.ShapeDtypeStruct((3,), np.float32),
        J.ShapeDtypeStruct((3,), np.float32),
    )(x3)


@case("complex values")
def vjp_complex(J):
    o, b = J.vjp(
        lambda z, w: z * J.numpy.conj(w) + z**2, np.complex64(1 + 2j), np.complex64(3 - 1j)
    )
    return b(np.complex64(1j))


@case("float0 cotangents")
def float0_vjp(J):
    o, b = J.vjp(lambda n: n * 2, np.array([1, 2]))
    return o, b(np.zeros((2,), jax.dtypes.float0))


@case("f_vjp crosses jit")
def vjp_jit_cross(J):
    o, b = J.jit(lambda x: J.vjp(lambda x: x**3, x))(2.0)
    return o, b(1.0)


@case("f_vjp crosses vmap")
def vmap_vjp(J):
    f = J.vmap(lambda x: J.vjp(lambda x: x**3, x))
    o, b = f(x3)
    return o, J.vmap(lambda b, c: b(c))(b, x3)


@case("vjp in scan")
def scan_of_vjp(J):
    return J.lax.scan(lambda c, x: (c, J.vjp(lambda y: y**2 * c, x)[1](1.0)), 2.0, x3)


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


REFUSED = {
    "vjp tree": lambda J: J.vjp(lambda x: (x, x), x3)[1](x3),
    "vjp shape": lambda J: J.vjp(lambda x: x, x3)[1](x3[:2]),
    "vjp dtype": lambda J: J.vjp(lambda x: x, x3)[1](x3.astype("complex64")),
    "vjp two": lambda J: J.vjp(lambda x: (x, x), x3)[1](x3, x3),
    "lin shape": lambda J: J.linearize(lambda x: x, x3)[1](x3[:2]),
    "lin tree": lambda J: J.linearize(lambda x: x, x3)[1]((x3,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name):
    assert str(raises(REFUSED[name]))


def test_f_vjp_may_be_called_twice_and_is_transposed_once():
    import tinyjax

    _, back = tinyjax.vjp(lambda x: tinyjax.numpy.sin(x), 0.5)
    first = back(1.0)
    made = set(back.linear.derived)
    np.testing.assert_array_equal(np.asarray(back(2.0)[0]), 2 * np.asarray(first[0]))
    assert set(back.linear.derived) == made


def test_residuals_are_the_leaves_of_f_vjp():
    import tinyjax

    _, back = tinyjax.vjp(lambda x: tinyjax.numpy.sin(x) * x, x3)
    leaves, tree = tinyjax.tree.flatten(back)
    assert leaves and all(leaf.shape == (3,) for leaf in leaves)
    again = tinyjax.tree.unflatten(tree, leaves)
    np.testing.assert_array_equal(np.asarray(again(x3)[0]), np.asarray(back(x3)[0]))
