"""Steps pack into words, name only what exists, and print."""

from __future__ import annotations

import re

import pytest

from tinyjax.runtime.native_ir import native_ir
from tinyjax.runtime.steps import (
    Advance,
    Branch,
    Call,
    CallProgram,
    Cell,
    Copy,
    Dim,
    Fill,
    Layout,
    Limits,
    Loop,
    Opcode,
    Point,
    Return,
    StepError,
    Swap,
    While,
    pack,
    show,
)

LIMITS = Limits(slots=4, dims=2, kernels=2, programs=1, handlers=1)

# One of everything.
EVERYTHING = (
    Call(0, (0, 1)),
    Call(1, (2,), 0, Dim(1), 64),
    Point(3, 0, Cell(2), Dim(0)),
    Loop(
        Dim(0),
        (
            Loop(5, (Call(0, (1, 0)), Advance(3, -8)), counter=2, reverse=True),
            While((Call(1, (1,)),), 1, (Swap(0, 1),)),
        ),
    ),
    Branch(2, ((Copy(0, 1, 16),), (), (Fill(0, 255, Dim(1)),))),
    Branch(2, ((Return(0, (1,)),), (CallProgram(0, (0, 1), 3, (1,)),)), boolean=True),
)


def test_a_loop_packs_its_body_between_loop_and_next():
    packed = pack([Loop(7, (Call(1, (2, 0)),), counter=3)], LIMITS)
    assert packed.words == [
        *(Opcode.LOOP, 0, 7, 3, 0, 0, 19),
        *(Opcode.CALL, 0, 0, 0, 2, 2, 0),
        *(Opcode.NEXT, -7, 3, 0, 0),
        Opcode.END,
    ]
    assert packed.kernels == [(8, 1)]
    assert (packed.loops, packed.gathered, packed.calls, packed.polls) == (1, 2, 1, True)


def test_branches_jump_to_their_common_end():
    packed = pack([Branch(1, ((Swap(0, 1),), (Swap(2, 3),)))], LIMITS)
    assert packed.words == [
        *(Opcode.BRANCH, 1, 0, 2, 6, 12),
        *(Opcode.SWAP, 0, 1),
        *(Opcode.JUMP, 6, 0),
        *(Opcode.SWAP, 2, 3),
        Opcode.END,
    ]
    assert not packed.polls


def test_while_tests_at_the_top_and_polls_when_it_jumps_back():
    packed = pack([While((Call(0, (1,)),), 1, (Swap(0, 2),))], LIMITS)
    assert packed.words == [
        *(Opcode.CALL, 0, 0, 0, 1, 1),
        *(Opcode.UNLESS, 1, 9),
        *(Opcode.SWAP, 0, 2),
        *(Opcode.JUMP, -12, 1),
        Opcode.END,
    ]


def test_loop_states_are_shared_by_loops_that_are_not_nested():
    twice = (Loop(2, (Loop(3, ()),)), Loop(4, ()))
    assert pack(twice, LIMITS).loops == 2


def test_tracing_names_each_kernel_before_it_is_called():
    packed = pack([Call(1, ()), Call(0, ())], LIMITS, trace=True)
    assert packed.names == [(1, 1), (8, 0)]
    assert packed.words[0] == packed.words[7] == Opcode.TRACE


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Call(2, ()), "kernel 2; the program has 2"),
        (Call(0, (4,)), "slot 4"),
        (Call(0, (-1,)), "slot -1"),
        (Call(0, (0,), 0, Dim(2)), "dim 2"),
        (Call(0, (0,), 0, 8, -1), "negative chunk"),
        (CallProgram(1, (), 0), "program 1"),
        (CallProgram(0, (), 0, (2,)), "dim 2"),
        (Loop(1, (Swap(0, 9),)), "slot 9"),
        (Loop(1, (), counter=4), "slot 4"),
        (While((), 4, ()), "slot 4"),
        (Branch(0, ()), "no branches"),
        (Point(0, 4), "slot 4"),
        (Advance(0, Cell(4)), "slot 4"),
        (Copy(0, 4, 1), "slot 4"),
        (Fill(4, 0, 1), "slot 4"),
        (Return(1), "handler 1"),
        (Return(0, (4,)), "slot 4"),
    ],
)
def test_a_step_that_names_what_is_not_there_is_refused(step, message):
    with pytest.raises(StepError, match=message):
        pack([step], LIMITS)


def test_steps_print_one_per_line_with_bodies_indented():
    assert show(EVERYTHING, ["add", "mul"]).splitlines() == [
        "add(%0, %1)",
        "mul(%2) over [0, d1) by 64",
        "%3 = %0 + [%2] * d0",
        "loop d0",
        "  loop 5 counter %2 reverse",
        "    add(%1, %0)",
        "    %3 += -8",
        "  while",
        "    mul(%1)",
        "    stop unless %1",
        "    %0, %1 = %1, %0",
        "branch int32 %2",
        "case 0",
        "  copy 16 bytes to %0 from %1",
        "case 1",
        "case 2",
        "  fill d1 bytes of %0 with 255",
        "branch bool %2",
        "case 0",
        "  python 0(%1)",
        "case 1",
        "  program0(%0, %1) in %3 dims d1",
    ]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_walker_has_one_case_per_opcode(machine):
    text = native_ir(machine, pool=True, sigint=True)
    labels = re.findall(r"^case_(\w+):$", text, re.MULTILINE)
    assert labels == sorted(labels, key=lambda name: Opcode[name.upper()])
    assert len(labels) == len(Opcode)


def test_a_layout_counts_its_slots():
    assert Layout(2, constants=1, offsets=(0, 64), arena_bytes=128).slots == 5
