"""Small helpers to write LLVM IR as text: constants, vector types, a line writer, and debug locations.

Writing LLVM text with f-strings is ten times as fast as building the module through an IR library, and the card shows the same text.
The code generators write local variables (loop counters, accumulators, carried scalars) as `alloca`s. LLVM promotes them to
registers, so no code generator places a phi.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blocknb.errors import Loc
from blocknb.language.float8 import FORMATS
from blocknb.language.types import DType, Pointer, int8

_FLOATS = {"fp16": "half", "bf16": "bfloat", "fp32": "float", "fp64": "double"}


def symbol(name: str) -> str:
    """The name of a kernel in LLVM text and PTX, which know ASCII only, take no lone `_`, and have some names of their own."""
    plain = "".join(c if c.isascii() else f"${ord(c):x}" for c in name)
    return f"{plain}$" if plain in ("_", "llvm", "shared") else plain


def scalar_type(dtype: DType | Pointer) -> str:
    """LLVM's name of an element type: i32, half, bfloat, double, ptr. It has no floats of 8 bits: they are i8."""
    if isinstance(dtype, Pointer):
        return "ptr"
    return _FLOATS[dtype.name] if dtype.is_float and dtype.bits > 8 else f"i{dtype.bits}"


def vector_type(element: str, count: int) -> str:
    """`<count x element>`, or the element itself for one."""
    return element if count == 1 else f"<{count} x {element}>"


def float_literal(value: float, type: str) -> str:
    """A constant of type half, bfloat, float or double, exact to the bit (rounded to nearest even where the type is narrower)."""
    match type:
        case "double":
            return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
        case "float":
            return f"0x{struct.unpack('<Q', struct.pack('<d', round_to_single(value)))[0]:016X}"
        case "half":
            try:
                bits = struct.unpack("<H", struct.pack("<e", value))[0]
            except OverflowError:
                bits = 0x7C00 | (0x8000 if value < 0 else 0)
            return f"0xH{bits:04X}"
        case "bfloat":
            return f"0xR{bfloat_bits(value):04X}"
    raise ValueError(f"{type} is no float type")


def round_to_single(value: float) -> float:
    """The fp32 nearest to a Python float, infinite where it overflows."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def bfloat_bits(value: float) -> int:
    """The bits of the bf16 nearest to a Python float."""
    single = round_to_single(value)
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    if single != single:
        return 0x7FC0
    if single != value and abs(single) != float("inf"):
        # To odd first, so that the two roundings are one.
        bits = (bits - (abs(single) > abs(value))) | 1
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def literal(value: bool | int | float, dtype: DType) -> str:
    """A scalar constant of a dtype in LLVM's native type for it; integers wrap to the width."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_float and dtype.bits == 8:
        kind = FORMATS[dtype.name]
        value, dtype = kind.pattern(float(value)) if kind.numpy else value, int8
    if dtype.is_float:
        return float_literal(float(value), scalar_type(dtype))
    bits = int(value) & ((1 << dtype.bits) - 1)
    return str(bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits)


def quoted(text: str) -> str:
    """A metadata string, escaped."""
    return (
        '"'
        + "".join(c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in text)
        + '"'
    )


class Writer:
    """The body of one function, line by line.

    `value` names the result of an instruction, `do` emits one without result. `place(label)` starts a basic block; a block
    that has not ended falls through to it. `slots` are the stack slots of the entry block. While `location` is set, every
    instruction carries it as debug location.
    """

    def __init__(self) -> None:
        self.slots: list[str] = []
        self.lines: list[str] = []
        self.location = ""
        self._open = True
        self._count = 0

    def fresh(self, hint: str = "") -> str:
        """A name that nothing else has, without sigil."""
        self._count += 1
        return f"{hint}.{self._count}" if hint else f"v{self._count}"

    def value(self, text: str, hint: str = "") -> str:
        """Emits an instruction and returns the name of its result."""
        name = "%" + self.fresh(hint)
        self.lines.append(f"  {name} = {text}{self.location}")
        return name

    def do(self, text: str) -> None:
        """Emits an instruction without a result."""
        self.lines.append(f"  {text}{self.location}")

    def slot(self, type: str, hint: str = "slot") -> str:
        """A stack slot in the entry block."""
        name = "%" + self.fresh(hint)
        self.slots.append(f"  {name} = alloca {type}")
        return name

    def place(self, label: str) -> None:
        """Starts the basic block `label`."""
        if self._open:
            self.do(f"br label %{label}")
        self.lines.append(f"{label}:")
        self._open = True

    def jump(self, label: str) -> None:
        self.end(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str, unlikely: str = "") -> None:
        """A conditional branch; `unlikely` is a branch weight, such as ", !prof !9"."""
        self.end(f"br i1 {condition}, label %{yes}, label %{no}{unlikely}")

    def end(self, text: str) -> None:
        """Ends the basic block with a terminator."""
        self.do(text)
        self._open = False

    def function(self, head: str, ending: str) -> str:
        """The definition of a function with this body, which ends with the terminator `ending`."""
        self.end(ending)
        body = "\n".join([*self.slots, *self.lines])
        return f"define {head} {{\nentry:\n{body}\n}}\n"

    @contextmanager
    def at(self, location: str) -> Iterator[None]:
        """Instructions emitted inside carry the debug location, a metadata reference such as "!7" (or "")."""
        saved, self.location = self.location, f", !dbg {location}" if location else ""
        try:
            yield
        finally:
            self.location = saved

    # -- structured control flow: its state lives in stack slots, so no phi node is needed ----------------------------------

    @contextmanager
    def counted(self, start: str, stop: str, step: int, hint: str = "i") -> Iterator[str]:
        """A loop of an i64 counter from `start` to `stop`, which may run zero times; yields the counter's name.

        The loop tests its condition at the end. LLVM would otherwise rotate each loop itself, which takes long in kernels of many loops.
        """
        slot = self.slot("i64", hint)
        body, done = (self.fresh(hint + s) for s in (".body", ".done"))
        self.do(f"store i64 {start}, ptr {slot}")
        if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
            self.branch(self.value(f"icmp slt i64 {start}, {stop}"), body, done)
        self.place(body)
        counter = self.value(f"load i64, ptr {slot}")
        yield counter
        after = self.value(f"add nsw i64 {counter}, {step}")
        self.do(f"store i64 {after}, ptr {slot}")
        self.branch(self.value(f"icmp slt i64 {after}, {stop}"), body, done)
        self.place(done)

    def when(self, condition: str, action: Callable[[], object]) -> None:
        """Runs the code that `action` emits if the i1 holds."""
        yes, after = self.fresh("then"), self.fresh("after")
        self.branch(condition, yes, after)
        self.place(yes)
        action()
        self.place(after)

    def guarded(self, condition: str, type: str, other: str, action: Callable[[], str]) -> str:
        """The value that `action` emits if the i1 holds, else `other`."""
        slot = self.slot(type)
        self.do(f"store {type} {other}, ptr {slot}")
        self.when(condition, lambda: self.do(f"store {type} {action()}, ptr {slot}"))
        return self.value(f"load {type}, ptr {slot}")


