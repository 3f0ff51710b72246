"""Golden texts of jaxprs, kernels and lists: the format that other tests are written in."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np

from tinyjax.core import build
from tinyjax.core.avals import aval
from tinyjax.core.body import fresh_var
from tinyjax.core.infos import CallInfo, ScanInfo, WhileInfo
from tinyjax.core.integers import add, idiv, integer, lt, mul
from tinyjax.core.kernel_text import expression, print_kernel, print_list
from tinyjax.core.ops import Op
from tinyjax.core.printer import Jaxpr, letters, print_body, print_graph
from tinyjax.core.uop import UOp, buffer, const, get, param, results, toposort, tuple_of

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def p(slot: int, *shape: int, dtype: Any = F32) -> UOp:
    return param(slot, aval(shape, dtype))


def loop(number: int, extent: int, kind: str = "loop") -> UOp:
    return UOp(Op.RANGE, (integer(extent),), (number, kind))


# --- jaxprs ------------------------------------------------------------------------------------


def test_a_layer_prints_as_in_the_design() -> None:
    y = build.dot(p(0, 8, 4), p(1, 4, 3), ((1,), (0,)))
    body = tuple_of([build.max_(y, build.like(y, 0.0))])
    assert print_body(body) == (
        "{ lambda a:f32[8,4] b:f32[4,3]. let\n"
        "    c:f32[8,3] = dot[contract=((1),(0))] a b\n"
        "    d:f32[8,3] = max c 0.0\n"
        "  in (d,) }"
    )


def test_short_bodies_take_one_line() -> None:
    assert print_body(tuple_of([build.sin(p(0, 3))])) == (
        "{ lambda a:f32[3]. let b:f32[3] = sin a in (b,) }"
    )
    assert print_body(tuple_of([p(0, 3)])) == "{ lambda a:f32[3]. let in (a,) }"


def test_the_text_does_not_depend_on_what_was_made_first() -> None:
    late = build.cos(p(1, 7))
    early = build.sin(p(0, 7))
    text = print_body(tuple_of([build.sub(early, late)]))
    assert text.index("sin a") < text.index("cos b")


def test_parameters_that_are_not_read_keep_their_place() -> None:
    body = tuple_of([build.sin(p(1, 3))])
    assert print_body(body, 3).startswith("{ lambda _ a:f32[3] _. let")
    typed = print_body(body, [aval((2,), I32), aval((3,), F32)])
    assert typed.startswith("{ lambda a:i32[2] b:f32[3]. let")


def test_literals_are_typed_where_nothing_else_says_it() -> None:
    x = p(0, 3)
    weak = const(1.5, F32, True)
    flags = build.full((2,), const(True, np.dtype(bool)))
    body = tuple_of([build.mul(x, const(0.1, F32)), weak, flags])
    assert print_body(body) == (
        "{ lambda a:f32[3]. let\n"
        "    b:f32[3] = mul a 0.1\n"
        "    c:bool[2] = expand[dims=()] True:bool[]\n"
        "  in (b, 1.5:f32[]{weak}, c) }"
    )
    both = UOp(Op.ADD, (const(1, F32), const(2, F32)))
    assert "add 1.0:f32[] 2.0:f32[]" in print_body(tuple_of([both]))


def test_static_data_is_printed_by_name() -> None:
    x = p(0, 8, 4)
    nodes = {
        "slice[start=(0,1) stop=(8,3)] a": build.slice_(x, (0, 1), (8, 3)),
        "slice[start=(0,0) stop=(8,4) step=(2,1)] a": build.slice_(x, (0, 0), (8, 4), (2, 1)),
        "pad[lo=(1,0) hi=(0,0)] a 0.0:f32[]": build.pad(x, ((1, 0, 0), (0, 0, 0))),
        "pad[lo=(0,0) hi=(0,0) interior=(1,0)] a 0.0:f32[]": build.pad(x, ((0, 0, 1), (0, 0, 0))),
        "reduce_max[axes=(1)] a": build.reduce("max", x, [1]),
        "prefix_add[axis=0] a": build.prefix("add", x, 0),
        "reshape a": build.reshape(x, (32,)),
        "permute[perm=(1,0)] a": build.permute(x, (1, 0)),
        "cast a": build.cast(x, np.int32),
        "iota[axis=1]": build.iota((2, 3), 1),
        "flip[axes=(0)] a": build.flip(x, (0,)),
        "window[axis=0 size=3 stride=1 dilation=2] a": build.window(x, 0, 3, 1, 2),
        "remat[id=4] a": UOp(Op.REMAT, (x,), 4),
        "concat[axis=0] a a": build.concat([x, x], 0),
    }
    for text, node in nodes.items():
        equation = print_body(tuple_of([node])).split(" = ")[1].split(" in (")[0].strip()
        assert equation == text


def test_shared_bodies_are_named_once_on_top_and_others_stand_in_place() -> None:
    layer = tuple_of([build.sin(p(0, 3))])
    x = p(0, 3)
    for _ in range(2):
        x = get(UOp(Op.CALL, (layer, x), CallInfo("jit", "layer")), 0)
    step = tuple_of([build.add(p(0), p(1)), build.mul(p(0), p(1))])
    scan = UOp(Op.SCAN, (step, const(0, F32), x), ScanInfo(0, 1, 3))
    assert print_body(tuple_of([get(scan, 0)])) == (
        "let layer = { lambda a:f32[3]. let b:f32[3] = sin a in (b,) } in\n"
        "{ lambda a:f32[3]. let\n"
        "    b:f32[3] = jit[name=layer body=layer] a\n"
        "    c:f32[3] = jit[name=layer body=layer] b\n"
        "    d:f32[] _:f32[3] = scan[\n"
        "      body={ lambda a:f32[] b:f32[]. let\n"
        "          c:f32[] = add a b\n"
        "          d:f32[] = mul a b\n"
        "        in (c, d) }\n"
        "      num_consts=0\n"
        "      num_carry=1\n"
        "      length=3\n"
        "    ] 0.0:f32[] c\n"
        "  in (d,) }"
    )


def test_branches_and_loops_print_their_bodies() -> None:
    up = tuple_of([build.exp(p(0))])
    down = tuple_of([build.mul(p(0), const(2.0, F32))])
    cond = UOp(Op.COND, (up, down, const(1, I32), p(0)), 2)
    stop = tuple_of([UOp(Op.CMPLT, (p(0), const(9.0, F32)))])
    loops = UOp(Op.WHILE, (stop, down, get(cond, 0)), WhileInfo(0, 0))
    assert print_body(tuple_of(results(loops))) == (
        "let cond_body = { lambda a:f32[]. let b:f32[] = mul a 2.0 in (b,) } in\n"
        "{ lambda a:f32[]. let\n"
        "    b:f32[] = cond[\n"
        "      branches=(\n"
        "        { lambda a:f32[]. let b:f32[] = exp a in (b,) }\n"
        "        cond_body\n"
        "      )\n"
        "    ] 1:i32[] a\n"
        "    c:f32[] = while[\n"
        "      cond={ lambda a:f32[]. let b:bool[] = cmplt a 9.0 in (b,) }\n"
        "      body=cond_body\n"
        "      cond_consts=0\n"
        "      body_consts=0\n"
        "    ] b\n"
        "  in (c,) }"
    )


def test_what_an_open_graph_takes_from_outside_stands_first() -> None:
    v = fresh_var(aval((3,), F32))
    text = print_graph([build.add(build.mul(v, buffer(np.ones(3, F32))), p(0, 3))])
    assert text.startswith("{ lambda a:f32[3] b:f32[3]; c:f32[3]. let\n    d:f32[3] = mul a b\n")


def test_source_lines_stand_in_a_column() -> None:
    code = sys._getframe().f_code
    node = build.sin(p(0, 3))
    root = build.add(node, node)
    text = print_body(tuple_of([root]), sites={node: (code, 0), root: "train.py:7 (loss)"})
    first, second = text.splitlines()[1:3]
    assert first.startswith("    b:f32[3] = sin a    # test_printer.py:")
    assert second == "    c:f32[3] = add b b  # train.py:7 (loss)"


def test_letters_go_on_after_z() -> None:
    names = [letters(i) for i in (0, 25, 26, 51, 52, 701, 702)]
    assert names == ["a", "z", "aa", "az", "ba", "zz", "aaa"]


class Tags(HTMLParser):
    """Checks that tags nest, and remembers attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_folds_bodies_and_links_to_the_source() -> None:
    layer = tuple_of([build.sin(p(0, 3))])
    call = UOp(Op.CALL, (layer, p(0, 3)), CallInfo("jit", "<lambda>"))
    body = tuple_of([get(call, 0)])
    jaxpr = Jaxpr(body, 1, {call: (sys._getframe().f_code, 0)})
    page = jaxpr._repr_html_()
    tags = Tags()
    tags.feed(page)
    assert not tags.open and "<details>" in page and "<lambda>" not in page
    assert len(tags.links) == 1 and tags.links[0].startswith("file://")
    assert str(jaxpr) == repr(jaxpr) and jaxpr == Jaxpr(body, 1)
    assert jaxpr.in_avals == jaxpr.out_avals == [aval((3,), F32)]


