"""Which accesses each reordering may cross: every pass that moves loads, against every kind of access and fence.

A kernel has a load that the pass likes to move, and one other access in its way. The table says for each pair whether the load moves. The
promises are in docs/design/memory_order.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as tl
from blocknb.ir.core import Func
from blocknb.passes.support.emission import IN_PIECES

#: Accesses that no load may cross, whatever the pass.
FENCES = (
    "volatile load",
    ".cv load",
    "acquire",
    "acquire release",
    "wait for an atomic",
    "wait for a volatile load",
    "wait for a .cv load",
    "debug_barrier",
    "assembly",
)
#: Accesses to other arrays that give no order: a later load may move before them.
WEAK = ("nothing", "load", ".cg load", ".ca load", "evict_first load", "pure assembly")
#: They write, but order nothing that follows them.
WRITES = ("relaxed", "release", "acquire without a result", "store", ".wt store", ".wb store")
KINDS = (*FENCES, *WEAK, *WRITES, "store to the array")


@blocknb.kernel
def between(flag, x, KIND: tl.constexpr):
    """One access of a kind; returns a number that depends on what it reads."""
    found = 0.0
    if KIND == "volatile load":
        found = tl.load(flag, volatile=True).to(tl.float32)
    elif KIND == ".cv load":
        found = tl.load(flag, cache_modifier=".cv").to(tl.float32)
    elif KIND == "acquire":
        found = tl.atomic_add(flag, 1, sem="acquire").to(tl.float32)
    elif KIND == "acquire release":
        found = tl.atomic_add(flag, 1).to(tl.float32)
    elif KIND == "acquire without a result":
        tl.atomic_add(flag, 1, sem="acquire")
    elif KIND == "wait for an atomic":
        while tl.atomic_add(flag, 0, sem="relaxed") == 0:
            pass
    elif KIND == "wait for a volatile load":
        while tl.load(flag, volatile=True) == 0:
            pass
    elif KIND == "wait for a .cv load":
        while tl.load(flag, cache_modifier=".cv") == 0:
            pass
    elif KIND == "debug_barrier":
        tl.debug_barrier()
    elif KIND == "assembly":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [0], dtype=tl.int32, is_pure=False, pack=1)
    elif KIND == "pure assembly":
        found = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [0], dtype=tl.int32, is_pure=True, pack=1).to(
            tl.float32
        )
    elif KIND == "load":
        found = tl.load(flag).to(tl.float32)
    elif KIND == ".cg load":
        found = tl.load(flag, cache_modifier=".cg").to(tl.float32)
    elif KIND == ".ca load":
        found = tl.load(flag, cache_modifier=".ca").to(tl.float32)
    elif KIND == "evict_first load":
        found = tl.load(flag, eviction_policy="evict_first").to(tl.float32)
    elif KIND == "relaxed":
        found = tl.atomic_add(flag, 1, sem="relaxed").to(tl.float32)
    elif KIND == "release":
        found = tl.atomic_add(flag, 1, sem="release").to(tl.float32)
    elif KIND == "store":
        tl.store(flag, 1)
    elif KIND == ".wt store":
        tl.store(flag, 1, cache_modifier=".wt")
    elif KIND == ".wb store":
        tl.store(flag, 1, cache_modifier=".wb")
    elif KIND == "store to the array":
        tl.store(x, 1.0)
    return found


@blocknb.kernel(do_not_specialize=["n"])
def row_sums(x, flag, out, n, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """A loop whose loads the pass register_prefetch issues an iteration early."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.range(n, num_stages=2):
        total += between(flag, x, KIND)
        total += tl.load(x + i * BLOCK + at)
    tl.store(out + at, total)


