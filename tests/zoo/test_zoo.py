"""Every specimen of the zoo on the CPU, with NumPy's and torch's arrays, against float64, and the GPU code of its launches.

Inputs are fresh in every run. The quick run takes one set of inputs of each kind; `--full` takes all.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import seeds

from blocknb.codegen import batch_assembly, llvm, toolchain
from blocknb.runtime.compile import Compiled
from blocknb.target import Target
from zoo import ZOO
from zoo.launches import gpu_code, launched, only_compiled

TARGETS = ["sm_80", "sm_90a", "sm_120a"]
#: Kinds whose compilation for the CPU takes long, most of which `test_zoo_levels` runs.
SLOW = {
    "block_scaled", "complex_product", "descriptor_persistent", "dot_of_batches", "fp8_descriptors", "grid_2d", "lora", "mlp",
    "persistent_tma", "staged_attention", "staged_gradients", "varied_attention",
}  # fmt: skip
#: Bytes that are known to be spilled.
SPILLED = {"sm_120a": {"fused_linear_loss_ragged__0": 4}}
QUICK = {s.kind: s.name for s in reversed(ZOO.values()) if s.kind not in SLOW}.values()
ON_CPU = [name for name, s in ZOO.items() if not s.gpu_only]


def marked(name: str, library: str) -> object:
    return pytest.param(name, library, marks=() if name in QUICK and library == "numpy" else pytest.mark.full)


def run(name: str, library: str) -> list[Compiled]:
    """Runs a specimen and checks its numbers; returns the launched kernels."""
    pytest.importorskip(library)
    inputs = ZOO[name].make(seeds.rng())
    with launched() as found:
        ZOO[name].check(inputs, ZOO[name].run(inputs, library, "cpu"))
    return found


def compiled(name: str) -> list[Compiled]:
    """The kernels that a specimen launches."""
    if not ZOO[name].gpu_only:
        return run(name, "numpy")
    with only_compiled("sm_90a") as found:
        ZOO[name].run(ZOO[name].make(np.random.default_rng(0)), "numpy", "cpu")
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "library"), [marked(name, library) for name in ON_CPU for library in ("numpy", "torch")]
)
def test_a_kernel_written_for_triton_runs_as_it_is_and_has_gpu_code(name: str, library: str) -> None:
    found = run(name, library)
    assert found
    for i, kernel in enumerate(found, ON_CPU.index(name)):
        assert gpu_code(kernel, Target.parse(TARGETS[i % len(TARGETS)])).text


@pytest.mark.full
@pytest.mark.parametrize("name", TARGETS)
def test_the_gpu_code_of_the_zoo_assembles_without_spills(name: str) -> None:
    target = Target.parse(name)
    assert toolchain.find_ptxas(target) is not None
    futures, large = {}, set()
    for specimen in ZOO:
        for i, kernel in enumerate(compiled(specimen)):
            entry = re.sub(r"\W", "_", f"{specimen}_{i}")
            large |= {entry} if ZOO[specimen].large and name != "sm_90a" else set()
            text = gpu_code(kernel, target, entry).text
            job = {
                "kind": "ptx",
                "text": text,
                "opt": 1,
                "llvm": False,
                "arch": target.arch,
                "features": target.features,
            }
            futures[entry] = llvm.shared().submit(job)
    assembly = batch_assembly.assemble_many([future.result()["ptx"] for future in futures.values()], target)
    assert set(assembly.resources) == set(futures)
    spilled = {entry: found.spill_stores for entry, found in assembly.resources.items() if found.spill_stores}
    assert {entry: count for entry, count in spilled.items() if entry not in large} == SPILLED.get(name, {})
    assert not assembly.warnings
