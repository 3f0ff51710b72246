"""How many threads a CPU program may use: what the system lets this process have.

The scheduler's affinity mask, the CPU quota of every control group above this process, and the
option `tinyjax_num_threads`, which wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def affinity_count() -> int:
    """Cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _numbers(file: Path) -> list[int]:
    """The whitespace-separated numbers of a file; [] if it is absent or holds a word ("max")."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def _group_folders(proc: Path, root: Path) -> Iterator[tuple[Path, bool]]:
    """Control group folders of this process, innermost first; True for version 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        folder = base / path.lstrip("/")
        while folder != root.parent and folder.is_relative_to(base):
            yield folder, not controllers
            folder = folder.parent


def quota_count(proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores' worth of time the control groups grant; infinite without a quota."""
    smallest = float("inf")
    for folder, unified in _group_folders(proc, root):
        if unified:
            numbers = _numbers(folder / "cpu.max")
        else:
            quota = _numbers(folder / "cpu.cfs_quota_us")
            numbers = quota + _numbers(folder / "cpu.cfs_period_us")
        if len(numbers) == 2 and min(numbers) > 0:
            smallest = min(smallest, numbers[0] / numbers[1])
    return smallest


def thread_count(option: int) -> int:
    """Threads per CPU device; `option` is `tinyjax_num_threads` (0: what the system grants).

    A fractional quota is rounded up: the last thread then runs part of the time.
    """
    if option > 0:
        return option
    quota = quota_count()
    granted = affinity_count()
    if quota < granted:
        granted = max(1, -int(-quota // 1))
    return granted
