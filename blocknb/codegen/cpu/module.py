"""Tile IR to LLVM text for a CPU.

The module exports one function, `entry(chunk, limit, total, grid, arguments, scratch, status)`. It takes ranges of `chunk` programs from
a counter in `status`, until all `total` are taken or the counter has reached `limit`. Any number of threads may call it at once and share
the work. Axis 0 of the grid runs fastest. Between programs, and in loops of many iterations, the code tests a stop flag.

Arguments are 64-bit words. A pointer takes three: its address, and the lower and upper bound of the bytes that may be touched. A number
takes one; fp16 and bf16 are the bits of an fp32. Loop nests are fused as if different arguments did not overlap. Where that matters, the
kernel is compiled a second time without the assumption, and `entry` chooses a version by the bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blocknb.codegen.cpu.buffers import CACHE_LINE
from blocknb.codegen.cpu.dataflow import Dataflow
from blocknb.codegen.cpu.kernel_version import POINTER_WORDS, emit_version
from blocknb.codegen.cpu.options import OPTIMIZATIONS, CpuOptions
from blocknb.codegen.cpu.status import NEXT, VIOLATION, load_word
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.text import DebugInfo, Writer, symbol
from blocknb.errors import no_assembly
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import LOOPS
from blocknb.language.types import Pointer
from blocknb.passes.support.carried_bounds import guards
from blocknb.target import Target
from blocknb.trace import Note, Notes, left_out


@dataclass(frozen=True)
class CpuModule:
    """LLVM text, and the facts that the host needs about it.

    `entry` is the exported function. A thread needs `scratch_bytes`, aligned to 64. `sites[i]` is the access that violation i is about.
    `params` are the parameters. `may_loop`: a program may run for long. `notes`: how the code executes accesses and dots.
    """

    text: str
    entry: str
    scratch_bytes: int
    sites: tuple[Site, ...]
    params: tuple[Value, ...]
    may_loop: bool
    notes: tuple[Note, ...] = ()


def generate(
    func: Func, target: Target, checked: bool = True, without: Iterable[str] = (), redzones: bool = False
) -> CpuModule:
    """LLVM text for a Func of the tile level.

    `checked`: accesses to arguments are bounds-checked. `without` names OPTIMIZATIONS to leave out. An optimization that fails is left out,
    too, with a note (see `trace.left_out`). `redzones`: see `codegen.cpu.redzones`. Raises Unsupported for ops that need a GPU.
    """
    for op in func.ops():
        if op.name == "asm":
            raise no_assembly("a CPU", op.loc)
    options = CpuOptions(TargetFeatures.of(target), checked, frozenset(without), redzones)
    try:
        return _generate(func, options)
    except Exception as error:
        return _generate_without_failed(func, options, error)


def _generate_without_failed(func: Func, options: CpuOptions, error: Exception) -> CpuModule:
    """The module without the first optimization whose absence makes code generation succeed, or without all of them."""
    for names in (*((name,) for name in OPTIMIZATIONS if name not in options.off), OPTIMIZATIONS):
        note = left_out(", ".join(names), "codegen", error)
        with contextlib.suppress(Exception):  # the first error is what `generate` raises if nothing helps
            module = _generate(func, replace(options, off=options.off.union(names)))
            return replace(module, notes=(note, *module.notes))
    raise error


def _generate(func: Func, options: CpuOptions) -> CpuModule:
    notes = Notes("codegen")
    func, checks = guards(prepared(func), notes) if options.checked else (prepared(func), {})
    program = Dataflow(func, checks)
    helpers: dict[str, str] = {}
    debug = DebugInfo(func.name, func.loc, first=2) if func.loc else None
    plain = emit_version(program, options, helpers, debug, first_site=0)
    entry, versions = f"blocknb_{symbol(func.name)}", [plain]
    if plain.assumptions:
        overlapping = replace(options, alias=True)
        versions.append(emit_version(program, overlapping, helpers, None, first_site=len(plain.sites)))
    bodies = [text for version in versions for text in version.texts]
    redzones = [version.redzone_functions() for version in versions if options.redzones]
    entry_text = _entry(func, entry, plain.assumptions)
    parts = [f'source_filename = "{func.name}"', VIOLATION, *helpers.values(), *redzones, *bodies, entry_text]
    parts.append('!0 = !{!"branch_weights", i32 1, i32 1000000}')
    parts.append("!1 = !{i32 1}")  # !nontemporal
    parts.append(debug.text() if debug else "")
    loops = any(op.name in LOOPS for op in func.ops())
    scratch = max(CACHE_LINE, *(version.context.tiles.scratch.bytes for version in versions))
    sites = tuple(site for version in versions for site in version.sites)
    said = (*notes.list, *plain.context.notes.list)
    return CpuModule("\n".join(parts), entry, scratch, sites, func.params, loops, said)


def prepared(func: Func) -> Func:
    """The function without ops that a CPU does not need: it drops promises, and turns reductions of axes of size one into reshapes."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name == "promise":
            return [op.args[0]]
        if op.name == "reduce" and op.results[0].type.shape and op.args[0].type.shape[op.attrs["axis"]] == 1:
            shape = op.results[0].type.shape
            return [rebuild.builder.value("reshape", x, shape=shape) for x in op.args]
        return NotImplemented

    return rebuild(func, visit, "codegen")


