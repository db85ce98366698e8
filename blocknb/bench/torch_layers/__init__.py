"""Benchmarks of `blocknb.torch` on a GPU: layers against Liger-Kernel, a Llama of 1 B parameters, and the overheads of launches and
operators. Their peers are libraries of torch, which may be missing. The module `registered` has their names.
"""
