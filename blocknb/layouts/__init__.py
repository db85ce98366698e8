"""Layouts: where the elements of a tile live, in registers and in shared memory, and how they get elsewhere.

`linear` is the one class and the idea behind it, `tables` the layouts that hardware asks for, `shared` the layouts of
shared memory with their bank conflicts, and `convert` the way from one layout to another. Start reading at `linear`.
"""

from blocknb.layouts.linear import Layout, collect, distribute

__all__ = ["Layout", "collect", "distribute"]
