"""Quotients by reciprocals and shifts equal those of a division, for extreme numbers and divisors."""

from __future__ import annotations

import numpy as np
import pytest

from blocknb.analysis import affine
from blocknb.ir import interp
from blocknb.ir.build import Rebuild
from blocknb.ir.core import Func
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify
from blocknb.passes.support.division_by_invariant import InvariantDivisions, along_axes

MOST = (1 << 31) - 1
TEXT = """
func @quotients(%out: ptr<i32> div 16, %mix: i32 div 1, %d: i32 div 1, %x: i32 div 1) tile {
  %p = program_id 0 : i32
  %most = const 2147483647 : i32
  %mixed = xor %p, %mix : i32
  %n = and %mixed, %most : i32
  %eight = const 8 : i32
  %far = add %x, %p : i32
  %rows = min %far, %eight : i32
  %q = div %n, %d : i32
  %r = rem %n, %d : i32
  %s = div %n, %rows : i32
  %t = rem %n, %rows : i32
  %four = const 4 : i32
  %at = mul %p, %four : i32
  %one = const 1 : i32
  %two = const 2 : i32
  %three = const 3 : i32
  %o0 = ptradd %out, %at : ptr<i32>
  %o1 = ptradd %o0, %one : ptr<i32>
  %o2 = ptradd %o0, %two : ptr<i32>
  %o3 = ptradd %o0, %three : ptr<i32>
  store %o0, %q
  store %o1, %r
  store %o2, %s
  store %o3, %t
}
"""


def rewritten(func: Func) -> tuple[Func, InvariantDivisions]:
    quotients = InvariantDivisions(func, affine.analyze(func))

    def visit(op, rebuild):
        found = quotients.emit(rebuild.builder, rebuild.get, op)
        return NotImplemented if found is None else [found]

    rebuild = Rebuild(func, visit, "quotients")
    quotients.prepare(rebuild.builder)
    made = rebuild.run()
    verify(made)
    return made, quotients


SIGNED = """
func @signed(%out: ptr<i32> div 16, %mix: i32 div 1, %d: i32 div 1) tile {
  %p = program_id 0 : i32
  %n = xor %p, %mix : i32
  %q = div %n, %d : i32
  %r = rem %n, %d : i32
  %two = const 2 : i32
  %at = mul %p, %two : i32
  %one = const 1 : i32
  %o0 = ptradd %out, %at : ptr<i32>
  %o1 = ptradd %o0, %one : ptr<i32>
  store %o0, %q
  store %o1, %r
}
"""


@pytest.mark.sampled(2, each=["divisor", "mix"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 127, MOST, -1, -7, -MOST, -MOST - 1])
@pytest.mark.parametrize("mix", [5, -1, -1000, -MOST - 1, -MOST + 3])
def test_signed_division_by_any_divisor_is_exact(divisor: int, mix: int):
    if divisor == -1 and mix < -MOST + 8:
        mix += 64  # the least number has no negative
    out = np.full((16, 2), -1, np.int32)
    func, quotients = rewritten(parse_func(SIGNED))
    assert len(quotients.known) == 2
    interp.run(func, [out.reshape(-1), mix, divisor], (16, 1, 1))
    for p, (quotient, rest) in enumerate(out.tolist()):
        assert quotient * divisor + rest == p ^ mix
        assert abs(rest) < abs(divisor) and (rest == 0 or (rest < 0) == ((p ^ mix) < 0))


@pytest.mark.parametrize(("divisor", "quotient"), [(0, 0), (-1, -MOST - 1)])
def test_division_by_zero_and_overflow_follow_the_definition(divisor: int, quotient: int):
    out = np.full((1, 2), -1, np.int32)
    interp.run(rewritten(parse_func(SIGNED))[0], [out.reshape(-1), -MOST - 1, divisor], (1, 1, 1))
    assert out.tolist() == [[quotient, 0]]


def test_all_divisions_are_found():
    _, quotients = rewritten(parse_func(TEXT))
    assert len(quotients.known) == len(quotients.likely) == 2


@pytest.mark.sampled(2, each=["divisor", "mix"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 8, 65535, 65536, MOST - 1, MOST, -1, -3, -8, -MOST, -MOST - 1])
@pytest.mark.parametrize("mix", [0, 1000, 0x7FFFFFF0, 0x5A5A5A5A])
def test_division_by_launch_constants_is_exact(divisor: int, mix: int):
    programs = 16
    out = np.full((programs, 4), -1, np.int32)
    interp.run(rewritten(parse_func(TEXT))[0], [out.reshape(-1), mix, divisor, 1], (programs, 1, 1))
    numbers = [(p ^ mix) & MOST for p in range(programs)]
    rows = [min(1 + p, 8) for p in range(programs)]  # at most the likely divisor
    signed = [n // abs(divisor) * (1 if divisor > 0 else -1) for n in numbers]
    expected = [signed, [n % abs(divisor) for n in numbers]]
    expected += [
        [n // d for n, d in zip(numbers, rows, strict=True)],
        [n % d for n, d in zip(numbers, rows, strict=True)],
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.int32).T)


PLACES = """
func @places(%out: ptr<i32> div 16, %x: i32 div 1, %y: i32 div 1) tile {
  %p = program_id 0 : i32
  %four = const 4 : i32
  %at = mul %p, %four : i32
  %to = ptradd %out, %at : ptr<i32>
  store %to, %p
}
"""


@pytest.mark.parametrize("grid", [(24, 1), (4, 3), (1, 5), (1, 1)], ids=str)
def test_program_ids_along_the_axes_of_a_grid_are_exact(grid: tuple[int, int]):
    func = parse_func(PLACES)

    def visit(op, rebuild):
        if op.name != "store":
            return NotImplemented
        b, (pointer, program) = rebuild.builder, op.args
        for value in along_axes(b, program, *func.params[1:]):
            b.op("store", pointer, value)
            pointer = b.value("ptradd", pointer, b.const(1, program.type))
        return ()

    made = Rebuild(func, visit, "places").run()
    verify(made)
    out = np.full((24, 4), -1, np.int32)
    interp.run(made, [out.reshape(-1), *grid], (24, 1, 1))
    x, y = grid
    np.testing.assert_array_equal(out[:, :3], [(p % x, p // x % y, p // x // y) for p in range(24)])
