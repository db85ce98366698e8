"""The CPU back end: `generate` writes the LLVM text of a function of the tile level, with loops over vectors in place of tiles.

From the top down: `module` makes the exported function and `kernel_version` each version of the kernel, whose objects it connects. `blocks`
emits one node of the `fusion` graph after another. A node is a loop nest (`loop_nests`, `nests`, `rows`, `vectors`) or a single op. The
lowering of an op registers by name (`context.lowers`). Lowerings are in `scalar_lowerings`, `control_flow`, `data_movement`, `microkernel`,
`reports` and `copies`. `tiles` keeps tiles in scratch memory. `uniformity` says how values vary along a row, and `checks` keeps accesses
within their arrays. Each optimization has a module: `row_prefetch`, `tile_prefetch`, `nontemporal_stores`, `mask_bounds`,
`product_bounds`, `outlining`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.lazy_names import lazy_names

if TYPE_CHECKING:
    from blocknb.codegen.cpu.module import CpuModule, generate
    from blocknb.codegen.cpu.options import OPTIMIZATIONS

__all__ = ["OPTIMIZATIONS", "CpuModule", "generate"]

__getattr__ = lazy_names(__name__, {"OPTIMIZATIONS": "options", "CpuModule": "module", "generate": "module"})
