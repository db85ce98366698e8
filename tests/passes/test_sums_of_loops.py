"""Layouts of what a loop adds up, and clamps as modifiers of an instruction: the machine code that both have for a GPU."""

from __future__ import annotations

import re

import pytest

import blocknb
import blocknb.language as tl
from blocknb.language import libdevice


@blocknb.kernel
def column_sums(x, out, rows, N: tl.constexpr, R: tl.constexpr):
    """A row of 16-bit numbers is read by 8 per thread, and the sums are stored by 4 per thread."""
    columns = tl.arange(0, N)[None, :]
    total = tl.full([N], 0, tl.float32)[None, :]
    for row in range(0, rows, R):
        at = row + tl.arange(0, R)[:, None]
        total = total + tl.sum(tl.load(x + at * N + columns).to(tl.float32), 0)
    tl.store(out + columns, total)


@blocknb.kernel
def clamped(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.clamp(tl.load(x + at) * 3.0 + 0.5, 0.0, 1.0))


@blocknb.kernel
def exponentials(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, libdevice.exp(tl.load(x + at)))


@pytest.mark.parametrize("rows", [1, 2])
def test_the_sum_of_a_loop_is_converted_after_the_loop(rows: int) -> None:
    compiled = column_sums.compile("*bf16:16", "*fp32:16", "i32:16", N=1024, R=rows, target="sm_90a", num_warps=4)
    (text,) = (stage.text for stage in compiled.trace.stages if stage.name == "layout_assignment")
    loop, after = re.split(r"\n  }", text[text.index("= for") :], maxsplit=1)
    assert "reduce" in loop
    assert "convert" not in loop
    assert "convert" in after


def test_a_clamp_to_zero_and_one_is_a_modifier() -> None:
    ptx = clamped.compile("*fp32:16", "*fp32:16", BLOCK=128, target="sm_90a", num_warps=4).asm["ptx"]
    assert "cvt.sat.f32.f32" in ptx
    assert not re.search(r"\b(min|max)\.f32", ptx)


def test_an_exponential_of_libdevice_has_no_comparison() -> None:
    ptx = exponentials.compile("*fp32:16", "*fp32:16", BLOCK=128, target="sm_90a", num_warps=4).asm["ptx"]
    assert ptx.count("ex2.approx") == ptx.count("cvt.sat.f32.f32") == 1
    assert not re.search(r"\b(min|max|setp)\S*\.f32", ptx)
