"""Runs the benchmarks of compiled PyTorch steps: prints a table row by row, keeps the rows as JSON, and compares them with the floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blocknb.bench.rows import Row
from blocknb.bench.suite.measure import Ratio
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.suite.table import geometric_mean, ratio_text
from blocknb.bench.torch_steps.definition import TorchStep
from blocknb.bench.torch_steps.measured import TorchRow, TorchSession, measure
from blocknb.bench.torch_steps.peers import EAGER, OURS, TRITON
from blocknb.runtime.cache import version_of

Keep = Callable[[list[Row]], None]
#: The limits of each benchmark: (the least ratio of each step, the least geometric mean or None), as floors and as goals.
FLOORS = {
    "torch_fused": ((0.90, 1.00), (1.00, 1.10)),
    "torch_models": ((0.98, None), (1.03, None)),
    "torch_templates": ((1.00, None), (1.15, None)),
}
LAYERS = 12


def ready(device: str) -> str:
    """The device of torch, "cuda" or "cpu". Raises ValueError without torch, or, on a GPU, without Triton or a GPU."""
    hint = "; --device cpu checks tiny sizes without them"
    try:
        import torch
    except ImportError:
        raise ValueError("this benchmark needs PyTorch: pip install torch") from None
    if device == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(f"this benchmark needs a GPU that torch can use{hint}")
    if not version_of("triton"):
        raise ValueError(f"this benchmark needs Triton for the comparison: pip install triton{hint}")
    return "cuda"


def run(name: str, options: BenchOptions, keep: Keep = lambda rows: None) -> list[Row]:
    """Measures the steps of a benchmark, and prints them. `keep` gets all rows so far after each step. Raises ValueError without what it
    needs."""
    device = ready(options.device)
    session = TorchSession(device, options.rounds, options.seed or 1, options.clean_cache)
    makers = steps(name, session, options)
    where = described(device)
    print(f"\n{name}: {where['device']}, torch {where['torch']}, Triton {where['Triton']}; seed {session.seed}")
    print(header(session.peer), flush=True)
    rows: list[Row] = []
    measured: list[TorchRow] = []
    failed: list[str] = []
    for make in makers:
        row = attempted(session, make)
        if isinstance(row, str):
            print(f"  {row}", flush=True)
            failed.append(row)
            rows.append({"benchmark": name, "problem": row, **where})
        else:
            measured.append(row)
            print("\n".join(lines(row)), flush=True)
            rows.append({"benchmark": name, **as_json(row), **where})
        keep(rows)
        if session.cancelled:
            rows[-1]["interrupted"] = True
            break
    print("\n".join(verdicts(name, measured, failed)), flush=True)
    return rows


def attempted(session: TorchSession, make: Callable[[], TorchStep]) -> TorchRow | str:
    """The row of a step, or why the step could not be made or measured."""
    from blocknb.bench.suite.measure import one_line

    try:
        return measure(session, make())
    except Exception as error:  # a library or memory is missing; the next step may run
        return one_line(error)


def steps(name: str, session: TorchSession, options: BenchOptions) -> list[Callable[[], TorchStep]]:
    """Makers of the steps of a benchmark."""
    from blocknb.bench.torch_steps import fused, models, templates

    if name == "torch_models":
        layers = options.layers or (LAYERS if session.device == "cuda" else 1)
        return models.steps(session.device, session.seed, layers)
    return (fused if name == "torch_fused" else templates).steps(session.device)


def described(device: str) -> dict[str, str]:
    """The names of the device, and the versions of torch and Triton."""
    import torch

    from blocknb.profile.ceilings import name_of
    from blocknb.runtime.kinds import HOST

    name = torch.cuda.get_device_name() if device == "cuda" else name_of(HOST)
    return {"device": name, "torch": torch.__version__, "Triton": version_of("triton") or "not installed"}


# -- the table


def header(peer: str) -> str:
    """The header line. "kernels" is the number of launches of generated kernels, and how many of them blocknb compiled."""
    columns = f"{'ms':>9} {'x ' + peer:>18} {'x, kernels only':>18}"
    return f"  {'step':<20}{'shape':<22}{'kernels':>9}{columns}  errors: ours, {peer}, eager"


def lines(row: TorchRow) -> list[str]:
    """The lines of a step: its numbers, and its problems."""
    ours = row.times.get(OURS)
    launched = f"{row.by_blocknb}/{len(row.launched.get(OURS, ()))}"
    peers = dict.fromkeys((OURS, row.peer, EAGER))
    found = " ".join(f"{row.errors[peer]:.1e}" if peer in row.errors else "-" for peer in peers)
    line = f"  {row.step.name:<20}{row.step.shape:<22}{launched:>9}{f'{ours.median:.4f}' if ours else '-':>9}"
    line += f" {_cell(row.ratio):>18} {_cell(row.kernel_ratio):>18}  {found}"
    notes = [f"    {row.step.note}"] if row.step.note else []
    return [line, *notes, *(f"    {peer}: {text}" for peer, text in row.problems.items()), *_slower(row)]


def _cell(ratio: Ratio | None) -> str:
    return "-" if ratio is None else ratio_text(ratio)


def _slower(row: TorchRow) -> list[str]:
    """The kernels that take at least 3 % longer than the peer's of the same name, those that lose most first."""
    ours, other = row.kernels.get(OURS, {}), row.kernels.get(row.peer, {})
    lost = [(ours[name][0] - other[name][0], name) for name in ours if name in other]
    return [
        f"    slower: {name} {ours[name][0]:.1f} us, {row.peer} {other[name][0]:.1f} us ({ours[name][1]} launches)"
        for _, name in sorted(lost, reverse=True)[:4]
        if ours[name][0] > 1.03 * other[name][0]
    ]


