"""`blocknb bench torch_layers`: the layers of blocknb.torch.nn against those of Liger-Kernel and their formulas in eager torch.

Each contestant has its own copy of the inputs, because Liger-Kernel writes gradients over them. Outputs and gradients of blocknb and
Liger-Kernel must agree with the formula in float64, computed by torch, before they are timed. Three times are taken in turns. `step`:
forward and backward on the device with a cold L2 cache. `forward`: without gradients. `loop`: forward and backward by the clock of the
host, which launches may bound. The peak memory is that above the inputs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.bench.rows import Row
from blocknb.bench.suite.definition import parse_shape
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.suite.table import geometric_mean, ratio_text
from blocknb.bench.torch_layers import session
from blocknb.bench.torch_layers.cases import LayerCase, LayerInputs, Tensors, layer_cases
from blocknb.bench.torch_layers.session import StepClock
from blocknb.profile.timing import Timing

OURS, LIGER, EAGER = "blocknb", "Liger", "eager"
KINDS = ("step", "forward", "loop")
SECONDS = 1.0  # at most, for the rounds of one kind of time of one case
LOOP = 2e-2  # seconds that a batch of the loop takes, about
FLOOR, GOAL = 1.0, 1.1


class LayerStep:
    """A contestant's call: forward and backward on its own copy of the tensors. `function` takes them by name."""

    def __init__(self, case: LayerCase, function: Callable[..., Any], tensors: Tensors, seed: int, wide: bool = False):
        import torch

        self.torch, self.function = torch, function
        self.tensors = {name: self._copy(value, wide, name in case.graded) for name, value in tensors.items()}
        self.graded = [self.tensors[name] for name in case.graded]
        self.names = case.graded
        self.plain = {name: value.detach() for name, value in self.tensors.items()}
        self.seed, self.wide = seed, wide
        self.given: list[Any] | None = None  # the gradients of the outputs

    def _copy(self, value: Any, wide: bool, graded: bool) -> Any:
        if not value.is_floating_point():
            return value
        found = self.torch.empty_strided(value.size(), value.stride(), device=value.device, dtype=value.dtype)
        found.copy_(value)
        return (found.double() if wide else found).requires_grad_(graded)

    def _gradients(self, outputs: Sequence[Any]) -> list[Any]:
        """Random gradients of the outputs, equal for all contestants; that of a loss is 1."""
        generator = self.torch.Generator(device=outputs[0].device).manual_seed(self.seed)
        found = []
        for output in outputs:
            if output.dim():
                value = self.torch.randn(
                    output.shape, generator=generator, device=output.device, dtype=self.torch.float32
                )
                value = value.bfloat16().to(output.dtype)
                found.append(self.torch.empty_like(output).copy_(value))
            else:
                found.append(self.torch.ones_like(output))
        return found

    def results(self) -> dict[str, Any]:
        """The outputs and gradients by name."""
        outputs, gradients = self._run()
        found = {f"output {i}": o.detach() for i, o in enumerate(outputs)}
        return found | {f"gradient of {name}": g for name, g in zip(self.names, gradients, strict=True)}

    def _run(self) -> tuple[tuple[Any, ...], Any]:
        found = self.function(**self.tensors)
        outputs = found if isinstance(found, tuple) else (found,)
        if self.given is None:
            self.given = self._gradients(outputs)
        return outputs, self.torch.autograd.grad(outputs, self.graded, self.given)

    def __call__(self) -> None:
        self._run()

    def forward(self) -> None:
        """The forward pass without gradients."""
        with self.torch.no_grad():
            self.function(**self.plain)


@dataclass
class LayerRow:
    """The measurement of one case. `times` has a Timing by contestant for each of KINDS, `peaks` bytes, `errors` relative norms."""

    case: LayerCase
    size: tuple[int, ...]
    times: dict[str, dict[str, Timing]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    errors: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.size))

    def ratio(self, peer: str, kind: str = "step") -> float | None:
        """The peer's time over ours."""
        found = session.ratio(self.times[kind], peer, OURS)
        return None if found is None else found.value

    def as_json(self) -> Row:
        """The row as JSON: milliseconds, ratios, bytes and errors."""
        peers = (LIGER, EAGER)
        return {
            "layer": self.case.name,
            "shape": list(self.size),
            "ms": {kind: {name: session.entry(t) for name, t in found.items()} for kind, found in self.times.items()},
            "ratios": {
                kind: {peer: r for peer in peers if (r := self.ratio(peer, kind)) is not None} for kind in KINDS
            },
            "peak bytes": self.peaks,
            "relative errors": self.errors,
            "problems": self.problems,
        }


