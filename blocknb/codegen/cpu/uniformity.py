"""Uniformity analysis: how a value varies along the vector loop.

A value is uniform (one value for the row), or strided (a scalar base plus a constant step per position). Otherwise it is a prefix of true
lanes, a stored tile, or varying. Index arithmetic is not computed in vectors. Most offsets are strided and most masks are prefixes, so
their scalars are computed once per row. Contiguous accesses and loop bounds follow from these forms. The terms are those of ispc (Pharr &
Mark, "ispc: A SPMD compiler for high-performance CPU programming", 2012); LLVM's scalar evolution finds similar forms.

Signed 32- and 64-bit arithmetic that feeds an address or a mask is assumed not to overflow within a tile, as in `analysis.affine`.
Narrow and unsigned arithmetic may wrap, and its results are not strided. The remainder of a strided value by `n` (a matmul's offsets
modulo its rows) stays strided as long as the row does not wrap. A strided value stays strided in another type that has all of its
numbers. The caller tests these assumptions (`conditions`) at run time, and has a general loop for when one fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from blocknb.analysis.ranges import limits, within
from blocknb.codegen.cpu.buffers import ScratchBuffer
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.dataflow import Dataflow, Index, identity, squeezed
from blocknb.codegen.cpu.elementwise import elementwise, move_pointer
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.codegen.scalar_math.register_types import constant, register_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer

MAX_STEP = 1 << 16
FOLD = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def may_wrap(dtype: Any) -> bool:
    """Whether arithmetic in an integer dtype may wrap within a tile."""
    return dtype.bits < 32 or not dtype.is_signed


@dataclass(frozen=True)
class Uniform:
    """One value for the whole row."""

    text: str


@dataclass(frozen=True)
class Strided:
    """base + step * position: integers in their own type, pointers in bytes."""

    base: str
    step: int


@dataclass(frozen=True)
class Prefix:
    """True where position < count (an i64, of any size)."""

    count: str


@dataclass(frozen=True)
class Stored:
    """A tile in scratch: neighbouring positions are `step` elements apart, from the pointer `base` on."""

    base: str
    step: int
    buffer: ScratchBuffer


def is_number(text: str) -> bool:
    """Whether an operand is an integer constant."""
    return text.removeprefix("-").isdigit()


class Varying:
    """Anything else."""

    def __repr__(self) -> str:
        return "VARYING"


VARYING = Varying()
Uniformity = Uniform | Strided | Prefix | Stored | Varying


@dataclass
class UniformityAnalysis:
    """The forms of values in one row.

    `axis` is the vector loop (None: there is no loop), and `size` its extent. `counters` has the i64 counters of the other loops. `scalar`
    names scalar values, and `leaf` gives the form of stored tiles. `speculate` allows assumptions, which become `conditions` (i1).
    """

    program: Dataflow
    code: KernelBuilder
    axis: int | None
    size: int
    counters: dict[int, str]
    scalar: Callable[[Value], str]
    leaf: Callable[[Value, Index], Uniformity]
    speculate: bool = True
    conditions: list[str] = field(default_factory=list)
    memo: dict[tuple[Value, Index], Uniformity] = field(default_factory=dict)

    def of(self, value: Value, index: Index) -> Uniformity:
        """The form of a value under an index."""
        key = (value, index)
        if key not in self.memo:
            self.memo[key] = self._of(value, index)
        return self.memo[key]

    def of_operand(self, value: Value) -> Uniformity:
        """The form of a value of the nest's shape."""
        return self.of(value, identity(value.type.shape))

    def prefixes(self) -> list[Prefix]:
        """All prefixes that the analysis found."""
        return list(dict.fromkeys(k for k in self.memo.values() if isinstance(k, Prefix)))

    def _of(self, value: Value, index: Index) -> Uniformity:
        program = self.program
        if not value.type.shape:
            return Uniform(self.scalar(value))
        if program.view_of(value) is not None:
            return self.of(program.definition[value].args[0], program.operand_index(value, index))
        if not program.recomputed(value):
            return self.leaf(value, index)
        op = program.definition[value]
        match op.name:
            case "const":
                return Uniform(constant(op.attrs["value"], value.type.dtype))
            case "splat":
                return Uniform(self.scalar(op.args[0]))
            case "arange":
                return self._arange(op.attrs["start"], index[0])
        forms = [self.of(a, index) for a in op.args]
        if all(isinstance(k, Uniform) for k in forms):
            return Uniform(elementwise(self.code, op, [k.text for k in forms], 1))  # type: ignore[union-attr]
        return self._affine(op, forms)

    def _arange(self, start: int, loop: int | None) -> Uniformity:
        if loop is None:
            return Uniform(str(start))
        if loop == self.axis:
            return Strided(str(start), 1)
        counter = self.code.convert("trunc", self.counters[loop], "i64", "i32", 1)
        return Uniform(counter if start == 0 else self.code.binary("add", counter, str(start), "i32", 1))

    def _affine(self, op: Op, forms: list[Uniformity]) -> Uniformity:
        """The form of an operation whose operands are not all uniform."""
        dtype = op.args[0].type.dtype
        a, b = forms[0], forms[-1]
        match op.name:
            case "add" | "sub" if dtype.is_integer:
                return self._add(op.name, a, b, dtype)
            case "neg" if isinstance(a, Strided):
                return self._arithmetic("sub", "0", a.base, -a.step, dtype)
            case "mul" if dtype.is_integer and dtype.bits > 1:
                return self._multiply(a, b, dtype)
            case "cast":
                return self._cast(a, dtype, op.attrs["dtype"])
            case "ptradd":
                return self._move(op, a, b)
            case "cmp":
                return self._compare(op.attrs["pred"], a, b, dtype)
            case "and" if dtype.bits == 1:
                return self._both(a, b)
            case "rem":
                return self._wrap(a, b, dtype)
        return VARYING

    def _parts(self, form: Uniformity) -> tuple[str, int] | None:
        if isinstance(form, Strided):
            return form.base, form.step
        return (form.text, 0) if isinstance(form, Uniform) else None

    def _add(self, name: str, a: Uniformity, b: Uniformity, dtype: Any) -> Uniformity:
        p, q = self._parts(a), self._parts(b)
        if p is None or q is None:
            return VARYING
        return self._arithmetic(name, p[0], q[0], p[1] + q[1] if name == "add" else p[1] - q[1], dtype)

    def _arithmetic(self, name: str, a: str, b: str, step: int, dtype: Any) -> Uniformity:
        """A strided value with the base `a name b`, unless it may wrap within the tile, by its constants or its dtype."""
        if step and is_number(a) and is_number(b):
            base = FOLD[name](int(a), int(b))
            return VARYING if self._wraps(base, step, dtype) else self._strided(str(base), step)
        if step and may_wrap(dtype):
            return VARYING
        return self._strided(self.code.binary(name, a, b, register_type(dtype), 1), step)

    def _wraps(self, base: int, step: int, dtype: Any) -> bool:
        """Whether a strided value with a known base leaves the range of a dtype."""
        low, high = sorted((base, base + step * (self.size - 1)))
        return not within((low, high), limits(dtype))

    def _strided(self, base: str, step: int) -> Uniformity:
        if abs(step) > MAX_STEP:
            return VARYING
        return Strided(base, step) if step else Uniform(base)

    def _multiply(self, a: Uniformity, b: Uniformity, dtype: Any) -> Uniformity:
        if isinstance(b, Strided):
            a, b = b, a
        if not isinstance(a, Strided) or not isinstance(b, Uniform) or not is_number(b.text):
            return VARYING
        return self._arithmetic("mul", a.base, b.text, a.step * int(b.text), dtype)

    def _cast(self, a: Uniformity, source: Any, target: Any) -> Uniformity:
        if not isinstance(a, Strided) or target.is_float or target.bits == 1:
            return VARYING
        if target.bits > source.bits and not source.is_signed:
            return VARYING
        if is_number(a.base):
            return VARYING if self._wraps(int(a.base), a.step, target) else a
        tests = self._losing(a, source, target)
        if tests and not self.speculate:
            return VARYING
        self.conditions += [self.code.w.value(test) for test in tests]
        return Strided(casts.cast(self.code, a.base, source, target, 1), a.step)

    def _losing(self, a: Strided, source: Any, target: Any) -> list[str]:
        """Comparisons that hold if the target dtype can represent all numbers of a strided value of the source dtype.

        A cast to unsigned numbers (the bounds test of block pointers), or to fewer bits, needs them.
        """
        (least, most), (lower, upper) = limits(source), limits(target)
        if lower <= least and upper >= most:
            return []
        kind, sign = register_type(source), "s" if source.is_signed else "u"
        distance = a.step * (self.size - 1)
        if not least <= distance <= most:
            return ["icmp ne i1 false, false"]
        end = self.code.binary("add", a.base, str(distance), kind, 1)
        first, last = (a.base, end) if a.step > 0 else (end, a.base)
        tests = [f"icmp {sign}ge {kind} {first}, {lower}"] if lower > least else []
        return tests + ([f"icmp {sign}le {kind} {last}, {upper}"] if upper < most else [])

    def _move(self, op: Op, a: Uniformity, b: Uniformity) -> Uniformity:
        p, q = self._parts(a), self._parts(b)
        dtype, pointer = op.args[1].type.dtype, op.args[0].type.dtype
        if p is None or q is None or (q[1] and not dtype.is_signed):
            return VARYING
        offset = casts.cast(self.code, q[0], dtype, t.int64, 1)
        moved = move_pointer(self.code, p[0], offset, pointer, 1, bool(op.attrs.get("saturate")))
        return self._strided(moved, p[1] + q[1] * pointer.element.bytes)

    def _compare(self, predicate: str, a: Uniformity, b: Uniformity, dtype: Any) -> Uniformity:
        """A comparison of strided values whose steps differ by one is a prefix: it holds up to some position."""
        if isinstance(dtype, Pointer) or dtype.is_float or dtype.bits == 1:
            return VARYING
        if predicate in ("gt", "ge"):
            a, b, predicate = b, a, {"gt": "lt", "ge": "le"}[predicate]
        p, q = self._parts(a), self._parts(b)
        if p is None or q is None or predicate not in ("lt", "le") or p[1] - q[1] != 1:
            return VARYING
        if not dtype.is_signed and (q[1] or dtype.bits == 64):
            return VARYING
        x, y = (casts.cast(self.code, v, dtype, t.int64, 1) for v in (p[0], q[0]))
        if dtype.bits == 64:  # a limit such as 2^63 - 1 must not overflow here
            count = self.code.intrinsic("ssub.sat", "i64", 1, y, x)
            return Prefix(count if predicate == "lt" else self.code.intrinsic("sadd.sat", "i64", 1, count, "1"))
        count = self.code.i64("sub", y, x)
        return Prefix(count if predicate == "lt" else self.code.i64("add", count, "1"))

    def as_prefix(self, form: Uniformity) -> Prefix | None:
        """A mask as a prefix, if it is one."""
        if isinstance(form, Uniform):
            if form.text == "true":
                return Prefix(str(self.size))
            return Prefix(self.code.select(form.text, str(self.size), "0", "i64", 1))
        return form if isinstance(form, Prefix) else None

    def _both(self, a: Uniformity, b: Uniformity) -> Uniformity:
        p, q = self.as_prefix(a), self.as_prefix(b)
        if p is None or q is None:
            return VARYING
        return Prefix(self.code.i64_least(p.count, q.count))

    def _wrap(self, a: Uniformity, b: Uniformity, dtype: Any) -> Uniformity:
        if not isinstance(a, Strided) or a.step != 1 or not isinstance(b, Uniform):
            return VARYING
        if not self.speculate or not dtype.is_integer:
            return VARYING
        base, limit = (casts.cast(self.code, v, dtype, t.int64, 1) for v in (a.base, b.text))
        last = self.code.i64("add", base, str(self.size))
        self.conditions.append(self.code.w.value(f"icmp sge i64 {base}, 0"))
        self.conditions.append(self.code.w.value(f"icmp sle i64 {last}, {limit}"))
        return a


