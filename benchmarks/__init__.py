"""Speed of tinyjax beside JAX, torch, tinygrad and NumPy: `python -m benchmarks --help`.

`rows/` has one file per family of rows, `models/` the larger programs. tinyjax and JAX run the
same source. Each peer runs in a process of its own (`worker`); `measure` lets them take turns.
tinygrad's column needs clang, which it compiles with; without, its rows say that they fail and why.
"""
