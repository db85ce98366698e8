"""libdevice: every function over its dtypes and ranks; test_libdevice tests accuracy on many more numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import decimals
import numpy as np
from libdevice_calls import directed

from blocknb.language import libdevice
from blocknb.language import types as t
from blocknb.language.types import DType
from matrix.entry import FLOATS, WIDE, WORDS, X, anything, between, entry, finite, from_each, wild

COVERED: set[str] = set()


def device(name: str, operands: int, reference: Callable, dtypes: Any = FLOATS, **rest: Any) -> None:
    """A function of libdevice. Non-float dtypes are not tested, because CUDA's function has overloads for some."""
    COVERED.add(name)
    letters = ", ".join("abcd"[:operands])
    options = {"takes": (X,) * operands, "ulps": 2, "refuses": False} | rest
    entry(f"libdevice.{name}", f"libdevice.{name}({letters})", reference, dtypes, **options)


def each(function: Callable) -> Callable:
    """A function of Python numbers on arrays."""

    def reference(*operands: np.ndarray) -> np.ndarray:
        return np.vectorize(lambda *xs: function(*map(float, xs)), otypes=[np.float64])(*operands)

    return reference


# -- functions of one number, where NumPy has them -------------------------------------------------------------------------------

for _name, _function, _domain in (
    ("exp", np.exp, anything),
    ("exp10", lambda x: np.power(np.array(10, x.dtype), x), between(-30, 30)),
    ("expm1", np.expm1, anything),
    ("sinh", np.sinh, anything),
    ("cosh", np.cosh, anything),
    ("log10", np.log10, anything),
    ("log1p", np.log1p, anything),
    ("asinh", np.arcsinh, anything),
    ("acosh", np.arccosh, anything),
    ("atanh", np.arctanh, anything),
    ("atan", np.arctan, anything),
    ("asin", np.arcsin, between(-1, 1)),
    ("acos", np.arccos, between(-1, 1)),
    ("cbrt", np.cbrt, anything),
    ("rcbrt", lambda x: 1 / np.cbrt(x), finite),
    ("exp2", np.exp2, between(-126, 127)),  # a GPU flushes smaller results to zero
    ("log", np.log, anything),
    ("log2", np.log2, anything),
    ("tanh", np.tanh, anything),
    ("rsqrt", lambda x: 1 / np.sqrt(x), anything),
    ("sin", np.sin, between(-100, 100)),
    ("cos", np.cos, between(-100, 100)),
):
    device(_name, 1, _function, domain=_domain, ulps=4, on_gpu=64 if _name == "exp" else 0)
# A quotient of sine and cosine, each within 1.6 units. The error of the quotient is up to three of theirs, since the two lie on a circle.
# The quotient is rounded, too.
device("tan", 1, np.tan, domain=between(-100, 100), ulps=3 * 1.6 + 0.5)
for _name, _function in (
    ("trunc", np.trunc),
    ("rint", np.rint),
    ("nearbyint", np.rint),
    ("floor", np.floor),
    ("ceil", np.ceil),
    ("abs", np.abs),
    ("sqrt", np.sqrt),
    ("sqrt_rn", np.sqrt),
    ("round", lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)),
):
    device(_name, 1, _function, ulps=0.5, domain=between(-1000, 1000) if _name == "round" else anything)
for _name, _function, _domain, _ulps in (
    ("erf", decimals.erf, anything, 2),
    ("erfc", decimals.erfc, between(-5, 5), 16),
    ("tgamma", decimals.gamma, between(0.1, 20), 12),
    ("lgamma", decimals.lgamma, between(3, 50), 8),
    ("normcdf", decimals.normcdf, between(-3, 5), 16),
    ("erfcx", decimals.erfcx, between(-2, 3), 32),
):
    device(_name, 1, decimals.extended(_function), domain=_domain, ulps=_ulps, dtypes=WIDE)


def inverse_erf(y: np.ndarray) -> np.ndarray:
    """The inverse of erf on [-0.96, 0.96], to float64's precision even for small numbers. It bisects between sqrt(pi)/2 |y|, which is less,
    and twice that, which is more."""
    low = np.abs(y).astype(np.float64) * (math.sqrt(math.pi) / 2)
    high = low * 2
    for _ in range(52):
        middle = (low + high) / 2
        above = each(math.erf)(middle) > np.abs(y)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.copysign(low, y)


