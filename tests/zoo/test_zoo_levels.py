"""Kernels with large tiles as memory IR for each GPU: interpreted with race detection, and assembled.

wgmma code neither spills nor makes ptxas serialize it. `EXPECTED` lists the ops and attributes that the compiler should choose for a kernel
on sm_90a.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import seeds

from blocknb.codegen import batch_assembly, gpu, llvm
from blocknb.ir.core import Func
from blocknb.target import Target
from zoo import ZOO
from zoo.launches import Recorded, lowered, recorded

LARGE = [name for name, s in ZOO.items() if s.large]


def launches(name: str) -> list[Recorded]:
    """A specimen's launches on the CPU, whose numbers are checked."""
    specimen, inputs = ZOO[name], ZOO[name].make(seeds.rng())
    with recorded() as found:
        specimen.check(inputs, specimen.run(inputs, "numpy", "cpu"))
    assert found
    return found


def chosen(func: Func) -> set[str]:
    """The compiler's choices for a function: instructions of products, roles, copies and stores of the copy engine, teams."""
    found = {re.sub(r"\.?m\d.*", "", op.attrs.get("instr", "fma")) for op in func.ops() if op.name == "dot"}
    names = {op.name for op in func.ops()}
    found |= names & {"roles", "copy_async", "copy_bulk", "store_bulk"}
    return found | ({"persistent"} if func.attrs.get("persistent") else set())


TARGETS = ("sm_90a", "sm_80")
#: Of each kind one set of inputs, of those that the pipeline has most to do with.
QUICK = (
    "grid_2d[ragged]",
    "persistent_tma[subtile]",
    "lora[ragged]",
    "mlp[ragged]",
    "complex_product[ragged]",
    "dot_of_batches[ragged]",
    "fp8_descriptors[ragged]",
    "staged_attention[causal]",
    "varied_attention[bias]",
)
EXPECTED = {
    "grid_2d[whole]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "grid_2d[ragged]": {"wgmma", "copy_async"},  # rows that wrap around: no box
    # The kernel computes a tile's position by % and //, so no proof shows that two iterations store to different places.
    "persistent_tma[whole]": {"wgmma", "roles", "copy_bulk"},
    "persistent_tma[subtile]": {"wgmma", "roles", "copy_bulk"},
    "gated[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "lora[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "fp8_descriptors[ragged]": {"wgmma", "roles", "copy_bulk", "persistent"},
    "half_sums[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "int8_scores[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "experts_by_index[ragged]": {"wgmma", "roles", "copy_bulk", "copy_async", "persistent"},
    "chosen_blocks[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk"},
    "added_boxes[ragged]": {"wgmma", "roles", "copy_bulk", "store_bulk"},
    "staged_attention[causal]": {"wgmma", "roles", "copy_bulk", "store_bulk"},
    "staged_attention[whole]": {"wgmma", "roles", "copy_bulk", "store_bulk", "persistent"},
    "varied_attention[window]": {"wgmma", "roles", "copy_bulk", "store_bulk"},
}


ALWAYS = (*QUICK, "half_sums[ragged]", "experts_by_index[ragged]")


def quick(names: list[str]) -> list:
    return [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.full) for name in names]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", quick(LARGE))
def test_the_memory_level_leaves_what_the_cpu_leaves(name: str) -> None:
    for launch in launches(name):
        for target in TARGETS[:1] if name in ALWAYS else TARGETS:
            func = lowered(launch.compiled, Target.parse(target))[0]
            launch.interpret(func, max(ZOO[name].rtol, 1e-3), max(ZOO[name].atol, 1e-4))


@pytest.mark.parametrize("name", quick(list(EXPECTED)))
def test_the_compiler_chooses_what_a_person_would(name: str) -> None:
    (launch,) = launches(name)
    assert chosen(lowered(launch.compiled, Target.parse("sm_90a"))[0]) == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("grid_2d[ragged]", "its rows wrap around (% M, which is not known to be a multiple of 64)"),
        ("paged_decode[many]", "the addresses of its rows are loaded indices"),
        ("experts_by_index[ragged]", "the addresses of its rows are loaded indices"),
        ("dot_of_batches[ragged]", "an operand is computed from it"),
    ],
)
def test_a_note_says_why_a_load_is_not_copied(name: str, why: str) -> None:
    _, stages = lowered(launches(name)[0].compiled, Target.parse("sm_90a"))
    assert any(
        note.text.startswith("not pipelined") and note.text.endswith(why) for stage in stages for note in stage.notes
    )


@pytest.mark.parametrize(("target", "instruction"), [("sm_90a", "wgmma"), ("sm_80", "")])
def test_three_products_in_tf32_are_as_good_as_one_in_fp32(target: str, instruction: str) -> None:
    (launch,) = launches("precise[tf32x3]")
    func, _ = lowered(launch.compiled, Target.parse(target))
    dots = [op for op in func.ops() if op.name == "dot"]
    assert len(dots) == 3 and chosen(func) & {"wgmma", "", "fma"} == {instruction}
    launch.interpret(func, 1e-5, 1e-5)
    launch.before["A"][3], launch.before["B"][:] = np.inf, np.abs(launch.before["B"]) + 1
    launch.after.update({name: launch.before[name] for name in "AB"})
    with np.errstate(all="ignore"):
        launch.after["C"][:] = launch.before["A"].astype(np.float64) @ launch.before["B"].astype(np.float64)
    assert np.isinf(launch.after["C"][3]).all()
    launch.interpret(func, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("name", "target", "how"),
    [
        ("int8_weights[before]", "sm_90a", "pipelined: copied by TMA, by the producer warp: 3 stages of 4096 bytes"),
        ("int8_weights[before]", "sm_80", "pipelined: copied to shared memory 2 iterations ahead"),
        ("norm_linear[ragged]", "sm_90a", "pipelined: copied by TMA, by the producer warp: 3 stages of 8192 bytes"),
        ("int4_matmul[groups]", "sm_90a", "pipelined: copied to shared memory 2 iterations ahead"),
    ],
)
def test_what_operands_are_computed_from_is_copied_ahead(name: str, target: str, how: str) -> None:
    (launch,) = launches(name)
    func, stages = lowered(launch.compiled, Target.parse(target))
    line = next(
        note.loc.line for stage in stages if stage.name == "operand_staging" for note in stage.notes if note.loc
    )
    copies = [
        note for stage in stages if stage.name in ("warp_specialization", "software_pipelining") for note in stage.notes
    ]
    assert [note for note in copies if note.loc and note.loc.line == line and note.text.startswith(how)]
    launch.interpret(func, 5e-2, 1e-2)


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
def test_what_wgmma_takes_does_not_spill(name: str) -> None:
    target, futures = Target.parse("sm_90a"), {}
    for i, launch in enumerate(launches(name)):
        entry = re.sub(r"\W", "_", f"{name}_{i}")
        text = gpu.generate(lowered(launch.compiled, target)[0].replace(name=entry), target).text
        job = {"kind": "ptx", "text": text, "opt": 1, "llvm": False, "arch": target.arch, "features": target.features}
        futures[entry] = llvm.shared().submit(job)
    assembly = batch_assembly.assemble_many([future.result()["ptx"] for future in futures.values()], target)
    spilled = {entry: found.spill_stores for entry, found in assembly.resources.items() if found.spill_stores}
    assert not spilled
    assert not assembly.warnings
