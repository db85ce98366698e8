"""The performance targets of the project, as a table, and the verdict of a run on each.

A figure is a peer's time divided by ours: above one, blocknb is faster. "each" takes the lowest case, "mean" the geometric mean. A run
judges a target by the cases that it measured, and reports their number. It misses a target if our kernel fails in one of the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from blocknb.bench.suite import decoding, kinds, row_kinds
from blocknb.bench.suite.attention import CUDNN, FLASH, FUSED, WS
from blocknb.bench.suite.measure import COMPILED, COPY, NUMPY, OURS, TORCH, TRITON, WHOLE_CASE, MeasuredRow
from blocknb.bench.suite.table import geometric_mean

BACKWARD = (
    "layer_norm_backward", "rms_norm_backward", "cross_entropy", "cross_entropy_backward", "swiglu", "rope",
)  # fmt: skip
ROW_KINDS = tuple(benchmark.name for benchmark in row_kinds.BENCHMARKS)
POINTERS = "pointers"  # the variant of a product by tiles of pointers
FORWARD = ("attention_forward", "attention_forward_causal")
GRADIENTS = ("attention_backward", "attention_backward_causal")


@dataclass(frozen=True)
class Floor:
    """A target of benchmarks on a device against a peer: the least figure (`floor`) and the desired one (`goal`), for the rows where
    `where` holds. `ours` may be one of our variants."""

    device: str
    names: tuple[str, ...]
    peer: str
    floor: float
    goal: float
    how: str = "each"
    where: Callable[[MeasuredRow], bool] = lambda row: True
    label: str = ""
    ours: str = OURS


def _wide(row: MeasuredRow) -> bool:
    return row.case.shape[0] == 4096


def _head(size: int) -> Callable[[MeasuredRow], bool]:
    return lambda row: row.case.shape[1] == size


def _huge(row: MeasuredRow) -> bool:
    return row.case.shape[0] > 4096


def _odd(row: MeasuredRow) -> bool:
    return row.case.shape[0] in (7, 1000)


def _long_half(row: MeasuredRow) -> bool:
    return row.case.dtype == "fp16" and row.case.shape[1] >= 4096


def _cubed(row: MeasuredRow) -> bool:
    return row.case.shape[:1] * 3 == row.case.shape and row.case.shape[0] >= 2048


def _short(row: MeasuredRow) -> bool:
    m, n, k = row.case.shape
    return min(m, n) >= 4096 and k <= 1024


def _small(row: MeasuredRow) -> bool:
    return row.case.shape in ((1024, 1024, 1024), (256, 4096, 4096))


FLOORS = (
    Floor("gpu", ("add",), COPY, 0.98, 1.00),
    Floor("gpu", ("softmax",), TRITON, 0.95, 1.05, "each", _wide, "M=4096"),
    Floor("gpu", ("softmax",), TRITON, 1.00, 1.10, "mean", _wide, "M=4096"),
    Floor("gpu", ("softmax",), TORCH, 1.7, 2.0, "mean", _wide, "M=4096"),
    Floor("gpu", ("softmax",), COMPILED, 1.3, 1.6, "mean", _wide, "M=4096"),
    Floor("gpu", ("layer_norm",), TRITON, 0.95, 1.10, "each", _wide, "M=4096"),
    Floor("gpu", ("rms_norm",), TRITON, 0.95, 1.10, "each", _wide, "M=4096"),
    Floor("gpu", BACKWARD, COMPILED, 1.0, 1.3, "mean", label="backward, cross entropy, SwiGLU, RoPE"),
    Floor("gpu", ("softmax", "layer_norm", "rms_norm"), COPY, 0.95, 0.99, "each", _huge, "1 GiB"),
    Floor("gpu", ("softmax",), COPY, 0.75, 0.85, "each", _odd, "few rows, odd rows"),
    Floor("gpu", ("layer_norm",), COPY, 0.95, 0.98, "each", _long_half, "fp16, from 4096 columns on"),
    Floor("gpu", ROW_KINDS, TRITON, 0.95, 1.10, "each", label="kinds over rows and columns"),
    Floor("gpu", ROW_KINDS, TRITON, 0.95, 1.10, "mean", label="kinds over rows and columns"),
    *(Floor("gpu", FORWARD, peer, 1.00, 1.15) for peer in (TRITON, FUSED, WS)),
    Floor("gpu", FORWARD, CUDNN, 0.85, 1.00),
    Floor("gpu", GRADIENTS, CUDNN, 0.75, 1.00, "each", _head(64), "head 64"),
    Floor("gpu", GRADIENTS, CUDNN, 0.60, 1.00, "each", _head(128), "head 128"),
    *(
        Floor("gpu", ("decode_contiguous", "decode_paged"), peer, 0.90, 1.10)
        for peer in (FLASH, CUDNN, *decoding.PEERS)
    ),
    Floor("cpu", ("softmax",), NUMPY, 3.0, 6.0, "mean"),
    Floor("cpu", ("softmax",), TORCH, 1.0, 1.5, "mean"),
    Floor("cpu", ("layer_norm",), NUMPY, 3.0, 6.0, "mean"),
    Floor("cpu", ("layer_norm",), TORCH, 1.0, 1.5, "mean"),
    Floor("gpu", ("gemm_plain",), TORCH, 0.95, 1.03, "each", _cubed, "2048, 4096, 8192 cubed"),
    Floor("gpu", ("gemm_plain",), TRITON, 1.00, 1.10, "each", _cubed, "by pointers, cubed", POINTERS),
    Floor("gpu", ("gemm_plain",), TORCH, 1.00, 1.18, "each", _short, "K <= 1024 of large results"),
    Floor("gpu", ("gemm_plain",), TORCH, 0.85, 1.06, "each", _small, "1024 cubed, 256 x 4096 x 4096"),
    Floor(
        "gpu", ("gemm_leaky",), TORCH, 1.05, 1.15, "each", lambda row: row.case.shape[0] != 256, "but 256 x 4096 x 4096"
    ),
    Floor("gpu", ("gemm_leaky",), TORCH, 0.95, 1.15, "each", lambda row: row.case.shape[0] == 256, "256 x 4096 x 4096"),
    Floor("gpu", ("gemm_leaky",), TORCH, 1.15, 1.30, "mean"),
    Floor("gpu", tuple(one.name for one in kinds.BENCHMARKS), TRITON, 0.95, 1.10, label="kinds of public kernels"),
    Floor("gpu", ("gemm_fp8",), TORCH, 0.85, 1.00),
    Floor("gpu", ("gemm_tf32",), TORCH, 0.85, 1.00),
    Floor("cpu", ("gemm_plain",), NUMPY, 0.85, 0.95),
)


@dataclass(frozen=True)
class FloorVerdict:
    """The figure of a run for a target, the number of its cases, and the lowest case.

    `failed` are cases in which our kernel failed or was wrong. `unmeasured` are further cases without a ratio, because the peer or the case
    failed. Without any ratio, `figure` is None."""

    floor: Floor
    figure: float | None
    cases: int
    lowest: str
    failed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """ "goal", "floor", "MISSED", or "none" if no case has a ratio. A case in which our kernel fails misses the target."""
        if self.failed:
            return "MISSED"
        if self.figure is None:
            return "none"
        if self.figure >= self.floor.goal:
            return "goal"
        return "floor" if self.figure >= self.floor.floor else "MISSED"

    def __str__(self) -> str:
        f = self.floor
        name = f"{f.label if len(f.names) > 3 else ', '.join(f.names) + (' ' + f.label if f.label else '')}"
        how = "geometric mean" if f.how == "mean" else "lowest"
        figure = "no ratio" if self.figure is None else f"{how} {self.figure:.3f} of {self.cases}"
        tail = f" ({self.lowest})" if f.how == "each" and self.lowest else ""
        for what, cases in (("blocknb failed", self.failed), ("not measured", self.unmeasured)):
            tail += f"; {what}: {', '.join(cases)}" if cases else ""
        return f"  {self.word:<7}{name} against {f.peer}: {figure}; floor {f.floor:g}, goal {f.goal:g}{tail}"


def check_floors(device: str, rows: Sequence[MeasuredRow], floors: Iterable[Floor] = FLOORS) -> list[FloorVerdict]:
    """A verdict on every target for which the rows have times, or a case that failed."""
    own = [floor for floor in floors if floor.device == device]
    return [verdict for floor in own if (verdict := _verdict(floor, rows)) is not None]


def _verdict(floor: Floor, rows: Sequence[MeasuredRow]) -> FloorVerdict | None:
    ratios: list[tuple[float, str]] = []
    failed: list[str] = []
    unmeasured: list[str] = []
    whole: list[str] = []  # cases that failed for all peers
    for row in rows:
        if row.case.name not in floor.names or not floor.where(row):
            continue
        if (ratio := row.ratio(floor.peer, floor.ours)) is not None:
            ratios.append((ratio.value, str(row.case)))
        elif floor.ours in row.failures and row.took_part(floor.peer):
            failed.append(str(row.case))
        elif floor.peer in row.failures:
            unmeasured.append(str(row.case))
        elif WHOLE_CASE in row.failures:
            whole.append(str(row.case))
    if not (ratios or failed or unmeasured):
        return None
    lowest, where = min(ratios, default=(None, ""))
    figure = lowest if floor.how == "each" else geometric_mean(value for value, _ in ratios)
    return FloorVerdict(floor, figure, len(ratios), where, tuple(failed), (*unmeasured, *whole))
