"""The interpreter of tile IR: control flow, memory, shapes, reductions and products, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blocknb.errors import AccessError, Loc
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.interp_tile import round_to_tf32
from blocknb.ir.text import parse_func
from blocknb.language import types as t


def kernel(params: str, body: str) -> Func:
    return parse_func(f"func @f({params}) tile {{num_warps=4}} {{\n{body}\n}}")


def pointers(name: str, shape: str, offsets: str, dtype: str = "f32") -> str:
    """IR for `%<name>s`, the pointer tile at `offsets`."""
    tile = f"tile<{shape}xptr<{dtype}>>"
    return f"%{name}t = splat %{name} : {tile}\n%{name}s = ptradd %{name}t, {offsets} : {tile}\n"


# -- control flow


@pytest.mark.parametrize(
    ("lower", "upper", "step"), [(0, 10, 3), (10, 0, -3), (5, 5, 1), (3, 1, 1), (1, 3, -1), (-4, 4, 2)]
)
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_for_loop_runs_like_range_in_both_directions(lower: int, upper: int, step: int, dtype: str) -> None:
    func = kernel(
        f"%out: ptr<{dtype}>, %lo: {dtype}, %hi: {dtype}, %st: {dtype}",
        f"""%z = const 0 : {dtype}
        %c = const 100 : {dtype}
        %sum, %last = for %i = %lo to %hi step %st iter(%acc = %z, %before = %c) {{
          %m = mul %acc, %c
          %a = add %m, %i
          yield %a, %i
        }}
        store %out, %sum""",
    )
    out, expected = np.zeros(1, dtype.replace("i", "int")), 0
    run(func, [out, lower, upper, step], 1)
    for i in range(lower, upper, step):
        expected = expected * 100 + i
    assert out[0] == np.array(expected).astype(out.dtype)


def test_loops_and_branches_can_be_nested() -> None:
    """Collatz steps of the program id, each a while with an if inside, in a for over powers."""
    func = kernel(
        "%out: ptr<i32>",
        """%pid = program_id 0
        %0 = const 0 : i32
        %1 = const 1 : i32
        %2 = const 2 : i32
        %3 = const 3 : i32
        %start = add %pid, %1
        %total = for %k = %0 to %3 step %1 iter(%sum = %0) {
          %n = shl %start, %k
          %steps, %end = while (%count = %0, %x = %n) {
            %go = cmp gt %x, %1
            condition %go, %count, %x
          } do (%c: i32, %y: i32) {
            %odd = and %y, %1
            %is = cmp eq %odd, %1
            %next = if %is : i32 {
              %t = mul %y, %3
              %u = add %t, %1
              yield %u
            } else {
              %h = div %y, %2
              yield %h
            }
            %d = add %c, %1
            yield %d, %next
          }
          %s = add %sum, %steps
          yield %s
        }
        %to = ptradd %out, %pid
        store %to, %total""",
    )

    def collatz(n: int) -> int:
        return 0 if n == 1 else 1 + collatz(3 * n + 1 if n % 2 else n // 2)

    out = np.zeros(20, np.int32)
    run(func, [out], 20)
    assert out.tolist() == [sum(collatz(n << k) for k in range(3)) for n in range(1, 21)]


def test_while_loop_without_iterations_returns_its_initial_values() -> None:
    func = kernel(
        "%out: ptr<i32>, %n: i32",
        """%r = while (%w = %n) {
          %go = cmp lt %w, %n
          %seen = add %w, %n
          condition %go, %seen
        } do (%v: i32) { yield %v }
        store %out, %r""",
    )
    out = np.zeros(1, np.int32)
    run(func, [out, 21], 1)
    assert out[0] == 42  # values that the condition forwards


# -- programs


def test_every_program_runs_once_in_the_order_of_the_seed() -> None:
    func = kernel(
        "%out: ptr<i32>, %counter: ptr<i32>",
        """%x = program_id 0
        %y = program_id 1
        %z = program_id 2
        %nx = num_programs 0
        %ny = num_programs 1
        %a = mul %z, %ny
        %b = add %a, %y
        %c = mul %b, %nx
        %d = add %c, %x
        %to = ptradd %out, %d
        %old = load %counter
        store %to, %old
        %one = const 1 : i32
        %new = add %old, %one
        store %counter, %new""",
    )
    orders = []
    for seed in (0, 0, 1):
        out, counter = np.full(24, -1, np.int32), np.zeros(1, np.int32)
        run(func, [out, counter], (4, 3, 2), seed=seed)
        assert sorted(out.tolist()) == list(range(24))
        orders.append(out.tolist())
    assert orders[0] == orders[1] != orders[2]
    out, counter = np.full(24, -1, np.int32), np.zeros(1, np.int32)
    run(func, [out, counter], (4, 3, 2), programs=[(3, 2, 1)])
    assert np.flatnonzero(out >= 0).tolist() == [23]


# -- memory

COPY = (
    """%i = arange 0 8
  %n8 = splat %n : tile<8xi32>
  %mask = cmp lt %i, %n8
  """
    + pointers("x", "8", "%i")
    + pointers("y", "8", "%i")
)


@pytest.mark.parametrize("dtype", t.DTYPES[1:], ids=repr)
def test_masked_loads_give_other_and_masked_stores_keep_memory(dtype: t.DType) -> None:
    params = f"%x: ptr<{dtype.short}>, %y: ptr<{dtype.short}>, %n: i32"
    copy = COPY.replace("f32", dtype.short)
    x = np.arange(1, 9).astype(dtype.numpy)
    y = np.full(8, 9, dtype.numpy)
    run(kernel(params, copy + "%v = load %xs, %mask\nstore %ys, %v"), [x, y, 5], 1)
    assert y.astype(float).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    other = f"%o = const 7 : tile<8x{dtype.short}>\n%v = load %xs, %mask, %o\nstore %ys, %v"
    run(kernel(params, copy + other), [x, y, 3], 1)
    assert y.astype(float).tolist() == [1, 2, 3, 7, 7, 7, 7, 7]
    run(kernel(params, copy + "%v = load %xs\nstore %ys, %v, %mask"), [x[::-1].copy(), y, 2], 1)
    assert y.astype(float).tolist() == [8, 7, 3, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(
    ("n", "length", "index"),
    [(8, 7, 7), (8, 0, 0), (-1, 8, None), (7, 7, None)],
    ids=["by one", "empty", "masked off", "masked at the end"],
)
def test_a_load_outside_its_array_is_an_error_with_program_and_index_unless_masked(
    n: int, length: int, index: int | None
) -> None:
    func = kernel(
        "%x: ptr<f32> div 16, %y: ptr<f32> div 16, %n: i32 div 1", COPY + "%v = load %xs, %mask\nstore %ys, %v"
    )
    load = next(op for op in func.ops() if op.name == "load")
    object.__setattr__(load, "loc", Loc("cell", 4))
    args = [np.ones(length, np.float32), np.zeros(8, np.float32), n]
    if index is None:
        run(func, args, 1)
        return
    with pytest.raises(AccessError, match=f"element {index} of `x`, which has {length}") as caught:
        run(func, args, (1, 1), programs=[(0, 0, 0)])
    assert (caught.value.index, caught.value.program, caught.value.loc.line) == (index, (0, 0, 0), 4)


@pytest.mark.parametrize("offset", [-1, 100, 2**31, -(2**33)])
def test_store_at_any_distance_outside_its_array_is_an_error(offset: int) -> None:
    func = kernel("%x: ptr<f64>, %y: ptr<f64>, %o: i64", "%v = load %x\n%to = ptradd %y, %o\nstore %to, %v")
    x, y = np.ones(100), np.zeros(100)
    with pytest.raises(AccessError, match="of `y`") as caught:
        run(func, [x, y, offset], 1)
    assert caught.value.index == offset and not y.any()


def test_pointer_made_from_a_constant_belongs_to_no_array() -> None:
    func = kernel("%n: i64", "%p = bitcast %n : ptr<i32>\n%v = load %p")
    with pytest.raises(AccessError, match="outside all arrays"):
        run(func, [4096], 1)


def test_stores_to_a_read_only_array_are_an_error() -> None:
    x = np.zeros(1, np.float32)
    x.flags.writeable = False
    with pytest.raises(AccessError, match="read-only"):
        run(kernel("%x: ptr<f32>", "%v = load %x\nstore %x, %v"), [x], 1)


def test_strided_arrays_are_addressed_from_their_first_element() -> None:
    base = np.arange(20, dtype=np.float32)
    func = kernel("%x: ptr<f32>, %y: ptr<f32>, %o: i32", "%p = ptradd %x, %o\n%v = load %p\nstore %y, %v")
    for array, offset, expected in ((base[4::2], 2, 6), (base[::-1], -3, 16), (base.reshape(4, 5).T, 5, 5)):
        y = np.zeros(1, np.float32)
        run(func, [array, y, offset], 1)
        assert y[0] == expected
    with pytest.raises(AccessError):
        run(func, [base[4:8], np.zeros(1, np.float32), 4], 1)


def test_pointers_may_be_cast_and_carry_bytes() -> None:
    """The second byte of each little-endian half is read through a pointer to int8 made from a pointer to int16."""
    func = kernel(
        "%x: ptr<i16>, %y: ptr<i8>",
        "%p = bitcast %x : ptr<i8>\n%1 = const 1 : i32\n%q = ptradd %p, %1\n%v = load %q\nstore %y, %v",
    )
    y = np.zeros(1, np.int8)
    run(func, [np.array([0x1234], np.int16), y], 1)
    assert y[0] == 0x12


def test_misaligned_elements_are_read_and_written_byte_by_byte() -> None:
    func = kernel(
        "%x: ptr<i8>, %y: ptr<i32>",
        "%1 = const 1 : i32\n%q = ptradd %x, %1\n%p = bitcast %q : ptr<i32>\n%v = load %p\nstore %y, %v\nstore %p, %1",
    )
    x, y = np.arange(8, dtype=np.int8), np.zeros(1, np.int32)
    run(func, [x, y], 1)
    assert y[0] == 0x04030201 and x.tolist() == [0, 1, 0, 0, 0, 5, 6, 7]


def test_arguments_must_fit_the_parameters() -> None:
    func = kernel("%x: ptr<f32>", "%v = load %x")
    with pytest.raises(ValueError, match="takes 1 arguments, not 2"):
        run(func, [np.zeros(1, np.float32)] * 2, 1)
    with pytest.raises(TypeError, match="the pointer `x` takes a NumPy array, not int"):
        run(func, [4], 1)


# -- shapes, reductions, products


def test_shape_ops_match_numpy() -> None:
    func = kernel(
        "%x: ptr<i32>",
        """%i = arange 3 11
        %r = reshape %i : tile<2x4xi32>
        %t = trans %r {perm=(1, 0)}
        %e = expand_dims %t {axis=1}
        %b = broadcast %e : tile<4x8x2xi32>
        %f = reshape %b : tile<64xi32>
        %j = arange 0 64
        """
        + pointers("x", "64", "%j", "i32")
        + "store %xs, %f",
    )
    x = np.zeros(64, np.int32)
    run(func, [x], 1)
    expected = np.broadcast_to(np.arange(3, 11).reshape(2, 4).T[:, None, :], (4, 8, 2))
    np.testing.assert_array_equal(x, expected.reshape(-1))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["add", "max", "min", "mul"])
def test_a_reduction_runs_along_any_axis(axis: int, name: str) -> None:
    shape = [2, 4, 8]
    rest = [n for i, n in enumerate(shape) if i != axis]
    count, dims = math.prod(rest), "x".join(map(str, rest))
    func = kernel(
        "%x: ptr<f64>, %y: ptr<f64>",
        "%i = arange 0 64\n" + pointers("x", "64", "%i", "f64") + f"""%v = load %xs
        %c = reshape %v : tile<2x4x8xf64>
        %r = reduce %c {{axis={axis}}} {name}
        %f = reshape %r : tile<{count}xf64>
        %j = arange 0 {count}
        """ + pointers("y", str(count), "%j", "f64") + "store %ys, %f",
    )  # fmt: skip
    assert f"tile<{dims}xf64>" in str(next(op for op in func.ops() if op.name == "reduce").result.type)
    x, y = np.random.default_rng(axis).standard_normal(64), np.zeros(count)
    run(func, [x, y], 1)
    function = {"add": np.sum, "max": np.max, "min": np.min, "mul": np.prod}[name]
    np.testing.assert_allclose(y, function(x.reshape(shape), axis=axis).reshape(-1), rtol=1e-14)


ARGMAX = """(%a: f32, %i: i32, %b: f32, %j: i32) : f32, i32 {
    %gt = cmp gt %a, %b
    %eq = cmp eq %a, %b
    %lt = cmp lt %i, %j
    %tie = and %eq, %lt
    %first = or %gt, %tie
    %best = select %first, %a, %b
    %k = select %first, %i, %j
    yield %best, %k
  }
