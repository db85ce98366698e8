"""The interpreter of IR with threads: wrong layouts, replicas that differ, missing barriers, overlapping buffers."""

from __future__ import annotations

import numpy as np
import pytest
from support import check_same

from blocknb.errors import CompilerBug
from blocknb.ir.build import rebuild
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify
from blocknb.layouts.linear import Layout
from blocknb.layouts.tables import accumulator, find_mma, operand_a, operand_b

LAYOUTS = """
#one = <128: reg - lane 1,2,4,8,16 warp 32,64>
#wide = <128: reg 1,2 lane 4,8,16,32,64 warp 0,0>
#all = <128: reg 1,2,4,8,16,32,64 lane 0,0,0,0,0 warp 0,0>
#reversed = <128: reg - lane 16,8,4,2,1 warp 32,64>
#rows = <4x32: reg - lane 1,2,4,8,16 warp 32,64>
#cross = <4x32: reg - lane 1,2,4,8,16 warp 64,32>
#columns = <4x32: reg 32,64 lane 1,2,4,8,16 warp 0,0>
#row = <1x32: reg - lane 1,2,4,8,16 warp 0,0>
#back = <1x32: reg - lane 16,8,4,2,1 warp 0,0>
#line = <128: shared 1,2,4,8,16,32,64>
#swizzled = <128: shared 1,2,5,8,16,32,68>
#flat = <4x32: shared 1,2,4,8,16,32,64>
"""


def kernel(level: str, body: str, params: str = "%x: ptr<f32>, %y: ptr<f32>", attrs: str = "shared_bytes=1024") -> Func:
    func = parse_func(f"{LAYOUTS}func @f({params}) {level} {{num_warps=4, {attrs}}} {{\n{body}\n}}")
    verify(func)
    return func


def load(layout: str, name: str = "x") -> str:
    """IR for `%v`, 128 elements loaded in a layout."""
    return f"""%i{name} = arange 0 128 : tile<128xi32, {layout}>
      %t{name} = splat %{name} : tile<128xptr<f32>, {layout}>
      %p{name} = ptradd %t{name}, %i{name} : tile<128xptr<f32>, {layout}>
      """ + (f"%v = load %p{name} : tile<128xf32, {layout}>\n" if name == "x" else "")


def store(layout: str, value: str) -> str:
    return load(layout, "y") + f"store %py, {value}\n"


def result(func: Func, *args: np.ndarray, seed: int = 0) -> np.ndarray:
    run(func, args, 1, seed=seed)
    return args[-1]


X = np.random.default_rng(7).standard_normal(128).astype(np.float32)


# -- the distributed level


@pytest.mark.parametrize("source", ["#one", "#wide", "#all", "#reversed"])
@pytest.mark.parametrize("target", ["#one", "#wide", "#all", "#reversed"])
def test_layout_conversion_keeps_the_values(source: str, target: str) -> None:
    func = kernel("distributed", load(source) + f"%w = convert %v : tile<128xf32, {target}>\n" + store(target, "%w"))
    np.testing.assert_array_equal(result(func, X, np.zeros(128, np.float32)), X)


def test_an_op_that_would_move_data_between_threads_is_an_error() -> None:
    body = """%i = arange 0 32 : tile<32xi32, <32: reg - lane {} warp 0,0>>
      %r = expand_dims %i {{axis=0}} : tile<1x32xi32, {}>
      %b = broadcast %r : tile<4x32xi32, #rows>"""
    good = kernel("distributed", body.format("1,2,4,8,16", "#row"))
    run(good, [X, X], 1)
    broken = body.format("16,8,4,2,1", "#back")
    with pytest.raises(CompilerBug, match="would move data between threads"):
        run(
            parse_func(f"{LAYOUTS}func @f(%x: ptr<f32>, %y: ptr<f32>) distributed {{num_warps=4}} {{\n{broken}\n}}"),
            [X, X],
            1,
        )


