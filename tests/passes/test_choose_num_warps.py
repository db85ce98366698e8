"""The default number of warps follows from the loads and values of a kernel; a requested number wins."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_helpers import ir
from kernels.products import attention

import blocknb
import blocknb.language as bl
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.passes.tile import choose_num_warps
from blocknb.runtime.job import Job

ALIGNED = {"x": "*fp16:16", "y": "*fp16:16", "x_stride": "i32:16", "y_stride": "i32:16", "n": "i32:16"}


@blocknb.kernel
def add(x, out, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at) + 1)


@blocknb.kernel
def total(x, out, n, BLOCK: bl.constexpr):
    acc = bl.zeros((BLOCK,), bl.float32)
    for start in range(0, n, BLOCK):
        acc += bl.load(x + start + bl.arange(0, BLOCK))
    bl.store(out, bl.sum(acc, 0))


@blocknb.kernel
def product(x, y, out):
    i, j = bl.arange(0, 32)[:, None], bl.arange(0, 32)[None, :]
    bl.store(out + i * 32 + j, bl.dot(bl.load(x + i * 32 + j), bl.load(y + i * 32 + j)))


@blocknb.kernel
def products(x, y, out, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr):
    i, j, at = bl.arange(0, M)[:, None], bl.arange(0, N)[None, :], bl.arange(0, K)
    total = bl.zeros((M, N), bl.float32)
    for _ in range(4):
        total = bl.dot(bl.load(x + i * K + at[None, :]), bl.load(y + at[:, None] * N + j), total)
    bl.store(out + i * N + j, total)


@blocknb.kernel
def asked(out, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    bl.store(out + at, bl.sum(bl.load(out + at), 0) + bl.extra.cuda.num_warps())


def chosen(kernel, **given) -> tuple[int, str]:
    """The number of warps, and the note. Neither LLVM nor ptxas runs."""
    job = Job(kernel.request(**given, target="sm_90a"))
    warps = job.front().attrs["num_warps"]
    (note,) = next(stage.notes for stage in job.stages if stage.name == "choose_num_warps")
    assert note.text.startswith(f"num_warps: {warps}, ") and note.text.endswith("; the compiler chose it")
    return warps, note.text


@pytest.mark.parametrize(
    ("block", "warps"), [(64, 1), (512, 1), (1024, 2), (2048, 4), (8192, 4), (16384, 8), (32768, 16), (65536, 16)]
)
def test_rows_get_the_number_of_warps_measured_as_fastest(block, warps):
    assert chosen(softmax_kernel, **ALIGNED, BLOCK=block)[0] == warps


@pytest.mark.parametrize(
    ("block", "warps"), [(256, 1), (1024, 4), (2048, 4), (4096, 8), (8192, 8), (16384, 16), (32768, 16)]
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_rows_with_weights_get_more_warps(block, warps, dtype):
    arrays = dict.fromkeys(("x", "weight", "bias", "y"), f"*{dtype}:16")
    rest = {"mean": None, "rstd": None, "x_row": "i32:16", "y_row": "i32:16", "m": "i32", "n": "i32:16", "eps": "fp32"}
    found, _ = chosen(norm_kernel, **arrays, **rest, CENTRED=True, ROWS=1, BLOCK=block)
    assert found == (8 if (dtype, block) == ("fp16", 16384) else warps)  # words of two elements


def test_kernels_without_measurements_get_four_warps():
    ragged, why = chosen(softmax_kernel, **(ALIGNED | {"n": "i32", "x_stride": "i32"}), BLOCK=512)
    assert ragged == 4 and "one at a time" in why
    for kernel, given, word in (
        (add, {"x": "*fp32:16", "out": "*fp32:16", "BLOCK": 256}, "without a reduction"),
        (total, {"x": "*fp32:16", "out": "*fp32", "n": "i32:16", "BLOCK": 256}, "a loop"),
        (product, {"x": "*fp16:16", "y": "*fp16:16", "out": "*fp32:16"}, "products"),
    ):
        warps, why = chosen(kernel, **given)
        assert warps == 4 and word in why
    assert chosen(add, x="*fp32:16", out="*fp32:16", BLOCK=16384)[0] == 8


@pytest.mark.parametrize(
    ("tile", "warps", "each"),
    [
        ((64, 128, 64), 4, 64),
        ((128, 128, 64), 4, 128),
        ((64, 256, 64), 4, 128),
        ((128, 256, 64), 8, 128),
        ((256, 256, 32), 16, 128),
    ],
)
def test_products_get_enough_warps_to_hold_their_accumulators(tile, warps, each):
    given = dict(zip("MNK", tile, strict=True))
    found, why = chosen(products, x="*fp16:16", y="*fp16:16", out="*fp16:16", **given)
    assert found == warps and f"{each} registers" in why


def test_32_bit_operands_count_as_registers():
    given = {"x": "*fp32:16", "y": "*fp32:16", "out": "*fp32:16", "K": 32}
    assert [chosen(products, **given, M=m, N=n)[0] for m, n in ((64, 128), (64, 256), (128, 128))] == [4, 8, 8]


@pytest.mark.parametrize(("rows", "columns", "head", "warps"), [(64, 64, 64, 4), (128, 64, 64, 8), (128, 128, 128, 8)])
def test_chained_products_get_four_warps_per_64_rows(rows, columns, head, warps):
    given = {"q": "*fp16:16", "k": "*fp16:16", "v": "*fp16:16", "out": "*fp32:16", "n": "i32", "scale": "fp32"}
    found, why = chosen(attention, **given, ROWS=rows, COLUMNS=columns, HEAD=head)
    assert found == warps and "product" in why


def test_requested_number_of_warps_wins():
    compiled = softmax_kernel.compile(**ALIGNED, BLOCK=512, num_warps=4)
    assert compiled.code.threads == 128 and "choose_num_warps" not in [stage.name for stage in compiled.trace.stages]
    eight = blocknb.kernel(softmax_kernel.fn, num_warps=8)
    assert eight.compile(**ALIGNED, BLOCK=512).code.threads == 256
    assert softmax_kernel.compile(**ALIGNED, BLOCK=512).code.threads == 32  # another entry of the cache
    tuned = blocknb.autotune([blocknb.Config({"BLOCK": 512})], key=["n"])(blocknb.kernel(softmax_kernel.fn))
    x = np.ones((2, 300), np.float16)
    assert tuned[2,](x, np.empty_like(x), 300, 300, 300).options["num_warps"] == 4  # a Config's own, as in Triton
    assert softmax_kernel[2,](x, np.empty_like(x), 300, 300, 300, BLOCK=512).options["num_warps"] is None


def test_kernel_can_query_its_number_of_warps():
    compiled = asked.compile("*i32:16", BLOCK=512)
    assert compiled.code.threads == 128
    assert compiled.trace.options["num_warps"] == 4


def test_number_of_warps_is_not_chosen_on_a_cpu():
    compiled = softmax_kernel.compile(**ALIGNED, BLOCK=512, target="cpu")
    assert compiled.trace.options["num_warps"] == 4
    assert "choose_num_warps" not in [stage.name for stage in compiled.trace.stages]


def test_kernel_from_the_disk_cache_keeps_its_number_of_warps():
    first = add.compile(x="*fp32:16", out="*fp32:16", BLOCK=32768)
    assert first.trace.options["num_warps"] == first.metadata.num_warps == first.code.warps == 16
    from blocknb.runtime import compile as compiler

    compiler.forget()
    again = add.compile(x="*fp32:16", out="*fp32:16", BLOCK=32768)
    assert again is not first and again.trace.from_cache
    assert again.trace.options["num_warps"] == 16 == again.code.threads // 32


@blocknb.kernel
def gradients(q, k, g, out, m, ROWS: bl.constexpr, HEAD: bl.constexpr):
    """Many products, of which few are live at a time."""
    i, j = bl.arange(0, ROWS), bl.arange(0, HEAD)
    at = i[:, None] * HEAD + j[None, :]
    left, total = bl.load(q + at), bl.zeros((ROWS, HEAD), bl.float32)
    for start in range(0, m, ROWS):
        right, grad = bl.load(k + start * HEAD + at), bl.load(g + start * HEAD + at)
        for _ in bl.static_range(5):
            scores = bl.dot(left, bl.trans(right)).to(bl.float16)
            grad = bl.dot(bl.trans(scores), grad).to(bl.float16)
        total += grad
    bl.store(out + at, total)


def test_products_that_are_not_live_together_share_registers():
    given = {"q": "*fp16:16", "k": "*fp16:16", "g": "*fp16:16", "out": "*fp32:16", "m": "i32:16"}
    warps, why = chosen(gradients, **given, ROWS=64, HEAD=64)
    assert warps == 4 and "live at a time" in why


@pytest.mark.parametrize(("live", "warps"), [(200, 4), (384, 4), (385, 8), (490, 8), (491, 16)])
def test_four_warps_may_spill_a_third_of_their_live_tiles(live, warps, monkeypatch):
    """Two CTAs of four warps take turns at barriers, and one of eight warps would not."""
    monkeypatch.setattr(choose_num_warps.Liveness, "most", lambda self: live)
    func = ir(products, x="*f16", y="*f16", out="*f32", M=64, N=64, K=64)
    found = choose_num_warps.for_live_tiles(func, needed=1 << 20, count=32)
    assert found is not None and found[0] == warps
