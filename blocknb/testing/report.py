"""`perf_report`: runs a measuring function over sizes and candidates, and reports a table, a CSV file and a plot.

Only plots need matplotlib, and only `return_df` needs pandas.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[list[Any], list[tuple[float, float | None, float | None]]]


@dataclass
class Benchmark:
    """The arguments of a measuring function.

    The arguments `x_names` take each value of `x_vals` (one value for all of them, or a tuple with one value each). `line_arg` takes each
    of `line_vals`, which the report shows as `line_names`. `args` are fixed. `styles` holds a (color, line style) for each line.
    """

    x_names: Sequence[str]
    x_vals: Iterable[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: Mapping[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Sequence[tuple[str, str]] | None = field(default=None)


@dataclass
class Mark:
    """A measuring function with its benchmarks; `run` measures."""

    fn: Callable[..., Any]
    benchmarks: Benchmark | Sequence[Benchmark]

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        diff_col: bool = False,
        save_precision: int = 6,
        **kwargs: Any,
    ) -> Any:
        """Measures every benchmark.

        `save_path` is a folder for `<plot_name>.csv`, `<plot_name>.png` and results.html. With `return_df`, returns a pandas DataFrame (a
        list of them for a list of benchmarks); raises ImportError without pandas. Other keywords go to the measuring function.
        """
        single = isinstance(self.benchmarks, Benchmark)
        benchmarks: Sequence[Benchmark] = [self.benchmarks] if single else self.benchmarks  # type: ignore[assignment,list-item]
        if save_path:
            os.makedirs(save_path, exist_ok=True)
        frames = []
        for benchmark in benchmarks:
            rows = self._measure(benchmark, kwargs)
            header, table = _table(benchmark, rows, diff_col)
            if print_data:
                print(f"{benchmark.plot_name}:\n{_aligned(header, table)}")
            if save_path:
                _save(os.path.join(save_path, f"{benchmark.plot_name}.csv"), header, table, save_precision)
            if benchmark.plot_name and (show_plots or save_path):
                _plot(benchmark, rows, show_plots, save_path)
            if return_df:
                frames.append(_frame(header, table))
        if save_path:
            images = "".join(f'<img src="{b.plot_name}.png"/>\n' for b in benchmarks)
            with open(os.path.join(save_path, "results.html"), "w") as file:
                file.write(f"<html><body>\n{images}</body></html>\n")
        return (frames[0] if single else frames) if return_df else None

    def _measure(self, benchmark: Benchmark, more: Mapping[str, Any]) -> list[Row]:
        rows: list[Row] = []
        for x in benchmark.x_vals:
            xs = list(x) if isinstance(x, (tuple, list)) else [x] * len(benchmark.x_names)
            if len(xs) != len(benchmark.x_names):
                count = len(benchmark.x_names)
                raise ValueError(f"{benchmark.plot_name}: an entry of x_vals needs {count} values, not {x}")
            named = dict(zip(benchmark.x_names, xs, strict=True))
            results = []
            for value in benchmark.line_vals:
                found = self.fn(**named, **{benchmark.line_arg: value}, **benchmark.args, **more)
                mean, low, high = found if isinstance(found, (tuple, list)) else (found, None, None)
                results.append((mean, low, high))
            rows.append((xs, results))
        return rows


def perf_report(benchmarks: Benchmark | Sequence[Benchmark]) -> Callable[[Callable[..., Any]], Mark]:
    """Decorates a function (sizes..., candidate) -> number or (mean, min, max). `run` of the result measures and reports."""
    return lambda fn: Mark(fn, benchmarks)


def _table(benchmark: Benchmark, rows: list[Row], difference: bool) -> tuple[list[str], list[list[Any]]]:
    unit = f" ({benchmark.ylabel})" if benchmark.ylabel else ""
    header = [*benchmark.x_names, *(f"{name}{unit}" for name in benchmark.line_names)]
    table = [[*xs, *(mean for mean, _, _ in results)] for xs, results in rows]
    if difference and len(benchmark.line_names) == 2:
        header.append("Diff")
        table = [[*row, row[-1] - row[-2]] for row in table]
    return header, table


def _aligned(header: list[str], table: list[list[Any]]) -> str:
    """The table as text, with right-aligned columns and numbered rows."""
    texts = [["", *header]] + [
        [str(i), *(f"{v:.6f}" if isinstance(v, float) else str(v) for v in row)] for i, row in enumerate(table)
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in texts)


def _save(path: str, header: list[str], table: list[list[Any]], precision: int) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([f"{v:.{precision}f}" if isinstance(v, float) else v for v in row] for row in table)


def _frame(header: list[str], table: list[list[Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("return_df=True returns a pandas DataFrame, and pandas is not installed") from None
    return pandas.DataFrame(table, columns=header)


def _plot(benchmark: Benchmark, rows: list[Row], show: bool, folder: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    xs = [values[0] for values, _ in rows]
    for i, name in enumerate(benchmark.line_names):
        color, style = benchmark.styles[i] if benchmark.styles else (None, "-")
        means, lows, highs = zip(*(results[i] for _, results in rows), strict=True)
        (line,) = axes.plot(xs, means, label=name, color=color, linestyle=style)
        if None not in lows and None not in highs:
            axes.fill_between(xs, lows, highs, alpha=0.15, color=line.get_color())
    axes.legend()
    axes.set_xlabel(benchmark.xlabel or benchmark.x_names[0])
    axes.set_ylabel(benchmark.ylabel)
    axes.set_xscale("log" if benchmark.x_log else "linear")
    axes.set_yscale("log" if benchmark.y_log else "linear")
    if folder:
        figure.savefig(os.path.join(folder, f"{benchmark.plot_name}.png"))
    if show:
        plt.show()
    plt.close(figure)
