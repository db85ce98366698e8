"""The memory effects of ops, including the effects of nested ops."""

from __future__ import annotations

import pytest

from blocknb.analysis.effects import effects, has_side_effects
from blocknb.ir.core import Op
from blocknb.ir.text import parse_func


def op_of(body: str, name: str, level: str = "tile") -> Op:
    text = f"func @f(%p: ptr<f32>, %n: i32, %c: i1) {level} {{\n{body}\n}}"
    return next(op for op in parse_func(text).ops() if op.name == name)


def test_a_load_reads_and_a_store_writes_global_memory() -> None:
    load = effects(op_of("%x = load %p", "load"))
    store = effects(op_of("%x = load %p\nstore %p, %x", "store"))
    assert (load.reads, load.writes) == ({"global"}, set())
    assert (store.reads, store.writes) == (set(), {"global"})
    assert load.conflicts(store) and store.conflicts(load) and store.conflicts(store)
    assert not load.conflicts(load)


def test_a_product_reads_shared_memory_only_for_operands_in_it() -> None:
    buffers = """
      %a = alloc {offset=0} : buffer<16x16xf16, <16x16: shared 1,2,4,8,16,32,64,128>>
      %r = local_load %a : tile<16x16xf16, <16x16: reg 1,2,4 lane 8,16,32,64,128 warp ->>
      %z = const 0.0 : tile<16x16xf32, <16x16: reg 1,2,4 lane 8,16,32,64,128 warp ->>"""
    assert effects(op_of(buffers + "\n%d = dot %a, %a, %z", "dot", "memory")).reads == {"shared"}
    assert effects(op_of(buffers + "\n%d = dot %r, %r, %z", "dot", "memory")).reads == set()


@pytest.mark.parametrize(("inner", "expected"), [("%x = load %p", False), ("store %p, %f", True), ("barrier", True)])
def test_a_branch_has_the_effects_of_its_ops(inner: str, expected: bool) -> None:
    body = f"%f = const 0.0 : f32\nif %c {{\n{inner}\nyield\n}} else {{\nyield\n}}"
    assert has_side_effects(op_of(body, "if")) == expected


def test_a_while_loop_has_side_effects() -> None:
    body = "%r = while (%i = %n) {\ncondition %c, %i\n} do (%j: i32) {\nyield %j\n}"
    assert has_side_effects(op_of(body, "while"))


def test_a_volatile_load_is_not_removable_and_keeps_its_order() -> None:
    volatile = op_of("%x = load %p {volatile=True}", "load")
    assert has_side_effects(volatile)
    assert effects(volatile).conflicts(effects(op_of("%x = load %p", "load")))


def test_a_barrier_orders_accesses_but_not_arithmetic() -> None:
    barrier = effects(op_of("barrier", "barrier"))
    assert barrier.conflicts(effects(op_of("%x = load %p", "load")))
    assert not barrier.conflicts(effects(op_of("%m = add %n, %n", "add")))
