"""The fast path of a generated kernel's launch on a GPU, with the driver's call recorded: it needs no GPU."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch

from blocknb.language.types import Pointer, float32, int32
from blocknb.runtime import driver
from blocknb.runtime.driver import Launcher
from blocknb.torch.inductor.direct_launch import direct_runner

X, N = torch.arange(4.0), 7


class Launched:
    """A launcher of a kernel with a pointer, a number and a float, whose driver call is recorded together with the packed arguments."""

    def __init__(self, *, alone: bool = True, current: int = 0, fails: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.general: list[tuple[Any, ...]] = []
        self.records: list[Any] = []
        types = [Pointer(float32), int32, float32]
        start = object.__new__(Launcher)
        self.buffers: list[Any] = []

        def fresh() -> Any:
            self.buffers.append(driver._slots(len(types), 0))
            return self.buffers[-1]

        start.buffers = SimpleNamespace(  # type: ignore[assignment]
            maps=None, fresh=fresh, pack_into=driver._packer(types, 0), free=[fresh()]
        )
        start.kernel = SimpleNamespace(name="fused", threads=128, shared=64, resident=0, address=4711)  # type: ignore[assignment]
        start.queue = SimpleNamespace(only_gpu=alone, device=0, current_device=lambda: current)  # type: ignore[assignment]
        start.positions, start.packs_unchanged, start.note = range(3), True, self.records.append

        def launch(*given: Any) -> None:
            if fails:
                raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")
            (view,) = [view for view, address, _ in self.buffers if address == given[9]]
            self.calls.append((given, struct.unpack("<Qi4xf4x", bytes(view))))

        start.launch = launch
        self.start = start
        self.open: list[Any] = []
        self.runner = direct_runner(start, (True, False, False), lambda *given: self.general.append(given), self.open)


def test_a_launch_packs_the_addresses_and_values_and_uses_the_given_stream() -> None:
    made = Launched()
    made.runner(3, 2, 1, 99, X, N, 0.5)
    ((given, packed),) = made.calls
    assert given[:9] == (4711, 3, 2, 1, 128, 1, 1, 64, 99) and given[10] == 0
    assert packed == (X.data_ptr(), N, 0.5)
    assert made.records == ["fused"] and not made.general and len(made.start.buffers.free) == 1


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_an_empty_or_too_large_grid_goes_the_general_way(grid: tuple[int, int, int]) -> None:
    made = Launched()
    made.runner(*grid, 0, X, N, 0.5)
    assert made.general == [(*grid, 0, X, N, 0.5)] and not made.calls


def test_an_open_record_a_failure_and_another_device_go_the_general_way() -> None:
    made = Launched()
    made.open.append("a record")
    made.runner(1, 1, 1, 0, X, N, 0.5)
    made.open.clear()
    made.runner(1, 1, 1, 0, X, N, 1e300)  # no fp32
    assert len(made.general) == 2 and not made.calls
    for other in (Launched(fails=True), Launched(alone=False, current=1)):
        other.runner(1, 1, 1, 0, X, N, 0.5)
        assert len(other.general) == 1 and not other.calls
    same = Launched(alone=False, current=0)
    same.runner(1, 1, 1, 0, X, N, 0.5)
    assert len(same.calls) == 1 and not same.general


def test_a_launch_during_that_of_another_thread_has_a_buffer_of_its_own() -> None:
    made = Launched()
    held = made.start.buffers.free.pop()  # as a launch in another thread has it
    made.runner(1, 1, 1, 0, X, N, 0.5)
    assert len(made.buffers) == 2 and made.start.buffers.free == [made.buffers[1]]
    assert made.calls[0][1] == (X.data_ptr(), N, 0.5) and bytes(held[0]) == bytes(24)


def test_a_start_that_is_no_plain_launcher_stays_general() -> None:
    made = Launched()

    def slow(*given: Any) -> None:
        raise AssertionError

    assert direct_runner(lambda *_: None, (True,), slow, []) is slow
    made.start.packs_unchanged = False
    assert direct_runner(made.start, (True, False, False), slow, []) is slow
    made.start.packs_unchanged, made.start.kernel.resident = True, 132
    assert direct_runner(made.start, (True, False, False), slow, []) is slow
