"""The benchmarks of this package by their names on the command line. Importing this module imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.bench.rows import Row
from blocknb.bench.suite.runner import BenchOptions


def torch_layers(options: BenchOptions) -> list[Row]:
    """The layers of blocknb.torch.nn against Liger-Kernel's, forward and backward, and their peak memory. Needs a GPU."""
    from blocknb.bench.torch_layers import layers

    return layers.run(options)


def torch_llama(options: BenchOptions) -> list[Row]:
    """A training step of a Llama of 1 B parameters: blocknb's layers and backend against torch.compile alone. Needs a GPU."""
    from blocknb.bench.torch_layers import llama

    return llama.run(options)


def torch_overheads(options: BenchOptions) -> list[Row]:
    """Host times: a launch of a generated kernel against torch's static launcher, and an operator against define/impl. Needs a GPU."""
    from blocknb.bench.torch_layers import overheads

    return overheads.run(options)


BENCHMARKS: dict[str, Callable[[BenchOptions], list[Row]]] = {
    "torch_layers": torch_layers,
    "torch_llama": torch_llama,
    "torch_overheads": torch_overheads,
}
