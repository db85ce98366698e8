"""Which code to generate: the target's features, checks, redzones, and the optimizations that are switched off."""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.scalar_math.instructions import TargetFeatures

#: Optimizations that can be switched off. If one fails, the kernel is compiled without it. Tests compare results with and without each.
OPTIMIZATIONS = (
    "row_prefetch",  # prefetches the rows of the next program, a product's next tiles, and rows that are stored
    "nontemporal_stores",  # large results bypass the cache, where the pass of this name marked their stores
    "mask_bounds",  # loops end where the masks end, also those of products
    "loop_versioning",  # a second version of a loop, for offsets that wrap around
    "unroll",  # several vectors per iteration
    "fusion",  # several operations in one loop nest
)


@dataclass(frozen=True)
class CpuOptions:
    """The options of code generation.

    `machine` is the target. `checked` asks for bounds checks. `off` names OPTIMIZATIONS to leave out. `redzones` asks for guarded scratch
    memory. `alias`: different arguments may overlap.
    """

    machine: TargetFeatures
    checked: bool
    off: frozenset[str]
    redzones: bool
    alias: bool = False

    def uses(self, optimization: str) -> bool:
        """Whether an optimization is on."""
        return optimization not in self.off
