"""What instructions cost, in cycles per vector (or scalar): the one table of the kernel schedule.

Reciprocal throughput on recent x86 cores, to about a factor of two; only ratios decide anything.
"""

from __future__ import annotations

from tinyjax.core.ops import Op

CYCLES_ALU = 0.5
CYCLES_MEMORY = 4.0
"""A vector from a DRAM stream; within a factor of three of L2."""
CYCLES_SCALAR_MEMORY = 1.0
"""One element, with its share of address arithmetic."""
CYCLES_LANE_GATHER = 1.5
"""Each lane of a gather or scatter."""

CYCLES: dict[Op, float] = {
    Op.DIV: 8, Op.REM: 40, Op.SQRT: 8, Op.RSQRT: 16, Op.CBRT: 30, Op.EXP: 12, Op.EXP2: 10,
    Op.EXPM1: 14, Op.LOG: 14, Op.LOG2: 14, Op.LOG1P: 20, Op.SIN: 20, Op.COS: 20, Op.TAN: 28,
    Op.ASIN: 20, Op.ACOS: 20, Op.ATAN: 18, Op.SINH: 24, Op.COSH: 24, Op.TANH: 18, Op.ASINH: 30,
    Op.ACOSH: 30, Op.ATANH: 30, Op.LOGISTIC: 20, Op.ERF: 24, Op.ERFC: 40, Op.ERFINV: 40,
    Op.LGAMMA: 80, Op.DIGAMMA: 60, Op.POW: 50, Op.ATAN2: 30, Op.IDIV: 12, Op.MOD: 12,
}  # fmt: skip
"""Ops that cost more than CYCLES_ALU."""
