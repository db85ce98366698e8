"""What GPU code generation makes of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.maps import MapSpec
from blocknb.codegen.report import Site
from blocknb.trace import Note


@dataclass(frozen=True)
class Module:
    """LLVM text and how to launch it: the kernel's name, bytes of dynamic shared memory, threads a program (along a CTA's x axis), and
    how many programs a CTA may have (along its y axis).

    Behind the kernel's own parameters come, if it `reports`, the report (see `report`), and for each argument in `extents` the lowest
    address of its array and in how many bytes from there an element may begin, if it is `persistent` the launch's grid (x, y, z: i32; the
    grid that the hardware sees is of as many CTAs as fit, along x), and the tensor maps (`maps`). `sites` are what records refer to.
    `notes` say what was done because the kernel is long, and `select` is how hard LLVM's back end shall try (see `llvm.compile_cuda`).
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
