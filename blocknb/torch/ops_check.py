"""`op.check(*args)`: torch's opcheck, gradcheck in float64, and the error against a reference in float64, as one report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blocknb.torch.ops_mutation import tensors_of

#: The largest error against a float64 reference that passes, in units of the largest value of the reference.
TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass(frozen=True)
class OpCheck:
    """One check: its name, whether it passed, and a sentence about it. `error` is the exception of a failure."""

    name: str
    passed: bool
    text: str
    error: BaseException | None = None


@dataclass(frozen=True)
class OpReport:
    """The checks of an operator. `bool(report)` tells whether all passed; `report.raise_failures()` raises the first failure."""

    operator: str
    checks: tuple[OpCheck, ...]

    def __bool__(self) -> bool:
        return all(check.passed for check in self.checks)

    def __repr__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [f"  {c.name:{width}}  {'passed' if c.passed else 'FAILED'}: {c.text}" for c in self.checks]
        return "\n".join([f"{self.operator}: {'all checks passed' if self else 'some checks FAILED'}", *lines])

    def raise_failures(self) -> None:
        """Raises the exception of the first failed check, an AssertionError for a wrong value."""
        for check in self.checks:
            if not check.passed:
                raise check.error or AssertionError(f"{self.operator}, {check.name}: {check.text}")


def check(op: Any, args: Sequence[Any], reference: Callable[..., Any] | None, double: bool) -> OpReport:
    """Runs the checks on copies of the arguments, so that operators that change them do not see each other's changes."""
    checks = _opchecks(op, args)
    if op._function is not None:
        checks += _gradient_checks(op, args, double)
    if reference is not None:
        checks.append(_comparison(op, args, reference))
    return OpReport(op.name, tuple(checks))


def _copy(value: Any, dtype: Any = None) -> Any:
    """An independent copy of an argument that keeps its strides, and its floating values in another dtype if given."""
    if isinstance(value, (list, tuple)):
        return [_copy(element, dtype) for element in value]
    if not isinstance(value, torch.Tensor):
        return value
    found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    found.copy_(value.detach())
    found = found.to(dtype) if dtype is not None and value.is_floating_point() else found
    return found.requires_grad_(value.requires_grad)


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip(',') if lines else ''}"[:300]


def _opchecks(op: Any, args: Sequence[Any]) -> list[OpCheck]:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    tests = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(t.requires_grad for t in tensors):
        tests.insert(1, "test_autograd_registration")
    found = []
    for test in tests:
        name = "opcheck " + test.removeprefix("test_")
        try:
            torch.library.opcheck(op.overload, tuple(map(_copy, args)), test_utils=test)
        except Exception as error:  # a report of whatever is wrong with the user's operator
            found.append(OpCheck(name, False, _short(error), error))
        else:
            found.append(OpCheck(name, True, "torch.library.opcheck"))
    return found


def _gradient_checks(op: Any, args: Sequence[Any], double: bool) -> list[OpCheck]:
    wide = [_copy(a, torch.float64) for a in args]
    if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in wide):
        return [OpCheck("gradcheck", False, "no argument requires a gradient: pass x.requires_grad_()")]
    names = [name for name, tensor in tensors_of(op._names, wide) if tensor.requires_grad]
    found = []
    for name, function in (("gradcheck", torch.autograd.gradcheck), ("gradgradcheck", torch.autograd.gradgradcheck)):
        if name == "gradgradcheck" and not double:
            continue
        try:
            function(op, tuple(wide))
        except Exception as error:
            # gradcheck counts the inputs that require a gradient.
            text = re.sub(r"\binput (\d+)", lambda number: f"`{names[int(number[1])]}`", _short(error))
            found.append(OpCheck(name, False, text, error))
        else:
            found.append(OpCheck(name, True, "in float64"))
    return found


def _comparison(op: Any, args: Sequence[Any], reference: Callable[..., Any]) -> OpCheck:
    """The largest error of the outputs, in units of the largest value of the reference in float64."""
    with torch.no_grad():
        try:
            found, exact = op(*map(_copy, args)), reference(*[_copy(a, torch.float64) for a in args])
        except Exception as error:
            return OpCheck("reference", False, _short(error), error)
    pairs = list(zip(*(x if isinstance(x, (list, tuple)) else (x,) for x in (found, exact)), strict=False))
    texts, passed = [], bool(pairs)
    for i, (one, other) in enumerate(pairs):
        if one.shape != other.shape:
            return OpCheck("reference", False, f"output {i} has the shape {tuple(one.shape)}, not {tuple(other.shape)}")
        dtype = str(one.dtype).removeprefix("torch.")
        scale = float(other.abs().max()) if other.numel() else 0.0
        off = float((one.to(other.dtype) - other).abs().max()) / (scale or 1.0) if other.numel() else 0.0
        limit = TOLERANCES.get(dtype, 0.0)
        passed &= off <= limit  # False for a NaN
        texts.append(f"largest relative error {off:.2g} of output {i} ({dtype}; limit {limit:.2g})")
    return OpCheck("reference", passed, ", ".join(texts))
