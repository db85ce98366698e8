"""Lowers inline PTX: one call of the text for every `pack` elements that a thread holds.

Replicas of an element in several registers share its call. If the number of elements is no multiple of `pack`, the last call repeats its
last element and the surplus results are dropped. LLVM cannot look into the text. It is convergent, so shuffles and barriers in it are safe,
and unless it is pure also ordered with memory and other such texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.text import quoted
from blocknb.ir.core import Op
from blocknb.language import assembly


class InlineAssembly(OpLowering):
    """Lowers inline PTX that the user wrote."""

    @lowers("asm")
    def asm(self, op: Op) -> None:
        """Writes all calls of an op."""
        layout = op.results[0].type.layout if op.results[0].type.shape else None
        element = layout.register_indices if layout is not None else (0,)
        steps = list(dict.fromkeys(element.index(i) for i in element))
        pack = op.attrs["pack"]
        found: list[dict[int, str]] = [{} for _ in op.results]
        for start in range(0, len(steps), pack):
            group = steps[start : start + pack]
            padded = [*group, *[group[-1]] * (pack - len(group))]
            operands = [[self.registers.element(x, r) for r in padded] for x in op.args]
            for known, values in zip(found, self.call(op, operands), strict=True):
                known.update(zip(group, values, strict=False))
        for value, known in zip(op.results, found, strict=True):
            self.registers.set(value, [known[element.index(i)] for i in element])

    def call(self, op: Op, operands: Sequence[Sequence[str]]) -> list[list[str]]:
        """Writes one call: it takes the `pack` elements of each argument and gives the `pack` elements of each result."""
        outputs, inputs = assembly.parse(op.attrs["constraints"])
        pack, given = op.attrs["pack"], []
        names = iter(inputs)
        for x, elements in zip(op.args, operands, strict=True):
            each = assembly.share(x.type.dtype, pack)
            for start in range(0, pack, each):
                register = next(names)
                given.append(
                    f"{register.llvm} {packed(self.text, elements[start : start + each], x.type.dtype, register)}"
                )
        kinds = [register.llvm for register in outputs]
        kind = kinds[0] if len(kinds) == 1 else "void" if not kinds else f"{{ {', '.join(kinds)} }}"
        effect, clobbers = ("", []) if op.attrs["pure"] else (" sideeffect", ["~{memory}"])
        constraints = ",".join([*(r.text for r in (*outputs, *inputs)), *clobbers])
        instruction = f'call {kind} asm{effect} {quoted(op.attrs["text"])}, "{constraints}"({", ".join(given)}) #1'
        got = self.text.emit(instruction)
        words = iter(
            [got] if len(kinds) == 1 else [self.text.emit(f"extractvalue {kind} {got}, {i}") for i in range(len(kinds))]
        )
        registers, results = iter(outputs), []
        for value in op.results:
            each = assembly.share(value.type.dtype, pack)
            made: list[str] = []
            for _ in range(assembly.registers(value.type.dtype, pack)):
                made += unpacked(self.text, next(words), next(registers), value.type.dtype, each)
            results.append(made[:pack])
        return results


def packed(text: TextWriter, elements: Sequence[str], dtype: Any, register: assembly.Register) -> str:
    """Elements side by side in one register, the first in its lowest bits. The other bits are zero."""
    if register.llvm == llvm_type(dtype):
        return elements[0]
    bits, total, word = assembly.width(dtype), register.bits, ""
    for i, name in enumerate(elements):
        part = as_bits(text, name, dtype)
        part = part if bits == total else text.emit(f"zext i{bits} {part} to i{total}")
        part = text.emit(f"shl i{total} {part}, {i * bits}") if i else part
        word = text.emit(f"or i{total} {word}, {part}") if word else part
    return text.from_integer(word, register.llvm, total)


def unpacked(text: TextWriter, word: str, register: assembly.Register, dtype: Any, count: int) -> list[str]:
    """The first elements in one register."""
    if register.llvm == llvm_type(dtype):
        return [word]
    bits, total = assembly.width(dtype), register.bits
    if register.llvm != f"i{total}":
        word = text.emit(f"bitcast {register.llvm} {word} to i{total}")
    found = []
    for i in range(count):
        part = text.emit(f"lshr i{total} {word}, {i * bits}") if i else word
        part = part if bits == total else text.emit(f"trunc i{total} {part} to i{bits}")
        found.append(of_bits(text, part, dtype))
    return found


def as_bits(text: TextWriter, name: str, dtype: Any) -> str:
    """An element as an integer of its width."""
    kind, bits = llvm_type(dtype), assembly.width(dtype)
    if dtype.bits == 1:
        return text.emit(f"zext i1 {name} to i8")
    return text.as_integer(name, kind, bits)


def of_bits(text: TextWriter, word: str, dtype: Any) -> str:
    """An integer as an element of its width."""
    kind, bits = llvm_type(dtype), assembly.width(dtype)
    if dtype.bits == 1:
        return text.emit(f"icmp ne i8 {word}, 0")
    return text.from_integer(word, kind, bits)
