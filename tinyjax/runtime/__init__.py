"""Running compiled code: buffers, kernels and their cache, programs, threads, on the CPU."""
