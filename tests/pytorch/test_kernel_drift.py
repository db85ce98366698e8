"""The drift of fused kernels: their errors against their operators in float64, next to those of single operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_models import MODELS, loss_of

import blocknb.torch
from blocknb.torch.inductor import drift, launched

pytestmark = pytest.mark.own_count


def drifts_of(function, *args, **options):
    return blocknb.torch.kernels(torch.compile(function, backend=blocknb.torch.backend, **options), *args).drift()


def test_errors_are_those_against_float64():
    torch.manual_seed(3)
    x = torch.randn(40, 300)

    def f(x):
        return (x.exp() / 3 + 1).sum(-1)

    (row,) = drifts_of(f, x)
    wide = f(x.double())
    (kernel,) = blocknb.torch.kernels(torch.compile(f, backend=blocknb.torch.backend), x)
    fused = torch.compile(f, backend=blocknb.torch.backend)(x)
    spacing = torch.tensor([torch.nextafter(v, v.new_tensor(torch.inf)) - v for v in wide.float()]).double()
    assert row.error == pytest.approx((fused - wide).abs().max().item(), rel=1e-12)
    assert row.ulps == pytest.approx(((fused - wide).abs() / spacing).max().item(), rel=0.01)
    assert row.eager_error == pytest.approx((f(x) - wide).abs().max().item(), rel=1e-12)
    assert (row.kernel, row.dtype, row.why) == (kernel.name, "float32", "")
    assert row.operator.startswith("sum")
    assert "test_kernel_drift.py" in row.line
    assert "return (x.exp() / 3 + 1).sum(-1)" in row.line


def test_fusion_in_half_precision_rounds_once():
    torch.manual_seed(0)
    x = torch.randn(64, 200, dtype=torch.bfloat16)
    (row,) = drifts_of(lambda x: x * 1.7 + x * x - x / 3, x)
    assert row.ulps <= 0.51
    assert row.eager_ulps > 1
    assert row.better
    assert drifts_of(lambda x: x + 1, x)[0].better is None


@pytest.mark.full
def test_what_cannot_be_compared_says_why():
    torch.manual_seed(0)
    x = torch.randn(16, 40)
    found = drifts_of(lambda x: (F.dropout(x * 2, 0.5), (x > 1), x.sin()), x)
    reasons = [row.why for row in found]
    assert any("draws random numbers" in why for why in reasons)
    assert any("not a floating-point number" in why for why in reasons)
    assert any(row.error is not None for row in found)
    table = repr(found)
    assert table.count("not compared: ") == sum(map(bool, reasons)) >= 2
    assert "fusion is" in table.splitlines()[0]


@pytest.mark.full
def test_a_wrong_kernel_has_a_large_drift(monkeypatch):
    x = torch.linspace(0, 1, 100)
    found = blocknb.torch.kernels(torch.compile(lambda x: x.cos() + 2, backend=blocknb.torch.backend), x)
    run = drift.edited.runner

    def broken(*args):
        launch = run(*args)

        def wrong(values):
            launch(values)
            values["out_ptr0"][7] += 0.25

        return wrong

    monkeypatch.setattr(drift.edited, "runner", broken)
    (row,) = found.drift()
    assert row.error == pytest.approx(0.25, rel=1e-5)
    assert row.better is False


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dynamic"), [("small_gpt", True), ("convnet", False), ("rms_norm", False), ("gathered", True)]
)
def test_every_output_of_a_model_drifts_little_or_has_a_reason(name, dynamic):
    torch.manual_seed(0)
    model, x = MODELS[name]()
    compiled = torch.compile(model, backend=blocknb.torch.backend, dynamic=dynamic)
    found = blocknb.torch.kernels(lambda: loss_of(compiled(x)).backward()).drift()
    compared = [row for row in found if not row.why]
    assert len(compared) >= len(found) // 3
    assert {bool(row.why) or row.error is not None for row in found} == {True}
    for row in compared:
        assert row.error < 1e-5, row
        assert row.error <= 20 * row.eager_error + 1e-6, row


@pytest.mark.full
def test_a_kernel_without_a_launch_has_no_drift():
    f = torch.compile(lambda x: x.sinh() - 4, backend=blocknb.torch.backend)
    f(torch.ones(30))
    with launched.recorded(keep_bytes=10) as record:
        f(torch.ones(30))
    (row,) = record.kernels.drift()
    assert "the record keeps at most 10" in row.why
    kernel = next(k for k in blocknb.torch.kernels() if k.name == row.kernel)
    assert [r.why for r in drift.kernel_drift(kernel)] == ["not launched in a record"]
