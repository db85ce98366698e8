"""libdevice: accuracy in units of the last place, special values, exact rounding, on the interpreter and in machine code."""

import math
from fractions import Fraction

import numpy as np
import pytest
from frontend_helpers import kernel
from libdevice_calls import NAMES, call, directed, numbers, units

import blocknb.language as tl
from blocknb.language import libdevice
from blocknb.language.extra import libdevice as extra

ROOMS = ("interpreter", "cpu")
FLOATS = (np.float32, np.float64)
INF, NAN = math.inf, math.nan


# -- names -----------------------------------------------------------------------------------------------------------------


def test_every_libdevice_function_exists_under_every_import_path():
    for name in NAMES:
        assert libdevice.FUNCTIONS[name].__doc__, name
        for place in (libdevice, extra, tl.libdevice, tl.extra.libdevice, tl.extra.cuda.libdevice):
            assert getattr(place, name) is libdevice.FUNCTIONS[name]
        assert hasattr(tl.math, name)


def test_functions_can_be_imported_by_name():
    from blocknb.language.extra.cuda.libdevice import rsqrt
    from blocknb.language.extra.libdevice import isnan

    @kernel
    def k(x, out):
        v = tl.load(x + tl.arange(0, 4))
        tl.store(out + tl.arange(0, 4), tl.where(isnan(v), 0.0, rsqrt(v)))

    from frontend_helpers import evaluate

    found = evaluate(k, np.float32, (4,), x=np.float32([4, NAN, 0.25, 1]))
    np.testing.assert_array_equal(found, [0.5, 0, 2, 1])


@pytest.mark.parametrize("name", ["log1p", "atan", "rint", "tgamma"])
def test_narrow_floats_are_computed_in_fp32_and_rounded_once(name):
    x = np.linspace(0.1, 4, 64).astype(np.float16)
    wide = call(name, [x.astype(np.float32)], "interpreter").astype(np.float16)
    np.testing.assert_array_equal(call(name, [x], "interpreter"), wide)


# -- accuracy --------------------------------------------------------------------------------------------------------------

EXTENDED = {
    "exp": np.exp, "exp10": lambda x: np.longdouble(10) ** x, "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh,
    "log10": np.log10, "log1p": np.log1p, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos, "cbrt": np.cbrt, "trunc": np.trunc, "rint": np.rint,
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EXTENDED)
def test_functions_are_within_two_units_in_the_last_place(name, dtype, room):
    x = numbers(dtype, 2048)
    with np.errstate(all="ignore"):
        assert units(call(name, [x], room), EXTENDED[name](x.astype(np.longdouble))) <= 2


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_tangents_and_multiples_of_pi_are_accurate(dtype, room):
    x = np.random.default_rng(1).uniform(-30, 30, 1024).astype(dtype)
    wide = x.astype(np.longdouble)
    pi = np.longdouble(np.pi) + np.longdouble(1.2246467991473532e-16)
    f = wide - np.rint(wide)
    sign = np.where(np.rint(wide) % 2 == 0, 1, -1)
    assert units(call("tan", [x], room), np.tan(wide)) <= 3
    assert units(call("sinpi", [x], room), sign * np.sin(pi * f)) <= 2
    half = np.abs(f)  # cos(pi f) is sin(pi (1/2 - |f|)), which is exact near the zero
    assert units(call("cospi", [x], room), sign * np.sin(pi * (np.longdouble(0.5) - half))) <= 2
    whole = np.array([0.0, -0.0, 3, -3, 2.0**30, 0.5, 1.5, -0.5], dtype)
    np.testing.assert_array_equal(call("sinpi", [whole], room), [0, 0, 0, 0, 0, 1, -1, -1])
    np.testing.assert_array_equal(call("cospi", [whole], room), [1, 1, -1, -1, 1, 0, 0, 0])