def test_replicas_that_disagree_are_an_error() -> None:
    """`not` has another layout than its operand, which the verifier would refuse, so lanes disagree."""
    body = """%i = arange 0 4 : tile<4xi32, <4: reg - lane 1,2,0,0,0 warp 0,0>>
      %j = not %i : tile<4xi32, <4: reg - lane 1,0,2,0,0 warp 0,0>>
      %k = convert %j : tile<4xi32, <4: reg 1,2 lane 0,0,0,0,0 warp 0,0>>"""
    func = parse_func(f"func @f() distributed {{num_warps=4}} {{\n{body}\n}}")
    with pytest.raises(CompilerBug, match=r"replicas of element \(0,\) disagree"):
        run(func, [], 1)


def named(layout: str) -> Layout:
    return Layout.parse(LAYOUTS.split(f"{layout} = ")[1].splitlines()[0])


def store_reduced(layout: Layout) -> str:
    """IR that stores `%m`, which has this layout of rank 1."""
    kind = f"{layout.size}x{{}}, {layout}"
    return f"""%j = arange 0 {layout.size} : tile<{kind.format("i32")}>
      %ty = splat %y : tile<{kind.format("ptr<f32>")}>
      %py = ptradd %ty, %j
      store %py, %m"""


@pytest.mark.parametrize("layout", ["#rows", "#cross", "#columns"])
@pytest.mark.parametrize("axis", [0, 1])
def test_distributed_reduction_matches_numpy_along_either_axis(layout: str, axis: int) -> None:
    flat, reduced = named(layout).reshape((128,)), named(layout).slice(axis)
    body = f"""%c = convert %v : tile<128xf32, {flat}>
      %r = reshape %c : tile<4x32xf32, {layout}>
      %m = reduce %r {{axis={axis}}} max
      """
    func = kernel("distributed", load("#one") + body + store_reduced(reduced))
    found = result(func, X, np.zeros(reduced.size, np.float32))
    np.testing.assert_array_equal(found, X.reshape(4, 32).max(axis=axis))


@pytest.mark.parametrize("layout", ["#rows", "#cross"])
def test_number_of_partial_results_follows_the_warp_bits_of_the_axis(layout: str) -> None:
    """Eight rows on four warps: the partial result w of a column covers the rows of warp w."""
    across = "64,128" if layout == "#rows" else "128,64"
    partial = "32,64"
    body = f"""%i = arange 0 256 : tile<256xi32, <256: reg 32 lane 1,2,4,8,16 warp {across}>>
      %r = reshape %i : tile<8x32xi32, <8x32: reg 32 lane 1,2,4,8,16 warp {across}>>
      %k = reduce %r {{axis=0, keep=4, layout=<4x32: reg - lane 1,2,4,8,16 warp {partial}>}} add
      %f = cast %k : tile<4x32xf32, <4x32: reg - lane 1,2,4,8,16 warp {partial}>>
      %m = reshape %f : tile<128xf32, <128: reg - lane 1,2,4,8,16 warp {partial}>>
      """
    func = kernel("distributed", body + store_reduced(named("#one")))
    rows = np.arange(256).reshape(8, 32)
    held = [[0, 1], [2, 3], [4, 5], [6, 7]] if layout == "#rows" else [[0, 1], [4, 5], [2, 3], [6, 7]]
    expected = np.stack([rows[w].sum(axis=0) for w in held])
    found = result(func, X, np.zeros(128, np.float32))
    np.testing.assert_array_equal(found.reshape(4, 32), expected)


def test_distributed_function_matches_its_tile_ir() -> None:
    tile = """%i = arange 0 128
      %t = splat %x : tile<128xptr<f32>>
      %p = ptradd %t, %i
      %v = load %p
      %s = reduce %v {axis=0} add
      store %y, %s"""
    before = parse_func(f"func @f(%x: ptr<f32>, %y: ptr<f32>) tile {{num_warps=4}} {{\n{tile}\n}}")
    after = kernel("distributed", load("#wide") + "%s = reduce %v {axis=0} add\nstore %y, %s")
    check_same(before, after, [X, np.zeros(1, np.float32)], 1)
    wrong = kernel("distributed", load("#wide") + "%s = reduce %v {axis=0} max\nstore %y, %s")
    with pytest.raises(AssertionError):
        check_same(before, wrong, [X, np.zeros(1, np.float32)], 1)


