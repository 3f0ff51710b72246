"""Programs that users write, for tests that must hold for each of them."""

from __future__ import annotations

from tests.programs import features, indexing, loops, networks, science
from tests.programs.registry import PROGRAMS, Program

__all__ = ["PROGRAMS", "Program", "features", "indexing", "loops", "networks", "science"]
