"""Helpers for tests of the CPU backend: compile a function of tile IR for a CPU, and run it on NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from host_cpus import BASELINE, NEWER

from blocknb import passes
from blocknb.codegen import cpu, llvm
from blocknb.codegen.cpu.redzones import wanted
from blocknb.ir.core import Func
from blocknb.language.types import Pointer
from blocknb.runtime.extents import extent
from blocknb.runtime.host import HostKernel
from blocknb.target import Target

#: This machine, one with AVX2, FMA and fp16 conversion, and one with nothing but SSE2; on Arm this machine and the baseline.
TARGETS = tuple(dict.fromkeys(("cpu", NEWER, BASELINE)))


def prepared(func: Func, target: Target) -> Func:
    """The function after those passes that are not optional, and after the one that marks non-temporal stores."""
    return passes.run(func, target, set(passes.optional()) - {"nontemporal_stores"})[0]


def compile_native(
    func: Func, target: str = "cpu", checked: bool = True, opt: int = 2, off: Iterable[str] = ()
) -> HostKernel:
    """Machine code for a function, after those passes that are not optional; `opt`: how hard LLVM tries, where 0 is the quickest;
    `off`: the code generator's optimizations that are left out."""
    parsed = Target.parse(target)
    module = cpu.generate(prepared(func, parsed), parsed, checked, off, wanted())
    made = llvm.compile_cpu(module.text, parsed, opt=opt).result()
    parameters = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    return HostKernel(made.object, module.entry, parameters, module.sites, module.scratch_bytes, module.may_loop)


def launch_native(kernel: HostKernel, args: Sequence[Any], grid: int | Sequence[int]) -> None:
    """Runs a grid, arrays in place."""
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    packed: list[Any] = []
    for (_, kind), value in zip(kernel.parameters, args, strict=True):
        if isinstance(kind, Pointer):
            packed.append((value.ctypes.data, *extent(value, value.ctypes.data)))
        else:
            packed.append(value.item() if isinstance(value, np.generic) else value)
    kernel.launch((*grid, 1, 1)[:3], packed)


def run_native(
    func: Func, args: Sequence[Any], grid: int | Sequence[int], target: str = "cpu", checked: bool = True, opt: int = 2
) -> HostKernel:
    """Compiles and runs."""
    kernel = compile_native(func, target, checked, opt)
    launch_native(kernel, args, grid)
    return kernel