# -- the memory level

THROUGH = """
      %b = alloc {offset=256} : buffer<128xf32, SHARED>
      local_store %b, %v
      barrier
      %w = local_load %b : tile<128xf32, #wide>
      """


def without(func: Func, *numbers: int) -> Func:
    """The function without the ops of these ids."""
    return rebuild(func, lambda op, _: () if op.id in numbers else NotImplemented, "test")


def barriers(func: Func) -> list[int]:
    return [op.id for op in func.ops() if op.name == "barrier"]


@pytest.mark.parametrize("shared", ["#line", "#swizzled"])
def test_data_crosses_warps_through_shared_memory(shared: str) -> None:
    func = kernel("memory", load("#one") + THROUGH.replace("SHARED", shared) + store("#wide", "%w"))
    for seed in range(4):
        np.testing.assert_array_equal(result(func, X, np.zeros(128, np.float32), seed=seed), X)


@pytest.mark.parametrize("seed", range(8))
def test_missing_barrier_is_detected_for_every_order_of_warps(seed: int) -> None:
    func = kernel("memory", load("#one") + THROUGH.replace("SHARED", "#line") + store("#wide", "%w"))
    with pytest.raises(CompilerBug, match=r"warp \d reads shared memory that (was never written|another warp writes)"):
        result(without(func, *barriers(func)), X, np.zeros(128, np.float32), seed=seed)


LOOP = """
      %0 = const 0 : i32
      %1 = const 1 : i32
      %5 = const 5 : i32
      %b = alloc {offset=0} : buffer<128xf32, #line>
      %r = for %k = %0 to %5 step %1 iter(%acc = %v) : tile<128xf32, #one> {
        local_store %b, %acc
        barrier
        %w = local_load %b : tile<128xf32, #all>
        barrier
        %s = reduce %w {axis=0} add
        %t = splat %s : tile<128xf32, #one>
        %h = const 0.0078125 : tile<128xf32, #one>
        %m = mul %t, %h
        %n = add %m, %acc
        yield %n
      }
      """


def test_removing_any_barrier_of_a_loop_is_detected() -> None:
    func = kernel("memory", load("#one") + LOOP + store("#one", "%r"))
    expected = X.astype(np.float64)
    for _ in range(5):
        expected = expected + expected.mean()
    np.testing.assert_allclose(result(func, X, np.zeros(128, np.float32)), expected, rtol=1e-5)
    assert len(barriers(func)) == 2
    for number in barriers(func):
        for seed in range(4):
            with pytest.raises(CompilerBug, match="no barrier in between|never written"):
                result(without(func, number), X, np.zeros(128, np.float32), seed=seed)


def test_ir_without_barriers_runs_with_implicit_barriers() -> None:
    func = kernel("memory", load("#one") + LOOP + store("#one", "%r"))
    bare, found, expected = without(func, *barriers(func)), np.zeros(128, np.float32), np.zeros(128, np.float32)
    run(func, [X, expected], 1)
    run(bare, [X, found], 1, implicit_barriers=True)
    np.testing.assert_array_equal(found, expected)


def test_without_race_detection_a_missing_barrier_gives_wrong_values_for_some_order() -> None:
    func = kernel("memory", load("#one") + LOOP + store("#one", "%r"))
    expected = result(func, X, np.zeros(128, np.float32))
    second = without(func, barriers(func)[1])
    differs = []
    for seed in range(8):
        found = np.zeros(128, np.float32)
        run(second, [X, found], 1, seed=seed, check_races=False)
        differs.append(not np.array_equal(found, expected))
    assert any(differs)


def test_reading_a_buffer_overwritten_by_another_one_is_an_error() -> None:
    body = """%a = alloc {{offset=0}} : buffer<128xf32, #line>
      %b = alloc {{offset={}}} : buffer<128xf32, #line>
      local_store %a, %v
      barrier
      local_store %b, %v
      barrier
      %w = local_load %a : tile<128xf32, #wide>
      """
    apart = kernel("memory", load("#one") + body.format(512) + store("#wide", "%w"))
    np.testing.assert_array_equal(result(apart, X, np.zeros(128, np.float32)), X)
    overlapping = kernel("memory", load("#one") + body.format(508) + store("#wide", "%w"))
    with pytest.raises(CompilerBug, match="another buffer has overwritten"):
        result(overlapping, X, np.zeros(128, np.float32))


