"""The GPU code generator: memory-level IR to LLVM text for one thread.

A thread holds its part of a tile in registers, one LLVM value each; a scalar has one register. `generate` writes a kernel.

- `generator` makes the collaborating objects of one kernel, and `blocks` calls the lowering of each op.
- State: `text` (lines, names), `threads` (indices), `registers` (what the registers of a tile are called), `buffers` (shared memory),
  `loops`, `mma_state`, `interface` (hidden parameters).
- Lowerings, registered by the name of the op (see `registry`): the other modules. Each gets only the objects that it uses.
- Passes decide where code stands (`passes.support.emission`); `piece_loops` and `rematerialization` obey. Plans, made before any text:
  `warp_specialization`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen.lazy_names import lazy_names

if TYPE_CHECKING:
    from blocknb.codegen.gpu.generator import generate
    from blocknb.codegen.gpu.module import GpuModule

__all__ = ["GpuModule", "generate"]

__getattr__ = lazy_names(__name__, {"GpuModule": "module", "generate": "generator"})