class DebugInfo:
    """Debug metadata of a kernel's functions: a DILocation for each Loc, in the scope of the file it lies in.

    Inlined code gets the line of the outermost call, which is in the user's own kernel. `kind` is LLVM's emission kind, `version` the
    "Dwarf Version" (None leaves the flag out). Metadata numbers start at `first`.
    """

    def __init__(
        self, function: str, loc: Loc | None, kind: str = "LineTablesOnly", version: int | None = 4, first: int = 0
    ):
        self._lines: list[str] = []
        self._next = first
        self._files: dict[str, str] = {}
        self._scopes: dict[tuple[str, str], str] = {}
        self._locations: dict[tuple[str, str, int, int], str] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        self._main, self._line = (loc.outermost.file, loc.outermost.line) if loc else ("kernel", 0)
        name = self._file(self._main)
        self.unit = self._add(
            f'distinct !DICompileUnit(language: DW_LANG_C99, file: {name}, producer: "blocknb", isOptimized: true, '
            f"runtimeVersion: 0, emissionKind: {kind})"
        )
        flags = [self._add('!{i32 2, !"Debug Info Version", i32 3}')]
        if version is not None:
            flags.append(self._add(f'!{{i32 7, !"Dwarf Version", i32 {version}}}'))
        self._named = [f"!llvm.dbg.cu = !{{{self.unit}}}", f"!llvm.module.flags = !{{{', '.join(flags)}}}"]
        self._type = self._add("!DISubroutineType(types: !{null})")
        self.subprogram = self.function(function)

    def _add(self, text: str) -> str:
        name = f"!{self._next}"
        self._next += 1
        self._lines.append(f"{name} = {text}")
        return name

    def _file(self, file: str) -> str:
        if file not in self._files:
            folder, base = os.path.split(file)
            self._files[file] = self._add(f"!DIFile(filename: {quoted(base)}, directory: {quoted(folder)})")
        return self._files[file]

    def function(self, name: str) -> str:
        """The metadata reference of one more function that holds lines of the kernel."""
        file = self._file(self._main)
        made = self._add(
            f"distinct !DISubprogram(name: {quoted(name)}, scope: {file}, file: {file}, line: {self._line}, type: {self._type}, "
            f"scopeLine: {self._line}, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {self.unit})"
        )
        self._scopes[made, self._main] = made
        return made

    def location(self, loc: Loc | None) -> str:
        """The metadata reference of a place, such as "!12"; the function's own first line for None."""
        if loc is None:
            return self._location(self.subprogram, self._main, 0, 0)
        outer = loc.outermost
        return self._location(self.subprogram, outer.file, outer.line, min(outer.column + 1, 65535))

    def moved(self, location: str, function: str) -> str:
        """The same location for code that outlining moved to another function (see `function`)."""
        return self._location(function, *self._places[location])

    def _location(self, function: str, file: str, line: int, column: int) -> str:
        key = (function, file, line, column)
        if key not in self._locations:
            if (function, file) not in self._scopes:
                self._scopes[function, file] = self._add(
                    f"!DILexicalBlockFile(scope: {function}, file: {self._file(file)}, discriminator: 0)"
                )
            self._locations[key] = self._add(
                f"!DILocation(line: {line}, column: {column}, scope: {self._scopes[function, file]})"
            )
            self._places[self._locations[key]] = (file, line, column)
        return self._locations[key]

    def text(self) -> str:
        """All metadata, to stand at the end of the module."""
        return "\n".join([*self._named, *self._lines]) + "\n"
