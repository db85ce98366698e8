"""Sine and cosine of any argument on the GPU. Each is a function of the kernel, since the rare large argument takes a branch.

Up to LIMIT three fused multiply-adds subtract the multiple of pi/2 in three parts (Cody & Waite), in the precision of the argument.
A larger argument is reduced by the exact integer routine of Payne & Hanek (`codegen.scalar_math.exact`).
"""

from __future__ import annotations

import math

from blocknb.codegen.gpu.text import InlineWriter, TextWriter
from blocknb.codegen.scalar_math import exact
from blocknb.codegen.scalar_math.instructions import InstructionBuilder, TargetFeatures
from blocknb.codegen.scalar_math.lanes import LaneFunction, Lanes
from blocknb.codegen.text import Writer

MACHINE = TargetFeatures(vector_bytes=8, register_bytes=8, fma=True, f16c=True, sse41=True, avx512=False)
PARTS = {
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),  # pi/2 as three fp32 numbers
    64: exact.PI_2_PARTS,
}
LIMIT = {32: 40_000.0, 64: exact.DIRECT_LIMIT}
QUARTER = {"sin": 0, "cos": 1}


def inline_code(text: TextWriter) -> InstructionBuilder:
    """A builder whose instructions go to the text of the kernel."""
    return InstructionBuilder(InlineWriter(text), MACHINE, text.helpers)


def define(name: str, function: str, element: str, helpers: dict[str, str]) -> str:
    """LLVM text of `element @name(element %x)`, the sine or cosine of x. The routines that it calls join `helpers`."""
    w = Writer()
    f = LaneFunction(InstructionBuilder(w, MACHINE, helpers), element, 1)
    helpers.setdefault("blocknb.reduce", exact.REDUCE)
    x = Lanes(f, "float", "%x")
    n_float, n = f.nearest(x * (2 / math.pi))
    r = x
    for part in PARTS[f.format.bits]:
        r = f.fma(n_float, -part, r)
    w.branch(f.absolute(x).compare("oge", LIMIT[f.format.bits]).text, "large", "join")
    w.place("large")
    r_large, n_large = _reduced(f)
    w.place("join")
    r = _either(f, r, r_large)
    n = _either(f, n, n_large)
    result = _quadrant(f, r, n + QUARTER[function] if QUARTER[function] else n)
    body = "\n".join(w.lines)
    return f"define internal {element} @{name}({element} %x) alwaysinline nounwind {{\nentry:\n{body}\n  ret {element} {result.text}\n}}\n"


def _reduced(f: LaneFunction) -> tuple[Lanes, Lanes]:
    """Remainder and quadrant of a large argument, by the exact routine."""
    w = f.code.w
    wide = w.value("fpext float %x to double") if f.single else "%x"
    pair = w.value(f"call {{ double, i64 }} @blocknb.reduce(double {wide})")
    r, n = (w.value(f"extractvalue {{ double, i64 }} {pair}, {i}") for i in range(2))
    if f.single:
        r, n = w.value(f"fptrunc double {r} to float"), w.value(f"trunc i64 {n} to i32")
    x = Lanes(f, "float", "%x")
    finite = f.absolute(x).compare("olt", math.inf)
    return f.select(finite, Lanes(f, "float", r), math.nan), Lanes(f, "int", n)


def _either(f: LaneFunction, small: Lanes, large: Lanes) -> Lanes:
    """The phi of the two ways to reduce the argument."""
    return Lanes(
        f, small.kind, f.code.w.value(f"phi {f.type(small.kind)} [ {small.text}, %entry ], [ {large.text}, %large ]")
    )


def _quadrant(f: LaneFunction, r: Lanes, n: Lanes) -> Lanes:
    """The sine of n quarter turns and r."""
    z = r * r
    sine = f.fma(z * r, f.polynomial(z, exact.SIN_SINGLE if f.single else exact.SIN), r)
    cosine = f.fma(z * z, f.polynomial(z, exact.COS_SINGLE if f.single else exact.COS), f.fma(z, -0.5, 1.0))
    odd = (n & 1).compare("ne", 0)
    return (f.select(odd, cosine, sine).bits() ^ ((n & 2) << f.format.bits - 2)).floating()
