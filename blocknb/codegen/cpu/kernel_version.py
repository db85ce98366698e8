"""One version of a kernel: a function that runs a range of programs, with all that its text needs.

A version either assumes that different arguments do not overlap, or allows it (`alias`).
"""

from __future__ import annotations

from dataclasses import dataclass

from blocknb.codegen.cpu import redzones
from blocknb.codegen.cpu.addresses import AddressAnalysis
from blocknb.codegen.cpu.blocks import BlockEmitter
from blocknb.codegen.cpu.buffers import Scratch
from blocknb.codegen.cpu.builder import KernelBuilder, ScalarNames
from blocknb.codegen.cpu.checks import BoundsChecks
from blocknb.codegen.cpu.control_flow import ControlFlow
from blocknb.codegen.cpu.copies import TileCopies
from blocknb.codegen.cpu.data_movement import DataMovement
from blocknb.codegen.cpu.dataflow import Dataflow
from blocknb.codegen.cpu.loop_nests import LoopNestEmitter
from blocknb.codegen.cpu.microkernel import Dots
from blocknb.codegen.cpu.nontemporal_stores import NontemporalStores
from blocknb.codegen.cpu.options import CpuOptions
from blocknb.codegen.cpu.outlining import Outliner
from blocknb.codegen.cpu.redzones import GuardedScratch
from blocknb.codegen.cpu.reports import Reports
from blocknb.codegen.cpu.scalar_lowerings import ScalarLowerings
from blocknb.codegen.cpu.status import READONLY, load_word, poll
from blocknb.codegen.cpu.tiles import TileBuffers
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.codegen.text import DebugInfo, Writer
from blocknb.ir.core import Value
from blocknb.language.types import Pointer
from blocknb.trace import Notes

POINTER_WORDS = 3
SIGNATURE = "i64 %first, i64 %last, ptr %grid, ptr %arguments, ptr noalias %scratch, ptr %status"


@dataclass(frozen=True)
class KernelVersion:
    """What was emitted: `texts` are the definitions, the function that runs programs last.

    `assumptions` has the pairs of arguments that must not overlap; the value says whether they may be equal.
    """

    name: str
    texts: list[str]
    scratch: Scratch
    sites: list[Site]
    first_site: int
    assumptions: dict[tuple[Value, Value], bool]
    notes: Notes

    def redzone_functions(self) -> str:
        """LLVM text of the functions that poison scratch and verify it; the guarded bytes become sites."""
        assert isinstance(self.scratch, GuardedScratch)
        first = self.first_site + len(self.sites)
        self.sites.extend(zone.site for zone in self.scratch.zones)
        return redzones.functions(self.name, self.scratch, first)


def emit_version(
    program: Dataflow, options: CpuOptions, helpers: dict[str, str], debug: DebugInfo | None, first_site: int
) -> KernelVersion:
    """Emits the function that runs programs first..last-1, and the parts that are outlined from it."""
    name, notes = "run.overlapping" if options.alias else "run", Notes("codegen")
    code = KernelBuilder(options.machine, helpers, debug)
    scalars = ScalarNames(program.definition)
    scratch = GuardedScratch() if options.redzones else Scratch()
    checks = BoundsChecks(code, program.guards, scalars, first_site)
    outliner = Outliner(name, code, scalars.types)
    nontemporal = NontemporalStores(program, code, not options.alias and options.uses("nontemporal_stores"))
    tiles = TileBuffers(program, code, scratch)
    addresses = AddressAnalysis(program, options.machine, scalars.known, options.uses("loop_versioning"))
    nests = LoopNestEmitter(program, code, options, scalars, tiles, checks, addresses, nontemporal, notes)
    copies = TileCopies(tiles, nests, scalars)
    blocks = BlockEmitter(program, code, options, scalars, tiles, addresses, nests, outliner)
    blocks.register(
        copies,
        ScalarLowerings(code, scalars, checks),
        ControlFlow(program, code, scalars, tiles, copies, blocks),
        DataMovement(code, tiles, copies),
        Dots(program, code, tiles, copies, notes),
        Reports(code, scalars, tiles, copies, checks),
    )
    w = code.w
    with code.at(None):
        _load_arguments(program, code, scalars, checks)
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
        if nontemporal.used:  # such stores become visible in any order
            w.do("fence seq_cst")
        w.end("ret void")
    texts = [*outliner.texts, _function(name, w, debug)]
    return KernelVersion(name, texts, scratch, checks.sites, first_site, blocks.assumptions, notes)


def _function(name: str, w: Writer, debug: DebugInfo | None) -> str:
    scope = f" !dbg {debug.subprogram}" if debug else ""
    body = "\n".join([*w.slots, *w.lines])
    return f"define internal void @{name}({SIGNATURE}) noinline nounwind{scope} {{\nentry:\n{body}\n}}\n"


def _load_arguments(program: Dataflow, code: KernelBuilder, scalars: ScalarNames, checks: BoundsChecks) -> None:
    """Loads the grid and the arguments into registers."""
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
        checks.load_locked(load_word(w, "%status", READONLY))


def _start_programs(w: Writer) -> None:
    """Opens the loop over programs; %at0..2 hold the ids of the next one."""
    for axis in range(3):
        w.slots.append(f"  %at{axis} = alloca i32")
    w.slots.append("  %number = alloca i64")
    w.do("store i64 %first, ptr %number")
    wide = [w.value(f"zext i32 %grid{axis} to i64") for axis in range(2)]
    row = w.value(f"udiv i64 %first, {wide[0]}")
    ids = [
        w.value(f"urem i64 %first, {wide[0]}"),
        w.value(f"urem i64 {row}, {wide[1]}"),
        w.value(f"udiv i64 {row}, {wide[1]}"),
    ]
    for axis, x in enumerate(ids):
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
