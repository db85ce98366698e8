"""The attributes of kernels and compiled kernels that host code reads under Triton's names, and the forms of launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.compat import triton
from blocknb.errors import KernelError
from blocknb.runtime.interface import KernelInterface, MockTensor, TensorWrapper

X = np.arange(100, dtype=np.float32)


@blocknb.jit(
    repr=lambda spec: f"shift_{spec.constants['BLOCK']}",
    launch_metadata=lambda grid, kernel, args: {"name": "shift"},
    do_not_specialize=["n", 3],
    debug=True,
    noinline=True,
)
def shift(x, out, n, by, BLOCK: tl.constexpr = 64):
    """Adds a number."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + by, mask=i < n)


@blocknb.kernel
def row_sums(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + tl.program_id(0) * n + i, mask=i < n), 0))


def test_a_kernel_has_its_function_parameters_and_source() -> None:
    assert shift.fn.__name__ == shift.__name__ == "shift"
    assert shift.__doc__ == "Adds a number."
    assert shift.arg_names == ["x", "out", "n", "by", "BLOCK"]
    assert shift.src.startswith("def shift(x, out, n, by")
    assert [(p.name, p.is_constexpr, p.do_not_specialize, p.has_default) for p in shift.params[2:]] == [
        ("n", False, True, False),
        ("by", False, True, False),
        ("BLOCK", True, False, True),
    ]
    assert isinstance(shift, KernelInterface) and isinstance(shift, triton.JITFunction)


def test_a_launch_returns_the_attributes_that_wrappers_read() -> None:
    out = np.zeros_like(X)
    compiled = shift[(2,)](X, out, 100, 1)
    np.testing.assert_array_equal(out, X + 1)
    assert compiled.metadata.name == "shift_64"
    assert (compiled.metadata.num_warps, compiled.metadata.num_stages, compiled.metadata.num_ctas) == (4, 3, 1)
    assert compiled.n_spills == 0 and compiled.n_regs > 0 and compiled.metadata.shared > 0


def test_do_not_specialize_by_name_and_index_leaves_numbers_as_they_are() -> None:
    trace = shift[(2,)](X, np.zeros_like(X), 16, 1).trace
    assert (trace.signature["n"], trace.signature["by"]) == ("i32", "i32")
    assert shift[(2,)](X, np.zeros_like(X), 17, 7).trace is trace


def test_texts_of_a_gpu_compilation_are_found_under_tritons_keys() -> None:
    compiled = row_sums.compile("*fp32", "*fp32", "i32", BLOCK=1024, target="sm_80")
    asm = compiled.asm
    assert {"ttir", "ttgir", "llir", "ptx"} <= set(asm) and len(asm) == len(list(asm))
    assert ".target sm_80" in asm["ptx"] and "define" in asm["llir"]
    assert "reduce" in asm["ttir"] and "#" in asm["ttgir"]
    assert asm["source"].startswith("@blocknb.kernel")
    assert "sass" not in asm or " EXIT" in asm["sass"]  # "sass" needs ptxas
    assert compiled.metadata.target == triton.backends.compiler.GPUTarget("cuda", 80, 32)
    assert compiled.metadata.shared == compiled.code.shared_bytes > 0
    with pytest.raises(KeyError, match="no 'hsaco', only"):
        asm["hsaco"]


def test_the_error_for_missing_ptx_says_how_to_generate_it() -> None:
    compiled = row_sums[(1,)](X, np.zeros(1, np.float32), 100, BLOCK=128)
    with pytest.raises(KeyError, match="retarget"):
        compiled.asm["ptx"]
    assert ".visible .entry" in compiled.retarget("sm_90a").asm["ptx"]


@pytest.mark.parametrize("array", [np.dtype("float32"), "*fp32", X, MockTensor(np.dtype("float32"))])
def test_warmup_compiles_for_an_array_or_its_type_and_launches_nothing(array: Any) -> None:
    out = np.zeros_like(X)
    compiled = shift.warmup(array, out, 100, 2, BLOCK=32, num_warps=2, grid=(1,))
    assert not out.any() and compiled.metadata.num_warps == 2
    again = compiled[(4,)](X, out, 100, 2, 32)
    np.testing.assert_array_equal(out, X + 2)
    assert again.options == compiled.options


def test_warmup_takes_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert shift.warmup(torch.float16, torch.bfloat16, 100, 2, grid=(1,)).trace.signature["out"] == "*bf16:16"


def test_a_compiled_kernel_launches_with_the_constants_that_are_left_out() -> None:
    out = np.zeros_like(X)
    shift.warmup(X, out, 100, 2, BLOCK=128)[(1, 1, 1)](X, out, 100, 5)
    np.testing.assert_array_equal(out, X + 5)


def test_run_is_the_launch_in_the_form_that_wrappers_call() -> None:
    class Counting(KernelInterface):
        def __init__(self, fn: Any):
            self.fn, self.calls = fn, 0

        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self.fn.run(*args, **kwargs)

    out, kernel = np.zeros_like(X), Counting(shift)
    kernel[(2,)](X, out, 100, by=3)
    kernel[lambda meta: (blocknb.cdiv(meta["n"], meta["BLOCK"]),)](X, out, 100, by=4)
    kernel.warmup(np.dtype("float32"), out, 100, by=5, grid=(1,))
    np.testing.assert_array_equal(out, X + 4)
    assert kernel.calls == 3
    with pytest.raises(NotImplementedError, match="does not define run"):
        KernelInterface()[(1,)]()