"""


def test_a_reduction_of_several_operands_carries_all_of_them() -> None:
    body = (
        "%o = arange 0 64\n" + pointers("x", "64", "%o") + "%v = load %xs\n%m, %at = reduce %v, %o {axis=0} " + ARGMAX
    )
    func = kernel("%x: ptr<f32>, %y: ptr<i32>", body + "store %y, %at")
    for seed in range(5):
        x, y = np.random.default_rng(seed).integers(0, 9, 64).astype(np.float32), np.zeros(1, np.int32)
        run(func, [x, y], 1)
        assert y[0] == np.argmax(x)


def test_a_combine_may_branch_and_need_not_be_commutative() -> None:
    """Returns the first operand unless it is zero, so the reduction finds the first nonzero element."""
    func = kernel(
        "%x: ptr<i32>, %y: ptr<i32>",
        "%o = arange 0 16\n" + pointers("x", "16", "%o", "i32") + """%v = load %xs
        %zero = const 0 : i32
        %r = reduce %v {axis=0} (%a: i32, %b: i32) : i32 {
          %is = cmp eq %a, %zero
          %pick = if %is : i32 { yield %b } else { yield %a }
          yield %pick
        }
        store %y, %r""",
    )  # fmt: skip
    x, y = np.array([0] * 5 + [7, 0, 3] + [4] * 8, np.int32), np.zeros(1, np.int32)
    run(func, [x, y], 1)
    assert y[0] == 7


def product(dtype: str, accumulator: str, precision: str = "") -> Func:
    def matrix(name: str, kind: str) -> str:
        return (
            pointers(name, "256", "%o", kind)
            + f"%{name}v = load %{name}s\n%{name}m = reshape %{name}v : tile<16x16x{kind}>\n"
        )

    return kernel(
        f"%a: ptr<{dtype}>, %b: ptr<{dtype}>, %c: ptr<{accumulator}>",
        "%o = arange 0 256\n" + matrix("a", dtype) + matrix("b", dtype) + matrix("c", accumulator)
        + f"%d = dot %am, %bm, %cm {precision}\n%f = reshape %d : tile<256x{accumulator}>\nstore %cs, %f",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "accumulator", "tolerance"),
    [(t.float16, t.float32, 1e-6), (t.bfloat16, t.float32, 1e-6), (t.float32, t.float32, 1e-6), (t.float64, t.float64, 1e-14),
     (t.float16, t.float16, 2e-3), (t.int8, t.int32, 0), (t.int32, t.int32, 0)],
)  # fmt: skip
def test_a_product_adds_to_its_accumulator(dtype: t.DType, accumulator: t.DType, tolerance: float) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-100, 100, (16, 16)) / (16 if dtype.is_float else 1) for _ in range(3))
    a, b, c = a.astype(dtype.numpy), b.astype(dtype.numpy), c.astype(accumulator.numpy)
    wide = np.float64 if dtype.is_float else np.int64
    expected = a.astype(wide) @ b.astype(wide) + c.astype(wide)
    run(product(dtype.short, accumulator.short), [a, b, c], 1)
    np.testing.assert_allclose(c.astype(wide), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_tf32_keeps_ten_bits_of_mantissa_to_nearest_even() -> None:
    ulp = 2.0**-10
    values = np.array(
        [1 + ulp, 1 + ulp / 2, 1 + 1.5 * ulp, 1 + 0.51 * ulp, -1 - 0.75 * ulp, np.inf, -np.inf, 0, 2.0**-130],
        np.float32,
    )
    expected = [1 + ulp, 1, 1 + 2 * ulp, 1 + ulp, -1 - ulp, np.inf, -np.inf, 0, 2.0**-130]
    assert round_to_tf32(values).tolist() == expected
    assert np.isnan(round_to_tf32(np.array([np.nan], np.float32)))[0]
    a, b, c = np.eye(16, dtype=np.float32), np.full((16, 16), 1 + ulp / 4, np.float32), np.zeros((16, 16), np.float32)
    run(product("f32", "f32", '{precision="ieee"}'), [a, b, c], 1)
    assert (c == 1 + ulp / 4).all()
    c[:] = 0
    run(product("f32", "f32", '{precision="tf32"}'), [a, b, c], 1)
    assert (c == 1).all()


def test_an_error_inside_numpy_names_the_interpreted_op() -> None:
    func = kernel("%x: ptr<f32>", "%i = arange 0 8\n%r = reshape %i : tile<4xi32>\n%v = load %x")
    with pytest.raises(ValueError) as caught:
        run(func, [np.zeros(1, np.float32)], 1)
    assert "while interpreting: %r = reshape %i : tile<4xi32>" in caught.value.__notes__[0]
