"""Runs Triton source with blocknb: in `%%blockkernel` cells, in files that `load` runs, and after `install()` in the whole process.

The modules of Triton exist here as facades (see `names`), under `blocknb.compat.triton...`. Source that imports Triton is rewritten to
import the facades (see `rewrite`), so that an installed Triton stays available to all other code.
"""

from blocknb.compat.facade import build
from blocknb.compat.loading import install, load, uninstall
from blocknb.compat.rewrite import rewrite

triton = build()

__all__ = ["install", "load", "rewrite", "triton", "uninstall"]
