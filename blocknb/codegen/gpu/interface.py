"""The launch interface of a kernel: its own parameters, then the hidden ones.

The first hidden parameters are the report and the extents of arrays (see `reports`), and the context of shadow memory (see `shadow`). The
grid of a persistent kernel and tensor maps (see `tma`) follow.
"""

from __future__ import annotations

from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.maps import MapSpec
from blocknb.codegen.report import Site
from blocknb.ir.core import Func
from blocknb.language import types as t

GRID = ("%grid.x", "%grid.y", "%grid.z")


class LaunchInterface:
    """The hidden parameters of a kernel. `sites`: the source locations that records of the report name by number. `extents`: the arguments
    whose extents the code reads."""

    def __init__(self, func: Func):
        self.func = func
        self.maps: list[MapSpec] = []
        self.sites: list[Site] = []
        self.reports = self.shadow = False
        self.extents: dict[int, None] = {}
        self.persistent = bool(func.attrs.get("persistent"))

    def add_site(self, site: Site) -> int:
        """Enters a site and returns its number."""
        self.sites.append(site)
        return len(self.sites) - 1

    def add_map(self, spec: MapSpec) -> str:
        """Enters a tensor map and returns the name of its parameter."""
        self.maps.append(spec)
        return f"%map{len(self.maps) - 1}"

    def parameters(self) -> list[str]:
        """The text of all parameters."""
        found = []
        for i, (value, hint) in enumerate(zip(self.func.params, self.func.hints, strict=True)):
            kind = "i8" if value.type.dtype == t.int1 else llvm_type(value.type.dtype)
            align = f" align {hint.divisibility}" if value.type.is_pointer and hint.divisibility > 1 else ""
            found.append(f"{kind}{align} %p{i}")
        if self.reports:
            found.append("ptr addrspace(1) align 16 %report")
        found += [text for i in sorted(self.extents) for text in (f"i64 %low{i}", f"i64 %span{i}")]
        found += ["ptr addrspace(1) align 16 %shadow"] if self.shadow else []
        found += [f"i32 {name}" for name in GRID] if self.persistent else []
        return found + [f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map{i}' for i in range(len(self.maps))]
