"""One compiled program for sentences of any length.

    python examples/varying_lengths.py                # a quarter of a minute on two cores
    python examples/varying_lengths.py --steps 100

A small transformer learns to continue the sentences of Python's reference manual, character by
character. A batch holds sentences of about equal length and is as long as its longest one; the
length is a symbolic size, `Dim("n", ...)`, so the training step is traced and compiled once, and a
batch of short sentences costs less than one of long ones. Padded to one length, every batch would
cost what the longest does; compiled per length, every new length would cost a compilation. The
example prints both comparisons.

The blocks are those of char_gpt.py.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from tqdm.auto import tqdm

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import Dim

sys.path.insert(0, str(Path(__file__).parent))
import char_gpt

Params = Any  # a tree of arrays

SHORTEST, LONGEST = 8, 160
"""Characters of a sentence; the others are left out."""


# ---- data ----------------------------------------------------------------------------------------


def load_sentences() -> tuple[str, list[np.ndarray]]:
    """The alphabet and the sentences as numbers, each with token 0 (nothing) before and after."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    sentences = [s for s in re.split(r"(?<=[.!?]) ", text) if SHORTEST <= len(s) <= LONGEST]
    alphabet = "\0" + "".join(sorted(set("".join(sentences))))
    number = {character: token for token, character in enumerate(alphabet)}
    return alphabet, [np.array([0, *map(number.get, s), 0], np.int32) for s in sentences]


def batches(sentences: list[np.ndarray], size: int, rng: np.random.Generator):
    """Without end: sentences of about equal length, padded with 0 to the longest of the batch."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    groups = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    while True:
        for chosen in rng.permutation(len(groups)):
            rows = [sentences[i] for i in groups[chosen]]
            batch = np.zeros((size, max(map(len, rows))), np.int32)
            for row, sentence in zip(batch, rows, strict=True):
                row[: len(sentence)] = sentence
            yield batch


# ---- training ------------------------------------------------------------------------------------


def loss_of(params: Params, tokens):
    """Mean nats per character. tokens[batch, n]; what follows a sentence's end does not count."""
    log_p = jax.nn.log_softmax(char_gpt.gpt(params, tokens[:, :-1]))
    found = jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)[..., 0]
    counts = (tokens[:, 1:] != 0) | (tokens[:, :-1] != 0)  # the end is predicted, padding is not
    counts = counts & (jnp.arange(tokens.shape[1] - 1) > 0)
    return -jnp.sum(jnp.where(counts, found, 0.0)) / jnp.sum(counts)


def train_step(params: Params, state, tokens, rate):
    loss, grads = jax.value_and_grad(loss_of)(params, tokens)
    params, state = char_gpt.adamw(params, state, grads, rate)
    return params, state, loss


@dataclass
class Result:
    """Losses in nats per character; milliseconds of the steps by length."""

    losses: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    traces: int = 0
    compile_seconds: float = 0.0
    params: Params = None


def train(
    steps: int = 300, batch: int = 16, layers: int = 2, width: int = 64, progress_bar: bool = True
) -> Result:
    alphabet, sentences = load_sentences()
    result = Result()
    n = Dim("n", SHORTEST, LONGEST + 2)

    def counted_step(params, state, tokens, rate):
        result.traces += 1  # Python runs only while the function is traced
        return train_step(params, state, tokens, rate)

    step = jax.jit(counted_step, dynamic_shapes={"tokens": {1: n}})
    params = char_gpt.init_params(jax.random.key(0), len(alphabet), layers, width)
    state = char_gpt.adamw_init(params)
    feed = batches(sentences, batch, np.random.default_rng(0))
    bar = tqdm(range(steps), disable=not progress_bar)
    for i in bar:
        tokens = next(feed)
        rate = float(char_gpt.learning_rate(i / steps, 3e-3))
        start = time.perf_counter()
        params, state, loss = step(params, state, tokens, rate)
        result.losses.append(float(loss))
        spent = time.perf_counter() - start
        if i == 0:
            result.compile_seconds = spent
        result.lengths.append(tokens.shape[1])
        result.milliseconds.append(1e3 * spent)
        bar.set_postfix(length=tokens.shape[1], loss=f"{np.mean(result.losses[-20:]):.3f}")
    result.params = params
    return result


def report(result: Result) -> None:
    """How long steps take by length, against what padding or compiling per length would cost."""
    lengths = np.array(result.lengths[1:])
    times = np.array(result.milliseconds[1:])
    print(f"\n{len(set(result.lengths))} different lengths, traces: {result.traces}")
    for low, high in ((0, 40), (40, 80), (80, 120), (120, LONGEST + 3)):
        chosen = (lengths >= low) & (lengths < high)
        if chosen.any():
            print(f"  length {low:3} to {high - 1:3}: {np.median(times[chosen]):6.1f} ms a step")
    longest = np.median(times[lengths >= np.quantile(lengths, 0.95)])
    print(f"  all steps: {times.sum() / 1e3:.1f} s; padded to one length about "
          f"{longest * len(times) / 1e3:.1f} s")  # fmt: skip
    print(f"  compiled once: {result.compile_seconds:.1f} s; once per length about "
          f"{result.compile_seconds * len(set(result.lengths)):.0f} s")  # fmt: skip
    print(f"loss {result.losses[0]:.2f} -> {np.mean(result.losses[-20:]):.2f} nats per character")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    report(train(args.steps))


if __name__ == "__main__":
    main()
