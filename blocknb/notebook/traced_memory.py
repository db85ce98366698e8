"""Measures the memory of Python and NumPy during a cell by `tracemalloc`, for `%%blockkernel --memory` on the CPU.

NumPy reports its arrays to tracemalloc under a domain of their own. So the number of bytes in arrays that the cell made and that still
exist is exact. The peak is that of Python's objects and NumPy's arrays together, because tracemalloc keeps one peak for all domains.
Tracing makes Python code slower, so only the option turns it on. Memory that kernels, or C libraries, take from the operating system is not
traced.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np


@dataclass
class TracedMemory:
    """Traces memory from `start` to `stop`. `peak` is the most bytes of Python and NumPy above those at the beginning of the cell. `arrays`
    has the bytes of NumPy's arrays that the cell made and that exist at its end. `why` says why there are no figures."""

    peak: int = 0
    arrays: int = 0
    why: str = ""
    running: bool = False

    def start(self) -> None:
        if tracemalloc.is_tracing():
            self.why = "tracemalloc was on before the cell, and its figures belong to that measurement."
            return
        tracemalloc.start(1)
        self.running = True

    def mark(self) -> int:
        """Begins a new peak, and returns the bytes that are traced now. The peak so far is kept."""
        if not self.running:
            return 0
        now, peak = tracemalloc.get_traced_memory()
        self.peak = max(self.peak, peak)
        tracemalloc.reset_peak()
        return now

    def since(self, mark: int) -> int:
        """The peak above a `mark`."""
        return max(tracemalloc.get_traced_memory()[1] - mark, 0) if self.running else 0

    def stop(self) -> None:
        if not self.running:
            return
        self.mark()
        self.running = False
        try:
            domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
            found = tracemalloc.take_snapshot().filter_traces([domain])
            self.arrays = sum(trace.size for trace in found.traces)
        finally:
            tracemalloc.stop()
