"""Runs one benchmark of this package by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.bench.rows import Row
from blocknb.bench.suite.runner import BenchOptions


def run(name: str, options: BenchOptions, keep: Callable[[list[Row]], None] = lambda rows: None) -> list[Row]:
    """Prints and returns the rows of "torch_layers", "torch_llama" or "torch_overheads"; `keep` gets the rows so far after each one.

    Raises Unsupported without torch, the benchmark's peers or a GPU, and KeyError for another name.
    """
    from blocknb.bench.torch_layers import layers, llama, overheads

    benchmarks = {"torch_layers": layers.run, "torch_llama": llama.run, "torch_overheads": overheads.run}
    return benchmarks[name](options, keep)