def as_json(row: TorchRow) -> Row:
    """A row as JSON: milliseconds and ratios with quartiles, and each kernel."""

    def ratio(found: Ratio | None) -> Any:
        return found and {"value": found.value, "low": found.low, "high": found.high}

    def times(found: Any) -> Any:
        return {peer: {"median": t.median, "low": t.low, "high": t.high, "runs": t.runs} for peer, t in found.items()}

    return {
        "step": row.step.name,
        "shape": row.step.shape,
        "note": row.step.note,
        "peer": row.peer,
        "ms": times(row.times),
        "ms inside kernels": times(row.inside),
        "ratio": ratio(row.ratio),
        "ratio inside kernels": ratio(row.kernel_ratio),
        "kernels": {
            peer: [
                {"name": name, "us": us, "launches": count, "configuration": row.configs[peer][name]}
                for name, (us, count) in found.items()
            ]
            for peer, found in row.kernels.items()
        },
        "launches": {peer: len(names) for peer, names in row.launched.items()},
        "same kernels": len({tuple(sorted(names)) for names in row.launched.values()}) == 1,
        "compiled by blocknb": row.by_blocknb,
        "relative errors": row.errors,
        "problems": row.problems,
    }


def verdicts(name: str, rows: Sequence[TorchRow], failed: Sequence[str] = ()) -> list[str]:
    """The lines that compare the ratios against Triton with the floors, and count the kernels. `failed` says why steps have no row."""
    launched = sum(len(row.launched.get(OURS, ())) for row in rows)
    ours = sum(row.by_blocknb for row in rows)
    found = [f"  blocknb compiled {ours} of {launched} generated kernels that were launched"]
    missed = [f"  MISSED  {text}" for text in failed]
    if missing := [f"{row.step.name} {row.step.shape}" for row in rows if row.ratio is None]:
        missed.append(f"  MISSED  without a ratio: {', '.join(missing)}")
    pairs = [(row.ratio.value, f"{row.step.name} {row.step.shape}") for row in rows if row.ratio is not None]
    if not pairs or any(row.peer != TRITON for row in rows):
        return found + missed
    floor, goal = FLOORS[name]
    lowest, where = min(pairs)
    means = {
        "steps": geometric_mean(value for value, _ in pairs),
        "inside kernels": geometric_mean(row.kernel_ratio.value for row in rows if row.kernel_ratio is not None),
    }
    found += [f"  geometric mean of {len(pairs)}, {what}: {mean:.3f}" for what, mean in means.items() if mean]
    found.append(
        f"  {_word(lowest, floor[0], goal[0])} lowest {lowest:.3f} ({where}); floor {floor[0]}, goal {goal[0]}"
    )
    if floor[1] is not None and goal[1] is not None and (mean := means["steps"]):
        found.append(f"  {_word(mean, floor[1], goal[1])} mean {mean:.3f}; floor {floor[1]}, goal {goal[1]}")
    return found + missed


def _word(value: float, floor: float, goal: float) -> str:
    return f"{'goal' if value >= goal else 'floor' if value >= floor else 'MISSED':<7}"
