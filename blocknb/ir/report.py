"""Formats the reports of a running kernel: prints, failed assertions, and accesses outside of arrays.

A running kernel writes records. Each record refers to a *site*: the place in the source, with all compile-time information. The
interpreter, the CPU and the GPU write the same records, and this module turns them into text. Messages therefore do not depend on where
the kernel ran. Lines of `device_print` have Triton's form, `pid (0, 0, 0) idx (3) x: 1.5`. Unlike in Triton, numbers are as short as
possible, and lines are sorted by program, print and element.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import AccessError, CompilerBug, DeviceAssertionFailed, ElementError, HintError, Loc
from blocknb.ir.core import Op
from blocknb.ir.mask_hint import mask_hint
from blocknb.language.ops import named
from blocknb.language.types import DType, Pointer

REPORTS = named("report")  # the ops that write reports
SHOWN = 4096  # the maximum number of lines per launch
Program = tuple[int, int, int]
NO_ARGUMENT = -1  # instead of an argument's number, for an address outside all array arguments
VERBS = {"load": "loads", "store": "stores to"}


@dataclass(frozen=True)
class Access:
    """The site of an access.

    `action` is "load", "store" or the name of an atomic. `argument` is the number of the pointer's parameter, or NO_ARGUMENT. `bytes` is
    the size of an element.
    """

    loc: Loc | None
    action: str
    argument: int
    bytes: int


@dataclass(frozen=True)
class Assertion:
    """The site of an assertion on a tile of that shape. `hint`: it tests the hint that `message` spells, and reports the value."""

    loc: Loc | None
    message: str
    shape: tuple[int, ...]
    hint: bool = False


@dataclass(frozen=True)
class Overrun:
    """The site of the redzone of a scratch buffer of `bytes` bytes, which the op `maker` writes (see `codegen.cpu.redzones`)."""

    loc: Loc | None
    maker: str
    bytes: int


@dataclass(frozen=True)
class Print:
    """The site of one operand of a print: number `operand` of `operands`. Without operands there is one site, whose dtype is None."""

    loc: Loc | None
    prefix: str
    dtype: Any
    shape: tuple[int, ...]
    operand: int
    operands: int
    hex: bool

    def line(self, program: Program, index: int, value: Any) -> str:
        """The line for the element of that number."""
        head, prefix = f"pid ({', '.join(map(str, program))})", self.prefix.strip()
        if self.dtype is None:
            return f"{head} {prefix}".rstrip()
        places = zip(np.unravel_index(index, self.shape), self.shape, strict=True) if self.shape else ()
        where = ", ".join(str(i).rjust(len(str(n - 1))) for i, n in places)
        label = f" {prefix}" if prefix else ""
        number = f"(operand {self.operand}) " if self.operands > 1 else ""
        return f"{head} idx ({where}){label}{'' if prefix.endswith(':') else ':'} {number}{self.text(value)}"

    def text(self, value: Any) -> str:
        """The text of a number. Floats have the fewest digits that identify them in their dtype; bools are 0 or 1, pointers addresses."""
        if self.hex or isinstance(self.dtype, Pointer):
            raw = int.from_bytes(np.asarray(value).tobytes(), "little")
            return f"0x{raw & (1 << self.dtype.bits) - 1:0{max(1, self.dtype.bits // 4)}x}"
        return str(value) if self.dtype.is_float else str(int(value))


@dataclass(frozen=True)
class Printed:
    """One printed element. `event` counts the reports of a program in order."""

    site: Print
    program: Program
    event: int
    index: int
    value: Any

    @property
    def order(self) -> tuple:
        return (*self.program[::-1], self.event, self.site.operand, self.index)


def assertion(op: Op) -> Assertion:
    """The site of an assertion. An assertion of a hint has the value as its second operand."""
    return Assertion(op.loc, op.attrs["message"], op.args[0].type.shape, len(op.args) > 1)


def prints(op: Op) -> list[Print]:
    """The sites of a print, one per operand."""
    prefix, as_hex = op.attrs["prefix"], bool(op.attrs.get("hex"))
    if not op.args:
        return [Print(op.loc, prefix, None, (), 0, 0, as_hex)]
    types, count = [a.type for a in op.args], len(op.args)
    return [Print(op.loc, prefix, x.dtype, x.shape, i, count, as_hex) for i, x in enumerate(types)]


def access(op: Op, argument: int) -> Access:
    """The site of an access to the array of an argument."""
    return Access(op.loc, action_of(op), argument, op.args[0].type.dtype.element.bytes)


def action_of(op: Op) -> str:
    return f"atomic_{op.attrs['kind']}" if op.name == "atomic" else op.name


def lines(printed: Iterable[Printed], total: int) -> str:
    """The output of a launch: the first lines in order, and the number of omitted lines of the `total`."""
    shown = sorted(printed, key=lambda p: p.order)[:SHOWN]
    text = "".join(p.site.line(p.program, p.index, p.value) + "\n" for p in shown)
    rest = total - len(shown)
    return text + (f"... {rest} more line{'s' if rest > 1 else ''}\n" if rest else "")


def access_error(
    site: Access, name: str, program: Program, index: int, reach: tuple[int, int], total: int = 1
) -> AccessError:
    """The error for an access to element `index` of the array `name`.

    `reach` are the first and last element of the array, counted from the pointer that was passed. `total` is the number of accesses
    outside the array, all of which were skipped.
    """
    if site.argument == NO_ARGUMENT:
        return _astray(site, program, index, total)
    first, last = reach
    has = f"elements {first} to {last}" if first else f"{last + 1} element{'s' if last else ''}"
    verb = VERBS.get(site.action, "updates")
    message = f"program {program} {verb} element {index} of `{name}`, which has {has}{_others(total)}"
    keeps = "put the compare-and-swap under an `if` that tests the index"
    if site.action != "atomic_cas":
        keeps = f"mask the elements outside: {site.action}(..., mask=offsets < n)"
        if site.action in ("load", "store"):
            keeps += ", or boundary_check=(0, 1) for a block pointer"
    return AccessError(message, site.loc, mask_hint(site.loc, index) or keeps, program=program, index=index)


def readonly_error(site: Access, name: str, program: Program) -> AccessError:
    """The error for a store to a read-only array through a pointer of unknown provenance."""
    verb = VERBS.get(site.action, "updates")
    message = f"program {program} {verb} `{name}`, an array that is read-only"
    return AccessError(message, site.loc, f"pass a copy: {name}.copy()", program=program)


def _others(total: int) -> str:
    return f"; {total} accesses outside of arrays were skipped" if total > 1 else ""


def _astray(site: Access, program: Program, index: int, total: int) -> AccessError:
    """The error for a pointer that is derived from several arguments and points into none of their arrays.

    `index` counts elements from address 0.
    """
    verb = {"load": "loads from", "store": "stores to"}.get(site.action, "updates")
    place = index * site.bytes % 2**64
    message = f"program {program} {verb} address {place:#x}, which is outside all arrays of this launch{_others(total)}"
    hint = "compute pointers by `pointer + offset`; a pointer that is made from an integer has no known array"
    return AccessError(message, site.loc, hint, program=program, index=index)


def assertion_error(site: Assertion, program: Program, index: int, total: int = 1, value: int = 0) -> ElementError:
    """The error for an assertion that fails in element `index`. `total` is the number of elements in which it failed, and `value` the
    first value for which a hint is false."""
    where = ""
    if site.shape:
        place = tuple(int(i) for i in np.unravel_index(index, site.shape))
        where = f" for element {place[0] if len(place) == 1 else place}"
    more = f" ({total} failures in all)" if total > 1 else ""
    if site.hint:
        message = f"`{site.message}` does not hold in program {program}{where}: the value is {value}{more}"
        advice = "remove the hint, or pass arguments for which it holds: the compiler relies on it in launches without checks"
        return HintError(message, site.loc, advice, program=program, index=index)
    message = f"assertion failed in program {program}{where}{more}{': ' + site.message if site.message else ''}"
    return DeviceAssertionFailed(message, site.loc, program=program, index=index)


def overrun_error(site: Overrun, program: Program) -> CompilerBug:
    """The error for a program that wrote outside a scratch buffer."""
    message = f"program {program} wrote outside of the scratch buffer of `{site.maker}`, which has {site.bytes} bytes"
    return CompilerBug(message, site.loc)


def reach(address: int, lower: int, upper: int, size: int) -> tuple[int, int]:
    """The first and last element of the bytes from `lower` to `upper`, counted from an address."""
    if lower >= upper:  # an empty array, which may have no address
        return 0, -1
    return (lower - address) // size, (upper - address) // size - 1


@functools.cache
def _unsigned(bits: int) -> np.dtype:
    return np.dtype(f"u{max(8, bits) // 8}")


def value_of(bits: int, dtype: DType | Pointer) -> Any:
    """The element whose bits a record stores in a 64-bit integer."""
    kept = bits & (1 << max(8, dtype.bits)) - 1
    return np.asarray(kept, _unsigned(dtype.bits)).reshape(1).view(dtype.numpy)[0]
