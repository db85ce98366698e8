"""Exact arithmetic beyond polynomials: sine and cosine of any argument, remainders, and fp64 fma on machines without it.

Sine and cosine are computed in fp64 for both precisions. Up to 800,000 the multiple of pi/2 is subtracted in three parts (Cody & Waite).
Beyond that each lane takes the relevant bits of 2/pi from a table, and multiplies in integers. So even the largest finite number has its
exact sine. Source: Payne & Hanek, "Radian reduction for trigonometric functions", 1983. The remainder is long division, one bit per step,
and exact as IEEE defines it.
"""

from __future__ import annotations

from functools import partial

from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.lanes import LaneFunction, Lanes
from blocknb.codegen.text import float_literal, vector_type

PI_2 = 1.5707963267948966
PI_2_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # 33 bits, 33 bits, the rest
DIRECT_LIMIT = 800_000.0
# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in powers of r^2, on |r| <= pi/4
SIN = (-0.16666666666666666, 0.008333333333333331, -0.00019841269841265003, 2.7557319219291695e-06, -2.5052106215978872e-08,
       1.6058529011960858e-10, -7.586543634101903e-13)  # fmt: skip
COS = (0.041666666666666664, -0.0013888888888888887, 2.480158730158461e-05, -2.7557319221376434e-07, 2.08767557819242e-09,
       -1.1470459438155826e-11, 4.7457865678652127e-14)  # fmt: skip
SIN_SINGLE = (-0.16666666663826582, 0.008333331863560767, -0.00019840080719912243, 2.724914679681317e-06)
COS_SINGLE = (0.04166666666429725, -0.0013888887662711772, 2.4800595356594502e-05, -2.730030902052222e-07)
# The bits of 2/pi after the binary point, with 64 zero bits in front.
TWO_OVER_PI = (
    0x0, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561, 0xB7246E3A424DD2E0, 0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)  # fmt: skip

# x = m 2^e. The window of 192 bits starts where a bit of 2/pi times 2^e is worth two quarter turns. The top two bits of the product are
# then the quadrant, and the bits below them the fraction of a quarter turn.
REDUCE = f"""
@blocknb.two_over_pi = internal constant [20 x i64] [{", ".join(f"i64 {w - (w >> 63 << 64)}" for w in TWO_OVER_PI)}]
define internal {{ double, i64 }} @blocknb.reduce(double %x) noinline nounwind {{
  %bits = bitcast double %x to i64
  %sign = icmp slt i64 %bits, 0
  %raw = lshr i64 %bits, 52
  %biased = and i64 %raw, 2047
  %start = sub i64 %biased, 1013
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %word = lshr i64 %start, 6
  %shift = and i64 %start, 63
  %p0 = getelementptr [20 x i64], ptr @blocknb.two_over_pi, i64 0, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %t0 = load i64, ptr %p0
  %t1 = load i64, ptr %p1
  %t2 = load i64, ptr %p2
  %t3 = load i64, ptr %p3
  %w0 = call i64 @llvm.fshl.i64(i64 %t0, i64 %t1, i64 %shift)
  %w1 = call i64 @llvm.fshl.i64(i64 %t1, i64 %t2, i64 %shift)
  %w2 = call i64 @llvm.fshl.i64(i64 %t2, i64 %t3, i64 %shift)
  %mm = zext i64 %m to i128
  %z2 = zext i64 %w2 to i128
  %z1 = zext i64 %w1 to i128
  %low = mul i128 %mm, %z2
  %carry = lshr i128 %low, 64
  %middle0 = mul i128 %mm, %z1
  %middle = add i128 %middle0, %carry
  %carry1 = lshr i128 %middle, 64
  %carry1.64 = trunc i128 %carry1 to i64
  %top0 = mul i64 %m, %w0
  %r0 = add i64 %top0, %carry1.64
  %r1 = trunc i128 %middle to i64
  %r2 = trunc i128 %low to i64
  %f0 = call i64 @llvm.fshl.i64(i64 %r0, i64 %r1, i64 2)
  %f1 = call i64 @llvm.fshl.i64(i64 %r1, i64 %r2, i64 2)
  %f0.w = zext i64 %f0 to i128
  %f0.s = shl i128 %f0.w, 64
  %f1.w = zext i64 %f1 to i128
  %f = or i128 %f0.s, %f1.w
  %up = lshr i64 %f0, 63
  %q0 = lshr i64 %r0, 62
  %q1 = add i64 %q0, %up
  %negative = icmp slt i128 %f, 0
  %minus = sub i128 0, %f
  %size = select i1 %negative, i128 %minus, i128 %f
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %normal = shl i128 %size, %zeros
  %head = lshr i128 %normal, 64
  %head.64 = trunc i128 %head to i64
  %number = uitofp i64 %head.64 to double
  %zeros.64 = trunc i128 %zeros to i64
  %exponent = sub i64 959, %zeros.64
  %scale.bits = shl i64 %exponent, 52
  %scale = bitcast i64 %scale.bits to double
  %turn = fmul double %number, %scale
  %angle = fmul double %turn, {float_literal(PI_2, "double")}
  %flip = xor i1 %negative, %sign
  %angle.minus = fneg double %angle
  %result = select i1 %flip, double %angle.minus, double %angle
  %q.minus = sub i64 0, %q1
  %q = select i1 %sign, i64 %q.minus, i64 %q1
  %a = insertvalue {{ double, i64 }} poison, double %result, 0
  %b = insertvalue {{ double, i64 }} %a, i64 %q, 1
  ret {{ double, i64 }} %b
}}
"""


