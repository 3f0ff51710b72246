"""Hardened kernels: wrong addresses are reported before anything is touched, right ones are free."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.lowering import kernels as K
from tests.lowering.bodies import F32, I32, arg, normal, run
from tests.lowering.random_programs import Program
from tests.lowering.test_random_programs import agree, loop_of
from tinyjax.core import build as B
from tinyjax.core.config import config
from tinyjax.core.errors import KernelBoundsError
from tinyjax.core.infos import GatherInfo, ScatterInfo
from tinyjax.core.ops import Op
from tinyjax.core.uop import UOp, get, substitute, toposort, tuple_of
from tinyjax.interpreters.evaluate import evaluate_body
from tinyjax.lowering import dot_kernel, program, sort
from tinyjax.lowering.harden import HardenError, harden
from tinyjax.lowering.kernel import Code
from tinyjax.lowering.program import lower


@pytest.fixture
def hardened():
    before = config.tinyjax_hardened
    config.update("tinyjax_hardened", True)
    yield
    config.update("tinyjax_hardened", before)


def guarded_run(body: UOp, args: list[np.ndarray]) -> list[np.ndarray]:
    """Run with patterns around inputs and outputs, which must survive."""
    lowered = lower(body, len(args))
    outs = [np.zeros(s.aval.shape, s.aval.dtype) for s in lowered.plan.outputs]
    placed = [K.guarded(a) for a in (*args, *outs)]
    made = lowered.program()
    try:
        made.run(*(inner.ctypes.data for inner, _ in placed))
    finally:
        for inner, whole in placed:
            around = np.delete(whole, np.arange(256, 256 + inner.nbytes))
            assert (around == 0xA5).all()
    return [inner for inner, _ in placed[len(args) :]]


def change_kernels(monkeypatch, change) -> None:
    """Nests are compiled from what `change` makes of the right stage-2 kernel."""
    right = program.compile_kernels
    monkeypatch.setattr(
        program, "compile_kernels", lambda sink, *how: right(change(sink), *how)
    )  # fmt: skip


def shifted(sink: UOp, of: Op, by: int) -> UOp:
    """The index expressions of all loads or stores moved by some elements."""
    found = [n for n in toposort([sink]) if n.op is of]
    moved = {}
    for n in found:
        index = n.src[0]
        at = UOp(Op.ADD, (index.src[1], K.literal(by)))
        moved[index] = UOp(Op.INDEX, (index.src[0], at, *index.src[2:]))
    indexes = {n: UOp(of, (moved[n.src[0]], *n.src[1:])) for n in found}
    return substitute([sink], indexes)[0]


def elementwise(shape, dtype=F32):
    x, y = arg(0, shape, dtype), arg(1, shape, dtype)
    return tuple_of([B.add(x, y)])


ELEMENTWISE = [(7,), (64,), (37,), (1000,), (5, 13)]


@pytest.mark.parametrize("dtype", [F32, "int8", "float64", "bool", "complex64", "float16"], ids=str)
@pytest.mark.parametrize("shape", ELEMENTWISE, ids=str)
@pytest.mark.parametrize(("of", "by"), [(Op.STORE, 1), (Op.STORE, -1), (Op.LOAD, 1), (Op.LOAD, -2)])
def test_an_index_off_by_one_is_reported(hardened, monkeypatch, dtype, shape, of, by):
    dtype = np.dtype(dtype)
    change_kernels(monkeypatch, lambda sink: shifted(sink, of, by))
    x, y = arg(0, shape, dtype), arg(1, shape, dtype)
    op = Op.XOR if dtype == np.bool_ else Op.ADD
    body = tuple_of([UOp(op, (x, y))])
    size = int(np.prod(shape))
    with pytest.raises(KernelBoundsError) as caught:
        guarded_run(body, [np.ones(shape, dtype)] * 2)
    message = str(caught.value)
    assert ("was about to write" if of is Op.STORE else "was about to read") in message
    assert f"outside of its extent {size}." in message
    assert message.startswith(f"kernel {op.name.lower()} was about to ")
    if by < 0:
        assert f"element {by} of slot" in message


def test_the_error_names_kernel_buffer_index_and_extent(hardened, monkeypatch):
    """A kernel written by hand in stage 2: out[i + 1] = x[i]."""
    i = K.loop(5, 0)
    wrong = K.kernel(
        K.store(K.buffer(0, (5,), F32), K.plus(i, 1), K.load(K.buffer(1, (5,), F32), i), i)
    )
    change_kernels(monkeypatch, lambda sink: wrong)
    lowered = lower(tuple_of([B.neg(arg(0, (5,)))]), 1)
    with pytest.raises(KernelBoundsError) as caught:
        run(lowered, [normal(0, 5)])
    assert str(caught.value) == (
        f"kernel neg was about to write element 5 of slot 0, {lowered.plan.outputs[0]}, outside "
        "of its extent 5. The program was stopped; its outputs are incomplete. Please report "
        "this bug."
    )


def reduction():
    return tuple_of([B.sum_(arg(0, (6, 50)), [1])])


def column_sums():
    return tuple_of([B.sum_(arg(0, (300, 70)), [0])])


def extremes():
    return tuple_of([B.argreduce("argmax", arg(0, (9, 33)), 1)[1]])


def transposed():
    return tuple_of([B.permute(arg(0, (40, 48)), (1, 0))])


def reversed_rows():
    return tuple_of([B.flip(arg(0, (4, 35)), (1,))])


def running_sum():
    return tuple_of([UOp(Op.PREFIX, (arg(0, (3, 29)),), ("add", 1, False))])


@pytest.mark.parametrize(
    "made", [reduction, column_sums, extremes, transposed, reversed_rows, running_sum]
)
@pytest.mark.parametrize(("of", "by"), [(Op.STORE, 1), (Op.LOAD, 1), (Op.LOAD, -1)])
def test_every_kind_of_nest_is_checked(hardened, monkeypatch, made, of, by):
    change_kernels(monkeypatch, lambda sink: shifted(sink, of, by))
    body = made()
    (source,) = {n for n in toposort([body]) if n.op is Op.PARAM}
    with pytest.raises(KernelBoundsError, match=" of slot "):
        guarded_run(body, [np.ones(source.shape, np.float32)])


def scatter_body(count: int, rows: int) -> UOp:
    """out = x with updates added to the rows that the indices name."""
    x, at, new = arg(0, (rows, 20)), arg(1, (count, 1), I32), arg(2, (count, 20))
    return tuple_of([B.scatter(x, at, new, ScatterInfo("add", (1,), (0,), (0,)))])


def gather_body(count: int, rows: int) -> UOp:
    x, at = arg(0, (rows, 20)), arg(1, (count, 1), I32)
    return tuple_of([B.gather(x, at, GatherInfo((1,), (0,), (0,), (1, 20)))])


def trusting(sink: UOp) -> UOp:
    """A kernel that believes its indices: no validity, no clamping."""
    changed = {}
    for n in toposort([sink]):
        if n.op is Op.INDEX and len(n.src) > 2:
            changed[n] = UOp(Op.INDEX, n.src[:2])
        elif n.op in (Op.MAX, Op.MIN) and n.aval.dtype == K.INT64:
            changed[n] = n.src[0]
    while True:
        after = substitute([sink], changed)[0]
        if after is sink:
            return sink
        sink = after


@pytest.mark.parametrize("index", [-1, 8, 1 << 20])
@pytest.mark.parametrize("made", [scatter_body, gather_body])
def test_indices_from_data_are_checked(hardened, monkeypatch, made, index):
    change_kernels(monkeypatch, trusting)
    body = made(5, 8)
    at = np.array([[1], [0], [index], [3], [7]], np.int32)
    args = [normal(0, 8, 20), at, normal(1, 5, 20)][: 3 if made is scatter_body else 2]
    with pytest.raises(KernelBoundsError, match="outside of its extent 160"):
        guarded_run(body, args)
    fine = [args[0], np.minimum(abs(at), 7), *args[2:]]
    agree(guarded_run(body, fine), evaluate_body(body, fine))


SIZES = [(70, 65, 33), (130, 300, 260)]


def dot_body(m: int, k: int, n: int, dtype=F32) -> UOp:
    return tuple_of([B.dot(arg(0, (m, k), dtype), arg(1, (k, n), dtype), ((1,), (0,)))])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("which", ["operand_of", "strided_store"])
def test_a_dot_with_a_wrong_address_is_reported(hardened, monkeypatch, sizes, dtype, which):
    m, k, n = sizes
    dtype = np.dtype(dtype)
    body = dot_body(m, k, n, dtype)
    args = [np.ones((m, k), dtype), np.ones((k, n), dtype)]
    agree(guarded_run(body, args), [np.full((m, n), k, dtype)])
    right = getattr(dot_kernel, which)
    if which == "operand_of":
        monkeypatch.setattr(
            dot_kernel,
            which,
            lambda slot, kind, view, sizes: dot_kernel.strided(
                slot, kind, row=sizes.size(view.row), col=sizes.size(view.col), offset=2
            ),
        )
        text = "was about to read element"
    else:
        monkeypatch.setattr(
            dot_kernel,
            which,
            lambda slot, kind, **sizes: right(slot, kind, **{**sizes, "row": n + 1}),
        )
        text = f"was about to write element .* of slot 0, .*outside of its extent {m * n}"
    with pytest.raises(KernelBoundsError, match=text):
        guarded_run(body, args)


def test_vectors_behind_the_last_example_read_nothing(hardened):
    """A panel's last vectors may have no lane on; the factor of their example does not exist."""
    x, factor, w = arg(0, (3, 33, 1)), arg(1, (3,)), arg(2, (1, 137))
    scaled = B.mul(x, B.expand(factor, x.shape, (0,)))
    body = tuple_of([B.dot(scaled, w, ((2,), (0,)))])
    args = [normal(0, 3, 33, 1), normal(1, 3), normal(2, 1, 137)]
    agree(guarded_run(body, args), evaluate_body(body, args))


