"""Which conversions of 8-bit floats use the GPU's packed conversion instructions."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES

from blocknb.codegen import gpu, llvm
from blocknb.target import Target


def ptx(name: str, arch: str) -> tuple[str, list[str]]:
    """The PTX of a case, and the notes of the pass `dtype_legalization`."""
    case, target = CASES[name], Target.parse(arch)
    func, stages = case.lower(case.make(np.random.default_rng(0)), arch)
    job = {"kind": "ptx", "text": gpu.generate(func, target).text, "opt": 1, "llvm": False}
    made = llvm.shared().submit({**job, "arch": target.arch, "features": target.features}).result()["ptx"]
    return made, [note.text for stage in stages if stage.name == "dtype_legalization" for note in stage.notes]


@pytest.mark.parametrize(("form", "instruction"), [("fp8e4nv", "e4m3x2"), ("fp8e5", "e5m2x2")])
@pytest.mark.parametrize("source", ["f32", "f16x2"])
def test_sm_89_converts_two_numbers_per_instruction(form, instruction, source):
    name = f"narrow_{'float32' if source == 'f32' else 'float16'}_{form}"
    text, notes = ptx(name, "sm_89")
    case = CASES[name]
    elements = case.make(np.random.default_rng(0))["BLOCK"] // (32 * case.options["num_warps"])
    found = text.count(f"cvt.rn.satfinite.{instruction}.{source}")
    assert found == elements // 2  # both stores start from the same conversion
    assert not any("integer arithmetic" in note for note in notes)
    text, notes = ptx(name, "sm_80")
    assert instruction not in text
    assert any("integer arithmetic" in note for note in notes)


def test_formats_without_hardware_support_are_converted_by_integer_code():
    text, notes = ptx("narrow_float32_fp8e4b8", "sm_100a")
    assert "e4m3x2" not in text
    assert any("fp32 to fp8e4b8: integer arithmetic" in note for note in notes)


@pytest.mark.parametrize("form", ["fp8e4nv_fp8e4nv", "fp8e4nv_fp8e5", "fp8e5_fp8e5"])
def test_float8_product_uses_fp16_tensor_cores_and_notes_it(form):
    for arch in ("sm_80", "sm_90a", "sm_120a"):
        text, notes = ptx(f"product_{form}", arch)
        assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in text
        assert any("in fp16, which holds" in note for note in notes)
