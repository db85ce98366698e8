"""Rooflines: points and roofs for known numbers, and `%roofline` in a shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure
from test_sweep import CELL, LAUNCH, accumulate, launched, ticking

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.kernels import add, matmul, softmax
from blocknb.kernels.matmul import matmul_kernel
from blocknb.notebook import plots
from blocknb.notebook import roofline as module
from blocknb.notebook.document import MIME
from blocknb.profile import ceilings
from blocknb.profile.ceilings import Ceiling, Ceilings
from blocknb.profile.microbenchmarks import product_kernel
from blocknb.profile.roof import arithmetic

LIMITS = Ceilings(
    "a device",
    "2026-01-01T00:00:00+00:00",
    (
        Ceiling("memory", "GB/s", 10.0, 9.0, 11.0, "a copy"),
        Ceiling("cache", "GB/s", 100.0, 90.0, 110.0, "reading again"),
        Ceiling("FP32", "TFLOP/s", 0.1, 0.09, 0.11, "multiply-adds"),
    ),
    (("tensor fp16", "no such unit"),),
)


def test_a_launch_is_a_point_below_the_roof_of_memory() -> None:
    call, total = launched(1000)
    made = module.roofline(call, limits=LIMITS, clock=ticking(0.0024))
    (point,) = made.points
    assert (point.flops, point.bytes, point.milliseconds) == (1000, 12000, 0.0024)
    assert point.roof == "memory" and point.percent == pytest.approx(50)
    assert not total.any()
    part = made.part
    assert part["device"] == "a device" and [c["name"] for c in part["ceilings"]] == ["memory", "cache", "FP32"]
    assert part["points"][0]["issued_bytes"] == 12000
    assert (
        "tensor fp16 was not measured: no such unit." in part["note"]
        and "hardware counters: not available" in part["note"]
    )


def test_launches_of_one_kernel_have_times_of_their_own() -> None:
    short, _ = launched(100)
    long, _ = launched(1000)
    times = iter([0.001, 0.004, 0.002] * 100)
    order: dict[Any, float] = {}

    def clock(call: Callable[[], Any]) -> float:
        return order.setdefault(call, next(times))

    def both() -> None:
        short()
        long()

    made = module.roofline(both, baselines={"accumulate": lambda: None}, limits=LIMITS, clock=clock)
    points = {point.label: point for point in made.points}
    assert list(points) == ["accumulate (2)", "accumulate (3)", "accumulate"]
    assert [points[f"accumulate ({i})"].flops for i in (2, 3)] == [100, 1000]
    assert len({point.milliseconds for point in points.values()}) == 3


def test_ceilings_that_a_launch_exceeds_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def again(device: int, old: Ceilings) -> Ceilings:
        measured.append(device)
        return replace(
            old, measured="2026-02-01T00:00:00+00:00", items=(replace(old.items[0], value=40.0), *old.items[1:])
        )

    monkeypatch.setattr(module, "ceilings", lambda device: LIMITS)
    monkeypatch.setattr(module, "remeasured", again)
    made = module.roofline(launched(1000)[0], clock=ticking(0.0006))  # 20 GB/s, above 10
    (point,) = made.points
    assert measured == [-1] and made.limits.get("memory").value == 40.0 and point.percent == pytest.approx(50)
    assert (
        "accumulate was above the ceilings of 2026-01-01T00:00:00+00:00, so these were measured again"
        in made.part["note"]
    )
    assert made.part["measured"].startswith("2026-02-01") and made.part["age"] > 0 and " ago" in made.text()
    below = module.roofline(launched(1000)[0], clock=ticking(0.0024))
    assert len(measured) == 1 and "measured again" not in below.part["note"].split("hardware")[0]


def test_a_compute_bound_launch_has_an_arithmetic_roof() -> None:
    a, b, c = (np.ones((128, 128), np.float32) for _ in range(3))
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 4}
    made = module.roofline(
        lambda: matmul_kernel[(4,)](a, b, c, 128, 128, 128, 128, 1, 128, 1, 128, 1, **blocks),
        limits=LIMITS,
        clock=ticking(0.1),
    )
    (point,) = made.points
    assert point.flops == 2 * 128**3 and point.roof == "FP32"
    assert point.percent == pytest.approx(100 * 2 * 128**3 / 0.1e-3 / 0.1e12, abs=0.1)


def ready_made(
    size: int, rows: int, columns: int, m: int, n: int, k: int
) -> dict[str, tuple[Callable[[], Any], int, int]]:
    """Launches of add, softmax and matmul: a call, the fewest elements that memory moves, and the operations of its dots."""
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    x, y, out = ones(size), ones(size), ones(size)
    wide, result = ones(rows, columns + 3)[:, :columns], ones(rows, columns)  # rows that do not touch
    a, b, c = ones(m, k), ones(k, n), ones(m, n)
    return {
        "add_kernel": (lambda: add(x, y, out), 3 * size, 0),
        "softmax_kernel": (lambda: softmax(wide, result), 2 * rows * columns, 0),
        "matmul_kernel": (lambda: matmul(a, b, c), m * k + k * n + m * n, 2 * m * n * k),
    }


@pytest.mark.parametrize(
    "sizes",
    [
        (1 << 16, 64, 1024, 256, 256, 256),  # whole blocks: 3 N, 2 M N, 2 N^3 over 3 N^2
        (100_003, 37, 1000, 200, 133, 77),  # masks in every direction
        (1, 1, 1, 1, 1, 1),
    ],
)
def test_points_have_the_counts_of_the_formulas_with_any_mask(sizes: tuple[int, ...]) -> None:
    for name, (call, elements, flops) in ready_made(*sizes).items():
        (point,) = module.roofline(call, limits=LIMITS, clock=ticking(0.01)).points
        assert (point.label, point.bytes) == (name, 4 * elements)
        assert point.flops == flops or not flops


@pytest.mark.full
def test_no_kernel_is_above_its_roof_on_this_machines_cpu() -> None:
    """Arrays are larger than caches. Each roof is the best of three measurements, because the machine may be busy."""
    launches = ready_made(1 << 25, 8192, 4096, 1536, 1536, 1536)
    measured, times = [ceilings.measure()], {}
    for name, (call, *_) in launches.items():
        (point,) = module.roofline(call, limits=measured[0]).points
        times[name] = point.milliseconds
        measured.append(ceilings.measure())
    best = [max(filter(None, (m.get(item.name) for m in measured)), key=lambda c: c.high) for item in measured[0].items]
    roofs = Ceilings("this CPU", "now", tuple(replace(item, value=item.high) for item in best))
    for name, (call, *_) in launches.items():
        (point,) = module.roofline(call, limits=roofs, clock=ticking(times[name])).points
        assert point.percent <= 100 * module.ERROR, (point, roofs)


def test_a_baseline_does_the_same_work_and_a_point_above_its_roof_is_explained() -> None:
    made = module.roofline(launched(1000)[0], baselines={"peer": lambda: None}, limits=LIMITS, clock=ticking(0.0006))
    assert [(p.label, p.kind, p.flops) for p in made.points] == [
        ("accumulate", "kernel", 1000),
        ("peer", "baseline", 1000),
    ]
    assert "above the ceiling: accumulate, peer." in made.part["note"]
    assert "peer (baseline)" in made.text() and "200 % of memory" in made.text()


def test_unknown_counts_have_a_note() -> None:
    @blocknb.kernel
    def gather(x, index, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + tl.load(index + i)))

    x, index, out = np.ones(64, np.float32), np.zeros(64, np.int32), np.zeros(64, np.float32)
    made = module.roofline(lambda: gather[(1,)](x, index, out, BLOCK=64), limits=LIMITS, clock=ticking())
    assert made.points[0].bytes is None and made.points[0].percent is None
    assert "the byte count of gather is unknown: the address of the load" in made.part["note"]
    assert "gather has no floating-point operations" in made.part["note"] and "unknown" in made.text()
    assert plots.images({"roofline": made.part})


def test_an_interrupt_keeps_the_points_that_were_timed() -> None:
    calls = 0

    def clock(call: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return 1.0

    made = module.roofline(launched()[0], baselines={"peer": lambda: None}, limits=LIMITS, clock=clock)
    assert [p.label for p in made.points] == ["accumulate"] and "interrupted" in made.part["note"]


def test_a_kernel_without_a_launch_gives_an_error_with_a_hint() -> None:
    @blocknb.kernel
    def never(x):
        tl.store(x, 1.0)

    with pytest.raises(LaunchError) as caught:
        module.roofline(never, limits=LIMITS)
    assert "blocknb.roofline(lambda" in str(caught.value.hint)


def test_blocknb_roofline_displays_itself() -> None:
    found = blocknb.roofline(launched()[0], limits=LIMITS, clock=ticking())
    bundle = found._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png", MIME} and "accumulate" in bundle["text/plain"]
    axes = found.plot(Figure().subplots())
    assert axes.get_xscale() == axes.get_yscale() == "log"
    texts = [t.get_text().strip() for t in axes.texts]
    assert "accumulate" in texts and any(t.startswith("memory: 10 GB/s") for t in texts)


def test_tensor_cores_are_found_in_the_code_for_a_gpu() -> None:
    arrays, sizes = ["*fp16:16"] * 3, ["i32:16"] * 3
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 4}
    compiled = matmul_kernel.compile(*arrays, *sizes, *["i32:16", 1] * 3, **blocks, target="sm_80")
    assert arithmetic(compiled) == "tensor fp16"
    for form, out, name in ((tl.int8, "*i32:16", "int8"), (tl.float8e5, "*fp32:16", "fp8")):
        tile = {"M": 64, "N": 32, "K": 64, "FORM": form}
        compiled = product_kernel.compile("*u8:16", "*u8:16", out, "i32", **tile, target="sm_90a")
        assert arithmetic(compiled) == f"tensor {name}"
    plain = accumulate.compile("*fp32", "*fp32", "i32", BLOCK=64, target="sm_80")
    assert arithmetic(plain) == "FP32"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = InteractiveShell.instance()
    blocknb.load_ipython_extension(made)
    made.user_ns.update(
        np=np, blocknb=blocknb, tl=tl, x=np.ones(2000, np.float32), total=np.zeros(2000, np.float32), n=2000
    )
    monkeypatch.setattr(made, "display_pub", CapturingDisplayPublisher(shell=made))
    monkeypatch.setattr(module, "ceilings", lambda device: LIMITS)
    monkeypatch.setattr(module, "remeasured", lambda device, old: old)
    monkeypatch.setattr(module, "SECONDS", 0.02)
    return made


def test_the_magic_shows_a_card_with_versions_and_baselines_and_changes_nothing(shell: Any) -> None:
    for cell in (CELL.replace("add_up", "rising"), CELL.replace("add_up", "rising").replace("i = tl", "i = 0 + tl")):
        result = shell.run_cell(f"%%blockkernel\n{cell}{LAUNCH.replace('add_up', 'rising')}")
        assert result.success
    before = shell.user_ns["total"].copy()
    shell.run_line_magic("roofline", "rising --baseline np.add(x, total, out=total)")
    bundle = shell.display_pub.outputs[-1]["data"]
    part = bundle[MIME]["roofline"]
    assert [(p["label"], p["kind"]) for p in part["points"]] == [
        ("rising", "kernel"),
        ("np.add(x, total, out=total)", "baseline"),
        ("rising@1", "version"),
    ]
    assert all(p["bytes"] == 24000 and p["flops"] == 2000 for p in part["points"])
    assert "cannot be launched again" not in part["note"]
    assert (
        bundle[MIME]["show"] == ["roofline"]
        and "image/png" in bundle
        and "ceilings of a device" in bundle["text/plain"]
    )
    np.testing.assert_array_equal(shell.user_ns["total"], before)
    assert (before == 2).all()


def test_versions_are_timed_again_or_keep_the_times_of_their_cell(shell: Any) -> None:
    cells = [
        CELL.replace("add_up", "climbing").replace("i = tl", f"i = {extra}tl") for extra in ("", "0 + ", "0 + 0 + ")
    ]
    launch = LAUNCH.replace("add_up", "climbing")
    for cell, array in zip(cells, ("total", "other", "total"), strict=True):
        shell.user_ns["other"] = np.zeros(2000, np.float32)
        assert shell.run_cell(f"%%blockkernel\n{cell}{launch.replace('total', array)}").success
    assert shell.run_cell(f"%%blockkernel\n{cells[0]}{launch}").success  # back to the first
    versions = module.earlier(shell.user_ns["climbing"])
    assert [v.label for v in versions] == ["climbing@2", "climbing@3"]
    assert [v.replay is not None for v in versions] == [False, True]
    made = module.roofline(shell.user_ns["climbing"], versions=versions, limits=LIMITS, clock=ticking(0.5))
    assert [(p.label, p.kind) for p in made.points] == [
        ("climbing", "kernel"),
        ("climbing@2", "version"),
        ("climbing@3", "version"),
    ]
    assert made.points[2].milliseconds == 0.5 == made.points[0].milliseconds != made.points[1].milliseconds
    assert "climbing@2 cannot be launched again" in made.part["note"] and "climbing@3 cannot" not in made.part["note"]


def test_the_magic_needs_a_name(shell: Any) -> None:
    with pytest.raises(UsageError):
        shell.run_line_magic("roofline", "")


def test_roofs_close_to_each_other_share_a_label() -> None:
    peaks = {"tensor fp8": 1740.0, "FP32": 65.1, "tensor int8": 1840.0, "tensor fp16": 777.0, "tensor tf32": 403.0}
    labels = plots.roof_labels([{"name": name, "value": value} for name, value in peaks.items()])
    assert [level for level, _ in labels] == [65.1, 403.0, 777.0, 1840.0]
    assert [label.split(":")[0] for _, label in labels] == ["FP32", "tensor tf32", "tensor fp16", "tensor fp8"]
    assert "tensor int8" in labels[-1][1]