@pytest.mark.parametrize("values", [["%v"], ["%v", "%v"], ["%v", "%n"]])
def test_warps_may_store_equal_values_but_not_different_ones_to_one_address(values: list[str]) -> None:
    stores = "\n".join(f"local_store %b, {value}" for value in values)
    body = f"""%n = neg %v
      %b = alloc {{offset=0}} : buffer<128xf32, #line>
      {stores}
      barrier
      %w = local_load %b : tile<128xf32, #wide>
      """
    func = kernel("memory", load("#wide") + body + store("#wide", "%w"))  # all four warps hold all elements
    if "%n" not in values:
        np.testing.assert_array_equal(result(func, X, np.zeros(128, np.float32)), X)
        return
    with pytest.raises(CompilerBug, match="writes shared memory that another warp writes"):
        result(func, X, np.zeros(128, np.float32))


# Every warp reads another value of the counter, so they diverge.
PART = """%c = load %y
  %one = const 1.0 : f32
  %d = add %c, %one
  store %y, %d
  %first = cmp eq %d, %one
  """


@pytest.mark.parametrize("arms", [("barrier", ""), ("barrier", "barrier")])
def test_a_barrier_that_not_all_warps_reach_is_a_deadlock(arms: tuple[str, str]) -> None:
    body = PART + f"if %first {{\n{arms[0]}\nyield\n}} else {{\n{arms[1]}\nyield\n}}"
    with pytest.raises(CompilerBug, match=f"deadlock: of 4 warps only .* at {1 + bool(arms[1])} different"):
        run(kernel("memory", body), [X, np.zeros(128, np.float32)], 1, check_races=False)


AGAIN = """store %py, %v
  barrier
  %i = arange 0 128 : tile<128xi32, LAYOUT>
  %t = splat %y : tile<128xptr<f32>, LAYOUT>
  %p = ptradd %t, %i
  %w = load %p
  %n = neg %w
  barrier
  store %p, %n"""


def test_global_memory_shared_between_warps_needs_barriers() -> None:
    func = kernel("memory", load("#one") + load("#one", "y") + AGAIN.replace("LAYOUT", "#all"))
    np.testing.assert_array_equal(result(func, X, np.zeros(128, np.float32)), -X)
    for number in barriers(func):
        for seed in range(4):
            with pytest.raises(CompilerBug, match="warp . (reads|writes) elements of `y` that another warp"):
                result(without(func, number), X, np.zeros(128, np.float32), seed=seed)


def test_memory_read_back_by_the_same_thread_needs_no_barrier() -> None:
    func = kernel("memory", load("#one") + load("#one", "y") + AGAIN.replace("LAYOUT", "#one"))
    y = np.zeros((3, 128), np.float32)
    run(without(func, *barriers(func)), [X, y], 1)
    np.testing.assert_array_equal(y[0], -X)


def test_writes_of_several_programs_to_one_array_are_no_race_between_warps() -> None:
    func = kernel("memory", load("#one") + store("#one", "%v"))
    y = np.zeros(128, np.float32)
    run(func, [X, y], 4)
    np.testing.assert_array_equal(y, X)


def test_conversion_within_a_warp_is_valid_and_between_warps_an_error() -> None:
    func = kernel("memory", load("#one") + "%w = convert %v : tile<128xf32, #reversed>\n" + store("#reversed", "%w"))
    np.testing.assert_array_equal(result(func, X, np.zeros(128, np.float32)), X)
    body = load("#one") + "%w = convert %v : tile<128xf32, #wide>\n" + store("#wide", "%w")
    func = parse_func(f"{LAYOUTS}func @f(%x: ptr<f32>, %y: ptr<f32>) memory {{num_warps=4}} {{\n{body}\n}}")
    with pytest.raises(CompilerBug, match="elements that the warp does not hold"):
        result(func, X, np.zeros(128, np.float32))


