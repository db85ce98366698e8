"""Layouts: the places of a tile's elements in registers and in shared memory, and the conversions between them.

Start with `linear`: it has the class of layouts and the idea behind it. `tables` has the layouts of hardware instructions, `shared` the
layouts of shared memory with their bank conflicts, and `convert` the conversions.
"""

from blocknb.layouts.linear import Layout, collect, distribute

__all__ = ["Layout", "collect", "distribute"]
