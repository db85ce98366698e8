"""The default tiles of the ready-made kernels fit a GPU's registers: the assembled code spills nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from launches_for_gpus import captured

from blocknb import kernels as ready
from blocknb.runtime.kernel import Launch

MODULES = ("rows", "cross_entropy", "norm_gradients")
DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
M = 1500  # rows: enough for any number of programs
Call = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]


def empty(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float32)


CALLS: dict[str, Call] = {
    "layer_norm_backward": lambda x, w, out: ready.layer_norm_backward(
        x, w, x, empty(M), empty(M), out, empty(w.size), empty(w.size)
    ),
    "rms_norm_backward": lambda x, w, out: ready.rms_norm_backward(x, w, x, empty(M), out, empty(w.size)),
    "cross_entropy": lambda x, w, out: ready.cross_entropy(x, np.zeros(M, np.int64), empty(M), empty(M)),
    "cross_entropy_backward": lambda x, w, out: ready.cross_entropy_backward(
        x, np.zeros(M, np.int64), empty(M), empty(M), out
    ),
    "swiglu": lambda x, w, out: ready.swiglu(x, x, out),
}
#: Lengths of rows; those for --full take minutes.
LENGTHS = {"layer_norm_backward": (1024, 8192, 16384), "rms_norm_backward": (16384,), "cross_entropy": (50257,)}
LENGTHS |= {"cross_entropy_backward": (50257,), "swiglu": (11008,)}
ALL = (1, 200, 1000, 2048, 4096, 5000, 8192, 12672, 16384, 32768, 50257, 65536)


def launches(call: Call, n: int, dtype: Any, apart: int, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of a wrapper on a GPU; rows begin `apart` elements after a multiple of 16 bytes."""
    for name in MODULES:
        monkeypatch.setattr(importlib.import_module(f"blocknb.kernels.{name}"), "on_host", lambda array: False)
    matrix, out = (np.zeros((M, n + apart), dtype)[:, apart:] for _ in range(2))
    found: list[Launch] = []
    with captured(found.append):
        call(matrix, np.zeros(n, dtype), out)
    return found


def check(name: str, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch, apart: int = 0) -> None:
    found = launches(CALLS[name], n, DTYPES[dtype], apart, monkeypatch)
    assert found
    for launch in found:
        used = launch.retarget("sm_90a").resources
        assert used.spill_bytes == 0, f"{launch.kernel.__name__} for {n} x {dtype}: {used}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(("name", "n"), [(name, n) for name, lengths in LENGTHS.items() for n in lengths])
def test_default_tiles_cause_no_spills(name: str, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, n, dtype, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("apart", [0, 1])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("n", ALL)
@pytest.mark.parametrize("name", list(CALLS))
def test_default_tiles_cause_no_spills_for_any_length(
    name: str, n: int, dtype: str, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, n, dtype, monkeypatch, apart)


@pytest.mark.parametrize("n", [5000, 50257])
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_backward"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_misaligned_rows_of_logits_use_16_byte_accesses(
    name: str, n: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launch,) = launches(CALLS[name], n, DTYPES[dtype], 0, monkeypatch)
    (stage,) = (stage for stage in launch.retarget("sm_90a").stages if stage.name == "coalesce")
    wide = [note.text.split(":")[0] for note in stage.notes if "(16 bytes)" in note.text]
    assert wide == (["load", "store"] if name.endswith("backward") else ["load"])
