"""Programmatic dependent launch: which kernels start while the previous launch ends, and how the driver is called for them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.runtime import cuda, dependent_launch
from blocknb.target import Target


@blocknb.kernel
def waiting(x, out, PLACE: bl.constexpr):
    at = bl.program_id(0) * 16 + bl.arange(0, 16)
    if PLACE == "first":
        bl.extra.cuda.gdc_wait()
    value = bl.load(x + at)
    if PLACE == "later":
        bl.extra.cuda.gdc_wait()
    if PLACE == "branch" and bl.program_id(0) == 1:
        bl.extra.cuda.gdc_wait()
    bl.store(out + at, value)


@pytest.mark.parametrize(
    ("target", "place", "dependent"),
    [
        ("sm_90a", "first", True),
        ("sm_120", "first", True),
        ("sm_90a", "later", False),
        ("sm_90a", "branch", False),
        ("sm_90a", "none", False),
        ("sm_80", "first", False),  # which has no such instruction
    ],
)
def test_a_kernel_is_dependent_if_it_waits_before_its_first_access(target: str, place: str, dependent: bool) -> None:
    x = np.zeros(32, np.float32)
    func = Case("waiting", waiting, dict, dict).parse({"x": x, "out": x.copy(), "PLACE": place}, Target.parse(target))
    lowered, _ = passes.run(func, Target.parse(target), ())
    assert dependent_launch.waits_first(lowered) is dependent


def test_the_driver_gets_the_launch_and_the_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def driver(configuration: Any, function: int, values: int, extra: int | None) -> int:
        c = configuration._obj
        (attribute,) = c.attributes[: c.count]
        seen.append((c.grid_x, c.grid_y, c.grid_z, c.block_x, c.block_y, c.block_z, c.shared, c.stream))
        seen.append((attribute.id, attribute.value, function, values, extra))
        return 0 if function == 7 else 700

    monkeypatch.setattr(dependent_launch, "_driver", lambda: driver)
    dependent_launch.launch_dependent(7, 5, 4, 3, 128, 2, 1, 4096, 99, 1234, 0)
    assert seen == [(5, 4, 3, 128, 2, 1, 4096, 99), (6, 1, 7, 1234, None)]
    monkeypatch.setattr(
        cuda, "driver_api", lambda: SimpleNamespace(CUDADriverError=lambda status: RuntimeError(f"error {status}"))
    )
    with pytest.raises(RuntimeError, match="error 700"):
        dependent_launch.launch_dependent(8, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)


def test_the_structures_have_the_sizes_of_the_driver() -> None:
    """As in cuda.h: an id and a union of 64 bytes at an offset of 8; the configuration ends with the number of attributes."""
    assert ctypes.sizeof(dependent_launch._Attribute) == 72 and dependent_launch._Attribute.value.offset == 8
    assert ctypes.sizeof(dependent_launch._Configuration) == 56 and dependent_launch._Configuration.stream.offset == 32
