"""Tensor descriptors on the host: valid arguments, launches, and error messages for wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as tl
from blocknb import TensorDescriptor
from blocknb.errors import AccessError, LaunchError


@blocknb.kernel
def double(source, target):
    rows: tl.constexpr = source.block_shape[0]
    columns: tl.constexpr = source.block_shape[1]
    at = [tl.program_id(0) * rows, tl.program_id(1) * columns]
    target.store(at, source.load(at) * 2)


@blocknb.kernel
def optional(source, out, n: tl.constexpr):
    if source is None:
        tl.store(out + tl.arange(0, n), 7.0)
    else:
        tl.store(out + tl.arange(0, n), source.load([2]))


def pair(
    shape: tuple[int, ...] = (10, 24), block: tuple[int, ...] = (8, 16)
) -> tuple[TensorDescriptor, TensorDescriptor]:
    x = seeds.rng().standard_normal(shape).astype(np.float32)
    out = np.full_like(x, np.nan)
    return TensorDescriptor.from_tensor(x, block), TensorDescriptor.from_tensor(out, list(block))


def test_a_descriptor_is_an_argument_of_a_launch() -> None:
    x, out = pair()
    compiled = double[2, 2](x, out)
    np.testing.assert_array_equal(out.base, 2 * x.base)
    assert dict(compiled.trace.signature) == {"source": "tensordesc<fp32[8,16]>", "target": "tensordesc<fp32[8,16]>"}
    assert [name for name, _ in compiled.parameters][:4] == [
        "source",
        "source.shape0",
        "source.shape1",
        "source.stride0",
    ]
    assert (compiled.loaded, compiled.stored) == ({"source"}, {"target"})


def test_the_block_shape_is_a_constant_that_may_change_between_launches() -> None:
    x, out = pair()
    first = double[2, 2](x, out)
    out.base[:] = np.nan
    x.block_shape = out.block_shape = [16, 8]
    second = double[1, 3](x, out)
    np.testing.assert_array_equal(out.base, 2 * x.base)
    assert first is not second
    assert double[1, 3](x, out) is second


def test_sizes_and_strides_are_not_constants() -> None:
    x, out = pair((10, 24))
    y, other = pair((33, 40))
    assert double[5, 3](y, other) is double[5, 3](x, out)
    np.testing.assert_array_equal(other.base[:33], 2 * y.base)
    even, aligned = pair((10, 32))
    assert double[2, 2](even, aligned) is not double[2, 2](
        x, out
    )  # the last size is a multiple of 16: vectors need no mask each


def test_a_descriptor_of_a_slice_and_of_a_pitched_array() -> None:
    whole = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    out = np.zeros((8, 16), np.float32)
    part = TensorDescriptor(whole[:, 4:], (5, 9), (32, 1), (8, 16))
    double[1, 1](part, TensorDescriptor.from_tensor(out, (8, 16)))
    expected = np.zeros_like(out)
    expected[:5, :9] = 2 * whole[:5, 4:13]
    np.testing.assert_array_equal(out, expected)


def test_torch_tensors_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.randn(10, 24), torch.full((10, 24), float("nan"))
    double[2, 2](TensorDescriptor.from_tensor(x, [8, 16]), TensorDescriptor.from_tensor(out, [8, 16]))
    assert torch.equal(out, 2 * x)


def test_tracing_tensors_of_torch_have_no_memory() -> None:
    class FakeTensor:
        dtype, shape = np.dtype(np.float16), (10, 24)

        def stride(self) -> tuple[int, ...]:
            return (24, 1)

    x = TensorDescriptor.from_tensor(FakeTensor(), [8, 16])
    assert (x.shape, x.strides, x.block_shape, x.dtype) == ((10, 24), (24, 1), [8, 16], np.float16)
    with pytest.raises(LaunchError, match="is 40 bytes, not a multiple of 16"):
        TensorDescriptor(x.base, (10, 20), (20, 1), [8, 16])
    with pytest.raises(LaunchError, match="FakeTensor is neither an array nor a number"):
        double[1, 1](x, x)


def test_none_stands_for_no_descriptor() -> None:
    out = np.zeros(4, np.float32)
    optional[1,](None, out, n=4)
    np.testing.assert_array_equal(out, [7] * 4)
    x = TensorDescriptor(np.arange(5, dtype=np.float32), [5], [1], [4], padding="nan")
    optional[1,](x, out, n=4)
    np.testing.assert_array_equal(out, [2, 3, 4, np.nan])


def test_a_type_text_stands_for_a_descriptor() -> None:
    trace = double.trace("tensordesc<fp16[64,64]>:16", "tensordesc<fp16[64, 64]>:16", target="sm_90a")
    notes = [note.text for stage in trace.stages if stage.name == "coalesce" for note in stage.notes]
    assert [note.split(" per thread")[0] for note in notes] == [
        "load: 8 x fp16 (16 bytes)",
        "store: 8 x fp16 (16 bytes)",
    ]
    assert double.compile("tensordesc<fp32[4,8],nan>", "tensordesc<fp32[4,8]>", target="cpu").parameters


def test_accesses_of_a_descriptor_larger_than_its_array_are_reported() -> None:
    x, out = pair()
    beyond = TensorDescriptor(x.base, (10, 48), (48, 1), (8, 16))
    with pytest.raises(AccessError, match="of `source`, which has 240 elements"):
        double[2, 3](beyond, out)


def test_a_read_only_array_may_be_loaded_only() -> None:
    x, out = pair()
    x.base.flags.writeable = False
    double[2, 2](x, out)
    with pytest.raises(LaunchError, match="stores through `target`, and that array is read-only"):
        double[2, 2](out, x)


def test_grids_and_heuristics_see_the_descriptor() -> None:
    x, out = pair()

    @blocknb.heuristics({"BLOCK": lambda args: args["source"].block_shape[1]})
    @blocknb.kernel
    def rows(source, target, BLOCK: tl.constexpr):
        tl.static_assert(source.block_shape[1] == BLOCK)
        at = [tl.program_id(0) * source.block_shape[0], tl.program_id(1) * BLOCK]
        target.store(at, source.load(at))

    rows[lambda meta: (blocknb.cdiv(meta["source"].shape[0], 8), blocknb.cdiv(meta["source"].shape[1], meta["BLOCK"]))](
        x, out
    )
    np.testing.assert_array_equal(out.base, x.base)


def test_an_autotuner_s_hook_sets_the_block_shape() -> None:
    def shape(args):
        args["source"].block_shape = args["target"].block_shape = [args["BM"], args["BN"]]

    seen = []

    @blocknb.autotune(
        [blocknb.Config({"BM": bm, "BN": 16}, pre_hook=shape) for bm in (4, 8)], key=["m"], reset_to_zero=["target"],
        do_bench=lambda call, quantiles: (call(), seen.append(1), [float(len(seen))] * 3)[-1],
    )  # fmt: skip
    @blocknb.kernel
    def tuned(source, target, m, BM: tl.constexpr, BN: tl.constexpr):
        at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
        target.store(at, target.load(at) + source.load(at))

    x, out = pair(block=(1, 4))
    tuned[lambda meta: (blocknb.cdiv(10, meta["BM"]), 2)](x, out, 10)
    np.testing.assert_array_equal(out.base, x.base)
    assert len(seen) == 2
    assert tuned.best_config.kwargs["BM"] == 4 == out.block_shape[0]


def test_an_observed_launch_has_the_array_and_the_sizes() -> None:
    from blocknb.runtime.launch_context import observers

    seen: list[Any] = []
    observers.append(seen.append)
    try:
        double[2, 2](*pair())
    finally:
        observers.remove(seen.append)
    assert dict(seen[0].arguments["source"]) == {
        "kind": "array", "type": "tensordesc<fp32[8,16]>", "shape": (10, 24), "strides": (24, 1), "bytes": 960,
        "device": -1, "start": 0, "parts": [10, 24, 24],
    }  # fmt: skip


def test_the_work_of_a_loop_over_a_descriptor_s_size_is_counted() -> None:
    from blocknb.notebook.numbers import rate
    from blocknb.notebook.observe import Specialisation
    from blocknb.runtime.launch_context import observers

    @blocknb.kernel
    def gram(x, out, BLOCK: tl.constexpr):
        acc = tl.zeros((16, 16), tl.float32)
        for k in range(0, x.shape[1], BLOCK):
            tile = x.load([0, k])
            acc = tl.dot(tile, tl.trans(tile), acc, input_precision="ieee")
        out.store([0, 0], acc)

    x = seeds.rng().standard_normal((16, 48)).astype(np.float32)
    out = np.zeros((16, 16), np.float32)
    made: list[Any] = []
    observers.append(made.append)
    try:
        gram[1,](TensorDescriptor.from_tensor(x, (16, 16)), TensorDescriptor.from_tensor(out, (16, 16)), 16)
    finally:
        observers.remove(made.append)
    np.testing.assert_allclose(out, x @ x.T, rtol=1e-4, atol=1e-4)
    specialisation = Specialisation(made[0].compiled, made[0].device)
    specialisation.add(made[0])
    found = rate(specialisation)
    assert found is not None
    assert found.unit == "TFLOP/s"
    assert found.value == pytest.approx(2 * 16 * 16 * 48 / made[0].milliseconds / 1e9)


X = np.zeros((8, 24), np.float32)
WRONG = [
    (lambda: TensorDescriptor(X, (8, 24), (24, 2), (4, 4)), "the last stride of a tensor descriptor must be 1, not 2"),
    (lambda: TensorDescriptor.from_tensor(X.T, (4, 4)), "the last stride of a tensor descriptor must be 1, not 24"),
    (lambda: TensorDescriptor(X, (8, 23), (23, 1), (4, 4)), "a stride of 23 elements is 92 bytes, not a multiple of 16"),
    (lambda: TensorDescriptor(X[:, 1:], (8, 23), (24, 1), (4, 4)), "is not a multiple of 16 bytes"),
    (lambda: TensorDescriptor(X, (8, 24), (24, 1), (4,)), "block_shape has 1 elements, but shape has 2"),
    (lambda: TensorDescriptor(X, (8, 24), (1,), (4, 4)), "strides has 1 elements, but shape has 2"),
    (lambda: TensorDescriptor(X, (1,) * 6, (4,) * 5 + (1,), (1,) * 6), "has 1 to 5 axes, not 6"),
    (lambda: TensorDescriptor(X, (), (), ()), "has 1 to 5 axes, not 0"),
    (lambda: TensorDescriptor(X, (0, 24), (24, 1), (4, 4)), "the size 0 in the shape"),
    (lambda: TensorDescriptor(X, (8.0, 24), (24, 1), (4, 4)), "shape is .* not a sequence of ints"),
    (lambda: TensorDescriptor(X, (8, 24), (24, 1), (4, 12)), "the size 12 in the block shape .* is not a power of two"),
    (lambda: TensorDescriptor(X, (8, 24), (24, 1), (2048, 1024)), "2097152 elements, more than"),
    (lambda: TensorDescriptor.from_tensor(X, (4, 4), padding="one"), "unknown padding 'one'"),
    (lambda: TensorDescriptor.from_tensor(X.astype(np.int32), (4, 4), "nan"), "an array of int32 cannot be padded with NaN"),
    (lambda: TensorDescriptor(3, (8, 24), (24, 1), (4, 4)), "describes an array, not a int"),
    (lambda: TensorDescriptor.from_tensor([1, 2], (4,)), "describes an array, not a list"),
    (lambda: TensorDescriptor(X.astype(complex), (8, 24), (24, 1), (4, 4)), "cannot take an array of complex128"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_a_wrong_descriptor_is_rejected_when_it_is_made(make, message) -> None:
    with pytest.raises(LaunchError, match=message):
        make()


def test_a_wrong_block_shape_is_rejected_at_the_launch() -> None:
    x, out = pair()
    x.block_shape = [8, 15]
    with pytest.raises(LaunchError, match="argument `source` of the kernel double: the size 15 in the block shape"):
        double[2, 2](x, out)
    x.block_shape = [8]
    with pytest.raises(LaunchError, match="block_shape has 1 elements, but shape has 2"):
        double[2, 2](x, out)
    x.block_shape, out.block_shape = [8, 2], [8, 2]
    with pytest.raises(LaunchError, match=r"the last axis of the block \(8, 2\) has 8 bytes"):
        double[2, 2](x, out)
