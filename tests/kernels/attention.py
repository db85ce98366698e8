"""The ready-made attention kernels, forward and backward: grouped heads, masks, partial tiles."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from blocknb.kernels.attention import attention_kernel
from blocknb.kernels.attention_gradients import gradients_kernel, numbers_kernel, query_gradients_kernel, summed_kernel
from kernels.base import case, normal, poison, wide


def strides(x):
    return tuple(step // x.itemsize for step in x.strides[:3])


def visible(queries, keys, shift):
    i, j = np.ogrid[:queries, :keys]
    return np.ones((queries, keys), bool) if shift is None else j <= i + shift


def exact(q, k, v, shift=None):
    """Returns out, log(sum(exp(scores))) and the weights in float64; a query without keys has zeros and minus infinity."""
    q, k, v = (wide(x) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.where(visible(q.shape[2], k.shape[2], shift), q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5, -np.inf)
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = powers.sum(axis=3, keepdims=True)
    weights = powers / np.where(total == 0, 1.0, total)
    with np.errstate(divide="ignore", invalid="ignore"):
        return weights @ v, (np.log(total) + np.where(total == 0, 0.0, top))[..., 0], weights


def exact_gradients(q, k, v, dout, shift=None):
    """Returns dq, dk and dv in float64."""
    out, _, p = exact(q, k, v, shift)
    group, dout = q.shape[1] // k.shape[1], wide(dout)
    keys, values = (np.repeat(wide(x), group, axis=1) for x in (k, v))
    ds = p * (dout @ values.swapaxes(2, 3) - (dout * out).sum(axis=3, keepdims=True)) * q.shape[3] ** -0.5

    def shared(x):
        return x.reshape(x.shape[0], k.shape[1], group, *x.shape[2:]).sum(axis=2)

    return ds @ keys, shared(ds.swapaxes(2, 3) @ wide(q)), shared(p.swapaxes(2, 3) @ dout)


def sizes(queries, keys, width, group, shift):
    scale = width**-0.5 / math.log(2)
    return {"scale": scale, "queries": queries, "keys": keys, "width": width, "group": group, "shift": shift or 0}


def tile(shift, rows, columns, block):
    return {"CAUSAL": shift is not None, "ROWS": rows, "COLUMNS": columns, "WIDTH": block}


def arrays(rng, dtype, heads, shared, queries, keys, width):
    """Returns q, k and v with the memory order (rows, heads)."""
    q = normal(rng, (1, heads, queries, width), dtype)
    k, v = (normal(rng, (1, keys, shared, width), dtype).swapaxes(1, 2) for _ in range(2))
    return q, k, v


def forward_case(
    name, dtype, heads, shared, queries, keys, width, block, rows, columns, shift=None, kept=True, **options
):
    def make(rng):
        q, k, v = arrays(rng, dtype, heads, shared, queries, keys, width)
        out = poison(q.shape, dtype)
        found = {"q": q, "k": k, "v": v, "out": out, "logsumexp": poison(q.shape[:3], np.float32) if kept else None}
        found |= {f"{x}_at": strides(found[x]) for x in ("q", "k", "v", "out")}
        return found | sizes(queries, keys, width, heads // shared, shift) | tile(shift, rows, columns, block)

    def reference(x):
        out, logsumexp, _ = exact(x["q"], x["k"], x["v"], shift)
        return {"out": out} | ({"logsumexp": logsumexp} if kept else {})

    grid = (-(-queries // rows), heads, 1)
    tolerance = 2e-2 if dtype == ml_dtypes.bfloat16 else 3e-3
    case(
        f"attention_{name}",
        attention_kernel,
        make,
        reference,
        grid=grid,
        options=options,
        rtol=tolerance,
        atol=tolerance,
    )


forward_case("masked", np.float16, 2, 1, 100, 90, 48, 64, 64, 32, -7, num_warps=4, num_stages=2)
forward_case("whole", np.float16, 1, 1, 70, 96, 32, 32, 64, 32, kept=False, num_warps=4)
forward_case("odd", np.float16, 1, 1, 70, 80, 40, 64, 64, 32, num_warps=4, num_stages=2)
forward_case("wide", ml_dtypes.bfloat16, 1, 1, 128, 140, 128, 128, 128, 32, 12, num_warps=8, num_stages=2)


def numbers_of(logsumexp, deltas):
    """Of each head a line of the logarithms of the queries' sums, in units of log2, and a line of deltas; entries after the last query
    contribute nothing."""
    heads, queries = logsumexp.shape
    padded = -(-queries // 128) * 128
    found = np.zeros(heads * 2 * padded + 128, np.float32)
    own = found[: heads * 2 * padded].reshape(heads, 2, padded)
    own[:, 0] = np.inf
    own[:, 0, :queries], own[:, 1, :queries] = logsumexp / math.log(2), deltas
    return found


def as_sums(dq, block, in_rows):
    """The sums of dq in the kernel's order: the elements of a product that a thread holds are contiguous, and not scaled yet."""
    _, heads, queries, width = dq.shape
    padded = np.zeros((heads, -(-queries // 128) * 128, block))
    padded[:, :queries, :width] = dq[0] / width**-0.5
    return padded if in_rows else padded.reshape(heads, -1, 8, block // 8, 8).swapaxes(2, 3).reshape(padded.shape)


def gradient_case(
    name, kernel, outputs, grid, dtype, heads, shared, queries, keys, width, block, rows, columns, shift, ahead=None,
    boxes=False, **options,
):  # fmt: skip
    def make(rng):
        q, k, v = arrays(rng, dtype, heads, shared, queries, keys, width)
        dout = normal(rng, q.shape, dtype)
        out, logsumexp, _ = exact(q, k, v, shift)
        found = {"q": q, "k": k, "v": v, "dout": dout} | {
            x: poison((q if x == "dq" else k).shape, dtype) for x in outputs if x != "sums"
        }
        at = {f"{x}_at": strides(found[x]) for x in found}
        found["numbers"] = numbers_of(logsumexp[0], (wide(dout) * out).sum(axis=3)[0])
        if kernel is gradients_kernel:
            padded = (heads, -(-queries // 128) * 128, block)
            steps = (heads * padded[1] * block, padded[1] * block, block)
            found |= {"AHEAD": bool(ahead), "sums_at": steps if boxes else None}
            found["sums"] = np.zeros(padded, np.float32) if "sums" in outputs else None
        return found | at | sizes(queries, keys, width, heads // shared, shift) | tile(shift, rows, columns, block)

    def reference(x):
        found = dict(
            zip(("dq", "dk", "dv"), exact_gradients(*(x[n] for n in ("q", "k", "v", "dout")), shift), strict=True)
        )
        found["sums"] = as_sums(found["dq"], block, boxes)
        return {output: found[output] for output in outputs}

    tolerance = 4e-2 if dtype == ml_dtypes.bfloat16 else 5e-3
    if "sums" in outputs:
        tolerance *= 4  # not scaled yet
    case(f"attention_{name}", kernel, make, reference, grid=grid, options=options, rtol=tolerance, atol=tolerance)


KEYS, BOTH = ("dk", "dv"), ("dk", "dv", "sums")
gradient_case(
    "key_gradients", gradients_kernel, KEYS, (2, 1, 1), np.float16, 2, 1, 70, 90, 48, 64, 32, 64, -7, num_warps=4
)
gradient_case(
    "key_gradients_wide", gradients_kernel, KEYS, (1, 1, 1), ml_dtypes.bfloat16, 1, 1, 140, 128, 64, 64, 32, 128,
    None, num_warps=8, num_stages=2,
)  # fmt: skip
gradient_case(
    "query_gradients", query_gradients_kernel, ("dq",), (2, 2, 1), np.float16, 2, 1, 100, 70, 48, 64, 64, 32, -7,
    num_warps=4,
)  # fmt: skip
gradient_case(
    "key_gradients_tf32", gradients_kernel, KEYS, (1, 1, 1), np.float32, 1, 1, 70, 64, 32, 32, 32, 64, None, num_warps=4
)
gradient_case("gradients", gradients_kernel, BOTH, (2, 1, 1), np.float16, 2, 1, 70, 90, 48, 64, 32, 64, -7, num_warps=4)
gradient_case(
    "gradients_ahead", gradients_kernel, BOTH, (2, 1, 1), ml_dtypes.bfloat16, 1, 1, 140, 200, 64, 64, 64, 128, None, True,
    num_warps=8, num_stages=2,
)  # fmt: skip
gradient_case(
    "gradients_boxes", gradients_kernel, BOTH, (2, 1, 1), np.float16, 1, 1, 100, 90, 48, 64, 64, 64, 0,
    boxes=True, num_warps=4, num_stages=2,
)  # fmt: skip
gradient_case(
    "gradients_long", gradients_kernel, BOTH, (1, 1, 1), np.float16, 1, 1, 130, 64, 128, 128, 64, 64, 0, num_warps=8,
    num_stages=2,
)  # fmt: skip


def _numbers_make(rng):
    out, dout = (normal(rng, (1, 2, 70, 40), np.float16) for _ in range(2))
    at = {"out_at": strides(out), "dout_at": strides(dout), "queries": 70, "width": 40, "ROWS": 64, "WIDTH": 64}
    found = {"logsumexp": normal(rng, (1, 2, 70)), "numbers": poison((640,), np.float32)}
    return {"out": out, "dout": dout, "sums": poison((2, 128, 64), np.float32)} | found | at


def _numbers_reference(x):
    deltas = (wide(x["out"]) * wide(x["dout"])).sum(axis=3)
    numbers = numbers_of(wide(x["logsumexp"])[0], deltas[0])
    numbers[512:] = x["numbers"][512:]  # unused
    return {"numbers": numbers, "sums": np.zeros((2, 128, 64))}


case("attention_numbers", numbers_kernel, _numbers_make, _numbers_reference, grid=(2, 2, 1), rtol=1e-4, atol=1e-4)


def _summed_make(rng):
    found = {"dq": poison((1, 2, 70, 40), np.float16), "sums": normal(rng, (2, 128, 64))}
    return found | {
        "dq_at": strides(found["dq"]),
        "sums_at": None,
        "scale": 0.25,
        "queries": 70,
        "width": 40,
        "ROWS": 64,
        "WIDTH": 64,
    }


def _summed_reference(x):
    split = wide(x["sums"]).reshape(2, 16, 8, 8, 8).swapaxes(2, 3).reshape(2, 128, 64)
    return {"dq": split[None, :, :70, :40] * 0.25 * math.log(2)}


case("attention_summed", summed_kernel, _summed_make, _summed_reference, grid=(2, 2, 1), rtol=2e-3, atol=2e-3)