def normal_tail(v):
    """The probability of more than v: erfc(v / sqrt(2)) / 2, corrected for the rounding error of the quotient."""
    root = Fraction("1.41421356237309504880168872420969807856967187537694")
    h = v / float(root)
    rest = float(Fraction(v) / root - Fraction(h))
    return (math.erfc(h) - 2 / math.sqrt(math.pi) * math.exp(-h * h) * rest) / 2


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 5e-7), (np.float64, 3e-15)])
def test_error_and_gamma_functions_agree_with_pythons(dtype, tolerance, room):
    x = np.random.default_rng(2).uniform(-4, 9, 512).astype(dtype)
    for name, reference in (("erfc", math.erfc), ("tgamma", math.gamma)):
        expected = [reference(float(v)) for v in x]
        np.testing.assert_allclose(call(name, [x], room).astype(float), expected, rtol=tolerance)
    np.testing.assert_allclose(
        call("normcdf", [-x], room).astype(float), [normal_tail(v) for v in x.tolist()], rtol=tolerance
    )
    expected = [math.lgamma(float(v)) for v in x]
    np.testing.assert_allclose(call("lgamma", [x], room).astype(float), expected, rtol=tolerance, atol=tolerance)
    scaled = [math.exp(v * v) * math.erfc(v) for v in x.astype(float)]
    np.testing.assert_allclose(call("erfcx", [x], room).astype(float), scaled, rtol=tolerance * 3 + 3e-14)
    ends = np.array([INF, -INF, NAN, 0.0, 171.5, -3.0, 200.0, -200.5], dtype)
    gamma = np.array([INF, NAN, NAN, INF, math.gamma(171.5), NAN, INF, 0.0])
    np.testing.assert_allclose(call("tgamma", [ends], room), gamma.astype(dtype), rtol=1e-13)
    np.testing.assert_array_equal(call("lgamma", [ends[:4]], room), np.array([INF, INF, NAN, INF], dtype))
    np.testing.assert_array_equal(call("erfc", [ends[:4]], room), np.array([0, 2, NAN, 1], dtype))


