"""The table of timings by commit: what a run of `blocknb bench` adds to it, and the plot, which is drawn from it."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "performance.py"))


def results() -> dict:
    def row(name: str, **ratios: float) -> dict:
        return {"benchmark": name, "ratios": {peer: {"value": value} for peer, value in ratios.items()}}

    rows = [row("softmax", Triton=1.0, torch=2.0), row("softmax", Triton=4.0), row("add", Triton=0.5)]
    launch = [
        ("blocknb", 5.0),
        ("blocknb, autotuned", 8.0),
        ("Triton", 10.0),
        ("Triton, autotuned", 20.0),
        ("driver", 3.0),
    ]
    return {
        "kernels": [{"device": "NVIDIA H200", "threads": None, "date": "2026-11-27T14:00:00", "rows": rows}],
        "launch": [*({"peer": peer, "us": us} for peer, us in launch), {"peer": "numba", "problem": "ImportError"}],
    }


def test_a_run_gives_a_row_for_each_benchmark_and_peer() -> None:
    rows = {(row["benchmark"], row["peer"], row["shapes"]): row for row in SCRIPT["rows_of"](results(), "0123abcd")}
    numbers = {key: (row["low"], row["mean"], row["high"]) for key, row in rows.items()}
    assert numbers == {
        ("softmax", "Triton", "2 shapes"): (1.0, 2.0, 4.0),
        ("softmax", "torch", "1 shapes"): (2.0, 2.0, 2.0),
        ("add", "Triton", "1 shapes"): (0.5, 0.5, 0.5),
        ("launch", "Triton", "five arguments"): (2.0, 2.0, 2.0),
        ("launch", "Triton", "autotuned"): (2.5, 2.5, 2.5),
    }
    assert {(row["commit"], row["date"], row["device"]) for row in rows.values()} == {
        ("0123abcd", "2026-11-27", "H200")
    }


def test_a_missing_file_of_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["performance.py", "add", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit, match="2"):
        SCRIPT["main"]()
    assert f"there is no file {tmp_path / 'none.json'}" in capsys.readouterr().err


def test_times_of_a_cpu_are_refused() -> None:
    found = results()
    found["kernels"][0] |= {"threads": 2, "device": "a CPU"}
    with pytest.raises(ValueError, match="a CPU is no GPU"):
        SCRIPT["rows_of"](found, "0123abcd")


def test_the_table_is_ordered_and_the_plot_is_drawn_from_it() -> None:
    rows = SCRIPT["read"]()
    hint = "run python scripts/performance.py draw"
    assert SCRIPT["TABLE"].read_text() == SCRIPT["text_of"](rows)
    assert SCRIPT["PLOT"].read_text() == SCRIPT["drawn"](rows), hint
    space = "{http://www.w3.org/2000/svg}"
    svg = ElementTree.parse(SCRIPT["PLOT"]).getroot()
    assert len(svg.findall(f".//{space}circle")) == len(rows)
    assert all(0 < row["low"] <= (row["mean"] or row["high"]) <= (row["high"] or row["mean"]) for row in rows)
