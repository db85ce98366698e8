"""Sweeps, benchmarks and histories as objects: axes, tables, files, static pages; two axes, checks of launches, repeated options."""

from __future__ import annotations

import base64
import csv
import json
import re
import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from IPython.core.error import UsageError
from matplotlib.figure import Figure
from test_sweep import CELL, LAUNCH, launched, run_cell, shell, ticking  # noqa: F401

import blocknb
from blocknb.errors import LaunchError
from blocknb.notebook import extension, observe, plot_data, plots, repeats, static_diff, static_plots, sweep
from blocknb.notebook.document import MIME
from blocknb.notebook.sweep import Series, Sweep
from blocknb.profile.replay import captured_by

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def swept() -> Sweep:
    return sweep.run(
        "accumulate", "n", [128, 1024, 4096], lambda n: captured_by(launched(n)[0]), lambda n: {"b": int}, ticking(0.5)
    )


def pictures(page: str) -> list[tuple[str, bytes, str]]:
    """The images of an HTML page: kind, content and alternative text."""
    found = re.findall(r'<img alt="([^"]*)" src="data:image/(svg\+xml|png);base64,([^"]+)"', page)
    return [(kind, base64.b64decode(data), alt) for alt, kind, data in found]


def drawn(picture: bytes, name: str) -> list[tuple[float, float]]:
    """The corners of a line in an SVG of Matplotlib, in its units; up is positive."""
    root = ElementTree.fromstring(picture)
    (group,) = [g for g in root.iter(f"{SVG}g") if g.get("id") == name]
    path = next(group.iter(f"{SVG}path")).get("d") or ""
    return [(float(x), -float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)]


def affine(values: list[float], places: list[float]) -> float:
    """How far the places are from a linear function of the values, in units of the places."""
    fit = np.polyfit(values, places, 1)
    return float(np.abs(np.polyval(fit, values) - places).max())


# ---- one series for all


def test_axes_and_static_page_show_the_numbers_of_the_records(swept: Sweep) -> None:
    axes = Figure().subplots()
    assert swept.plot(axes) is axes
    for show, column in (("rate", "rate"), ("time", "ms")):
        axes = swept.plot(Figure().subplots(), show=show)
        wanted = [row[column] for row in swept.records() if row["label"] == "accumulate"]
        found = axes.lines[0].get_ydata()
        assert found == pytest.approx([v * found[0] / wanted[0] for v in wanted]) and list(
            axes.lines[0].get_xdata()
        ) == [128, 1024, 4096]
    ((kind, picture, alt),) = pictures(static_plots.figures({"sweep": swept.part}))
    rates = [row["rate"] for row in swept.records() if row["label"] == "accumulate"]
    places = drawn(picture, "series-0")
    assert kind == "svg+xml" and affine(rates, [y for _, y in places]) < 0.1
    assert affine(np.log2(swept.values).tolist(), [x for x, _ in places]) < 0.1
    assert alt.startswith("Plot of a sweep over n in ") and "accumulate: " in alt


def test_an_axis_and_a_value_have_the_scale_and_the_unit_that_fit(swept: Sweep) -> None:
    axes = swept.plot(Figure().subplots(), show="time", xscale="linear", yscale="log")
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylabel()) == ("linear", "log", "time (µs)")
    assert plot_data.fitting("TFLOP/s", 0.0305) == ("GFLOP/s", 1e3) and plot_data.fitting("ms", 0.286) == ("µs", 1e3)
    with pytest.raises(ValueError, match="'time' or 'rate'"):
        swept.plot(Figure().subplots(), show="speed")
    timed = Sweep("a", "n", [1], "ms", [Series("a", "kernel", [1.0], [1.0], [1.0])])
    with pytest.raises(ValueError, match="times only"):
        timed.plot(Figure().subplots(), show="rate")