def test_reduction_between_warps_needs_shared_memory() -> None:
    rows = load("#one") + "%r = reshape %v : tile<4x32xf32, #rows>\n"
    direct = rows + "%m = reduce %r {axis=0} add\n" + store_reduced(named("#rows").slice(0))
    func = parse_func(f"{LAYOUTS}func @f(%x: ptr<f32>, %y: ptr<f32>) memory {{num_warps=4}} {{\n{direct}\n}}")
    with pytest.raises(CompilerBug, match="elements that the warp does not hold"):
        result(func, X, np.zeros(32, np.float32))
    steps = """%k = reduce %r {axis=0, keep=4, layout=#rows} add
      %b = alloc {offset=0} : buffer<4x32xf32, #flat>
      local_store %b, %k
      barrier
      %g = local_load %b : tile<4x32xf32, #columns>
      %m = reduce %g {axis=0} add
      """
    func = kernel("memory", rows + steps + store_reduced(named("#columns").slice(0)))
    np.testing.assert_allclose(result(func, X, np.zeros(32, np.float32)), X.reshape(4, 32).sum(axis=0), rtol=1e-5)


# -- products


def mma_layouts() -> tuple[Layout, Layout, Layout]:
    instruction = find_mma("fp16", "fp32", 80)
    assert instruction is not None
    c = accumulator((32, 32), instruction, (2, 2))
    a, b = operand_a((32, 16), instruction, (2, 2)), operand_b((16, 32), instruction, (2, 2))
    assert a is not None and b is not None and c is not None
    return a, b, c


def multiply(level: str, a_layout: Layout, b_layout: Layout, c_layout: Layout) -> np.ndarray:
    """Stores 32 x 16 ones times 16 x 32 halves, from operands in these layouts."""
    body = f"""%a = const 1.0 : tile<32x16xf16, {a_layout}>
      %b = const 0.5 : tile<16x32xf16, {b_layout}>
      %c = const 2.0 : tile<32x32xf32, {c_layout}>
      %d = dot %a, %b, %c
      %m = reshape %d : tile<1024xf32, {c_layout.reshape((1024,))}>
      """
    func = kernel(level, body + store_reduced(c_layout.reshape((1024,))))
    return result(func, X, np.zeros(1024, np.float32))


@pytest.mark.parametrize("level", ["distributed", "memory"])
def test_mma_product_uses_only_operands_of_its_own_warp(level: str) -> None:
    np.testing.assert_array_equal(multiply(level, *mma_layouts()), np.full(1024, 10))


def test_mma_product_without_all_operands_in_its_warp_is_an_error() -> None:
    a, b, c = mma_layouts()
    elsewhere = a.replace(warp=a.warp[::-1])
    np.testing.assert_array_equal(multiply("distributed", elsewhere, b, c), np.full(1024, 10))
    with pytest.raises(CompilerBug, match="elements that the warp does not hold"):
        multiply("memory", elsewhere, b, c)


def test_a_product_reads_operands_from_shared_memory_after_a_barrier() -> None:
    layout = Layout((16, 16), (1, 2), (4, 8, 16, 32, 64), (128, 0))
    plain = "<16x16: shared 1,2,4,8,16,32,64,128>"
    body = f"""%i = arange 0 256 : tile<256xi32, {layout.reshape((256,))}>
      %t = splat %x : tile<256xptr<f32>, {layout.reshape((256,))}>
      %p = ptradd %t, %i
      %v = load %p
      %a = reshape %v : tile<16x16xf32, {layout}>
      %s = alloc {{offset=0}} : buffer<16x16xf32, {plain}>
      local_store %s, %a
      barrier
      %c = const 0.0 : tile<16x16xf32, {layout}>
      %d = dot %s, %s, %c {{precision="ieee"}}
      %m = reshape %d : tile<256xf32, {layout.reshape((256,))}>
      """
    func = kernel("memory", body + store_reduced(layout.reshape((256,))))
    x = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_allclose(
        result(func, x, np.zeros(256, np.float32)), (x.astype(float) @ x).reshape(-1), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(CompilerBug, match="no barrier in between|never written"):
        result(without(func, *barriers(func)), x, np.zeros(256, np.float32))
