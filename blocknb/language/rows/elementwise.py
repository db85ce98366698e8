"""Rows of the op table: elementwise arithmetic.

Every row has a cost, a meaning in NumPy and an example. A kernel calls a `_function` by its name, with one operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.language import meaning, rules
from blocknb.language.op_spec import Cost, Help, OpSpec, traits

NUMBERS, INTEGERS, BITS = "int uint float", "int uint", "bool int uint"
FLOAT = "The result has the shape and the float dtype of `x`. The op computes fp16 and bf16 in fp32. It converts integers to fp32."
BROADCAST = "Operands broadcast to one shape, in the dtype that the two promote to."
FLUSH = "With `flush_denormals`, results that are subnormal in fp32 become zero."


def _binary(
    name: str, kinds: str, help: Help, numpy: Callable, has: str = "", attrs: tuple[str, ...] = (), **cost: int
) -> OpSpec:
    """An op of two operands, which have the same type as the result."""
    return OpSpec(
        name,
        "elementwise",
        rules.same(kinds),
        help,
        operands="a b",
        attrs=attrs,
        numpy=numpy,
        traits=traits(has),
        cost=Cost(**cost),
    )


def _unary(name: str, kinds: str, help: Help, numpy: Callable, has: str = "", **cost: int) -> OpSpec:
    """An op of one operand, which has the same type as the result."""
    return OpSpec(
        name,
        "elementwise",
        rules.same(kinds),
        help,
        operands="x",
        numpy=numpy,
        traits=traits(has),
        cost=Cost(**cost),
    )


def _function(
    name: str, text: str, example: str, numpy: Callable, *, flops: int, cpu: int, has: str = "", **rest: Any
) -> OpSpec:
    """A function of one float."""
    return OpSpec(
        name,
        "elementwise",
        rules.same("float"),
        Help(text, FLOAT, example, rest.pop("ir", "")),
        operands="x",
        numpy=numpy,
        traits=traits(f"special_function {has}"),
        cost=Cost(flops, cpu),
        **rest,
    )


ARITHMETIC = (
    _binary(
        "add",
        NUMBERS,
        Help("Adds; integers wrap.", example="tl.load(i_ptr + 3) + tl.arange(0, 2)  # [3, 4]"),
        meaning.plain(np.add),
        "associative ring host",
        flops=1,
    ),
    _binary(
        "sub",
        NUMBERS,
        Help("Subtracts; integers wrap.", example="tl.load(i_ptr + 3) - tl.arange(0, 2)  # [3, 2]"),
        meaning.plain(np.subtract),
        "ring host",
        flops=1,
    ),
    _binary(
        "mul",
        NUMBERS,
        Help("Multiplies; integers wrap.", example="tl.load(i_ptr + 3) * tl.arange(0, 2)  # [0, 3]"),
        meaning.plain(np.multiply),
        "associative ring host",
        flops=1,
    ),
    _binary(
        "div",
        NUMBERS,
        Help(
            "Divides. A float quotient is within 2 ulp. An integer quotient is truncated; a division by zero gives 0.",
            example="tl.load(a_ptr + 3) / tl.load(a_ptr + 2)  # 1.5",
            ir="The least integer divided by -1 is itself. With `nearest`, the op rounds a float quotient as IEEE 754 does. With `normal`, "
            "the divisor and its reciprocal are normal numbers.",
        ),
        meaning.quiet(meaning.divide),
        "special_unit host",
        attrs=("nearest", "normal"),
        flops=1,
        cpu=6,
    ),
    _binary(
        "rem",
        NUMBERS,
        Help(
            "Returns the remainder, with the sign of the dividend. The remainder of an integer by zero is 0.",
            example="tl.arange(0, 4) % tl.load(i_ptr + 3)  # [0, 1, 2, 0]",
        ),
        meaning.quiet(meaning.remainder),
        "host",
        flops=1,
        cpu=8,
    ),
    _binary(
        "min",
        NUMBERS,
        Help(
            "Returns the smaller operand. A NaN loses against a number, and -0.0 is below 0.0.",
            example="tl.minimum(tl.arange(0, 4), 2)  # [0, 1, 2, 2]",
            ir="With `nan`, a NaN wins.",
        ),
        meaning.quiet(meaning.minmax(largest=False)),
        "associative host",
        attrs=("nan",),
        flops=1,
        cpu=2,
    ),
    _binary(
        "max",
        NUMBERS,
        Help(
            "Returns the larger operand. A NaN loses against a number, and -0.0 is below 0.0.",
            example="tl.maximum(tl.arange(0, 4), 2)  # [2, 2, 2, 3]",
            ir="With `nan`, a NaN wins.",
        ),
        meaning.quiet(meaning.minmax(largest=True)),
        "associative host",
        attrs=("nan",),
        flops=1,
        cpu=2,
    ),
    _binary(
        "mulhi",
        INTEGERS,
        Help(
            "Returns the upper half of the product, which has twice the width.",
            example="tl.umulhi(tl.full((), 2**31 - 1, tl.int32), tl.load(i_ptr + 8))  # 3",
        ),
        meaning.plain(meaning.multiply_high),
        flops=0,
        cpu=3,
    ),
    _binary(
        "and",
        BITS,
        Help("Combines bits by and.", example="tl.arange(0, 4) & tl.load(i_ptr + 2)  # [0, 0, 2, 2]"),
        meaning.plain(np.bitwise_and),
        "associative",
        flops=0,
    ),
    _binary(
        "or",
        BITS,
        Help("Combines bits by or.", example="tl.arange(0, 4) | tl.load(i_ptr + 2)  # [2, 3, 2, 3]"),
        meaning.plain(np.bitwise_or),
        "associative",
        flops=0,
    ),
    _binary(
        "xor",
        BITS,
        Help("Combines bits by exclusive or.", example="tl.arange(0, 4) ^ tl.load(i_ptr + 2)  # [2, 3, 0, 1]"),
        meaning.plain(np.bitwise_xor),
        "associative",
        flops=0,
    ),
    _binary(
        "shl",
        INTEGERS,
        Help(
            "Shifts bits to the left. A shift by the width or more, or by a negative number, gives 0.",
            example="tl.arange(0, 4) << tl.load(i_ptr + 1)  # [0, 2, 4, 6]",
        ),
        meaning.quiet(meaning.shift(True)),
        flops=0,
    ),
    _binary(
        "shr",
        INTEGERS,
        Help(
            "Shifts bits to the right. Signed numbers keep their sign. A shift by the width or more, or by a negative number, "
            "gives -1 for a negative number and 0 for any other.",
            example="tl.arange(0, 4) >> tl.load(i_ptr + 1)  # [0, 0, 1, 1]",
        ),
        meaning.quiet(meaning.shift(False)),
        flops=0,
    ),
    OpSpec(
        "fma",
        "elementwise",
        rules.same("float"),
        Help(
            "Returns a * b + c, rounded once.",
            "Floats only. " + BROADCAST,
            "tl.fma(tl.load(a_ptr + 3), 2.0, 1.0)  # 7.0",
        ),
        operands="a b c",
        numpy=meaning.quiet(meaning.fma),
        cost=Cost(flops=2),
    ),
    _unary(
        "neg",
        NUMBERS,
        Help("Negates; integers wrap.", example="-tl.arange(0, 2)  # [0, -1]"),
        meaning.plain(np.negative),
        "ring host",
        flops=0,
    ),
    _unary(
        "not",
        BITS,
        Help("Inverts every bit.", example="~tl.arange(0, 2)  # [-1, -2]"),
        meaning.plain(np.invert),
        flops=0,
    ),
    _unary(
        "abs",
        NUMBERS,
        Help(
            "Returns the absolute value.",
            "`x` is any number and keeps its dtype. The smallest signed integer has no positive counterpart and stays.",
            "tl.abs(tl.arange(0, 4) - 2)  # [2, 1, 0, 1]",
        ),
        meaning.plain(np.abs),
        flops=0,
    ),
    _unary(
        "floor",
        "float",
        Help(
            "Rounds down to an integer.",
            "`x` has any float dtype. An integer stays as it is.",
            "tl.floor(tl.load(a_ptr + 3) / 2)  # 1.0",
        ),
        meaning.wide(np.floor),
        flops=0,
    ),
    _unary(
        "ceil",
        "float",
        Help(
            "Rounds up to an integer.",
            "`x` has any float dtype. An integer stays as it is.",
            "tl.ceil(tl.load(a_ptr + 3) / 2)  # 2.0",
        ),
        meaning.wide(np.ceil),
        flops=0,
    ),
)

FUNCTIONS = (
    _function(
        "exp",
        "Computes e to the x. In fp32 the error of a GPU grows with |x|, to 50 ulp at the ends of the range.",
        "tl.exp(tl.full((2,), 1.0, tl.float32))  # [2.7182817, 2.7182817]",
        meaning.flushing(np.exp),
        flops=1,
        cpu=16,
        has="exponential special_unit",
        attrs=("flush_denormals",),
        ir="A GPU computes 2 to the x log2 e. " + FLUSH,
    ),
    _function(
        "exp2",
        "Computes 2 to the x.",
        "tl.exp2(tl.load(a_ptr + tl.arange(0, 4)))  # [1.0, 2.0, 4.0, 8.0]",
        meaning.flushing(np.exp2),
        flops=1,
        cpu=14,
        has="exponential special_unit",
        attrs=("flush_denormals",),
        ir=FLUSH,
    ),
    _function(
        "log",
        "Computes the natural logarithm.",
        "tl.log(tl.full((), 10.0, tl.float32))  # 2.3025851",
        meaning.wide(np.log),
        flops=1,
        cpu=18,
        has="special_unit",
    ),
    _function(
        "log2",
        "Computes the logarithm to base 2.",
        "tl.log2(tl.full((), 8.0, tl.float32))  # 3.0",
        meaning.wide(np.log2),
        flops=1,
        cpu=18,
        has="special_unit",
    ),
    _function(
        "sqrt",
        "Computes the square root.",
        "tl.sqrt(tl.load(a_ptr + 9))  # 3.0",
        meaning.wide(np.sqrt),
        flops=1,
        cpu=8,
        has="special_unit",
    ),
    _function(
        "rsqrt",
        "Computes the reciprocal of the square root.",
        "tl.rsqrt(tl.load(a_ptr + 4))  # 0.5",
        meaning.wide(lambda x: 1 / np.sqrt(x)),
        flops=1,
        cpu=10,
        has="special_unit",
    ),
    _function(
        "sin",
        "Computes the sine of radians.",
        "tl.sin(tl.load(a_ptr + 1))  # 0.84147098",
        meaning.wide(np.sin),
        flops=1,
        cpu=40,
        has="special_unit",
    ),
    _function(
        "cos",
        "Computes the cosine of radians.",
        "tl.cos(tl.load(a_ptr + 1))  # 0.54030231",
        meaning.wide(np.cos),
        flops=1,
        cpu=40,
        has="special_unit",
    ),
    _function(
        "tanh",
        "Computes the hyperbolic tangent.",
        "tl.tanh(tl.load(a_ptr + 1))  # 0.76159416",
        meaning.wide(np.tanh),
        flops=1,
        cpu=24,
        has="special_unit",
    ),
    _function(
        "erf",
        "Computes the error function.",
        "tl.erf(tl.load(a_ptr + 1))  # 0.84270079",
        meaning.wide(meaning.erf),
        flops=1,
        cpu=30,
    ),
)

OTHERS = (
    OpSpec(
        "cmp",
        "elementwise",
        rules.compare,
        Help(
            "Compares. Every comparison with NaN is false, but `!=` is true.",
            example="tl.arange(0, 4) < tl.load(i_ptr + 2)  # [True, True, False, False]",
            ir="`pred` is eq, ne, lt, le, gt or ge.",
        ),
        operands="a b",
        attrs=("pred",),
        numpy=meaning.quiet(meaning.compare),
        traits=traits("host"),
        cost=Cost(flops=0),
    ),
    OpSpec(
        "select",
        "elementwise",
        rules.select,
        Help(
            "Returns `a` where the condition holds, and `b` elsewhere.",
            example="x = tl.arange(0, 4)\ntl.where(x > 1, x, -1)  # [-1, -1, 2, 3]",
        ),
        operands="condition a b",
        numpy=meaning.plain(np.where),
        traits=traits("host"),
        cost=Cost(flops=0),
    ),
    OpSpec(
        "cast",
        "elementwise",
        rules.cast,
        Help(
            "Converts to another dtype. Floats are rounded to nearest, ties to even. Where a float is out of the range of an integer, the "
            "result is the nearest integer of the dtype; NaN gives 0.",
            "A float becomes an integer by truncation. Integers wrap. A cast to int1 compares with zero. With `bitcast`, the bits stay, "
            'and both dtypes have one width. `fp_downcast_rounding` is "rtne" (the default) or "rtz".',
            "tl.cast(tl.arange(0, 2) + 0.75, tl.int32)  # [0, 1]\ntl.cast(1.0, tl.int32, bitcast=True)  # 1065353216",
            "A number beyond the largest one of an fp8 dtype becomes that number. From floats to integers the op is LLVM's fptosi.sat or "
            "fptoui.sat: one instruction of a GPU, two or three more from fp64 or to 64 bits.",
        ),
        operands="x",
        attrs=("dtype",),
        numpy=meaning.quiet(meaning.cast),
        traits=traits("host"),
        cost=Cost(flops=0),
    ),
    OpSpec(
        "bitcast",
        "elementwise",
        rules.bitcast,
        Help(
            "Reads the same bits as another type of equal width.",
            example="tl.load(a_ptr + 1).to(tl.int32, bitcast=True)  # 1065353216",
        ),
        operands="x",
        attrs=("dtype",),
        numpy=meaning.bitcast,
        cost=Cost(flops=0),
    ),
    OpSpec(
        "promise",
        "elementwise",
        rules.promise,
        Help(
            "Returns `x`. The author of the kernel promises more about it than the compiler can prove.",
            example="n = tl.load(i_ptr + 8)\nif n > 4:\n    n = tl.multiple_of(n, 8)\nn  # 8",
        ),
        operands="x",
        attrs=("multiple_of", "max_contiguous", "max_constancy"),
        numpy=lambda attrs, dtype, x: x,
        traits=traits("host"),
        cost=Cost(flops=0),
    ),
    OpSpec(
        "ptradd",
        "elementwise",
        rules.ptradd,
        Help(
            "Moves a pointer by a number of elements.",
            example="tl.load(a_ptr + tl.arange(0, 2))  # [0.0, 1.0]",
            ir="With `saturate`, the pointer moves by at most 2^62 bytes either way, so that no pointer wraps around to where it was.",
        ),
        operands="pointer offset",
        attrs=("saturate",),
        cost=Cost(flops=0),
    ),
    OpSpec(
        "inside",
        "elementwise",
        rules.inside,
        Help(
            "Tells whether an element lies within an array.",
            ir="The array is the one that the launch passed as the argument number `argument`.",
        ),
        operands="pointer",
        attrs=("argument",),
        cost=Cost(flops=0),
    ),
)

ROWS = (*ARITHMETIC, *FUNCTIONS, *OTHERS)
