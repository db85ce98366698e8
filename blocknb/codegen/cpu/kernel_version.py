"""One version of a kernel: an LLVM function that runs a range of programs, and the objects that write it.

A version either assumes that different arguments do not overlap, or allows it (`alias`).
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.cpu import redzones
from blocknb.codegen.cpu.blocks import BlockEmitter
from blocknb.codegen.cpu.context import VersionContext
from blocknb.codegen.cpu.control_flow import ControlFlow
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.data_movement import DataMovement
from blocknb.codegen.cpu.dataflow import Dataflow
from blocknb.codegen.cpu.loop_nests import LoopNestEmitter
from blocknb.codegen.cpu.microkernel import Dots
from blocknb.codegen.cpu.options import CpuOptions
from blocknb.codegen.cpu.outlining import Outliner
from blocknb.codegen.cpu.redzones import GuardedScratch
from blocknb.codegen.cpu.reports import Reports
from blocknb.codegen.cpu.scalar_lowerings import ScalarLowerings
from blocknb.codegen.cpu.shadow import ShadowLowering
from blocknb.codegen.cpu.status import READONLY, load_word, poll
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.codegen.text import DebugInfo, Writer
from blocknb.ir.core import Value
from blocknb.ir.shadow import plan_of
from blocknb.language.types import Pointer

POINTER_WORDS = 3
SIGNATURE = "i64 %first, i64 %last, ptr %grid, ptr %arguments, ptr noalias %scratch, ptr %status"


@dataclass(frozen=True)
class KernelVersion:
    """The emitted text: `texts` are the definitions, of which the last runs programs.

    `assumptions`: the pairs of arguments that must not overlap, and for each pair whether the two may be equal.
    """

    name: str
    texts: list[str]
    context: VersionContext
    first_site: int
    assumptions: dict[tuple[Value, Value], bool]

    @property
    def sites(self) -> list[Site]:
        """The sites that may fail, numbered from `first_site` on."""
        return self.context.checks.sites

    def redzone_functions(self) -> str:
        """LLVM text of the functions that poison scratch and verify it; the guarded bytes become sites."""
        scratch = self.context.tiles.scratch
        assert isinstance(scratch, GuardedScratch)
        first = self.first_site + len(self.sites)
        self.sites.extend(zone.site for zone in scratch.zones)
        return redzones.functions(self.name, scratch, first)


def emit_version(
    program: Dataflow, options: CpuOptions, helpers: dict[str, str], debug: DebugInfo | None, first_site: int
) -> KernelVersion:
    """Emits the function that runs programs first..last-1, and the parts that are outlined from it."""
    name = "run.overlapping" if options.alias else "run"
    context = VersionContext(program, options, helpers, debug, first_site)
    outliner = Outliner(name, context.code, context.scalars.types)
    nests = LoopNestEmitter(context)
    blocks = BlockEmitter(context, nests, outliner)
    copies = TileCopies(context, nests)
    plan = plan_of(program.func)
    blocks.register(
        copies,
        ScalarLowerings(context),
        ControlFlow(context, copies, blocks),
        DataMovement(context, copies),
        Dots(context, copies),
        Reports(context, copies),
        ShadowLowering(context, copies, plan.site_bits if plan else 0),
    )
    w = context.code.w
    with context.code.at(None):
        _load_arguments(context)
        _start_programs(w)
        poll(w)
        for axis in range(3):
            w.do(f"%pid{axis} = load i32, ptr %at{axis}")
        if options.redzones:
            w.do(f"call void @{name}.poison(ptr %scratch)")
        blocks.enter(program.func.body)
        blocks.leave()
        if options.redzones:
            w.do(f"call void @{name}.verify(ptr %scratch, ptr %status, i32 %pid0, i32 %pid1, i32 %pid2)")
        _next_program(w)
        if nests.nontemporal.used:  # such stores become visible in any order
            w.do("fence seq_cst")
        scope = f" !dbg {debug.subprogram}" if debug else ""
        body = w.function(f"internal void @{name}({SIGNATURE}) noinline nounwind{scope}", "ret void")
    return KernelVersion(name, [*outliner.texts, body], context, first_site, blocks.assumptions)


def _load_arguments(context: VersionContext) -> None:
    """Loads the grid and the arguments into registers."""
    program, code, scalars = context.program, context.code, context.scalars
    w, at = code.w, 0
    for axis in range(3):
        wide = load_word(w, "%grid", axis)
        w.do(f"%grid{axis} = trunc i64 {wide} to i32")
    for i, param in enumerate(program.func.params):
        dtype = param.type.dtype
        word = load_word(w, "%arguments", at)
        if isinstance(dtype, Pointer):
            bounds = (word, load_word(w, "%arguments", at + 1), load_word(w, "%arguments", at + 2))
            code.bounds[i] = bounds
            scalars.types.update(dict.fromkeys(bounds, "i64"))
            scalars[param] = word
            at += POINTER_WORDS
            continue
        element = register_type(dtype)
        bits = element if dtype.is_integer else f"i{64 if element == 'double' else 32}"
        value = word if bits == "i64" else code.convert("trunc", word, "i64", bits, 1)
        scalars[param] = value if bits == element else code.convert("bitcast", value, bits, element, 1)
        at += 1
    if any(guard.asks_readonly for guard in program.guards.values()):
        context.checks.load_read_only(load_word(w, "%status", READONLY))


def _start_programs(w: Writer) -> None:
    """Opens the loop over programs; %at0..2 hold the ids of the next one."""
    for axis in range(3):
        w.slots.append(f"  %at{axis} = alloca i32")
    w.slots.append("  %number = alloca i64")
    w.do("store i64 %first, ptr %number")
    wide = [w.value(f"zext i32 %grid{axis} to i64") for axis in range(2)]
    row = w.value(f"udiv i64 %first, {wide[0]}")
    texts = (f"urem i64 %first, {wide[0]}", f"urem i64 {row}, {wide[1]}", f"udiv i64 {row}, {wide[1]}")
    for axis, x in enumerate([w.value(text) for text in texts]):
        w.do(f"store i32 {w.value(f'trunc i64 {x} to i32')}, ptr %at{axis}")
    w.place("next")
    number = w.value("load i64, ptr %number")
    w.branch(w.value(f"icmp slt i64 {number}, %last"), "program", "leave")
    w.place("program")
    w.do(f"store i64 {w.value(f'add i64 {number}, 1')}, ptr %number")


def _next_program(w: Writer) -> None:
    """Counts the ids on, and closes the loop."""
    carry = "true"
    for axis in range(3):
        following = w.value(f"add i32 %pid{axis}, {w.value(f'zext i1 {carry} to i32')}")
        full = w.value(f"icmp eq i32 {following}, %grid{axis}") if axis < 2 else "false"
        w.do(f"store i32 {w.value(f'select i1 {full}, i32 0, i32 {following}')}, ptr %at{axis}")
        carry = full
    w.jump("next")
    w.place("leave")