def _entry(func: Func, name: str, assumptions: Mapping[tuple[Value, Value], bool]) -> str:
    """The exported function: takes ranges of programs from the counter."""
    c = InstructionBuilder(Writer(), TargetFeatures(16, 16, False, False, False, False), {})
    w = c.w
    counter = w.value(f"getelementptr inbounds i64, ptr %status, i64 {NEXT}")
    apart = _apart(c, func, assumptions)
    w.place("take")
    reached = w.value(f"load atomic i64, ptr {counter} monotonic, align 8")
    w.branch(w.value(f"icmp slt i64 {reached}, %limit"), "more", "leave")
    w.place("more")
    first = w.value(f"atomicrmw add ptr {counter}, i64 %chunk seq_cst")
    w.branch(w.value(f"icmp slt i64 {first}, %total"), "range", "leave")
    w.place("range")
    last = c.i64_least(w.value(f"add i64 {first}, %chunk"), "%total")
    call = f"(i64 {first}, i64 {last}, ptr %grid, ptr %arguments, ptr %scratch, ptr %status)"
    if assumptions:
        w.branch(apart, "apart", "overlapping")
        w.place("overlapping")
        w.do(f"call void @run.overlapping{call}")
        w.jump("on")
        w.place("apart")
    w.do(f"call void @run{call}")
    w.place("on")
    w.branch(w.value(f"icmp eq i64 {w.value('load volatile i64, ptr %status')}, 0"), "take", "leave")
    w.place("leave")
    signature = "i64 %chunk, i64 %limit, i64 %total, ptr %grid, ptr %arguments, ptr %scratch, ptr %status"
    return w.function(f"void @{name}({signature}) nounwind", "ret void")


def _apart(c: InstructionBuilder, func: Func, assumptions: Mapping[tuple[Value, Value], bool]) -> str:
    """Whether no two arguments overlap that the code assumes to be disjoint."""
    words, at = {}, 0
    for param in func.params:
        words[param] = at
        at += POINTER_WORDS if isinstance(param.type.dtype, Pointer) else 1
    holds = "true"
    for (a, b), same_elements in assumptions.items():
        x, low_a, high_a = (load_word(c.w, "%arguments", words[a] + i) for i in range(3))
        y, low_b, high_b = (load_word(c.w, "%arguments", words[b] + i) for i in range(3))
        before = c.w.value(f"icmp ule i64 {high_a}, {low_b}")
        fine = c.binary("or", before, c.w.value(f"icmp ule i64 {high_b}, {low_a}"), "i1", 1)
        if same_elements:
            fine = c.binary("or", fine, c.w.value(f"icmp eq i64 {x}, {y}"), "i1", 1)
        holds = c.binary("and", holds, fine, "i1", 1)
    return holds
