"""Operators, comparisons, functions of elements: on scalars, and on tiles of every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import decimals
import numpy as np

import blocknb
from blocknb.language import types as t
from blocknb.language.types import DType
from matrix.entry import (
    ALL,
    ANY,
    BOOL,
    FLOATS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    WORDS,
    X,
    anything,
    at_least_fp32,
    between,
    entry,
    finite,
    float_of,
    from_each,
    int_if_bool,
)

# -- operators -----------------------------------------------------------------------------------------------------------------


def modulo_two(arithmetic: Callable, of_bools: Callable) -> Callable:
    return lambda a, b: of_bools(a, b) if a.dtype == bool else arithmetic(a, b)


for _symbol, _name, _numpy, _bools in (
    ("+", "add", np.add, np.logical_xor),
    ("-", "sub", np.subtract, np.logical_xor),
    ("*", "mul", np.multiply, np.logical_and),
):
    entry(f"operator {_symbol}", f"a {_symbol} b", modulo_two(_numpy, _bools), ALL, (X, X))
    entry(_name, f"tl.{_name}(a, b)", modulo_two(_numpy, _bools), ALL, (X, X))


def single(x: np.ndarray) -> np.ndarray:
    """Integers as fp32, to which float functions convert them."""
    return x.astype(np.float32).astype(np.float64) if x.dtype.kind in "biu" else x


def wider(x: DType) -> DType:
    """The result dtype of a division or remainder."""
    return t.int32 if x == t.int1 else at_least_fp32(x) if x.is_float else x


def divisors(rng: np.random.Generator, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Excludes integer division by zero, and of the least integer by -1: both are undefined."""
    a, b = anything(rng, dtypes, sizes)
    if not dtypes[0].is_float:
        b = np.where(b == 0, np.ones_like(b), b)
    if dtypes[0].kind == "int" and rng.random() < 0.5:
        a = np.where(a == np.iinfo(a.dtype).min, np.zeros_like(a), a)
    elif dtypes[0].kind == "int":
        b = np.where(b == -1, np.full_like(b, -2), b)
    return [a, b]


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C's division; for floats the quotient rounded down. That of fp64 is float64's own: a longdouble's would be rounded twice."""
    if a.dtype.kind == "f":
        wide = a.dtype == np.longdouble
        return np.floor(a.astype(np.float64) / b.astype(np.float64) if wide else (a / b).astype(np.float32))
    if a.dtype == bool:
        return a.astype(np.int32)
    exact = [
        abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a.ravel(), b.ravel(), strict=True)
    ]
    return np.array(exact, a.dtype).reshape(a.shape)


def fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.zeros(a.shape, np.int32) if a.dtype == bool else np.fmod(a, b)


def on_all(function: Callable) -> Callable:
    """A reference that broadcasts its operands first."""
    return lambda *operands: function(*np.broadcast_arrays(*operands))


entry(
    "operator /",
    "a / b",
    lambda a, b: single(a) / single(b),
    ALL,
    (X, X),
    (at_least_fp32,),
    domain=divisors,
    ulps=2,
    refuses=False,
)
entry("operator //", "a // b", on_all(truncated), ALL, (X, X), (wider,), domain=divisors)
entry("operator %", "a % b", on_all(fmod), ALL, (X, X), (wider,), domain=divisors, refuses=False)
for _symbol, _numpy in (("&", np.bitwise_and), ("|", np.bitwise_or), ("^", np.bitwise_xor)):
    entry(f"operator {_symbol}", f"a {_symbol} b", _numpy, (*BOOL, *INTEGERS), (X, X))


