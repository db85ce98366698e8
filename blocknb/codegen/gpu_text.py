"""The text around a kernel's code: its parameters, thread indices and attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.codegen import gpu_bulk, gpu_report, gpu_roles, gpu_stream
from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.module import Module
from blocknb.codegen.text import symbol
from blocknb.language import types as t
from blocknb.trace import Notes

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

#: Loops above which LLVM's back end only selects instructions: its work on addresses grows with the square of the number of loops, and
#: ptxas does the same once more.
MANY_LOOPS = 48


def module(g: Generator) -> Module:
    """The module of a kernel whose code is written."""
    func, threads = g.func, gpu_roles.threads(g.func)
    body = [*prelude(g), *g.entry, *(line for chunk in g.chunks for line in chunk)]
    text = "\n".join(header(g) + body + ["}", *g.declared, *g.helpers.values(), *footer(g, threads)])
    # The functions it calls are the kernel's own, also where several kernels are linked into one file.
    entry, shared = symbol(func.name), func.attrs.get("shared_bytes", 0)
    text = text.replace("@blocknb.", f"@{entry}.") + "\n"
    loops, notes = sum(op.name in ("for", "while") for op in func.ops()), Notes("codegen")
    if loops > MANY_LOOPS:
        notes(
            None,
            f"{loops} loops: what LLVM does for addresses in loops is left to ptxas, above {MANY_LOOPS} it takes too long",
        )
    gpu_stream.explain(g, notes)
    extents, sites, select = tuple(sorted(g.extents)), tuple(g.sites), int(loops <= MANY_LOOPS)
    said, maps = tuple(notes.list), tuple(g.maps)
    return Module(
        text, entry, shared, threads, g.reports, extents, sites, said, select, g.programs, maps, g.persistent
    )  # fmt: skip


def prelude(g: Generator) -> list[str]:
    g.declared["declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()"] = None
    raw = gpu_roles.thread(g)
    return [
        f"  {raw} = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        *([f"  %tid = and i32 {raw}, {32 * g.func.attrs['num_warps'] - 1}"] if g.teams > 1 else []),
        "  %lane = and i32 %tid, 31",
        f"  %warp.raw = lshr i32 {raw}, 5",
        f"  %warp = and i32 %warp.raw, {g.func.attrs['num_warps'] - 1}",
    ]


def header(g: Generator) -> list[str]:
    params = []
    for i, (value, hint) in enumerate(zip(g.func.params, g.func.hints, strict=True)):
        kind = "i8" if value.type.dtype == t.int1 else llvm_type(value.type.dtype)
        align = f" align {hint.divisibility}" if value.type.is_pointer and hint.divisibility > 1 else ""
        params.append(f"{kind}{align} %p{i}")
    params += [*gpu_report.parameters(g), *gpu_bulk.parameters(g)]
    return [
        'target triple = "nvptx64-nvidia-cuda"',
        "@shared = external addrspace(3) global [0 x i8], align 1024",
        f"define ptx_kernel void @{symbol(g.func.name)}({', '.join(params)}) #0 !dbg {g.debug.subprogram} {{",
        "entry:",
    ]


def footer(g: Generator, threads: int) -> list[str]:
    # Unasked, ptxas spills what is carried for a later trip, to have room for one more program on a multiprocessor.
    ahead = any(op.attrs.get("ahead") for op in g.func.ops())
    resident = gpu_roles.resident(g, threads) or int(ahead)
    least = f' "nvvm.minctasm"="{resident}"' if resident else ""
    size = f'"nvvm.reqntid"="{threads}"' if g.programs == 1 else f'"nvvm.maxntid"="{threads},{g.programs}"'
    return [
        f"attributes #0 = {{ nounwind {size}{least} }}",
        "attributes #1 = { convergent nounwind }",
        g.debug.text(),
    ]