def test_rows_are_a_csv_file_and_a_data_frame(swept: Sweep, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = swept.to_csv(tmp_path / "sweep.csv")
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [*csv.DictReader(stream)]
    assert [float(row["ms"]) for row in rows] == [row["ms"] for row in swept.records()]
    assert rows[0]["label"] == "accumulate" and rows[1]["label"] == "b"
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(LaunchError) as caught:
        swept.to_pandas()
    assert "pip install pandas" in str(caught.value.hint)


def test_a_data_frame_has_the_rows(swept: Sweep) -> None:
    frame = swept.to_pandas()
    assert list(frame["ms"]) == [row["ms"] for row in swept.records()] and list(frame.columns) == list(
        swept.records()[0]
    )


def test_two_axes_are_a_heat_map_with_gaps() -> None:
    def replays(point: tuple[int, int]) -> Any:
        return captured_by(launched(point[0], point[1])[0])

    values = [(n, block) for n in (500, 1000) for block in (64, 100, 128)]  # a tile of 100 elements does not compile
    made = sweep.run("accumulate", ("n", "BLOCK"), values, replays, clock=ticking())
    assert made.values == [500, 1000] and made.second == ("BLOCK", [64, 128]) and len(made.notes) == 2
    assert made.notes[0].startswith("n = 500, BLOCK = 100: ")
    axes = made.plot(Figure().subplots())
    (mesh,) = axes.collections
    assert mesh.get_array().shape == (2, 2) and (axes.get_xlabel(), axes.get_ylabel()) == ("n", "BLOCK")
    part = {**made.part, "series": [{**made.part["series"][0], "median": [1.0, None, 3.0, 4.0]}]}
    texts = [t.get_text() for t in plots.figure("sweep", part).axes[0].texts]
    assert "–" in texts
    with pytest.raises(ValueError, match="the series are: 'accumulate'"):
        made.plot(Figure().subplots(), series="b")


def test_points_are_timed_in_turns() -> None:
    order: list[Any] = []

    def baselines(n: int) -> dict[str, Any]:
        return {"b": lambda: order.append(n)}

    sweep.run("accumulate", "n", [100, 200], lambda n: captured_by(launched(n)[0]), baselines, ticking())
    late = order[-2 * sweep.ROUNDS :]
    assert late.count(100) == late.count(200) == sweep.ROUNDS
    assert all(set(late[i : i + 2]) == {100, 200} for i in range(0, len(late), 2))


# ---- the cell


def test_two_options_make_a_heat_map_and_a_third_is_refused(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    _, doc = run_cell(shell, monkeypatch, "--sweep BLOCK=64,256 --sweep num_warps=1,2", LAUNCH)
    assert doc is not None
    assert (
        doc["sweep"]["second"] == {"axis": "num_warps", "values": [1, 2]}
        and len(doc["sweep"]["series"][0]["median"]) == 4
    )
    assert pictures(doc["bundle"]["text/html"])
    for options, said in (
        ("--sweep BLOCK=64 --sweep num_warps=1 --sweep num_stages=1", "given 3 times"),
        ("--sweep BLOCK=64 --sweep BLOCK=128", "BLOCK is given twice"),
        ("--sweep BLOCK=range(64) --sweep num_warps=range(64)", "4096 points"),
    ):
        result, _ = run_cell(shell, monkeypatch, options, LAUNCH)
        assert isinstance(result.error_before_exec or result.error_in_exec, UsageError)
        assert said in str(result.error_before_exec or result.error_in_exec)


FILL = """
@blocknb.kernel
def fill(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total + i, tl.load(x + i, mask=i < n), mask=i < n)
"""


@pytest.mark.parametrize(
    ("check", "values", "note"),
    [
        ("(total[:n]==1).all()", [500, 1500], ""),
        ("(total[:n]==(1,2)[n==1500]).all()", [500], "n = 1500: ✗ WRONG, `"),
        ("(total==1).all()", [500, 1500], "also reads elements that the launches do not write"),
        ("", [500, 1500], "add --check EXPR"),
    ],
)
def test_a_launch_is_checked_for_each_size(shell, monkeypatch, check, values, note):  # noqa: F811
    run_cell(shell, monkeypatch, "--quiet", LAUNCH)  # total is right before, so that a stale result would pass
    launch, option = LAUNCH.replace("add_up", "fill"), f"--check {check} " if check else ""
    shell.run_cell(f"%%blockkernel {option}--sweep n=500..1500..1000 --launch {launch}\n{FILL}").raise_error()
    part = shell.display_pub.outputs[-1]["data"][MIME]["sweep"]
    assert part["values"] == values
    assert note in " ".join(part.get("notes", [])) if note else "notes" not in part
    assert (shell.user_ns["total"] == 1).all() and shell.user_ns["n"] == 2000


def test_a_check_of_an_update_in_place_decides_nothing(shell, monkeypatch):  # noqa: F811
    _, doc = run_cell(shell, monkeypatch, f"--check (total[:n]==1).all() --sweep n=500,1000 --launch {LAUNCH}", "")
    assert doc["sweep"]["values"] == [500, 1000] and "updates `total` in place" in doc["sweep"]["notes"][0]
    assert (shell.user_ns["total"] == 1).all()


def test_a_kernel_measures_itself_in_code(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    run_cell(shell, monkeypatch, "", LAUNCH)
    kernel, x, total = (shell.user_ns[name] for name in ("add_up", "x", "total"))
    found = kernel.sweep(BLOCK=np.array([64, 128]), num_warps=[1, 2])
    assert json.dumps(found.part)
    assert found.second == ("num_warps", [1, 2]) and len(found.records()) == 4
    sizes = kernel.sweep(
        n=[500, 1000],
        launch=lambda n: kernel[(blocknb.cdiv(n, 64),)](x, total, n, BLOCK=64),
        check=lambda n: total[:n] == 2,
        baselines={"NumPy": lambda n: np.add(x[:n], 1)},
    )
    assert sizes.values == [500, 1000] and not sizes.notes and (total == 1).all()
    assert [s.label for s in sizes.series] == ["add_up", "NumPy"]
    own = {"add_up": lambda n=0: None}
    for measure in (lambda: kernel.sweep(BLOCK=[64], baselines=own), lambda: kernel.bench(own)):
        with pytest.raises(LaunchError, match="a baseline is called add_up, as the kernel is"):
            measure()
    wrong: Any = {"NumPy": 3}
    for measure in (kernel.bench, kernel.roofline, lambda given: kernel.sweep(BLOCK=[64], baselines=given)):
        with pytest.raises(LaunchError, match="the baseline NumPy is no function, but of type int"):
            measure(wrong)
    bench = kernel.bench({"NumPy": lambda: np.add(x, 1)}, without=["coalesce"])
    assert [row["label"] for row in bench.records()] == ["add_up", "without coalesce", "NumPy"]
    history = kernel.history()
    assert history.versions and history.records()[-1]["what"] == "cell"
    for made in (found, sizes, bench, history):
        bundle = made._repr_mimebundle_()
        assert len(bundle["text/plain"]) < 2000 and bundle[MIME]["kind"] == made.key
    for wrong, said in (
        ({"BLOCK": [1], "num_warps": [1], "num_stages": [1]}, "one or two axes"),
        ({"BLOCK": []}, "one or two axes"),
        ({"NOTHING": [1]}, "no such constant"),
        ({"BLOCK": [64], "check": bool}, "needs launch="),
    ):
        with pytest.raises(LaunchError, match=said):
            kernel.sweep(**wrong)
    with pytest.raises(LaunchError, match="no optional pass"):
        kernel.bench(without=["nothing"])

    @blocknb.kernel
    def never(x):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(LaunchError, match="there is none"):
        never.bench()
    assert "No cell" in never.history().text()


# ---- static pages and short texts


def test_a_static_diff_marks_lines_by_sign_and_escapes_them() -> None:
    page = static_diff.rendered(("k@1", "a\nb <i>\nc\n"), ("k@2", "a\nb\nc\n"))
    assert "<del>- b &lt;i&gt;</del>\n<ins>+ b</ins>" in page and "@@ -1,3 +1,3 @@" in page and "<i>" not in page
    assert "identical" in static_diff.rendered(("a", "x"), ("b", "x"))
    long = static_diff.rendered(("a", ""), ("b", "\n".join(f"line {i}" for i in range(5000))), 4000)
    assert len(long) < 6000 and "more lines of the diff are omitted" in long


def test_objects_print_in_at_most_2_kb(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from blocknb.notebook import history
    from blocknb.notebook.observe import record_of

    run_cell(shell, monkeypatch, "", LAUNCH)
    kernel = shell.user_ns["add_up"]
    trace, record = kernel.latest.retarget("sm_90a").trace, record_of(kernel)
    (version, *_) = history.versions(kernel)
    objects = [
        kernel, kernel.latest, kernel.last_launch, trace, trace.stages, trace.stages[0], trace.stages[0].after, trace.resources,
        trace.notes[:4], trace.sass, record, record.latest, version, version.card, kernel.history(), trace.target,
    ]  # fmt: skip
    for one in objects:
        shown = shell.display_formatter.format(one)[0].get("text/plain", "")
        assert len(repr(one)) < 2000 and len(shown) < 2500, type(one)


# ---- repetitions


def test_a_live_card_repeats_its_launch_before_the_next_cell(shell: Any, monkeypatch: Any) -> None:  # noqa: F811
    monkeypatch.setattr(extension, "answers", [extension.Announcement("1", 4)])
    monkeypatch.setattr(repeats, "BEFORE_CELL", repeats.SECONDS)  # the first launch may be slow on a loaded machine
    run_cell(shell, monkeypatch, "", LAUNCH)
    record = observe.record_of(shell.user_ns["add_up"])
    assert record is not None and record.latest is not None
    assert record.latest.repeats is None  # while the page paints the card
    shell.run_cell("total = None").raise_error()
    assert record.latest.repeats is not None and record.latest.why == ""
