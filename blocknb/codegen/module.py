"""The result of the GPU code generator."""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.maps import MapSpec
from blocknb.codegen.report import Site
from blocknb.trace import Note


@dataclass(frozen=True)
class Module:
    """LLVM text and how to launch it: the kernel's name (`entry`), bytes of dynamic shared memory, threads per program (along a CTA's x
    axis), and how many programs a CTA may have (along its y axis).

    Hidden parameters follow the kernel's own, in this order. If it `reports`: the report (see `report`). For each argument in `extents`:
    the lowest address of its array, and within how many bytes from there an element may begin. If it is `persistent`: the grid of the
    launch (x, y, z: i32), since the hardware's grid has as many CTAs as fit, along x. Last come the tensor maps (`maps`). Records refer
    to `sites`. `notes` are decisions about long kernels and big tiles, and `select` is the optimization level of LLVM's back end (see
    `llvm.compile_cuda`).
    """

    text: str
    entry: str
    shared_bytes: int
    threads: int
    reports: bool = False
    extents: tuple[int, ...] = ()
    sites: tuple[Site, ...] = ()
    notes: tuple[Note, ...] = ()
    select: int = 1
    programs: int = 1
    maps: tuple[MapSpec, ...] = ()
    persistent: bool = False
