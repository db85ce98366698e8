"""The verifier's rules for warp roles: each rule is violated once in a correct product."""

from __future__ import annotations

from itertools import pairwise

import pytest
from warp_specialized_kernels import HOPPER, PRODUCTS, Product

from blocknb.errors import CompilerBug
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify
from blocknb.layouts.shared import boxed, row_major, swizzled
from blocknb.passes.memory.shared_memory_allocation import shared_memory_allocation
from blocknb.trace import Notes

PRODUCT = Product("nt", persistent=True, bulk=True)
PRODUCER, CONSUMERS = "} else {", "roles {warps=(4, 1)} {"

BROKEN = [
    # Roles.
    (CONSUMERS, "roles {warps=(8, 1)} {", "1 x 4 warps of programs in consumer groups of 8"),
    (CONSUMERS, "roles {warps=(4, 1), registers=(240, 24)} {", "registers are reallocated per group of 4"),
    (CONSUMERS, "roles {warps=(4, 4), registers=(240, 20)} {", "multiples of 8 from 24"),
    (CONSUMERS, "%t = const 0.0 : tile<64xf32, #rows>\nfence\n" + CONSUMERS, "fence before the roles"),
    (CONSUMERS, "if %yes {\nbarrier\nyield\n} else {\nyield\n}\n" + CONSUMERS, "barrier before the roles"),
    (PRODUCER, PRODUCER + "\nbarrier", "a producer warp cannot execute barrier"),
    (PRODUCER, PRODUCER + "\nfence", "a producer warp cannot execute fence"),
    (PRODUCER, PRODUCER + "\narrive %full, %zero", "a producer warp cannot execute arrive"),
    (PRODUCER, PRODUCER + "\nstore_wait {in_flight=0}", "a producer warp cannot execute store_wait"),
    (PRODUCER, PRODUCER + "\nstore %a, %half", "a producer warp cannot execute store"),
    (PRODUCER, PRODUCER + "\n%u = const 0.0 : tile<64xf32, #rows>", "%u is a tile, but a producer warp has no tiles"),
    (PRODUCER, PRODUCER + "\n%u = alloc {align=1024} : buffer<64x64xf16, #a>", "a producer warp cannot execute alloc"),
    (CONSUMERS, CONSUMERS + "\nexpect %full, %zero {bytes=8}", "consumer warps cannot execute expect"),
    (CONSUMERS, CONSUMERS + "\ncopy_bulk %rc, %ma, %full, %zero, %zero, %zero {axes=(0, 1)}", "consumer warps cannot execute copy_bulk"),
    # mbarriers and maps.
    (CONSUMERS, CONSUMERS + "\n%inner = mbarriers {stages=1, arrivals=1} : mbarriers<1>", "mbarriers must be made at the top level"),
    (CONSUMERS, CONSUMERS + "\n%mi = tensor_map %a, %m, %k, %lda : map<64x64xf16, 128>", "tensor maps must be made at the top level"),
    ("%ma = tensor_map %a, %m", "%r = cta_id\n%ma = tensor_map %a, %r", "%r is made by cta_id"),
    ("%ma = tensor_map %a,", "%q = ptradd %a, %m\n%ma = tensor_map %q,", "the pointer of a tensor map must be a parameter"),
    ("%first_consumer = cta_id", "%first_consumer = program_id 0", "a CTA that runs several programs has no program id"),
    ("num_warps=4, persistent=True", "num_warps=4", "cta_id in a function that is not persistent"),
    # How boxes lie in buffers.
    ("map<64x64xf16, 128>", "map<64x32xf16, 128>", "rows of 64 bytes under a swizzle of 128"),
    ("map<64x64xf16, 128>", "map<64x32xf16, 64>", "lie in a buffer as"),
    ("map<64x64xf16, 128>", "map<64x64xf16, 0>", "lie in a buffer as"),
    ("map<64x64xf16, 128>", "map<64x4xf16, 0>", "rows of multiples of 16 bytes, not of 8"),
    ("map<64x64xf16, 128>", "map<128x64xf16, 128>", "do not fill"),
    ("{axes=(1, 0)}", "{axes=(0, 1)}", "lie in a buffer as"),
    ("%rc = alloc {align=1024}", "%rc = alloc", "at multiples of 128 bytes, not of 1024"),
    ("%ra = alloc {align=1024}", "%ra = alloc {align=512}", "at multiples of 512 bytes, not of 1024"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=[message for *_, message in BROKEN])
def test_each_broken_rule_is_reported(old: str, new: str, message: str) -> None:
    text = PRODUCT.text.replace("%ma = ", "%yes = cmp gt %m, %zero\n%half = const 0.0 : f16\n%ma = ", 1)
    verify(parse_func(text))
    assert old in text
    with pytest.raises(CompilerBug, match=message.replace("(", r"\(")):
        verify(parse_func(text.replace(old, new)))


def test_roles_must_end_the_function() -> None:
    text = PRODUCT.text.rstrip().removesuffix("}")
    verify(parse_func(text + "}"))
    with pytest.raises(CompilerBug, match="must be the last op of a function"):
        verify(parse_func(text + "barrier\n}"))


def test_values_of_a_producer_must_be_computed_from_scalars() -> None:
    made = "%t = arange 0 64 : tile<64xi32, #columns>\n%s = reduce %t {axis=0} add\n"
    text = PRODUCT.text.replace(CONSUMERS, made + CONSUMERS).replace(
        "%depth = mul %copy, %size", "%depth = mul %copy, %s"
    )
    with pytest.raises(CompilerBug, match="the producer needs %s, which depends on the tile %t"):
        verify(parse_func(text))


def test_mbarrier_ops_outside_of_roles_are_refused() -> None:
    lines = ["%full = mbarriers {stages=1, arrivals=1} : mbarriers<1>", "%zero = const 0 : i32"]
    for op in ("await %full, %zero, %zero", "arrive %full, %zero", "expect %full, %zero {bytes=8}"):
        text = "\n".join(["func @f() memory {num_warps=4} {", *lines, op, "}"])
        with pytest.raises(CompilerBug, match=f"{op.split()[0]} without roles"):
            verify(parse_func(text))


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
def test_circular_buffers_and_mbarriers_do_not_overlap(product: Product) -> None:
    func = shared_memory_allocation(product.written(), HOPPER, Notes("shared_memory_allocation"))
    verify(func)
    places = []
    for op in func.ops():
        if op.name in ("alloc", "mbarriers"):
            places.append((op.attrs["offset"], op.attrs["offset"] + op.result.type.bytes))
    assert len(places) == 4 + product.bulk
    places.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    assert places[-1][1] == func.attrs["shared_bytes"]


@pytest.mark.parametrize("change", [("offset=", 4), ("offset=", 1 << 20)])
def test_mbarriers_lie_within_shared_memory_at_multiples_of_8_bytes(change: tuple) -> None:
    func = shared_memory_allocation(PRODUCT.written(), HOPPER, Notes("shared_memory_allocation"))
    ops = tuple(
        op.replace(attrs={**op.attrs, "offset": op.attrs["offset"] + change[1]}) if op.name == "mbarriers" else op
        for op in func.body.ops
    )
    with pytest.raises(CompilerBug, match=r"mbarriers at offset \d+"):
        verify(func.replace(body=type(func.body)(func.body.args, ops)))


def test_boxed_layouts_equal_wgmma_swizzles_or_contiguous_panels() -> None:
    for inner in (0, 1):
        order = (inner, 1 - inner)
        for swizzle in (32, 64, 128):
            assert boxed((64, 128), 16, inner, swizzle // 2, swizzle) == swizzled((64, 128), 16, order, swizzle)
        assert boxed((64, 128), 16, inner, (64, 128)[inner], 0) == row_major((64, 128), order)
    panels = boxed((4, 32), 16, 1, 8, 0)
    assert [panels.offset(index) for index in (1, 7, 8, 16, 32, 33)] == [1, 7, 32, 64, 8, 9]
