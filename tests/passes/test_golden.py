"""The IR before and after each GPU pass, and its notes: reviewing a pass is reading the diff of these files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernels import CASES
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb.ir.text import print_func
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.trace import Stage

USUAL = {"num_warps": 4}  # `choose_num_warps` is tested by itself
#: By pass: the kernels of `tests/kernels`, or of LONG below, for which it has golden files.
SAMPLES = {
    "dtype_legalization": ("product_fp8e4nv_fp8e5", "product_fp8e4b8_fp8e4b8"),
    "coalesce": ("add_float16", "softmax_781", "transpose_float32", "gather"),
    "select_wgmma": ("wgmma_attention", "wgmma_tf32_tn", "matmul_tf32_tt"),
    "select_mma": ("matmul_float16", "matmul_ieee", "attention"),
    "layout_assignment": ("softmax_781", "transpose_float32", "matmul_float16", "online_softmax", "gather"),
    "thread_local_reduction": ("online_softmax", "attention"),
    "epilogue_subtiling": ("wgmma_fp16_parts",),
    "program_swizzle": ("crossed_fp16", "boxed_fp16"),
    "warp_specialization": ("attention_masked", "boxed_fp16", "crossed_fp16"),
    "mma_softmax_overlap": ("attention_masked",),
    "tma_store": ("boxed_fp16",),
    "lower_conversions": (
        "softmax_781",
        "transpose_float32",
        "matmul_float16",
        "matmul_ieee",
        "reductions_4x256_float32",
        "wgmma_fp16",
    ),
    "software_pipelining": ("matmul_float16", "matmul_ieee", "attention", "wgmma_attention", "wgmma_fp16"),
    "barriers": ("softmax_781", "matmul_float16", "attention", "wgmma_attention"),
    "int_range_narrowing": ("long_rows",),
    "spread_replicas": ("quantized_rows",),
    "operand_reload": ("scores_times_values",),
    "strip_mining": ("softmax_65536",),
    "rematerialization": ("softmax_32768", "layer_norm_4096"),
    "sinking": ("softmax_781", "layer_norm_4096"),
}


def softmax_of(n: int, dtype: type) -> Case:
    """Softmax of a row that is longer than those of the other tests."""
    arrays = {"x": np.zeros((1, n), dtype), "y": np.zeros((1, n), dtype)}
    arguments = arrays | {"x_stride": n, "y_stride": n, "n": n, "BLOCK": n}
    return Case(f"softmax_{n}", softmax_kernel, lambda rng: dict(arguments), lambda arguments: {})


def layer_norm_of(n: int, dtype: type) -> Case:
    """Layer norm of one row."""
    arrays = {"x": np.zeros((1, n), dtype), **{name: np.zeros(n, dtype) for name in ("weight", "bias", "y")}}
    numbers = {"mean": np.zeros(1, np.float32), "rstd": np.zeros(1, np.float32), "x_row": n, "y_row": n, "m": 1, "n": n}
    arguments = arrays | numbers | {"eps": 1e-5, "CENTRED": True, "ROWS": 1, "BLOCK": n}
    return Case(f"layer_norm_{n}", norm_kernel, lambda rng: dict(arguments), lambda arguments: {})


@blocknb.kernel
def long_rows(x, y, n, BLOCK: bl.constexpr):
    at = bl.program_id(0).to(bl.int64) * BLOCK + bl.arange(0, BLOCK)
    bl.store(y + at, bl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def quantized_rows(x, y, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
    row = bl.arange(0, ROWS)
    most = bl.max(bl.load(x + row[:, None] * COLUMNS + bl.arange(0, COLUMNS)[None, :]), axis=1)
    bl.store(y + row, (448.0 / most.to(bl.float64)).to(bl.float32))


@blocknb.kernel
def scores_times_values(x, y, n, ROWS: bl.constexpr, KEYS: bl.constexpr, HEAD: bl.constexpr):
    row, key, column = bl.arange(0, ROWS), bl.arange(0, KEYS), bl.arange(0, HEAD)
    queries = bl.load(x + row[:, None] * HEAD + column[None, :]).to(bl.float16)
    total = bl.zeros((ROWS, HEAD), bl.float32)
    for start in range(0, n, KEYS):
        keys = bl.load(x + (start + key)[None, :] * HEAD + column[:, None]).to(bl.float16)
        total += bl.dot(bl.dot(queries, keys).to(bl.float16), bl.trans(keys))
    bl.store(y + row[:, None] * HEAD + column[None, :], total)


def case_of(kernel: blocknb.Kernel, *arrays: str, **numbers: int) -> Case:
    """A kernel on arrays of 4096 fp32."""
    arguments = dict.fromkeys(arrays, np.zeros(4096, np.float32)) | numbers
    return Case(kernel.__name__, kernel, lambda rng: dict(arguments), lambda arguments: {})


LONG = {
    case.name: case
    for case in (
        case_of(long_rows, "x", "y", n=4000, BLOCK=1024),
        case_of(quantized_rows, "x", "y", ROWS=32, COLUMNS=128),
        replace(case_of(scores_times_values, "x", "y", n=64, ROWS=128, KEYS=32, HEAD=64), options={"num_warps": 2}),
        softmax_of(65536, np.float32),
        replace(softmax_of(32768, np.float16), options={"num_warps": 16}),
        layer_norm_of(4096, np.float16),
    )
}
OTHERWISE = {
    "matmul_float16": {"select_wgmma"},
    "attention": {"select_wgmma"},
}  # disabled, to get mma.sync as before Hopper


@pytest.mark.parametrize(("name", "sample"), [(name, sample) for name in SAMPLES for sample in SAMPLES[name]])
def test_ir_and_notes_of_each_pass_equal_the_golden_file(name, sample, golden):
    case = LONG.get(sample) or CASES[sample]
    without = OTHERWISE.get(sample, ())
    _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a", without, **(USUAL | case.options))
    found = [stage for stage in stages if stage.name == name]
    assert found, (
        f"the pass {name} leaves {sample} alone: `python scripts/pass_samples.py {name}` lists the kernels that it changes"
    )
    golden(f"{name}/{sample}.ir", report(found[0]))


@pytest.mark.parametrize(("sample", "options"), [("gather", {"checked": True}), ("careful_add", {})])
def test_ir_with_bounds_checks_equals_the_golden_file(sample, options, golden):
    case = CASES[sample]
    _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a", **(USUAL | options))
    golden(f"bounds_checks/{sample}.ir", report(next(stage for stage in stages if stage.name == "bounds_checks")))


def test_ir_with_race_checks_equals_the_golden_file(golden):
    case = CASES["gather"]
    _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a", **(USUAL | {"checked": "all"}))
    golden("race_checks/gather.ir", report(next(stage for stage in stages if stage.name == "race_checks")))


@pytest.mark.parametrize("sample", ["softmax_781", "add_float16"])
def test_ir_with_nontemporal_stores_equals_the_golden_file(sample, golden):
    case = CASES[sample]
    _, stages = case.lower(case.make(np.random.default_rng(0)), "cpu:x86-64-v3", **(USUAL | case.options))
    golden(f"nontemporal_stores/{sample}.ir", report(next(s for s in stages if s.name == "nontemporal_stores")))


def report(stage: Stage) -> str:
    notes = [f"// note at {note.op}: {note.text}" for note in stage.notes]
    parts = ["// before", print_func(stage.before), f"// after {stage.name}", print_func(stage.after), *notes]
    return "\n".join(parts) + "\n"


# -- the effect of optional passes, in numbers


def lowered(sample, **options):
    case = CASES[sample]
    return case.lower(case.make(np.random.default_rng(0)), "sm_90a", **options)[0]


def widest_access(func) -> int:
    return max(op.attrs.get("vec", 1) for op in func.ops() if op.name in ("load", "store"))


def count(func, name: str) -> int:
    return sum(op.name == name for op in func.ops())


def test_without_coalesce_accesses_are_one_element_wide():
    assert widest_access(lowered("add_float16")) == 8
    assert widest_access(lowered("add_float16", without={"coalesce"})) == 1


def test_without_select_mma_no_dot_has_an_instruction():
    def instructions(*without):
        return {op.attrs.get("instr") for op in lowered("attention", without=without).ops() if op.name == "dot"}

    assert instructions() == instructions("select_mma") == {"wgmma.m64n32k16"}
    assert instructions("select_wgmma") == {"m16n8k16"}
    assert instructions("select_wgmma", "select_mma") == {None}


def test_layout_assignment_leaves_only_necessary_conversions():
    """Softmax needs none, and a product three: two operands and the result. Attention keeps P in registers. wgmma operands need none."""

    def conversions(sample, *without):
        case = CASES[sample]
        _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a", without, **(USUAL | case.options))
        return count(next(s for s in stages if s.name == "layout_assignment").after, "convert")

    assert conversions("softmax_781") == 0
    assert conversions("matmul_float16", "select_wgmma") == 3
    assert conversions("attention", "select_wgmma") == 4
    assert conversions("matmul_float16") == conversions("attention") == 1


def test_buffers_with_disjoint_lifetimes_share_memory():
    func = lowered("matmul_float16", without={"select_wgmma"})
    buffers = [op.attrs["type"].bytes for op in func.ops() if op.name == "alloc"]
    assert func.attrs["shared_bytes"] < sum(buffers)


def test_one_barrier_serves_both_operands_of_a_product():
    func = lowered("matmul_float16")
    loop = next(op for op in func.ops() if op.name == "for")
    assert sum(op.name == "barrier" for op in loop.blocks[0].ops) == 2
