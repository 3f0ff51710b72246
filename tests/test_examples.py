"""The examples in a short form: they run, learn, and write what they promise."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def char_gpt():
    return load_example("char_gpt")


def test_sentences_of_all_lengths_train_one_program():
    lengths = load_example("varying_lengths")
    result = lengths.train(steps=40, batch=8, layers=1, width=32, progress_bar=False)
    assert len(set(result.lengths)) > 20 and result.traces == 1
    assert np.mean(result.losses[-5:]) < result.losses[0] - 1.0
    assert np.isfinite(result.losses).all()


def test_batches_of_sentences_are_as_long_as_their_longest():
    lengths = load_example("varying_lengths")
    alphabet, sentences = lengths.load_sentences()
    assert all(s[0] == s[-1] == 0 and 0 not in s[1:-1] for s in sentences)
    feed = lengths.batches(sentences, 16, np.random.default_rng(1))
    for _ in range(20):
        batch = next(feed)
        used = batch.shape[1] - np.argmax(batch[:, ::-1] != 0, axis=1)
        assert used.max() == batch.shape[1] - 1 and used.min() >= batch.shape[1] - 12


def test_a_small_character_gpt_learns_and_draws_its_curve(char_gpt, tmp_path):
    result = char_gpt.train(
        steps=60, seconds=600.0, batch=8, layers=2, width=64, context=32, progress_bar=False
    )
    assert len(result.train_losses) == 60
    first = result.curve[0][1]
    assert np.log(len(result.text.alphabet)) < first + 0.5  # starts with nothing known
    # JAX reaches 2.6 here, from 4.2; a model without gradients stays at the start.
    assert result.valid_loss < 3.0

    char_gpt.save_curve(result, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")

    text = char_gpt.sample(result, length=40)
    assert len(text) == 40
    assert set(text) <= set(result.text.alphabet)


def test_the_bigram_model_knows_more_than_the_frequencies_and_less_than_nothing(char_gpt):
    text = char_gpt.load_text()
    frequencies = np.bincount(text.train, minlength=len(text.alphabet)) / len(text.train)
    seen = frequencies[frequencies > 0]
    entropy = -np.sum(seen * np.log(seen))
    assert 1.5 < char_gpt.bigram_loss(text) < entropy


def test_training_and_held_out_text_are_disjoint_and_complete(char_gpt):
    text = char_gpt.load_text()
    assert 0.05 < len(text.valid) / (len(text.train) + len(text.valid)) < 0.15
    assert text.decode(text.train).startswith(text.alphabet[text.train[0]])


@pytest.mark.slow
def test_the_character_gpt_beats_the_bigram_model_by_half_a_nat(char_gpt):
    result = char_gpt.train(progress_bar=False)
    assert result.valid_loss < result.bigram_loss - 0.5


def test_digits_are_learnt_in_a_few_steps():
    digits = load_example("digits")
    assert digits.train_mlp(steps=100).accuracy > 0.9
    assert digits.train_cnn(steps=100).accuracy > 0.9


@pytest.mark.slow
def test_digits_reach_their_goals():
    digits = load_example("digits")
    assert digits.train_mlp().accuracy >= 0.97
    assert digits.train_cnn().accuracy >= 0.98
