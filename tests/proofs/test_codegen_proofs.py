"""The LLVM text of scalar integer ops, comparisons and casts is proved against the op table, for the CPU and for GPUs.

The code generators write guards for what LLVM leaves undefined. These are shifts by the width, divisors of zero, the least number by -1,
and floats out of range. The proof covers value, poison and undefined behaviour for all operands. Wide quotients are an unknown function:
the proof is about the guards. `--full` proves all dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest

pytest.importorskip("z3")

import smt
import z3
from peephole_terms import BINARY, BITS, INTEGERS, PREDICATES
from smt_llvm import LlvmTranslator, Register, of, unknown

from blocknb.codegen.cpu import elementwise as cpu
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.gpu import casts as gpu_casts
from blocknb.codegen.gpu import math as gpu_math
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.codegen.scalar_math.register_types import NARROW, constant, register_type
from blocknb.codegen.text import DebugInfo, literal
from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.types import Tile

FLOATS = (t.float16, t.bfloat16, t.float32, t.float64)
OLD = TargetFeatures(16, 16, fma=False, f16c=False, sse41=False, avx512=False, isa="x86_64")
NEW = TargetFeatures(32, 32, fma=True, f16c=True, sse41=True, avx512=False, isa="x86_64")
Generate = Callable[[Op, list[str]], tuple[list[str], str, dict[str, str]]]


def made(name: str, *dtypes: Any, **attrs: Any) -> Op:
    return Builder("test").op(name, *(Value(Tile(d)) for d in dtypes), **attrs)


def for_cpu(machine: TargetFeatures) -> Generate:
    def generate(op: Op, names: list[str]) -> tuple[list[str], str, dict[str, str]]:
        code = KernelBuilder(machine, {})
        result = cpu.elementwise(code, op, names, 1)
        return code.w.lines, result, code.helpers

    return generate


def for_gpu(op: Op, names: list[str]) -> tuple[list[str], str, dict[str, str]]:
    text, dtype = TextWriter(DebugInfo("kernel", None)), op.args[0].type.dtype
    match op.name:
        case "cast":
            result = gpu_casts.cast(text, names[0], dtype, op.result.type.dtype)
        case "cmp":
            result = gpu_casts.compare(text, op.attrs["pred"], dtype, tuple(names))
        case _:
            result = gpu_math.integer(text, op, dtype, tuple(names))
    return text.sink, result, text.helpers


CPU_REGISTERS, GPU_REGISTERS = register_type, llvm_type
TARGETS = {
    "old CPU": (for_cpu(OLD), CPU_REGISTERS, constant),
    "new CPU": (for_cpu(NEW), CPU_REGISTERS, constant),
    "GPU": (for_gpu, GPU_REGISTERS, literal),
}


def held(dtype: Any, name: str, register: str) -> tuple[Any, Register]:
    """An unknown element, and the register that holds it: the CPU's registers hold fp16 and bf16 as fp32."""
    if dtype.is_float and dtype.name in NARROW and register == "float":
        narrow = unknown(name, {"fp16": "half", "bf16": "bfloat"}[dtype.name]).term
        return narrow, of(z3.fpFPToFP(smt.ROUND, narrow, z3.FPSort(8, 24)))
    found = unknown(name, register)
    return found.term, found


def wrong(target: str, op: Op, known: dict[int, Any] | None = None) -> str | None:
    """Operands for which the text of an op does not compute what the op means, or is undefined. `known`: operands that are constants."""
    generate, register_of, spell = TARGETS[target]
    names, terms, registers = [], [], {}
    for i, arg in enumerate(op.args):
        dtype = arg.type.dtype
        if known is not None and i in known:
            names.append(spell(known[i], dtype))
            terms.append(smt.literal(known[i], dtype))
            continue
        names.append(f"%x{i}")
        term, registers[f"%x{i}"] = held(dtype, f"x{i}", register_of(dtype))
        terms.append(term)
    lines, result, helpers = generate(op, names)
    translator = LlvmTranslator(helpers)
    registers = translator.run(lines, registers)
    dtype = op.result.type.dtype
    found = translator.operand(result, register_of(dtype), registers)
    expected = smt.elementwise(op, terms)
    if dtype.is_float and dtype.name in NARROW and register_of(dtype) == "float":
        expected = z3.fpFPToFP(smt.ROUND, expected, z3.FPSort(8, 24))
    right = z3.And(found.term == expected, z3.Not(z3.Or(found.poison, *translator.undefined)))
    return smt.counterexample(right, translator.equations)