@blocknb.kernel(do_not_specialize=["n"])
def unstaged_sums(x, flag, out, n, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """A loop whose loads the pass early_loads issues at the head of their iteration."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(n):
        total += between(flag, x, KIND)
        total += tl.load(x + i * BLOCK + at)
    tl.store(out + at, total)


@blocknb.kernel(do_not_specialize=["n"])
def product(x, flag, out, n, KIND: tl.constexpr):
    """A loop whose tiles are copied ahead, by the warps or by a warp of its own."""
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    for step in range(n):
        seen = between(flag, x, KIND)
        a = tl.load(x + i[:, None] * 4096 + (step * 64 + k)[None, :])
        b = tl.load(x + (step * 64 + k)[:, None] * 64 + i[None, :])
        total = tl.dot(a, b, total) + seen
    tl.store(out + i[:, None] * 64 + i[None, :], total)


@blocknb.kernel
def long_row(x, flag, out, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """A row beyond the registers, whose load strip_mining postpones to the store."""
    at = tl.arange(0, BLOCK)
    row = tl.load(x + at)
    seen = between(flag, x, KIND)
    tl.store(out + at, row * 2 + seen)


@blocknb.kernel(do_not_specialize=["n"])
def product_with_bias(x, y, bias, flag, out, n, KIND: tl.constexpr):
    """A large product, whose bias epilogue_subtiling loads part by part at the store."""
    i, j, k = tl.arange(0, 128), tl.arange(0, 256), tl.arange(0, 64)
    total = tl.zeros((128, 256), tl.float32)
    for step in range(n):
        a = tl.load(x + i[:, None] * 4096 + (step * 64 + k)[None, :])
        b = tl.load(y + (step * 64 + k)[:, None] * 256 + j[None, :])
        total = tl.dot(a, b, total)
    more = tl.load(bias + i[:, None] * 256 + j[None, :])
    seen = between(flag, bias, KIND)
    tl.store(out + i[:, None] * 256 + j[None, :], total + more + seen)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


FLAG = {"flag": array(1, dtype=np.int32)}
HALVES = {"x": array(64, 4096, dtype=np.float16), "out": array(64, 64)}
WIDE = {
    "x": array(128, 4096, dtype=np.float16),
    "y": array(4096, 256, dtype=np.float16),
    "bias": array(128, 256),
    "out": array(128, 256),
}


def has(name: str) -> Any:
    return lambda func: any(op.name == name for op in func.ops())


def streams(func: Func) -> bool:
    """Whether a load of a tile is issued in pieces at its last consumer."""
    return any(op.name == "load" and op.result.type.shape and op.attrs.get("emit") == IN_PIECES for op in func.ops())


def loads_parts(func: Func) -> bool:
    """Whether the bias is loaded in parts."""
    return (
        sum(
            op.name == "load" and op.result.type.dtype.bits == 32 and len(op.result.type.shape) == 2
            for op in func.ops()
        )
        > 1
    )


def prefetches(func: Func) -> bool:
    return any(op.attrs.get("scheduling_barrier") for op in func.ops())


#: By pass: the kernel, its arguments, the options, the target, and the test whether the load moves.
PASSES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str, Any]] = {
    "register_prefetch": (
        row_sums,
        {"x": array(1024), "out": array(64), "n": 5, "BLOCK": 64},
        {"num_warps": 2},
        "sm_90a",
        prefetches,
    ),
    "early_loads": (
        unstaged_sums,
        {"x": array(10240), "out": array(2048), "n": 5, "BLOCK": 2048},
        {"num_warps": 4},
        "sm_90a",
        prefetches,
    ),
    "software_pipelining": (product, HALVES | {"n": 5}, {"num_warps": 4}, "sm_80", has("copy_async")),
    "warp_specialization": (product, HALVES | {"n": 5}, {"num_warps": 4, "num_stages": 3}, "sm_90a", has("roles")),
    "strip_mining": (
        long_row,
        {"x": array(1 << 15), "out": array(1 << 15), "BLOCK": 1 << 15},
        {"num_warps": 4},
        "sm_90a",
        streams,
    ),
    "epilogue_subtiling": (product_with_bias, WIDE | {"n": 5}, {"num_warps": 8}, "sm_90a", loads_parts),
}
#: The accesses that may be crossed. The last two passes move a load down, and take each write for one to its array.
MAY_CROSS = {
    "register_prefetch": {*WEAK, *WRITES},
    "early_loads": {*WEAK, *WRITES},
    "software_pipelining": {*WEAK, *WRITES},
    "warp_specialization": {*WEAK, *WRITES},
    "strip_mining": set(WEAK),
    "epilogue_subtiling": set(WEAK),
}


def moves(name: str, kind: str) -> bool:
    """Whether the pass moves the load of its kernel, with an access of that kind in its way."""
    kernel, arguments, options, target, moved = PASSES[name]
    given = {**arguments, **FLAG, "KIND": kind}
    _, stages = Case(name, kernel, dict, dict).lower(given, target, **options)
    stage = next((stage for stage in stages if stage.name == name), None)
    return stage is not None and moved(stage.after)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_load_crosses_an_access_only_where_the_table_says_so(name, kind):
    assert moves(name, kind) == (kind in MAY_CROSS[name])


# -- the CPU


@blocknb.kernel
def two_rows(x, y, flag, out, found, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Two loads of rows, which share a loop if nothing keeps them apart."""
    at = tl.arange(0, BLOCK)
    first = tl.load(x + at)
    seen = between(flag, x, KIND)
    tl.store(out + at, first + tl.load(y + at))
    tl.store(found, seen)


#: The accesses that exist on a CPU, and the instruction that performs each. A barrier within a program is none there.
ON_CPU = {
    "volatile load": "load volatile i32",
    ".cv load": "load volatile i32",
    "acquire": "atomicrmw add",
    "acquire release": "atomicrmw add",
    "relaxed": "atomicrmw add",
    "wait for an atomic": "atomicrmw add",
    "wait for a volatile load": "load volatile i32",
    "wait for a .cv load": "load volatile i32",
}


def cpu_text(kind: str) -> str:
    """The LLVM text of the kernel of two rows, from its first definition on."""
    arguments = {"x": array(1024), "y": array(1024), "out": array(1024), "found": array(1), "BLOCK": 1024}
    text = two_rows.trace(**arguments, **FLAG, KIND=kind, target="cpu").llvm
    return text[text.index("define") :]


@pytest.mark.parametrize("kind", ON_CPU)
def test_a_cpu_loads_rows_before_and_after_the_access_between_them(kind):
    body = cpu_text(kind)
    rows = [at for at in range(len(body)) if body.startswith("load <", at)]
    assert rows[0] < body.index(ON_CPU[kind]) < rows[-1]


def test_a_cpu_loads_two_rows_in_one_loop_if_no_access_keeps_them_apart():
    loops = [cpu_text(kind).count("icmp slt") for kind in ("load", "volatile load")]
    assert loops[0] < loops[1]


def test_arrays_that_a_launch_only_reads_are_not_loaded_as_constants():
    """ld.global.nc may return data from before an acquire; no array counts as constant, although this kernel never stores to `x`."""
    trace = row_sums.trace(x="*fp32", flag="*i32", out="*fp32", n="i32", BLOCK=64, KIND="load", target="sm_90a")
    assert "ld.global" in trace.ptx and ".nc" not in trace.ptx and "invariant" not in trace.llvm


@pytest.mark.parametrize("kind", [".cv load", "wait for a .cv load"])
def test_a_load_that_bypasses_the_caches_assembles_and_acquires_in_a_loop(kind):
    trace = row_sums.trace(x="*fp32", flag="*i32", out="*fp32", n="i32", BLOCK=64, KIND=kind, target="sm_90a")
    assert ("ld.acquire.sys.global.b32" if kind.startswith("wait") else "ld.global.cv.b32") in trace.ptx
    assert trace.artifacts["cubin"]