# The arguments of erf here are exact in float64, for any fp32.
for _name, _function, _domain in (
    ("erfinv", inverse_erf, between(-0.95, 0.95)),
    ("erfcinv", lambda x: inverse_erf(1 - x), between(0.1, 1.9)),
    ("normcdfinv", lambda x: -math.sqrt(2) * inverse_erf(1 - 2 * x), between(0.05, 0.95)),
):
    device(_name, 1, _function, domain=_domain, dtypes=(t.float32,), ulps=16)


def of_pi(x: np.ndarray, function: Callable) -> np.ndarray:
    r = np.fmod(x, 2)
    return function(np.longdouble(np.pi) * r + np.longdouble(1.2246467991473532e-16) * r)


def quarters(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Odd eighths: no zeros of the functions."""
    return [((2 * rng.integers(-80, 80, n) + 1) / 8).astype(d.numpy) for d, n in zip(dtypes, sizes, strict=True)]


device("sinpi", 1, lambda x: of_pi(x, np.sin), domain=quarters, ulps=4)
device("cospi", 1, lambda x: of_pi(x, np.cos), domain=quarters, ulps=4)


def bessel(order: int, kind: str) -> Callable:
    """Bessel's integrals by the trapezoidal rule, which converges exponentially."""
    at = (np.arange(256) + 0.5) * np.pi / 256

    def first(x: np.ndarray, n: int) -> np.ndarray:
        return np.cos(n * at - x[..., None].astype(float) * np.sin(at)).mean(-1)

    def modified(x: np.ndarray) -> np.ndarray:
        return (np.exp(x[..., None].astype(float) * np.cos(at)) * np.cos(order * at)).mean(-1)

    def second(x: np.ndarray, n: int) -> np.ndarray:
        x = np.asarray(x, float)[..., None]
        # Substituting s = sinh t maps the tail to a finite range.
        s, width = (np.arange(20000) + 0.5) * 6 / 20000, 6 / 20000
        tail = (np.exp(n * s) + (-1) ** n * np.exp(-n * s)) * np.exp(-x * np.sinh(s))
        half = (np.arange(4096) + 0.5) * np.pi / 4096
        return np.sin(x * np.sin(half) - n * half).mean(-1) - tail.sum(-1) * width / np.pi

    if kind == "i":
        return modified
    return lambda x: first(x, order) if kind == "j" else second(x, order)


NEAR: dict[str, Any] = {"ulps": 16, "least": 0.25}  # near a zero of the function only the absolute error is small
for _name, _order, _kind in (("j0", 0, "j"), ("j1", 1, "j"), ("y0", 0, "y"), ("y1", 1, "y")):
    device(_name, 1, bessel(_order, _kind), (t.float32,), domain=between(1, 12), **NEAR)
for _order in (0, 1):
    device(f"cyl_bessel_i{_order}", 1, bessel(_order, "i"), (t.float32,), domain=between(0.5, 8), ulps=8)
for _name, _kind in (("jn", "j"), ("yn", "y")):
    COVERED.add(_name)
    entry(
        f"libdevice.{_name}",
        f"libdevice.{_name}(3, a)",
        bessel(3, _kind),
        (t.float32,),
        domain=between(1, 12),
        refuses=False,
        **NEAR,
    )

# -- predicates and parts of numbers ------------------------------------------------------------------------------------------------

for _name, _function in (
    ("isnan", np.isnan),
    ("isinf", np.isinf),
    ("finitef", np.isfinite),
    ("isfinited", np.isfinite),
):
    device(_name, 1, lambda x, f=_function: f(x), gives=(t.int1,))
device("signbit", 1, lambda x: np.signbit(x).astype(int), gives=(t.int32,), domain=finite)
device("saturatef", 1, lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)), ulps=0.5, zeros=False)
device("ilogb", 1, lambda x: np.frexp(x)[1] - 1, WIDE, gives=(t.int32,), domain=between(0.001, 1000))
device("logb", 1, lambda x: np.frexp(x)[1] - 1.0, WIDE, domain=between(0.001, 1000), ulps=0.5)
for _name, _function in (("llrint", np.rint), ("llround", lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x))):
    device(_name, 1, lambda x, f=_function: f(x).astype(np.int64), gives=(t.int64,), domain=between(-1000, 1000))

# -- functions of several numbers ----------------------------------------------------------------------------------------------------


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.power(x, y)


