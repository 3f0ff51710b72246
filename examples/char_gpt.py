"""A character-level GPT learns to write like the Python reference manual.

    python examples/char_gpt.py                    # half a minute on two cores
    python examples/char_gpt.py --steps 100 --out curve.png

The text is `pydoc_data.topics`, which every Python installation has. Every tenth block of 2,048
characters is held out; the loss on those, in nats per character, is compared with that of a bigram
model, the best that one character of context can do. The model is a pre-norm transformer (Vaswani
et al. 2017; Radford et al. 2019) whose heads prefer near characters (ALiBi: Press et al. 2022), so
that it need not first discover that order matters. The optimiser is AdamW (Loshchilov and Hutter,
2019).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm.auto import tqdm

import tinyjax as jax
import tinyjax.numpy as jnp
from tinyjax import function

Params = Any  # a tree of arrays

HOLD_OUT_BLOCK = 2048


# ---- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """Characters as numbers: `alphabet[i]` is the character of token i."""

    alphabet: str
    train: np.ndarray
    valid: np.ndarray

    def decode(self, tokens: np.ndarray) -> str:
        return "".join(self.alphabet[token] for token in tokens)


def load_text() -> Text:
    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    number = {character: token for token, character in enumerate(alphabet)}
    tokens = np.array([number[character] for character in text], np.int32)
    held_out = np.arange(len(tokens)) // HOLD_OUT_BLOCK % 10 == 9
    return Text(alphabet, tokens[~held_out], tokens[held_out])


def random_windows(tokens: np.ndarray, count: int, length: int, rng: np.random.Generator):
    starts = rng.integers(0, len(tokens) - length + 1, count)
    return tokens[starts[:, None] + np.arange(length)]


def bigram_loss(text: Text) -> float:
    """Nats per held-out character of the best add-k bigram model (k chosen in its favour)."""
    counts = np.zeros((len(text.alphabet), len(text.alphabet)))
    np.add.at(counts, (text.train[:-1], text.train[1:]), 1)
    losses = []
    for k in (1.0, 0.3, 0.1, 0.03, 0.01):
        log_p = np.log((counts + k) / (counts + k).sum(1, keepdims=True))
        losses.append(-log_p[text.valid[:-1], text.valid[1:]].mean())
    return float(min(losses))


# ---- model ---------------------------------------------------------------------------------------


HEADS = 4


def init_params(key, alphabet_size: int, layers: int, width: int) -> Params:
    """Weights of scale 1/sqrt(inputs); what adds to the residual stream is scaled by the depth."""
    d, keys = width, iter(jax.random.split(key, 2 + 4 * layers))

    def weights(rows: int, columns: int, scale: float = 1.0):
        return jax.random.normal(next(keys), (rows, columns)) * (scale * rows**-0.5)

    into_residual = (2 * layers) ** -0.5
    blocks = [
        {
            "attention_norm": jnp.ones(d),
            "qkv": weights(d, 3 * d),
            "project": weights(d, d, into_residual),
            "mlp_norm": jnp.ones(d),
            "expand": weights(d, 4 * d),
            "contract": weights(4 * d, d, into_residual),
        }
        for _ in range(layers)
    ]
    return {
        "characters": 0.5 * jax.random.normal(next(keys), (alphabet_size, d)),
        "blocks": blocks,
        "norm": jnp.ones(d),
        "readout": weights(d, alphabet_size),
    }


def rms_norm(scale, x):
    return scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def causal_attention(q, k, v):
    """q, k, v and the result: (batch, time, heads, width of a head).

    A score falls with the distance, steeply in the first head and hardly in the last.
    """
    _, time_steps, heads, d = q.shape
    distance = jnp.arange(time_steps)[:, None] - jnp.arange(time_steps)
    slopes = 0.25 ** jnp.arange(heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5 - slopes[:, None, None] * distance
    weights = jax.nn.softmax(jnp.where(distance >= 0, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


# Compiled as a program of its own, once; all layers share it, forwards and backwards.
@function(precompile=True)
def block(p, x):
    batch, time_steps, d = x.shape
    qkv = rms_norm(p["attention_norm"], x) @ p["qkv"]
    q, k, v = jnp.split(qkv.reshape(batch, time_steps, 3 * HEADS, d // HEADS), 3, axis=2)
    x = x + causal_attention(q, k, v).reshape(batch, time_steps, d) @ p["project"]
    hidden = jax.nn.gelu(rms_norm(p["mlp_norm"], x) @ p["expand"])
    return x + hidden @ p["contract"]


def gpt(params: Params, tokens):
    """Logits[batch, time, alphabet] of the next character after each of tokens[batch, time]."""
    x = params["characters"][tokens]
    for p in params["blocks"]:
        x = block(p, x)
    return rms_norm(params["norm"], x) @ params["readout"]


def loss_of(params: Params, windows):
    """Mean nats per character; each of `windows` has one character more than the context."""
    log_p = jax.nn.log_softmax(gpt(params, windows[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(log_p, windows[:, 1:, None], axis=-1))


# ---- optimiser -----------------------------------------------------------------------------------


def adamw_init(params: Params):
    # Two trees of zeros, not one used twice: both are donated to the first step.
    mean, square = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    return {"step": jnp.zeros(()), "mean": mean, "square": square}


def adamw(params, state, grads, learning_rate, b1=0.9, b2=0.98, eps=1e-8, decay=0.1):
    """One step of Adam with bias correction; weight decay on matrices only."""
    step = state["step"] + 1
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["mean"], grads)
    square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state["square"], grads)

    def update(p, m, s):
        direction = m / (1 - b1**step) / (jnp.sqrt(s / (1 - b2**step)) + eps)
        return p - learning_rate * (direction + (decay * p if p.ndim > 1 else 0.0))

    params = jax.tree.map(update, params, mean, square)
    return params, {"step": step, "mean": mean, "square": square}


def learning_rate(progress: float, peak: float, warmup: float = 0.05) -> float:
    """Linear warm-up, then a cosine down to a twentieth of the peak."""
    if progress < warmup:
        return peak * (progress + 0.005) / (warmup + 0.005)
    return peak * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * min(1.0, progress))))


# ---- training ------------------------------------------------------------------------------------


@dataclass
class Result:
    """Losses are nats per character; `curve` is over a quarter of the held-out text."""

    params: Params
    text: Text
    context: int
    bigram_loss: float
    valid_loss: float = float("nan")
    train_losses: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


def train(
    steps: int = 400,
    seconds: float = 150.0,
    *,
    batch: int = 8,
    peak_rate: float = 3e-3,
    layers: int = 4,
    width: int = 128,
    context: int = 128,
    valid_every: int = 50,
    seed: int = 0,
    progress_bar: bool = True,
) -> Result:
    """Train for `steps` steps or `seconds` seconds, whichever ends first."""
    start = time.perf_counter()
    text = load_text()
    rng = np.random.default_rng(seed)
    params = init_params(jax.random.key(seed), len(text.alphabet), layers, width)
    state = adamw_init(params)
    result = Result(params, text, context, bigram_loss(text))

    def train_step(params, state, windows, rate):
        loss, grads = jax.value_and_grad(loss_of)(params, windows)
        params, state = adamw(params, state, grads, rate)
        return params, state, loss

    train_step = jax.jit(train_step, donate_argnums=(0, 1))
    valid_loss = jax.jit(loss_of)

    # All complete windows of the held-out text, in batches of the training's shape.
    count = len(text.valid) // (context + 1) // batch
    held_out = text.valid[: count * batch * (context + 1)].reshape(count, batch, context + 1)

    def validate(batches) -> float:
        return float(np.mean([float(valid_loss(params, windows)) for windows in batches]))

    bar = tqdm(total=steps, unit="step", disable=not progress_bar)
    for step in range(steps):
        progress = max(step / steps, (time.perf_counter() - start) / seconds)
        if progress >= 1.0:
            break
        if step % valid_every == 0:
            result.curve.append((step, validate(held_out[::4])))
        windows = random_windows(text.train, batch, context + 1, rng)
        rate = learning_rate(progress, peak_rate)
        params, state, loss = train_step(params, state, windows, rate)
        result.train_losses.append(float(loss))
        bar.update()
        bar.set_postfix(loss=f"{float(loss):.3f}", held_out=f"{result.curve[-1][1]:.3f}")
    bar.close()

    result.params = params
    result.curve.append((len(result.train_losses), validate(held_out[::4])))
    result.valid_loss = validate(held_out)
    result.seconds = time.perf_counter() - start
    return result


def sample(result: Result, length: int = 400, *, temperature: float = 0.7, seed: int = 0) -> str:
    """How the model goes on after the first held-out characters, as one compiled loop."""

    @jax.jit
    def generate(params, window, keys):
        def next_character(window, key):
            logits = gpt(params, window[None])[0, -1]
            character = jax.random.categorical(key, logits / temperature).astype(window.dtype)
            return jnp.append(window[1:], character), character

        return jax.lax.scan(next_character, window, keys)[1]

    keys = jax.random.split(jax.random.key(seed), length)
    window = result.text.valid[: result.context]
    return result.text.decode(np.asarray(generate(result.params, window, keys)))


# ---- report --------------------------------------------------------------------------------------


def save_curve(result: Result, path: Path) -> None:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(result.train_losses, color="0.75", linewidth=0.8, label="training batch")
    axes.plot(*zip(*result.curve, strict=True), "o-", markersize=3, label="held-out text")
    axes.axhline(result.bigram_loss, color="C3", linestyle="--", label="bigram model")
    axes.set(xlabel="step", ylabel="loss (nats per character)", title="Character-level GPT")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=150.0, help="stop training after this")
    parser.add_argument("--out", type=Path, default=Path("char_gpt.png"), help="loss curve")
    options = parser.parse_args()

    result = train(options.steps, options.seconds)
    save_curve(result, options.out)
    size = sum(leaf.size for leaf in jax.tree.leaves(result.params))
    better = result.bigram_loss - result.valid_loss
    print(f"{size:,} parameters, {len(result.train_losses)} steps in {result.seconds:.0f} s")
    print(f"held-out loss   {result.valid_loss:.3f} nats per character")
    print(f"bigram model    {result.bigram_loss:.3f}  (the GPT is {better:.3f} better)")
    print(f"loss curve      {options.out}")
    print(f"\nA sample:\n{sample(result)}")


if __name__ == "__main__":
    main()