class AddressAnalysis:
    """The contiguous loops of each access. `scalar` names a scalar; `speculate` allows assumptions that a test at run time checks."""

    def __init__(self, program: Dataflow, machine: TargetFeatures, scalar: Callable[[Value], str], speculate: bool):
        self.program, self.machine, self.scalar, self.speculate = program, machine, scalar, speculate
        self._contiguous: dict[Op, frozenset[int]] = {}
        self._uniform: set[tuple[Op, int]] = set()

    def contiguous(self, op: Op) -> frozenset[int]:
        """The loops along which a load or store visits neighbouring addresses."""
        if op not in self._contiguous:
            pointers = op.args[0]
            loops = range(len(squeezed(pointers.type.shape)))
            found = set()
            for axis in loops:
                code = KernelBuilder(self.machine, {})
                counters = {loop: "%counter" for loop in loops if loop != axis}
                leaf = lambda value, index: VARYING  # noqa: E731
                forms = UniformityAnalysis(self.program, code, axis, 1, counters, self.scalar, leaf, self.speculate)
                form = forms.of(pointers, identity(pointers.type.shape))
                if isinstance(form, Strided) and form.step == pointers.type.dtype.element.bytes:
                    found.add(axis)
                if isinstance(form, Uniform):
                    self._uniform.add((op, axis))
            self._contiguous[op] = frozenset(found)
        return self._contiguous[op]

    def one_element(self, op: Op, loop: int) -> bool:
        """Whether an access touches the same element at all positions of a loop."""
        self.contiguous(op)
        return (op, loop) in self._uniform
