"""Semantics of the language: launches, arguments, the autotuner, values that host code reads, locations of sources."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import unusual_sources as sources
from support import OnlyDlpack

import blocknb
import blocknb.language as tl
from blocknb import Config, autotune, heuristics, kernel
from blocknb.compat import triton
from blocknb.runtime import machine
from blocknb.tune import Autotuner

F32 = np.float32


@kernel
def fill(out, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, value + tl.num_programs(0), mask=i < n)


def zeros(n: int = 100) -> np.ndarray:
    return np.zeros(n, F32)


# -- 29: grids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [(4,), [4], 4, (4, 1), (4, 1, 1), lambda meta: (4,), lambda meta: [4, 1], (np.int64(4),)]
)
def test_grid_may_be_a_tuple_list_number_or_function(grid):
    out = zeros()
    fill[grid](out, 100, 1.0, BLOCK=32)
    assert (out == 5).all()


def test_grid_may_be_written_without_parentheses():
    @kernel
    def k(out):
        tl.store(out + tl.program_id(0) * 3 + tl.program_id(1), tl.num_programs(0) * 10 + tl.num_programs(1))

    out = zeros(6)
    k[2, 3,](out)  # fmt: skip
    assert (out == 23).all()


def test_grid_function_sees_every_argument_by_name():
    seen: dict[str, Any] = {}

    def grid(meta):
        seen.update(meta)
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    tuned = autotune([Config({"BLOCK": 32}, num_warps=2)], key=["n"])(heuristics({"value": lambda args: 3.0})(fill))
    out = zeros()
    tuned[grid](out, 100)
    assert (out == 7).all()
    assert seen["out"] is out
    assert (seen["n"], seen["BLOCK"], seen["value"], seen["num_warps"]) == (100, 32, 3.0, 2)


def test_grid_function_sees_defaults_and_keyword_arguments():
    @kernel
    def k(out, M, N=6, BLOCK: tl.constexpr = 4):
        tl.store(out + tl.program_id(0), M + N + BLOCK)

    out = zeros(3)
    k[lambda META: (META["M"] * META["N"] // META["BLOCK"],)](M=2, out=out)
    assert (out == 12).all()


# -- 30: keywords ------------------------------------------------------------------------------------------------------------


def test_every_launch_keyword_of_triton_is_accepted():
    out = zeros()
    compiled = fill[(4,)](
        out, 100, 1.0, BLOCK=32, num_warps=8, num_stages=2, num_ctas=1, maxnreg=128, enable_fp_fusion=True,
        launch_cooperative_grid=False, launch_pdl=False,
    )  # fmt: skip
    assert (out == 5).all()
    assert (compiled.metadata.num_warps, compiled.metadata.num_stages) == (8, 2)


@kernel
def strided(x, out, M, N, stride_xm, stride_xn, stride_z, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * stride_xm + i * stride_xn, mask=i < N)
    if stride_z is not None:
        v *= stride_z
    tl.store(out + row * N + i, v, mask=i < N)


def test_strides_can_be_unpacked_and_none_replaces_a_missing_array():
    x = np.arange(24, dtype=F32).reshape(4, 6).T
    strides = tuple(s // 4 for s in x.strides)
    for z, factor in ((None, 1), (0, 0)):
        out = np.zeros((6, 4), F32)
        strided[(6,)](x, out, 6, 4, *strides, z, BLOCK=4)
        np.testing.assert_array_equal(out, x * factor)


def test_strides_of_torch_tensors_can_be_unpacked():
    torch = pytest.importorskip("torch")
    x, out = torch.arange(24, dtype=torch.float32).reshape(4, 6).T, torch.zeros(6, 4)
    strided[(x.shape[0],)](x, out, *x.shape, *x.stride(), None, BLOCK=4)
    assert torch.equal(out, x)


def test_all_arguments_may_be_keywords_in_any_order():
    x, out = np.arange(8, dtype=F32).reshape(2, 4), np.zeros((2, 4), F32)
    strided[(2,)](BLOCK=4, stride_z=None, N=4, M=2, stride_xn=1, stride_xm=4, out=out, x=x, num_warps=1)
    np.testing.assert_array_equal(out, x)


def test_heuristics_set_launch_options_and_configs_may_be_empty():
    decorated = autotune([Config({})], key=[])(
        heuristics({"BLOCK": lambda a: triton.next_power_of_2(a["n"]), "num_warps": lambda a: 8 if a["n"] > 64 else 2})(
            fill
        )
    )
    out = zeros()
    assert decorated[(1,)](out, 100, 1.0).metadata.num_warps == 8
    assert decorated[(1,)](out, 60, 1.0).metadata.num_warps == 2
    assert (out == 2).all()
    empty = autotune([Config({})], key=[])(fill)
    empty[(4,)](out, 100, 2.0, BLOCK=32)
    assert (out == 6).all()


# -- 31: array arguments -----------------------------------------------------------------------------------------------------


class Strided:
    """A tensor of some libraries: it has only an address and a dtype."""

    def __init__(self, array: np.ndarray):
        self.array, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data


@pytest.mark.skipif(machine.has_gpu(), reason="with a GPU, such an address belongs to the GPU")
def test_object_with_address_and_dtype_is_a_pointer():
    out = zeros()
    fill[(4,)](Strided(out), 100, 1.0, BLOCK=32)
    assert (out == 5).all()


def test_dlpack_is_taken_without_a_copy():
    out = zeros()
    fill[(4,)](OnlyDlpack(out), 100, 1.0, BLOCK=32)
    assert (out == 5).all()


def test_reinterpret_reads_the_same_bits():
    out = zeros(4)
    fill[(1,)](triton.reinterpret(out, tl.int32), 4, 1, BLOCK=4)
    assert out.view(np.int32).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("torch_name", "expected"),
    [
        ("bool", "*int1"),
        ("uint16", "*u16"),
        ("uint32", "*u32"),
        ("uint64", "*u64"),
        ("bfloat16", "*bf16"),
        ("half", "*fp16"),
    ],
)
def test_torch_dtypes_map_to_language_dtypes(torch_name, expected):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(64, dtype=getattr(torch, torch_name))

    @kernel
    def k(x, out):
        tl.store(out, tl.load(x).to(tl.int32))

    found = k.trace(tensor, np.zeros(1, np.int32), target="cpu").signature["x"].removesuffix(":16")
    assert found in (expected, expected.replace("int1", "i1"))


# -- 32: the autotuner -------------------------------------------------------------------------------------------------------


def once(call, quantiles):
    call()
    return [1.0] * len(quantiles)


@kernel
def accumulate(out, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(out + i, mask=i < n) + 1, mask=i < n)
    tl.atomic_add(total, tl.sum((i < n).to(tl.float32), 0))


def tuned(**options) -> Autotuner:
    configs = [Config({"BLOCK": 64}), Config({"BLOCK": 128}, num_warps=2)]
    return autotune(**{"configs": configs, "key": ["n"], "do_bench": once, **options})(accumulate)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_tuning_key_contains_values_and_dtypes():
    k = tuned(reset_to_zero=["total"], restore_value=["out"])
    for out in (np.zeros(100, F32), np.zeros(100, np.float64), np.zeros(100, np.int32), np.zeros(100, F32)):
        k[grid](out, zeros(1), 100)
    assert len(k.cache) == 3
    k[grid](np.zeros(50, F32), zeros(1), 50)
    assert len(k.cache) == 4
    assert {key[0] for key in k.cache} == {50, 100}


def test_trials_do_not_change_arrays_that_are_reset_or_restored():
    k = tuned(reset_to_zero=["total"], restore_value=["out"])
    out, total = np.full(100, 7, F32), zeros(1)
    k[grid](out, total, 100)
    assert (out == 8).all() and total[0] == 100
    k[grid](out, total, 100)
    assert (out == 9).all() and total[0] == 200


def test_pre_hook_of_a_config_may_change_an_argument():
    class Descriptor(Strided):
        block_shape = None

    seen = []

    def hook(nargs):
        nargs["out"].block_shape = [nargs["BLOCK"]]
        seen.append(nargs["out"].block_shape)

    out = np.zeros(100, F32)
    k = tuned(configs=[Config({"BLOCK": b}, pre_hook=hook) for b in (32, 64)])
    given = Descriptor(out)
    k[grid](given, zeros(1), 100)
    assert [32] in seen and [64] in seen
    assert given.block_shape == [k.best_config.kwargs["BLOCK"]]


def test_configurations_are_pruned_by_a_function_of_the_arguments():
    def prune(configs, named_args, **kwargs):
        assert named_args["n"] == 100
        return [c for c in configs if c.kwargs["BLOCK"] >= named_args["n"]]

    k = tuned(prune_configs_by={"early_config_prune": prune})
    k[grid](zeros(), zeros(1), 100)
    assert k.best_config.kwargs["BLOCK"] == 128


@pytest.mark.parametrize("over", [True, False], ids=["heuristics over autotune", "autotune over heuristics"])
def test_decorators_stack_in_either_order(over):
    @kernel
    def k(out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, 1.0 + EVEN, mask=None if EVEN else i < n)

    tune = autotune([Config({"BLOCK": 32}), Config({"BLOCK": 64})], key=["n"], do_bench=once)
    if over:  # the heuristic runs first: BLOCK is not chosen yet
        stacked = heuristics({"EVEN": lambda args: args["n"] % 64 == 0})(tune(k))
    else:
        stacked = tune(heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(k))
    out = zeros(128)
    stacked[grid](out, 100)
    assert (out[:100] == 1).all() and (out[100:] == 0).all()
    stacked[grid](out, 128)
    assert (out == 2).all()


def test_autotuner_can_be_subclassed_and_inspected():
    class Remembering(Autotuner):
        def run(self, *args, **kwargs):
            self.seen = [*getattr(self, "seen", []), dict(zip(self.arg_names, args, strict=False))["n"]]
            return super().run(*args, **kwargs)

    inner = tuned(reset_to_zero=["total"], restore_value=["out"])
    k = Remembering(inner.fn, inner.arg_names, inner.configs, ["n"], [], ["out"], do_bench=once)
    out = zeros()
    k[grid](out, zeros(1), 100)
    assert k.seen == [100] and (out == 1).all()
    assert k.fn is accumulate and k.arg_names == ["out", "total", "n", "BLOCK"]
    assert [c.kwargs["BLOCK"] for c in k.configs] == [64, 128] and len(k.cache) == 1
    assert isinstance(k, triton.runtime.autotuner.Autotuner) and k.base_fn is accumulate.fn


# -- 33: values for host code ------------------------------------------------------------------------------------------------


def test_launch_returns_registers_spills_shared_memory_and_code():
    compiled = fill[(4,)](zeros(), 100, 1.0, BLOCK=32)
    assert compiled.n_regs > 0 and compiled.n_spills == 0 and compiled.metadata.shared > 0
    assert "ttir" in compiled.asm and "store" in compiled.asm["ttir"]
    assert ".target sm_90a" in fill.compile("*fp32", "i32", "fp32", BLOCK=32, target="sm_90a").asm["ptx"]


def test_warmup_compiles_without_launching():
    out = zeros()
    compiled = fill.warmup(out, 100, 1.0, BLOCK=32, grid=(4,))
    assert compiled.n_regs > 0 and (out == 0).all()
    fill[(4,)](out, 100, 1.0, BLOCK=32)
    assert (out == 5).all()
    mocked = fill.warmup(np.dtype("float32"), 100, 1.0, BLOCK=64, grid=(1,))
    assert mocked.metadata.name == "fill"


def test_driver_queries_work_at_import_time():
    names: dict[str, Any] = {}
    code = """
