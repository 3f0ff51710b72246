"""The cost model: what things take on the machine, in nanoseconds, in one file.

Used by the fusion plan (fusion.py) and printed with its decisions. The numbers are for one core of
a current x86-64 server (a 2-core Zen 5 machine): orders of magnitude, so that decisions are right
by a factor of two, not a simulation. Only ratios matter.
"""

from __future__ import annotations

from tinyjax.core.ops import ELEMENTWISE, Op

NS_PER_BYTE = 0.1
"""Memory that is not in a cache: about 10 GB/s per core while all cores stream."""

LAUNCH_NS = 500.0
"""One more kernel: a step of the table plus a share of waking the pool (2.4-5 us when spread)."""

CHEAP_NS = 0.06
"""One vector instruction per element: 16 float32 lanes, two a cycle, loads and stores included."""

ELEMENT_NS: dict[Op, float] = {
    Op.RANDOM_BITS: 4.0,  # 20 rounds of add, rotate, xor
    Op.DIV: 0.2,
    Op.REM: 1.0,
    Op.SQRT: 0.2,
    Op.RSQRT: 0.3,
    Op.GATHER: 0.5,  # scalar address per element
    Op.DOT: 0.1,
}
ELEMENT_NS |= {
    Op[name]: 0.25  # a polynomial of about 12 terms on vectors (0.135 ns measured for exp)
    for name in "CBRT EXP EXP2 EXPM1 LOG LOG2 LOG1P TANH LOGISTIC ERF SINH COSH".split()
}
ELEMENT_NS |= {
    Op[name]: 0.8  # range reduction, several branches evaluated and selected
    for name in (
        "SIN COS TAN ASIN ACOS ATAN ATAN2 ASINH ACOSH ATANH ERFC ERFINV LGAMMA DIGAMMA POW"
    ).split()
}

MAX_BUFFERS = 24
"""Buffers of one kernel: pointers beyond the registers cost a reload per access."""

MAX_NODES = 512
"""Nodes of one group: bounds the compile time of a kernel."""

MAX_MERGED = 160
"""Nodes of two groups that are joined because they run the same loops."""

MAX_EPILOGUE = 48
"""Nodes of an elementwise group that may be emitted inside a DOT's tile."""

PROLOGUE_NS = 1.5
"""Work per element above which a DOT's operand is not evaluated while packing, which may repeat."""

MIN_ROWS = 8
"""Rows below which a row-wise fusion leaves too little to share between threads ..."""

SMALL = 1 << 15
"""... unless the whole kernel is this small (elements): then one launch less is worth more."""

TINY_DOT = 1 << 11
"""Multiplications of a DOT below which a plain loop beats the tiled nest's set-up."""

WHOLE_BYTES = 8 << 20
"""Intermediate values of composites up to this size are made whole: they stay in the caches."""

BLOCK_BYTES = 2 << 20
"""Size of a block of a larger one: it lies in a core's cache while it is made and read."""

MIN_BLOCK_ROWS = 32
"""Rows of a block at least: below, a DOT's tiles are not filled and loops cost more than work."""


def element_ns(op: Op) -> float:
    """Time of one element of one op in a fused kernel."""
    return ELEMENT_NS.get(op, CHEAP_NS if op in ELEMENTWISE else 0.0)
