"""Rematerialization: 16-bit rows stay packed and are widened again after each reduction, with the same bits in fewer registers."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import seeds
from fuzz import reports
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb.kernels.norms import norm_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.passes.memory import rematerialization
from blocknb.passes.support.emission import Emission
from blocknb.profile.occupancy import occupancy
from blocknb.target import Target

DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def outputs(kernel, arguments: dict, grid: tuple, **options) -> dict[str, np.ndarray]:
    """The arrays after a run with packed rows. Raises AssertionError unless a run without them gives the same bits."""
    found = []
    for packed in (False, True):
        own = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
        case = Case("again", kernel, lambda rng: own, None, grid)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rematerialization, "pays", lambda before, after, packed=packed: packed)
            func, _ = case.lower(own, "sm_90a", **options)
        reports.run(func, own, grid)
        found.append({k: v for k, v in own.items() if isinstance(v, np.ndarray)})
    for name, array in found[0].items():
        np.testing.assert_array_equal(array.view(np.uint8), found[1][name].view(np.uint8), err_msg=name)
    return found[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "warps"), [(1024, 1), (781, 1), (2048, 2), (512, 1)])
def test_softmax_and_norms_keep_every_bit(dtype, n, warps):
    rng = seeds.rng()
    x = rng.standard_normal((2, n)).astype(DTYPES[dtype])
    x[0, : rng.integers(3)] = rng.choice([np.inf, -np.inf, np.nan])
    block = blocknb.next_power_of_2(n)
    poison = np.full((2, n), 7.0, DTYPES[dtype])
    row = {"x": x, "y": poison, "x_stride": n, "y_stride": n, "n": n, "BLOCK": block}
    outputs(softmax_kernel, row, (2, 1, 1), num_warps=warps)
    weights = {k: rng.standard_normal(n).astype(DTYPES[dtype]) for k in ("weight", "bias")}
    kept = {k: np.zeros(2, np.float32) for k in ("mean", "rstd")}
    for centred in (True, False):
        norm = {"x": x, **weights, "y": poison, **kept, "x_row": n, "y_row": n, "m": 2, "n": n, "eps": 1e-5}
        more = {"CENTRED": centred, "ROWS": 1, "BLOCK": block}
        outputs(norm_kernel, norm | more, (2, 1, 1), num_warps=warps)


@blocknb.kernel
def mixed(x, other, out, places, sums, B: bl.constexpr):
    """Rows that are combined with others, stored, and reduced to several numbers."""
    at = bl.arange(0, B)
    row = bl.load(x + at).to(bl.float32)
    second = bl.load(x + B + at).to(bl.float32)
    fixed = bl.load(other + at).to(bl.float32)
    both = row + second
    top = bl.max(row, axis=0)
    spread = (row - top) * 2.0 + second
    total = bl.sum(spread, axis=0)
    bl.store(places, bl.argmax(row - total, axis=0))
    bl.store(places + 1, bl.argmin(second * row, axis=0))
    scaled = row * total + fixed
    bl.store(out + at, scaled)
    bl.store(out + B + at, both - total)
    bl.store(sums, bl.sum(scaled, axis=0) + bl.sum(both, axis=0))


@blocknb.kernel
def looped(x, out, n, B: bl.constexpr):
    """A row that a loop uses is widened once, before it."""
    at = bl.arange(0, B)
    row = bl.load(x + at).to(bl.float32)
    total = bl.sum(row, axis=0)
    for i in range(n):
        total += bl.sum(row * i, axis=0)
        bl.store(out + i * B + at, row - total)


def test_rows_in_branches_and_loops_keep_every_bit():
    rng = seeds.rng()
    x, other = (rng.integers(-1, 2, shape).astype(np.float16) for shape in ((2, 1024), 1024))
    zeros = {"out": np.zeros((2, 1024), np.float16), "places": np.zeros(2, np.int32), "sums": np.zeros(1, np.float32)}
    for sign in (1, -1):
        got = outputs(mixed, {"x": x * np.float16(sign), "other": other, **zeros, "B": 1024}, (1, 1, 1), num_warps=1)
        wide = x.astype(np.float64) * sign
        total = ((wide[0] - wide[0].max()) * 2 + wide[1]).sum()
        np.testing.assert_array_equal(got["out"][0], (wide[0] * total + other).astype(np.float16))
        assert got["places"][1] == (wide[1] * wide[0]).argmin()
    got = outputs(
        looped, {"x": x[0], "out": np.zeros((3, 1024), np.float32), "n": 3, "B": 1024}, (1, 1, 1), num_warps=1
    )
    totals = x[0].astype(np.float64).sum() * np.array([1, 2, 4])
    np.testing.assert_array_equal(got["out"], x[0].astype(np.float64) - totals[:, None])


@blocknb.kernel
def log_softmax(x, y, n, B: bl.constexpr):
    at = bl.program_id(0).to(bl.int64) * n + bl.arange(0, B)
    row = bl.load(x + at, mask=bl.arange(0, B) < n, other=-float("inf")).to(bl.float32)
    row = row - bl.max(row, axis=0)
    bl.store(y + at, row - bl.log(bl.sum(bl.exp(row), axis=0)), mask=bl.arange(0, B) < n)


@blocknb.kernel
def cross_entropy(x, classes, loss, gradient, n, B: bl.constexpr):
    """The loss and the gradient of a row in one pass."""
    row, at = bl.program_id(0).to(bl.int64), bl.arange(0, B)
    logits = bl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(bl.float32)
    wanted, largest = bl.load(classes + row), bl.max(logits, axis=0)
    powers = bl.exp(logits - largest)
    total = bl.sum(powers, axis=0)
    bl.store(loss + row, bl.log(total) + largest - bl.sum(bl.where(at == wanted, logits, 0.0), axis=0))
    bl.store(gradient + row * n + at, powers / total - bl.where(at == wanted, 1.0, 0.0), mask=at < n)


@blocknb.kernel
def softmax_gradient(y, dy, dx, n, B: bl.constexpr):
    """Two rows that one reduction combines."""
    at = bl.program_id(0).to(bl.int64) * n + bl.arange(0, B)
    row = bl.load(y + at, mask=bl.arange(0, B) < n, other=0.0).to(bl.float32)
    other = bl.load(dy + at, mask=bl.arange(0, B) < n, other=0.0).to(bl.float32)
    bl.store(dx + at, row * (other - bl.sum(row * other, axis=0)), mask=bl.arange(0, B) < n)


@blocknb.kernel
def unweighted(x, y, n, B: bl.constexpr):
    """Layer norm without weights."""
    at = bl.program_id(0).to(bl.int64) * n + bl.arange(0, B)
    row = bl.load(x + at, mask=bl.arange(0, B) < n, other=0.0).to(bl.float32)
    row = bl.where(bl.arange(0, B) < n, row - bl.sum(row, axis=0) / n, 0.0)
    bl.store(y + at, row * bl.rsqrt(bl.sum(row * row, axis=0) / n + 1e-5), mask=bl.arange(0, B) < n)


STRIDES = dict.fromkeys(("x_stride", "y_stride", "x_row", "y_row", "n"), "i32:16")
NORM = {"mean": "*fp32:16", "rstd": "*fp32:16", "m": "i32", "eps": "fp32", "CENTRED": True, "ROWS": 1}


def compiled(kernel, n: int, warps: int, dtype: str = "fp16", without=()):
    """A trace for a row of n elements; arrays have the dtype unless the kernel needs another one."""
    alone = {"residual": None, "added": None, "ROUND": False, "OFFSET": 0.0} if kernel is norm_kernel else {}
    given = STRIDES | NORM | alone | {"classes": "*i32:16", "loss": "*fp32:16", "B": n, "BLOCK": n}
    arguments = {p.name: given.get(p.name, f"*{dtype}:16") for p in kernel.source.parameters}
    return kernel.trace(**arguments, num_warps=warps, without=without)


@pytest.mark.parametrize(
    ("kernel", "n", "warps"),
    [
        (softmax_kernel, 32768, 16),
        (log_softmax, 32768, 16),
        (unweighted, 32768, 16),
        (cross_entropy, 16384, 8),
        (softmax_gradient, 16384, 8),
    ],
)
def test_an_sm_holds_more_programs_with_packed_rows(kernel, n, warps):
    target, dtype = Target.parse("sm_90a"), "bf16" if kernel is log_softmax else "fp16"
    packed, wide = (compiled(kernel, n, warps, dtype, off) for off in ((), ("rematerialization",)))
    programs = [occupancy(target, trace.resources).blocks_per_sm for trace in (wide, packed)]
    assert programs[0] == 1 and programs[1] >= 2
    assert packed.resources.registers < wide.resources.registers and packed.resources.spill_bytes == 0
    (note,) = next(stage for stage in packed.stages if stage.name == "rematerialization").notes
    assert " 1 -> " in note.text and "stay in packed words" in note.text


def test_exponentials_are_computed_again_where_that_pays():
    counts = [len(re.findall(r"ex2\.", compiled(softmax_kernel, n, 16).ptx)) for n in (16384, 32768)]
    assert counts == [32, 128]  # of 64 elements: once for the sum and once for the quotients


@blocknb.kernel
def with_residual(x, residual, y, n, B: bl.constexpr):
    """A sum of two rows takes as many registers as both, packed."""
    at = bl.program_id(0).to(bl.int64) * n + bl.arange(0, B)
    row = bl.load(x + at).to(bl.float32) + bl.load(residual + at).to(bl.float32)
    bl.store(y + at, row * bl.rsqrt(bl.sum(row * row, axis=0)))


@pytest.mark.parametrize(
    ("kernel", "n", "warps", "why"),
    [
        (softmax_kernel, 16384, 16, "2 programs per SM keep the memory busy already"),
        (softmax_kernel, 16384, 8, "2 programs per SM keep the memory busy already"),
        (norm_kernel, 32768, 16, "an SM would hold no more programs"),  # the weights take the registers
        (softmax_kernel, 65536, 16, "an SM would hold no more programs"),
        (with_residual, 32768, 16, "the other values need all of these registers"),
    ],
)
def test_a_note_says_why_packed_rows_would_gain_nothing(kernel, n, warps, why):
    found = next(stage for stage in compiled(kernel, n, warps).stages if stage.name == "rematerialization")
    assert [note.text.rpartition(", but ")[2] for note in found.notes] == [why]
    assert not Emission(found.after).packed


def test_rows_of_fp32_have_no_such_stage():
    assert all(stage.name != "rematerialization" for stage in compiled(softmax_kernel, 32768, 16, "fp32").stages)
