"""Benchmark of the backward pass of Triton's tutorial 06 (`staged_gradients`): the same source compiled by blocknb and by Triton."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blocknb.bench.suite import attention, staged_gradients
from blocknb.bench.suite.triton_source import loaded, rewritten
from blocknb.profile.timing import interleaved

SHAPES = ((4096, 64), (16384, 64))  # tokens and head dimension
SEEDS = (1, 2, 3)
TRITON = "Triton"


def arrays(torch: Any, tokens: int, head: int, causal: bool) -> dict[str, Any]:
    """Random inputs, and what the tutorial has computed before the backward pass: out, the logarithms and the scaled k."""
    shape = attention.sizes(tokens, head)
    made = {name: torch.randn(*shape, device="cuda", dtype=torch.float16) for name in ("q", "k", "v", "dout")}
    made |= {"out": torch.empty_like(made["q"]), "logsumexp": torch.empty(*shape[:3], device="cuda")}
    attention.run_forward(made, made, causal)
    made["logs"] = made["logsumexp"] / math.log(2)
    made["scaled"] = made["k"] * (head**-0.5 / math.log(2))
    return made


def call(module: Any, made: dict[str, Any], found: dict[str, Any], causal: bool) -> Callable[[], None]:
    """A backward pass by the kernels of a module, which fills the arrays of `found`."""
    inputs = [made[name] for name in ("q", "k", "v", "out", "logs", "dout")]
    outputs = [found[name] for name in ("dq", "dk", "dv")]
    deltas, scale = made["logs"].new_empty(made["logs"].shape), made["q"].shape[-1] ** -0.5
    return functools.partial(module.staged_gradients, *inputs, *outputs, made["scaled"], deltas, causal, scale)


def wrong(torch: Any, made: dict[str, Any], found: dict[str, Any], causal: bool) -> str:
    """Compares one random head with float64. Returns an error text, or ""."""

    def exact(batch: int, head: int) -> tuple[Any, ...]:
        q, k, v, dout = (made[name][batch, head].double() for name in ("q", "k", "v", "dout"))
        return attention.gradients(torch, q, k, v, dout, causal)

    return attention.compared(torch, {name: value.double() for name, value in found.items()}, exact)


def measure(rounds: int = 30, triton: bool = True) -> list[dict[str, Any]]:
    """A row per mask, shape and seed: milliseconds of blocknb, and with `triton` those of Triton, and their ratio.

    Raises ValueError without torch or Triton, and for a wrong result."""
    try:
        torch = importlib.import_module("torch")
        if triton:
            importlib.import_module("triton")
    except ImportError as error:
        raise ValueError(f"this benchmark needs torch and Triton ({error})") from None
    modules: dict[str, Any] = {"blocknb": staged_gradients}
    if triton:
        modules[TRITON] = loaded("staged", rewritten(Path(staged_gradients.__file__).read_text(), "triton"))
    rows = []
    for causal in (True, False):
        for tokens, head in SHAPES:
            for seed in SEEDS:
                torch.manual_seed(seed)
                made, calls = arrays(torch, tokens, head, causal), dict[str, Callable[[], None]]()
                for name, module in modules.items():
                    found = {x: torch.full_like(made["q"], math.nan) for x in ("dq", "dk", "dv")}
                    calls[name] = call(module, made, found, causal)
                    calls[name]()
                    if why := wrong(torch, made, found, causal):
                        raise ValueError(f"{name}, {tokens} x {head}, seed {seed}: {why}")
                times = interleaved(calls, gpu=True, rounds=rounds, warmup=2).complete()
                medians = {name: times[name].median for name in calls}
                row: dict[str, Any] = {
                    "shape": f"{tokens}x{head}",
                    "mask": "causal" if causal else "none",
                    "seed": seed,
                }
                row |= {f"{name}, ms": median for name, median in medians.items()}
                rows.append(row | ({f"{TRITON} / blocknb": medians[TRITON] / medians["blocknb"]} if triton else {}))
    return rows
