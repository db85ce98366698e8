"""Small shapes for the benchmarks of ready-made kernels, with partial tiles where the kernel allows them."""

from __future__ import annotations

from collections.abc import Mapping

from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import Shape
from blocknb.bench.suite.kinds import KINDS

#: Benchmarks whose kernels take only some sizes: the small ones that they name for the CPU.
OWN_SIZES = ("decode_", "skinny_int", f"{KINDS}_")
#: Shapes by their number of sizes, for kernels that are only compiled.
PARTIAL_TILES: dict[int, Shape] = {1: (3000,), 2: (9, 300), 3: (40, 48, 32), 4: (2, 40, 48, 32)}


def small_shape(name: str, by_rank: Mapping[int, Shape], attention: Shape) -> Shape:
    """The small shape of a benchmark: its own for a CPU, `attention` (positions, elements of a head), or that of its number of sizes."""
    if name.startswith(OWN_SIZES):
        return BENCHMARKS[name].cpu[0]
    return attention if name.startswith("attention_") else by_rank[len(BENCHMARKS[name].cpu[0])]
