"""Finds the values that a loop carries in words instead of registers.

What a loop loads for its next iteration is carried in the words in which it arrives. Taken apart, 16-bit elements would need a register
each, and to take them apart is to wait for them. What only wgmma uses is carried in the words that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from blocknb.analysis.accesses import accesses
from blocknb.analysis.affine import Facts
from blocknb.codegen.gpu.element_types import memory_bits, num_registers
from blocknb.codegen.gpu.registers import split_words
from blocknb.ir.core import Op, Value

WordRegisters = tuple[tuple[int, ...], ...]  # of each word the registers that it holds


@dataclass(frozen=True)
class CarriedWords:
    """A value that a loop carries in words, under new names. `number` says which of the carried values it is; `loaded` that it is a load,
    whose elements may be taken apart."""

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


class WordCarrying:
    """Decides which carried values of a loop are in words."""

    def __init__(
        self,
        facts: Facts,
        defs: Mapping[Value, Op],
        users: Mapping[Value, Sequence[tuple[Op, int]]],
        streamed: Set[Value],
    ):
        self.facts, self.defs, self.users, self.streamed = facts, defs, users, streamed

    def loaded(self, op: Op) -> dict[int, WordRegisters]:
        """The carried values, by number, that are loads before the loop and in it, in the same words of several registers each. A load of
        another iteration that is passed on counts, too."""
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
        """The carried values, by number, of 16-bit floats that only wgmma uses, in the words that it reads."""
        found: dict[int, WordRegisters] = {}
        for i, (inner, outer) in enumerate(zip(op.blocks[0].args[1:], op.results, strict=True)):
            users = [*self.users.get(inner, ()), *self.users.get(outer, ())]
            if users and all(user.attrs.get("registers") and place == 0 for user, place in users):
                count = num_registers(inner) if inner.type.dtype.bits == 16 else 0
                found |= {i: tuple((r, r + 1) for r in range(0, count, 2))} if count else {}
        return found

    def of(self, value: Value) -> WordRegisters:
        """The words in which a load brings its value; none for anything else."""
        op = self.defs.get(value)
        if op is None or op.name != "load" or value in self.streamed:
            return ()
        bits = memory_bits(value.type.dtype)
        return tuple(word for registers in accesses(self.facts, op) for word in split_words(registers, bits))