@pytest.mark.parametrize("room", ROOMS)
def test_inverse_functions_undo_the_others(room):
    y = np.concatenate([np.random.default_rng(3).uniform(-5, 5, 504), [0, 1e-9, -1e-9, 4, -4, 0.5, 3, 25]])
    small = np.where(np.abs(y) > 2, 1e-3 * y, y)
    np.testing.assert_allclose(call("erfinv", [call("erf", [small], room)], room), small, rtol=1e-13)
    positive = np.abs(y)
    np.testing.assert_allclose(
        call("erfcinv", [call("erfc", [positive], room)], room), positive, rtol=1e-14, atol=3e-16
    )
    np.testing.assert_allclose(
        call("normcdfinv", [call("normcdf", [-positive], room)], room), -positive, rtol=1e-13, atol=3e-16
    )
    ends = np.array([1, -1, 1.5, NAN, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(call("erfinv", [ends], room), [INF, -INF, NAN, NAN, 0, 0, 0, 0])


def integral(order, x):
    t = (np.arange(4096) + 0.5) * np.pi / 4096
    return np.cos(order * t - x[:, None] * np.sin(t)).mean(1)


@pytest.mark.parametrize("room", ROOMS)
def test_bessel_functions_agree_with_their_integrals(room):
    x = np.concatenate([np.random.default_rng(4).uniform(-60, 60, 250), [0, 8, -8, 1e-8, 0.5, 20]])
    for order, name in ((0, "j0"), (1, "j1")):
        np.testing.assert_allclose(call(name, [x], room), integral(order, x), atol=3e-15)
    for order in (0, 1, 2, 7, 30, -3):
        np.testing.assert_allclose(call("jn", [np.int32(order), x], room), integral(order, x), atol=1e-13)
    # The Wronskian J1 Y0 - J0 Y1 = 2 / (pi x) ties the functions of the second kind to those of the first.
    p = np.abs(x) + 0.01
    j, y = ([call(f"{kind}{n}", [p], room) for n in (0, 1)] for kind in "jy")
    np.testing.assert_allclose(j[1] * y[0] - j[0] * y[1], 2 / (np.pi * p), rtol=1e-12)
    third = [call("yn", [np.int32(n), p], room) for n in (1, 2, 3)]
    np.testing.assert_allclose(third[0] + third[2], 4 / p * third[1], rtol=1e-10)
    t = (np.arange(4096) + 0.5) * np.pi / 4096
    for order in (0, 1):
        expected = (np.exp(x[:, None] * np.cos(t)) * np.cos(order * t)).mean(1)
        np.testing.assert_allclose(call(f"cyl_bessel_i{order}", [x], room), expected, rtol=1e-13, atol=1e-15)


# -- two operands ------------------------------------------------------------------------------------------------------------

AWKWARD = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, 2.0, 3.0, -2.0, -3.0, 1e30, -1e-30, 1e-42, 65536.0]


def grid(dtype):
    x, y = np.meshgrid(np.array(AWKWARD, dtype), np.array(AWKWARD, dtype))
    return x.reshape(-1).copy(), y.reshape(-1).copy()


def same(found, expected):
    """Equal, zeros with their signs, NaN meeting NaN."""
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(expected)]), np.signbit(expected[~np.isnan(expected)]))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("name", "reference"), [("pow", np.power), ("atan2", np.arctan2), ("hypot", np.hypot), ("fmod", np.fmod)]
)
def test_special_values_of_two_operands_match_c(name, reference, dtype, room):
    x, y = grid(dtype)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble), y.astype(np.longdouble))
    found = call(name, [x, y], room)
    assert units(found, exact) <= 2
    zero = exact.astype(dtype) == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(exact[zero]))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_powers_are_accurate_up_to_the_ends_of_the_range(dtype, room):
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(-20, 20, 1024)).astype(dtype)
    y = rng.uniform(-50 if dtype == np.float64 else -6, 50 if dtype == np.float64 else 6, 1024).astype(dtype)
    assert units(call("pow", [x, y], room), np.power(x.astype(np.longdouble), y.astype(np.longdouble))) <= 2
    n = rng.integers(-9, 10, 1024).astype(np.int32)
    assert units(call("pow", [-x, n], room), np.power(-x.astype(np.longdouble), n)) <= 2


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_bit_functions_are_exact(dtype, room):
    x, y = grid(dtype)
    with np.errstate(all="ignore"):
        same(call("copysign", [x, y], room), np.copysign(x, y))
        same(call("nextafter", [x, y], room), np.nextafter(x, y))
        difference = np.where(x > y, x - y, np.where(np.isnan(x) | np.isnan(y), NAN, 0)).astype(dtype)
        np.testing.assert_array_equal(call("fdim", [x, y], room), difference)
    undefined = np.isnan(x) | np.isnan(y) | np.isinf(x) | (y == 0)
    remainders = [
        NAN if bad else math.remainder(a, b) for bad, a, b in zip(undefined, x.tolist(), y.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(call("remainder", [x, y], room), np.array(remainders, dtype))
    n = np.random.default_rng(6).integers(-2200, 2200, len(x)).astype(np.int32) // np.int32(
        np.where(dtype == np.float32, 8, 1)
    )
    with np.errstate(all="ignore"):
        same(call("ldexp", [x, n], room), np.ldexp(x, n))
    size = np.abs(x[(x != 0) & np.isfinite(x)])[:128]
    np.testing.assert_array_equal(call("ilogb", [size], room, np.int32), np.frexp(size)[1] - 1)
    halves = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, -0.0], dtype)
    same(call("round", [halves], room), np.array([1, -1, 2, 3, -3, 0, 8388609, -0.0], dtype))
    np.testing.assert_array_equal(call("isnan", [x], room, np.int32), np.isnan(x))
    np.testing.assert_array_equal(call("isinf", [x], room, np.int32), np.isinf(x))
    np.testing.assert_array_equal(call("signbit", [x], room, np.int32), np.signbit(x))


