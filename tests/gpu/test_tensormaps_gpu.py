"""Tensor maps and persistent grids on a GPU that supports them.

Hand-written machine code checks the contents and bounds of boxes; a kernel checks that every launch has its own maps.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as bl
from blocknb import TensorDescriptor
from blocknb.codegen.maps import MapSpec
from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime import cuda, driver
from blocknb.runtime.request import KernelCode

cupy = pytest.importorskip("cupy")

BOX = 8
#: Program (p, q) copies the box of 8 x 8 at (8 p, 8 q) of x to shared memory. It writes the contents to `seen` (64 floats per program), and
#: copies the box to the same place of `out`.
PTX = """
.version 8.0
.target sm_90
.address_size 64

.visible .entry boxes(
    .param .u64 x, .param .u64 out, .param .u64 seen, .param .u32 m, .param .u32 k, .param .u32 pitch,
    .param .u32 gx, .param .u32 gy, .param .u32 gz,
    .param .align 64 .b8 source[128], .param .align 64 .b8 target[128])
.maxntid 32
{
    .reg .pred %p, %first;
    .reg .b32 %r<24>;
    .reg .b64 %d<8>;
    .reg .f32 %f<2>;
    .shared .align 128 .b8 box[256];
    .shared .align 8 .b64 full;

    mov.u32 %r0, %tid.x;
    setp.eq.u32 %first, %r0, 0;
    mov.u32 %r1, box;
    mov.u32 %r2, full;
    mov.b64 %d0, source;
    cvta.param.u64 %d1, %d0;
    mov.b64 %d0, target;
    cvta.param.u64 %d2, %d0;
    ld.param.u64 %d3, [seen];
    cvta.to.global.u64 %d3, %d3;
    @%first mbarrier.init.shared::cta.b64 [%r2], 1;
    @%first fence.mbarrier_init.release.cluster;
    bar.sync 0;

    ld.param.u32 %r3, [gx];
    ld.param.u32 %r4, [gy];
    mul.lo.u32 %r5, %r3, %r4;
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %nctaid.x;
    mov.u32 %r8, 0;
NEXT:
    setp.ge.u32 %p, %r6, %r5;
    @%p bra DONE;
    rem.u32 %r9, %r6, %r3;
    div.u32 %r10, %r6, %r3;
    shl.b32 %r9, %r9, 3;
    shl.b32 %r10, %r10, 3;
    @!%first bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r10, %r9}], [%r2];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r2], %r8;
    @!%p bra WAIT;
    xor.b32 %r8, %r8, 1;

    shl.b32 %r11, %r0, 2;
    add.u32 %r12, %r1, %r11;
    ld.shared.f32 %f0, [%r12];
    ld.shared.f32 %f1, [%r12+128];
    mul.wide.u32 %d4, %r6, 256;
    add.u64 %d4, %d3, %d4;
    cvt.u64.u32 %d5, %r11;
    add.u64 %d4, %d4, %d5;
    st.global.f32 [%d4], %f0;
    st.global.f32 [%d4+128], %f1;

    @!%first bra MOVED;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d2, {%r10, %r9}], [%r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
MOVED:
    bar.sync 0;
    add.u32 %r6, %r6, %r7;
    bra NEXT;
DONE:
    ret;
}
"""
ROWS, COLUMNS, PITCH = ("arg", 3), ("arg", 4), ("arg", 5)
MAPS = (
    MapSpec(0, t.float32, (BOX, BOX), 0, (ROWS, COLUMNS), (PITCH,)),
    MapSpec(1, t.float32, (BOX, BOX), 0, (ROWS, COLUMNS), (PITCH,), stored=True),
)
PARAMETERS = (
    *((name, t.Pointer(t.float32)) for name in ("x", "out", "seen")),
    *((name, t.int32) for name in ("m", "k", "pitch")),
)


@pytest.fixture(scope="module")
def launcher() -> driver.Launcher:
    if cuda.target(0).capability != 90:
        pytest.skip("the machine code is for compute capability 9.0")
    code = KernelCode("boxes", PARAMETERS, frozenset(), frozenset(), 32, 0, maps=MAPS, launch_kind="persistent")
    compiled: Any = SimpleNamespace(
        code=code, parameters=PARAMETERS, name="boxes", trace=SimpleNamespace(milliseconds={}, artifacts={"ptx": PTX})
    )
    return driver.Launcher(compiled, 0, range(len(PARAMETERS)), "")


def moved(launcher: driver.Launcher, m: int, k: int, pitch: int, grid: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """(x, out: the arrays of m rows including their pitch; `seen` of each program: grid x, grid y, 8, 8)."""
    rows = max(m, 1)
    x = seeds.cupy_random().standard_normal((rows, pitch), dtype=cupy.float32)
    out, seen = (
        cupy.full((rows, pitch), np.nan, np.float32),
        cupy.full((grid[1], grid[0], BOX, BOX), np.nan, np.float32),
    )
    launcher(grid, [x.data.ptr, out.data.ptr, seen.data.ptr, m, k, pitch], [])
    return x.get(), out.get(), seen.get().transpose(1, 0, 2, 3)


@pytest.mark.parametrize(
    ("m", "k", "pitch"),
    [(8, 8, 8), (13, 21, 24), (1, 5, 8), (700, 300, 300), (0, 5, 8), (5, 0, 8), (0, 0, 4), (3, 3, 64)],
)
def test_boxes_contain_the_array_and_zeros_outside_of_it(launcher: driver.Launcher, m: int, k: int, pitch: int) -> None:
    grid = (blocknb.cdiv(m, BOX) + 2, blocknb.cdiv(k, BOX) + 1, 1)
    x, out, seen = moved(launcher, m, k, pitch, grid)
    expected = np.zeros((grid[0] * BOX, grid[1] * BOX), np.float32)
    expected[:m, :k] = x[:m, :k]
    np.testing.assert_array_equal(seen.transpose(0, 2, 1, 3).reshape(expected.shape), expected)
    inside = np.full_like(out, np.nan)
    inside[:m, : -(-k // 4) * 4] = (
        0  # TMA clips rows at the next multiple of 16 bytes: `tma_store` stores other rows by threads
    )
    inside[:m, :k] = x[:m, :k]
    np.testing.assert_array_equal(out, inside)


def test_array_of_one_row_may_have_any_pitch(launcher: driver.Launcher) -> None:
    x, out, _ = moved(launcher, 1, 5, 7, (1, 1, 1))
    np.testing.assert_array_equal(out[0, :5], x[0, :5])


def test_every_program_of_a_large_persistent_grid_runs(launcher: driver.Launcher) -> None:
    grid = (1500, 40, 1)
    assert 0 < launcher.kernel.resident < 1500 * 40
    x, out, seen = moved(launcher, 8 * 1500, 8 * 40, 8 * 40, grid)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(seen.transpose(0, 2, 1, 3).reshape(x.shape), x)


def test_invalid_tensor_maps_are_detected_before_the_driver_call(launcher: driver.Launcher) -> None:
    with pytest.raises(LaunchError, match="with a stride of 28 bytes"):
        moved(launcher, 2, 5, 7, (1, 1, 1))
    moved(launcher, 2, 5, 8, (1, 1, 1))


@pytest.mark.parametrize(
    ("dtype", "swizzle", "box"),
    [
        (t.float16, 128, (64, 64)),
        (t.bfloat16, 64, (8, 32)),
        (t.float8e4nv, 32, (256, 32)),
        (t.int32, 0, (1, 256)),
        (t.float64, 128, (4, 16)),
    ],
)
def test_driver_accepts_tensor_maps_of_any_dtype_and_rank(dtype: t.DType, swizzle: int, box: tuple[int, ...]) -> None:
    from blocknb.runtime.tensormaps import Encoder

    memory = cupy.zeros(1 << 16, np.uint8)
    for rank in range(2, 6):
        ones = (1,) * (rank - 2)
        spec = MapSpec(0, dtype, (*ones, *box), swizzle, (2**31,) * rank, (1024,) * (rank - 1))
        code = KernelCode("none", (("x", t.Pointer(dtype)),), frozenset(), frozenset(), maps=(spec,))
        made = Encoder(SimpleNamespace(code=code, parameters=code.parameters, name="none"), 0)  # type: ignore[arg-type]
        (address,), structs = made([memory.data.ptr])
        assert address % 64 == 0
        assert made([memory.data.ptr])[1] is structs


@blocknb.kernel
def product(a, b, c, m, n, k, BLOCK: bl.constexpr):
    rows, columns = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK), bl.program_id(1) * BLOCK + bl.arange(0, BLOCK)
    inner, acc = bl.arange(0, 64), bl.zeros((BLOCK, BLOCK), bl.float32)
    for at in range(0, k, 64):
        left = bl.load(a + rows[:, None] * k + at + inner, mask=(rows[:, None] < m) & (at + inner < k), other=0)
        right = bl.load(
            b + (at + inner)[:, None] * n + columns, mask=((at + inner)[:, None] < k) & (columns < n), other=0
        )
        acc = bl.dot(left, right, acc)
    bl.store(c + rows[:, None] * n + columns, acc, mask=(rows[:, None] < m) & (columns < n))


@blocknb.kernel
def described_product(a, b, c, k, BLOCK: bl.constexpr):
    row, column, acc = bl.program_id(0) * BLOCK, bl.program_id(1) * BLOCK, bl.zeros((BLOCK, BLOCK), bl.float32)
    for at in range(0, k, BLOCK):
        acc = bl.dot(a.load([row, at]), b.load([at, column]), acc)
    c.store([row, column], acc)


def halves(*shape: int) -> Any:
    return seeds.cupy_random().standard_normal(shape, dtype=cupy.float32).astype(np.float16)


def launch(a: Any, b: Any, c: Any) -> Any:
    (m, k), n = a.shape, b.shape[1]
    return product[(blocknb.cdiv(m, 128), blocknb.cdiv(n, 128))](a, b, c, m, n, k, BLOCK=128)


def check(a: Any, b: Any, c: Any) -> None:
    expected = a.get().astype(np.float64) @ b.get().astype(np.float64)
    np.testing.assert_allclose(c.get(), expected, rtol=1e-3, atol=1e-3 * max(a.shape[1], 1) ** 0.5)


SIZES = [
    (256, 384, 512),
    (16, 16, 16),
    (272, 400, 48),
    (128, 128, 0),
    (300, 16, 1040),
    (1, 256, 64),
    (5, 64, 80),
    (2, 0, 64),
]


def test_launches_of_one_kernel_have_their_own_tensor_maps() -> None:
    arrays = [(halves(m, k), halves(k, n), cupy.full((m, n), np.nan, np.float32)) for m, n, k in SIZES]
    for _ in range(3):
        for a, b, c in arrays:
            c[:] = np.nan
            compiled = launch(a, b, c)
            assert cuda.target(0).capability != 90 or compiled.code.maps
        for a, b, c in arrays:
            check(a, b, c)


def test_captured_graph_keeps_the_tensor_maps_of_its_launches() -> None:
    arrays = [(halves(m, 64), halves(64, 128), cupy.zeros((m, 128), np.float32)) for m in (64, 128, 200)]
    for _ in range(3):
        for given in arrays:
            launch(*given)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for given in arrays:
            launch(*given)
        graph = stream.end_capture()
    for i in range(300):  # more launches than the cache holds, at other addresses
        x = halves(16 + i, 64)
        launch(x, arrays[0][1], cupy.zeros((16 + i, 128), np.float32))
    for a, b, c in arrays:
        a[:], c[:] = halves(*a.shape), np.nan
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    for given in arrays:
        check(*given)


def test_host_descriptors_become_tensor_maps() -> None:
    for m, n, k, pitch in ((128, 128, 128, 128), (100, 72, 200, 256), (1, 8, 8, 64), (640, 136, 72, 72)):
        a, b, c = halves(m, pitch)[:, :k], halves(k, n), cupy.full((m, n), np.nan, np.float32)
        given = [TensorDescriptor.from_tensor(x, [64, 64]) for x in (a, b, c)]
        for _ in range(3):
            described_product[(blocknb.cdiv(m, 64), blocknb.cdiv(n, 64))](*given, k, BLOCK=64)
        check(a, b, c)
