"""The CPU back end: `generate` writes the LLVM text of a function of the tile level, with loops over vectors in place of tiles."""

from blocknb.codegen.cpu.module import CpuModule, generate
from blocknb.codegen.cpu.options import OPTIMIZATIONS

__all__ = ["OPTIMIZATIONS", "CpuModule", "generate"]
