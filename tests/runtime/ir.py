"""Hand-written kernels, and how to run Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tinyjax.runtime.kernels import Kernel, kernel

ROOT = Path(__file__).resolve().parents[2]


def body(lines: str, pointers: int = 1) -> str:
    """A kernel whose first slots are %p0, %p1, ...; the rest is `lines`, ending with ret."""
    loads = "\n".join(
        f"  %s{i} = getelementptr ptr, ptr %slots, i64 {i}\n  %p{i} = load ptr, ptr %s{i}"
        for i in range(pointers)
    )
    head = "define void @k(ptr %slots, ptr %dims, i64 %lo, i64 %hi) {\nentry:\n"
    return f"{head}{loads}\n{textwrap.dedent(lines)}\n}}\n"


def each(lines: str, pointers: int) -> str:
    """A kernel that runs `lines` for each %i of [lo, hi)."""
    return body(
        f"""
  %some = icmp slt i64 %lo, %hi
  br i1 %some, label %next, label %done
next:
  %i = phi i64 [ %lo, %entry ], [ %i1, %next ]
{textwrap.dedent(lines)}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %next, label %done
done:
  ret void""",
        pointers,
    )


# p2[i] = p0[i] + p1[i], f32
ADD = each(
    """
  %a.at = getelementptr float, ptr %p0, i64 %i
  %b.at = getelementptr float, ptr %p1, i64 %i
  %c.at = getelementptr float, ptr %p2, i64 %i
  %a = load float, ptr %a.at
  %b = load float, ptr %b.at
  %c = fadd float %a, %b
  store float %c, ptr %c.at""",
    3,
)

# *p0 += 1, int64
INC = body(
    """
  %v = load i64, ptr %p0
  %w = add i64 %v, 1
  store i64 %w, ptr %p0
  ret void"""
)

# *p0 += *p1, int64
ADD_TO = body(
    """
  %v = load i64, ptr %p0
  %u = load i64, ptr %p1
  %w = add i64 %v, %u
  store i64 %w, ptr %p0
  ret void""",
    2,
)

# *p0 = 10 * *p0 + *p1, int64: shows the order of events
PUSH = body(
    """
  %v = load i64, ptr %p0
  %u = load i64, ptr %p1
  %t = mul i64 %v, 10
  %w = add i64 %t, %u
  store i64 %w, ptr %p0
  ret void""",
    2,
)

# *p1 = (bool) *p0 < *p2, int64
LESS = body(
    """
  %v = load i64, ptr %p0
  %u = load i64, ptr %p2
  %c = icmp slt i64 %v, %u
  %b = zext i1 %c to i8
  store i8 %b, ptr %p1
  ret void""",
    3,
)

# p0[k] = lo, p0[k+1] = hi for the k of p1 (a count of int64s), which goes up by 2
RANGES = body(
    """
  %k = load i64, ptr %p1
  %a.at = getelementptr i64, ptr %p0, i64 %k
  store i64 %lo, ptr %a.at
  %b.at = getelementptr i64, ptr %a.at, i64 1
  store i64 %hi, ptr %b.at
  %k2 = add i64 %k, 2
  store i64 %k2, ptr %p1
  ret void""",
    2,
)

# p0[d] = dims[d] for d of [lo, hi)
SIZES = each(
    """
  %d.at = getelementptr i64, ptr %dims, i64 %i
  %d = load i64, ptr %d.at
  %o.at = getelementptr i64, ptr %p0, i64 %i
  store i64 %d, ptr %o.at""",
    1,
)

# Chunks of 1000: p1[lo / 1000] = sum of p0[lo:hi] one after the other, f32; p2[lo / 1000] += 1
PARTIAL_SUMS = body(
    """
  br label %next
next:
  %i = phi i64 [ %lo, %entry ], [ %i1, %next ]
  %sum = phi float [ 0.0, %entry ], [ %sum1, %next ]
  %x.at = getelementptr float, ptr %p0, i64 %i
  %x = load float, ptr %x.at
  %sum1 = fadd float %sum, %x
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %next, label %done
done:
  %chunk = sdiv i64 %lo, 1000
  %o.at = getelementptr float, ptr %p1, i64 %chunk
  store float %sum1, ptr %o.at
  %n.at = getelementptr i64, ptr %p2, i64 %chunk
  %n = load i64, ptr %n.at
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %n.at
  ret void""",
    3,
)

# *p0 = *p1 as it finds it, int64: what is in memory nobody wrote
COPY_WORD = body(
    """
  %v = load i64, ptr %p1
  store i64 %v, ptr %p0
  ret void""",
    2,
)

CRASH = body(
    """
  store volatile i64 1, ptr inttoptr (i64 8 to ptr)
  ret void""",
    0,
)


def kernels(*texts: str) -> list[Kernel]:
    """The loaded kernels of these texts."""
    return [kernel(text, f"test{number}") for number, text in enumerate(texts)]


def run_python(
    code: str, folder: Path, *, timeout: float = 30, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process whose kernel cache is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={"PATH": "", "TINYJAX_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
