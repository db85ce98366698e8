"""Every test kernel compiles to machine code for every GPU: LLVM makes PTX, and one call of ptxas per target assembles it.

LLVM gets the same text for most targets. The quick run assembles an eighth of the kernels, each for one target. The name decides both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
import sampling
from kernels import CASES, GPU_CASES
from kernels.base import Case

from blocknb import passes
from blocknb.codegen import batch_assembly, gpu, llvm, toolchain
from blocknb.target import Target

TARGETS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
#: One target of each kind of code: a quick run assembles a kernel for one of them. Hopper is there twice, because its code is the longest.
KINDS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_90a", "sm_120a")
ALL = (*CASES.values(), *GPU_CASES.values())
PARTS = 6
MULTIPLYING = ("matmul_float16", "matmul_bfloat16", "matmul_tf32", "matmul_int8", "attention")
#: Tiles that kernels have on Hopper alone, whose products leave registers for as many accumulators.
FOR_HOPPER = {
    "attention_gradients", "attention_gradients_ahead", "attention_gradients_boxes", "attention_gradients_long", "boxed_fp16_wide",
}  # fmt: skip
#: Bytes that ptxas spills by itself, so that a thread has 96 or 128 registers and one more CTA fits.
FOR_OCCUPANCY = {("sm_100a", "matmul_tf32"): 4, ("sm_120a", "attention_odd"): 8, ("sm_120a", "attention_masked"): 4}
LOADS = {"add_float32": {"v4.b32"}, "add_ragged": {"b32"}}  # aligned, and the mask changes at a multiple of 16; neither


def texts(case: Case, names: Iterable[str]) -> dict[str, str]:
    """What LLVM is given for a kernel, by target."""
    func = case.parse(case.make(np.random.default_rng(0)))
    found = {}
    for name in names:
        target = Target.parse(name)
        found[name] = gpu.generate(passes.run(func, target)[0].replace(name=case.name), target).text
    return found


def assemble(modules: dict[str, dict[str, str]]) -> None:
    """Assembles texts, by target and kernel, and looks at what came of them."""
    futures = {}
    for name, of_kernels in modules.items():
        target = Target.parse(name)
        assert toolchain.find_ptxas(target) is not None, f"no ptxas for {name}: the extra `test` brings one"
        job = {"kind": "ptx", "opt": 1, "llvm": False, "arch": target.arch, "features": target.features}
        for kernel, text in of_kernels.items():
            futures[name, kernel] = llvm.shared().submit(job | {"text": text})
    ptx = {key: future.result()["ptx"] for key, future in futures.items()}
    for name, of_kernels in modules.items():
        target = Target.parse(name)
        assembly = batch_assembly.assemble_many([ptx[name, kernel] for kernel in of_kernels], target)
        assert set(assembly.resources) == set(of_kernels)
        spilling = {
            kernel
            for kernel, found in assembly.resources.items()
            if found.spill_stores > FOR_OCCUPANCY.get((name, kernel), 0)
        }
        assert spilling <= (set() if name == "sm_90a" else FOR_HOPPER), (name, spilling)
        assert not assembly.warnings, name
        for kernel in of_kernels:
            if kernel in MULTIPLYING and target.capability >= 80:
                assert re.search(r"wgmma\.mma_async" if name == "sm_90a" else r"[^w]mma\.sync", ptx[name, kernel]), (
                    name,
                    kernel,
                )
            if kernel in LOADS:
                found = re.findall(r"ld\.global(?:\.\w+)*?\.(v4\.b32|b32)", ptx[name, kernel])
                assert set(found) == LOADS[kernel], (name, kernel)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_assembles(part: int) -> None:
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for number, case in enumerate(ALL):
        if number % PARTS != part or sampling.part(f"assembled/{case.name}", 8):
            continue
        name = KINDS[sampling.part(case.name, len(KINDS))]
        modules[name][case.name] = texts(case, [name])[name]
    assemble(modules)


@pytest.mark.full
@pytest.mark.parametrize("name", TARGETS)
def test_every_kernel_assembles_for_every_target(name: str) -> None:
    assemble({name: {case.name: texts(case, [name])[name] for case in ALL}})