@pytest.mark.parametrize("count", [9, 300])
def test_a_sort_with_a_wrong_length_is_reported(hardened, monkeypatch, count):
    body = tuple_of([get(UOp(Op.SORT, (arg(0, (4, count)),), (1, 1, True)), 0)])
    args = [normal(3, 4, count)]
    agree(guarded_run(body, args), [np.sort(args[0], 1)])
    right = sort.SortKernel.codes

    def longer(self, target):
        return [
            Code(c.ir_text, c.passes, c.total, c.chunk, c.scratch, (c.params[0] + 1, *c.params[1:]))
            for c in right(self, target)
        ]

    monkeypatch.setattr(sort.SortKernel, "codes", longer)
    with pytest.raises(KernelBoundsError, match="kernel sort was about to read element"):
        guarded_run(body, args)


def test_tasks_of_several_threads_report_once(hardened, monkeypatch):
    change_kernels(monkeypatch, lambda sink: shifted(sink, Op.STORE, 1 << 22))
    body = elementwise((1 << 20,))
    made = lower(body, 2)
    assert made.program().steps[1].chunk > 0  # a kernel of several tasks
    with pytest.raises(KernelBoundsError, match=r"element 4\d{6} of slot 0"):
        run(made, [np.ones(1 << 20, np.float32)] * 2)


