"""Asynchronous copies to shared memory in the interpreter: data arrives at the wait, and an earlier read is an error."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt

from blocknb.codegen import gpu, llvm
from blocknb.errors import CompilerBug
from blocknb.ir.build import rebuild
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.passes.memory.barriers import barriers
from blocknb.target import Target
from blocknb.trace import Notes

#: Adds five strips of 128 numbers through a circular buffer of three stages; each thread reads elements that others copied.
CIRCULAR_BUFFER = """
#quads = <128: reg 1,2 lane 4,8,16,32,64 warp 0,0>
#reversed = <128: reg - lane 64,32,16,8,4 warp 2,1>
#line = <128: shared 1,2,4,8,16,32,64>

func @strips(%x: ptr<f32> div 16, %y: ptr<f32> div 16, %n: i32 div 1) memory {num_warps=4, shared_bytes=1536} {
  %zero = const 0 : i32
  %one = const 1 : i32
  %two = const 2 : i32
  %strip = const 128 : i32
  %buffer = alloc {offset=0} : buffer<3*128xf32, #line>
  %i = arange 0 128 : tile<128xi32, #quads>
  %first = cmp lt %zero, %n
  %second = cmp lt %one, %n
  %x1 = ptradd %x, %strip
  %px = splat %x : tile<128xptr<f32>, #quads>
  %p0 = ptradd %px, %i
  %m0 = splat %first : tile<128xi1, #quads>
  %s0 = stage %buffer, %zero
  copy_async %s0, %p0, %m0 {vec=4}
  commit
  %px1 = splat %x1 : tile<128xptr<f32>, #quads>
  %p1 = ptradd %px1, %i
  %m1 = splat %second : tile<128xi1, #quads>
  %s1 = stage %buffer, %one
  copy_async %s1, %p1, %m1 {vec=4}
  commit
  %nothing = const 0.0 : tile<128xf32, #reversed>
  %s, %rl, %wl = for %k = %zero to %n step %one iter(%acc = %nothing, %read = %zero, %write = %two) : tile<128xf32, #reversed>, i32, i32 {
    wait {in_flight=1}
    %later = add %k, %two
    %there = cmp lt %later, %n
    %at = mul %later, %strip
    %base = ptradd %x, %at
    %pb = splat %base : tile<128xptr<f32>, #quads>
    %p = ptradd %pb, %i
    %m = splat %there : tile<128xi1, #quads>
    %to = stage %buffer, %write
    copy_async %to, %p, %m {vec=4}
    commit
    %from = stage %buffer, %read
    %v = local_load %from : tile<128xf32, #reversed>
    %more = add %acc, %v
    %r1 = add %read, %one
    %r2 = cmp gt %r1, %two
    %r3 = select %r2, %zero, %r1
    %w1 = add %write, %one
    %w2 = cmp gt %w1, %two
    %w3 = select %w2, %zero, %w1
    yield %more, %r3, %w3
  }
  wait {in_flight=0}
  %j = arange 0 128 : tile<128xi32, #reversed>
  %py = splat %y : tile<128xptr<f32>, #reversed>
  %q = ptradd %py, %j
  store %q, %s
}
"""
SM80 = Target.parse("sm_80")


def buffer() -> Func:
    func = parse_func(CIRCULAR_BUFFER)
    verify(func)
    return barriers(func, SM80, Notes("barriers"))


def strips(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(128 * count, dtype=np.float32) ** 2 % 97, np.full(128, np.nan, np.float32)


def without(func: Func, *names: str) -> Func:
    return rebuild(func, lambda op, _: () if op.name in names else NotImplemented, "test")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_every_thread_reads_every_strip_of_a_circular_buffer(count: int) -> None:
    func = buffer()
    assert print_func(parse_func(print_func(func))) == print_func(func)
    for seed in range(3):
        x, y = strips(count)
        run(func, [x, y, count], 1, seed=seed)
        np.testing.assert_array_equal(y, x.reshape(-1, 128).sum(axis=0))
    x, y = strips(count)
    simt.run(gpu.generate(func, SM80), [x, y, count], (1,))
    np.testing.assert_array_equal(y, x.reshape(-1, 128).sum(axis=0))


def test_one_barrier_per_iteration_is_necessary_and_sufficient() -> None:
    func = buffer()
    loop = next(op for op in func.ops() if op.name == "for")
    assert [op.name for op in loop.blocks[0].ops].count("barrier") == 1
    x, y = strips(5)
    with pytest.raises(CompilerBug, match="another warp (reads|writes)|a copy to it is in flight|never written"):
        run(without(func, "barrier"), [x, y, 5], 1)


@pytest.mark.parametrize("late", [2, 3])
def test_a_read_of_a_copy_in_flight_is_an_error(late: int) -> None:
    func = rebuild(
        buffer(),
        lambda op, r: (
            (r.builder.op("wait", in_flight=late), ())[1]
            if op.name == "wait" and op.attrs["in_flight"] == 1
            else NotImplemented
        ),
        "test",
    )
    x, y = strips(5)
    with pytest.raises(CompilerBug, match="reads shared memory while a copy to it is in flight"):
        run(func, [x, y, 5], 1)


def test_ending_a_program_with_copies_in_flight_is_an_error() -> None:
    func = rebuild(
        buffer(), lambda op, _: () if op.name == "wait" and not op.attrs["in_flight"] else NotImplemented, "test"
    )
    x, y = strips(5)
    with pytest.raises(CompilerBug, match="ends while copies to shared memory are in flight"):
        run(func, [x, y, 5], 1)


def test_a_stage_outside_of_the_circular_buffer_is_an_error() -> None:
    with pytest.raises(CompilerBug, match="select one of its stages first"):
        verify(parse_func(CIRCULAR_BUFFER.replace("local_load %from", "local_load %buffer")))
    x, y = strips(5)
    for old, new in (("%to = stage %buffer", "%to = stage %s0"), ("stage %buffer, %read", "stage %buffer, %at")):
        func = barriers(parse_func(CIRCULAR_BUFFER.replace(old, new)), SM80, Notes("barriers"))
        with pytest.raises(CompilerBug, match="stage 2 of a circular buffer of 1|stage 256 of a circular buffer of 3"):
            run(func, [x, y, 5], 1)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_copies_are_lowered_to_cp_async(name: str) -> None:
    target = Target.parse(name)
    text = gpu.generate(buffer(), target).text
    job = {"kind": "ptx", "opt": 1, "llvm": False, "arch": target.arch, "features": target.features, "text": text}
    ptx = llvm.shared().submit(job).result()["ptx"]
    assert ptx.count("cp.async.cg.shared.global") == 3 and ptx.count("cp.async.wait_group") == 2
