"""Inline PTX: parses constraint strings, and packs the elements of tiles into registers.

One execution of the text works on `pack` elements of every operand. An element of 32 or 64 bits takes a register. Narrower elements
share a register of at most 32 bits, with the first element in the lowest bits; a bool takes a byte. The constraints list the registers
of the results and then those of the arguments, in order. `$0`, `$1`... in the text refer to this list. An "n" is a constant, which is
substituted into the text first. This module detects all errors on which LLVM would abort.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.language.rules import TypeRule
from blocknb.language.types import Tile

#: The letters of PTX constraints: bits of a register, and its type in LLVM (CUDA, "Inline PTX Assembly", Constraints).
LETTERS = {"h": (16, "i16"), "r": (32, "i32"), "l": (64, "i64"), "f": (32, "float"), "d": (64, "double")}
FORM = re.compile(r"(?P<out>=&?)?(?P<letter>[hrlfd])|(?P<tied>\d+)")


class InvalidAssembly(TypeRule):
    """Raised for an invalid inline assembly, with a message, a hint and the faulty argument of the call."""

    def __init__(self, message: str, hint: str | None = None, argument: str = "constraints"):
        super().__init__(message)
        self.hint, self.argument = hint, argument


@dataclass(frozen=True)
class Register:
    """One entry of a constraint string. `letter` is h, r, l, f or d. `text` is LLVM's form."""

    letter: str
    text: str
    output: bool

    @property
    def bits(self) -> int:
        return LETTERS[self.letter][0]

    @property
    def llvm(self) -> str:
        return LETTERS[self.letter][1]


def width(dtype: Any) -> int:
    """Bits of an element in a register: a bool is a byte."""
    return max(8, dtype.bits)


