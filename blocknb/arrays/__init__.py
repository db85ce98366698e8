"""Kernels on Dask arrays that are larger than the memory of a GPU: `map_blocks`, `map_overlap`, `reduction` and `contraction`.

Dask cuts an array into chunks, and schedules one task per chunk of the result. A task calls a *wrapper*, which launches kernels on the
blocks of that task. Chunks of NumPy run on the CPU, or stream through the GPU of their worker (`device="cuda"`). Chunks of CuPy run in
place. Memory is bounded by the blocks in flight (`limit`). See docs/large_arrays.md.

Needs Dask: pip install "blocknb[dask]".
"""