def relative_errors(found: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """|found - exact| / |exact| in the 2-norm, by name, in float64; infinite for another shape and for a NaN."""
    errors = {}
    for name, value in exact.items():
        if found[name].shape != value.shape:
            errors[name] = float("inf")
            continue
        off, size, parts = 0.0, 0.0, range(0, max(value.numel(), 1), 1 << 26)
        a, b = found[name].reshape(-1), value.reshape(-1)
        for begin in parts:  # in parts, because a copy of 2^30 elements in float64 takes 8 GiB
            piece = b[begin : begin + (1 << 26)].detach()
            off += float((a[begin : begin + (1 << 26)].detach().double() - piece).square().sum())
            size += float(piece.square().sum())
        error = (off / size) ** 0.5 if size else off**0.5
        errors[name] = error if error == error else float("inf")
    return errors


def measure(
    case: LayerCase, size: tuple[int, ...], clock: StepClock, seed: int = 1, peers: Sequence[str] = (LIGER, EAGER)
) -> LayerRow:
    """Checks and times one case. A contestant that is missing, fails or is wrong is not timed; `problems` has the reason."""
    row = LayerRow(case, size)
    tensors = case.make(LayerInputs(clock.device, seed), *size)
    exact = LayerStep(case, case.exact, tensors, seed, wide=True).results()
    steps: dict[str, LayerStep] = {}
    makers: dict[str, Callable[[], Any]] = {OURS: lambda: case.ours, LIGER: case.liger, EAGER: lambda: case.exact}
    for name in (OURS, *peers):
        try:
            step = LayerStep(case, makers[name](), tensors, seed)
            errors = relative_errors(step.results(), exact)
        except Exception as error:  # a library may raise anything; the others are measured anyway
            row.problems[name] = f"failed: {one_line(error)}"
            continue
        worst = max(errors, key=errors.__getitem__)
        row.errors[name] = errors[worst]
        if errors[worst] > case.limit and name != EAGER:  # torch's formula in bf16 rounds each operation
            row.problems[name] = f"wrong: {worst} has a relative error of {errors[worst]:.2g}"
        else:
            steps[name] = step
        del step
    del exact
    _time(row, steps, clock)
    return row


def _time(row: LayerRow, steps: dict[str, LayerStep], clock: StepClock) -> None:
    if clock.device == "cuda":
        row.peaks = {name: peak_bytes(step) for name, step in steps.items()}
    row.times["step"] = clock.cold(steps)
    row.times["forward"] = clock.cold({name: step.forward for name, step in steps.items()})
    if found := row.times["step"]:
        slowest = max(timing.median for timing in found.values()) / 1e3
        row.times["loop"] = clock.loop(steps, max(2, min(50, int(LOOP / slowest))))


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes that torch's allocator gave out during a call, above those before it."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


# ---- the table -----------------------------------------------------------------------------------------------------------

WIDTHS = (27, 18, 9, 18, 18, 8, 8, 8, 8, 9, 9)
COLUMNS = (
    "layer", "shape", "step ms", "x Liger", "x eager", "fwd ms", "x Liger", "loop ms", "x Liger", "error", "Liger's",
)  # fmt: skip


def line(row: LayerRow) -> str:
    """One row of the table."""

    def ms(kind: str) -> str:
        found = row.times[kind].get(OURS)
        return row.problems.get(OURS, "-").partition(":")[0] if found is None else f"{found.median:.4g}"

    def ratio_to(peer: str, kind: str, wide: bool) -> str:
        found = session.ratio(row.times[kind], peer, OURS)
        if found is None:
            return row.problems.get(peer, "-").partition(":")[0]
        return ratio_text(found) if wide else f"{found.value:.2f}"

    errors = [f"{row.errors[name]:.1e}" if name in row.errors else "-" for name in (OURS, LIGER)]
    cells = (
        row.case.name, row.shape, ms("step"), ratio_to(LIGER, "step", True), ratio_to(EAGER, "step", True),
        ms("forward"), ratio_to(LIGER, "forward", False), ms("loop"), ratio_to(LIGER, "loop", False), *errors,
    )  # fmt: skip
    return _aligned(cells)


def _aligned(cells: Sequence[str]) -> str:
    first, *rest = zip(cells, WIDTHS, strict=True)
    return f"  {first[0]:<{first[1]}}" + "".join(f" {cell:>{width}}" for cell, width in rest)


def summary(rows: Sequence[LayerRow], peers: Sequence[str] = (LIGER, EAGER)) -> list[str]:
    """The geometric means against Liger-Kernel by kind of time, and the lowest ratio. Also the peaks of the cases that compare memory, and
    the cases without a ratio. `peers` were asked for: without Liger-Kernel, a case needs only our time."""
    lines = []
    for kind in KINDS:
        found = [(r, f"{row.case.name} {row.shape}") for row in rows if (r := row.ratio(LIGER, kind)) is not None]
        mean = geometric_mean(r for r, _ in found)
        if mean is not None:
            word = session.verdict(mean, FLOOR, GOAL) if kind == "step" else ""
            low, where = min(found)
            lines.append(
                f"  {word:<7}{kind} against Liger-Kernel: geometric mean {mean:.3f} of {len(found)}, lowest {low:.2f} ({where})"
                + (f"; floor {FLOOR:g}, goal {GOAL:g}" if word else "")
            )
    for row in rows:
        if row.case.memory and {OURS, LIGER} <= row.peaks.keys():
            share = row.peaks[OURS] / row.peaks[LIGER]
            word = "goal" if share < 1 else "floor" if share == 1 else "MISSED"
            peaks = ", ".join(f"{name} {count / 2**20:.0f} MiB" for name, count in row.peaks.items())
            lines.append(f"  {word:<7}peak memory of {row.case.name} {row.shape}: {peaks}; {share:.2f} of Liger's")
    missing = [row for row in rows if (row.ratio(LIGER) if LIGER in peers else row.times["step"].get(OURS)) is None]
    if missing:
        lines.append(f"  MISSED without a ratio: {', '.join(f'{row.case.name} {row.shape}' for row in missing)}")
    return lines


def run(options: BenchOptions, keep: session.Keep = lambda rows: None) -> list[Row]:
    """Measures all cases, or those of `shapes`, against all peers, or `peers`. Prints and keeps each row when it is there.

    Returns the rows. Raises Unsupported without torch, Liger-Kernel or a GPU.
    """
    session.require("torch", "liger_kernel.transformers")
    import torch

    clock = StepClock("cuda", options.rounds, SECONDS, options.clean_cache)
    print(
        session.head("cuda", "Layers, bf16: forward and backward (step), forward, and the step in a loop of the host")
    )
    print(_aligned(COLUMNS), flush=True)
    rows: list[LayerRow] = []
    ended: list[Row] = []
    wanted = [parse_shape(shape) for shape in options.shapes]
    peers = [peer for peer in (LIGER, EAGER) if not options.peers or peer in options.peers]
    try:
        for case in layer_cases():
            for size in case.sizes:
                if wanted and size not in wanted:
                    continue
                try:
                    row = measure(case, size, clock, options.seed or 1, peers)
                except torch.cuda.OutOfMemoryError as error:
                    row = LayerRow(case, size, problems={"all": f"failed: {one_line(error)}"})
                finally:
                    gc.collect()
                    torch.cuda.empty_cache()
                rows.append(row)
                keep(_document(rows))
                print("\n".join([line(row), *(f"    {name} {why}" for name, why in row.problems.items())]), flush=True)
    except KeyboardInterrupt:
        ended = [{"interrupted": True}]
    print("\n".join(summary(rows, peers)), flush=True)
    return [*_document(rows), *ended]


def _document(rows: Sequence[LayerRow]) -> list[Row]:
    return [session.described("cuda"), *(row.as_json() for row in rows)]