def share(dtype: Any, pack: int) -> int:
    """The number of elements per register."""
    return 1 if width(dtype) >= 32 else min(pack, 32 // width(dtype))


def registers(dtype: Any, pack: int) -> int:
    """The number of registers of `pack` elements."""
    return -(-pack // share(dtype, pack))


def _entries(constraints: str) -> list[str]:
    return [entry for part in constraints.split(",") if (entry := part.strip())]


def parse(constraints: str) -> tuple[list[Register], list[Register]]:
    """The registers of the results and of the arguments. Clobbers (`~{memory}`) are ignored, because the compiler assumes them."""
    outputs: list[Register] = []
    inputs: list[Register] = []
    for entry in _entries(constraints):
        if entry.startswith("~{"):
            continue
        if (found := FORM.fullmatch(entry)) is None:
            hint = (
                '"=r" is a result in 32 bits, "r" an argument; the letters are h (16 bits), r (32), l (64), f (fp32), d (fp64), '
                "and n (a constant)"
            )
            raise InvalidAssembly(f"the constraint {entry!r} is unknown", hint)
        if found["tied"] is not None:
            if int(found["tied"]) >= len(outputs):
                raise InvalidAssembly(f"the constraint {entry!r} names a result, and there are {len(outputs)}")
            inputs.append(Register(outputs[int(found["tied"])].letter, entry, False))
        elif found["out"]:
            if inputs:
                raise InvalidAssembly(
                    f"the result {entry!r} comes after an argument", "name the results first, then the arguments"
                )
            outputs.append(Register(found["letter"], entry, True))
        else:
            inputs.append(Register(found["letter"], entry, False))
    return outputs, inputs


def immediates(
    text: str, constraints: str, dtypes: Sequence[Any], constants: Sequence[int | None], pack: int
) -> tuple[str, str, list[int]]:
    """Substitutes the "n" arguments into the text. Returns the text, the constraints and the indices of the other arguments.

    `constants` are the known integer values of the arguments. `check` finds all other errors.
    """
    entries = _entries(constraints)
    operands = [entry for entry in entries if not entry.startswith("~{")]
    results = sum(entry.startswith("=") for entry in operands)
    owners = [i for i, dtype in enumerate(dtypes) for _ in range(registers(dtype, pack))]
    if "n" not in operands[results:] or len(owners) != len(operands) - results:
        return text, ",".join("r" if entry == "n" else entry for entry in entries), list(range(len(dtypes)))
    _check_text(text, len(operands))
    substituted, numbers = set(), {}  # arguments; their texts by position
    for position, owner in enumerate(owners, results):
        if operands[position] == "n":
            numbers[position] = _immediate(position, constants[owner], share(dtypes[owner], pack))
            substituted.add(owner)
    renumbered = itertools.count()
    names = [numbers[i] if i in numbers else f"${{{next(renumbered)}}}" for i in range(len(operands))]
    text = re.sub(r"\$(\$|\d+|\{\d+\})", lambda m: "$$" if m[1] == "$" else names[int(m[1].strip("{}"))], text)
    left = [i for i in range(len(dtypes)) if i not in substituted]
    return text, ",".join(entry for entry in entries if entry != "n"), left


def _immediate(position: int, constant: int | None, elements: int) -> str:
    """The text of an "n" operand. Raises InvalidAssembly unless it is a constant with a register of its own."""
    if constant is None or elements > 1:
        hint = 'give a literal or a constexpr, or "r" for a value that is computed at run time'
        message = f"the constraint 'n' of ${position} takes an integer known at compile time"
        raise InvalidAssembly(message, hint, "args")
    return str(constant)


def check(text: str, constraints: str, results: tuple, arguments: tuple, pack: int) -> None:
    """Raises InvalidAssembly unless the text and its constraints fit the dtypes of results and arguments."""
    outputs, inputs = parse(constraints)
    for named, dtypes, what in ((outputs, results, "results"), (inputs, arguments, "arguments")):
        counts = [registers(dtype, pack) for dtype in dtypes]
        if len(named) != sum(counts):
            takes = " and ".join(f"{n} for {dtype}" for n, dtype in zip(counts, dtypes, strict=True)) or "none"
            each = f" with pack={pack}" if pack > 1 else ""
            raise InvalidAssembly(
                f"the constraints name {len(named)} registers of {what}, but the {what} take {sum(counts)}{each}: {takes}",
                "up to `pack` elements narrower than 32 bits share a register" if pack > 1 else None,
            )
        owners = [dtype for dtype, n in zip(dtypes, counts, strict=True) for _ in range(n)]
        for register, dtype in zip(named, owners, strict=True):
            bits = width(dtype) * share(dtype, pack)
            if bits > register.bits or (bits < register.bits and register.letter in "fd"):
                letters = ", ".join(x for x, (n, _) in LETTERS.items() if n == max(bits, 16))
                raise InvalidAssembly(
                    f"a register {register.text!r} has {register.bits} bits, but its elements of {dtype} have {bits}",
                    f"use {letters}",
                )
    _check_text(text, len(outputs) + len(inputs))


def _check_text(text: str, count: int) -> None:
    for found in re.finditer(r"\$(\$|\d+|\{\d+\}|.?)", text, re.DOTALL):
        name = found[1].strip("{}")
        if name == "$":
            continue
        if not name.isdigit():
            raise InvalidAssembly(
                f"`${found[1]}` in the text is not an operand", "operands are $0, $1...; a dollar sign is $$", "asm"
            )
        if int(name) >= count:
            raise InvalidAssembly(
                f"the text uses ${name}, and the constraints name {count} operands",
                "the numbers of operands start at $0",
                "asm",
            )
    if percent := re.search(r"(?<![\w%])%\d+\b", text):
        raise InvalidAssembly(
            f"`{percent[0]}` in the text is not an operand", f"write operands as ${percent[0][1:]}", "asm"
        )
    braces = re.sub(r"\$\{\d+\}|//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    opened, closed = braces.count("{"), braces.count("}")
    if opened != closed:
        raise InvalidAssembly(f"the text opens {opened} braces and closes {closed}", None, "asm")


def infer(types: tuple, attrs: dict) -> tuple[Tile, ...]:
    """The type rule of `asm`: all arguments and results have the same shape."""
    dtypes, first = tuple(attrs["dtypes"]), types[0] if types else Tile(attrs["dtypes"][0])
    for other in types:
        if (other.shape, other.layout) != (first.shape, first.layout):
            raise TypeRule(f"arguments of different shapes: {first} and {other}")
    check(attrs["text"], attrs["constraints"], dtypes, tuple(x.dtype for x in types), attrs["pack"])
    return tuple(Tile(dtype, first.shape, first.layout) for dtype in dtypes)
