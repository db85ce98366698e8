"""GPU code of products by wgmma: assembly by ptxas, and that the `simt` simulator detects a wrong matrix descriptor."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from fuzz import simt
from fuzz.races import Race
from kernels import CASES
from kernels.base import copied, parameters
from kernels.products import matmul

from blocknb import passes
from blocknb.codegen import batch_assembly, gpu, llvm, sass
from blocknb.target import Target

HOPPER = Target.parse("sm_90a")
SMALL = [name for name in CASES if name.startswith("wgmma_")]
#: operand, result, order, tile, warps, instructions in the machine code
TILES = [
    ("fp16", "fp16", "nn", (128, 128, 64), 4, 8),
    ("fp16", "fp16", "nt", (128, 128, 64), 8, 4),
    ("bf16", "fp32", "tn", (128, 256, 64), 8, 4),
    ("fp16", "fp16", "nt", (128, 256, 64), 8, 4),
    ("fp32", "fp32", "nt", (128, 128, 32), 8, 4),
    ("int8", "int32", "nt", (128, 256, 128), 8, 4),
]


def generated(func) -> gpu.GpuModule:
    return gpu.generate(passes.run(func, HOPPER)[0], HOPPER)


def product(operand, result, order, tile, num_warps):
    """The kernel as a launch with aligned arrays would have it."""
    case = CASES["wgmma_fp16"]
    dtypes = {"fp16": np.float16, "bf16": CASES["wgmma_bf16_tt"].make(np.random.default_rng(0))["a"].dtype}
    dtypes |= {"fp32": np.float32, "int8": np.int8, "int32": np.int32}
    m, n, k = (2 * extent for extent in tile)
    arguments = case.make(np.random.default_rng(0)) | {
        "m": m,
        "n": n,
        "k": k,
        "BM": tile[0],
        "BN": tile[1],
        "BK": tile[2],
    }
    a, b = (np.zeros(shape, dtypes[operand]) for shape in ((m, k), (k, n)))
    a, b = (np.asfortranarray(x) if way == "t" else x for x, way in zip((a, b), order, strict=True))
    arguments |= {"a": a, "b": b, "c": np.zeros((m, n), dtypes[result])}
    strides = [s // x.itemsize for x in (a, b, arguments["c"]) for s in x.strides]
    arguments |= dict(zip(("sam", "sak", "sbk", "sbn", "scm", "scn"), strides, strict=True))
    assert case.kernel is matmul
    return case.parse(arguments, num_warps=num_warps)


def assembled(modules) -> tuple[list[str], batch_assembly.Assembly]:
    job = {"kind": "ptx", "opt": 1, "llvm": False, "arch": HOPPER.arch, "features": HOPPER.features}
    ptx = [future.result()["ptx"] for future in [llvm.shared().submit(job | {"text": m.text}) for m in modules]]
    return ptx, batch_assembly.assemble_many(ptx, HOPPER)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
def test_large_tiles_assemble_without_spills_or_messages(tile):
    *what, count = tile
    (ptx,), assembly = assembled([generated(product(*what))])
    assert not assembly.warnings  # C7514 and similar: the messages of ptxas when it serialises wgmma
    assert all(not found.spill_stores for found in assembly.resources.values())
    assert len(re.findall(r"wgmma\.mma_async", ptx)) == count
    assert len(re.findall(r"wgmma\.fence", ptx)) == 1
    assert sorted(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx)) == ["0", "1"]  # after the loop, and in it
    listing = sass.disassemble(assembly.cubin, HOPPER).result().text
    assert len(re.findall(r"[HI]GMMA\.", listing)) == count
    (loop,) = (part for part in re.split(r"\.L_x_\d+:", listing) if "GMMA" in part)
    assert "R2UR" not in loop  # descriptors are uniform


def test_every_small_case_assembles_without_a_warning():
    funcs = [CASES[name].parse(CASES[name].make(np.random.default_rng(0))) for name in SMALL]
    modules = [generated(func.replace(name=name)) for name, func in zip(SMALL, funcs, strict=True)]
    assert all("wgmma.mma_async" in module.text for module in modules)
    _, assembly = assembled(modules)
    assert not assembly.warnings
    assert not {name: found for name, found in assembly.resources.items() if found.spill_stores}


# -- a descriptor that is wrong in one place

STRIDE, SWIZZLE, LEADING = 1 << 32, 1 << 62, 1 << 16


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["wgmma_fp16", "wgmma_fp16_tn_leaky"])
@pytest.mark.parametrize("change", [STRIDE * 8, SWIZZLE, STRIDE * 32, "trans", "step", "fence"])
def test_simt_detects_wrong_descriptors(name, change):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(3))
    func = passes.run(case.parse(arguments), HOPPER)[0]
    module = gpu.generate(func, HOPPER)
    text = module.text
    match change:
        case int():
            spoilt = re.sub(
                r"(mov\.b64 \w+, \{\w+, )(\d+)", lambda m: f"{m[1]}{int(m[2]) ^ change >> 32}", text, count=1
            )
        case "trans":
            spoilt = re.sub(r" 1, 1, (\d), (\d);", lambda m: f" 1, 1, {1 - int(m[1])}, {m[2]};", text)
        case "step":
            spoilt = re.sub(r"add\.s32 yl, (\$\d+), (\d+);", lambda m: f"add.s32 yl, {m[1]}, {int(m[2]) + 1};", text)
        case "fence":
            spoilt = text.replace("wgmma.fence.sync.aligned; ", "")
    assert spoilt != text

    def run(text: str) -> None:
        got = {key: copied(value) for key, value in arguments.items()}
        simt.run(replace(module, text=text), parameters(func, got), case.grid)
        case.check(arguments, got)

    run(text)
    with pytest.raises((AssertionError, ValueError, Race)):
        run(spoilt)
