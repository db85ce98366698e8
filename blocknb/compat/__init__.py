"""`import triton` means blocknb: in `%%blockkernel` cells, in files loaded with `load`, and after `install()` in the whole process.

The modules of Triton exist here as facades (see `names`), under `blocknb.compat.triton...`; source that imports Triton is changed to
import those (see `rewrite`), so that a Triton which is really installed stays what it is for everybody else.
"""

from blocknb.compat.facade import build
from blocknb.compat.loading import install, load, uninstall
from blocknb.compat.rewrite import rewrite

triton = build()

__all__ = ["install", "load", "rewrite", "triton", "uninstall"]
