"""Every kernel of the tests becomes machine code for every GPU: PTX by LLVM, then one call of ptxas for all of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernels import CASES, GPU_CASES

from blocknb.codegen import gpu, llvm, toolchain
from blocknb.target import Target

TARGETS = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]


@pytest.mark.parametrize("name", TARGETS)
def test_every_kernel_assembles(name):
    target = Target.parse(name)
    tool = toolchain.find_ptxas(target)
    if tool is None:
        pytest.fail(f"no ptxas for {name}: the extra `test` brings one")
    futures = {}
    for case in (*CASES.values(), *GPU_CASES.values()):
        func, _ = case.lower(case.make(np.random.default_rng(0)), name)
        module = gpu.generate(func.replace(name=case.name), target)
        futures[case.name] = llvm.shared().submit(
            {
                "kind": "ptx",
                "text": module.text,
                "opt": 1,
                "llvm": False,
                "arch": target.arch,
                "features": target.features,
            }
        )
    ptx = {case: future.result()["ptx"] for case, future in futures.items()}
    assembly = toolchain.assemble_many(list(ptx.values()), target)
    assert set(assembly.resources) == {*CASES, *GPU_CASES}
    spilling = {case: found for case, found in assembly.resources.items() if found.spill_stores}
    assert not spilling
    assert not assembly.warnings
    if target.capability >= 80:
        for case in ("matmul_float16", "matmul_bfloat16", "matmul_tf32", "matmul_int8", "attention"):
            assert re.search(r"mma\.sync", ptx[case]), case
    loads = {
        case: re.findall(r"ld\.global(?:\.\w+)*?\.(v4\.b32|b32)", ptx[case]) for case in ("add_float32", "add_ragged")
    }
    assert set(loads["add_float32"]) == {"v4.b32"}  # aligned, and the mask changes at a multiple of 16
    assert set(loads["add_ragged"]) == {"b32"}  # neither
