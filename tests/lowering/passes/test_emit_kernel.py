"""emit_kernel: LLVM text of a scheduled kernel, with explicit vectors; a machine with AVX-512."""

from __future__ import annotations

from tests.golden import assert_pass, f32


def test_a_map_is_a_loop_of_vectors_and_a_masked_rest():
    assert_pass(
        "emit_kernel",
        lambda x: x + 1.0,
        [f32[100]],
        """
        define void @k(ptr %slots, ptr %dims, i64 %lo, i64 %hi) nounwind {
        entry:
          %v1 = load ptr, ptr %slots, align 8
          %v2 = getelementptr ptr, ptr %slots, i64 1
          %v3 = load ptr, ptr %v2, align 8
          br label %loop.4
        loop.4:
          %v6 = phi i64 [ 0, %entry ], [ %v11, %loop.4 ]
          %v7 = getelementptr float, ptr %v3, i64 %v6
          %v8 = load <16 x float>, ptr %v7, align 4
          %v9 = fadd <16 x float> %v8, splat (float 0x3FF0000000000000)
          %v10 = getelementptr float, ptr %v1, i64 %v6
          store <16 x float> %v9, ptr %v10, align 4
          %v11 = add i64 %v6, 16
          %v12 = icmp slt i64 %v11, 96
          br i1 %v12, label %loop.4, label %done.5
        done.5:
          %v13 = getelementptr float, ptr %v3, i64 96
          %v14 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %v13, <16 x i1> <i1 true, i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>, <16 x float> splat (float 0x0000000000000000))
          %v15 = fadd <16 x float> %v14, splat (float 0x3FF0000000000000)
          %v16 = getelementptr float, ptr %v1, i64 96
          call void @llvm.masked.store.v16f32.p0(<16 x float> %v15, ptr align 4 %v16, <16 x i1> <i1 true, i1 true, i1 true, i1 true, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false, i1 false>)
          ret void
        }
        declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
        declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)""",
    )
