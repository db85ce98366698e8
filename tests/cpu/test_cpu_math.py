"""Accuracy of the functions of `codegen.scalar_math`, in units of the last place, special values included."""

import math

import numpy as np
import pytest
from libdevice_calls import units
from native import TARGETS, run_native

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile

COUNT, BLOCK = 1 << 14, 256
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0]
REFERENCES = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": np.vectorize(lambda x: math.erf(float(x)), otypes=[np.longdouble]),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
}
LIMITS = {"sqrt": 0.5, "floor": 0.0, "ceil": 0.0}  # units in the last place; 2 for the others


def elementwise(name: str, dtype, operands: int = 1) -> Func:
    """out[i] = name(x[i], ...), one block per program."""
    b = Builder("test")
    pointers = [Value(Tile(Pointer(dtype)), f"x{i}") for i in range(operands + 1)]
    base = b.value("mul", b.value("program_id", axis=0), b.const(BLOCK, t.int32))
    offsets = b.value("add", b.value("splat", base, shape=(BLOCK,)), b.value("arange", start=0, end=BLOCK))
    places = [b.value("ptradd", b.value("splat", p, shape=(BLOCK,)), offsets) for p in pointers]
    b.op("store", places[-1], b.value(name, *(b.value("load", p) for p in places[:-1])))
    hints = tuple(Hint(p.name) for p in pointers)
    return Func("elementwise", tuple(pointers), Block((), b.finish()), hints=hints)


def samples(dtype: type, rng: np.random.Generator) -> np.ndarray:
    """Numbers of every magnitude, many of them where the functions have features."""
    info, part = np.finfo(dtype), COUNT // 8
    sign = rng.choice([-1, 1], (3, part))
    x = np.concatenate([
        rng.uniform(-1, 1, part), rng.uniform(-10, 10, part), rng.uniform(-100, 100, part), rng.uniform(-750, 750, part),
        1 + rng.uniform(-0.5, 0.5, part), np.exp2(rng.uniform(-30, 4, part)) * sign[0],
        np.exp2(rng.uniform(info.minexp - 20, info.maxexp - 1, part)) * sign[1], rng.uniform(-1e6, 1e6, part),
    ]).astype(dtype)  # fmt: skip
    extremes = [info.max, -info.max, info.tiny, info.tiny / 8, -info.tiny / 8]
    x[: len(SPECIAL) + len(extremes)] = SPECIAL + extremes
    return x


def exact_sine(x: np.ndarray, shift: float) -> np.ndarray:
    """Sines in extended precision, of arguments reduced with enough bits of pi."""
    from fractions import Fraction

    # Machin's formula gives pi as an integer over 2^1300, which is enough for the largest double.
    bits = 1300

    def arctan_inverse(n: int) -> int:
        total, term, k = 0, (1 << bits) // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    two_pi = 8 * (4 * arctan_inverse(5) - arctan_inverse(239))
    result = np.empty(len(x), np.longdouble)
    for i, value in enumerate(x):
        exact = Fraction(float(value)) * (1 << bits)
        rest = float(Fraction((exact.numerator // exact.denominator) % two_pi, 1 << bits))
        tail = float(Fraction((exact.numerator // exact.denominator) % two_pi, 1 << bits) - Fraction(rest))
        result[i] = np.sin(np.longdouble(rest) + np.longdouble(tail) + shift)
    return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [t.float32, t.float64], ids=repr)
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_accurate_to_two_units_in_the_last_place(name, dtype, target):
    x = samples(dtype.numpy.type, np.random.default_rng(3))
    out = np.empty_like(x)
    run_native(elementwise(name, dtype), [x, out], COUNT // BLOCK, target)
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](x.astype(np.longdouble))
    if name in ("sin", "cos"):
        large = np.isfinite(x) & (np.abs(x) > 1e4)
        chosen = np.flatnonzero(large)[:600]
        half_pi = np.longdouble(np.pi) / 2 + np.longdouble(6.123233995736766e-17)
        expected[chosen] = exact_sine(x[chosen], half_pi if name == "cos" else np.longdouble(0))
        skip = np.setdiff1d(np.flatnonzero(large), chosen)
        out[skip] = expected[skip] = 0
    limit = LIMITS.get(name, 2.0)
    if name in ("sin", "cos") and dtype is t.float64:
        limit = 2.5
    assert units(out, expected) <= limit


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [t.float32, t.float64], ids=repr)
def test_remainders_are_exact_for_all_magnitudes(dtype, target):
    rng = np.random.default_rng(4)
    x, y = samples(dtype.numpy.type, rng), rng.permutation(samples(dtype.numpy.type, rng))
    out = np.empty_like(x)
    run_native(elementwise("rem", dtype, 2), [x, y, out], COUNT // BLOCK, target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, np.fmod(x, y))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["min", "max"])
def test_extrema_return_the_number_if_one_operand_is_nan(name, target):
    x = np.resize(np.array([1.0, np.nan, -np.inf, np.nan, 0.5], np.float32), COUNT)
    y = np.resize(np.array([np.nan, 2.0, np.nan, np.nan, -0.5], np.float32), COUNT)
    out = np.empty_like(x)
    run_native(elementwise(name, t.float32, 2), [x, y, out], COUNT // BLOCK, target)
    np.testing.assert_array_equal(out, (np.fmin if name == "min" else np.fmax)(x, y))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [t.float32, t.float64], ids=repr)
def test_fma_rounds_once_where_the_product_would_cancel(dtype, target):
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(1, 2, COUNT).astype(dtype.numpy) for _ in range(2))
    c = -(a * b)  # what is left is the rounding error of the product
    out = np.empty_like(a)
    run_native(elementwise("fma", dtype, 3), [a, b, c, out], COUNT // BLOCK, target)
    from fractions import Fraction

    error = [
        float(Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))) for p, q, r in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(out, np.array(error, dtype.numpy))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", [t.float64, t.float32], ids=repr)
@pytest.mark.parametrize("target_dtype", [t.float16, t.bfloat16], ids=repr)
def test_conversions_to_sixteen_bits_round_once_to_nearest_even(source, target_dtype, target):
    rng = np.random.default_rng(6)
    x = samples(source.numpy.type, rng)
    # Halfway cases and their neighbours.
    middle = np.ldexp(rng.integers(0, 4096, 2000) * 2 + 1, rng.integers(-30, 4, 2000)).astype(source.numpy)
    x[100:2100] = middle
    x[2100:4100] = np.nextafter(middle, source.numpy.type(0))
    b = Builder("test")
    pointers = [Value(Tile(Pointer(d)), n) for d, n in ((source, "x"), (target_dtype, "y"))]
    base = b.value("mul", b.value("program_id", axis=0), b.const(BLOCK, t.int32))
    offsets = b.value("add", b.value("splat", base, shape=(BLOCK,)), b.value("arange", start=0, end=BLOCK))
    places = [b.value("ptradd", b.value("splat", p, shape=(BLOCK,)), offsets) for p in pointers]
    b.op("store", places[1], b.value("cast", b.value("load", places[0]), dtype=target_dtype))
    func = Func("narrow", tuple(pointers), Block((), b.finish()), hints=(Hint("x"), Hint("y")))
    out = np.empty(COUNT, target_dtype.numpy)
    run_native(func, [x, out], COUNT // BLOCK, target)
    from blocknb.language.ops import OPS

    expected = OPS["cast"].numpy({"dtype": target_dtype}, target_dtype, x)
    np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))
