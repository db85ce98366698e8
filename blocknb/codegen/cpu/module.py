"""Tile IR to LLVM text for a CPU: `generate(func, target)` gives a Module.

The module exports one function, `entry(chunk, limit, total, grid, arguments, scratch, status)`. It takes ranges of `chunk` programs
from a counter in `status` until all `total` are taken or the counter has reached `limit`, so that any number of threads may call it
at once and share the work. Programs are numbered with axis 0 running fastest. Between programs, and in loops that may be long, it
looks at a stop flag.

Arguments are 64-bit words: three for a pointer (address, lower and upper bound of the bytes that may be touched), one for a
number (fp16 and bf16 as the bits of an fp32). Loop nests are fused as if different arguments did not overlap; where that mattered,
the kernel is compiled a second time without the assumption, and `entry` picks by looking at the bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blocknb.codegen.cpu.blocks import OPTIMIZATIONS, Build, Emitter
from blocknb.codegen.cpu.fusion import Program
from blocknb.codegen.cpu.memory import LINE
from blocknb.codegen.report import Site
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.codegen.text import DebugInfo, Writer, symbol
from blocknb.errors import no_assembly
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.language.types import Pointer
from blocknb.passes.carried_bounds import guards
from blocknb.target import Target
from blocknb.trace import Note, Notes, left_out

#: Words of the status block (i64): a stop flag, then what went wrong, a bit for each argument that is read-only, the address of the
#: report (see `report`) that prints go to, then, on a line of its own, the next program to run.
STOP, SITE, OFFSET, PROGRAM, READONLY, REPORT, NEXT, STATUS_WORDS = 0, 1, 2, 3, 5, 6, 8, 16
POINTER_WORDS = 3


@dataclass(frozen=True)
class Module:
    """LLVM text and what the host must know of it.

    `entry` is the exported function; `scratch_bytes` a thread needs (aligned to 64); `sites[i]` the access that violation i is
    about; `params` the parameters; `may_loop` whether a program may run for long; `notes` say how accesses and
    dots are done.
    """

    text: str
    entry: str
    scratch_bytes: int
    sites: tuple[Site, ...]
    params: tuple[Value, ...]
    may_loop: bool
    notes: tuple[Note, ...] = ()


VIOLATION = f"""
define internal void @blocknb.violation(ptr %status, i64 %site, i64 %offset, i32 %pid0, i32 %pid1, i32 %pid2) noinline cold nounwind {{
  %place = getelementptr i64, ptr %status, i64 {SITE}
  %claim = cmpxchg ptr %place, i64 0, i64 %site seq_cst seq_cst
  %first = extractvalue {{ i64, i1 }} %claim, 1
  br i1 %first, label %report, label %done
report:
  %o = getelementptr i64, ptr %status, i64 {OFFSET}
  store i64 %offset, ptr %o
  %p = getelementptr i64, ptr %status, i64 {PROGRAM}
  store i32 %pid0, ptr %p
  %p1 = getelementptr i32, ptr %p, i64 1
  store i32 %pid1, ptr %p1
  %p2 = getelementptr i32, ptr %p, i64 2
  store i32 %pid2, ptr %p2
  store atomic i64 1, ptr %status release, align 8
  br label %done
done:
  ret void
}}
"""


def generate(
    func: Func, target: Target, checked: bool = True, without: Iterable[str] = (), redzones: bool = False
) -> Module:
    """LLVM text for a Func of the tile level.

    `checked`: accesses to arguments are bounds-checked. `without` names OPTIMIZATIONS to leave out. One that fails is left out,
    too, with a note (see `trace.left_out`). `redzones`: see `redzones`. Raises Unsupported for what only a GPU does.
    """
    for op in func.ops():
        if op.name == "asm":
            raise no_assembly("a CPU", op.loc)
    build = Build(TargetFeatures.of(target), checked, frozenset(without), redzones)
    try:
        return _generate(func, build)
    except Exception as error:
        return _generate_without_what_failed(func, build, error)


def _generate_without_what_failed(func: Func, build: Build, error: Exception) -> Module:
    """The Module without the first optimization whose absence makes the code generator succeed, or without all of them."""
    for names in (*((name,) for name in OPTIMIZATIONS if name not in build.off), OPTIMIZATIONS):
        note = left_out(", ".join(names), "codegen", error)
        with contextlib.suppress(Exception):  # the first error is what `generate` raises if nothing helps
            module = _generate(func, replace(build, off=build.off.union(names)))
            return replace(module, notes=(note, *module.notes))
    raise error


def _generate(func: Func, build: Build) -> Module:
    notes = Notes("codegen")
    func, checks = guards(prepared(func), notes) if build.checked else (prepared(func), {})
    program = Program(func, checks)
    helpers: dict[str, str] = {}
    debug = DebugInfo(func.name, func.loc, first=2) if func.loc else None
    plain = _body(Emitter(program, build, helpers, debug, alias=False, first_site=0))
    entry, made = f"blocknb_{symbol(func.name)}", [plain]
    bodies = [*plain.parts.texts, _function("run", plain.code.w, debug)]
    if plain.assumptions:
        careful = Emitter(program, build, helpers, None, alias=True, first_site=len(plain.sites))
        made.append(_body(careful))
        bodies += [*careful.parts.texts, _function("run.overlapping", careful.code.w, None)]
    entry_text = _entry(program, entry, plain.assumptions)
    redzones = [e.guards() for e in made if build.redzones]
    parts = [f'source_filename = "{func.name}"', VIOLATION, *helpers.values(), *redzones, *bodies, entry_text]
    parts.append('!0 = !{!"branch_weights", i32 1, i32 1000000}')
    parts.append("!1 = !{i32 1}")  # !nontemporal
    parts.append(debug.text() if debug else "")
    loops = any(op.name in ("while", "for") for op in func.ops())
    scratch = max(LINE, *(e.scratch.bytes for e in made))
    sites = tuple(site for e in made for site in e.sites)
    return Module("\n".join(parts), entry, scratch, sites, func.params, loops, (*notes.list, *plain.notes.list))


def prepared(func: Func) -> Func:
    """Without what only other passes or other machines have a use for: promises of an author, and reductions of single elements,
    which are changes of shape here."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name == "promise":
            return [op.args[0]]
        if op.name == "reduce" and op.results[0].type.shape and op.args[0].type.shape[op.attrs["axis"]] == 1:
            shape = op.results[0].type.shape
            return [rebuild.builder.value("reshape", x, shape=shape) for x in op.args]
        return NotImplemented

    return rebuild(func, "codegen", visit)


