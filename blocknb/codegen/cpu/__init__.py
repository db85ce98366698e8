"""The CPU back end: `generate` writes the LLVM text of a function of the tile level, with loops over vectors in place of tiles."""

from blocknb.codegen.cpu.blocks import OPTIMIZATIONS
from blocknb.codegen.cpu.module import Module, generate

__all__ = ["OPTIMIZATIONS", "Module", "generate"]
