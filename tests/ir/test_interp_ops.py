"""The interpreter's arithmetic for each op and dtype against plain Python: exact integers, and floats rounded by hand."""

from __future__ import annotations

import math
import operator
import struct
from typing import Any

import numpy as np
import pytest

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Value
from blocknb.ir.fold import fold
from blocknb.ir.interp import run
from blocknb.language import types as t
from blocknb.language.float8 import FORMATS
from blocknb.language.types import DType, Tile

INTEGERS = [d for d in t.DTYPES if d.kind in ("int", "uint")]
CAST = [d for d in t.DTYPES if d != t.float8e4b15]  # the front end expands their conversions
FLOATS = [d for d in t.DTYPES if d.is_standard_floating()]
MANTISSA = {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}
STRUCT = {1: "b", 2: "h", 4: "i", 8: "q"}


def evaluate(name: str, operands: list[np.ndarray], dtypes: list[DType], **attrs: Any) -> np.ndarray:
    """Runs one op of the IR on whole arrays, loaded from memory and stored to it."""
    b, size = Builder("test"), len(operands[0])
    params = [Value(t.Tile(t.Pointer(d)), f"p{i}") for i, d in enumerate(dtypes)]
    offsets = b.value("arange", start=0, end=size)

    def pointers(param: Value) -> Value:
        return b.value("ptradd", b.value("splat", param, shape=(size,)), offsets)

    result = b.value(name, *(b.value("load", pointers(p)) for p in params), **attrs)
    out = Value(t.Tile(t.Pointer(result.type.dtype)), "out")
    b.op("store", pointers(out), result)
    func = Func("one", (*params, out), Block((), b.finish()))
    found = np.zeros(size, result.type.dtype.numpy)
    run(func, [x.astype(d.numpy) for x, d in zip(operands, dtypes, strict=True)] + [found], 1)
    return found


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def limits(dtype: DType) -> tuple[int, int]:
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.is_signed else (0, (1 << dtype.bits) - 1)


def rounded(value: float | int, dtype: DType) -> float:
    """To nearest even with the dtype's mantissa, exactly; for magnitudes inside the dtype's normal range."""
    if value == 0 or not math.isfinite(value):
        return float(value)
    if dtype.is_fp8():
        table = FORMATS[dtype.name]
        return table.decode(table.encode(float(value)))
    bits = MANTISSA[dtype.name]
    if isinstance(value, int):
        drop = max(abs(value).bit_length() - bits, 0)
        scaled, exponent = value, drop
        low, half = scaled & ((1 << drop) - 1), (1 << drop) >> 1
        up = drop and (low > half or (low == half and scaled >> drop & 1))
        return math.ldexp((scaled >> drop) + bool(up), exponent)
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)