SIGNATURE = "i64 %first, i64 %last, ptr %grid, ptr %arguments, ptr noalias %scratch, ptr %status"


def _function(name: str, w: Writer, debug: DebugInfo | None) -> str:
    scope = f" !dbg {debug.subprogram}" if debug else ""
    return (
        f"define internal void @{name}({SIGNATURE}) noinline nounwind{scope} {{\nentry:\n"
        + "\n".join([*w.slots, *w.lines])
        + "\n}\n"
    )


def _body(e: Emitter) -> Emitter:
    """Emits the function that runs programs first..last-1."""
    c, w = e.code, e.code.w
    with w.at(e.debug.location(None) if e.debug else ""):
        _load_arguments(e)
        _start_programs(c)
        e.poll()
        for axis in range(3):
            w.do(f"%pid{axis} = load i32, ptr %at{axis}")
        if e.build.redzones:
            w.do(f"call void @{e.parts.name}.poison(ptr %scratch)")
        e.block(e.program.func.body)
        e.leave()
        if e.build.redzones:
            w.do(f"call void @{e.parts.name}.verify(ptr %scratch, ptr %status, i32 %pid0, i32 %pid1, i32 %pid2)")
        _next_program(c)
        if e.streams:  # such stores become visible in any order
            w.do("fence seq_cst")
        w.end("ret void")
    return e


def _word(c: InstructionBuilder, base: str, index: int) -> str:
    place = c.w.value(f"getelementptr inbounds i64, ptr {base}, i64 {index}")
    return c.w.value(f"load i64, ptr {place}")


