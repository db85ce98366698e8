"""A fault in a generated kernel names the user's line, the operators and the kernel; it runs eager only if the user asks for it."""

from __future__ import annotations

import pytest
import torch

import blocknb.torch
from blocknb.compat import host
from blocknb.errors import CompilationError

pytestmark = pytest.mark.own_count


@pytest.fixture
def broken(monkeypatch):
    def compile(*_, **__):
        raise CompilationError("this fault is forced")

    monkeypatch.setattr(host, "compile", compile)


def test_the_error_names_the_line_the_operators_and_the_kernel(broken):
    f = torch.compile(lambda x: (x * 3.25).sigmoid(), backend=blocknb.torch.backend)
    with pytest.raises(
        Exception, match=r"(?s)this fault is forced.*triton_poi_fused_\w+, which fuses aten.mul, aten.sigmoid.*\.py:\d+"
    ):
        f(torch.ones(11))


def test_a_graph_runs_eager_if_the_user_asks_for_it(broken):
    from blocknb.torch.inductor.backend import BlocknbFallback

    f = torch.compile(lambda x: (x * 4.25).sigmoid(), backend=blocknb.torch.backend, options={"fallback": True})
    with pytest.warns(BlocknbFallback, match="this fault is forced"):
        torch.testing.assert_close(f(torch.ones(11)), torch.full((11,), 4.25).sigmoid())
