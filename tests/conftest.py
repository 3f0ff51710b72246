"""What holds for all tests: a kernel cache of the run's own, and hypothesis without deadlines."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile

import hypothesis
import pytest

CACHE_VARIABLE = "TINYJAX_CACHE_DIR"

# Machines that run tests are busy: only what an example computes may fail it, not its time.
hypothesis.settings.register_profile("tinyjax", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tinyjax")

# Set before tinyjax is imported. The processes of pytest-xdist, and those that tests start,
# inherit it, so that a kernel is compiled once a run.
folder_made_here = None
if CACHE_VARIABLE not in os.environ:
    folder_made_here = os.environ[CACHE_VARIABLE] = tempfile.mkdtemp(prefix="tinyjax-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder_made_here is not None:
        shutil.rmtree(folder_made_here, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def oracle_forgets():
    """JAX keeps all it ever compiled: gigabytes over a run."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture
def compared(record_property):
    """`compared(what, cases, disagreements)`: the sums over all tests end the report of a run."""

    def note(what: str, cases: int, disagreements: int) -> None:
        record_property("compared", (what, cases, disagreements))

    return note


def pytest_terminal_summary(terminalreporter) -> None:
    totals: dict[str, list[int]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name == "compared":
                        what, *counts = value
                        old = totals.get(what, [0, 0])
                        totals[what] = [a + b for a, b in zip(old, counts, strict=True)]
    for what, (cases, disagreements) in sorted(totals.items()):
        terminalreporter.write_line(f"{what}: {cases} compared, {disagreements} disagreements")
