"""Helpful messages for the driver's errors after a kernel broke the context, tested without a GPU."""

from __future__ import annotations

import pytest

from blocknb.errors import AccessError, KernelError, Unsupported
from blocknb.runtime import driver


@pytest.fixture(autouse=True)
def recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_recent", type(driver._recent)(maxlen=3))


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", AccessError, "outside of its arrays"),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", AccessError, "outside of its arrays"),
        ("CUDA error: an illegal memory access was encountered", AccessError, "outside of its arrays"),
        ("cudaErrorMisalignedAddress: misaligned address", AccessError, "not a multiple"),
        ("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", KernelError, "a kernel failed"),
    ],
)
def test_a_fault_names_the_last_kernels_and_how_to_continue(text: str, kind: type, says: str) -> None:
    driver._recent.extend(["one", "two", "one"])
    error = driver.explain(RuntimeError(text), "not_launched")
    assert type(error) is kind
    assert says in error.message
    assert error.message.endswith("the kernel launched last was `one`, and `two` may have been running as well")
    assert "context is lost" in error.hint
    assert "checked=True" in error.hint


def test_a_fault_does_not_name_kernels_that_have_ended() -> None:
    driver._recent.append("one")
    driver.forget_launches()
    driver._recent.append("two")
    assert "one" not in driver.fault(RuntimeError("cudaErrorIllegalAddress")).message


def test_other_errors_are_no_faults() -> None:
    assert driver.fault(RuntimeError("cudaErrorMemoryAllocation: out of memory")) is None
    assert type(driver.explain(RuntimeError("CUDA_ERROR_INVALID_PTX: a PTX JIT failed"), "k")) is Unsupported
    assert "refuses to launch k" in driver.explain(RuntimeError("CUDA_ERROR_INVALID_VALUE"), "k").message
