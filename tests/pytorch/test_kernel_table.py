"""The table of the kernels of a compiled model: measured launches, HTML, and `%%torchkernels`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import blocknb.torch
from blocknb.errors import LaunchError
from blocknb.notebook import torch_table
from blocknb.profile import ceilings
from blocknb.profile.ceilings import Ceiling, Ceilings
from blocknb.torch.inductor import launched, measured
from blocknb.torch.inductor.launched import GeneratedKernels

ROWS, COLUMNS = 48, 200
TABLE = torch.randn(50, COLUMNS, generator=torch.Generator().manual_seed(2))


def step(ids, x, w):
    x = F.gelu(x) * (x < 1)
    return (x @ w).softmax(-1), TABLE[ids].exp()


def inputs():
    return torch.randint(0, 50, (ROWS,)), torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, COLUMNS)


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    return blocknb.torch.kernels(torch.compile(step, backend=blocknb.torch.backend), *inputs(), eager=step)


def of(found, operator):
    return next(k for k in found if operator in k.operators)


def test_each_launch_has_a_time_and_a_share(found):
    assert all(k.launch.time.runs >= 3 and k.launch.time.cold for k in found)
    assert sum(map(found.share, found)) == pytest.approx(1)
    assert found.milliseconds == pytest.approx(sum(k.milliseconds for k in found))
    assert set(found.steps) == {"compiled", "eager"}


def test_bytes_are_those_that_the_launch_must_move(found):
    gelu = of(found, "aten.gelu")
    assert gelu.bytes == 2 * 4 * ROWS * COLUMNS
    assert gelu.gbytes == pytest.approx(gelu.bytes / gelu.milliseconds / 1e6)
    assert gelu.launch.grid[0] >= 1
    assert gelu.flops > 0


def test_bytes_that_depend_on_data_are_unknown(found):
    gather = of(found, "aten.index")
    assert gather.bytes is None
    assert gather.gbytes is None
    assert "depends on the value loaded" in gather.launch.work.why_bytes
    assert "depends on the value loaded" in found._repr_html_()


def test_the_tensors_of_the_step_stay_as_they_are():
    total, buffer = torch.zeros(40, 30), torch.zeros(40, 60)

    def add(value):
        total.add_(value)
        buffer[:, ::2].add_(value)  # strides and a storage that a copy must keep
        return torch.cat([value * 2, value + 1], 1)

    compiled, results = torch.compile(add, backend=blocknb.torch.backend), []
    found = blocknb.torch.kernels(lambda x: results.append(compiled(x)), torch.ones(40, 30))
    assert all(k.milliseconds for k in found)
    torch.testing.assert_close(total, torch.full((40, 30), 2.0))
    torch.testing.assert_close(buffer[:, ::2], torch.full((40, 30), 2.0))
    torch.testing.assert_close(buffer[:, 1::2], torch.zeros(40, 30))
    torch.testing.assert_close(results[1], torch.full((40, 60), 2.0))


def test_the_roof_comes_from_stored_ceilings_only(found, monkeypatch):
    monkeypatch.setattr(ceilings, "measure", lambda *_: pytest.fail("nothing may be measured"))
    gelu = of(found, "aten.gelu").launch
    limits = Ceilings("CPU", "2026-01-01", (Ceiling("memory", "GB/s", 10.0, 10.0, 10.0, "a test"),))
    for known, expected in (
        (None, (None, None)),
        (limits, ("memory", gelu.work.unique_bytes / 1e5 / gelu.time.median)),
    ):
        monkeypatch.setattr(ceilings, "known", lambda *_, known=known: known)
        launch = measured.MeasuredLaunch(gelu.compiled, gelu.grid, gelu.device, gelu.arguments, gelu.time)
        assert launch.roof == (expected[0], expected[1] and pytest.approx(expected[1], abs=0.06))
        row = launched.GeneratedKernel(
            of(found, "aten.gelu").autotuner, of(found, "aten.gelu").config, gelu.compiled, launch
        )
        page = GeneratedKernels([row])._repr_html_()
        assert ("of the roof (%)" in page) == (known is not None)
        assert ("The roof is unknown" in page) == (known is None)
    gather = of(found, "aten.index").launch
    launch = measured.MeasuredLaunch(gather.compiled, gather.grid, gather.device, gather.arguments, gather.time)
    assert launch.roof == (None, None)


def test_trials_of_an_autotuner_are_not_recorded():
    compiled, x = torch.compile(lambda x: x.exp() + 1, backend=blocknb.torch.backend), torch.ones(64)
    compiled(x)
    with launched.recorded() as record:
        with launched.trial():
            compiled(x)
        assert not record.kernels
        compiled(x)
    assert len(record.kernels) == 1


def test_the_html_has_lines_operators_and_a_fold_for_each_kernel(found):
    page = found._repr_html_()
    assert "x = F.gelu(x) * (x &lt; 1)" in page
    assert "(x < 1)" not in page
    assert "aten.gelu" in page
    assert page.count("blocknb-card blocknb-torch") == 1
    assert page.count(": source, notes and IR</summary>") == len({id(k.compiled) for k in found})
    assert "tl.load" in page
    assert "<script" not in page


def test_the_html_is_bounded(found, monkeypatch):
    many = GeneratedKernels([*found] * 2000)
    page = many._repr_html_()
    assert len(page.encode()) <= torch_table.LIMIT
    assert " more</td>" in page
    for limit in (len(page.encode()) - 20_000, 60_000):  # the rows take half of it at most
        monkeypatch.setattr(torch_table, "LIMIT", limit)
        page = many._repr_html_()
        assert len(page.encode()) <= limit
    assert "without a fold" in page


def test_a_saved_table_is_one_file(found, tmp_path):
    file = found.save(tmp_path / "kernels.html")
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert found._repr_html_() in text
    assert "src=" not in text
    assert "href=" not in text
    with pytest.raises(LaunchError, match="a path is a string or a Path"):
        found.save(3)


def test_a_function_without_generated_kernels_warns_and_eager_is_a_function():
    with pytest.warns(UserWarning, match="no kernel of blocknb was launched"):
        assert len(blocknb.torch.kernels(torch.exp, torch.ones(3))) == 0
    with pytest.raises(LaunchError, match="eager is a bool, not a function"):
        blocknb.torch.kernels(torch.exp, torch.ones(3), eager=True)


def test_a_cell_shows_the_kernels_that_it_launched():
    shell = InteractiveShell(colors="nocolor")
    blocknb.load_ipython_extension(shell)
    shown = []
    shell.display_pub.publish = lambda data, *_, **__: shown.append(data)
    shell.user_ns |= {"f": torch.compile(lambda x: x.exp() * 3, backend=blocknb.torch.backend), "x": torch.ones(64)}
    result = shell.run_cell("%%torchkernels\nfor _ in range(3):\n    y = f(x)\nfloat(y[0])")
    assert result.result == pytest.approx(3 * torch.e)
    (table,) = shown
    assert "aten.exp" in table["text/plain"]
    assert "3 launches of generated kernels" in table["text/html"]
    with capture_output() as seen:
        assert not shell.run_cell("%%torchkernels\n1 / 0").success
        assert not shell.run_cell("%%torchkernels --fast\n1").success
    assert "no kernel of blocknb was launched" in seen.stdout
    assert not launched.open_records
