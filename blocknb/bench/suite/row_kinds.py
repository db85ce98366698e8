"""The benchmark `row_kinds`: scans and reductions of tuples, sorts, and sums along columns, against Triton from the same source.

Both compilers run the kernels of `row_kind_kernels` with the same tiles and warps, on the same random arrays. Each result is compared with
float64 before the times. A ratio is Triton's time over ours.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from blocknb import cdiv, next_power_of_2
from blocknb.bench.rows import Row, show
from blocknb.bench.suite import row_kind_kernels as kernels
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.triton_source import loaded, rewritten
from blocknb.errors import KernelError
from blocknb.profile.timing import Timing, interleaved

Inputs = tuple[Any, ...]
Outputs = tuple[Any, ...]
OURS, TRITON = "blocknb", "Triton"


@dataclass(frozen=True)
class RowKind:
    """One kind of kernel. `shapes` are (rows, columns, options of the launch).

    `inputs(make, m, n)` makes random arrays, `outputs(make, m, n)` poisoned ones, `launch(module, inputs, outputs, m, n, **options)` runs
    a kernel of the module, and `exact(torch, *inputs)` computes the results in float64. `tolerance` is relative to the largest magnitude
    of each result.
    """

    name: str
    inputs: Callable[[TorchArrays, int, int], Inputs]
    outputs: Callable[[TorchArrays, int, int], Outputs]
    launch: Callable[..., Any]
    exact: Callable[..., Outputs]
    shapes: tuple[tuple[int, int, dict[str, int]], ...]
    dtypes: tuple[str, ...] = ("float32",)
    tolerance: float = 1e-5


class TorchArrays:
    """Makes random and poisoned tensors of a dtype on the current GPU."""

    def __init__(self, torch: Any, dtype: str) -> None:
        self.torch, self.dtype = torch, getattr(torch, dtype)

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(shape, device="cuda", dtype=self.torch.float32).to(self.dtype)

    def phases(self, *shape: int) -> tuple[Any, Any]:
        """Real and imaginary parts of numbers of magnitude close to 1, whose products neither vanish nor overflow."""
        turns = self.torch.rand(shape, device="cuda") * (2 * math.pi)
        size = 1 - 0.01 * self.torch.rand(shape, device="cuda")
        return self.torch.cos(turns) * size, self.torch.sin(turns) * size

    def poison(self, *shape: int, dtype: Any = None) -> Any:
        return self.torch.full(shape, float("nan"), device="cuda", dtype=dtype or self.dtype)


# -- references, in float64


def _complex_products(torch: Any, x: Any) -> Outputs:
    return (torch.view_as_real(torch.cumprod(torch.view_as_complex(x.double()), 1)),)


def _complex_recurrence(torch: Any, a: Any, b: Any, u: Any, v: Any) -> Outputs:
    factor, added = torch.complex(a.double(), b.double()), torch.complex(u.double(), v.double())
    h, found = torch.zeros_like(added[:, 0]), []
    for t in range(a.shape[1]):
        h = factor[:, t] * h + added[:, t]
        found.append(h)
    whole = torch.stack(found, 1)
    return whole.real, whole.imag


def _column_sums(torch: Any, dw: Any, db: Any) -> Outputs:
    return dw.double().sum(0), db.double().sum(0)


def _norm_partials(torch: Any, x: Any, dy: Any, mean: Any, rstd: Any) -> Outputs:
    terms = dy.double() * (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    return tuple(_summed_by(torch, y, PARTIAL_ROWS) for y in (terms, dy.double()))


def _norm_columns(torch: Any, x: Any, dy: Any, mean: Any, rstd: Any) -> Outputs:
    terms = dy.double() * (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    return terms.sum(0), dy.double().sum(0)


PARTIAL_ROWS = 32


def _summed_by(torch: Any, x: Any, rows: int) -> Any:
    return torch.stack([part.sum(0) for part in torch.split(x, rows)])


def _sparsemax(torch: Any, x: Any) -> Outputs:
    z = x.double() - x.double().amax(1, keepdim=True)
    ordered = torch.sort(z, 1, descending=True).values
    total = torch.cumsum(ordered, 1) - 1
    count = (ordered * torch.arange(1, x.shape[1] + 1, device=x.device) > total).sum(1, keepdim=True)
    return (torch.clamp(z - torch.gather(total, 1, count - 1) / count, min=0),)


def _variance(torch: Any, x: Any, axis: int) -> Outputs:
    return x.double().mean(axis), x.double().var(axis, unbiased=False)


def _normalised(torch: Any, x: Any) -> Outputs:
    mean, variance = _variance(torch, x, 1)
    return ((x.double() - mean[:, None]) / torch.sqrt(variance + EPS)[:, None],)


EPS = 1e-5

# -- launches


def _launch_complex_products(k: Any, i: Inputs, o: Outputs, m: int, n: int, num_warps: int = 4) -> None:
    k.complex_products_kernel[(m,)](i[0], o[0], 2 * n, n, BLOCK=next_power_of_2(n), num_warps=num_warps)


def _launch_recurrence(k: Any, i: Inputs, o: Outputs, m: int, n: int, rows: int = 1, num_warps: int = 4) -> None:
    block = next_power_of_2(n)
    k.complex_recurrence_kernel[(cdiv(m, rows),)](*i, *o, m, n, ROWS=rows, BLOCK=block, num_warps=num_warps)


def _launch_column_sums(
    k: Any, i: Inputs, o: Outputs, m: int, n: int, block_m: int = 32, block_n: int = 128, num_warps: int = 4
) -> None:
    k.column_sums_kernel[(cdiv(n, block_n),)](*i, *o, m, n, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps)


def _launch_partials(k: Any, i: Inputs, o: Outputs, m: int, n: int, num_warps: int = 8) -> None:
    rows = PARTIAL_ROWS
    k.norm_partials_kernel[(cdiv(m, rows),)](*i, *o, m, n, ROWS=rows, BLOCK=next_power_of_2(n), num_warps=num_warps)


def _launch_norm_columns(
    k: Any, i: Inputs, o: Outputs, m: int, n: int, block_m: int = 32, block_n: int = 64, num_warps: int = 4
) -> None:
    k.norm_columns_kernel[(cdiv(n, block_n),)](*i, *o, m, n, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps)


def _launch_sparsemax(k: Any, i: Inputs, o: Outputs, m: int, n: int, num_warps: int = 4) -> None:
    k.sparsemax_kernel[(m,)](i[0], o[0], n, n, n, BLOCK=next_power_of_2(n), num_warps=num_warps)


def _launch_welford_rows(k: Any, i: Inputs, o: Outputs, m: int, n: int, rows: int = 1, num_warps: int = 4) -> None:
    block = next_power_of_2(n)
    k.welford_rows_kernel[(cdiv(m, rows),)](*i, *o, m, n, ROWS=rows, BLOCK=block, num_warps=num_warps)


def _launch_welford_loop(
    k: Any, i: Inputs, o: Outputs, m: int, n: int, rows: int = 1, block: int = 2048, num_warps: int = 8
) -> None:
    k.welford_loop_kernel[(cdiv(m, rows),)](*i, *o, m, n, EPS, ROWS=rows, BLOCK=block, num_warps=num_warps)


def _launch_welford_columns(
    k: Any, i: Inputs, o: Outputs, m: int, n: int, block_m: int = 32, block_n: int = 32, num_warps: int = 4
) -> None:
    k.welford_columns_kernel[(cdiv(n, block_n),)](*i, *o, m, n, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps)


KINDS = (
    RowKind(
        "complex_products", lambda make, m, n: (make.torch.stack(make.phases(m, n), 2),), lambda make, m, n: (make.poison(m, n, 2),),
        _launch_complex_products, _complex_products,
        ((8192, 1024, {}), (4096, 2048, {}), (2048, 4096, {"num_warps": 8}), (16384, 256, {"num_warps": 1}), (256, 1024, {}),
         (128, 4096, {})), tolerance=1e-3,
    ),
    RowKind(
        "complex_recurrence", lambda make, m, n: (*make.phases(m, n), make.normal(m, n), make.normal(m, n)),
        lambda make, m, n: (make.poison(m, n), make.poison(m, n)), _launch_recurrence, _complex_recurrence,
        ((8192, 1024, {}), (4096, 2048, {}), (8192, 512, {"rows": 4}), (8192, 256, {"rows": 4}), (256, 1024, {}),
         (256, 4096, {"num_warps": 8})), tolerance=1e-3,
    ),
    RowKind(
        "column_sums", lambda make, m, n: (make.normal(m, n), make.normal(m, n)), lambda make, m, n: (make.poison(n), make.poison(n)),
        _launch_column_sums, _column_sums,
        ((64, 8192, {}), (256, 1024, {}), (256, 4096, {}), (4096, 4096, {}), (96, 1024, {}), (1024, 8192, {"block_n": 64})),
        ("float32", "float16"), 1e-3,
    ),
    RowKind(
        "norm_partials",
        lambda make, m, n: (make.normal(m, n), make.normal(m, n), make.normal(m).float(), make.normal(m).float()),
        lambda make, m, n: tuple(make.poison(cdiv(m, PARTIAL_ROWS), n, dtype=make.torch.float32) for _ in range(2)),
        _launch_partials, _norm_partials, ((8192, 1024, {"num_warps": 4}), (8192, 4096, {})), ("float32", "float16"), 1e-4,
    ),
    RowKind(
        "norm_columns",
        lambda make, m, n: (make.normal(m, n), make.normal(m, n), make.normal(m).float(), make.normal(m).float()),
        lambda make, m, n: (make.poison(n), make.poison(n)), _launch_norm_columns, _norm_columns,
        ((4096, 4096, {}), (4096, 1024, {"block_m": 64, "block_n": 32, "num_warps": 8}), (4096, 4096, {"block_m": 16, "block_n": 128}),
         (2048, 8192, {"block_m": 16, "block_n": 16}), (4096, 2048, {"block_m": 128, "block_n": 16, "num_warps": 8})),
        ("float32", "float16"), 1e-3,
    ),
    RowKind(
        "sparsemax", lambda make, m, n: (make.normal(m, n),), lambda make, m, n: (make.poison(m, n),), _launch_sparsemax, _sparsemax,
        ((8192, 1024, {}), (8192, 512, {}), (4096, 2048, {}), (2048, 4096, {"num_warps": 8}), (16384, 128, {})), tolerance=1e-5,
    ),
    RowKind(
        "welford_rows", lambda make, m, n: (make.normal(m, n),), lambda make, m, n: (make.poison(m), make.poison(m)),
        _launch_welford_rows, functools.partial(_variance, axis=1),
        ((16384, 1024, {}), (16384, 1000, {}), (8192, 2048, {"num_warps": 8}), (32768, 256, {"rows": 8})), tolerance=1e-5,
    ),
    RowKind(
        "welford_loop", lambda make, m, n: (make.normal(m, n),), lambda make, m, n: (make.poison(m, n),), _launch_welford_loop, _normalised,
        ((8192, 4096, {}), (2048, 16384, {}), (4096, 8192, {"rows": 1, "block": 4096, "num_warps": 16}), (512, 50257, {})), tolerance=1e-4,
    ),
    RowKind(
        "welford_columns", lambda make, m, n: (make.normal(m, n),), lambda make, m, n: (make.poison(n), make.poison(n)),
        _launch_welford_columns, functools.partial(_variance, axis=0),
        ((4096, 4096, {}), (4096, 4096, {"block_n": 64}), (1024, 8192, {"num_warps": 8})), tolerance=1e-5,
    ),
)  # fmt: skip


# -- the measurement


@functools.cache
def in_triton() -> ModuleType:
    """The kernels under Triton. Raises ImportError without it."""
    importlib.import_module("triton")
    return loaded("row_kind_kernels", rewritten(inspect.getsource(kernels), "triton"))


def error_of(torch: Any, outputs: Outputs, exact: Outputs) -> float:
    """The largest error of the results relative to the largest magnitude of each; infinite where something is missing."""
    worst = 0.0
    for got, wanted in zip(outputs, exact, strict=True):
        error = float((got.double() - wanted).abs().max() / wanted.abs().max())
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def measured(
    kind: RowKind, m: int, n: int, options: dict[str, int], dtype: str, rounds: int, modules: dict[str, ModuleType]
) -> Row:
    """One row of the table: errors and times of the kernels of each module, ours first. Raises ValueError for a wrong result of ours."""
    torch = importlib.import_module("torch")
    make = TorchArrays(torch, dtype)
    inputs = kind.inputs(make, m, n)
    exact = kind.exact(torch, *inputs)
    row: Row = {
        "kind": kind.name,
        "shape": f"{m}x{n}",
        "dtype": dtype,
        "options": " ".join(f"{k}={v}" for k, v in options.items()),
    }
    calls: dict[str, Callable[[], Any]] = {}
    for name, module in modules.items():
        outputs = kind.outputs(make, m, n)
        calls[name] = functools.partial(kind.launch, module, inputs, outputs, m, n, **options)
        calls[name]()
        row[f"error {name}"] = error_of(torch, outputs, exact)
        if name == OURS and not row[f"error {name}"] <= kind.tolerance:
            raise ValueError(
                f"{kind.name} {m}x{n} {dtype}: error {row[f'error {name}']:.2g}, allowed are {kind.tolerance:g}"
            )
    del exact
    times: dict[str, Timing] = dict(interleaved(calls, gpu=True, rounds=rounds, warmup=5))
    row |= {f"{name} us": times[name].median * 1e3 for name in calls}
    pairs = zip(times[TRITON].values, times[OURS].values, strict=True)
    low, _, high = statistics.quantiles([a / b for a, b in pairs], n=4, method="inclusive")
    row |= {"ratio": times[TRITON].median / times[OURS].median, "quarter points": f"{low:.2f} to {high:.2f}"}
    return row


def run(names: Sequence[str] = (), rounds: int = 30) -> list[Row]:
    """Measures the kinds of these names, or all, on the current GPU. Raises KernelError without torch or Triton."""
    try:
        torch = importlib.import_module("torch")
        modules = {OURS: kernels, TRITON: in_triton()}
    except ImportError as error:
        raise KernelError(f"row_kinds compares with Triton on a GPU: {one_line(error)}") from error
    torch.manual_seed(0)
    found: list[Row] = []
    for kind in KINDS:
        if names and kind.name not in names:
            continue
        for m, n, options in kind.shapes:
            for dtype in kind.dtypes:
                found.append(measured(kind, m, n, options, dtype, rounds, modules))
                print(" ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in found[-1].values()), flush=True)
    means = {kind.name: [row["ratio"] for row in found if row["kind"] == kind.name] for kind in KINDS}
    show("Triton's time over ours, by kind", [
        {"kind": name, "geometric mean": statistics.geometric_mean(ratios), "lowest": min(ratios), "cases": len(ratios)}
        for name, ratios in means.items() if ratios
    ])  # fmt: skip
    return found
