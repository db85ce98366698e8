"""`blocknb bench --client ADDRESS`: the benchmarks on every kind of device of a Dask cluster, one worker per kind.

The workers measure one after another, because two workers of one machine would disturb each other. `tidy` makes one table of all results:
a row per device, benchmark, shape, dtype and peer.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blocknb.bench.rows import Row, show
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.runner import BenchOptions
from blocknb.errors import LaunchError
from blocknb.profile import machines
from blocknb.runtime import whole_files

Results = dict[str, list[Row]]


def run(wanted: Sequence[str], options: BenchOptions, path: str, client: Any) -> int:
    """Runs the named benchmarks on one worker of each kind of device, and prints their results. Returns an exit status.

    `client` is a Dask client, or the address of a scheduler. If `path` is given, the rows are written to that file as JSON, or as CSV if
    its name ends with ".csv"."""
    from blocknb.bench import command

    if not (names := command.known_names(wanted, options)) or not command.writable(path):
        return 2
    found: dict[str, Results] = {}
    status = 0
    try:
        with machines.connected(client) as cluster:
            for kind in machines.one_per_kind(cluster):
                print(f"\n{kind.name}, {kind.worker} ...", flush=True)
                try:
                    done, found[kind.name], said = machines.run_on(cluster, kind, measured, names, options)
                except Exception as error:  # a worker may die of a benchmark; the other kinds are measured anyway
                    done, said = 1, f"{kind.name}: not measured: {one_line(error)}"
                status = max(status, done)
                print(said, flush=True)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    rows = tidy(found)
    show("All devices", rows)
    if path:
        _write(Path(path), rows, found)
    return status


def measured(names: Sequence[str], options: BenchOptions) -> tuple[int, Results, str]:
    """Runs benchmarks in this process, on a worker. Returns the exit status, the rows by benchmark, and what was printed."""
    from blocknb.bench import command

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status, found = command.measured(command.jobs(names, options))
    return status, found, said.getvalue()


def tidy(found: Mapping[str, Results]) -> list[Row]:
    """One row per measurement, from the results by device and benchmark. Times are in milliseconds."""
    rows: list[Row] = []
    for device, results in found.items():
        for name, entries in results.items():
            for entry in entries:
                rows += (
                    _of_kernels(device, entry)
                    if name == "kernels"
                    else [{"device": device, "benchmark": name, **entry}]
                )
    return rows


def _of_kernels(device: str, document: Mapping[str, Any]) -> list[Row]:
    """The rows of a document of ready-made kernels (see `suite.runner`): one per case and peer."""
    found = []
    for row in document["rows"]:
        shape, threads = "x".join(map(str, row["shape"])), document["threads"]
        case = {
            "device": device,
            "threads": threads,
            "benchmark": row["benchmark"],
            "shape": shape,
            "dtype": row["dtype"],
        }
        scale = 1e6 if row["unit"] == "GB/s" else 1e9
        for peer, ms in row["ms"].items():
            rate = row["amount"] / ms["median"] / scale
            times = {"ms": ms["median"], "ms_low": ms["low"], "ms_high": ms["high"]}
            found.append({**case, "peer": peer, **times, "rate": rate, "unit": row["unit"]})
    return found


def table(rows: Sequence[Row]) -> Any:
    """The rows as a pandas DataFrame, or as they are without pandas."""
    try:
        import pandas
    except ImportError:
        return list(rows)
    return pandas.DataFrame(rows)


def _write(path: Path, rows: Sequence[Row], found: Mapping[str, Results]) -> None:
    if path.suffix == ".csv":
        import csv

        names = list(dict.fromkeys(name for row in rows for name in row))
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
        whole_files.write_text(path, stream.getvalue())
    else:
        whole_files.write_text(path, json.dumps(found, indent=1, default=str) + "\n")
    print(f"written: {path}")
