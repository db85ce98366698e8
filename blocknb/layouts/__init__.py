"""Layouts: the places of a tile's elements in registers and in shared memory, and the conversions between them.

`linear` has the class of layouts and the idea behind it, `tables` the layouts of hardware instructions, `shared` the layouts of shared
memory with their bank conflicts, and `convert` the conversions. Start reading at `linear`.
"""

from blocknb.layouts.linear import Layout, collect, distribute

__all__ = ["Layout", "collect", "distribute"]
