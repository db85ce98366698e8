"""`kernel.from_torch`: a cell with the fused kernels of an eager function, compared with it before it is shown."""

from __future__ import annotations

import linecache
import re

import pytest
import torch
import torch.nn.functional as F

import blocknb
from blocknb.errors import LaunchError
from blocknb.torch.inductor import from_torch

pytestmark = pytest.mark.own_count


def rms_norm(x, weight, eps=1e-5):
    scale = (x.pow(2).mean(-1, True) + eps).rsqrt()
    return x * scale * weight, scale


def gated(x, a, b):
    return F.silu(x @ a) * 2 + (x @ b).sigmoid().sum(0)


def running(x):
    return (x * 0.05).cumsum(-1).sin()


def functions_of(text):
    file, body = f"<from {hash(text)}>", text.replace("%%blockkernel", "", 1)
    linecache.cache[file] = len(body), None, body.splitlines(keepends=True), file
    space = {"__name__": "cell"}
    exec(compile(body, file, "exec"), space)
    return space


def test_the_cell_has_readable_kernels_and_a_function_that_launches_them():
    torch.manual_seed(0)
    x, weight = torch.randn(24, 130), torch.randn(130)
    text = blocknb.kernel.from_torch(rms_norm, x, weight, 1e-3)
    assert text.startswith("%%blockkernel\n# The kernels of rms_norm (")
    assert "# eps is 0.001." in text
    assert "x = tl.load(x_ptr" in text
    assert "weight = tl.load(weight_ptr" in text
    assert "scale = (x.pow(2).mean(-1, True) + eps).rsqrt()" in text
    assert not re.search(r"\btmp\d|in_ptr|\brnumel\b|triton_heuristics|assert_size_stride", text)
    fused = functions_of(text)["fused_rms_norm"]
    other = torch.randn(24, 130)
    torch.testing.assert_close(fused(other, weight), rms_norm(other, weight, 1e-3))


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "shapes"),
    [(gated, ((8, 16), (16, 20), (16, 20))), (running, ((8, 5000),)), (F.layer_norm, ((4, 32), None))],
)
def test_several_kernels_products_and_helpers(function, shapes):
    torch.manual_seed(0)
    example = [[32] if shape is None else torch.randn(shape) for shape in shapes]
    text = blocknb.torch.from_torch(function, *example)
    made = functions_of(text)[f"fused_{function.__name__}"]
    given = [value for value in example if isinstance(value, torch.Tensor)]
    torch.testing.assert_close(made(*given), function(*example), rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_what_cannot_become_a_cell_says_why():
    weight, x = torch.ones(5), torch.randn(4, 5)
    with pytest.raises(LaunchError, match="reads a tensor that is not one of its arguments"):
        blocknb.torch.from_torch(lambda x: x * weight + 1, x)
    with pytest.raises(LaunchError, match="needs no generated kernel"):
        blocknb.torch.from_torch(lambda x: x @ x.T, x)
    with pytest.raises(LaunchError, match="do not give eager's result 0.*\n.*random numbers"):
        blocknb.torch.from_torch(lambda x: F.dropout(x, 0.5) + 1, torch.ones(64, 64))


@pytest.mark.full
def test_a_wrong_text_is_not_shown(monkeypatch):
    inherited = from_torch.definitions
    monkeypatch.setattr(from_torch, "definitions", lambda *a: inherited(*a).replace("* weight", "* weight * 1.001"))
    with pytest.raises(LaunchError, match="the kernels of rms_norm do not give eager's result 0"):
        blocknb.torch.from_torch(rms_norm, torch.randn(24, 130), torch.randn(130))
