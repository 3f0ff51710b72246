"""The benchmark harness: it measures, and tells a wrong result from a slow one."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import ratios, with_unit
from benchmarks.measure import Bench, Figure, largest_error, rotated
from benchmarks.row import Row
from benchmarks.rows import FAMILIES, find_row, select
from benchmarks.worker import save

SMALL_ROW = "jitted x + 1 on 3 floats"


@pytest.fixture
def bench():
    bench = Bench(["numpy", "tinyjax"], rounds=2, report=lambda text: None)
    yield bench
    bench.close()


def test_a_row_is_measured_in_every_peer(bench):
    results = bench.measure(find_row(SMALL_ROW))
    assert list(results) == ["numpy", "tinyjax"]
    for figure in results.values():
        assert figure.failure == ""
        assert figure.error < 1e-6
        assert len(figure.rounds) == 2 and min(figure.rounds) > 0


def test_an_output_that_differs_from_float64_is_wrong_and_has_no_time(bench):
    row, figure = find_row(SMALL_ROW), Figure(rounds=[1.0])
    bench.check(row, figure, {"leaves": save([np.array([1.0, 2.0])])}, [np.array([1.0, 2.1])])
    assert figure.failure.startswith("wrong")
    assert math.isnan(figure.median)


def test_a_peer_that_fails_leaves_the_others_alone(bench):
    assert "StopIteration" in bench.workers["numpy"]("setup", "no such row")["error"]
    assert "leaves" in bench.workers["numpy"]("setup", SMALL_ROW)


@pytest.mark.parametrize(
    "got, want, error",
    [
        ([np.array([1.0, 2.0])], [np.array([1.0, 2.5])], 0.2),
        ([np.array([1.0])], [np.array([1.0]), np.array([2.0])], math.inf),
        ([np.zeros(2)], [np.zeros(3)], math.inf),
        ([np.array([3.0]), np.array([1.0])], [np.array([0.0]), np.array([1.0])], 3.0),
    ],
)
def test_errors_are_relative_to_the_largest_magnitude_of_each_output(got, want, error):
    assert largest_error(got, want) == pytest.approx(error)


def test_a_nan_is_never_within_a_tolerance():
    assert math.isnan(largest_error([np.array([math.nan])], [np.array([1.0])]))


def test_ratios_are_over_jax_and_over_the_fastest_other_peer():
    results = {"tinyjax": Figure([2.0]), "jax": Figure([4.0]), "numpy": Figure([1.0])}
    assert ratios(results) == (0.5, 2.0)


def test_figures_have_three_digits_and_a_unit():
    shown = [with_unit(x, "s") for x in (2.0, 0.457, 3.6e-6, 12.34e-3, 5e-10)]
    assert shown == ["2.00 s", "457 ms", "3.60 us", "12.3 ms", "0.50 ns"]


def test_peers_take_turns_at_being_first():
    assert [rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_rows_are_selected_by_family_or_by_part_of_the_name():
    assert {row.name for row in select(["matmul"])} >= {row.name for row in FAMILIES["matmul"]}
    assert [row.name for row in select(["softmax"])] == ["softmax 4096x4096"]
    names = [row.name for rows in FAMILIES.values() for row in rows]
    assert len(names) == len(set(names)) == len(select([]))


def test_every_row_has_a_way_to_be_checked():
    for row in select([]):
        if isinstance(row, Row):
            assert row.reference or row.check or "jax" in row.programs


def test_the_command_lists_its_rows():
    command = [sys.executable, "-m", "benchmarks", "--list"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert SMALL_ROW in done.stdout