def test_launch_keywords_of_triton_are_accepted() -> None:
    out = np.zeros_like(X)
    shift[(2,)](
        X, out, n=100, by=1, num_warps=2, num_stages=4, num_ctas=1, maxnreg=128, enable_fp_fusion=False,
        launch_cooperative_grid=False, debug=True, sanitize_overflow=False,
    )  # fmt: skip
    np.testing.assert_array_equal(out, X + 1)


def test_a_reinterpreted_array_is_read_as_another_dtype_and_stays_checked() -> None:
    bits = np.zeros(100, np.int32)
    shift[(2,)](X, triton.reinterpret(bits, tl.float32), 100, 1)
    np.testing.assert_array_equal(bits.view(np.float32), X + 1)
    with pytest.raises(blocknb.AccessError, match="which has 100 elements"):
        shift[(4,)](X, triton.reinterpret(bits, tl.float32), 200, 1)
    assert triton.reinterpret(bits, tl.int32) is bits
    with pytest.raises(blocknb.LaunchError, match="differ in size"):
        triton.reinterpret(bits, tl.float16)
    with pytest.raises(blocknb.LaunchError, match="takes an array"):
        triton.reinterpret(3, tl.float16)


def test_a_reinterpreted_tensor_has_a_tensors_methods() -> None:
    torch = pytest.importorskip("torch")
    wrapped = triton.reinterpret(torch.zeros(4, 5, dtype=torch.int32), tl.float32)
    assert isinstance(wrapped, TensorWrapper)
    assert (wrapped.stride(), wrapped.stride(0), wrapped.element_size(), wrapped.shape) == ((5, 1), 5, 4, (4, 5))
    wrapped.copy_(torch.ones(4, 5, dtype=torch.int32))
    assert wrapped.clone().base.sum() == 20 and wrapped.cpu().base is not None
    assert wrapped.data_ptr() == wrapped.base.data_ptr()


def test_nominal_properties_without_a_gpu_give_a_grid() -> None:
    from blocknb.runtime import machine

    if machine.has_gpu():
        pytest.skip("there is one")
    active = triton.runtime.driver.active
    found = active.utils.get_device_properties(active.get_current_device())
    assert active.get_current_target() == ("cpu", 0, 32) and active.get_device_capability() == (0, 0)
    for warps in (1, 4, 32):
        compiled = row_sums.warmup("*fp32", "*fp32", 100, BLOCK=128, num_warps=warps)
        assert found["max_num_regs"] // (compiled.n_regs * found["warpSize"] * warps) >= 1
        assert found["max_shared_mem"] // compiled.metadata.shared >= 1
    assert found["multiprocessor_count"] >= 1


def test_compile_takes_tritons_source_object() -> None:
    from blocknb.compat import host

    signature = {"x": "*fp32", 1: "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = host.ASTSource(row_sums, signature, {(3,): 256}, {(0,): [["tt.divisibility", 16]]})
    compiled = host.compile(source, target=host.GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert (str(compiled.target), compiled.metadata.num_warps) == ("sm_90a", 8)
    assert dict(compiled.trace.signature) == {"x": "*fp32:16", "out": "*fp32", "n": "i32"}
    assert compiled.trace.constants == {"BLOCK": 256}
    with pytest.raises(blocknb.LaunchError, match="takes an ASTSource"):
        host.compile("file.ttir")  # type: ignore[arg-type]


def test_errors_are_caught_under_tritons_names() -> None:
    @blocknb.kernel
    def refused(x):
        tl.static_assert(False, "never")

    @blocknb.kernel
    def nonsense(x):
        tl.store(x, [i + 1 for i in (1, 2)])

    for kernel in (refused, nonsense):
        with pytest.raises(triton.CompilationError):
            kernel[(1,)](X.copy())
    with pytest.raises(triton.compiler.errors.CompileTimeAssertionFailure):
        refused[(1,)](X.copy())


@pytest.mark.parametrize(
    "update", [lambda k, text: setattr(k, "src", text), lambda k, text: k._unsafe_update_src(text)]
)
def test_a_library_can_replace_the_source_of_a_kernel(update):
    step = 3

    @blocknb.kernel
    def count(out, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(out + i, i + step)

    out = np.zeros(8, np.int32)
    count[1](out, B=8)
    before = count.cache_key
    update(count, count.src.replace("B:", "by, B:").replace("i + step", "i * by + step"))
    assert count.arg_names == ["out", "by", "B"] and count.cache_key != before
    count[1](out, 2, B=8)
    np.testing.assert_array_equal(out, np.arange(8) * 2 + 3)
    update(count, count.src.replace("step)", "stop)"))
    with pytest.raises(KernelError) as caught:
        count[1](out, 2, B=8)
    assert "tl.store(out + i, i * by + stop)" in str(caught.value)
