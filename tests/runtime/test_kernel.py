"""Launching on the CPU: the ways of calling a kernel, the meaning of arguments, and observers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import AccessError
from blocknb.runtime import kernel, launch_context

pytestmark = pytest.mark.usefixtures("fresh_cache")


SHIFT = 3


@blocknb.kernel
def affine(x, out, n, scale=2.0, bias=None, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + offsets, mask=mask) * scale
    if bias is not None:
        value += tl.load(bias + offsets, mask=mask)
    tl.store(out + offsets, value, mask=mask)


@blocknb.kernel
def keep(out, value):
    tl.store(out, value)


X = np.arange(100, dtype=np.float32)


def fresh(n: int = 100) -> np.ndarray:
    return np.full(n, np.nan, np.float32)


@pytest.mark.parametrize(
    "grid",
    [2, (2,), [2], (2, 1), (np.int64(2), 1, 1), lambda meta: (blocknb.cdiv(meta["n"], meta["BLOCK"]),), lambda meta: 2],
    ids=lambda grid: "function" if callable(grid) else str(grid),
)
def test_a_grid_is_an_int_up_to_three_ints_or_a_function_of_the_arguments(grid: Any) -> None:
    out = fresh()
    affine[grid](X, out, 100)
    np.testing.assert_array_equal(out, 2 * X)


def test_a_grid_function_sees_every_argument_by_name() -> None:
    seen = {}
    affine[lambda meta: seen.update(meta) or (2,)](X, fresh(), 100, num_warps=8)
    assert {"x", "out", "n", "scale", "bias", "BLOCK", "num_warps"} == set(seen)
    assert (seen["n"], seen["scale"], seen["bias"], seen["BLOCK"]) == (100, 2.0, None, 64)
    assert seen["x"] is X


def test_arguments_may_come_by_name_in_any_order() -> None:
    out = fresh()
    affine[1,](BLOCK=128, n=100, out=out, x=X, bias=X, scale=10)
    np.testing.assert_array_equal(out, 11 * X)


def test_none_and_an_array_for_one_parameter_are_two_specializations() -> None:
    without_bias, with_bias = fresh(), fresh()
    affine[2,](X, without_bias, 100, 3.0, None)
    affine[2,](X, with_bias, 100, 3.0, X)
    np.testing.assert_array_equal(with_bias - without_bias, X)


def test_only_the_integer_one_is_a_constant() -> None:
    first = affine[0,](X, fresh(), 1)
    assert first.trace.constants["n"] == 1
    assert affine[0,](X, fresh(), 7) is affine[0,](X, fresh(), 9)
    assert affine[0,](X, fresh(), 16) is not affine[0,](X, fresh(), 9)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"])
def test_scalars_of_every_dtype_arrive_as_they_were_sent(dtype: str) -> None:
    value = np.dtype(dtype).type(1 if dtype == "?" else 101)
    out = np.zeros(2, dtype)
    keep[1,](out, value)
    assert out.tolist() == [value, 0]


@pytest.mark.parametrize("value", [-5, 2**40 + 1, -(2**62), 2**64 - 1, 0.5, True, False, np.float16(0.1)])
def test_python_numbers_arrive_as_they_were_sent(value: Any) -> None:
    out = np.zeros(1, np.asarray(value).dtype)
    keep[1,](out, value)
    assert out[0] == value


def test_bool_arrays_are_loaded_as_truth_and_stored_as_bytes() -> None:
    @blocknb.kernel
    def invert(x, out, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(x + offsets) == False)  # noqa: E712

    x = np.array([True, False, False, True])
    out = np.zeros(4, bool)
    invert[1,](x, out, BLOCK=4)
    np.testing.assert_array_equal(out, ~x)


def test_strided_views_are_accessed_by_their_strides() -> None:
    @blocknb.kernel
    def copy(x, stride, out, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(x + offsets * stride))

    base = np.arange(64, dtype=np.int32)
    for view in (base[::4], base[::-4], base.reshape(16, 4)[:, 2]):
        out = np.zeros(16, np.int32)
        copy[1,](view, view.strides[0] // 4, out, BLOCK=16)
        np.testing.assert_array_equal(out, view)


def test_a_store_past_the_end_of_a_view_is_an_access_error() -> None:
    base = np.zeros(100, np.float32)
    with pytest.raises(AccessError) as caught:
        affine[2,](X, base[:70], 100)
    assert (caught.value.program, caught.value.index) == ((1, 0, 0), 70)
    assert (base[70:] == 0).all()


def test_torch_tensors_of_the_cpu_are_computed_in_place() -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.rand(100), torch.zeros(100)
    affine[2,](x, out, 100, 4.0)
    assert torch.equal(out, x * 4)


def test_a_kernel_called_in_a_kernel_is_inlined() -> None:
    space: dict[str, Any] = {}

    @blocknb.kernel
    def outer(x, out, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, inner(tl.load(x + offsets), SHIFT))

    outer.source.function.__globals__["inner"] = inner = blocknb.kernel(_plus)
    space["inner"] = inner
    out = fresh(64)
    outer[1,](X, out, BLOCK=64)
    np.testing.assert_array_equal(out, X[:64] + SHIFT)


def _plus(a, b):
    return a + b


def test_a_kernel_may_be_passed_as_a_constant() -> None:
    @blocknb.kernel
    def apply(x, out, function: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, function(tl.load(x + offsets), 5))

    out = fresh(64)
    apply[1,](X, out, blocknb.kernel(_plus), BLOCK=64)
    np.testing.assert_array_equal(out, X[:64] + 5)


def test_a_dtype_may_be_passed_as_an_argument() -> None:
    @blocknb.kernel
    def truncate(x, out, dtype: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(x + offsets).to(dtype).to(tl.float32))

    out = fresh(64)
    truncate[1,](X + 0.75, out, tl.int32, BLOCK=64)
    np.testing.assert_array_equal(out, X[:64])


def test_a_staticmethod_can_be_a_kernel() -> None:
    class Holder:
        @blocknb.kernel
        @staticmethod
        def first(out):
            tl.store(out, 1.0)

        @staticmethod
        @blocknb.kernel
        def second(out):
            tl.store(out, 2.0)

    out = fresh(1)
    Holder.first[1,](out)
    assert out[0] == 1
    Holder.second[1,](out)
    assert out[0] == 2


def test_decorator_options_are_defaults_of_the_launch() -> None:
    wide = blocknb.kernel(num_warps=8)(affine.source.function)
    assert wide.trace("*fp32", "*fp32", "i32").options["num_warps"] == 8
    assert wide.trace("*fp32", "*fp32", "i32", num_warps=2).options["num_warps"] == 2
    assert blocknb.jit(affine.source.function).trace("*fp32", "*fp32", "i32").options["num_warps"] == 4


def test_a_parameter_named_like_a_launch_option_gets_its_value() -> None:
    @blocknb.kernel
    def warps(out, num_warps: tl.constexpr):
        tl.store(out, num_warps)

    out = np.zeros(1, np.int32)
    compiled = warps[1,](out, num_warps=8)
    assert out[0] == 8
    assert compiled.trace.options["num_warps"] == 8


def test_launch_keywords_of_triton_are_accepted() -> None:
    out = fresh()
    affine[2,](X, out, 100, num_ctas=1, maxnreg=128, enable_fp_fusion=False)
    np.testing.assert_array_equal(out, 2 * X)


def test_a_kernel_keeps_its_name_and_docstring_and_shows_its_parameters() -> None:
    @blocknb.kernel
    def documented(x, n):
        """What it does."""

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert repr(documented) == "<kernel documented (x, n)>"


def test_warmup_compiles_and_does_not_change_the_arrays() -> None:
    out = fresh()
    compiled = affine.warmup(X, out, 100, grid=(2,))
    assert np.isnan(out).all()
    assert affine[2,](X, out, 100) is compiled


def test_observers_see_each_launch_with_shapes_and_times_and_keep_no_array(
    monkeypatch: pytest.MonkeyPatch, collect: Callable[[], int]
) -> None:
    seen: list[kernel.Launch] = []
    monkeypatch.setattr(launch_context, "observers", [seen.append])
    out = fresh()
    compiled = affine[2,](X, out, 100)
    affine[0,](X, out, 100)  # an empty grid is no launch
    (launch,) = seen
    assert (launch.kernel, launch.compiled, launch.grid, launch.device) == (affine, compiled, (2, 1, 1), -1)
    assert launch.milliseconds > 0
    assert launch.arguments["out"] == {
        "kind": "array",
        "type": launch.arguments["out"]["type"],
        "shape": (100,),
        "strides": (1,),
        "bytes": 400,
        "device": -1,
        "start": 0,
    }
    assert launch.arguments["n"]["value"] == 100
    assert launch.retarget("sm_80").ptx
    alive = weakref.ref(out)
    del out
    collect()
    assert alive() is None


def test_an_array_may_be_passed_twice() -> None:
    x = X.copy()
    affine[2,](x, x, 100, 1.0, x)
    np.testing.assert_array_equal(x, 2 * X)