import triton
import triton.language as tl
TARGET = triton.runtime.driver.active.get_current_target()
PROPERTIES = triton.runtime.driver.active.utils.get_device_properties(triton.runtime.driver.active.get_current_device())
IS_CUDA = TARGET.backend == "cuda"
NEW = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 0)
COMPARED = triton.__version__ >= "3.0.0"
"""
    import ast

    from blocknb import compat

    exec(compile(compat.rewrite(ast.parse(code)), "a_library.py", "exec"), names)
    assert names["NEW"] and names["COMPARED"]
    assert names["TARGET"].backend in ("cpu", "cuda") and names["PROPERTIES"]["multiprocessor_count"] > 0


def test_version_equals_that_of_the_language():
    assert re.fullmatch(r"3\.\d+\.\d+", triton.__version__)


# -- 34: locations of sources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(sources.EXPECTED))
def test_source_is_found_in_every_layout(name):
    out = np.zeros(4, F32)
    sources.KERNELS[name][(1,)](out)
    assert out[0] == sources.EXPECTED[name]


def test_two_definitions_under_a_condition_keep_their_own_source():
    assert "first = 1.0" in sources.twin.src and "first = 2.0" not in sources.twin.src
    assert sources.twin.source.first_line < sources.OTHER_TWIN.source.first_line


def test_carets_of_a_one_line_definition_are_correct():
    from blocknb.errors import KernelError

    with pytest.raises(KernelError) as caught:
        sources.bad_one_liner[(1,)](zeros())
    line, carets = caught.value.loc.excerpt().splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "tl.stoer"


def test_blocknb_exports_the_names_of_triton():
    assert blocknb.jit is triton.jit and blocknb.cdiv(7, 2) == 4 and blocknb.next_power_of_2(5) == 8
