"""Rows of the op table: elementwise arithmetic.

The function of a row is the meaning of the op in NumPy. Every row has a cost and an example. A kernel calls a `function` by its name,
with one operand.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.language import rules, semantics
from blocknb.language.op_spec import Cost, OpSpec, declare, op
from blocknb.language.rules import need
from blocknb.language.types import Pointer, int1

NUMBERS, INTEGERS, BITS = rules.same("int uint float"), rules.same("int uint"), rules.same("bool int uint")
FLOATS = rules.same("float")
FLOAT = "The result has the shape and the float dtype of `x`. The op computes fp16 and bf16 in fp32. It converts integers to fp32."


def elementwise(
    infer: Callable, wrap: Callable | None = semantics.plain, *, flops: int, cpu: int = 1, **fields: Any
) -> Callable[[Callable], OpSpec]:
    """Makes a NumPy function a row. Its parameters name the operands, and `wrap` gives it the form of `OpSpec.numpy`."""

    def row(function: Callable) -> OpSpec:
        operands = [name for name in inspect.signature(function).parameters if name not in ("attrs", "dtype")]
        numpy = wrap(function) if wrap else function
        return declare(
            function, "elementwise", infer, operands=" ".join(operands), numpy=numpy, cost=Cost(flops, cpu), **fields
        )

    return row


def function(wrap: Callable = semantics.wide, *, traits: str = "", **fields: Any) -> Callable[[Callable], OpSpec]:
    """Makes a NumPy function of one float a row, and a name of the language."""
    return elementwise(FLOATS, wrap, details=FLOAT, traits=f"special_function {traits}", **fields)


@elementwise(NUMBERS, traits="associative ring host", flops=1)
def add(a, b):
    """Adds; integers wrap.

    Example:
        tl.load(i_ptr + 3) + tl.arange(0, 2)  # [3, 4]
    """
    return np.add(a, b)


@elementwise(NUMBERS, traits="ring host", flops=1)
def sub(a, b):
    """Subtracts; integers wrap.

    Example:
        tl.load(i_ptr + 3) - tl.arange(0, 2)  # [3, 2]
    """
    return np.subtract(a, b)


@elementwise(NUMBERS, traits="associative ring host", flops=1)
def mul(a, b):
    """Multiplies; integers wrap.

    Example:
        tl.load(i_ptr + 3) * tl.arange(0, 2)  # [0, 3]
    """
    return np.multiply(a, b)


@elementwise(NUMBERS, semantics.quiet, attrs="nearest normal", traits="special_unit host", flops=1, cpu=6)
def div(attrs, dtype, a, b):
    """Divides. A float quotient is within 2 ulp. An integer quotient is truncated; a division by zero gives 0.

    Example:
        tl.load(a_ptr + 3) / tl.load(a_ptr + 2)  # 1.5

    IR:
        The least integer divided by -1 is itself. With `nearest`, the op rounds a float quotient as IEEE 754 does. With `normal`, the
        divisor and its reciprocal are normal numbers.
    """
    if dtype.is_float:
        return a / b
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = a // safe
    fix = (a - quotient * safe != 0) & ((a < 0) != (safe < 0))
    return np.where(b == 0, np.zeros_like(a), quotient + fix.astype(a.dtype))


@elementwise(NUMBERS, semantics.quiet, traits="host", flops=1, cpu=8)
def rem(attrs, dtype, a, b):
    """Returns the remainder, with the sign of the dividend. The remainder of an integer by zero is 0.

    Example:
        tl.arange(0, 4) % tl.load(i_ptr + 3)  # [0, 1, 2, 0]
    """
    if dtype.is_float:
        return np.fmod(a, b)
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, np.where(b == 0, np.ones_like(b), b)))


@elementwise(NUMBERS, semantics.quiet, attrs="nan", traits="associative host", flops=1, cpu=2)
def min(attrs, dtype, a, b):
    """Returns the smaller operand. A NaN loses against a number, and -0.0 is below 0.0.

    Example:
        tl.minimum(tl.arange(0, 4), 2)  # [0, 1, 2, 2]

    IR:
        With `nan`, a NaN wins.
    """
    return semantics.extremum(False, attrs, dtype, a, b)


@elementwise(NUMBERS, semantics.quiet, attrs="nan", traits="associative host", flops=1, cpu=2)
def max(attrs, dtype, a, b):
    """Returns the larger operand. A NaN loses against a number, and -0.0 is below 0.0.

    Example:
        tl.maximum(tl.arange(0, 4), 2)  # [2, 2, 2, 3]

    IR:
        With `nan`, a NaN wins.
    """
    return semantics.extremum(True, attrs, dtype, a, b)


@elementwise(INTEGERS, flops=0, cpu=3)
def mulhi(a, b):
    """Returns the upper half of the product, which has twice the width.

    Example:
        tl.umulhi(tl.full((), 2**31 - 1, tl.int32), tl.load(i_ptr + 8))  # 3
    """
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low, cross = (x & mask) * (y & mask), (x >> half) * (y & mask)
    middle = (x & mask) * (y >> half) + (cross & mask) + (low >> half)
    high = (x >> half) * (y >> half) + (cross >> half) + (middle >> half)
    if a.dtype.kind == "i":  # a negative factor counted as one larger by 2^64
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(a.dtype)


@elementwise(BITS, traits="associative", flops=0)
def and_(a, b):
    """Combines bits by and.

    Example:
        tl.arange(0, 4) & tl.load(i_ptr + 2)  # [0, 0, 2, 2]
    """
    return np.bitwise_and(a, b)


@elementwise(BITS, traits="associative", flops=0)
def or_(a, b):
    """Combines bits by or.

    Example:
        tl.arange(0, 4) | tl.load(i_ptr + 2)  # [2, 3, 2, 3]
    """
    return np.bitwise_or(a, b)


@elementwise(BITS, traits="associative", flops=0)
def xor(a, b):
    """Combines bits by exclusive or.

    Example:
        tl.arange(0, 4) ^ tl.load(i_ptr + 2)  # [2, 3, 0, 1]
    """
    return np.bitwise_xor(a, b)


@elementwise(INTEGERS, flops=0)
def shl(a, b):
    """Shifts bits to the left. A shift by the width or more, or by a negative number, gives 0.

    Example:
        tl.arange(0, 4) << tl.load(i_ptr + 1)  # [0, 2, 4, 6]
    """
    return np.left_shift(a, b)


@elementwise(INTEGERS, flops=0)
def shr(a, b):
    """Shifts bits to the right. Signed numbers keep their sign. A shift by the width or more, or by a negative number, gives -1 for a
    negative number and 0 for any other.

    Example:
        tl.arange(0, 4) >> tl.load(i_ptr + 1)  # [0, 0, 1, 1]
    """
    return np.right_shift(a, b)


@elementwise(FLOATS, semantics.quiet, flops=2)
def fma(attrs, dtype, a, b, c):
    """Returns a * b + c, rounded once.

    Floats only. Operands broadcast to one shape, in the dtype that the two promote to.

    Example:
        tl.fma(tl.load(a_ptr + 3), 2.0, 1.0)  # 7.0
    """
    return semantics.fma(attrs, dtype, a, b, c)


@elementwise(NUMBERS, traits="ring host", flops=0)
def neg(x):
    """Negates; integers wrap.

    Example:
        -tl.arange(0, 2)  # [0, -1]
    """
    return np.negative(x)


@elementwise(BITS, flops=0)
def not_(x):
    """Inverts every bit.

    Example:
        ~tl.arange(0, 2)  # [-1, -2]
    """
    return np.invert(x)


@elementwise(NUMBERS, flops=0)
def abs(x):
    """Returns the absolute value.

    `x` is any number and keeps its dtype. The smallest signed integer has no positive counterpart and stays.

    Example:
        tl.abs(tl.arange(0, 4) - 2)  # [2, 1, 0, 1]
    """
    return np.abs(x)


@elementwise(FLOATS, semantics.wide, flops=0)
def floor(x):
    """Rounds down to an integer.

    `x` has any float dtype. An integer stays as it is.

    Example:
        tl.floor(tl.load(a_ptr + 3) / 2)  # 1.0
    """
    return np.floor(x)


@elementwise(FLOATS, semantics.wide, flops=0)
def ceil(x):
    """Rounds up to an integer.

    `x` has any float dtype. An integer stays as it is.

    Example:
        tl.ceil(tl.load(a_ptr + 3) / 2)  # 2.0
    """
    return np.ceil(x)


@function(semantics.flushing, attrs="flush_denormals", traits="exponential special_unit", flops=1, cpu=16)
def exp(x):
    """Computes e to the x. In fp32 the error of a GPU grows with |x|, to 50 ulp at the ends of the range.

    Example:
        tl.exp(tl.full((2,), 1.0, tl.float32))  # [2.7182817, 2.7182817]

    IR:
        A GPU computes 2 to the x log2 e. With `flush_denormals`, results that are subnormal in fp32 become zero.
    """
    return np.exp(x)


@function(semantics.flushing, attrs="flush_denormals", traits="exponential special_unit", flops=1, cpu=14)
def exp2(x):
    """Computes 2 to the x.

    Example:
        tl.exp2(tl.load(a_ptr + tl.arange(0, 4)))  # [1.0, 2.0, 4.0, 8.0]

    IR:
        With `flush_denormals`, results that are subnormal in fp32 become zero.
    """
    return np.exp2(x)


@function(traits="special_unit", flops=1, cpu=18)
def log(x):
    """Computes the natural logarithm.

    Example:
        tl.log(tl.full((), 10.0, tl.float32))  # 2.3025851
    """
    return np.log(x)


@function(traits="special_unit", flops=1, cpu=18)
def log2(x):
    """Computes the logarithm to base 2.

    Example:
        tl.log2(tl.full((), 8.0, tl.float32))  # 3.0
    """
    return np.log2(x)


@function(traits="special_unit", flops=1, cpu=8)
def sqrt(x):
    """Computes the square root.

    Example:
        tl.sqrt(tl.load(a_ptr + 9))  # 3.0
    """
    return np.sqrt(x)


@function(traits="special_unit", flops=1, cpu=10)
def rsqrt(x):
    """Computes the reciprocal of the square root.

    Example:
        tl.rsqrt(tl.load(a_ptr + 4))  # 0.5
    """
    return 1 / np.sqrt(x)


@function(traits="special_unit", flops=1, cpu=40)
def sin(x):
    """Computes the sine of radians.

    Example:
        tl.sin(tl.load(a_ptr + 1))  # 0.84147098
    """
    return np.sin(x)


@function(traits="special_unit", flops=1, cpu=40)
def cos(x):
    """Computes the cosine of radians.

    Example:
        tl.cos(tl.load(a_ptr + 1))  # 0.54030231
    """
    return np.cos(x)


@function(traits="special_unit", flops=1, cpu=24)
def tanh(x):
    """Computes the hyperbolic tangent.

    On a GPU, a result in fp32 is off by at most two units in the last place.

    Example:
        tl.tanh(tl.load(a_ptr + 1))  # 0.76159416
    """
    return np.tanh(x)


@function(flops=1, cpu=30)
def erf(x):
    """Computes the error function.

    Example:
        tl.erf(tl.load(a_ptr + 1))  # 0.84270079
    """
    return np.vectorize(math.erf, otypes=[np.float64])(x)


@elementwise(rules.compare, semantics.quiet, attrs="pred", traits="host", flops=0)
def cmp(attrs, dtype, a, b):
    """Compares. Every comparison with NaN is false, but `!=` is true.

    Example:
        tl.arange(0, 4) < tl.load(i_ptr + 2)  # [True, True, False, False]

    IR:
        `pred` is eq, ne, lt, le, gt or ge.
    """
    functions = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    return functions[semantics.PREDICATES.index(attrs["pred"])](a, b)


@elementwise(rules.select, traits="host", flops=0)
def select(condition, a, b):
    """Returns `a` where the condition holds, and `b` elsewhere.

    Example:
        x = tl.arange(0, 4)
        tl.where(x > 1, x, -1)  # [-1, -1, 2, 3]
    """
    return np.where(condition, a, b)


@elementwise(rules.cast, semantics.quiet, attrs="dtype", traits="host", flops=0)
def cast(attrs, dtype, x):
    """Converts to another dtype. Floats are rounded to nearest, ties to even. Where a float is out of the range of an integer, the
    result is the nearest integer of the dtype; NaN gives 0.

    A float becomes an integer by truncation. Integers wrap. A cast to int1 compares with zero. With `bitcast`, the bits stay, and both
    dtypes have one width. `fp_downcast_rounding` is "rtne" (the default) or "rtz".

    Example:
        tl.cast(tl.arange(0, 2) + 0.75, tl.int32)  # [0, 1]
        tl.cast(1.0, tl.int32, bitcast=True)  # 1065353216

    IR:
        A number beyond the largest one of an fp8 dtype becomes that number. From floats to integers the op is LLVM's fptosi.sat or
        fptoui.sat. That is one instruction of a GPU, and two or three more from fp64 or to 64 bits.
    """
    return semantics.cast(attrs, dtype, x)


@elementwise(rules.bitcast, None, attrs="dtype", flops=0)
def bitcast(attrs, dtype, x):
    """Reads the same bits as another type of equal width.

    Example:
        tl.load(a_ptr + 1).to(tl.int32, bitcast=True)  # 1065353216
    """
    return np.ascontiguousarray(x).view(dtype.numpy if not isinstance(dtype, Pointer) else np.int64).reshape(x.shape)


@elementwise(lambda types, attrs: types, None, attrs="multiple_of max_contiguous max_constancy", traits="host", flops=0)
def promise(attrs, dtype, x):
    """Returns `x`. The author of the kernel promises more about it than the compiler can prove.

    Example:
        n = tl.load(i_ptr + 8)
        if n > 4:
            n = tl.multiple_of(n, 8)
        n  # 8
    """
    return x


@op("elementwise", operands="pointer offset", attrs="saturate", cost=Cost(0))
def ptradd(types, attrs):
    """Moves a pointer by a number of elements.

    Example:
        tl.load(a_ptr + tl.arange(0, 2))  # [0.0, 1.0]

    IR:
        With `saturate`, the pointer moves by at most 2^62 bytes either way, so that no pointer wraps around to where it was.
    """
    pointer, offset = types
    need(pointer.is_pointer, f"{pointer} is not a pointer")
    need(
        offset.dtype.is_integer and offset.dtype.bits >= 8,
        f"the offset of a pointer must be an integer, not {offset.dtype}",
    )
    need((pointer.shape, pointer.layout) == (offset.shape, offset.layout), f"{pointer} against {offset}")
    return (pointer,)


@op("elementwise", operands="pointer", attrs="argument", cost=Cost(0))
def inside(types, attrs):
    """Tells whether an element lies within an array.

    IR:
        The array is the one that the launch passed as the argument number `argument`.
    """
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    return (types[0].with_dtype(int1),)
