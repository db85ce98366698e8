"""Persistent kernels: a CTA runs one program after another.

At the end of a program, the tensor cores idle while it stores its results. They idle again at the start of the next program, until its
first tiles arrive. If a producer warp copies, a persistent CTA fills both gaps: it copies tiles of the next program while it stores
results. The launch starts as many CTAs as fit, and CTA c runs programs c, c + CTAs, and so on. This distribution is fixed before programs
run, so all must have the same work. Source: Gupta, Stuart and Owens, "A Study of Persistent Threads Style GPU Programming" (InPar 2012);
CUTLASS's persistent tile scheduler.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from blocknb.analysis import affine
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.report import REPORTS
from blocknb.ir.traversal import reachable
from blocknb.language.ops import LOOPS, READS
from blocknb.passes.memory.warp_specialization import applies
from blocknb.passes.pipelining.backward_slice import sources
from blocknb.passes.pipelining.legality import why_none_within
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes


@gpu_pass(optional=True, applies=applies)
def persistent_grid(func: Func, target: Target, notes: Notes) -> Func:
    """Lets each CTA run one program after another

    When: copying gets a warp of its own (`warp_specialization`), and the loops with products have the same number of iterations in all
    programs.

    What: the pass marks the function as persistent. `warp_specialization` then writes a loop over programs, and the launch starts as many
    CTAs as the GPU runs at a time.

    Why: the copies of the next program start while the results of the last one are stored, so tensor cores wait less between programs.

    Limits: a CTA's programs are fixed before they run, so programs with different numbers of iterations keep a CTA each. So do kernels
    that loop over programs themselves, and kernels that print, assert or check bounds.

    Before:

        func @matmul(%a: ptr<f16>, %b: ptr<f16>) memory {num_warps=8} {
          %pid = program_id 0 : i32
          %c = for %k = 0 to %n step 64 iter(%acc = %zero) : tile<128x256xf32>
        }

    After:

        func @matmul(%a: ptr<f16>, %b: ptr<f16>) memory {num_warps=8, persist=True} {
          %pid = program_id 0 : i32
          %c = for %k = 0 to %n step 64 iter(%acc = %zero) : tile<128x256xf32>
        }
    """
    facts = affine.analyze(func)
    if (report := next((op for op in func.ops() if op.name in REPORTS), None)) is not None:
        notes(
            report,
            f"not persistent: the kernel has the op `{report.name}`, and each CTA counts the reports of one program only",
        )
        return func
    if why := why_none_within(func.ops()):
        notes(None, f"not persistent: {why}")
        return func
    for loop, outer in loops(func.body):
        if any(depends(facts, x) for x in loop.args[:3]):
            why = (
                "the kernel loops over programs itself"
                if outer
                else "the number of iterations may differ between programs"
            )
            notes(loop, f"not persistent: {why}")
            return func
    return func.with_attrs(persist=True)


def loops(block: Block) -> Iterator[tuple[Op, bool]]:
    """The loops that hold products, outer before inner, and whether each contains another such loop."""
    for op in block.ops:
        for inner in op.blocks:
            found = list(loops(inner))
            if op.name in LOOPS and (found or any(x.name == "dot" for x in inner.ops)):
                yield op, bool(found)
            yield from found


def depends(facts: affine.Facts, value: Value, on: Container[str] = READS | {"program_id"}) -> bool:
    """Whether a scalar depends on an op of these names, and so may differ between programs."""
    makers = map(facts.definition.get, reachable([value], lambda x: sources(facts, x)))
    return any(op is not None and op.name in on for op in makers)