def _load_arguments(e: Emitter) -> None:
    c, at = e.code, 0
    for axis in range(3):
        wide = _word(c, "%grid", axis)
        c.w.do(f"%grid{axis} = trunc i64 {wide} to i32")
    for i, param in enumerate(e.program.func.params):
        dtype = param.type.dtype
        word = _word(c, "%arguments", at)
        if isinstance(dtype, Pointer):
            e.bounds[i] = bounds = (word, _word(c, "%arguments", at + 1), _word(c, "%arguments", at + 2))
            e.scalars.types.update(dict.fromkeys(bounds, "i64"))
            e.scalars[param] = word
            at += POINTER_WORDS
            continue
        element = register_type(dtype)
        bits = element if dtype.is_integer else f"i{64 if element == 'double' else 32}"
        value = word if bits == "i64" else c.convert("trunc", word, "i64", bits, 1)
        e.scalars[param] = value if bits == element else c.convert("bitcast", value, bits, element, 1)
        at += 1
    if any(guard.asks_readonly for guard in e.program.guards.values()):
        e.checks.load_locked(_word(c, "%status", READONLY))


def _start_programs(c: InstructionBuilder) -> None:
    """Opens the loop over programs; %at0..2 hold the ids of the next one."""
    w = c.w
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


def _next_program(c: InstructionBuilder) -> None:
    """Counts the ids on, and closes the loop."""
    w = c.w
    carry = "true"
    for axis in range(3):
        following = w.value(f"add i32 %pid{axis}, {w.value(f'zext i1 {carry} to i32')}")
        full = w.value(f"icmp eq i32 {following}, %grid{axis}") if axis < 2 else "false"
        w.do(f"store i32 {w.value(f'select i1 {full}, i32 0, i32 {following}')}, ptr %at{axis}")
        carry = full
    w.jump("next")
    w.place("leave")


def _entry(program: Program, name: str, assumptions: Mapping[tuple[Value, Value], bool]) -> str:
    """The exported function: takes ranges of programs from the counter."""
    c = InstructionBuilder(Writer(), TargetFeatures(16, False, False, False, False), {})
    w = c.w
    counter = w.value(f"getelementptr inbounds i64, ptr %status, i64 {NEXT}")
    apart = _apart(c, program, assumptions)
    w.place("take")
    reached = w.value(f"load atomic i64, ptr {counter} monotonic, align 8")
    w.branch(w.value(f"icmp slt i64 {reached}, %limit"), "more", "leave")
    w.place("more")
    first = w.value(f"atomicrmw add ptr {counter}, i64 %chunk seq_cst")
    w.branch(w.value(f"icmp slt i64 {first}, %total"), "range", "leave")
    w.place("range")
    last = c.intrinsic("smin", "i64", 1, w.value(f"add i64 {first}, %chunk"), "%total")
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
    w.end("ret void")
    body = "\n".join([*w.slots, *w.lines])
    signature = "i64 %chunk, i64 %limit, i64 %total, ptr %grid, ptr %arguments, ptr %scratch, ptr %status"
    return f"define void @{name}({signature}) nounwind {{\nentry:\n{body}\n}}\n"


def _apart(c: InstructionBuilder, program: Program, assumptions: Mapping[tuple[Value, Value], bool]) -> str:
    """Whether the arguments overlap nowhere where the code assumes that they do not."""
    words, at = {}, 0
    for param in program.func.params:
        words[param] = at
        at += POINTER_WORDS if isinstance(param.type.dtype, Pointer) else 1
    holds = "true"
    for (a, b), same_elements in assumptions.items():
        (x, low_a, high_a), (y, low_b, high_b) = (
            [_word(c, "%arguments", words[v] + i) for i in range(3)] for v in (a, b)
        )
        before = c.w.value(f"icmp ule i64 {high_a}, {low_b}")
        fine = c.binary("or", before, c.w.value(f"icmp ule i64 {high_b}, {low_a}"), "i1", 1)
        if same_elements:
            fine = c.binary("or", fine, c.w.value(f"icmp eq i64 {x}, {y}"), "i1", 1)
        holds = c.binary("and", holds, fine, "i1", 1)
    return holds
