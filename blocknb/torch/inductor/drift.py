"""Numerical drift: the error of a fused kernel against its operators in float64, next to the error of the operators one by one.

Each kernel runs again on the recorded arguments of its launch. The operators run on the same arguments twice. The run in float64 is the
reference. The other run is in the types of the model, as eager code computes them. An error in units in the last place (ulp) is relative to
the spacing of the output's type at the reference (Goldberg 1991).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch

from blocknb.torch.inductor import edited, fragments
from blocknb.torch.inductor.fragments import NotComputed
from blocknb.torch.inductor.launched import GeneratedKernel, GeneratedKernels


@dataclass(frozen=True)
class OutputDrift:
    """The drift of one output of a launch. `operator` is the node of the graph whose value it has. Errors are maxima: `error` of the fused
    kernel and `eager_error` of single operators, absolute and in ulp. Where the output was not compared, `why` says why."""

    kernel: str
    parameter: str
    operator: str = ""
    line: str = ""
    dtype: str = ""
    error: float | None = None
    ulps: float | None = None
    eager_error: float | None = None
    eager_ulps: float | None = None
    why: str = ""

    @property
    def better(self) -> bool | None:
        """Whether fusion made the result better (True) or worse (False) in its largest error in ulp; None if equal or unknown."""
        if self.ulps is None or self.eager_ulps is None or self.ulps == self.eager_ulps:
            return None
        return self.ulps < self.eager_ulps


class KernelDrifts(Sequence[OutputDrift]):
    """The drift of each output of each launch, which shows itself as a table."""

    COLUMNS = ("#", "kernel", "output", "operator", "dtype", "max error", "ulp", "eager: max error", "ulp", "fusion is")

    def __init__(self, rows: Sequence[tuple[int, OutputDrift]]):
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> OutputDrift: ...

    @overload
    def __getitem__(self, index: slice) -> KernelDrifts: ...

    def __getitem__(self, index: int | slice) -> OutputDrift | KernelDrifts:
        return KernelDrifts(self._rows[index]) if isinstance(index, slice) else self._rows[index][1]

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, in the order of COLUMNS."""
        words = {True: "better", False: "worse", None: "equal"}
        made: list[tuple[str, ...]] = []
        for number, row in self._rows:
            cells = (str(number), row.kernel, row.parameter, row.operator, row.dtype)
            if row.why:
                made.append((*cells, f"not compared: {row.why}"))
                continue
            errors = (_short(e) for e in (row.error, row.ulps, row.eager_error, row.eager_ulps))
            made.append((*cells, *errors, words[row.better]))
        return made

    def __repr__(self) -> str:
        table = [self.COLUMNS, *self.rows()]
        whole = [row for row in table if len(row) == len(self.COLUMNS)]
        shared = len(self.COLUMNS) - 5
        widths = [
            max(len(row[i]) for row in (table if i < shared else whole) if i < len(row))
            for i in range(len(self.COLUMNS))
        ]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip() for row in table)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def drift_of(kernels: GeneratedKernels) -> KernelDrifts:
    """The drift of each output of recorded launches. The kernels run once more, on copies of their arguments."""
    return KernelDrifts([(i, row) for i, kernel in enumerate(kernels) for row in kernel_drift(kernel)])


def kernel_drift(kernel: GeneratedKernel) -> list[OutputDrift]:
    """The drift of each output of a recorded launch."""
    launch, fragment = kernel.launch, fragments.fragment_of(edited.generated_autotuner(kernel.autotuner))
    outputs = [name for name, _ in kernel.compiled.parameters if name in kernel.compiled.stored]
    if launch is None or launch.kept is None or fragment is None:
        why = "not launched in a record" if launch is None else launch.why_not_kept or "the operators are unknown"
        return [OutputDrift(kernel.name, name, why=why) for name in outputs]
    values = launch.kept.restored()
    edited.runner(kernel.compiled, launch.grid, kernel.autotuner)(values)
    found = []
    for name in outputs:
        node = fragment.writes.get(name, "")
        dtype = str(values[name].dtype).removeprefix("torch.")
        made = OutputDrift(kernel.name, name, node, fragment.line(node), dtype)
        try:
            found.append(replace(made, **_errors(fragment, launch.kept, name, values[name])))
        except NotComputed as error:
            found.append(replace(made, why=str(error)))
    return found


def _errors(fragment: fragments.GraphFragment, kept: Any, name: str, result: Any) -> dict[str, Any]:
    """The errors of an output, by the names of OutputDrift. Raises NotComputed."""
    if not result.is_floating_point():
        raise NotComputed("the result is not a floating-point number")
    reference = fragment.run(kept.restored(), name, wide=True)
    eager = fragment.run(kept.restored(), name, wide=False)
    if not isinstance(reference, torch.Tensor) or reference.numel() != result.numel():
        raise NotComputed("the kernel writes another shape than its operator returns")
    result = result if result.shape == reference.shape else result.reshape(reference.shape)
    error, ulps = _distance(result, reference)
    eager_error, eager_ulps = _distance(eager.to(result.dtype), reference)
    return {"error": error, "ulps": ulps, "eager_error": eager_error, "eager_ulps": eager_ulps}


def _distance(value: Any, reference: Any) -> tuple[float, float]:
    """The largest absolute error, and the largest error in ulp of the type of `value`. Equal infinities and NaN have none."""
    same = (value.double() == reference) | (value.isnan() & reference.isnan())
    error = (value.double() - reference).abs().masked_fill(same, 0.0)
    if not error.numel():
        return 0.0, 0.0
    ulps = error / _ulp(reference, value.dtype)
    return error.nan_to_num(float("inf")).max().item(), ulps.nan_to_num(float("inf")).max().item()


def _ulp(reference: Any, dtype: Any) -> Any:
    """The spacing of the numbers of a type at each reference."""
    facts = torch.finfo(dtype)
    magnitude = reference.abs().nan_to_num(facts.max, facts.max, facts.max).clamp(facts.smallest_normal, facts.max)
    return torch.exp2(magnitude.log2().floor()) * facts.eps
