"""Benchmarks of `torch.compile(..., backend="blocknb")` against Inductor on an installed Triton, on the same graphs.

`definition` describes a step, `peers` compiles it and captures it as a CUDA graph, and `measured` checks and times it. The other modules
list the steps of one benchmark each.
"""
