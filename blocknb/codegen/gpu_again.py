"""Rows of 16-bit floats that stay in the words in which they arrived, and are widened again wherever they are used.

A kernel that widens a row, reduces it, and uses it again holds a register for each element, although two fit into one; and registers decide
how many programs share a multiprocessor, hence how many bytes are on their way to it. So what is made of such a row alone (and of numbers
that the row shares) is made again behind each reduction: the conversions, a difference, even an exponential cost less than waiting.

ptxas would find the first conversions and keep their results. What it does not know is that n * (n + 1) is even: behind a reduction the
words are joined with that bit, which is one instruction for two elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocknb.analysis.affine import Facts
from blocknb.codegen import gpu_memory
from blocknb.codegen.gpu_late import Uses
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Tile

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

LEAST = 16  # elements that a thread has of a row
#: So many that one program more on a multiprocessor pays for what is computed again: softmax of 32768 numbers took 17 % less on an H200.
#: Rows that meet others (weights) and those of fewer elements gained or lost up to 4 %, longer ones with two others lost 14 %.
MANY = 64
FEW = 4  # registers that may be held


class Again:
    """Of a memory-level Func: `loads` whose elements stay in words, `values` that are made of them again behind each of the `reductions`,
    and those that are made `after`, where they are first used, because they need one of these."""

    def __init__(self, func: Func, facts: Facts, users: Uses, streamed: frozenset[Value]):
        self.loads: set[Value] = set()
        self.values: set[Value] = set()
        self.after: set[Value] = set()
        self.reductions: set[Op] = set()
        self.words: dict[Value, dict[tuple[int, ...], str]] = {}  # as they were loaded
        self.behind = 0  # how many reductions
        if pays(func):
            self.find(func, facts, users, streamed)

    def find(self, func: Func, facts: Facts, users: Uses, streamed: frozenset[Value]) -> None:
        roots: dict[Value, Value] = {}  # the row that a value is made of, alone
        shared = set(func.params)
        for op in func.body.ops:
            if len(op.results) == 1 and isinstance(op.result.type, Tile) and is_shared(op, shared):
                shared.add(op.result)
            if op.name == "load" and stays_packed(op, facts) and op.result not in streamed:
                self.loads.add(op.result)
                roots[op.result] = op.result
            elif op.name == "reduce" and any(x in self.values or x in self.after for x in op.args):
                self.reductions.add(op)
            elif OPS[op.name].pure and len(op.results) == 1:
                rows = {roots[x] for x in op.args if x in roots}
                again = len(rows) == 1 and OPS[op.name].kind in ("elementwise", "shape") and op.name != "convert"
                if again and all(x in roots or x in shared for x in op.args):
                    self.values.add(op.result)
                    roots[op.result] = rows.pop()
                elif rows or any(x in self.after for x in op.args):
                    self.after.add(op.result)
        inside = set(func.body.ops)
        made = self.loads | self.values | self.after
        if not self.reductions or any(user not in inside for value in made for user, _ in users.get(value, ())):
            for found in (self.loads, self.values, self.after, self.reductions):
                found.clear()

    def renew(self, g: Generator) -> None:
        """Behind a reduction: what was made of rows is forgotten, and their words are other ones."""
        self.behind += 1
        odd = ""
        for value in self.values:
            g.registers.get(value, {}).clear()
        for value in self.loads & g.words.keys():
            odd = odd or never(g, self.behind)
            self.disguise(g, value, odd)

    def disguise(self, g: Generator, value: Value, zero: str) -> None:
        op, _, dbg = g.lazy[value]
        loaded = self.words.setdefault(value, g.words[value])
        known = g.words[value] = {}
        g.registers.get(value, {}).clear()
        g.lazy[value] = op, None, dbg

        def fetch(registers: tuple[int, ...]) -> None:
            piece = next(piece for piece in loaded if registers[0] in piece)
            g.remember(known, piece, g.emit(f"xor i32 {loaded[piece]}, {zero}"))

        g.deferred[value] = fetch


def pays(func: Func) -> bool:
    """Whether a program has one row, and a long one."""
    sizes = [op.result.type.layout.num_registers for op in func.ops() if op.name == "load" and op.result.type.shape]
    rows = [size for size in sizes if size >= LEAST]
    return len(rows) == 1 and rows[0] >= MANY


def stays_packed(load: Op, facts: Facts) -> bool:
    """Whether a load brings many 16-bit floats, two or more in a word."""
    kind = load.result.type
    if not kind.shape or kind.dtype not in (t.float16, t.bfloat16) or load.attrs.get("volatile"):
        return False
    return kind.layout.num_registers >= LEAST and len(gpu_memory.accesses(facts, load)[0]) > 1


def is_shared(op: Op, shared: set[Value]) -> bool:
    """Whether the result of an op takes few registers however long a row is: a number that the row shares, or a mask."""
    kind = op.result.type
    if not kind.shape or kind.dtype == t.int1 or kind.layout.num_registers <= FEW or op.name in ("const", "splat"):
        return True
    return OPS[op.name].pure and op.name != "arange" and all(x in shared for x in op.args)


def never(g: Generator, number: int) -> str:
    """A zero of which neither LLVM nor ptxas knows that it is one; another one for each number, from another bit of the thread."""
    n = g.emit(f"lshr i32 %tid, {number % 5}")
    product = g.emit(f"mul i32 {n}, {g.emit(f'add i32 {n}, 1')}")
    return g.emit(f"and i32 {product}, 1")
