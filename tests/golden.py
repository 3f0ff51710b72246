"""Jaxprs as expected text: a test reads as the specification of one behaviour.

    def test_batching_a_matvec_makes_one_dot():
        assert_jaxpr(vmap(lambda x: A @ x), [f32[5, 3]], \"\"\"
            { lambda a:f32[5,3] b:f32[2,3]. let ... }\"\"\")

`TINYJAX_UPDATE_GOLDEN=1 pytest ...` writes the present text into the tests that differ: read the
diff before you commit it.
"""

from __future__ import annotations

import ast
import atexit
import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tinyjax
from tinyjax.lowering.passes import codes_of
from tinyjax.lowering.target import Target

UPDATE = os.environ.get("TINYJAX_UPDATE_GOLDEN") == "1"


class Spec:
    """`f32[5, 3]` is a float32 array of that shape, `f32[()]` a scalar."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def __getitem__(self, shape: int | tuple[int, ...]) -> Any:
        shape = shape if isinstance(shape, tuple) else (shape,)
        return tinyjax.ShapeDtypeStruct(shape, self.dtype)


f32, f64, i32, c64 = Spec("float32"), Spec("float64"), Spec("int32"), Spec("complex64")
pred = Spec("bool")


def jaxpr(f: Callable[..., Any], args: Sequence[Any]) -> str:
    """The jaxpr of `f` at these arguments, as text."""
    return str(tinyjax.make_jaxpr(f)(*args))


def assert_jaxpr(f: Callable[..., Any], args: Sequence[Any], text: str) -> None:
    """`f` at these arguments has exactly this jaxpr (indentation as a whole aside)."""
    assert_text(jaxpr(f, args), text)


def assert_text(got: str, text: str) -> None:
    """The text is as expected; with TINYJAX_UPDATE_GOLDEN the test is rewritten instead."""
    want = textwrap.dedent(text).strip("\n").rstrip()
    if got == want:
        return
    if not UPDATE:
        raise AssertionError(f"the text is\n{got}\nexpected was\n{want}")
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    _edits.setdefault(frame.f_code.co_filename, {})[frame.f_lineno] = got


AVX512 = Target("x86_64-unknown-linux-gnu", "", "", 64, 32, True, True, True)
"""A machine for texts that depend on one."""


def pass_text(name: str, f: Callable[..., Any], args: Sequence[Any], **options: Any) -> str:
    """What the pass `name` changes on the way from `f` at these arguments to code, as diffs.

    `options` are those of `jit`. A pass to another stage shows the whole of what it makes.
    """
    with tinyjax.record_rewrites() as log:
        for kernel in tinyjax.jit(f, **options).lower(*args).kernels:
            codes_of(kernel, AVX512)
    found = [r for r in log.passes if r.name == name and r.before != r.after]
    return "\n\n".join("\n".join(line.rstrip() for line in r.diff()) for r in found)


def assert_pass(
    name: str, f: Callable[..., Any], args: Sequence[Any], text: str, **options: Any
) -> None:
    """A pass changes exactly this (`pass_text`)."""
    assert_text(textwrap.dedent(pass_text(name, f, args, **options)), text)


_edits: dict[str, dict[int, str]] = {}


GOLDEN = ("assert_jaxpr", "assert_pass", "assert_text")


def write_edits() -> None:
    """Put the new texts where the old ones stand (the last string of the call on that line)."""
    for file, edits in _edits.items():
        source = Path(file).read_text()
        lines = source.splitlines()
        calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
        for line, got in sorted(edits.items(), reverse=True):
            fits = [c for c in calls if c.lineno <= line <= (c.end_lineno or 0)]
            fits = [c for c in fits if getattr(c.func, "id", "") in GOLDEN]
            literal = max(fits, key=lambda c: c.lineno).args[-1]
            assert isinstance(literal, ast.Constant)
            before = lines[literal.lineno - 1][: literal.col_offset]
            after = lines[literal.end_lineno - 1][literal.end_col_offset :]
            body = textwrap.indent(got, "        ")
            lines[literal.lineno - 1 : literal.end_lineno] = [
                *f'{before}"""\n{body}"""{after}'.splitlines()
            ]
        Path(file).write_text("\n".join(lines) + "\n")


if UPDATE:
    atexit.register(write_edits)