def test_deep_graphs_print_in_linear_time_without_recursion() -> None:
    node = p(0)
    for _ in range(30_000):
        node = build.neg(build.exp(node))
    text = print_body(tuple_of([node]))
    assert text.count("\n") == 60_001
    assert len(expression(node)) < 2000


# --- kernels and lists -------------------------------------------------------------------------


def softmax_kernel() -> UOp:
    r0, r1, r2, r3 = loop(0, 8), loop(1, 32, "reduce"), loop(2, 32, "reduce"), loop(3, 32)

    def load(r: UOp) -> UOp:
        return UOp(Op.LOAD, (UOp(Op.INDEX, (p(1, 8, 32), add(mul(r0, integer(32)), r))),))

    most = UOp(Op.FOLD, (load(r1), r1), "max")
    total = UOp(Op.FOLD, (build.exp(build.sub(load(r2), most)), r2), "add")
    value = build.div(build.exp(build.sub(load(r3), most)), total)
    at = UOp(Op.INDEX, (p(0, 8, 32), add(mul(r0, integer(32)), r3)))
    return UOp(Op.SINK, (UOp(Op.END, (UOp(Op.STORE, (at, value)), r0, r3)),))


def test_a_kernel_prints_as_its_loops() -> None:
    assert print_kernel(softmax_kernel()) == (
        "kernel(p0: f32[8,32], p1: f32[8,32]):\n"
        "  for r0 in 0..8 (loop):\n"
        "    a = r0*32\n"
        "    c = max of nothing\n"
        "    for r1 in 0..32 (reduce):\n"
        "      c = max(c, p1[a + r1])\n"
        "    d = add of nothing\n"
        "    for r2 in 0..32 (reduce):\n"
        "      d += exp(p1[a + r2] - c)\n"
        "    for r3 in 0..32 (loop):\n"
        "      b = a + r3\n"
        "      p0[b] = exp(p1[b] - c)/d"
    )