device("pow", 2, power, domain=from_each(between(0.1, 20), between(-3, 3)), ulps=2)
for _name, _domain in (("pow", between(0.1, 20)), ("powi", between(-3, 3))):
    COVERED.add(_name)
    entry(
        f"libdevice.{_name} of integers",
        f"libdevice.{_name}(a, b)",
        lambda x, n: np.power(x, n.astype(x.dtype)),
        FLOATS,
        (X, t.int32),
        domain=from_each(_domain, between(-3, 4)),
        ulps=8,
        refuses=False,
    )
# Where the result is just above 3/8, it is pi/4 less the quotient of a difference and a sum. This quotient is up to 0.42. Its three
# roundings make 2.5 units, and two sums follow.
device("atan2", 2, np.arctan2, ulps=2.5 + 1 + 0.1)
for _name, _function in (("hypot", np.hypot), ("fmod", np.fmod), ("copysign", np.copysign)):
    device(
        _name,
        2,
        _function,
        domain=from_each(wild_one := lambda r, d, n: [wild(r, d[0], n[0])], wild_one)
        if _name == "copysign"
        else anything,
    )
device("rhypot", 2, lambda x, y: 1 / np.hypot(x, y), domain=between(0.1, 50), ulps=4)
device("norm3d", 3, lambda x, y, z: np.sqrt(x * x + y * y + z * z), domain=between(0.1, 50), ulps=4)
device("rnorm3d", 3, lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z), domain=between(0.1, 50), ulps=4)
device("norm4d", 4, lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w), domain=between(0.1, 50), ulps=4)
device("rnorm4d", 4, lambda x, y, z, w: 1 / np.sqrt(x * x + y * y + z * z + w * w), domain=between(0.1, 50), ulps=4)
device("fdim", 2, lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0)), ulps=0.5)


def remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bad = np.isnan(x) | np.isnan(y) | np.isinf(x) | (y == 0)
    return np.vectorize(lambda b, u, v: math.nan if b else math.remainder(float(u), float(v)), otypes=[np.float64])(
        bad, x, y
    )


device("remainder", 2, remainder, ulps=0.5)
device("nextafter", 2, lambda x, y: np.nextafter(x, y), WIDE, raw=True, ulps=0.5)
for _name in ("ldexp", "scalbn"):
    COVERED.add(_name)
    entry(
        f"libdevice.{_name}",
        f"libdevice.{_name}(a, b)",
        lambda x, n: np.ldexp(x, n),
        FLOATS,
        (X, t.int32),
        domain=from_each(wild_one, between(-40, 40)),
        refuses=False,
    )
device(
    "fma",
    3,
    lambda x, y, z: x * y + z,
    domain=lambda r, d, n: [r.integers(-999, 999, k).astype(e.numpy) for e, k in zip(d, n, strict=True)],
    ulps=0.5,
    zeros=False,
)

# -- rounding ------------------------------------------------------------------------------------------------------------------------


def exactly(operation: Callable, mode: str) -> Callable:
    """An operation in fractions, rounded once as the mode says."""

    def one(dtype: Any, *xs: float) -> float:
        return directed(operation(*(Fraction(float(x)) for x in xs)), dtype, mode)

    def reference(*operands: np.ndarray) -> np.ndarray:
        dtype = operands[0].dtype.type
        return np.vectorize(lambda *xs: one(dtype, *xs), otypes=[np.float64])(*operands)

    return reference


