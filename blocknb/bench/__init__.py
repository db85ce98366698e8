"""Benchmarks: ready-made kernels against other libraries, compile times, and the limits of the machine."""
