"""Converts rows of 16-bit floats again after each reduction instead of keeping them in registers (rematerialization).

A kernel that widens a row, reduces it and uses it again holds a register for each element, although a register has room for two. Registers
decide how many programs share an SM, hence how many bytes are in flight. So what is computed from such a row alone, and from numbers that
the row shares, is computed again after each reduction. The conversions, a difference, even an exponential cost less than waiting.

ptxas would find the first conversions and keep their results. It does not know that n * (n + 1) is even: after a reduction the words are
joined with the last bit of such a product, one instruction for two elements.
"""

from __future__ import annotations

from collections.abc import Set

from blocknb.analysis.accesses import accesses
from blocknb.analysis.affine import Facts
from blocknb.codegen.gpu.registers import Registers, Words
from blocknb.codegen.gpu.scheduling import opaque_zero
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Func, Op, Users, Value
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Tile

LEAST = 16  # elements of a row that a thread holds
#: So many that one more program on an SM pays for the repeated work: softmax of 32768 numbers took 17 % less on an H200. Rows that meet
#: others (weights) and rows of fewer elements gained or lost up to 4 %; longer rows with two others lost 14 %.
MANY = 64
FEW = 4  # registers that may be held


class RematerializationPlan:
    """Of a memory-level Func: `loads` whose elements stay in words, `values` that are computed from them again after each of the
    `reductions`, and values that need one of these and are therefore computed `after` them, where they are first used."""

    def __init__(self, func: Func, facts: Facts, users: Users, streamed: Set[Value]):
        self.loads: set[Value] = set()
        self.values: set[Value] = set()
        self.after: set[Value] = set()
        self.reductions: set[Op] = set()
        if not pays(func):
            return
        self.find(func, facts, streamed)
        inside = set(func.body.ops)
        made = self.loads | self.values | self.after
        if not self.reductions or any(user not in inside for value in made for user, _ in users.get(value, ())):
            for found in (self.loads, self.values, self.after, self.reductions):
                found.clear()

    def find(self, func: Func, facts: Facts, streamed: Set[Value]) -> None:
        """Sorts the values of the body into the sets."""
        roots: dict[Value, Value] = {}  # the one row from which a value is computed
        shared = set(func.params)
        for op in func.body.ops:
            if is_shared(op, shared):
                shared.add(op.result)
            if op.name == "load" and stays_packed(op, facts) and op.result not in streamed:
                self.loads.add(op.result)
                roots[op.result] = op.result
            elif op.name == "reduce" and not (self.values | self.after).isdisjoint(op.args):
                self.reductions.add(op)
            elif OPS[op.name].pure and len(op.results) == 1:
                rows = {roots[x] for x in op.args if x in roots}
                if len(rows) == 1 and is_repeatable(op) and roots.keys() | shared >= {*op.args}:
                    self.values.add(op.result)
                    roots[op.result] = rows.pop()
                elif rows or not self.after.isdisjoint(op.args):
                    self.after.add(op.result)


class Rematerializer:
    """Makes registers forget the values of a plan after each reduction."""

    def __init__(self, text: TextWriter, registers: Registers, plan: RematerializationPlan):
        self.text, self.registers, self.plan = text, registers, plan
        self.words: dict[Value, Words] = {}  # as they were loaded
        self.reductions = 0  # so far

    def reduced(self, op: Op) -> None:
        """Runs after each reduction: drops the values computed from rows and renames the packed words of the rows."""
        if op not in self.plan.reductions:
            return
        self.reductions += 1
        zero, text = "", self.text
        for value in self.plan.values:
            self.registers.names.get(value, {}).clear()
        for value in self.plan.loads & self.registers.words.keys():
            zero = zero or opaque_zero(text, text.emit(f"lshr i32 %tid, {self.reductions % 5}"))
            self.disguise(value, zero)

    def disguise(self, value: Value, zero: str) -> None:
        """Gives the words of a row new names, by an instruction that ptxas cannot remove."""
        text, registers = self.text, self.registers
        op, _, dbg, compute = registers.lazy[value]
        loaded = self.words.setdefault(value, registers.words[value])
        known = registers.words[value] = {}
        registers.names.get(value, {}).clear()
        registers.lazy[value] = op, None, dbg, compute

        def fetch(wanted: tuple[int, ...]) -> None:
            piece = next(piece for piece in loaded if wanted[0] in piece)
            text.remember(known, piece, text.emit(f"xor i32 {loaded[piece]}, {zero}"))

        registers.fetch[value] = fetch


def pays(func: Func) -> bool:
    """Whether a program has exactly one row of several registers, and that is long."""
    sizes = [op.result.type.layout.num_registers for op in func.ops() if op.name == "load" and op.result.type.shape]
    rows = [size for size in sizes if size >= LEAST]
    return len(rows) == 1 and rows[0] >= MANY


def stays_packed(load: Op, facts: Facts) -> bool:
    """Whether a load brings many 16-bit floats, at least two in a word."""
    kind = load.result.type
    if not kind.shape or kind.dtype not in (t.float16, t.bfloat16) or load.attrs.get("volatile"):
        return False
    return kind.layout.num_registers >= LEAST and len(accesses(facts, load)[0]) > 1


def is_shared(op: Op, shared: set[Value]) -> bool:
    """Whether the result of an op takes few registers however long the row is: a number that the row shares, or a mask."""
    if len(op.results) != 1 or not isinstance(op.result.type, Tile):
        return False
    kind = op.result.type
    if not kind.shape or kind.dtype == t.int1 or kind.layout.num_registers <= FEW or OPS[op.name].has("uniform"):
        return True
    return OPS[op.name].pure and op.name != "arange" and all(x in shared for x in op.args)


def is_repeatable(op: Op) -> bool:
    """Whether an op may be computed again: arithmetic, and changes of the shape that move no data."""
    return OPS[op.name].kind in ("elementwise", "shape")