def test_an_argmax_whose_index_is_its_loop_prints_one_loop() -> None:
    """The index was taken for one more range that the fold closes."""
    i, k = loop(0, 5), loop(1, 3, "reduce")
    x = UOp(Op.LOAD, (UOp(Op.INDEX, (p(1, 15), add(mul(i, integer(3)), k))),))
    most = get(UOp(Op.FOLD, (x, k, k), "argmax"), 1)
    at = UOp(Op.INDEX, (p(0, 5, dtype=np.dtype(np.int64)), i))
    assert print_kernel(UOp(Op.SINK, (UOp(Op.END, (UOp(Op.STORE, (at, most)), i)),))) == (
        "kernel(p0: i64[5], p1: f32[15]):\n"
        "  for r0 in 0..5 (loop):\n"
        "    a = argmax of nothing\n"
        "    for r1 in 0..3 (reduce):\n"
        "      a = argmax(a, p1[r0*3 + r1], r1)\n"
        "    p0[r0] = a.1"
    )


def test_guarded_loads_and_operators_print_as_read() -> None:
    r = loop(0, 9)
    guarded = UOp(Op.INDEX, (p(0, 9), r, lt(r, integer(4))))
    load = UOp(Op.LOAD, (guarded, const(0.0, F32)))
    assert expression(load) == "p0[r0 if r0 < 4] else 0.0"
    x, y, z = p(0), p(1), p(2)
    assert expression(build.mul(build.add(x, y), z)) == "(p0 + p1)*p2"
    assert expression(build.sub(x, build.sub(y, z))) == "p0 - (p1 - p2)"
    assert expression(build.neg(build.add(x, y))) == "-(p0 + p1)"
    assert expression(idiv(add(r, integer(1)), integer(2))) == "(r0 + 1)//2"
    assert expression(build.cast(x, np.float64)) == "f64(p0)"


def test_a_list_prints_numbered_and_indented() -> None:
    r = loop(0, 4)
    store = UOp(Op.STORE, (UOp(Op.INDEX, (p(0, 4), r)), const(1.0, F32)))
    nodes = [n for n in toposort([store]) if n.op is not Op.CONST]
    assert print_list([*nodes, UOp(Op.END, (store, r))]) == (
        "%0:f32[4] = param[slot=0]\n"
        "%1:i64[] = range[id=0 kind=loop] 4:i64[]\n"
        "  %2:f32[4] = index %0 %1\n"
        "  %3 = store %2 1.0:f32[]\n"
        "%4 = end %3 %1"
    )
