"""Reports of a GPU kernel without a GPU: `simt` runs its code with the hidden arguments that a launch passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernels.base import parameters

from blocknb.codegen import gpu, report
from blocknb.codegen.report import Report
from blocknb.ir.core import Func
from blocknb.runtime.extents import extent
from blocknb.runtime.reports import hidden
from blocknb.target import Target
from fuzz import simt


def run(
    func: Func, arguments: Mapping[str, Any], grid: Sequence[int], target: str = "sm_90a", reachable: Sequence = ()
) -> Report:
    """Runs memory-level IR as GPU code on NumPy arrays, in place."""
    module = gpu.generate(func, Target.parse(target))
    values = parameters(func, arguments)
    bounds = {i: extent(values[i], values[i].ctypes.data) for i in module.extents}
    sizes = {i: func.params[i].type.dtype.element.bytes for i in module.extents}
    words = np.zeros(report.WORDS, np.int64)
    more = hidden(module, words.ctypes.data, [(*bounds[i], sizes[i]) for i in module.extents])
    report_arrays = [words] if module.reports else []
    simt.run(module, [*values, *more], grid, [*report_arrays, *reachable])
    arrays = {i: (func.hints[i].name, values[i].ctypes.data, *bounds[i]) for i in module.extents}
    return report.decode(words, module.sites, arrays)
