"""The GPU code generator: memory-level IR to LLVM text for one thread.

A thread holds its part of a tile in registers, one LLVM value each; a scalar has one register. `generate` writes a kernel.

- `generator` makes the collaborating objects of one kernel, and `blocks` calls the lowering of each op.
- State: `text` (lines, names), `threads` (indices), `registers` (what the registers of a tile are called), `buffers` (shared memory),
  `loops`, `mma_state`, `interface` (hidden parameters).
- Lowerings, registered by the name of the op (see `registry`): the other modules. Each gets only the objects that it uses.
- Plans, made before any text: `strip_mining`, `sinking`, `rematerialization`, `warp_specialization`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blocknb.codegen.gpu.generator import generate
    from blocknb.codegen.gpu.module import GpuModule

#: Names of the package and their modules. A name is imported when it is first used: an import of the modules here would let two threads
#: deadlock, one that imports the package and one that imports a module of it.
_PLACES = {"GpuModule": "module", "generate": "generator"}

__all__ = ["GpuModule", "generate"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
