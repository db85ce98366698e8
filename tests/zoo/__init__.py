"""Kernels of the kinds that projects are made of, written as they write them: for Triton, with a wrapper each, loaded as they are.

A family is a file for Triton (`import triton`), which `blocknb.load` runs; it registers its specimens in `ZOO`.
"""

from pathlib import Path

import blocknb
from zoo.registry import ZOO, Specimen

for _path in sorted((Path(__file__).parent / "families").glob("*.py")):
    blocknb.load(_path)

__all__ = ["ZOO", "Specimen"]
