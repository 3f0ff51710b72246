"""vmap: forms of in_axes and out_axes, and loops and branches inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


@case("vmap unbatched out")
def vmap_unbatched_out(J):
    return J.vmap(lambda x: (3.0, x))(x3)


@case("vmap unbatched arr")
def vmap_unbatched_arr(J):
    return J.vmap(lambda x: (J.numpy.arange(2), x))(x3)


@case("vmap out none")
def vmap_out_none(J):
    return J.vmap(lambda x: (J.numpy.arange(2), x), out_axes=(None, 0))(x3)


@case("vmap neg")
def vmap_neg(J):
    return J.vmap(lambda x: x.sum(0), in_axes=-1, out_axes=-1)(m)


@case("vmap neg2")
def vmap_neg2(J):
    return J.vmap(lambda x: x * 2, in_axes=-2, out_axes=-2)(m)


@case("vmap dict")
def vmap_dict(J):
    return J.vmap(lambda d, y: d["a"] + d["b"] * y, in_axes=({"a": 0, "b": None}, None))(
        {"a": x3, "b": x3}, 2.0
    )


@case("vmap dict1")
def vmap_dict1(J):
    return J.vmap(lambda d: d["a"], in_axes=({"a": 0},))({"a": x3})


@case("vmap tuple prefix")
def vmap_tuple_prefix(J):
    return J.vmap(lambda t, y: (t[0] + t[1], y), in_axes=(0, None), out_axes=(0, None))(
        (x3, x3), 2.0
    )


@case("vmap list axes")
def vmap_list_axes(J):
    return J.vmap(lambda a, b: a + b, in_axes=[0, None])(x3, 2.0)


@case("vmap kw")
def vmap_kw(J):
    return J.vmap(lambda a, b: a + b)(x3, b=x3)


@case("vmap size")
def vmap_size(J):
    return J.vmap(lambda: J.numpy.ones(2), axis_size=3)()


@case("vmap none")
def vmap_none(J):
    return J.vmap(lambda a, b: a, in_axes=(0, None))(x3, None)


SHARED: dict[str, tuple[Callable[..., Any], Any]] = {
    "an int stays one": (lambda x, n: sum(x for _ in range(n)) * isinstance(n, int), 3),
    "a bool stays one": (lambda x, n: x if n is True else -x, True),
    "a string": (lambda x, n: x if n == "relu" else -x, "relu"),
    "a function": (lambda x, f: f(x), abs),
    "a tree of both": (lambda x, d: x * d["a"] if d["mode"] == "m" else x, {"a": 2.0, "mode": "m"}),
    "a NumPy array": (lambda x, w: x * w[1], np.float32([1, 5])),
}
for _name, (_f, _value) in SHARED.items():
    CASES[f"vmap shares {_name}"] = lambda J, f=_f, v=_value: J.vmap(f, (0, None))(x3, v)


@case("vmap shared static")
def vmap_shared_static(J):
    f = J.jit(lambda x, n: x * len(n), static_argnames="n")
    return J.vmap(f, in_axes=(0, None))(x3, "abc")


@case("vmap axisname")
def vmap_axisname(J):
    return J.vmap(lambda x: J.lax.psum(x, "i"), axis_name="i")(x3)


@case("vmap axisindex")
def vmap_axisindex(J):
    return J.vmap(lambda x: x * J.lax.axis_index("i"), axis_name="i")(x3)


@case("vmap pmean grad")
def vmap_pmean_grad(J):
    return J.vmap(J.grad(lambda x: J.lax.pmean(x * x, "i")), axis_name="i")(x3)


@case("scan vmap grad")
def scan_vmap_grad(J):
    return J.vmap(
        J.grad(lambda w: J.lax.scan(lambda c, x: (J.numpy.sin(c * w + x), c), w, x3)[1].sum())
    )(x3)


@case("while vmap")
def while_vmap(J):
    return J.vmap(lambda w: J.lax.while_loop(lambda v: v < 10, lambda v: v * 2 + w, w))(x3)


@case("while vmap cond only")
def while_vmap_cond_only(J):
    return J.vmap(
        lambda n: J.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, 1.0))
    )(np.array([1, 3, 2]))


@case("cond vmap")
def cond_vmap(J):
    return J.vmap(J.grad(lambda x: J.lax.cond(x > 1.5, lambda x: x * x, lambda x: -x, x)))(x3)


@case("cond nan")
def cond_nan(J):
    return J.vmap(
        J.grad(lambda x: J.lax.cond(x > 1.5, lambda x: x * x, lambda x: J.numpy.sqrt(x - 5) * 0, x))
    )(np.array([2.0, 3.0, 6.0], np.float32))


@case("switch")
def switch(J):
    return J.vmap(lambda i, x: J.lax.switch(i, [lambda x: x, lambda x: x * 2, lambda x: x * x], x))(
        np.array([-1, 1, 7]), x3
    )


@case("vmap cond index unbatched")
def vmap_cond_index_unbatched(J):
    return J.vmap(lambda x: J.lax.cond(True, lambda x: x, lambda x: x * 0 + 1.0, x))(x3)


@case("vmap dyn")
def vmap_dyn(J):
    return J.vmap(lambda i: J.lax.dynamic_slice(np.arange(6.0, dtype=np.float32), (i,), (2,)))(
        np.array([0, 3, 9])
    ), J.vmap(lambda x, i: J.lax.dynamic_update_slice(x, J.numpy.ones(1), (i,)))(
        np.zeros((3, 4), np.float32), np.array([0, 3, 9])
    )


@case("map")
def mapping(J):
    return (
        J.lax.map(lambda x: x * 2, x3),
        J.lax.map(lambda x: x * 2, x3, batch_size=2),
        J.grad(lambda w: J.lax.map(lambda x: x * w, x3).sum())(2.0),
    )


@case("map tree")
def map_tree(J):
    return J.lax.map(lambda t: {"s": t[0] + t[1]}, (x3, x3))


@pytest.mark.parametrize("name", CASES)
def test_results_are_jaxs(name):
    check(CASES[name], weak=False)


REFUSED = {
    "vmap sizes": lambda J: J.vmap(lambda a, b: a)(x3, x3[:2]),
    "vmap scalar": lambda J: J.vmap(lambda a: a)(1.0),
    "vmap oob": lambda J: J.vmap(lambda a: a, in_axes=2)(x3),
    "vmap len": lambda J: J.vmap(lambda a: a, in_axes=(0, 0))(x3),
    "vmap allnone": lambda J: J.vmap(lambda a: a, in_axes=None)(x3),
    "vmap noargs": lambda J: J.vmap(lambda: 1)(),
    "vmap outnone": lambda J: J.vmap(lambda a: a, out_axes=None)(x3),
    "vmap outtree": lambda J: J.vmap(lambda a: (a, a), out_axes=(0, 0, 0))(x3),
    "vmap outoob": lambda J: J.vmap(lambda a: a, out_axes=3)(x3),
    "vmap bool axes": lambda J: J.vmap(lambda a: a, in_axes=True)(x3),
    "vmap float axes": lambda J: J.vmap(lambda a: a, in_axes=0.5)(x3),
    "vmap intree": lambda J: J.vmap(lambda a: a["a"], in_axes=({"b": 0},))({"a": x3}),
    "vmap ret": lambda J: J.vmap(lambda x: "s")(x3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused_with_its_type(name):
    assert str(raises(REFUSED[name]))


def test_sizes_that_differ_are_listed_by_argument_path():
    from tinyjax import vmap

    def f(params, x):
        return params["w"] * x

    with pytest.raises(ValueError) as e:
        vmap(f)({"w": np.ones((4, 2)), "b": np.ones(3)}, np.ones((4, 2)))
    text = str(e.value)
    assert "params['b'] has shape (3,)" in text and "params['w'] has shape (4, 2)" in text
    assert "in_axes=None" in text
