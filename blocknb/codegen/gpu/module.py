"""The result of the GPU code generator: the text around the code of a kernel, and how to launch it."""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.analysis.residency import MOST_REGISTERS
from blocknb.codegen.gpu import warp_specialization
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.scheduling import MANY_ACCESSES
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.threads import Threads
from blocknb.codegen.maps import MapSpec
from blocknb.codegen.report import Site
from blocknb.codegen.text import symbol
from blocknb.ir.core import Block, Func
from blocknb.language.ops import LOOPS
from blocknb.trace import Note, Notes

#: Loops above which LLVM's back end only selects instructions. Its work on addresses grows with the square of the number of loops, and
#: ptxas repeats it.
MANY_LOOPS = 48


@dataclass(frozen=True)
class GpuModule:
    """LLVM text and how to launch it. It has the kernel's name (`entry`), the bytes of dynamic shared memory, and the threads per program
    (along a CTA's x axis). It also says how many programs a CTA may have (along its y axis).

    Hidden parameters follow the kernel's own, in this order. If it `reports`: the report (see `report`). For each argument in `extents`:
    the lowest address of its array, and within how many bytes from there an element may begin. If it is `persistent`: the grid of the
    launch (x, y, z: i32). The hardware's grid then has as many CTAs as fit, along x, in clusters of `cluster` CTAs. Last come the tensor
    maps (`maps`). Records refer to `sites`. `notes` record decisions about long kernels, and `select` is the optimization level of LLVM's
    back end (see `llvm.compile_cuda`).
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
    cluster: int = 1


def finished(context: KernelContext) -> GpuModule:
    """Assembles the module from the finished code of a kernel."""
    func, text, threads, interface = context.func, context.text, context.threads, context.interface
    count = warp_specialization.threads(func)
    parameters = ", ".join(interface.parameters())
    begin = prelude(threads, text)
    lines = [
        'target triple = "nvptx64-nvidia-cuda"',
        "@shared = external addrspace(3) global [0 x i8], align 1024",
        f"define ptx_kernel void @{symbol(func.name)}({parameters}) #0 !dbg {text.debug.subprogram} {{",
        "entry:",
        *begin,
        *text.entry,
        *(line for chunk in text.chunks for line in chunk),
        "}",
        *text.declared,
        *text.helpers.values(),
        *footer(func, count, threads.programs),
        text.debug.text(),
    ]
    # The functions that it calls are the kernel's own, even where several kernels are linked into one file.
    entry, shared = symbol(func.name), func.attrs.get("shared_bytes", 0)
    written = "\n".join(lines).replace("@blocknb.", f"@{entry}.") + "\n"
    loops, notes = sum(op.name in LOOPS for op in func.ops()), Notes("codegen")
    if loops > MANY_LOOPS:
        notes(
            None,
            f"LLVM does not optimise the addresses of {loops} loops, because this takes too long above {MANY_LOOPS}; ptxas does",
        )
    if text.splits:
        notes(
            None,
            f"{text.splits + 1} basic blocks of up to {MANY_ACCESSES} accesses to memory each: ptxas compares all accesses of a "
            "block with each other, and would take too long with more of them",
        )
    return GpuModule(
        written,
        entry,
        shared,
        count,
        interface.reports,
        tuple(sorted(interface.extents)),
        tuple(interface.sites),
        tuple(notes.list),
        int(loops <= MANY_LOOPS),
        threads.programs,
        tuple(interface.maps),
        interface.persistent,
        int(func.attrs.get("cluster", 1)),
    )


def prelude(threads: Threads, text: TextWriter) -> list[str]:
    """The head of the kernel: the indices of the thread."""
    text.declared["declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()"] = None
    raw = threads.index_in_cta()
    return [
        f"  {raw} = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        *([f"  %tid = and i32 {raw}, {32 * threads.num_warps - 1}"] if threads.consumer_groups > 1 else []),
        "  %lane = and i32 %tid, 31",
        f"  %warp.raw = lshr i32 {raw}, 5",
        f"  %warp = and i32 %warp.raw, {threads.num_warps - 1}",
    ]


#: Registers per thread of loads for a later iteration of a loop with products. With fewer, ptxas chooses the number of registers itself,
#: which leaves room for more CTAs.
SPILLED = 8


def is_read_ahead(block: Block, least: int) -> bool:
    """Whether a block reads tiles ahead, for another iteration or before its arithmetic, into so many registers per thread at least."""
    loads = [op for op in block.ops if op.name == "load" and op.result.type.shape]
    return any(op.attrs.get("scheduling_barrier") not in (None, "straight") for op in loads) and (
        sum(max(1, op.result.type.layout.num_registers * op.result.type.dtype.bytes // 4) for op in loads) >= least
    )


def footer(func: Func, threads: int, programs: int) -> list[str]:
    """The attributes of the kernel and of the calls in it."""
    # By default ptxas spills values for a later iteration, to make room for one more CTA on an SM.
    products = any(op.name == "dot" for op in func.ops())
    ahead = any(is_read_ahead(block, SPILLED if products else 1) for op in func.ops() for block in op.blocks)
    of_loads = -(-func.attrs.get("min_ctas", 0) // programs)
    resident = warp_specialization.resident(func, threads) or int(ahead) or of_loads
    most = func.attrs.get("maxnreg")
    least = f' "nvvm.minctasm"="{resident}"' if resident and not most else ""
    if most:  # ptxas takes one of both limits
        least = f' "nvvm.maxnreg"="{min(most, MOST_REGISTERS)}"'
    if cluster := func.attrs.get("cluster"):
        least += f' "nvvm.cluster_dim"="{cluster},1,1"'
    size = f'"nvvm.reqntid"="{threads}"' if programs == 1 else f'"nvvm.maxntid"="{threads},{programs}"'
    return [f"attributes #0 = {{ nounwind {size}{least} }}", "attributes #1 = { convergent nounwind }"]
