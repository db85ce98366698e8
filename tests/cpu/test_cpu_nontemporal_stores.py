"""Non-temporal stores and row prefetch change the machine code and leave the results unchanged."""

import numpy as np
import pytest
from frontend_helpers import argument, kernel, parse
from host_cpus import X86
from native import TARGETS, compile_native, launch_native, prepared

import blocknb.language as tl
from blocknb.codegen import cpu, llvm
from blocknb.passes.tile import nontemporal_stores
from blocknb.runtime.host import HostKernel
from blocknb.target import Target

rng = np.random.default_rng(3)


stored_by_x86 = pytest.mark.skipif(not X86, reason="Arm's CPUs need no non-temporal stores, so the pass does nothing")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(nontemporal_stores, "LARGE", 1)


def build(k, target, **arguments):
    func = parse(k.source, {n: argument(k, n, v) for n, v in arguments.items()}, {})
    return func, compile_native(func, target), [arguments[hint.name] for hint in func.hints]


def text(k, **arguments):
    func, _, _ = build(k, "cpu", **arguments)
    target = Target.parse("cpu")
    return cpu.generate(prepared(func, target), target).text


def placed(count, dtype, start):
    """An array that begins `start` elements after a cache line, and the larger array around it."""
    size = np.dtype(dtype).itemsize
    whole = np.full(count + 256, 77, dtype)
    first = -(whole.ctypes.data // size) % (64 // size) + 64 + start
    return whole, whole[first : first + count]


@kernel
def affine(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2 + 1, mask=i < n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
def test_ragged_and_misaligned_stores_write_exactly_their_range(target, dtype):
    for n, x_start, y_start in [
        (2048, 0, 0),
        (1024, 3, 4),
        (528, 0, 8),
        (1000, 3, 5),
        (1023, 0, 15),
        (257, 1, 1),
        (40, 7, 2),
    ]:
        x = rng.integers(-60, 60, n + 3).astype(dtype)[:n]
        whole, y = placed(n, dtype, y_start)
        _, near = placed(n, dtype, x_start)
        near[:] = x
        _, native, values = build(affine, target, x=near, y=y, n=n, BLOCK=512)
        launch_native(native, values, -(-n // 512))
        assert (y == x * 2 + 1).all()
        y[:] = 77
        assert (whole == 77).all(), "it wrote outside of the result"


@kernel
def unmasked(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("start", [0, 1, 4])
def test_unmasked_results_may_have_any_alignment(target, start):
    whole, y = placed(1024, "float32", start)
    x = rng.standard_normal(1024, dtype=np.float32)
    _, native, values = build(unmasked, target, x=x, y=y, BLOCK=256)
    launch_native(native, values, 4)
    assert (y == x + 1).all()
    y[:] = 77
    assert (whole == 77).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_in_place_kernel_computes_every_element_once(target):
    for n, start in [(999, 3), (960, 4), (1024, 0)]:
        _, x = placed(n, "float32", start)
        x[:] = rng.standard_normal(n, dtype=np.float32)
        expected = x * 2 + 1
        _, native, values = build(affine, target, x=x, y=x, n=n, BLOCK=1024)
        launch_native(native, values, 1)
        assert (x == expected).all()


@kernel
def two_results(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v + 1, mask=i < n)
    tl.store(z + i, v * 3, mask=i < n - 5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("starts", [(4, 8), (4, 3)])
def test_two_results_may_differ_in_alignment_and_length(target, starts):
    x = rng.standard_normal(700, dtype=np.float32)
    (whole_y, y), (whole_z, z) = (placed(700, "float32", s) for s in starts)
    _, native, values = build(two_results, target, x=x, y=y, z=z, n=700, BLOCK=1024)
    launch_native(native, values, 1)
    assert (y == x + 1).all()
    assert (z[:695] == x[:695] * 3).all()
    assert (z[695:] == 77).all()
    y[:] = z[:] = 77
    assert (whole_y == 77).all()
    assert (whole_z == 77).all()


@kernel
def normalise(x, y, x_row, y_row, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * x_row + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * y_row + i, e / tl.sum(e, axis=0), mask=i < n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 5, 200, 511, 512])
def test_prefetched_rows_may_be_in_any_order(target, n):
    x = rng.standard_normal((6, n), dtype=np.float32)
    expected = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    for source in (x, np.ascontiguousarray(x[::-1])[::-1], np.repeat(x, 2, axis=0)[::2]):
        whole, y = placed(6 * n, "float32", 4)
        first = (
            source.base if source.base is not None else source
        )  # the launch uses the bounds of the array that owns the memory
        assert first.nbytes >= source.nbytes
        _, native, values = build(
            normalise, target, x=source, y=y, x_row=source.strides[0] // 4, y_row=n, n=n, BLOCK=512
        )
        launch_native(native, values, 6)
        np.testing.assert_allclose(y.reshape(6, n), expected, rtol=2e-6, atol=1e-30)
        y[:] = 77
        assert (whole == 77).all()


@stored_by_x86
def test_row_kernel_uses_prefetch_and_nontemporal_stores():
    x = np.zeros((4, 512), np.float32)
    code = text(normalise, x=x, y=x.copy(), x_row=512, y_row=512, n=512, BLOCK=512)
    assert "@llvm.prefetch" in code
    assert "!nontemporal" in code
    assert "fence seq_cst" in code


def test_kernel_without_reduction_is_not_prefetched():
    x = np.zeros(1 << 12, np.float32)
    assert "@llvm.prefetch" not in text(
        unmasked, x=x, y=x.copy(), BLOCK=256
    )  # no computation to overlap with a prefetch


def uses_nontemporal_stores(monkeypatch, large, n, y_start=0, dtype="float32"):
    """Whether a result of one row of n elements uses non-temporal stores. The test removes them, so the result is not written then."""
    monkeypatch.setattr(nontemporal_stores, "LARGE", large)
    target = Target.parse("cpu")
    x, (_, y) = np.zeros(n, dtype), placed(n, dtype, y_start)
    arguments = {"x": x, "y": y, "n": n, "BLOCK": 512}
    func = parse(affine.source, {name: argument(affine, name, v) for name, v in arguments.items()}, {})
    module = cpu.generate(prepared(func, target), target)
    text = "\n".join(line for line in module.text.splitlines() if "!nontemporal !1" not in line)
    assert text.count("\n") < module.text.count("\n") - 1
    parameters = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    made = llvm.compile_cpu(text, target).result().object
    native = HostKernel(made, module.entry, parameters, module.sites, module.scratch_bytes, module.may_loop)
    # The bounds of an array are those of the memory that it is a part of: here they are the array itself.
    packed = [
        (v.ctypes.data, v.ctypes.data, v.ctypes.data + v.nbytes) if isinstance(v, np.ndarray) else v for v in (x, y, n)
    ]
    native.launch((1, 1, 1), packed)
    assert (y == 1).all() or (y == 77).all()
    return bool((y == 77).all())


@stored_by_x86
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_only_large_aligned_results_use_nontemporal_stores(dtype, monkeypatch):
    size = 256 * np.dtype(dtype).itemsize
    assert uses_nontemporal_stores(monkeypatch, size, 256, dtype=dtype)
    assert not uses_nontemporal_stores(monkeypatch, size + 1, 256, dtype=dtype)
    assert uses_nontemporal_stores(monkeypatch, 1, 512, dtype=dtype)
    assert not uses_nontemporal_stores(monkeypatch, 1, 511, dtype=dtype)
    assert not uses_nontemporal_stores(monkeypatch, 1, 257, dtype=dtype)
    unit = 16 // np.dtype(dtype).itemsize
    assert uses_nontemporal_stores(monkeypatch, 1, 256, y_start=unit, dtype=dtype)
    assert not uses_nontemporal_stores(monkeypatch, 1, 256, y_start=unit // 2, dtype=dtype)


# -- rows that end before their tile does -----------------------------------------------------------------------------------


@kernel
def crosswise(x, y, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + rows[:, None] + columns[None, :] * M)
    tl.store(y + rows[:, None] * N + columns[None, :], v * 2)


@stored_by_x86
@pytest.mark.parametrize(
    ("m", "n", "start", "counted"),
    [(8, 64, 0, 8), (8, 64, 4, 0), (8, 512, 4, 8), (1, 64, 4, 1)],
    ids=["aligned", "short and misaligned", "long and misaligned", "one row"],
)
def test_short_rows_of_a_tile_bypass_the_cache_only_from_the_start_of_a_line(m, n, start, counted):
    x, (_, y) = rng.integers(-9, 9, m * n).astype(np.float32), placed(m * n, np.float32, start)
    func, _, values = build(crosswise, "cpu", x=x, y=y, M=m, N=n)
    target = Target.parse("cpu")
    streamed = np.zeros(1, np.int64)
    module = cpu.generate(prepared(func, target), target)
    label = next(line for line in module.text.splitlines() if line.startswith("past") and line.endswith(":"))
    count = f"{label}\n  %rows_streamed = atomicrmw add ptr inttoptr (i64 {streamed.ctypes.data} to ptr), i64 1 seq_cst"
    made = llvm.compile_cpu(module.text.replace(label, count, 1), target).result()
    parameters = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    native = HostKernel(made.object, module.entry, parameters, module.sites, module.scratch_bytes, True)
    launch_native(native, values, 1)
    np.testing.assert_array_equal(y.reshape(m, n), 2 * x.reshape(n, m).T)
    assert streamed[0] == counted


@kernel
def summed(x, y, n, other, offset, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=other) + offset
    tl.store(y, tl.sum(v, axis=0))
    tl.store(y + 1, tl.max(v, axis=0))
    tl.store(y + 2, tl.min(v, axis=0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("other", "offset"), [(0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (float("inf"), 0.0), (float("nan"), 0.0), (-1e9, 1e9)]
)
def test_reductions_count_every_masked_element_beyond_the_row(target, other, offset):
    for n in (0, 1, 37, 64, 65, 255, 256):
        x = rng.standard_normal(n + 1, dtype=np.float32)
        y = np.zeros(3, np.float32)
        _, native, values = build(summed, target, x=x, y=y, n=n, other=other, offset=offset, BLOCK=256)
        launch_native(native, values, 1)
        tile = np.full(256, other, np.float32)
        tile[:n] = x[:n]
        tile += np.float32(offset)
        numbers = tile[~np.isnan(tile)]
        expected = [tile.astype(np.float64).sum(), *(f(numbers) if len(numbers) else np.nan for f in (np.max, np.min))]
        np.testing.assert_allclose(y, expected, rtol=2e-5, atol=1e-4)


@kernel
def read_beyond(x, y, z, n, more, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.exp(tl.load(x + i, mask=i < n, other=0.5))
    total = tl.sum(v, axis=0)
    w = v * total
    largest = tl.max(w, axis=0)
    tl.store(y + i, w - largest, mask=i < more)
    tl.store(z + i, tl.flip(v) + i)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("more", [0, 90, 130, 256])
def test_reads_beyond_the_row_find_the_padding_values(target, more):
    n = 100
    x = rng.standard_normal(n, dtype=np.float32)
    y, z = np.full(256, 77, np.float32), np.zeros(256, np.float32)
    _, native, values = build(read_beyond, target, x=x, y=y, z=z, n=n, more=more, BLOCK=256)
    launch_native(native, values, 1)
    tile = np.full(256, 0.5)
    tile[:n] = x
    v = np.exp(tile)
    w = v * v.sum()
    np.testing.assert_allclose(y[:more], (w - w.max())[:more], rtol=1e-4, atol=2e-3)
    assert (y[more:] == 77).all()
    np.testing.assert_allclose(z, v[::-1] + np.arange(256), rtol=1e-5)


@kernel
def carried(x, y, rows, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        v = tl.load(x + row * n + i, mask=i < n - row, other=1.0)
        v = v - tl.max(v, axis=0)
        total += v * 2
    tl.store(y + i, total)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_loop_may_have_different_lengths(target):
    rows, n = 5, 150
    x = rng.standard_normal((rows, n), dtype=np.float32)
    y = np.zeros(256, np.float32)
    _, native, values = build(carried, target, x=x, y=y, rows=rows, n=n, BLOCK=256)
    launch_native(native, values, 1)
    expected = np.zeros(256)
    for r in range(rows):
        tile = np.ones(256)
        tile[: n - r] = x[r, : n - r]
        expected += (tile - tile.max()) * 2
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_row_that_ends_early_skips_the_rest_of_its_tile():
    x = np.zeros((4, 300), np.float32)
    code = text(normalise, x=x, y=x.copy(), x_row=300, y_row=300, n=300, BLOCK=512)
    assert "rest" in code
    assert all(name in code for name in ("tail", "fcmp ueq"))