def integer_pairs(dtype: DType) -> list[tuple[int, int]]:
    low, high = limits(dtype)
    edges = [low, low + 1, low // 2, -7, -1, 0, 1, 2, 3, 100, high // 3, high]
    inside = [x for x in edges if low <= x <= high]
    return ([(a, b) for a in inside for b in inside] * 2)[:128]


def float_pairs(dtype: DType) -> list[tuple[float, float]]:
    rng = np.random.default_rng(dtype.bits)
    values = rng.standard_normal((64, 2)) * np.exp2(rng.integers(-3, 4, (64, 2)))
    return [(rounded(float(a), dtype), rounded(float(b), dtype)) for a, b in values]


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": truncated,
    "rem": lambda a, b: a - b * truncated(a, b),
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_integer_ops_wrap_like_c_arithmetic(name: str, dtype: DType) -> None:
    pairs = integer_pairs(dtype)
    if name in ("div", "rem"):
        pairs = [(a, b if b and (a, b) != (limits(dtype)[0], -1) else 3) for a, b in pairs]
    if name in ("shl", "shr"):
        pairs = [(a, b % dtype.bits) for a, b in pairs]
    a, b = (np.array([p[i] for p in pairs], dtype.numpy) for i in (0, 1))
    expected = [wrap(BINARY[name](x, y), dtype) for x, y in pairs]
    assert evaluate(name, [a, b], [dtype, dtype]).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_integers_divided_by_zero_are_zero(dtype: DType) -> None:
    operands = [np.array([1, 2], dtype.numpy), np.array([0, 1], dtype.numpy)]
    assert evaluate("div", operands, [dtype, dtype]).tolist() == [0, 2]
    assert evaluate("rem", operands, [dtype, dtype]).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["neg", "not", "abs"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_integer_ops_of_one_operand_wrap(name: str, dtype: DType) -> None:
    values = [a for a, _ in integer_pairs(dtype)]
    function = {"neg": operator.neg, "not": operator.invert, "abs": abs}[name]
    found = evaluate(name, [np.array(values, dtype.numpy)], [dtype])
    assert found.tolist() == [wrap(function(x), dtype) for x in values]


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic_on_bools_matches_python(name: str) -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    expected = [BINARY[name](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert evaluate(name, [a, b], [t.int1, t.int1]).tolist() == expected
    assert evaluate("not", [a], [t.int1]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "min", "max"])
@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_float_arithmetic_is_rounded_once_to_nearest_even(name: str, dtype: DType) -> None:
    pairs = float_pairs(dtype)
    function = operator.truediv if name == "div" else BINARY[name]
    found = evaluate(name, [np.array(x) for x in zip(*pairs, strict=True)], [dtype, dtype])
    # A float64 result has more than twice the bits of the narrow dtypes, so rounding it again is rounding once.
    assert found.astype(float).tolist() == [rounded(function(a, b), dtype) for a, b in pairs]


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_float_rem_and_fma_match_the_math_module(dtype: DType) -> None:
    pairs = float_pairs(dtype)
    a, b = (np.array(x) for x in zip(*pairs, strict=True))
    assert evaluate("rem", [a, b], [dtype] * 2).astype(float).tolist() == [
        rounded(math.fmod(x, y), dtype) for x, y in pairs
    ]
    found = evaluate("fma", [a, b, a], [dtype] * 3).astype(float)
    np.testing.assert_allclose(found, a * b + a, rtol=2.0 ** -(MANTISSA[dtype.name] - 1), atol=1e-15)


MATH = {
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
    "neg": operator.neg,
}


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_functions_match_the_math_module_rounded_to_the_dtype(name: str, dtype: DType) -> None:
    values = [a for a, _ in float_pairs(dtype) if abs(a) < 8]
    values = values[: 1 << len(values).bit_length() - 1]  # as many as a tile may have
    if name in ("log", "log2", "sqrt", "rsqrt"):
        values = [abs(x) or 1.0 for x in values]
    found = evaluate(name, [np.array(values)], [dtype]).astype(float)
    ulps = 4 if dtype == t.float64 else 1  # NumPy's own functions are not rounded correctly in float64
    tolerance = ulps * 2.0 ** -(MANTISSA[dtype.name] - 1)
    np.testing.assert_allclose(found, [MATH[name](x) for x in values], rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_min_and_max_ignore_nan_unless_it_is_propagated(dtype: DType) -> None:
    a, b = np.array([math.nan, 1.0, math.nan, 2.0]), np.array([1.0, math.nan, math.nan, 3.0])
    assert repr(evaluate("max", [a, b], [dtype] * 2).astype(float).tolist()) == "[1.0, 1.0, nan, 3.0]"
    assert repr(evaluate("min", [a, b], [dtype] * 2).astype(float).tolist()) == "[1.0, 1.0, nan, 2.0]"
    assert repr(evaluate("max", [a, b], [dtype] * 2, nan=True).astype(float).tolist()) == "[nan, nan, nan, 3.0]"
    assert repr(evaluate("min", [a, b], [dtype] * 2, nan=True).astype(float).tolist()) == "[nan, nan, nan, 2.0]"


@pytest.mark.parametrize("pred", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=repr)
def test_comparisons_match_python_and_only_ne_holds_for_nan(pred: str, dtype: DType) -> None:
    special = [(1.0, 1.0), (math.nan, 1.0), (math.nan, math.nan), (0.0, -0.0)] * 8
    pairs: list = float_pairs(dtype)[:32] + special if dtype.is_float else integer_pairs(dtype)
    a, b = (np.array([p[i] for p in pairs], dtype.numpy) for i in (0, 1))
    found = evaluate("cmp", [a, b], [dtype, dtype], pred=pred)
    assert found.dtype == bool and found.tolist() == [getattr(operator, pred)(x, y) for x, y in pairs]


def test_select_takes_the_first_operand_where_the_condition_holds() -> None:
    found = evaluate(
        "select", [np.array([1, 0], bool), np.array([1.5, 2.5]), np.array([3.5, 4.5])], [t.int1, *[t.float16] * 2]
    )
    assert found.tolist() == [1.5, 4.5]


@pytest.mark.parametrize("target", CAST, ids=repr)
@pytest.mark.parametrize("source", CAST, ids=repr)
def test_casts_round_saturate_wrap_or_test_against_zero(source: DType, target: DType) -> None:
    if source.kind == "bool":
        values: list = [False, True] * 2
    elif source.is_float:
        values = [rounded(x, source) for x in (0.0, 0.4, 0.9, 1.5, 2.5, 3.14159, 100.7, 127.0)]
        values += [] if target.kind == "uint" else [-x for x in values]
        values = values[:16] if len(values) == 16 else values
    else:
        values = [a for a, _ in integer_pairs(source)]
        values = [x for x in values if abs(x) < 2**15 or target.name != "fp16"]
        values = values[: 1 << len(values).bit_length() - 1]

    def expected(x: Any) -> Any:
        if target.kind == "bool":
            return x != 0
        if target.is_integer and source.is_float:
            return min(max(int(x), limits(target)[0]), limits(target)[1])
        if target.is_integer:
            return wrap(int(x), target)
        return rounded(x if source.is_float else int(x), target)

    found = evaluate("cast", [np.array(values, source.numpy)], [source], dtype=target)
    assert [float(x) if target.is_float else x for x in found.tolist()] == [expected(x) for x in values]


def test_a_wide_number_is_rounded_to_bf16_only_once() -> None:
    """1 + 2^-8 + 2^-30 lies just above the middle of two bf16; rounding to fp32 first would give exactly the middle."""
    middle = 1 + 2.0**-8
    found = evaluate("cast", [np.array([middle, middle + 2.0**-30])], [t.float64], dtype=t.bfloat16)
    assert found.astype(float).tolist() == [1.0, 1 + 2.0**-7]


@pytest.mark.parametrize(
    ("source", "target"),
    [(t.float32, t.int32), (t.int64, t.float64), (t.uint16, t.float16), (t.float16, t.int16)],
    ids=repr,
)
def test_a_bitcast_keeps_the_bits(source: DType, target: DType) -> None:
    code = STRUCT[source.bytes]
    values = np.array([1, 2, 3, -4]).astype(source.numpy)
    found = evaluate("bitcast", [values], [source], dtype=target)
    bits = [struct.unpack(code, x.tobytes())[0] for x in values]
    assert [struct.unpack(code, x.tobytes())[0] for x in found] == bits


# -- folding


def folded(name: str, kind: DType, *constants: Any, **attrs: Any) -> Any:
    b = Builder("test")
    return fold(b.op(name, *(Value(Tile(kind)) for _ in constants), **attrs), constants)


def test_folding_gives_python_numbers_of_the_results_type() -> None:
    assert folded("add", t.int32, 2**31 - 1, 1) == -(2**31)
    assert folded("div", t.int32, -7, 2) == -3
    assert folded("cmp", t.uint8, 3, 4, pred="lt") is True
    assert folded("cast", t.float32, 1.9, dtype=t.int8) == 1
    assert folded("add", t.float32, 0.1, 0.2) == float(np.float32(0.1) + np.float32(0.2))
    assert type(folded("mul", t.bfloat16, 1.5, 2.0)) is float
    assert type(folded("xor", t.uint64, 2**63, 1)) is int


@pytest.mark.parametrize(
    ("name", "dtype", "constants", "attrs", "value"),
    [
        ("div", t.int32, (1, 0), {}, 0),
        ("div", t.int32, (-(2**31), -1), {}, -(2**31)),
        ("rem", t.uint8, (1, 0), {}, 0),
        ("shl", t.int32, (1, 32), {}, 0),
        ("shr", t.int32, (-1, -1), {}, -1),
        ("shr", t.int32, (1, -1), {}, 0),
        ("cast", t.float32, (300.0,), {"dtype": t.uint8}, 255),
        ("cast", t.float32, (-math.inf,), {"dtype": t.int64}, -(2**63)),
        ("cast", t.float32, (math.nan,), {"dtype": t.int32}, 0),
    ],
)
def test_undefined_behaviour_of_c_is_folded_as_documented(name, dtype, constants, attrs, value) -> None:
    assert folded(name, dtype, *constants, **attrs) == value


@pytest.mark.parametrize(
    ("name", "dtype", "constants", "attrs"),
    [
        ("add", t.int32, (1, None), {}),
        ("splat", t.int32, (1,), {"shape": (4,)}),
        ("bitcast", t.int64, (1,), {"dtype": t.Pointer(t.int8)}),
    ],
)
def test_only_constant_elementwise_ops_are_folded(name, dtype, constants, attrs) -> None:
    assert folded(name, dtype, *constants, **attrs) is None


def test_float_division_by_zero_is_folded_like_ieee_754() -> None:
    assert folded("div", t.float32, 1.0, 0.0) == math.inf
