"""Trace, lower and compile, in a fresh process with an empty disk cache."""

from __future__ import annotations

from benchmarks.row import ProcessRow

JAX = """
import {jax} as jax
from benchmarks.models.jax_models import compile_seconds
print(compile_seconds(jax, "{model}"{sizes}))
"""

JAX_TRACE = """
import {jax} as jax
from benchmarks.models.jax_models import trace_seconds
print(trace_seconds(jax, "gpt"))
"""

OTHERS = """
from benchmarks.peers import make_peer
from benchmarks.models.{family}_models import compile_seconds
print(compile_seconds(make_peer("{peer}"), "{model}"{sizes}))
"""

JAX_CHAIN = """
import time
import {jax} as jax
from benchmarks.rows.elementwise import chain
x = jax.block_until_ready(jax.numpy.zeros(1 << 20))
start = time.perf_counter()
jax.jit(lambda x: chain(x, jax.numpy.tanh)).lower(x).compile()
print(time.perf_counter() - start)
"""


def compile_row(name: str, model: str, target: str, sizes: str = "") -> ProcessRow:
    fill = lambda script: script.replace("{model}", model).replace("{sizes}", sizes)
    return ProcessRow(
        name,
        {"jax": fill(JAX), "torch-compiled": fill(OTHERS), "tinygrad": fill(OTHERS)},
        target,
    )


ROWS = [
    ProcessRow("trace GPT gradient, 6 layers", {"jax": JAX_TRACE}, "1.0x JAX"),
    compile_row("compile MLP train step", "mlp", "0.5x"),
    compile_row("compile GPT train step, 6 layers", "gpt", "0.5x"),
    compile_row("compile GPT train step, 24 layers", "gpt", "1.5x of 6 layers", ", layers=24"),
    ProcessRow("compile chain of 500 operations", {"jax": JAX_CHAIN}, "0.5x JAX"),
]