def _large(f: LaneFunction, x: Lanes, r: Lanes, n: Lanes) -> tuple[Lanes, Lanes]:
    """Replaces the reduction of the lanes that are too large for it, in a branch that is rarely taken."""
    code, w, width = f.code, f.code.w, f.width
    code.helpers.setdefault("blocknb.reduce", REDUCE)
    size = f.absolute(x)
    large = size.compare("oge", DIRECT_LIMIT) & size.compare("olt", float("inf"))
    doubles, integers = vector_type("double", width), vector_type("i64", width)
    slots = [w.slot(doubles, "x"), w.slot(doubles, "r"), w.slot(integers, "n")]
    for slot, value, ty in zip(slots, (x, r, n), (doubles, doubles, integers), strict=True):
        w.do(f"store {ty} {value.text}, ptr {slot}")
    mask_slot = w.slot(f"[{width} x i8]", "large")
    mask = code.convert("zext", large.text, "i1", "i8", width)
    w.do(f"store {vector_type('i8', width)} {mask}, ptr {mask_slot}, align 1")

    def each() -> None:
        with w.counted("0", str(width), 1, "lane") as lane:

            def place(base: str, unit: str) -> str:
                return w.value(f"getelementptr {unit}, ptr {base}, i64 {lane}")

            def one() -> None:
                value = w.value(f"load double, ptr {place(slots[0], 'double')}")
                pair = w.value(f"call {{ double, i64 }} @blocknb.reduce(double {value})")
                for i, (slot, element) in enumerate(((slots[1], "double"), (slots[2], "i64"))):
                    part = w.value(f"extractvalue {{ double, i64 }} {pair}, {i}")
                    w.do(f"store {element} {part}, ptr {place(slot, element)}")

            flag = w.value(f"load i8, ptr {place(mask_slot, 'i8')}")
            w.when(w.value(f"icmp ne i8 {flag}, 0"), one)

    w.when(code.any(large.text, width), each)
    angle, quadrant = w.value(f"load {doubles}, ptr {slots[1]}"), w.value(f"load {integers}, ptr {slots[2]}")
    return Lanes(f, "float", angle), Lanes(f, "int", quadrant)


def _circular(outer: LaneFunction, x: Lanes, quarter: int) -> Lanes:
    """The sine of x + quarter * pi/2."""
    f = outer
    if outer.single:
        f = LaneFunction(outer.code, "double", outer.width)
        x = Lanes(f, "float", f.code.convert("fpext", x.text, "float", "double", f.width))
    near = f.clamp(x, -DIRECT_LIMIT, DIRECT_LIMIT)
    n_float, n = f.nearest(near * (1 / PI_2))
    r = x
    for part in PI_2_PARTS:
        r = f.fma(n_float, -part, r)
    r, n = _large(f, x, r, n)
    r = f.select(f.absolute(x) < float("inf"), r, float("nan"))
    z = r * r
    sine = f.fma(z * r, f.polynomial(z, SIN_SINGLE if outer.single else SIN), r)
    cosine = f.fma(z * z, f.polynomial(z, COS_SINGLE if outer.single else COS), f.fma(z, -0.5, 1.0))
    n = n + quarter if quarter else n
    odd = (n & 1).compare("ne", 0)
    result = f.select(odd, cosine, sine)
    result = (result.bits() ^ ((n & 2) << 62)).floating()
    if outer.single:
        return Lanes(outer, "float", f.code.convert("fptrunc", result.text, "double", "float", f.width))
    return result


sin, cos = partial(_circular, quarter=0), partial(_circular, quarter=1)


# ---- remainder ----------------------------------------------------------------------------------------------------------