def test_a_violation_is_that_of_the_run_it_happened_in(hardened, monkeypatch):
    """One program in four threads at once, one of them with a bad index."""
    change_kernels(monkeypatch, trusting)
    made = lower(gather_body(400, 50), 2).program()
    table = normal(0, 50, 20)
    outcomes: dict[int, set[str]] = {i: set() for i in range(4)}

    def work(number: int) -> None:
        at = np.arange(400, dtype=np.int32).reshape(400, 1) % 50
        if number == 2:
            at[123] = 50
        out = np.zeros((400, 20), np.float32)
        for _ in range(50):
            try:
                made.run(table.ctypes.data, at.ctypes.data, out.ctypes.data)
                right = (out == table.take(at[:, 0], 0, mode="clip")).all()
                outcomes[number].add("ok" if right else "wrong")
            except KernelBoundsError as error:
                caught = "element 1000 of slot 1" in str(error)
                outcomes[number].add("caught" if caught else str(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert outcomes == {0: {"ok"}, 1: {"ok"}, 2: {"caught"}, 3: {"ok"}}


def test_a_loop_stops_at_the_violation(hardened, monkeypatch):
    """The steps after it, and later iterations, do not run; the next call starts afresh."""
    body, args = loop_of(Program(3002, 20), 3, False)
    made = lower(body, 3)
    wanted = evaluate_body(body, args)
    agree(run(made, args), wanted)
    with monkeypatch.context() as patch:
        change_kernels(patch, lambda sink: shifted(sink, Op.STORE, 1 << 20))
        wrong = made.program()
    outs = [np.zeros(w.shape, w.dtype) for w in wanted]
    placed = [np.ascontiguousarray(a) for a in args]
    for _ in range(2):
        with pytest.raises(KernelBoundsError, match="was about to write"):
            wrong.run(*(a.ctypes.data for a in (*placed, *outs)))
    assert not any(o.any() for o in outs)


@pytest.mark.parametrize("seed", range(1000, 1025))
def test_random_programs_are_right(hardened, seed):
    made = Program(seed, 40)
    body = tuple_of(made.outputs)
    agree(run(lower(body, 3), made.args), evaluate_body(body, made.args))


def test_only_the_hardened_text_differs(monkeypatch, hardened):
    """Without the option, what is compiled is what the generators wrote."""
    body = tuple_of([B.sum_(B.dot(arg(0, (9, 8)), arg(1, (8, 7)), ((1,), (0,))), [0])])
    lowered = lower(body, 2)
    written = [
        code.ir_text
        for kernel in lowered.kernels
        for code in kernel.codes(program.host())
    ]  # fmt: skip
    from tinyjax.runtime import kernels

    seen: list[str] = []
    submit = kernels.submit
    monkeypatch.setattr(
        kernels, "submit", lambda ir, name, **how: seen.append(ir) or submit(ir, name, **how)
    )
    config.update("tinyjax_hardened", False)
    lowered.program()
    assert seen == written
    seen.clear()
    config.update("tinyjax_hardened", True)
    lowered.program()
    assert len(seen) == len(written) and not set(seen) & set(written)


FUNCTION = "define void @k(ptr %slots, ptr %dims, i64 %lo, i64 %hi) nounwind {{\nentry:\n{}}}\n"


HELPER = """define internal <4 x float> @half(<4 x float> %x) nounwind noinline memory(none) {
entry:
  %y = fmul <4 x float> %x, splat (float 0.5)
  ret <4 x float> %y
}
"""


def test_functions_of_values_are_left_alone():
    call = "  %v1 = call <4 x float> @half(<4 x float> zeroinitializer)\n  ret void\n"
    text, accesses = harden(HELPER + FUNCTION.format(call), [])
    assert HELPER in text and accesses == ()
    with pytest.raises(HardenError, match="function without memory"):
        harden(HELPER.replace("%x, splat", "ptr %x, splat"), [])


@pytest.mark.parametrize(
    "line",
    [
        "store i64 1, ptr inttoptr (i64 8 to ptr), align 8",
        "%v1 = load i64, ptr %dims.x, align 8",
        "%v1 = atomicrmw add ptr %slots, i64 1 monotonic",
        "call void @memcpy(ptr %dims, ptr %dims, i64 8)",
        "%v1 = load ptr, ptr %slots, align 8",
    ],
)
def test_an_access_that_cannot_be_checked_is_refused(line):
    with pytest.raises(HardenError):
        harden(FUNCTION.format(f"  {line}\n  ret void\n"), [])