# -- rounding ----------------------------------------------------------------------------------------------------------------

EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_directed_rounding_is_exact_for_numbers_of_every_magnitude(mode, dtype, room):
    x, y, z = (v[np.isfinite(v) & (v != 0)][:512] for v in (numbers(dtype, 1024, seed) for seed in (1, 2, 3)))
    y[:60], z[60:200] = -x[:60], np.clip(-x[60:200].astype(np.longdouble) * y[60:200], -1e30, 1e30).astype(dtype)
    fractions = [[Fraction(float(v)) for v in operand] for operand in (x, y, z)]
    for name, exact in EXACT.items():
        expected = [directed(exact(a, b), dtype, mode) for a, b in zip(*fractions[:2], strict=True)]
        np.testing.assert_array_equal(call(f"{name}_{mode}", [x, y], room), np.array(expected, dtype), err_msg=name)
    expected = [directed(a * b + c, dtype, mode) for a, b, c in zip(*fractions, strict=True)]
    np.testing.assert_array_equal(call(f"fma_{mode}", [x, y, z], room), np.array(expected, dtype))
    expected = [directed(1 / a, dtype, mode) for a in fractions[0]]
    np.testing.assert_array_equal(call(f"rcp_{mode}", [x], room), np.array(expected, dtype))
    a = np.abs(x)
    root = call(f"sqrt_{mode}", [a], room)
    below, above = (np.nextafter(root, dtype(end)) for end in (0, np.inf))
    for r, low, high, v in zip(root, below, above, fractions[0], strict=True):
        r, low, high, v = (Fraction(float(u)) if not isinstance(u, Fraction) else abs(u) for u in (r, low, high, v))
        bounds = {"rz": (r, high), "rd": (r, high), "ru": (low, r), "rn": ((low + r) / 2, (r + high) / 2)}[mode]
        assert bounds[0] ** 2 <= v <= bounds[1] ** 2


INTEGERS = {
    "int": (np.int32, 32, True),
    "uint": (np.uint32, 32, False),
    "ll": (np.int64, 64, True),
    "ull": (np.uint64, 64, False),
}
ROUND = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("integer", INTEGERS)
@pytest.mark.parametrize("mode", ROUND)
def test_conversions_follow_their_rounding_mode_and_clamp(mode, integer, room):
    kind, bits, signed = INTEGERS[integer]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    rng = np.random.default_rng(7)
    for name, dtype in (("float", np.float32), ("double", np.float64)):
        x = np.concatenate(
            [
                rng.uniform(-(2.0**33), 2.0**33, 100),
                rng.uniform(-9, 9, 100),
                np.arange(-20, 21) / 2,
                2.0 ** np.arange(-5, 66),
            ]
        )
        x = np.append(x, [INF, -INF, NAN, *-(2.0 ** np.arange(30, 66))]).astype(dtype)
        expected = [
            0 if v != v else low if v == -INF else high if v == INF else min(max(ROUND[mode](v), low), high)
            for v in x.tolist()
        ]
        found = call(f"{name}2{integer}_{mode}", [x], room, np.int32 if bits == 32 else np.int64)
        assert [int(v) % 2**bits for v in found] == [v % 2**bits for v in expected]
        if f"{integer}2{name}_{mode}" in NAMES:
            n = rng.integers(low, high, 256, kind, endpoint=True)
            n[:100] >>= kind(bits // 3)
            n[:3] = [low, high, high - 1]
            back = [directed(Fraction(int(v)), dtype, mode) for v in n]
            np.testing.assert_array_equal(call(f"{integer}2{name}_{mode}", [n], room, dtype), np.array(back, dtype))
