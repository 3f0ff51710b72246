"""The list of passes: what it says is what runs; the driver checks, records and times it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tinyjax
from tests.lowering.bodies import arg, transformer
from tests.lowering.kernels import (
    buffer,
    check,
    fold,
    kernel,
    load,
    loop,
    node,
    plus,
    store,
)  # fmt: skip
from tinyjax import numpy as jnp
from tinyjax.core import build as B
from tinyjax.core.config import verify as verifying
from tinyjax.core.integers import integer
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, toposort, tuple_of
from tinyjax.core.verify import StageError
from tinyjax.lowering import passes
from tinyjax.lowering.codegen import compile_kernel, compile_kernels
from tinyjax.lowering.driver import Pass, Passes, run
from tinyjax.lowering.nest import extent
from tinyjax.lowering.passes import KERNEL, LOOPS, PASSES
from tinyjax.lowering.program import lower
from tinyjax.lowering.substitute import substitute
from tinyjax.lowering.target import Target, host

F32 = np.dtype(np.float32)


def sums() -> UOp:
    """Rows of a 3x40 matrix, summed."""
    i, r = loop(3, 0), loop(40, 1, "reduce")
    value = load(buffer(1, (3, 40), F32), plus((i, 40), r))
    return kernel(store(buffer(0, (3,), F32), i, fold("add", value, r), i))


def named(log, name):
    return [r for r in log.passes if r.name == name]


# --- the list -----------------------------------------------------------------------------------


def test_passes_have_names_of_their_own_and_a_line_that_says_before_and_after():
    assert len({p.name for p in PASSES}) == len(PASSES)
    for p in PASSES:
        assert " -> " in p.text and len(p.text) < 100, p.name
        for condition in (p.before, p.after):
            assert condition is None or condition.__doc__


def test_each_pass_takes_the_stage_that_one_before_it_gives():
    made = {PASSES[0].takes, passes.CONTRACTION, passes.SORT}
    for p in PASSES:
        assert p.takes in made, p.name
        made.add(p.gives)


def test_the_list_prints_a_line_per_pass():
    lines = str(PASSES).splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == [p.name for p in PASSES]


SPECIFIED_IN = {
    "rangeify": "test_rangeify.py",
    "gate_loads": "test_guards.py",
    "shrink_ranges": "test_guards.py",
}
"""Passes whose expected text is in the file that tests them; the others have one in passes/."""


@pytest.mark.parametrize("name", [p.name for p in PASSES])
def test_every_pass_has_a_file_that_reads_as_its_specification(name):
    file = Path(__file__).parent / SPECIFIED_IN.get(name, f"passes/test_{name}.py")
    assert {"assert_pass(", "assert_text("} & set(re.findall(r"assert_\w+\(", file.read_text()))


def test_what_runs_is_what_the_list_says_in_its_order():
    body, inputs = transformer(1)
    with tinyjax.record_rewrites() as log:
        lower(body, inputs).program()
    order = {p.name: i for i, p in enumerate(PASSES)}
    ran = [r.name for r in log.passes]
    assert set(ran) == set(order) - {"sort"}
    first = ran.index("rangeify")
    assert ran[:first] == [p.name for p in PASSES[:first]]
    for kernel_passes in " ".join(ran).split("rangeify")[1:]:
        steps = [order[name] for name in kernel_passes.split() if name != "contract"]
        assert steps == sorted(steps)


def test_a_pass_is_added_by_one_entry(monkeypatch):
    seen = []

    def look(sink: UOp, target) -> UOp:
        """kernel -> the same"""
        seen.append((sink, target))
        return sink

    more = Passes((*LOOPS[:3], Pass(look, KERNEL, KERNEL), *LOOPS[3:]))
    sink = sums()
    made = run(more, sink, target=host(), name="k", slots=None)
    assert seen and seen[0][1] is host() and made.ir_text


# --- checks -------------------------------------------------------------------------------------


def shortened(sink: UOp) -> UOp:
    """range -> a range that lacks its last iteration"""
    ranges = [n for n in toposort([sink]) if n.op is Op.RANGE and n.arg[1] == "reduce"]
    return substitute(sink, {r: UOp(Op.RANGE, (integer(extent(r) - 1),), r.arg) for r in ranges})


def broken(sink: UOp) -> UOp:
    """kernel -> one that nothing closes"""
    end = sink.src[0]
    return UOp(Op.SINK, (UOp(Op.END, end.src[:1]),))


def never(sink: UOp) -> bool:
    """pigs fly"""
    return False


def test_level_1_names_a_pass_that_leaves_an_illegal_kernel():
    with verifying(1), pytest.raises(StageError, match="after pass broken: .*never closed"):
        run([Pass(broken, KERNEL, KERNEL)], sums())


def test_level_1_checks_the_conditions():
    same = Pass(lambda sink: sink, KERNEL, KERNEL, before=never)
    with verifying(1), pytest.raises(StageError, match="needs: pigs fly"):
        run([same], sums())
    with verifying(1), pytest.raises(StageError, match="ensures: pigs fly"):
        run([Pass(lambda sink: sink, KERNEL, KERNEL, after=never)], sums())
    assert run([same], sums()) is sums()


def test_level_2_names_a_pass_that_changes_a_result():
    one = [Pass(shortened, KERNEL, KERNEL)]
    with verifying(1):
        run(one, sums())
    with verifying(2), pytest.raises(StageError, match="pass shortened changes what .* slot 0"):
        run(one, sums())


@pytest.mark.parametrize("level", [1, 2])
def test_all_passes_keep_their_conditions_on_a_transformer(level):
    body, inputs = transformer(1, batch=1, time=4, width=8, heads=2)
    with verifying(level):
        lower(tuple_of(body.src), inputs).program()


def test_level_2_compares_both_kernels_of_a_shared_reduction_with_the_one_they_replace(monkeypatch):
    monkeypatch.setattr(passes, "wanted_chunks", lambda tasks, cycles: 4)
    x = arg(0, (1600,))
    body = tuple_of([B.sum_(x, [0])])
    with verifying(2), tinyjax.record_rewrites() as log:
        lower(body).program()
    (shared,) = named(log, "share")
    assert shared.stage == "schedule -> schedule" and len(named(log, "emit_kernel")) == 2

    def lost(sink, chunks, slots):
        split = passes_split(sink, chunks, slots)
        return type(split)(split.partial, shortened(split.final), split.scratch)

    passes_split = passes.split_folds
    monkeypatch.setattr(passes, "split_folds", lost)
    with verifying(2), pytest.raises(StageError, match="pass share changes what"):
        run(LOOPS, sums(), target=host(), name="k", slots=None)


# --- records ------------------------------------------------------------------------------------


def test_a_log_shows_each_pass_with_its_rules_nodes_and_time():
    r = loop(30, 0, "reduce")
    guard = node(Op.CMPLT, r, 7)
    x = load(buffer(1, (30,), F32), r)
    value = UOp(Op.WHERE, (guard, x, B.scalar(0.0, F32)))
    sink = kernel(store(buffer(0, (1,), F32), plus(0), fold("add", value, r)))
    masks = Target("x86_64-linux", "", "", 64, 32, True, True, True)
    with tinyjax.record_rewrites() as log:
        compile_kernel(sink, masks)
    assert [r.name for r in log.passes] == [
        p.name for p in PASSES if p in LOOPS and p.name != "share"
    ]
    (gate,), (shrink,) = named(log, "gate_loads"), named(log, "shrink_ranges")
    assert [s.rule for s in gate.steps] == ["gate_where_true"]
    assert shrink.title.startswith("pass shrink_ranges (kernel -> kernel): ")
    assert "  -   for r0 in 0..30 (reduce):\n" in str(shrink)
    assert "  +   for r0 in 0..7 (reduce):\n" in str(shrink)
    assert all(r.seconds > 0 and r.nodes > 0 and r.made > 0 for r in log.passes)
    table = log.table().splitlines()
    assert table[1].split()[0] == "simplify_indices" and table[-1].split()[0] == "total"
    page = log.html()
    assert "gate_where_true" in page and "http" not in page


def test_a_pass_that_changes_nothing_takes_one_line():
    with tinyjax.record_rewrites() as log:
        compile_kernel(sums())
    (split,) = named(log, "split_ranges")
    assert str(split) == f"pass split_ranges (kernel -> kernel): {split.nodes} nodes, unchanged"


def test_what_was_lowered_before_is_recorded_again_and_nothing_when_no_log_is_open():
    sink = sums()
    first = compile_kernels(sink)
    with tinyjax.record_rewrites() as log:
        again = compile_kernels(sink)
    assert log.passes and again[0].ir_text == first[0].ir_text
    count = len(log.passes)
    compile_kernel(sums())
    assert len(log.passes) == count
    assert compile_kernels(sink) is again


def test_a_jitted_function_shows_its_way_to_llvm():
    def f(x):
        return jnp.where(jnp.arange(8) < 3, x, 0.0).sum(axis=1)

    with tinyjax.record_rewrites() as log:
        tinyjax.jit(f).lower(jnp.ones((4, 8))).as_text("llvm")
    text = str(log)
    assert text.index("pass inline") < text.index("pass rangeify") < text.index("pass emit_kernel")
    assert "for r1 in 0..3 (reduce):" in text and "define void @k(" in text


def test_logs_nest():
    with tinyjax.record_rewrites() as outer:
        compile_kernel(sums())
        with tinyjax.record_rewrites() as inner:
            compile_kernel(sums())
    assert len(outer.passes) == 2 * len(inner.passes) > 0


def test_the_kernels_of_this_file_are_right():
    check(sums(), [np.zeros(3, F32), np.arange(120, dtype=F32).reshape(3, 40)])


def test_a_log_is_saved_as_a_page(tmp_path):
    with tinyjax.record_rewrites() as log:
        compile_kernel(sums())
    log.save(tmp_path / "passes.html")
    assert (tmp_path / "passes.html").read_text() == log.html()