def all_right(target: str, ops: Iterable[tuple[Op, dict[int, Any] | None]]) -> None:
    with smt.opaque_quotients(16):
        for op, known in ops:
            shown = wrong(target, op, known)
            assert shown is None, f"{target}: {op.name} {op.attrs} of {op.args[0].type}, {known}: {shown}"


def integer_ops(dtype: Any) -> Iterable[tuple[Op, dict[int, Any] | None]]:
    """Every op on integers of a dtype, with unknown operands and with constant second operands."""
    for name in BITS if dtype.kind == "bool" else BINARY:
        op = made(name, dtype, dtype)
        yield op, None
        if name in ("div", "rem", "shl", "shr"):
            low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
            for c in {0, 1, 2, 7, dtype.bits - 1, dtype.bits, low, -1 if dtype.kind == "int" else dtype.bits + 1}:
                yield op, {1: c}
    for name in ("not",) if dtype.kind == "bool" else ("neg", "not", "abs"):
        yield made(name, dtype), None
    for pred in PREDICATES:
        yield made("cmp", dtype, dtype, pred=pred), None


@pytest.mark.parametrize("dtype", [t.int1, t.int8, t.uint8, t.int32, t.uint64], ids=str)
@pytest.mark.parametrize("target", ["old CPU", "GPU"])
def test_text_of_integer_ops_computes_what_the_op_table_says(target, dtype):
    all_right(target, integer_ops(dtype))


@pytest.mark.full
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_text_of_integer_ops_of_all_dtypes_computes_what_the_op_table_says(target, dtype):
    all_right(target, integer_ops(dtype))


QUICK = [
    *product((t.int8, t.uint32), (t.int1, t.int64, t.uint8, t.float32)),
    *product((t.float16, t.bfloat16, t.float32), (t.int8, t.uint32, t.int1)),
    (t.float32, t.float16),
    (t.float32, t.bfloat16),
    (t.float16, t.bfloat16),
]


@pytest.mark.parametrize("target", TARGETS)
def test_text_of_casts_computes_what_the_op_table_says(target):
    all_right(target, ((made("cast", source, dtype=result), None) for source, result in QUICK))


@pytest.mark.full
@pytest.mark.parametrize("source", [t.int1, *INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_text_of_casts_between_all_dtypes_computes_what_the_op_table_says(target, source):
    results = (t.int1, *INTEGERS, *FLOATS)
    all_right(target, ((made("cast", source, dtype=result), None) for result in results))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("nan", [False, True])
def test_text_of_extrema_orders_zeros_and_nans_on_a_cpu(name, nan):
    op = made(name, t.float32, t.float32, **({"nan": True} if nan else {}))
    constants = [{1: c} for c in (0.0, -0.0, 1.0, float("inf"), float("nan"))]
    all_right("old CPU", ((op, known) for known in (None, *constants)))


def test_the_proof_finds_a_missing_guard():
    """The text of a shift without its guard is poison for counts of the width or more."""
    translator = LlvmTranslator()
    registers = {"%x0": unknown("x0", "i32"), "%x1": unknown("x1", "i32")}
    found = translator.run(["  %r = shl i32 %x0, %x1"], registers)["%r"]
    expected = smt.elementwise(made("shl", t.int32, t.int32), [registers["%x0"].term, registers["%x1"].term])
    assert smt.counterexample(found.term == expected) is None
    assert smt.counterexample(z3.Not(found.poison)) is not None
