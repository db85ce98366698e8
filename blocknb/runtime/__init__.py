"""Runs kernels: the decorator, launches, compiled code and its caches, the GPU driver and the CPU's threads."""
