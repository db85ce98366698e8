"""`kernel.tune(..., client=client)` for a kernel without `@autotune`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache


def plus_one(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def test_a_plain_kernel_is_tuned_on_the_workers(client, tmp_path, monkeypatch) -> None:
    own = cache.Cache(tmp_path)  # without the choices of earlier runs of this test
    monkeypatch.setattr(cache, "shared", lambda: own)
    kernel, x = blocknb.kernel(plus_one), np.zeros(5000, np.float32)
    configs = [Config({"BLOCK": block}) for block in (64, 100, 4096)]
    with pytest.warns(RuntimeWarning, match="leaves out BLOCK=100"):
        found = kernel.tune(x, x.copy(), 5000, grid=grid, configs=configs, client=client)
    assert [trial.config for trial in found.trials] == configs and found.best in (configs[0], configs[2])
    assert found.trials[0].rounds + found.trials[2].rounds > 4
    out = np.empty_like(x)
    kernel[grid](x, out, 5000, **found.launch_kwargs())
    assert (out == 1).all()
