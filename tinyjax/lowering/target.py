"""What generated CPU code may assume of the machine: vector length, registers, exact conversions.

`Target` is a frozen value, so it is part of cache keys. `host()` asks LLVM once per process.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tinyjax.runtime.cpu import host_target


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU: LLVM's names for it and the facts that schedules and emission depend on."""

    triple: str
    cpu: str
    features: str  # LLVM's "+a,-b"; empty: those of the cpu name
    vector_bytes: int
    registers: int  # vector registers
    masks: bool  # predicated vector loads and stores of any element size (AVX-512, SVE)
    fma: bool
    half: bool  # exact conversions between float16 and float32 in hardware

    def lanes(self, itemsize: int) -> int:
        """Elements of a vector."""
        return max(1, self.vector_bytes // itemsize)


def describe(triple: str, cpu: str, enabled: frozenset[str], features: str = "") -> Target:
    """The target with these features ("avx512bw", "neon", ...) enabled."""
    if "x86_64" not in triple:
        arm = "aarch64" in triple or "arm64" in triple
        return Target(triple, cpu, features, 16, 32 if arm else 16, False, arm, arm)
    fma = "fma" in enabled
    half = "f16c" in enabled
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= enabled:
        return Target(triple, cpu, features, 64, 32, True, fma, half)
    if "avx2" in enabled:
        return Target(triple, cpu, features, 32, 16, False, fma, half)
    return Target(triple, cpu, features, 16, 16, False, fma, half)


@functools.cache
def host() -> Target:
    """This machine. Loads LLVM on the first call."""
    found = host_target()
    features = found.features.split(",")
    enabled = frozenset(each[1:] for each in features if each.startswith("+"))
    return describe(found.triple, found.cpu, enabled, found.features)
