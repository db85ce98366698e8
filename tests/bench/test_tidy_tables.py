"""Sweeps and benchmarks of several kinds of devices are one tidy table: a pandas DataFrame, or rows without pandas."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from blocknb.bench import cluster
from blocknb.errors import LaunchError
from blocknb.notebook.sweep import Series, Sweep

ROWS = [{"device": "NVIDIA H200", "benchmark": "add", "ms": 1.0}, {"device": "CPU", "benchmark": "add", "ms": 4.0}]


def of_two_devices() -> Sweep:
    """A sweep of one kernel over two values on two devices, the second of which has no time for the last value."""
    series = [
        Series("scale", "kernel", [3.0, 4.0], [2.5, 3.5], [3.5, 4.5], device="NVIDIA H200"),
        Series("scale", "kernel", [1.0, None], [0.5, None], [1.5, None], device="CPU"),
    ]
    return Sweep("scale", "BLOCK", [256, 1024], "GB/s", series, runs=20, amounts=[0.012, 0.012])


def test_a_sweep_of_two_devices_has_a_row_for_each_device_and_value(tmp_path: Path) -> None:
    rows = of_two_devices().records()
    assert [(row["device"], row["BLOCK"]) for row in rows if row["ms"] is not None] == [
        ("NVIDIA H200", 256),
        ("CPU", 256),
        ("NVIDIA H200", 1024),
    ]
    assert len({tuple(row) for row in rows}) == 1, "each row has the same columns"
    with of_two_devices().to_csv(tmp_path / "sweep.csv").open(newline="", encoding="utf-8") as stream:
        assert [row["device"] for row in csv.DictReader(stream)] == [row["device"] for row in rows]


def test_with_pandas_a_table_is_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    for frame, rows in ((of_two_devices().to_pandas(), of_two_devices().records()), (cluster.table(ROWS), ROWS)):
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == list(rows[0]) and list(frame["device"]) == [row["device"] for row in rows]


def test_without_pandas_a_table_is_its_rows_and_to_pandas_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    assert cluster.table(ROWS) == ROWS
    with pytest.raises(LaunchError, match="needs pandas") as caught:
        of_two_devices().to_pandas()
    assert "records()" in str(caught.value.hint)
