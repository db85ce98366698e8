"""The zoo: kernels of the kinds that real projects contain, written for Triton with a wrapper each, and loaded unchanged.

A family is a file for Triton (`import triton`), which `blocknb.load` runs; it registers its specimens in `ZOO`.
"""

from pathlib import Path

import blocknb
from zoo.registry import ZOO, Specimen

for _path in sorted((Path(__file__).parent / "families").glob("*.py")):
    blocknb.load(_path)

__all__ = ["ZOO", "Specimen"]
