"""Kernels of these tests are cached in a folder of the test session, not in the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tinyjax.core.config import config


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh cache folder for the process's kernel store."""
    folder = tmp_path_factory.mktemp("kernels")
    before = config.tinyjax_cache_dir
    config.update("tinyjax_cache_dir", str(folder))
    yield folder
    config.update("tinyjax_cache_dir", before)
