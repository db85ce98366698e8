"""Hints on accesses reach PTX: cache operators, eviction policies, volatility, and alignment promises that widen accesses."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fuzz import simt
from kernels import Case

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu, llvm
from blocknb.ir.text import parse_func, print_func
from blocknb.kernels.descriptors import matmul_descriptor_kernel
from blocknb.target import Target

ARGUMENTS = {
    "table": np.zeros(1, np.int64),
    "x": np.zeros(4096, np.float32),
    "out": np.zeros(4096, np.float32),
    "stride": 25,
    "n": 77,
    "BLOCK": 1024,
}


def accesses(kernel) -> list[str]:
    """The loads and stores of global memory in the PTX, in order and without repetitions."""
    target = Target.parse("sm_90a")
    given = {p.name: ARGUMENTS[p.name] for p in kernel.source.parameters}
    func, _ = Case("hints", kernel, dict, dict).lower(given, "sm_90a")
    job = {"kind": "ptx", "text": gpu.generate(func, target).text, "opt": 1, "llvm": False}
    job |= {"arch": target.arch, "features": target.features}
    ptx = llvm.shared().submit(job).result()["ptx"]
    return list(dict.fromkeys(re.findall(r"\b(?:ld|st|atom|red)\.\S*global\S*", ptx)))


@blocknb.kernel
def hinted(x, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i, cache_modifier=".cg")
    v += bl.load(x + 1024 + i, eviction_policy="evict_first")
    v += bl.load(x + 2048 + i, eviction_policy="evict_last", mask=i < 100, other=1.0)
    v += bl.load(x + 3072 + i, volatile=True)
    bl.store(out + i, v, cache_modifier=".cs")
    bl.store(out + 1024 + i, v, eviction_policy="evict_first")
    bl.store(out + 2048 + i, v, cache_modifier=".wt", mask=i < 1000)


def test_cache_operators_eviction_and_volatility_reach_ptx():
    assert accesses(hinted) == [
        "ld.global.cg.v4.b32",
        "ld.global.L1::evict_first.L2::cache_hint.v4.b32",
        "ld.global.L1::evict_last.L2::cache_hint.v4.b32",
        "ld.volatile.global.v4.b32",
        "st.global.cs.v4.b32",
        "st.global.L1::evict_first.L2::cache_hint.v4.b32",
        "st.global.wt.v4.b32",
    ]


@blocknb.kernel
def no_promise(x, out, stride, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + bl.program_id(0) * stride + i))


@blocknb.kernel
def assumed_argument(x, out, stride, BLOCK: bl.constexpr):
    bl.assume(stride % 8 == 0)
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + bl.program_id(0) * stride + i))


@blocknb.kernel
def assumed_value(x, out, stride, BLOCK: bl.constexpr):
    start = bl.program_id(0) * stride
    later = start * 3
    bl.assume((later > 0) & (start % 4 == 0))
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + start + i))


@blocknb.kernel
def promised_offset(x, out, stride, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    at = bl.max_contiguous(bl.multiple_of((i + stride) % 4096, BLOCK), BLOCK)
    bl.store(out + i, bl.load(x + at))


@blocknb.kernel
def promised_pointer(table, out, BLOCK: bl.constexpr):
    p = bl.multiple_of(bl.load(table).to(bl.pointer_type(bl.float32)), 16)
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(p + i))


@blocknb.kernel
def promised_pointers(table, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    p = bl.load(table).to(bl.pointer_type(bl.float32)) + i
    bl.store(out + i, bl.load(bl.multiple_of(p, [16])))


@blocknb.kernel
def chosen_pointer(x, out, stride, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    p = x
    if stride > 3:
        p = out + 2048
    bl.store(out + i, bl.load(p + i))


@blocknb.kernel
def promised_index(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    for start in range(n, 4096, BLOCK):
        start = bl.multiple_of(start, BLOCK)
        total += bl.load(x + start + bl.arange(0, BLOCK))
    bl.store(out + bl.arange(0, BLOCK), total)


@blocknb.kernel
def promised_after_a_cast(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    while n < 4096:
        start = bl.multiple_of(n, 8).to(bl.int64)
        total += bl.load(x + start + bl.arange(0, BLOCK))
        n = n * 2
    bl.store(out + bl.arange(0, BLOCK), total)


@blocknb.kernel
def part(p, start, BLOCK: bl.constexpr):
    start = bl.multiple_of(start, 8)
    return bl.load(p + start + bl.arange(0, BLOCK))


@blocknb.kernel
def promised_by_a_helper(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    if n > 3:
        total = part(x, n, BLOCK)
    bl.store(out + bl.arange(0, BLOCK), total)


@blocknb.kernel
def promised_along_an_axis(x, out, n):
    row, column = bl.arange(0, 32)[:, None], bl.arange(0, 32)[None, :]
    at = bl.max_contiguous(bl.multiple_of((row * n + column) % 4096, (1, 32)), (1, 32))
    bl.store(out + row * 32 + column, bl.load(x + at))


@pytest.mark.parametrize(
    "kernel",
    [
        promised_index,
        promised_after_a_cast,
        promised_by_a_helper,
        promised_along_an_axis,
        assumed_argument,
        assumed_value,
        promised_offset,
        promised_pointer,
        promised_pointers,
        chosen_pointer,
    ],
    ids=lambda k: k.__name__,
)
def test_alignment_hint_widens_the_load(kernel):
    assert "ld.global.v4.b32" in accesses(kernel)


@blocknb.kernel
def index_from_anywhere(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    for start in range(n, 4096, BLOCK):
        total += bl.load(x + start + bl.arange(0, BLOCK))
    bl.store(out + bl.arange(0, BLOCK), total)


@pytest.mark.parametrize("without", [no_promise, index_from_anywhere], ids=lambda k: k.__name__)
def test_load_without_alignment_hint_stays_narrow(without):
    assert accesses(without) == ["ld.global.b32", "st.global.v4.b32"]


@blocknb.kernel
def assumed_in_a_branch(x, out, stride, BLOCK: bl.constexpr):
    start = bl.program_id(0) * stride
    i = bl.arange(0, BLOCK)
    if stride > 100:
        bl.assume(start % 4 == 0)
    bl.store(out + i, bl.load(x + start + i))


def test_assumption_in_a_branch_does_not_hold_outside():
    assert accesses(assumed_in_a_branch) == ["ld.global.b32", "st.global.v4.b32"]


@blocknb.kernel
def ordered(x, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.atomic_add(out + i % 3, bl.load(x + i), sem="relaxed", scope="cta")
    old = bl.atomic_xchg(out + 7, 1.0, sem="acquire", scope="sys")
    bl.atomic_max(out + 8, old, sem="release")


def test_order_and_scope_reach_ptx_and_unused_atomic_results_are_not_returned():
    found = [a for a in accesses(ordered) if not a.startswith(("ld", "st"))]
    assert found == [
        "red.relaxed.cta.global.add.f32",
        "atom.acquire.sys.global.exch.b32",
        "red.relaxed.gpu.global.max.s32",
        "red.relaxed.gpu.global.min.u32",
    ]


@blocknb.kernel
def added(x, out, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i)
    bl.atomic_add(out + i, v, sem="relaxed")
    bl.atomic_add(out + i, v, mask=i < n, sem="relaxed")
    bl.store(x + i, bl.atomic_add(out + i, v, sem="relaxed"))


def test_neighbouring_atomic_additions_use_vector_instructions():
    found = [a for a in accesses(added) if not a.startswith(("ld", "st"))]
    assert found == [
        "red.relaxed.gpu.global.add.v4.f32",
        "red.relaxed.gpu.global.add.f32",  # n may be anything
        "atom.relaxed.gpu.global.add.f32",  # whose result is asked for
    ]


@blocknb.kernel
def assumed_large(x, out, n, BLOCK: bl.constexpr):
    bl.assume(n >= BLOCK)
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + i, mask=i < n, other=3.0))


@blocknb.kernel
def assumed_between(x, out, n, BLOCK: bl.constexpr):
    first = bl.load(x).to(bl.int32)
    bl.assume((0 <= first) & (first < 100) & (n > 200))
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + i, mask=(first < n) & (first.to(bl.int64) > -1)))


@blocknb.kernel
def not_assumed(x, out, n, BLOCK: bl.constexpr):
    if n > 5000:
        bl.assume(n >= BLOCK)
    i = bl.arange(0, BLOCK)
    bl.store(out + i, bl.load(x + i, mask=i < n, other=3.0))


@pytest.mark.parametrize(("kernel", "masks"), [(assumed_large, 0), (assumed_between, 0), (not_assumed, 1)])
def test_assumed_bounds_remove_masks_that_they_imply(kernel, masks):
    given = {p.name: ARGUMENTS[p.name] for p in kernel.source.parameters}
    func, stages = Case("hints", kernel, dict, dict).lower(given, "sm_90a")
    assert sum(len(op.args) > 1 for op in func.ops() if op.name == "load") == masks
    text = print_func(stages[0].before, locs=True)
    assert print_func(parse_func(text), locs=True) == text


def test_loop_is_unrolled_by_its_unroll_factor():
    @blocknb.kernel
    def k(x, out, n):
        total = 0.0
        for i in bl.range(
            0, n, loop_unroll_factor=4, num_stages=2, flatten=True, warp_specialize=False, disable_licm=True
        ):
            total += bl.load(x + i)
        bl.store(out, total)

    given = {p.name: ARGUMENTS[p.name] for p in k.source.parameters}
    func, _ = Case("hints", k, dict, dict).lower(given, "sm_90a")
    loops = [op for op in func.ops() if op.name == "for"]
    assert [sum(op.name == "load" for op in loop.blocks[0].ops) for loop in loops] == [4, 1]


@blocknb.kernel
def streamed(x, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i, eviction_policy="evict_first")
    v += bl.load(x + BLOCK + i, eviction_policy="evict_last", mask=i < 100, other=1.0)
    bl.store(out + i, v, eviction_policy="evict_first", mask=i < 1000)


def test_loads_and_stores_with_a_policy_give_the_same_results() -> None:
    x, out = np.arange(4096, dtype=np.float32), np.full(4096, np.nan, np.float32)
    func, _ = Case("streamed", streamed, dict, dict).lower({"x": x, "out": out, "BLOCK": 1024}, "sm_90a")
    simt.run(gpu.generate(func, Target.parse("sm_90a")), [x, out], [1])
    expected = x[:1024] + np.where(np.arange(1024) < 100, x[1024:2048], 1)
    assert (out[:1000] == expected[:1000]).all()
    assert np.isnan(out[1000:]).all()


def test_the_policy_of_a_descriptor_reaches_the_copy_engine() -> None:
    arrays, numbers = (
        dict.fromkeys("abc", "*fp16:16"),
        dict.fromkeys(("m", "n", "k", "a_step", "b_step", "c_step"), "i32:16"),
    )
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP": 8, "num_warps": 4, "num_stages": 4}
    for policy, count in (("", 0), ("evict_first", 1)):
        made = matmul_descriptor_kernel.compile(**arrays, **numbers, **tile, KEEP_B=policy, target="sm_90a")
        copies = [
            line for line in made.artifacts["ptx"].splitlines() if "cp.async.bulk.tensor" in line and "mbarrier" in line
        ]
        assert len(copies) == 2
        assert sum(".L2::cache_hint" in line for line in copies) == count


@blocknb.kernel
def many_registers(x, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i[:, None] * 0 + bl.arange(0, 64)[None, :])
    bl.store(out + i, bl.sum(bl.sort(v * i[:, None].to(bl.float32)), 1))


@pytest.mark.parametrize(("warps", "most", "rows"), [(1, 40, 32), (4, 24, 64), (4, 32, 64), (8, 40, 128)])
def test_maxnreg_limits_the_registers(warps: int, most: int, rows: int) -> None:
    found = [
        many_registers.compile(
            x="*fp32:16", out="*fp32:16", BLOCK=rows, num_warps=warps, maxnreg=limit, target="sm_90a"
        ).trace.resources.registers
        for limit in (None, most)
    ]
    assert found[1] <= most < found[0]


@pytest.mark.parametrize("policy", ["evict_first", "evict_last"])
def test_gpus_before_sm_80_have_no_policy_of_the_l2_cache(policy: str) -> None:
    made = hinted_copy.compile(x="*fp32:16", out="*fp32:16", POLICY=policy, target="sm_75")
    assert ".L2::cache_hint" not in made.asm["ptx"] and f".L1::{policy}" in made.asm["ptx"]


@blocknb.kernel
def hinted_copy(x, out, POLICY: bl.constexpr):
    i = bl.arange(0, 128)
    bl.store(out + i, bl.load(x + i, eviction_policy=POLICY))


def test_maxnreg_must_be_a_number_of_registers() -> None:
    with pytest.raises(blocknb.LaunchError, match="maxnreg is 0"):
        many_registers.compile(x="*fp32:16", out="*fp32:16", BLOCK=128, maxnreg=0, target="sm_90a")


@blocknb.kernel
def pipelined(a, b, out, k, MODIFIER: bl.constexpr, POLICY: bl.constexpr, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    total = bl.zeros((BLOCK, BLOCK), bl.float32)
    for start in range(0, k, BLOCK):
        x = bl.load(a + at[:, None] * k + (start + at)[None, :], cache_modifier=MODIFIER, eviction_policy=POLICY)
        total = bl.dot(x, bl.load(b + (start + at)[:, None] * BLOCK + at[None, :]), total)
    bl.store(out + at[:, None] * BLOCK + at[None, :], total)


@pytest.mark.parametrize(
    ("modifier", "policy", "copies", "lost"),
    [
        ("", "", {"cg"}, False),
        ("", "evict_first", {"cg", "cg.L2::cache_hint"}, False),
        (".ca", "", {"ca", "cg"}, False),
        (".cg", "evict_first", {"cg"}, False),  # PTX takes a policy or a modifier
        (".cs", "", {"cg"}, True),
    ],
)
def test_hints_of_a_load_that_becomes_an_asynchronous_copy_reach_ptx_or_a_note(modifier, policy, copies, lost) -> None:
    types = dict.fromkeys("ab", "*fp16:16") | {"out": "*fp32:16", "k": "i32:16", "BLOCK": 64, "num_stages": 3}
    made = pipelined.compile(**types, MODIFIER=modifier, POLICY=policy, target="sm_80")
    found = re.findall(r"cp\.async\.(c[ag])\.shared\.global(\S*)", made.artifacts["ptx"])
    assert {operator + hint for operator, hint in found} == copies
    notes = [note.text for stage in made.trace.stages for note in stage.notes]
    assert any(f"; its cache modifier {modifier} has no effect on such a copy" in text for text in notes) == lost


@pytest.mark.parametrize(("target", "hints"), [("sm_80", True), ("sm_89", True), ("sm_90a", False), ("sm_120a", False)])
def test_from_sm_90_on_a_note_names_the_eviction_policy_that_a_copy_loses(target, hints) -> None:
    types = dict.fromkeys("ab", "*fp16:16") | {"out": "*fp32:16", "k": "i32:16", "BLOCK": 64, "num_stages": 3}
    given = {"MODIFIER": "", "POLICY": "evict_last", "without": ("warp_specialization",), "target": target}
    made = pipelined.compile(**types, **given)
    copies = [line for line in made.artifacts["ptx"].splitlines() if "cp.async.c" in line and "shared.global" in line]
    assert copies and any("cache_hint" in line for line in copies) == hints
    notes = [note.text for stage in made.trace.stages for note in stage.notes]
    assert sum("; its eviction policy evict_last has no effect" in text for text in notes) == (not hints)


def test_a_copy_by_tma_notes_the_cache_modifier_that_it_loses() -> None:
    types = dict.fromkeys("ab", "*fp16:16") | {"out": "*fp32:16", "k": "i32:16", "BLOCK": 64}
    for modifier, count in (("", 0), (".ca", 1)):
        made = pipelined.compile(**types, MODIFIER=modifier, POLICY="", target="sm_90a")
        notes = [note.text for stage in made.trace.stages for note in stage.notes if "copied by TMA" in note.text]
        assert len(notes) == 2
        assert sum(f"; its cache modifier {modifier} has no effect on such a copy" in text for text in notes) == count
