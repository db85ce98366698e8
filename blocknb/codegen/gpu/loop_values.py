"""Finds the values that a loop carries as 32-bit words instead of elements, and the accumulators that need no initial zeros.

A loop carries prefetched values in the words that the load instruction wrote. Splitting words of 16-bit elements would take a register per
element, and the split would wait for the load. A loop carries operands of wgmma in the words that wgmma reads. The first wgmma of a loop
can ignore the old accumulators (scale-d = 0), so they need no initial value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blocknb.analysis.accesses import accesses
from blocknb.codegen.gpu import warp_specialization
from blocknb.codegen.gpu.context import KernelPart
from blocknb.codegen.gpu.element_types import memory_bits, num_registers
from blocknb.codegen.gpu.registers import split_words
from blocknb.ir.core import Op, Value, walk
from blocknb.ir.traversal import reachable
from blocknb.layouts import wgmma

#: Accumulators per thread, and ops with them after their loop. Above both numbers ptxas spills if a branch sets the accumulators to zero,
#: because it sets all of them at once.
MANY_SUMS, MANY_OPS = 64, 5
WordRegisters = tuple[tuple[int, ...], ...]  # of each word the registers that it holds


@dataclass(frozen=True)
class CarriedWords:
    """A value that a loop carries as words, under new names. `number`: its index among the carried values. `loaded`: it is a load, whose
    words may be unpacked into elements."""

    number: int
    words: WordRegisters
    names: tuple[str, ...]
    bits: int
    loaded: bool

    def named(self, names: Sequence[str]) -> dict[tuple[int, ...], str]:
        """The words under the given names."""
        return dict(zip(self.words, names, strict=True))

    def kinds(self) -> list[str]:
        """The LLVM types of the words."""
        return [f"i{self.bits * len(word)}" for word in self.words]


class WordCarrying(KernelPart):
    """Decides which values a loop carries as words."""

    def loaded(self, op: Op) -> dict[int, WordRegisters]:
        """The carried values, by number, that are loads both before the loop and in it, with the same words of several registers. A load
        that the loop only carries on counts, too."""
        body = op.blocks[0]
        number = {value: i for i, value in enumerate(body.args[1:])}
        first = {i: self.of(value) for i, value in enumerate(op.args[3:])}
        found = {i: words for i, words in first.items() if any(len(word) > 1 for word in words)}
        inside = {x.result for x in body.ops if x.name == "load"}
        while True:
            kept = {}
            for i, words in found.items():
                after = body.terminator.args[i]
                same = self.of(after) if after in inside else found.get(number.get(after, -1))
                if same == words:
                    kept[i] = words
            if len(kept) == len(found):
                return kept
            found = kept

    def multiplied(self, op: Op) -> dict[int, WordRegisters]:
        """The carried values, by number, of 16-bit floats that only wgmma reads, with its words."""
        found: dict[int, WordRegisters] = {}
        for i, (inner, outer) in enumerate(zip(op.blocks[0].args[1:], op.results, strict=True)):
            users = [*self.users.get(inner, ()), *self.users.get(outer, ())]
            if users and all(user.attrs.get("registers") and place == 0 for user, place in users):
                count = num_registers(inner) if inner.type.dtype.bits == 16 else 0
                found |= {i: tuple((r, r + 1) for r in range(0, count, 2))} if count else {}
        return found

    def of(self, value: Value) -> WordRegisters:
        """The words that a load writes; empty for other values."""
        op = self.defs.get(value)
        if op is None or op.name != "load" or value in self.registers.streamed:
            return ()
        bits = memory_bits(value.type.dtype)
        return tuple(word for registers in accesses(self.facts, op) for word in split_words(registers, bits))


class UnsetSums(KernelPart):
    """Decides which accumulators of a loop need no initial value."""

    def of(self, op: Op, nested: bool) -> set[int]:
        """The carried values, by number, that start at zero and to which only wgmma adds. `nested`: the loop is inside another one."""
        found: set[int] = set()
        body, persistent = op.blocks[0], self.func.attrs.get("persistent")
        # In a kernel's own loop over tiles ptxas would set the next sums to zero before the wait for these (C7514).
        over_tiles = nested and warp_specialization.find(self.func) is not None and not persistent
        if (
            not (warp_specialization.is_alone(self.func) or over_tiles)
            or op.args[0].type.dtype.bits != 32
            or sum(x.name == "dot" for x in walk(body)) != 1
        ):
            return found  # ptxas would serialize several dots (C7515); without roles it spills
        for i, (first, inner) in enumerate(zip(op.args[3:], body.args[1:], strict=True)):
            made, users = self.defs.get(first), self.users.get(inner, ())
            if made is None or made.name != "const" or made.attrs["value"] or len(users) != 1:
                continue
            if num_registers(inner) > MANY_SUMS and self.ops_with(op.results[i]) > MANY_OPS:
                continue
            user, place = users[0]
            if user.name == "dot" and place == 2 and user in body.ops and wgmma.is_name(user.attrs.get("instr", "")):
                found.add(i)
        return found

    def ops_with(self, value: Value) -> int:
        """The number of ops that compute with a tile or with results of such ops. Each vector operand counts too, because it needs
        registers in addition to the accumulators."""

        def tiles(op: Op) -> list[Value]:
            return [x for x in op.results if getattr(x.type, "shape", None) == value.type.shape]

        def takers(values: Sequence[Value]) -> list[Op]:
            return [user for x in values for user, _ in self.users.get(x, ()) if tiles(user)]

        found = set(reachable(takers([value]), lambda op: takers(tiles(op))))
        vectors = {x for op in found for x in op.args if x in self.defs and self.defs[x].name == "broadcast"}
        # A wait or a conversion replaces its operand and needs no further registers.
        return sum(op.name not in ("dot_wait", "cast", "convert") for op in found) + len(vectors)
