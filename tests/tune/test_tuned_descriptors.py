"""Tuned kernels with host tensor descriptors, whose block sizes a configuration's hook sets before each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import TensorDescriptor
from blocknb.errors import LaunchError
from blocknb.tune import Config

SEEN: list[dict[str, Any]] = []


def set_blocks(nargs: dict[str, Any]) -> None:
    """The hook of a persistent product. It sets the blocks of the operands and of the result, halved for an epilogue in subtiles."""
    SEEN.append(dict(nargs))
    m, n, k = (nargs[f"BLOCK_{axis}"] for axis in "MNK")
    nargs["a_desc"].block_shape = [m, k]
    nargs["b_desc"].block_shape = [n, k]
    nargs["c_desc"].block_shape = [m, n // 2 if nargs.get("SUBTILE", False) else n]


@blocknb.kernel
def product(
    a_desc, b_desc, c_desc, M, N, K, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SUBTILE: tl.constexpr = False,
):  # fmt: skip
    across = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * across, PROGRAMS, flatten=True):
        row, column = tile // across * BLOCK_M, tile % across * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            acc = tl.dot(a_desc.load([row, k * BLOCK_K]), b_desc.load([column, k * BLOCK_K]).T, acc)
        if SUBTILE:
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c_desc.store([row, column], left.to(c_desc.dtype))
            c_desc.store([row, column + BLOCK_N // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([row, column], acc.to(c_desc.dtype))


CONFIGS = [
    Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "SUBTILE": s}, num_warps=4, pre_hook=set_blocks)
    for m, n, k, s in ((16, 32, 16, False), (32, 64, 16, True), (32, 16, 32, False))
]


def preferring(number: int) -> Callable[..., list[float]]:
    """A clock that runs each configuration and reports the one with this number as the fastest."""
    calls: list[int] = []

    def bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        calls.append(0)
        return [1.0 if len(calls) == number + 1 else 2.0] * len(quantiles)

    return bench


@pytest.fixture(autouse=True)
def forgotten() -> None:
    SEEN.clear()


def operands(dummy: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[TensorDescriptor]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((72, 48)).astype(np.float16), rng.standard_normal((80, 48)).astype(np.float16)
    c = np.full((72, 80), np.nan, np.float16)
    return a, b, c, [TensorDescriptor(x, x.shape, [x.shape[1], 1], dummy) for x in (a, b, c)]


@pytest.mark.parametrize("best", [0, 1, 2])
def test_hooks_set_descriptor_blocks_for_every_trial_and_for_the_launch(best: int) -> None:
    tuned = blocknb.autotune(CONFIGS, ["M", "N", "K"], do_bench=preferring(best))(product)
    a, b, c, descriptors = operands([1, 1])
    for launches in (1, 2):
        c[:] = np.nan
        tuned[(3,)](*descriptors, 72, 80, 48, PROGRAMS=3)
        np.testing.assert_allclose(
            c.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32).T, rtol=2e-3, atol=2e-2
        )
        assert tuned.best_config is CONFIGS[best]
        assert len(SEEN) == 2 * len(CONFIGS) + launches  # tuned once: all are compiled, then all are tried
    chosen = CONFIGS[best].kwargs
    assert descriptors[0].block_shape == [chosen["BLOCK_M"], chosen["BLOCK_K"]]
    assert [seen["BLOCK_M"] for seen in SEEN] == [16, 32, 32, 16, 32, 32, chosen["BLOCK_M"], chosen["BLOCK_M"]]


def test_the_hook_gets_all_arguments_and_constants_by_name() -> None:
    tuned = blocknb.autotune(CONFIGS[:1], ["M"])(product)
    _, _, _, descriptors = operands([1, 1])
    tuned[(3,)](*descriptors, 72, N=80, K=48, PROGRAMS=3)
    (seen,) = SEEN
    names = {
        "a_desc",
        "b_desc",
        "c_desc",
        "M",
        "N",
        "K",
        "PROGRAMS",
        "BLOCK_M",
        "BLOCK_N",
        "BLOCK_K",
        "SUBTILE",
        "num_warps",
    }
    assert names <= set(seen)
    assert seen["a_desc"] is descriptors[0]
    assert (seen["M"], seen["N"], seen["BLOCK_N"], seen["SUBTILE"], seen["num_warps"]) == (72, 80, 32, False, 4)


def test_an_interpreted_launch_calls_the_hook() -> None:
    tuned = blocknb.autotune(CONFIGS, ["M"])(product)
    a, b, c, descriptors = operands([1, 1])
    tuned[(2,)](*descriptors, 72, 80, 48, PROGRAMS=2, interpret=True)
    np.testing.assert_allclose(
        c.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32).T, rtol=2e-3, atol=2e-2
    )


def test_warmup_compiles_every_configuration_with_its_blocks() -> None:
    tuned = blocknb.autotune(CONFIGS, ["M"])(product)
    _, _, c, descriptors = operands([1, 1])
    made = tuned.warmup(*descriptors, 72, 80, 48, PROGRAMS=3, grid=(3,))
    assert [compiled.trace.signature["c_desc"] for compiled in made] == [
        f"tensordesc<fp16[{m},{n}]>:16" for m, n in ((16, 32), (32, 32), (32, 16))
    ]
    assert np.isnan(c).all()


def test_a_block_that_no_hook_has_set_is_an_error() -> None:
    _, _, _, descriptors = operands([1, 1])
    with pytest.raises(LaunchError, match="`a_desc` .* has 2 bytes of fp16, less than 16"):
        product[(3,)](*descriptors, 72, 80, 48, PROGRAMS=3, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