def plain_numbers(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Numbers of every magnitude except the largest."""
    return [
        (rng.uniform(1, 2, n) * np.exp2(rng.integers(-30, 30, n)) * rng.choice([-1, 1], n)).astype(d.numpy)
        for d, n in zip(dtypes, sizes, strict=True)
    ]


def root(x: np.ndarray, mode: str) -> np.ndarray:
    """The square root of positive numbers, rounded once: exact squares decide, since rounding a long double rounds twice."""
    near = np.sqrt(x.astype(np.longdouble)).astype(x.dtype)
    exact = [Fraction(float(v)) for v in x.ravel()]
    back = [Fraction(float(r)) ** 2 - v for r, v in zip(near.ravel(), exact, strict=True)]
    side = np.sign(np.array([float(b) for b in back])).reshape(x.shape)
    low = np.where(side > 0, np.nextafter(near, x.dtype.type(0)), near)
    high = np.where(side < 0, np.nextafter(near, x.dtype.type(np.inf)), near)
    ends = zip(low.ravel(), high.ravel(), exact, strict=True)
    above = [(Fraction(float(a)) + Fraction(float(b))) ** 2 < 4 * v for a, b, v in ends]
    return {"rn": np.where(np.reshape(above, x.shape), high, low), "ru": high}.get(mode, low)


for _mode in ("rn", "rz", "rd", "ru"):
    _rest: dict[str, Any] = {"dtypes": WIDE, "raw": True, "ulps": 0.5, "domain": plain_numbers, "zeros": False}
    for _name, _operation in (
        ("add", lambda x, y: x + y),
        ("sub", lambda x, y: x - y),
        ("mul", lambda x, y: x * y),
        ("div", lambda x, y: x / y),
    ):
        device(f"{_name}_{_mode}", 2, exactly(_operation, _mode), **_rest)
    device(f"rcp_{_mode}", 1, exactly(lambda x: 1 / x, _mode), **_rest)
    device(f"fma_{_mode}", 3, exactly(lambda x, y, z: x * y + z, _mode), **_rest)
    device(f"sqrt_{_mode}", 1, lambda x, m=_mode: root(x, m), **(_rest | {"domain": between(0, 1e6)}))
device("rsqrt_rn", 1, lambda x: 1 / np.sqrt(x), (t.float32,), ulps=0.5)

# -- conversions ----------------------------------------------------------------------------------------------------------------------

WHOLE = {"int": t.int32, "uint": t.uint32, "ll": t.int64, "ull": t.uint64}
ROUND = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


def clamping(dtype: DType, mode: str) -> Callable:
    info = np.iinfo(dtype.numpy)
    signed = np.dtype(f"i{dtype.bytes}")

    def one(v: float) -> int:
        if v != v:
            return 0
        return int(
            info.min if v == -math.inf else info.max if v == math.inf else min(max(ROUND[mode](v), info.min), info.max)
        )

    return lambda x: (
        np.array([one(float(v)) for v in x.ravel()], object).astype(dtype.numpy).view(signed).reshape(x.shape)
    )


for _mode in ROUND:
    device(
        f"double2float_{_mode}",
        1,
        lambda x, m=_mode: np.vectorize(lambda v: directed(Fraction(float(v)), np.float32, m), otypes=[np.float64])(x),
        (t.float64,),
        gives=(t.float32,),
        ulps=0.5,
        domain=plain_numbers,
    )
    for _whole, _dtype in WHOLE.items():
        for _name, _float in (("float", t.float32), ("double", t.float64)):
            device(
                f"{_name}2{_whole}_{_mode}",
                1,
                clamping(_dtype, _mode),
                (_float,),
                raw=True,
                gives=(t.int32 if _dtype.bits == 32 else t.int64,),
            )
            if f"{_whole}2{_name}_{_mode}" in libdevice.FUNCTIONS:
                device(
                    f"{_whole}2{_name}_{_mode}",
                    1,
                    lambda x, m=_mode, f=_float: np.array(
                        [directed(Fraction(int(v)), f.numpy.type, m) for v in x.ravel()]
                    ).reshape(x.shape),
                    (_dtype,),
                    gives=(_float,),
                    ulps=0.5,
                )

# -- integers and bits ------------------------------------------------------------------------------------------------------------------


def bits_of(x: np.ndarray) -> list[int]:
    """The bits of integers, at least 32 of them."""
    mask = (1 << max(x.itemsize * 8, 32)) - 1
    return [int(v) & mask for v in x.ravel()]


def counted(function: Callable) -> Callable:
    return lambda x: np.array([function(v, max(x.itemsize * 8, 32)) for v in bits_of(x)]).reshape(x.shape)


device("popc", 1, counted(lambda v, w: v.bit_count()), WORDS, gives=(t.int32,))
device("clz", 1, counted(lambda v, w: w - v.bit_length()), WORDS, gives=(t.int32,))
device("ffs", 1, counted(lambda v, w: (v & -v).bit_length()), WORDS, gives=(t.int32,))


def wrapped(values: list[int], like: np.ndarray) -> np.ndarray:
    mask = (1 << like.itemsize * 8) - 1
    return np.array([v & mask for v in values], f"u{like.itemsize}").view(like.dtype).reshape(like.shape)


def by_bits(function: Callable) -> Callable:
    """A function of Python integers on arrays, wrapping."""

    def reference(*operands: np.ndarray) -> np.ndarray:
        operands = np.broadcast_arrays(*operands)
        rows = zip(*(map(int, x.ravel()) for x in operands), strict=True)
        return wrapped([function(*row) for row in rows], operands[0])

    return reference


device("brev", 1, lambda x: wrapped([int(format(v, f"0{x.itemsize * 8}b")[::-1], 2) for v in bits_of(x)], x), WORDS)


def permuted(x: int, y: int, s: int) -> int:
    source = [(v >> 8 * i) & 255 for v in (x, y) for i in range(4)]
    result = 0
    for i in range(4):
        chosen = source[(s >> 4 * i) & 7]
        if (s >> 4 * i) & 8:
            chosen = 255 if chosen & 128 else 0
        result |= chosen << 8 * i
    return result


device("byte_perm", 3, lambda x, y, s: by_bits(permuted)(x, y, s).view(np.int32), (t.int32, t.uint32), gives=(t.int32,))
device("mulhi", 2, lambda x, y: by_bits(lambda a, b, w=x.itemsize * 8: a * b >> w)(x, y), WORDS)


device("mul24", 2, lambda x, y: by_bits(lambda a, b: extended(a, x) * extended(b, x))(x, y), (t.int32, t.uint32))


def extended(v: int, like: np.ndarray) -> int:
    """The low 24 bits, sign-extended if the dtype is signed."""
    v &= 0xFFFFFF
    return v - (1 << 24) if like.dtype.kind == "i" and v >> 23 else v


device("sad", 3, by_bits(lambda a, b, c: abs(a - b) + c), (t.int32, t.uint32))
device("hadd", 2, by_bits(lambda a, b: (a + b) >> 1), WORDS)
device("rhadd", 2, by_bits(lambda a, b: (a + b + 1) >> 1), WORDS)
device("abs", 1, np.abs, (t.int32, t.int64))
for _name, _from, _to in (
    ("float_as_int", t.float32, t.int32),
    ("float_as_uint", t.float32, t.int32),
    ("int_as_float", t.int32, t.float32),
    ("uint_as_float", t.uint32, t.float32),
    ("double_as_longlong", t.float64, t.int64),
    ("longlong_as_double", t.int64, t.float64),
):
    device(
        _name,
        1,
        lambda x, d=_to: x.view(d.numpy),
        (_from,),
        raw=True,
        gives=(_to,),
        domain=lambda r, d, n: [wild(r, d[0], n[0])],
    )
device(
    "double2hiint",
    1,
    lambda x: (x.view(np.int64) >> 32).astype(np.int32),
    (t.float64,),
    raw=True,
    gives=(t.int32,),
    domain=finite,
)
device(
    "double2loint",
    1,
    lambda x: x.view(np.int64).astype(np.int32),
    (t.float64,),
    raw=True,
    gives=(t.int32,),
    domain=finite,
)
device(
    "hiloint2double",
    2,
    lambda h, low: ((h.astype(np.int64) << 32) | (low.astype(np.int64) & 0xFFFFFFFF)).view(np.float64),
    (t.int32,),
    gives=(t.float64,),
    domain=between(0, 2**30),
)
device("rcp64h", 1, lambda x: 1 / x, (t.float64,), domain=between(0.01, 1000), ulps=2.0**34)

# -- approximations: at least as accurate as the plain functions ---------------------------------------------------------------------------

for _name, _function, _domain in (
    ("fast_sinf", np.sin, between(-3, 3)),
    ("fast_cosf", np.cos, between(-1, 1)),
    ("fast_tanf", np.tan, between(-1, 1)),
    ("fast_tanhf", np.tanh, anything),
    ("fast_expf", np.exp, anything),
    ("fast_exp10f", lambda x: np.power(10.0, x), between(-30, 30)),
    ("fast_logf", np.log, anything),
    ("fast_log2f", np.log2, anything),
    ("fast_log10f", np.log10, anything),
):
    device(_name, 1, _function, (t.float32,), domain=_domain, ulps=80 if "10" in _name else 4, on_gpu=80)
device("fast_powf", 2, power, (t.float32,), domain=from_each(between(0.1, 20), between(-3, 3)), ulps=32)
device("fast_dividef", 2, lambda x, y: x / y, (t.float32,), domain=between(0.1, 1000), ulps=2)