def shifts(rng: np.random.Generator, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    a, b = anything(rng, dtypes, sizes)
    return [a, b if dtypes[1].kind == "bool" else (np.abs(b.astype(object)) % dtypes[1].bits).astype(b.dtype)]


def as_int(function: Callable) -> Callable:
    return lambda *operands: function(*(x.astype(np.int32) if x.dtype == bool else x for x in operands))


entry("operator <<", "a << b", as_int(np.left_shift), (*BOOL, *INTEGERS), (X, X), (int_if_bool,), domain=shifts)
entry("operator >>", "a >> b", as_int(np.right_shift), (*BOOL, *INTEGERS), (X, X), (int_if_bool,), domain=shifts)
entry("operator unary -", "-a", as_int(np.negative), ANY, zeros=False, gives=(int_if_bool,))
entry("operator unary +", "+a", lambda a: a, ANY)
entry("operator ~", "~a", np.invert, (*BOOL, *INTEGERS))
entry("operator not", "not a", lambda a: a == 0, ANY, gives=(t.int1,))
for _symbol, _numpy in (
    ("==", np.equal),
    ("!=", np.not_equal),
    ("<", np.less),
    ("<=", np.less_equal),
    (">", np.greater),
    (">=", np.greater_equal),
):
    entry(f"operator {_symbol}", f"a {_symbol} b", _numpy, ANY, (X, X), (t.int1,))
entry("operator and", "(a > b) and (a != 0)", lambda a, b: (a > b) & (a != 0), ANY, (X, X), (t.int1,))
entry("operator or", "(a > b) or (a != 0)", lambda a, b: (a > b) | (a != 0), ANY, (X, X), (t.int1,))
entry("logical_and", "a.logical_and(b)", np.logical_and, ANY, (X, X), (t.int1,))
entry("logical_or", "a.logical_or(b)", np.logical_or, ANY, (X, X), (t.int1,))
entry("operator if else", "tl.where(a < b, b, a) if True else 0", lambda a, b: np.where(a < b, b, a), ANY, (X, X))

# Compile-time numbers are weak; one that the dtype of the tile cannot represent is an error.
entry("operator + number", "a + 3", lambda a: a + a.dtype.type(3), NUMBERS, refuses=False)
entry("operator number -", "100 - a", lambda a: a.dtype.type(100) - a, NUMBERS, refuses=False)
entry("operator * number", "a * 0.5", lambda a: single(a) * 0.5, ALL, gives=(float_of,))
entry("operator < number", "a < 1.5", lambda a: single(a) < 1.5, ANY, gives=(t.int1,))
entry("operator // number", "a // 7", lambda a: truncated(a, np.full_like(a, 7)), INTEGERS, refuses=False)
entry("operator % number", "a % 8", lambda a: np.fmod(a, a.dtype.type(8)), INTEGERS, refuses=False)
entry(
    "operator >> number",
    "(a >> 3) | (a << 2)",
    lambda a: (a >> a.dtype.type(3)) | (a << a.dtype.type(2)),
    INTEGERS,
    refuses=False,
)

# -- functions of one float -------------------------------------------------------------------------------------------------------


def of_float(name: str, reference: Callable, ulps: float = 2, **rest: Any) -> None:
    """A function that computes in fp32 or fp64 for every dtype; as a function and as a method."""
    options = {"dtypes": ALL, "gives": (float_of,), "ulps": ulps} | rest
    entry(name, f"tl.{name}(a)", lambda a: reference(single(a)), **options)
    entry(f"tensor.{name}", f"a.{name}()", lambda a: reference(single(a)), **options)


def normal_powers(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Numbers of every magnitude except those whose powers of two are subnormal: a GPU's instruction flushes those to zero."""
    (x,) = anything(rng, dtypes, sizes)
    return [np.where((x > -150) & (x < -126), np.zeros_like(x), x)]


of_float("exp", np.exp, on_gpu=64)  # 2^(x log2 e), whose exponent is an fp32 of up to 128
of_float("exp2", np.exp2, domain=normal_powers)
of_float("log", np.log)
of_float("log2", np.log2)
of_float("sqrt", np.sqrt, 0.5)
of_float("sqrt_rn", np.sqrt, 0.5)
of_float("rsqrt", lambda x: 1 / np.sqrt(x))
of_float("sin", np.sin, 2.5, domain=between(-1000, 1000))
of_float("cos", np.cos, 2.5, domain=between(-1000, 1000))
of_float("tanh", np.tanh)
of_float("erf", decimals.extended(decimals.erf))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# An exponential within 1 unit, a sum and a quotient: the reciprocal of a number with a mantissa near 1 has units half as large.
of_float("sigmoid", sigmoid, 2 * (1 + 0.5) + 0.5, dtypes=ANY, on_gpu=64, domain=between(-80, 80))
for _name, _numpy in (("floor", np.floor), ("ceil", np.ceil)):
    for _label, _code in ((_name, f"tl.{_name}(a)"), (f"tensor.{_name}", f"a.{_name}()")):
        entry(_label, _code, lambda a, f=_numpy: f(a) if a.dtype.kind == "f" else a, ALL)
for _label, _code in (("abs", "tl.abs(a)"), ("tensor.abs", "a.abs()"), ("builtin abs", "abs(a)")):
    entry(_label, _code, lambda a: np.abs(a) if a.dtype.kind != "b" else a, ANY)

# -- functions of several operands --------------------------------------------------------------------------------------------------


def less_nan(numpy: Callable, bools: Callable) -> Callable:
    return lambda a, b: bools(a, b) if a.dtype == bool else numpy(a, b)


def own(x: DType) -> DType:
    return x


for _name, _drop, _keep, _bools in (
    ("maximum", np.fmax, np.maximum, np.logical_or),
    ("minimum", np.fmin, np.minimum, np.logical_and),
):
    _rest: dict[str, Any] = {"dtypes": ANY, "takes": (X, X), "gives": (own,), "zeros": False}
    entry(_name, f"tl.{_name}(a, b)", less_nan(_drop, _bools), **_rest)
    entry(
        f"{_name} propagate_nan",
        f"tl.{_name}(a, b, propagate_nan=tl.PropagateNan.ALL)",
        less_nan(_keep, _bools),
        **_rest,
    )
    entry(f"builtin {_name[:3]}", f"{_name[:3]}(a, b)", less_nan(_drop, _bools), **_rest)


def clamped(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    if x.dtype == bool:
        return (x | low) & high
    return np.fmin(np.fmax(x, low), high)


def ordered(rng: np.random.Generator, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    x, a, b = finite(rng, dtypes, sizes)
    if dtypes[0].is_float:
        x[:3] = np.nan, np.inf, -np.inf
    return [x, np.minimum(a, b), np.maximum(a, b)]


entry("clamp", "tl.clamp(a, b, c)", clamped, ANY, (X, X, X), (own,), domain=ordered, zeros=False)
entry(
    "clamp propagate_nan",
    "tl.clamp(a, b, c, tl.PropagateNan.ALL)",
    lambda x, a, b: np.minimum(np.maximum(x, a), b),
    FLOATS,
    (X, X, X),
    (own,),
    domain=ordered,
    zeros=False,
    refuses=False,
)


def moderate(rng: np.random.Generator, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Numbers whose sums in extended precision are not rounded twice, including special values."""
    found = [rng.integers(-(2**10), 2**10, n).astype(d.numpy) for d, n in zip(dtypes, sizes, strict=True)]
    for x, value in zip(found, (np.nan, np.inf, -0.0), strict=False):
        x[rng.integers(0, len(x), 4)] = value
    return found


entry("fma", "tl.fma(a, b, c)", lambda a, b, c: a * b + c, FLOATS, (X, X, X), domain=moderate, zeros=False)
entry(
    "fdiv", "tl.fdiv(a, b)", lambda a, b: single(a) / single(b), FLOATS, (X, X), (at_least_fp32,), ulps=2, refuses=False
)
entry(
    "fdiv ieee_rounding",
    "tl.fdiv(a, b, ieee_rounding=True)",
    lambda a, b: single(a) / single(b),
    FLOATS,
    (X, X),
    (at_least_fp32,),
    refuses=False,
)
entry("div_rn", "tl.div_rn(a, b)", lambda a, b: single(a) / single(b), FLOATS, (X, X), (at_least_fp32,))


def umulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.itemsize * 8
    high = (a.view(f"u{a.itemsize}").astype(object) * b.view(f"u{a.itemsize}").astype(object)) >> bits
    return high.astype(f"u{a.itemsize}").view(a.dtype)


entry("umulhi", "tl.umulhi(a, b)", on_all(lambda a, b: umulhi(a.copy(), b.copy())), WORDS, (X, X))
entry("where", "tl.where(c, a, b)", lambda a, b, c: np.where(c, a, b), ANY, (X, X, t.int1))
entry(
    "where number",
    "tl.where(a > b, a, 1)",
    lambda a, b: np.where(a > b, a, a.dtype.type(1)),
    NUMBERS,
    (X, X),
    refuses=False,
)


def positive(rng: np.random.Generator, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    a, b = between(1, 100)(rng, dtypes, sizes)
    return [a, np.minimum(b, 20)]


for _label, _code in (("cdiv", "tl.cdiv(a, b)"), ("tensor.cdiv", "a.cdiv(b)"), ("blocknb.cdiv", "blocknb.cdiv(a, b)")):
    entry(_label, _code, lambda a, b: -(-a.astype(int) // b), INTEGERS, (X, X), domain=positive)
entry(
    "swizzle2d",
    "tl.swizzle2d(a, b, 8, 16, 4)",
    on_all(lambda a, b: swizzled(a, b, 8, 16, 4)),
    (t.int32, t.int64),
    (X, X),
    (X, X),
    domain=from_each(between(0, 7), between(0, 15)),
    refuses=False,
)


def swizzled(i: np.ndarray, j: np.ndarray, rows: int, columns: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups of `size` rows, walked column by column."""
    order = []
    for first in range(0, rows, size):
        order += [(r, c) for c in range(columns) for r in range(first, min(first + size, rows))]
    table = np.array(order)[i * columns + j]
    return table[..., 0], table[..., 1]


# -- custom functions -----------------------------------------------------------------------------------------------------------------


def steep(v: Any) -> Any:  # a kernel function of scalars, with a branch
    if v > 2:
        return v
    return v * 2


def steep_of(a: np.ndarray) -> np.ndarray:
    return np.where(a > 2, a, (a * a.dtype.type(2)).astype(a.dtype))


def pair_up(v: Any, w: Any) -> Any:
    return w, v


entry(
    "map_elementwise",
    "tl.map_elementwise(steep, a)",
    lambda a: steep_of(a),
    (*SIGNED, *FLOATS),
    domain=between(-50, 50),
    names={"steep": blocknb.kernel(steep)},
    refuses=False,
)
entry(
    "map_elementwise two",
    "tl.map_elementwise(pair_up, a, b)",
    lambda a, b: tuple(np.broadcast_arrays(b, a)),
    ANY,
    (X, X),
    (X, X),
    names={"pair_up": blocknb.kernel(pair_up)},
)

#: One instruction for a dtype, applied to `pack` elements: adds, of floats in their own precision.
PTX = {
    t.int32: ("add.s32 $0, $1, $2;", "=r,r,r", 1),
    t.uint32: ("add.u32 $0, $1, $2;", "=r,r,r", 1),
    t.int64: ("add.s64 $0, $1, $2;", "=l,l,l", 1),
    t.uint64: ("add.u64 $0, $1, $2;", "=l,l,l", 1),
    t.float32: ("add.rn.f32 $0, $1, $2;", "=f,f,f", 1),
    t.float64: ("add.rn.f64 $0, $1, $2;", "=d,d,d", 1),
    t.float16: ("add.rn.f16x2 $0, $1, $2;", "=r,r,r", 2),
}
for _dtype, (_text, _constraints, _pack) in PTX.items():
    entry(
        f"inline_asm_elementwise {_dtype}",
        f"tl.inline_asm_elementwise({_text!r}, {_constraints!r}, [a, b], dtype={{X}}, is_pure=True, pack={_pack})",
        np.add,
        (_dtype,),
        (X, X),
        runs=("gpu",),
        refuses=False,
    )
