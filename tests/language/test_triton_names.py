"""Every public name of Triton's language works here, or is an error at its line that names the alternative."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, ir, kernel, kind, place

import blocknb.language as tl
from blocknb.errors import KernelError, TypeMismatch, Unsupported
from blocknb.frontend.parse import parse
from blocknb.ir.text import print_func
from blocknb.language.declarations import MEMBERS
from blocknb.language.refused import REFUSED
from blocknb.target import Target

#: `triton.language.__all__` of Triton 3.9, and names that only 3.6 has.
NAMES = """
PropagateNan TRITON_MAX_TENSOR_NUMEL abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas
atomic_max atomic_min atomic_or atomic_xchg atomic_xor bfloat16 bitonic_merge block_type broadcast broadcast_to cast cat cdiv ceil clamp
condition const constexpr constexpr_type cos cumprod cumsum debug_barrier device_assert device_print div_rn dot dot_scaled dtype erf exp
exp2 expand_dims extra fdiv flip float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 floor fma full gather
histogram inline_asm_elementwise int1 int16 int32 int64 int8 interleave join load load_tensor_descriptor log log2 make_block_ptr
make_tensor_descriptor map_elementwise math max max_constancy max_contiguous maximum min minimum mul multiple_of num_programs
pair_uniform_to_normal permute philox philox_impl pi32_t pointer_type program_id rand rand4x randint randint4x randn randn4x range ravel
reduce reduce_or reshape rsqrt sigmoid sin slice softmax sort split sqrt sqrt_rn static_assert static_print static_range store
store_tensor_descriptor sub sum swizzle2d target_info tensor tensor_descriptor topk trans tuple uint16 uint32 uint64 uint8
uint_to_uniform_float umulhi view void where xor_sum zeros zeros_like
core standard str_to_ty
atomic_load atomic_poll atomic_store expect_zero squeeze unsqueeze
""".split()
#: Methods and properties of Triton's tensors.
METHODS = """
abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor
broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather histogram item log log2 logical_and logical_or
max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn store sum to trans view xor_sum
atomic_poll
""".split()
DTYPE_METHODS = """
get_int_max_value get_int_min_value is_bf16 is_block is_bool is_const is_dtype is_floating is_fp16 is_fp32 is_fp64 is_fp8 is_int is_int1
is_int16 is_int32 is_int64 is_int8 is_int_signed is_int_unsigned is_ptr is_standard_floating is_uint16 is_uint32 is_uint64 is_uint8
is_void name primitive_bitwidth int_bitwidth itemsize scalar fp_mantissa_width exponent_bias
""".split()
MATH = "abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi tanh pow max min log1p isnan".split()
CUDA = "gdc_launch_dependents gdc_wait globaltimer libdevice num_threads num_warps smid utils convert_custom_float8_sm80".split()


@pytest.mark.parametrize("name", NAMES)
def test_public_name_exists_or_is_refused_with_a_hint(name):
    if hasattr(tl, name):
        assert name not in REFUSED
        return
    with pytest.raises(AttributeError, match=f"blocknb does not have {name}: ."):
        getattr(tl, name)


def test_a_refused_name_is_an_error_at_its_place_in_a_kernel():
    @kernel
    def k(x):
        i = tl.arange(0, 8)
        tl.store(x + i, tl.extern_elementwise("f", "", [tl.load(x + i)], {}, True))

    error = failure(k, TypeMismatch, x="*f32")
    assert place(k, error) == (3, "tl.extern_elementwise")
    assert (error.message, error.hint) == ("blocknb does not have `extern_elementwise`", REFUSED["extern_elementwise"])


def test_every_method_of_tiles_exists():
    assert set(METHODS) <= MEMBERS


@pytest.mark.parametrize("name", DTYPE_METHODS)
def test_every_method_of_dtypes_exists(name):
    assert hasattr(tl.float32, name)


def test_math_functions_are_in_math_too():
    assert [name for name in MATH if not hasattr(tl.math, name)] == []


@pytest.mark.parametrize("name", CUDA)
def test_cuda_extras_exist_or_are_refused(name):
    assert hasattr(tl.extra.cuda, name) or name in REFUSED


def test_dtypes_have_min_and_max_values():
    assert tl.int8.get_int_max_value() == 127 and tl.int8.get_int_min_value() == -128
    assert tl.uint16.get_int_max_value() == 65535 and tl.uint16.get_int_min_value() == 0
    assert tl.bfloat16.fp_mantissa_width == 7 and tl.float64.exponent_bias == 1023
    assert tl.core.get_int_dtype(16, signed=False) == tl.uint16
    assert tl.str_to_ty("*fp16", None) == tl.pointer_type(tl.float16)
    assert [tl.str_to_ty(n, None) for n in ("i1", "u8", "B", "i64", "bf16")] == [
        tl.int1, tl.uint8, tl.int1, tl.int64, tl.bfloat16,
    ]  # fmt: skip
    assert tl.pi32_t == tl.pointer_type(tl.int32)
    with pytest.raises(ValueError, match="powers of two"):
        tl.block_type(tl.float32, [3])


def test_rarely_used_names_work():
    @kernel
    def k(out):
        i = tl.arange(0, 8)
        rising = tl.bitonic_merge(tl.where(i < 4, 2 * i, 15 - 2 * i), descending=True)
        one = tl.full((1, 1), 5, tl.int32).item()
        tl.static_assert(isinstance(i.type, tl.block_type) and i.type == tl.block_type(tl.int32, [8]))
        tl.static_assert(isinstance(out.dtype, tl.pointer_type) and isinstance(out.dtype, tl.dtype))
        tl.static_assert(not isinstance(one.type, tl.block_type))
        pair = tl.tuple((one, i))
        tl.static_assert(isinstance(pair, tl.tuple) and len(pair) == 2)
        n = 0
        while tl.condition(n < 3, disable_licm=True):
            n += 1
        tl.store(out + i, rising)
        tl.store(out + 8 + i, tl.mul(tl.add(pair[1], n), tl.sub(pair[0], 3)))
        tl.store(out + 16 + i, tl.sum(i[tl.slice(None), None], 1))

    found = evaluate(k, np.int32, (24,))
    merged = sorted([0, 2, 4, 6, 7, 5, 3, 1], reverse=True)
    assert list(found) == [*merged, *((np.arange(8) + 3) * 2), *range(8)]


def test_item_of_a_larger_tile_is_refused():
    @kernel
    def k(out):
        tl.store(out, tl.arange(0, 4).item())

    assert "`item` takes a tile of one element" in failure(k, TypeMismatch, out="*i32").message


def test_kernel_can_query_its_target():
    @kernel
    def k(out):
        if tl.target_info.is_cuda():
            tl.store(out, tl.extra.cuda.smid())
        elif tl.target_info.cuda_capability_geq(9, 0):
            tl.store(out, 9)
        tl.store(out + 1, tl.extra.cuda.num_warps() * 1000 + tl.extra.cuda.num_threads())
        if tl.target_info.cuda_capability_geq(9):
            tl.store(out + 2, 1)
        tl.extra.cuda.gdc_wait()

    def ops(target):
        kinds = {"out": kind("*i32")}
        func = parse(k.source, kinds, {"num_warps": 8}, Target.parse(target))
        return [op.name for op in func.ops()], [op.attrs["value"] for op in func.ops() if op.name == "const"]

    assert ops("cpu")[0].count("store") == 1 and "asm" not in ops("cpu")[0]
    assert 8256 in ops("cpu")[1]
    assert ops("sm_80")[0].count("store") == 2 and ops("sm_80")[0].count("asm") == 1
    assert ops("sm_90a")[0].count("store") == 3 and ops("sm_90a")[0].count("asm") == 2


def test_a_register_of_the_gpu_is_refused_on_a_cpu_at_its_line():
    @kernel
    def k(out):
        tl.store(out, tl.extra.cuda.globaltimer())

    with pytest.raises(Unsupported, match="`globaltimer` reads a special register") as caught:
        parse(k.source, {"out": kind("*i64")}, {}, Target.parse("cpu"))
    assert place(k, caught.value) == (2, "tl.extra.cuda.globaltimer()")
    assert "is_cuda" in (caught.value.hint or "")
    assert "asm" in [op.name for op in ir(k, out="*i64").ops()]


def test_functions_of_tritons_standard_library_can_be_used():
    combine = tl.standard._sum_combine

    @kernel
    def k(out, x):
        i = tl.arange(0, 8)
        bits: tl.constexpr = tl.standard._log2(i.shape[0])
        tl.store(out, tl.reduce(tl.load(x + i), 0, combine) + bits)

    assert evaluate(k, np.int32, x=np.arange(8, dtype=np.int32)) == 31


def test_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'wibble'"):
        tl.core.wibble
    with pytest.raises(KernelError):
        tl.add(1, 2)


def test_constexpr_default_of_a_copied_sort_is_a_constant():
    @kernel
    def k(x, descending: tl.constexpr = tl.core.CONSTEXPR_0):
        tl.store(x, 1.0 if descending else 2.0)

    assert "const 2" in print_func(ir(k, x="*f32"))


def test_names_of_tritons_testing_exist_or_say_what_to_use():
    testing = importlib.import_module("blocknb.testing")
    for (
        name
    ) in "assert_close cuda_graph_without_gc do_bench do_bench_cudagraph get_dram_gbps nvsmi perf_report".split():
        assert callable(getattr(testing, name))
    for name in "cublas cuda_memcheck do_bench_cudagraph_proton do_bench_proton set_gpu_clock".split():
        with pytest.raises(AttributeError, match=f"blocknb.testing does not have {name}: ."):
            getattr(testing, name)
    with pytest.raises(AttributeError, match="has no attribute 'do_bensh'"):
        testing.do_bensh


def test_methods_that_take_pointers_refuse_other_values():
    @kernel
    def polled(x):
        x.atomic_poll(0, timeout_ns=0)

    @kernel
    def moved(x):
        x.advance((1,))

    assert "atomic_poll needs pointers to integers" in failure(polled, TypeMismatch, x="*f32").message
    assert "block pointer" in failure(moved, TypeMismatch, x="*f32").message
