"""The LLVM text of a kernel while it is written: lines, names, basic blocks, declarations and debug locations.

The text is a list of chunks, and a chunk is a list of lines. The writer appends lines to the *sink*, one of the chunks. A chunk that was
opened at an op can get lines later: these still dominate all uses of the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from blocknb.codegen.text import DebugInfo, Writer
from blocknb.errors import Loc


class TextWriter:
    """Writes the lines of one kernel. `entry` are the lines at its head, which dominate all others, and `memo` holds the names of
    expressions that are available. `byte_pairs` and `halves` need no scope: a word dominates its parts."""

    def __init__(self, debug: DebugInfo):
        self.debug = debug
        self.declared: dict[str, None] = {}
        self.helpers: dict[str, str] = {}  # the functions that the kernel calls
        self.count = 0  # of names and labels
        self.entry: list[str] = []
        self.sink: list[str] = []
        self.chunks: list[list[str]] = [self.sink]
        self.dbg = ""  # the debug location, which ends each line
        self.label = "entry"  # of the basic block that is being written
        self.accesses = 0  # to global memory in this basic block
        self.splits = 0  # basic blocks that ended because of too many accesses
        self.memo: dict[tuple, str] = {}
        self.byte_pairs: dict[tuple[str, str], str] = {}  # the i16 whose lower and upper byte two i8 values are
        self.halves: dict[str, tuple[str, int]] = {}  # of a 16-bit value: the i32 that holds it, and which half it is
        self.scopes: list[list[tuple[dict, Any]]] = [[]]  # entries of tables that are dropped where a block ends

    def locate(self, loc: Loc | None) -> None:
        """Gives the lines that follow the debug location `loc`."""
        self.dbg = f", !dbg {self.debug.location(loc)}"

    def open_chunk(self) -> list[str]:
        """Opens a chunk at the end of the text so far. It becomes the sink."""
        self.sink = []
        self.chunks.append(self.sink)
        return self.sink

    def chunk_here(self) -> list[str]:
        """A chunk for lines that may be written later, at the end of the text so far. Another chunk becomes the sink."""
        chunk = self.sink if self.sink is self.chunks[-1] and not self.sink else self.open_chunk()
        self.open_chunk()
        return chunk

    @contextmanager
    def writing(self, sink: list[str], dbg: str) -> Iterator[None]:
        """Sends the lines that are written inside to another chunk."""
        saved = self.sink, self.dbg
        self.sink, self.dbg = sink, dbg
        try:
            yield
        finally:
            self.sink, self.dbg = saved

    def name(self) -> str:
        """A new name of a value."""
        self.count += 1
        return f"%v{self.count}"

    def new_label(self, what: str) -> str:
        """A new label of a basic block."""
        self.count += 1
        return f"{what}{self.count}"

    def emit(self, instruction: str) -> str:
        """Writes an instruction and returns the name of its result."""
        self.count += 1
        name = f"%v{self.count}"
        self.sink.append(f"  {name} = {instruction}{self.dbg}")
        return name

    def do(self, instruction: str) -> None:
        """Writes an instruction without a result."""
        self.sink.append(f"  {instruction}{self.dbg}")

    def start(self, label: str) -> None:
        """Begins a basic block."""
        self.sink.append(f"{label}:")
        self.label, self.accesses = label, 0

    def call(self, result: str, function: str, *args: tuple[str, str]) -> str:
        """Calls an intrinsic and declares it once. `args` are pairs of a type and a name."""
        self.declared[f"declare {result} @{function}({', '.join(kind for kind, _ in args)})"] = None
        text = f"call {result} @{function}({', '.join(f'{kind} {name}' for kind, name in args)})"
        if result == "void":
            self.do(text)
            return ""
        return self.emit(text)

    def results(self, call: str, kinds: Sequence[str]) -> list[str]:
        """Writes a call with a result of each type; `call` is what follows the type."""
        kind = kinds[0] if len(kinds) == 1 else "{" + ", ".join(kinds) + "}"
        got = self.emit(f"call {kind} {call}")
        return [got] if len(kinds) == 1 else [self.emit(f"extractvalue {kind} {got}, {i}") for i in range(len(kinds))]

    def asm(
        self, text: str, constraints: Sequence[str], operands: Sequence[str], convergent: bool = False, on: str = ""
    ) -> None:
        """Writes inline PTX with side effects and without results, predicated by the i1 `on` if there is one."""
        mark, count = " #1" if convergent else "", len(operands)
        if on not in ("", "true"):
            text, operands = f"@${count} {text}", [*operands, f"i1 {on}"]
            constraints = [*constraints[:count], "b", *constraints[count:]]
        self.do(f'call void asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(operands)}){mark}')

    def once(self, key: tuple, make: Callable[[], str]) -> str:
        """Lets `make` write at the head of the kernel, once per key, and returns its result."""
        if key not in self.memo:
            with self.writing(self.entry, ""):
                self.memo[key] = make()
        return self.memo[key]

    def remember(self, known: dict, key: Any, name: Any) -> Any:
        """Remembers a name under `key` until the current block ends, and returns it."""
        known[key] = name
        self.scopes[-1].append((known, key))
        return name

    def in_block(self, key: tuple, make: Callable[[], str]) -> str:
        """Lets `make` write here, once per key and block, and returns its result."""
        if key not in self.memo:
            self.remember(self.memo, key, make())
        return self.memo[key]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forgets at its end all names that were remembered inside."""
        self.scopes.append([])
        try:
            yield
        finally:
            for known, key in self.scopes.pop():
                known.pop(key, None)

    def xor_bits(self, *sources: tuple[str, Sequence[int]]) -> str:
        """XOR of ints over the set bits of i32 values. Bits that move by the same distance share a mask and a shift."""
        result = ""
        for source, bases in sources:
            moves: dict[int, int] = {}
            for bit, basis in enumerate(bases):
                for place in range(basis.bit_length()):
                    if basis >> place & 1:
                        moves[place - bit] = moves.get(place - bit, 0) | 1 << bit
            for distance, mask in sorted(moves.items()):
                term = self.emit(f"and i32 {source}, {mask}")
                if distance:
                    term = self.emit(f"shl i32 {term}, {distance}" if distance > 0 else f"lshr i32 {term}, {-distance}")
                result = self.emit(f"xor i32 {result}, {term}") if result else term
        return result or "0"

    def both(self, a: str, b: str) -> str:
        """The conjunction of two predicates; "" and "true" always hold."""
        a, b = ("" if x == "true" else x for x in (a, b))
        return self.emit(f"and i1 {a}, {b}") if a and b else a or b

    def as_integer(self, name: str, kind: str, bits: int) -> str:
        """A value of an LLVM type as an integer of its width."""
        if kind.startswith("ptr"):
            return self.emit(f"ptrtoint {kind} {name} to i64")
        return name if kind == f"i{bits}" else self.emit(f"bitcast {kind} {name} to i{bits}")

    def from_integer(self, name: str, kind: str, bits: int) -> str:
        """An integer of `bits` as a value of an LLVM type: the inverse of `as_integer`."""
        if kind.startswith("ptr"):
            return self.emit(f"inttoptr i64 {name} to {kind}")
        return name if kind == f"i{bits}" else self.emit(f"bitcast i{bits} {name} to {kind}")

    def advanced(self, pointer: str, distance: int, space: int) -> str:
        """A pointer moved by a constant number of bytes."""
        return self.emit(f"getelementptr i8, ptr addrspace({space}) {pointer}, i64 {distance}") if distance else pointer

    def load_words(self, pointer: str, space: int, count: int, bits: int, volatile: bool = False) -> list[str]:
        """Loads `count` words of `bits` each, which lie side by side, by one instruction."""
        kind = f"i{bits}" if count == 1 else f"<{count} x i{bits}>"
        keyword = "load volatile" if volatile else "load"
        loaded = self.emit(f"{keyword} {kind}, ptr addrspace({space}) {pointer}, align {bits * count // 8}")
        if volatile:  # LLVM may move other loads across a volatile one
            self.do('call void asm sideeffect "", "~{memory}"()')
        if count == 1:
            return [loaded]
        return [self.emit(f"extractelement {kind} {loaded}, i32 {i}") for i in range(count)]

    def store_words(self, pointer: str, space: int, words: Sequence[str], bits: int) -> None:
        """Stores words side by side by one instruction."""
        kind, name = f"i{bits}", words[0]
        if len(words) > 1:
            kind, name = f"<{len(words)} x i{bits}>", "undef"
            for i, part in enumerate(words):
                name = self.emit(f"insertelement {kind} {name}, i{bits} {part}, i32 {i}")
        self.do(f"store {kind} {name}, ptr addrspace({space}) {pointer}, align {bits * len(words) // 8}")


class InlineWriter(Writer):
    """A Writer whose instructions go to the text of the kernel, where polynomials are used."""

    def __init__(self, text: TextWriter):
        super().__init__()
        self.emit = text.emit

    def value(self, text: str, hint: str = "") -> str:
        """Writes an instruction and returns the name of its result."""
        return self.emit(text)
