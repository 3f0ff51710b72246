"""Patterns, rule tables, the driver: what matches, in which order, how often, what is logged."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tinyjax.core import build
from tinyjax.core.avals import aval
from tinyjax.core.errors import InvariantError
from tinyjax.core.infos import CallInfo
from tinyjax.core.integers import integer
from tinyjax.core.ops import MOVEMENT, Op
from tinyjax.core.record import counting, record_rewrites
from tinyjax.core.rewrite import P, RewriteLoopError, Rules, rewrite
from tinyjax.core.uop import UOp, const, get, param, tuple_of

INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
I, J = param(0, aval((), INT64)), param(1, aval((), INT64))
A = param(0, aval((8, 4), FLOAT32))

x, y, c, d = P.any("x"), P.any("y"), P.number("c"), P.number("d")

simplify = Rules("simplify")


@simplify.rule(P.idiv(P.mul(x, c), d), when=lambda c, d: d != 0 and c % d == 0)
def divide_exact_multiple(x: UOp, c: int, d: int) -> UOp:
    """(x*c)//d -> x*(c//d), when d divides c (floor division, any sign)"""
    return build.mul(x, integer(c // d))


@simplify.rule(P.add(x, 0, any_order=True))
def drop_zero(x: UOp) -> UOp:
    """x + 0 -> x"""
    return x


@simplify.rule(P.reshape(P.reshape(x), name="outer"))
def merge_reshapes(x: UOp, outer: UOp) -> UOp:
    """reshape(reshape(x, s), t) -> reshape(x, t)"""
    return build.reshape(x, outer.shape)


def once(node: UOp, rules: Rules = simplify) -> UOp:
    return rewrite([node], rules)[0]


def test_a_rule_applies_when_its_condition_holds() -> None:
    six = UOp(Op.MUL, (I, integer(6)))
    assert once(UOp(Op.IDIV, (six, integer(3)))) is UOp(Op.MUL, (I, integer(2)))
    kept = UOp(Op.IDIV, (six, integer(4)))
    assert once(kept) is kept


def test_both_orders_of_a_commutative_pattern_match() -> None:
    assert once(UOp(Op.ADD, (I, integer(0)))) is I
    assert once(UOp(Op.ADD, (integer(0), I))) is I
    assert once(UOp(Op.ADD, (I, J))) is UOp(Op.ADD, (I, J))


def test_a_replacement_is_rewritten_where_it_is_made_in_the_same_walk() -> None:
    node = A
    for shape in ((32,), (4, 8), (1, 32), (16, 2), (2, 2, 8), (2, 16)):
        node = UOp(Op.RESHAPE, (node,), shape)
    zero = UOp(Op.ADD, (integer(0), UOp(Op.IDIV, (UOp(Op.MUL, (I, integer(6))), integer(6)))))
    with counting() as counts:
        shaped, plain = rewrite([node, zero], simplify)
    assert shaped is UOp(Op.RESHAPE, (A,), (2, 16))
    assert plain is I
    assert (counts.walks, counts.rewrites) == (1, 7)


def test_shared_nodes_are_visited_once() -> None:
    node = I
    for _ in range(40):  # 2**40 paths
        node = UOp(Op.ADD, (node, node))
    with counting() as counts:
        assert once(node) is node
    assert counts.nodes == 41


def test_patterns_bind_repeated_names_types_args_and_the_rest() -> None:
    table = Rules("table")
    table.rule(P.sub(x, x), name="cancel")(lambda x: build.like(x, 0))
    table.rule(P.cast(x, arg=(FLOAT32, False), name="n"), name="to_float")(lambda n: build.sin(n))
    table.rule(P.max(P.any("x", dtype=np.int64), P.const("k")), name="typed")(lambda x, k: k)
    table.rule(P.concat(x, rest="others"), when=lambda others: len(others) == 2, name="three")(
        lambda x, others: build.concat([*others, x], 0)
    )
    assert once(UOp(Op.SUB, (I, I)), table) is integer(0)
    assert once(UOp(Op.SUB, (I, J)), table) is UOp(Op.SUB, (I, J))
    assert once(UOp(Op.MAX, (I, integer(3))), table) is integer(3)
    floats = UOp(Op.MAX, (const(1, FLOAT32), const(2, FLOAT32)))
    assert once(floats, table) is floats
    parts = tuple(param(i, aval((2,), FLOAT32)) for i in range(4))
    two, four = UOp(Op.CONCAT, parts[:2], 0), UOp(Op.CONCAT, parts, 0)
    assert once(two, table) is two and once(four, table) is four


def test_rules_of_several_ops_and_the_context_of_a_pass() -> None:
    table = Rules("forget")
    seen: list[str] = []

    @table.rule(P.of(MOVEMENT)(x, name="move"))
    def note_movement(move: UOp, ctx: list[str]) -> None:
        ctx.append(move.op.name)

    node = build.flip(build.permute(A, (1, 0)), (0,))
    assert rewrite([node], table, ctx=seen) == [node]
    assert seen == ["PERMUTE", "FLIP"]


def test_tables_compose_and_earlier_rules_come_first() -> None:
    first, second = Rules("first"), Rules("second")
    first.rule(P.neg(x), name="inner")(lambda x: x)
    second.rule(P.neg(x), name="double")(lambda x: build.add(x, x))
    second.rule(P.abs(x), name="bare")(lambda x: x)
    joined = first + second
    assert joined.name == "first+second" and len(joined) == 3
    node = UOp(Op.ABS, (UOp(Op.NEG, (I,)),))
    assert once(node, joined) is I
    assert once(node, second + first) is UOp(Op.ADD, (I, I))


def test_an_endless_rewrite_names_its_rules() -> None:
    table = Rules("swap")
    table.rule(P.add(x, y), name="swap_operands")(lambda x, y: UOp(Op.ADD, (y, x)))
    with pytest.raises(RewriteLoopError, match="pass tidy: .* swap_operands, swap_operands"):
        rewrite([UOp(Op.ADD, (I, J))], table, pass_name="tidy")
    growing = Rules("grow")
    growing.rule(P.neg(x), name="add_one")(lambda x: UOp(Op.NEG, (UOp(Op.ADD, (x, integer(1))),)))
    with pytest.raises(RewriteLoopError, match="1000 times over.*add_one"):
        once(UOp(Op.NEG, (I,)), growing)


def test_a_rule_may_not_change_the_type() -> None:
    table = Rules("wrong")
    table.rule(P.permute(x), name="drop_permute")(lambda x: x)
    with pytest.raises(InvariantError, match="pass wrong: rule drop_permute changed"):
        once(build.permute(A, (1, 0)), table)


def test_bodies_are_entered_only_when_asked() -> None:
    body = tuple_of([UOp(Op.ADD, (I, integer(0)))])
    node = get(UOp(Op.CALL, (body, J), CallInfo("jit", "f")), 0)
    assert once(node) is node
    (inside,) = rewrite([node], simplify, bodies=True)
    assert inside.src[0].src[0] is tuple_of([I])


def test_every_rewrite_is_recorded_and_printed() -> None:
    node = UOp(Op.ADD, (integer(0), UOp(Op.IDIV, (UOp(Op.MUL, (I, integer(6))), integer(3)))))
    with record_rewrites() as log:
        rewrite([node], simplify, pass_name="index")
        rewrite([J], simplify, pass_name="nothing")
    assert [(p, rule) for p, rule, _, _ in log] == [
        ("index", "divide_exact_multiple"),
        ("index", "drop_zero"),
    ]
    assert str(log) == (
        "pass index: 9 nodes, 2 rewrites\n"
        "  divide_exact_multiple\n    - p0*6//3\n    + p0*2\n"
        "  drop_zero\n    - 0 + p0*2\n    + p0*2\n"
        "\n"
        "pass nothing: 1 nodes, 0 rewrites"
    )
    page = log.html()
    assert page.startswith("<!doctype html>") and "p0*6//3" in page
    assert "http" not in page and "src=" not in page
    with counting() as counts:  # nothing is recorded any more
        rewrite([node], simplify)
    assert len(log) == 2 and counts.rewrites == 2


def test_tables_print_their_rules_and_matchers_can_be_read() -> None:
    assert str(simplify).splitlines()[:2] == [
        "simplify: 3 rules",
        "  divide_exact_multiple            "
        "(x*c)//d -> x*(c//d), when d divides c (floor division, any sign)",
    ]
    source = simplify.source(Op.ADD)
    assert source.count("# drop_zero") == 2 and simplify.source(Op.EXP) == ""


def test_mistakes_in_rules_are_found_when_they_are_registered_or_first_used() -> None:
    table = Rules("bad")
    with pytest.raises(TypeError, match="needs name="):
        table.rule(P.neg(x))(lambda x: x)
    with pytest.raises(TypeError, match="an op at its root"):
        table.rule(x, name="any")(lambda x: x)
    with pytest.raises(AttributeError, match="no op FROB"):
        P.frob(x)
    table.rule(P.neg(x), name="unbound")(lambda z: z)
    with pytest.raises(TypeError, match="binds no 'z'"):
        once(UOp(Op.NEG, (I,)), table)


def test_deep_graphs_need_no_recursion() -> None:
    node = I
    for i in range(100_000):
        node = UOp(Op.ADD, (node, integer(i % 3)))
    with counting() as counts:
        made = once(node)
    assert counts.rewrites == 33_334 and made.op is Op.ADD


def test_nothing_is_compiled_at_import() -> None:
    code = (
        "import builtins; real = builtins.compile\n"
        "def watched(source, filename, *args, **kwargs):\n"
        "    assert '<tinyjax' not in str(filename), filename\n"
        "    return real(source, filename, *args, **kwargs)\n"
        "builtins.compile = watched\n"
        "import tinyjax.core.rewrite"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
