"""Cells with `--client`: rows of workers on the card, and sweeps on each kind of device. Two worker processes run the launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document
from blocknb.notebook.register import register

SETUP = """
import blocknb, blocknb.language as tl, numpy as np, dask.array as da
x = np.arange(4000, dtype=np.float32)
out = np.empty_like(x)
"""
DOUBLE = """
@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

def twice(x, out, BLOCK=1024):
    double[lambda meta: (blocknb.cdiv(x.size, meta["BLOCK"]),)](x, out, x.size, BLOCK=BLOCK)
"""
KINDS = ("NVIDIA One", "NVIDIA Two")


class Cells:
    """A shell in which cells run; `documents` are those of the last cell's cards."""

    def __init__(self, **names: Any):
        self.shell: Any = InteractiveShell()
        self.shown: list[dict[str, Any]] = []
        self.shell.display_pub.publish = lambda data, *args, **kwargs: self.shown.append(data)
        register(self.shell)
        self.shell.user_ns.update(names)
        self.run(SETUP)

    def run(self, text: str) -> Any:
        self.shown.clear()
        return self.shell.run_cell(text)

    def document(self, text: str) -> dict[str, Any]:
        self.run(text).raise_error()
        return next(data[document.MIME] for data in self.shown if document.MIME in data)


def two_kinds(kind: str) -> None:
    """Gives the device of this worker a name, and ceilings that need no measurement."""
    from blocknb.profile import ceilings, machines

    memory = ceilings.Ceiling("memory", "GB/s", 1000.0, 1000.0, 1000.0, "made up")
    machines.name_of = lambda number: kind
    ceilings.ceilings = lambda number=-1: ceilings.Ceilings(kind, "2026-01-01T00:00:00+00:00", (memory,))


def one_kind() -> None:
    """Undoes `two_kinds`."""
    import importlib

    from blocknb.profile import ceilings, machines

    importlib.reload(ceilings)
    importlib.reload(machines)


@pytest.fixture
def cells(client: Any) -> Cells:
    return Cells(client=client)


def test_the_card_of_a_distributed_launch_has_a_row_for_each_worker(cells: Cells, client: Any) -> None:
    launch = "da.from_array(x, chunks=500)"
    made = cells.document(f"%%blockkernel --client client\n{DOUBLE}\nr = blocknb.map_blocks(twice, {launch}).compute()")
    assert (cells.shell.user_ns["r"] == 2 * cells.shell.user_ns["x"]).all()
    rows = made["workers"]["rows"]
    addresses = client.scheduler_info(n_workers=-1)["workers"]
    assert {row["worker"] for row in rows} <= set(addresses)
    assert sum(row["launches"] for row in rows) == 8
    assert sum(row["bytes"] for row in rows) == 2 * 4 * 4000
    assert all(row["ms"] > 0 and row["total_ms"] >= row["ms"] for row in rows)
    assert made["kernel"] == "double"
    assert [view["label"] for view in made["views"]] == ["CPU", "sm_90a"]
    assert made["launches"][0]["launches"] == 8
    text = next(data["text/plain"] for data in cells.shown)
    assert "8 launches on" in text
    assert all(row["worker"] in text for row in rows)


def test_without_the_option_a_cell_uses_no_client(cells: Cells) -> None:
    cells.run(f"%%blockkernel\n{DOUBLE}\nr = blocknb.map_blocks(twice, da.from_array(x, chunks=500)).compute()")
    assert not any(document.MIME in data for data in cells.shown)


def test_a_cell_that_fails_stops_to_observe_the_workers(cells: Cells, client: Any) -> None:
    def observers() -> int:
        from blocknb.runtime import launch_context

        return len(launch_context.observers)

    assert isinstance(cells.run("%%blockkernel --client client\n1 / 0").error_in_exec, ZeroDivisionError)
    assert set(client.run(observers).values()) == {0}


def test_the_option_takes_a_client_and_nothing_else(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    assert not cells.run("%%blockkernel --client x\npass").success
    assert "--client: x is a ndarray, and not a client of Dask" in capsys.readouterr().err


@pytest.fixture
def kinds(client: Any) -> Iterator[None]:
    """Two workers whose devices have different names."""
    for worker, kind in zip(client.scheduler_info(n_workers=-1)["workers"], KINDS, strict=True):
        client.run(two_kinds, kind, workers=[worker])
    yield
    client.run(one_kind)


@pytest.mark.usefixtures("kinds")
def test_a_sweep_measures_each_kind_of_device_with_its_own_roof(cells: Cells) -> None:
    made = cells.document(f"%%blockkernel --client client --sweep BLOCK=256,1024\n{DOUBLE}\ntwice(x, out)")["sweep"]
    assert made["values"] == [256, 1024]
    assert [(s["kind"], s["device"]) for s in made["series"]] == [
        *(("kernel", kind) for kind in KINDS),
        *(("roof", kind) for kind in KINDS),
    ]
    assert all(v == pytest.approx(1000) for s in made["series"][2:] for v in s["median"])
    assert all(0 < v < 1000 for s in made["series"][:2] for v in s["median"])
    assert made["unit"] == "GB/s"


@pytest.mark.full
@pytest.mark.usefixtures("kinds")
def test_a_sweep_over_a_problem_size_evaluates_launch_and_check_on_the_workers(cells: Cells) -> None:
    options = "--client client --sweep n=1024,2048 --launch run(n) --check np.array_equal(out[:n],{}*x[:n])"
    body = f"{DOUBLE}\ndef run(n):\n    twice(x[:n], out[:n])\nn = 1024"
    made = cells.document(f"%%blockkernel {options.format(2)}\n{body}")["sweep"]
    assert made["values"] == [1024, 2048]
    assert len(made["series"]) == 4
    assert "notes" not in made
    wrong = cells.document(f"%%blockkernel {options.format(3)}\n{body}")["sweep"]
    assert wrong["values"] == []
    assert sum("WRONG" in note for note in wrong["notes"]) == 4
