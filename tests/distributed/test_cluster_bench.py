"""`blocknb bench --client`: one worker of each kind of device measures, and the results become one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blocknb.bench import cluster, command
from blocknb.bench.suite.runner import BenchOptions
from blocknb.cli import main
from blocknb.profile import machines

ROWS = [{"limit": "memory", "rate": 3.0}]


def measuring() -> list[dict[str, Any]]:
    print("measuring")
    return ROWS


def with_devices(kind: str) -> None:
    """Gives the device of this worker a name, and a benchmark that takes no time."""
    from blocknb.profile import machines

    machines.name_of = lambda number: kind
    command.BENCHMARKS["ceilings"] = measuring


def as_before() -> None:
    from importlib import reload

    from blocknb.profile import machines

    reload(machines)
    reload(command)


@pytest.fixture
def kinds(client: Any) -> Any:
    for worker, kind in zip(client.scheduler_info(n_workers=-1)["workers"], ("NVIDIA A", "NVIDIA B"), strict=True):
        client.run(with_devices, kind, workers=[worker])
    yield client
    client.run(as_before)


def test_each_kind_of_device_is_measured_once(kinds: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    assert main(["bench", "ceilings", "--client", kinds.scheduler.address, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found == {kind: {"ceilings": ROWS} for kind in ("NVIDIA A", "NVIDIA B")}
    said = capsys.readouterr().out
    assert said.count("measuring") == 2
    assert "All devices" in said
    assert cluster.run(["ceilings"], BenchOptions(), str(tmp_path / "found.csv"), kinds) == 0
    assert (tmp_path / "found.csv").read_text().split() == [
        "device,benchmark,limit,rate",
        "NVIDIA", "A,ceilings,memory,3.0",
        "NVIDIA", "B,ceilings,memory,3.0",
    ]  # fmt: skip


def test_a_kind_of_device_that_fails_loses_no_results_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [machines.WorkerDevice(f"tcp://{i}", 0, f"NVIDIA {i}") for i in range(3)]

    def run_on(client: Any, kind: machines.WorkerDevice, *arguments: Any) -> Any:
        if kind is kinds[1]:
            raise RuntimeError("the worker died")
        return 0, {"ceilings": ROWS}, "measuring"

    monkeypatch.setattr(machines, "one_per_kind", lambda client: kinds)
    monkeypatch.setattr(machines, "run_on", run_on)
    path = tmp_path / "found.json"
    assert cluster.run(["ceilings"], BenchOptions(), str(path), object()) == 1
    assert "NVIDIA 1: not measured: RuntimeError: the worker died" in capsys.readouterr().out
    assert list(json.loads(path.read_text())) == ["NVIDIA 0", "NVIDIA 2"]


def test_a_scheduler_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("blocknb.profile.machines.CONNECT", "100ms")
    assert main(["bench", "ceilings", "--client", "tcp://127.0.0.1:9"]) == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


def test_an_unknown_benchmark_is_refused_before_a_connection() -> None:
    assert main(["bench", "sofmax", "--client", "tcp://127.0.0.1:9"]) == 2


def test_rows_of_ready_made_kernels_have_one_row_per_peer() -> None:
    ours, numpy = ({"median": ms, "low": ms, "high": ms, "runs": 9} for ms in (1.0, 4.0))
    row = {"benchmark": "add", "shape": [4, 8], "dtype": "fp32", "amount": 2e6, "unit": "GB/s"}
    row |= {"ms": {"blocknb": ours, "NumPy": numpy}}
    rows = cluster.tidy({"CPU": {"kernels": [{"threads": 2, "rows": [row]}]}})
    assert [(r["peer"], r["ms"], r["rate"], r["shape"], r["threads"]) for r in rows] == [
        ("blocknb", 1.0, 2.0, "4x8", 2),
        ("NumPy", 4.0, 0.5, "4x8", 2),
    ]
    assert list(cluster.table(rows)["device"]) == ["CPU", "CPU"]
