"""Program packing: which programs share a CTA, how many a launch packs, and that every program keeps its ids."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from fuzz import reports
from hypothesis import given
from hypothesis import strategies as st
from kernels import CASES
from pretend_gpu import CupyArray, pretend

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.profile.occupancy import occupancy
from blocknb.runtime.cta import CTAS_PER_SM, programs_of_cta
from blocknb.target import Target

SM90 = Target.parse("sm_90a")
SIZES = st.integers(1, 1 << 20)


@blocknb.kernel
def scaled_rows(x, out, sizes, n, FACTOR: bl.constexpr, BLOCK: bl.constexpr):
    row, columns = bl.program_id(0) + bl.num_programs(0) * bl.program_id(1), bl.arange(0, BLOCK)
    values = bl.load(x + row * n + columns, mask=columns < n, other=0.0)
    bl.store(out + row * n + columns, values / bl.sum(values * values) * FACTOR, mask=columns < n)
    bl.store(sizes + row, bl.num_programs(0) * 1000 + bl.num_programs(1))


@blocknb.kernel
def transposed(x, out):
    i, j = bl.arange(0, 32)[:, None], bl.arange(0, 32)[None, :]
    bl.store(out + i * 32 + j, bl.trans(bl.load(x + i * 32 + j)))


@blocknb.kernel
def printing(x):
    bl.device_print("here", bl.load(x + bl.program_id(0)))


@blocknb.kernel
def where(out):
    bl.store(out, bl.inline_asm_elementwise("mov.u32 $0, %ctaid.x;", "=r", [], bl.int32, True, 1))


def stages(kernel, *args, **options):
    trace = kernel.trace(*args, **options)
    return {stage.name: stage for stage in trace.stages}, trace


def rows(**options):
    return stages(scaled_rows, "*fp32", "*fp32", "*i32", "i32", FACTOR=2.0, BLOCK=128, **options)


@pytest.mark.parametrize(("warps", "programs"), [(1, 8), (2, None), (4, None)])
def test_independent_programs_share_a_cta(warps, programs):
    found, trace = rows(num_warps=warps)
    assert found["barriers"].after.attrs.get("programs") is None
    if warps == 4:
        assert "program_packing" not in found
    else:  # two warps compute a sum together
        assert found["program_packing"].after.attrs.get("programs") == programs
        said = "up to 8 programs per CTA" if programs else "one program per CTA: its warps share memory"
        assert found["program_packing"].notes[0].text.startswith(said)
    assert (".maxntid 32, 8" in trace.artifacts["ptx"]) is (programs is not None)
    assert (".reqntid" in trace.artifacts["ptx"]) is (programs is None)
    assert trace.resources.programs == (programs or 1) and trace.resources.threads == 32 * warps


def test_packing_can_be_switched_off():
    found, trace = rows(num_warps=1, without={"program_packing"})
    assert found["program_packing"].notes[0].text == "switched off" and trace.resources.programs == 1
    assert "ntid.y" not in trace.artifacts["ptx"]


def test_programs_with_shared_memory_or_assembly_get_a_cta_each():
    for kernel, args, why in (
        (transposed, ("*fp32:16", "*fp32:16"), "its warps share memory"),
        (where, ("*i32",), "its inline assembly may use the thread's number in the CTA"),
    ):
        found, trace = stages(kernel, *args, num_warps=1)
        assert trace.resources.programs == 1
        assert found["program_packing"].notes[0].text.endswith(why)


@pytest.mark.parametrize("grid", [(16, 1), (6, 3), (7, 2)])
def test_each_packed_program_keeps_its_program_id(grid):
    count, n = grid[0] * grid[1], 100
    x = np.random.default_rng(1).uniform(1, 2, (count, n)).astype(np.float32)
    found, _ = rows(num_warps=1)
    out, sizes = np.full_like(x, np.nan), np.zeros(count, np.int32)
    reports.run(found["program_packing"].after, {"x": x, "out": out, "sizes": sizes, "n": n}, grid)
    np.testing.assert_allclose(out, 2 * x / (x.astype(np.float64) ** 2).sum(1, keepdims=True), rtol=1e-5)
    assert (sizes == grid[0] * 1000 + grid[1]).all()


def test_prints_of_packed_programs_show_their_program_id():
    found, _ = stages(printing, "*i32", num_warps=1)
    assert found["program_packing"].after.attrs["programs"] == 8
    text = reports.run(found["program_packing"].after, {"x": np.arange(100, 116, dtype=np.int32)}, (16,)).text
    for program in range(16):
        assert f"({program}, 0, 0)" in text and f"{100 + program}" in text


@given(SIZES, st.integers(1, 64), st.integers(1, 8), st.sampled_from((2, 4, 8)), st.integers(0, 200))
def test_number_of_packed_programs_leaves_enough_ctas_for_the_gpu(x, y, z, most, sms):
    programs = programs_of_cta((x, y, z), most, sms)
    assert programs in (1, 2, 4, 8) and programs <= most
    assert x % programs == 0
    assert programs == 1 or x // programs * y * z >= CTAS_PER_SM * sms
    more = 2 * programs
    assert more > most or x % more or x // more * y * z < CTAS_PER_SM * sms  # no further step


def test_every_launch_passes_packed_programs_as_the_second_block_axis(monkeypatch):
    gpu = pretend(monkeypatch)
    x, out, sizes = CupyArray(), CupyArray(), CupyArray(np.int32)
    grids = [(4096, 2), (4096, 2), (4096, 2), (4097,), (4096, 2), (132,), (3 * 132,), (6 * 132,)]
    for grid in grids:  # the first ones are general launches, the others fast launches
        scaled_rows[grid](x, out, sizes, 100, FACTOR=2.0, BLOCK=128, num_warps=1)
    assert [(found.grid, found.block) for found in gpu.launches] == [
        *[((512, 2, 1), (32, 8, 1))] * 3,
        ((4097, 1, 1), (32, 1, 1)),
        ((512, 2, 1), (32, 8, 1)),
        ((132, 1, 1), (32, 1, 1)),
        ((396, 1, 1), (32, 1, 1)),
        ((396, 1, 1), (32, 2, 1)),
    ]
    assert scaled_rows._launch.__name__ == "_launch"


def test_packing_increases_the_resident_warps_per_sm():
    _, alone = rows(num_warps=1, without={"program_packing"})
    _, together = rows(num_warps=1)
    few, many = occupancy(SM90, alone.resources), occupancy(SM90, together.resources)
    assert few is not None and few.blocks_per_sm == 32 and few.limiter == "blocks"
    assert many is not None and many.blocks_per_sm == many.warps_per_sm == 64


@blocknb.kernel
def summed(x, out, n, BLOCK: bl.constexpr):
    total = bl.zeros((BLOCK,), bl.float32)
    for i in range(n):
        total += bl.load(x + i * BLOCK + bl.arange(0, BLOCK))
    bl.store(out + bl.program_id(0), bl.sum(total))


def test_long_programs_get_a_cta_each():
    arrays = ("*fp32", "*fp32", "*i32", "i32")
    for block, programs in ((256, 8), (512, 1)):  # numbers of four bytes, read and written
        trace = scaled_rows.trace(*arrays, FACTOR=2.0, BLOCK=block, num_warps=1)
        assert trace.resources.programs == programs
    assert "it loads and stores 4096 bytes" in trace.stage("program_packing").notes[0].text
    trace = summed.trace("*fp32", "*fp32", "i32", BLOCK=32, num_warps=1)
    assert trace.resources.programs == 1 and "loops" in trace.stage("program_packing").notes[0].text
    assert gpu.generate(trace.stages[-1].after, SM90).programs == 1


@pytest.mark.parametrize("name", ["matmul_float16", "attention", "gather"])
def test_kernels_with_products_or_gathers_are_not_packed(name):
    case = CASES[name]
    func, _ = case.lower(case.make(seeds.rng()), "sm_90a", num_warps=1)
    assert func.attrs.get("programs", 1) == 1
