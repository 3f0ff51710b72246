"""Copies of host memory into pool buffers: how NumPy arrays enter.

Small copies are NumPy's. From 1 MB on the pool's threads share them, and from 32 MB on (more than
a core's share of cache, so that the copy would evict everything else) they use stores that bypass
the caches: a plain store first reads the line it is going to overwrite. Measured on two cores:
78 GB/s with plain stores, 113 GB/s bypassing (`GOALS.md`).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyjax.core import memory
from tinyjax.runtime import buffers
from tinyjax.runtime.kernels import kernel
from tinyjax.runtime.program import Program
from tinyjax.runtime.steps import Call, Dim, Layout

SHARED_BYTES = 1 << 20
STREAMED_BYTES = 32 << 20
CHUNK_BYTES = 512 << 10

COPY_IR = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @k(ptr %slots, ptr %dims, i64 %lo, i64 %hi) {
  %src.slot = getelementptr ptr, ptr %slots, i64 1
  %dst = load ptr, ptr %slots
  %src = load ptr, ptr %src.slot
  %to = getelementptr i8, ptr %dst, i64 %lo
  %from = getelementptr i8, ptr %src, i64 %lo
  %size = sub i64 %hi, %lo
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  ret void
}
"""

# dst is 64-byte aligned and lo a multiple of the chunk, so the stores are aligned; the fence makes
# them visible before the chunk counts as done. The tail of the last chunk is a plain copy.
STREAM_IR = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @k(ptr %slots, ptr %dims, i64 %lo, i64 %hi) {
entry:
  %src.slot = getelementptr ptr, ptr %slots, i64 1
  %dst = load ptr, ptr %slots
  %src = load ptr, ptr %src.slot
  %size = sub i64 %hi, %lo
  %whole = and i64 %size, -64
  %stop = add i64 %lo, %whole
  %some = icmp sgt i64 %whole, 0
  br i1 %some, label %next, label %tail
next:
  %i = phi i64 [ %lo, %entry ], [ %i1, %next ]
  %from = getelementptr i8, ptr %src, i64 %i
  %to = getelementptr i8, ptr %dst, i64 %i
  %line = load <16 x i32>, ptr %from, align 1
  store <16 x i32> %line, ptr %to, align 64, !nontemporal !0
  %i1 = add i64 %i, 64
  %more = icmp slt i64 %i1, %stop
  br i1 %more, label %next, label %tail
tail:
  fence seq_cst
  %rest.from = getelementptr i8, ptr %src, i64 %stop
  %rest.to = getelementptr i8, ptr %dst, i64 %stop
  %rest = sub i64 %hi, %stop
  call void @llvm.memcpy.p0.p0.i64(ptr %rest.to, ptr %rest.from, i64 %rest, i1 false)
  ret void
}

!0 = !{i32 1}
"""


@functools.cache
def _copier(streamed: bool) -> Program:
    """A program (dst, src; nbytes) that copies in chunks."""
    made = kernel(STREAM_IR if streamed else COPY_IR, "stream" if streamed else "copy")
    steps = [Call(0, (0, 1), 0, Dim(0), CHUNK_BYTES)]
    return Program("copy", steps, Layout(2, dims=1), kernels=[made], hardened=False)


def copy_bytes(dst: int, src: int, nbytes: int) -> None:
    """Copy memory that does not overlap; the GIL is free meanwhile."""
    if nbytes < SHARED_BYTES:
        ctypes.memmove(dst, src, nbytes)
    else:
        streamed = nbytes >= STREAMED_BYTES and dst % memory.ALIGNMENT == 0
        _copier(streamed).run(dst, src, nbytes)


def snapshot(array: NDArray[Any]) -> NDArray[Any]:
    """A copy in a pool buffer: aligned, C-contiguous, owned by nobody else.

    Cost: about 1 us for a small array; the copy rate for a large one.
    """
    copy = buffers.empty(array.shape, array.dtype)
    if array.nbytes >= SHARED_BYTES and array.flags.c_contiguous:
        copy_bytes(memory.address(copy), memory.address(array), array.nbytes)
    else:
        np.copyto(copy, array)
    return copy