INF = float_literal(float("inf"), "double")
NAN = float_literal(float("nan"), "double")
# Mantissas as integers. The remainder is less than y and has no more bits, so converting it back is exact.
FMOD = f"""
define internal double @blocknb.fmod(double %x, double %y) noinline nounwind {{
  %ax = call double @llvm.fabs.f64(double %x)
  %ay = call double @llvm.fabs.f64(double %y)
  %x.ok = fcmp olt double %ax, {INF}
  %y.ok = fcmp ogt double %ay, 0.0
  %ok = and i1 %x.ok, %y.ok
  br i1 %ok, label %fine, label %bad
bad:
  ret double {NAN}
fine:
  %less = fcmp olt double %ax, %ay
  br i1 %less, label %small, label %divide
small:
  ret double %x
divide:
  %ex = call i64 @blocknb.exponent(double %ax)
  %ey = call i64 @blocknb.exponent(double %ay)
  %mx = call i64 @blocknb.mantissa(double %ax)
  %my = call i64 @blocknb.mantissa(double %ay)
  %steps = sub i64 %ex, %ey
  br label %loop
loop:
  %r = phi i64 [ %mx, %divide ], [ %twice, %next ]
  %left = phi i64 [ %steps, %divide ], [ %fewer, %next ]
  %d = sub i64 %r, %my
  %below = icmp slt i64 %d, 0
  %rest = select i1 %below, i64 %r, i64 %d
  %end = icmp eq i64 %left, 0
  br i1 %end, label %done, label %next
next:
  %twice = shl i64 %rest, 1
  %fewer = sub i64 %left, 1
  br label %loop
done:
  %number = uitofp i64 %rest to double
  %half = ashr i64 %ey, 1
  %other = sub i64 %ey, %half
  %half.b = add i64 %half, 1023
  %half.s = shl i64 %half.b, 52
  %half.f = bitcast i64 %half.s to double
  %other.b = add i64 %other, 1023
  %other.s = shl i64 %other.b, 52
  %other.f = bitcast i64 %other.s to double
  %once = fmul double %number, %half.f
  %size = fmul double %once, %other.f
  %result = call double @llvm.copysign.f64(double %size, double %x)
  ret double %result
}}
define internal i64 @blocknb.exponent(double %x) alwaysinline nounwind {{
  %lifted = call double @blocknb.lifted(double %x)
  %bits = bitcast double %lifted to i64
  %raw = lshr i64 %bits, 52
  %tiny = fcmp olt double %x, {float_literal(2.0**-1022, "double")}
  %offset = select i1 %tiny, i64 1129, i64 1075
  %e = sub i64 %raw, %offset
  ret i64 %e
}}
define internal i64 @blocknb.mantissa(double %x) alwaysinline nounwind {{
  %lifted = call double @blocknb.lifted(double %x)
  %bits = bitcast double %lifted to i64
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  ret i64 %m
}}
define internal double @blocknb.lifted(double %x) alwaysinline nounwind {{
  %tiny = fcmp olt double %x, {float_literal(2.0**-1022, "double")}
  %more = fmul double %x, {float_literal(2.0**54, "double")}
  %r = select i1 %tiny, double %more, double %x
  ret double %r
}}
"""


def remainder(code: InstructionBuilder, a: str, b: str, element: str, width: int) -> str:
    """The exact remainder with the sign of `a`, lane by lane. The remainder of fp32 numbers is an fp32, so fp64 serves both."""
    code.helpers.setdefault("blocknb.fmod", FMOD)
    if element == "float":
        a, b = (code.convert("fpext", v, "float", "double", width) for v in (a, b))
    if width == 1:
        result = code.w.value(f"call double @blocknb.fmod(double {a}, double {b})")
    else:
        name = f"blocknb.fmod.{width}"
        if name not in code.helpers:
            code.helpers[name] = _remainder_lanes(name, width)
        ty = vector_type("double", width)
        result = code.w.value(f"call {ty} @{name}({ty} {a}, {ty} {b})")
    return result if element == "double" else code.convert("fptrunc", result, "double", "float", width)


def _remainder_lanes(name: str, width: int) -> str:
    ty = vector_type("double", width)
    return f"""
define internal {ty} @{name}({ty} %a, {ty} %b) noinline nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %r = phi {ty} [ %a, %entry ], [ %new, %loop ]
  %x = extractelement {ty} %a, i64 %i
  %y = extractelement {ty} %b, i64 %i
  %v = call double @blocknb.fmod(double %x, double %y)
  %new = insertelement {ty} %r, double %v, i64 %i
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {width}
  br i1 %more, label %loop, label %done
done:
  ret {ty} %new
}}
"""


# ---- fma ----------------------------------------------------------------------------------------------------------------


def fma_double(code: InstructionBuilder, args: list[str], width: int) -> str:
    """a * b + c from the exact product (Dekker) and the exact error of the sum (Knuth); where that overflows, the plain sum."""
    f = LaneFunction(code, "double", width)
    a, b, c = (Lanes(f, "float", x) for x in args)

    def halves(x: Lanes) -> tuple[Lanes, Lanes]:
        big = x * 134217729.0
        high = big - (big - x)
        return high, x - high

    # A factor too large to be split gives some of its exponent to the other, which is small if the product is finite.
    for _ in range(2):
        big = f.absolute(a) > 2.0**970
        a, b = f.select(big, b * 2.0**60, b), f.select(big, a * 2.0**-60, a)
    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    error = ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    exact = total + (rest + error)
    return f.select(f.absolute(exact).compare("olt", float("inf")), exact, total).text
