"""Inline PTX of the GPU code generator: one call of the text for every `pack` elements that a thread holds.

Registers that hold one element again share its call. Where the number of elements is no multiple of `pack`, the last call gets the
last element again and nobody looks at what becomes of it. LLVM sees the text as a black box; it is convergent, so shuffles and
barriers in it are safe, and unless it is pure also ordered with memory and other such texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen.gpu_math import llvm_type
from blocknb.codegen.text import quoted
from blocknb.ir.core import Op
from blocknb.language import assembly
from blocknb.language.types import Pointer

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def emit(g: Generator, op: Op) -> None:
    """All calls of an op, and its results as registers."""
    layout = op.results[0].type.layout if op.results[0].type.shape else None
    element = layout.register_indices if layout is not None else (0,)
    steps = list(dict.fromkeys(element.index(i) for i in element))
    pack = op.attrs["pack"]
    found: list[dict[int, str]] = [{} for _ in op.results]
    for start in range(0, len(steps), pack):
        group = steps[start : start + pack]
        padded = [*group, *[group[-1]] * (pack - len(group))]
        operands = [[g.reg(x, r if x.type.shape else 0) for r in padded] for x in op.args]
        for known, values in zip(found, call(g, op, operands), strict=True):
            known.update(zip(group, values, strict=False))
    for value, known in zip(op.results, found, strict=True):
        g.set(value, [known[element.index(i)] for i in element])


def call(g: Generator, op: Op, operands: Sequence[Sequence[str]]) -> list[list[str]]:
    """One call of the text: for each argument its `pack` elements in, for each result its `pack` elements out."""
    outputs, inputs = assembly.parse(op.attrs["constraints"])
    pack, given = op.attrs["pack"], []
    names = iter(inputs)
    for x, elements in zip(op.args, operands, strict=True):
        each = assembly.share(x.type.dtype, pack)
        for start in range(0, pack, each):
            register = next(names)
            given.append(f"{register.llvm} {packed(g, elements[start : start + each], x.type.dtype, register)}")
    kinds = [register.llvm for register in outputs]
    kind = kinds[0] if len(kinds) == 1 else "void" if not kinds else f"{{ {', '.join(kinds)} }}"
    effect, clobbers = ("", []) if op.attrs["pure"] else (" sideeffect", ["~{memory}"])
    constraints = ",".join([*(r.text for r in (*outputs, *inputs)), *clobbers])
    text = f'call {kind} asm{effect} {quoted(op.attrs["text"])}, "{constraints}"({", ".join(given)}) #1'
    got = g.emit(text)
    words = iter([got] if len(kinds) == 1 else [g.emit(f"extractvalue {kind} {got}, {i}") for i in range(len(kinds))])
    registers, results = iter(outputs), []
    for value in op.results:
        each = assembly.share(value.type.dtype, pack)
        made: list[str] = []
        for _ in range(assembly.registers(value.type.dtype, pack)):
            made += unpacked(g, next(words), next(registers), value.type.dtype, each)
        results.append(made[:pack])
    return results


def packed(g: Generator, elements: Sequence[str], dtype: Any, register: assembly.Register) -> str:
    """Elements side by side in one register, the first in its lowest bits; what is left of it is zero."""
    if register.llvm == llvm_type(dtype):
        return elements[0]
    bits, total, word = assembly.width(dtype), register.bits, ""
    for i, name in enumerate(elements):
        part = as_bits(g, name, dtype)
        part = part if bits == total else g.emit(f"zext i{bits} {part} to i{total}")
        part = g.emit(f"shl i{total} {part}, {i * bits}") if i else part
        word = g.emit(f"or i{total} {word}, {part}") if word else part
    return word if register.llvm == f"i{total}" else g.emit(f"bitcast i{total} {word} to {register.llvm}")


def unpacked(g: Generator, word: str, register: assembly.Register, dtype: Any, count: int) -> list[str]:
    """The elements in one register."""
    if register.llvm == llvm_type(dtype):
        return [word]
    bits, total = assembly.width(dtype), register.bits
    if register.llvm != f"i{total}":
        word = g.emit(f"bitcast {register.llvm} {word} to i{total}")
    found = []
    for i in range(count):
        part = g.emit(f"lshr i{total} {word}, {i * bits}") if i else word
        part = part if bits == total else g.emit(f"trunc i{total} {part} to i{bits}")
        found.append(of_bits(g, part, dtype))
    return found


def as_bits(g: Generator, name: str, dtype: Any) -> str:
    """An element as an integer of its width."""
    kind, bits = llvm_type(dtype), assembly.width(dtype)
    if isinstance(dtype, Pointer):
        return g.emit(f"ptrtoint {kind} {name} to i64")
    if dtype.bits == 1:
        return g.emit(f"zext i1 {name} to i8")
    return name if kind == f"i{bits}" else g.emit(f"bitcast {kind} {name} to i{bits}")


def of_bits(g: Generator, word: str, dtype: Any) -> str:
    kind, bits = llvm_type(dtype), assembly.width(dtype)
    if dtype.bits == 1:
        return g.emit(f"icmp ne i8 {word}, 0")
    return word if kind == f"i{bits}" else g.emit(f"bitcast i{bits} {word} to {kind}")
