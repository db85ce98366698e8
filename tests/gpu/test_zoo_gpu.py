"""Every specimen of the zoo on a GPU, with CuPy's and torch's arrays, against float64, with fresh inputs in every run."""

from __future__ import annotations

from typing import Any

import pytest
import seeds
from zoo import ZOO

cupy = pytest.importorskip("cupy")


def has_bfloat16(value: Any) -> bool:
    return any(map(has_bfloat16, value)) if isinstance(value, list) else str(getattr(value, "dtype", "")) == "bfloat16"


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("name", ZOO)
def test_a_kernel_written_for_triton_runs_as_it_is(name: str, library: str) -> None:
    pytest.importorskip(library)
    for _ in range(2):
        inputs = ZOO[name].make(seeds.rng())
        if library == "cupy" and any(map(has_bfloat16, inputs.values())):
            pytest.skip("CuPy has no bfloat16")
        ZOO[name].check(inputs, ZOO[name].run(inputs, library, "cuda"))
