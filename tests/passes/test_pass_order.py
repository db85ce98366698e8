"""The order of passes names every registered pass once, and every pass is where its order entry says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernels import CASES

from blocknb import passes
from blocknb.ir.core import LEVELS
from blocknb.passes.registry import REGISTERED, gpu_pass
from blocknb.target import Target

FOLDER = Path(passes.__file__).parent


def modules() -> list[str]:
    """Every module of a level's folder, as ORDER writes them."""
    return [f"{level}.{path.stem}" for level in LEVELS for path in (FOLDER / level).glob("[!_]*.py")]


def test_the_order_names_every_module_of_a_level_once():
    assert sorted(passes.ORDER) == sorted(modules())


def test_order_and_registry_contain_the_same_passes():
    for module in [*modules(), *(f"support.{path.stem}" for path in (FOLDER / "support").glob("[!_]*.py"))]:
        importlib.import_module(f"blocknb.passes.{module}")
    assert {name: found.run.__module__ for name, found in REGISTERED.items()} == {
        entry.split(".")[1]: f"blocknb.passes.{entry}" for entry in passes.ORDER
    }


def test_passes_of_every_target_come_before_those_of_gpus():
    everywhere = [not passes.load(entry).gpu_only for entry in passes.ORDER]
    assert everywhere == sorted(everywhere, reverse=True)
    assert [p.name for p in passes.pipeline(Target.parse("cpu"))] == [
        entry.split(".")[1] for entry, each in zip(passes.ORDER, everywhere, strict=True) if each
    ]


def test_passes_that_can_be_switched_off_are_those_registered_as_optional():
    assert passes.optional() == tuple(p.name for p in passes.pipeline(Target.parse("sm_90a")) if p.optional)
    assert "coalesce" in passes.optional() and "layout_assignment" not in passes.optional()


def test_optional_passes_of_a_cpu_are_those_that_its_pipeline_runs():
    found = passes.optional(Target.parse("cpu"))
    assert "nontemporal_stores" in found and "coalesce" not in found and "bounds_checks" not in found
    assert passes.optional(Target.parse("sm_90a")) == passes.optional()


def test_registering_a_name_twice_is_refused():
    def simplify(func, target, notes):
        return func

    with pytest.raises(ValueError, match=r"blocknb\.passes\.tile\.simplify both register a pass simplify"):
        gpu_pass()(simplify)


def test_importing_the_package_loads_no_pass():
    code = "import sys, blocknb.passes; print([n for n in sys.modules if n.startswith('blocknb.passes.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['blocknb.passes.registry']"


def test_new_ops_get_the_name_of_the_pass_that_made_them():
    case = CASES["matmul_float16"]
    _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a", num_warps=4)
    for stage in stages:
        new = {op.origin for op in stage.after.ops()} - {op.origin for op in stage.before.ops()}
        assert new <= {stage.name}
    assert {"barriers", "layout_assignment", "software_pipelining"} <= {op.origin for op in stages[-1].after.ops()}
