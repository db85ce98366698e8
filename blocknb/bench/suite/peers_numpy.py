"""The benchmarks in NumPy and in numba, by name; a function takes inputs, then outputs, in the order of the definition, and fills them.

The NumPy functions write with `out=` into the outputs and into cached scratch arrays, so that they do not allocate. The numba functions
are plain loops with `parallel` and `fastmath`, which LLVM vectorizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.bench.suite import catalogue, decoding
from blocknb.bench.suite.catalogue import EPS, P
from blocknb.bench.suite.products import PRODUCTS

Peer = Callable[..., Any]
NUMPY: dict[str, Peer] = {}


def numpy_peer(function: Peer) -> Peer:
    NUMPY[function.__name__.removeprefix("_")] = function
    return function


@functools.cache
def scratch(name: str, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, np.float32)


@numpy_peer
def _add(x: Any, y: Any, out: Any) -> None:
    np.add(x, y, out=out)


@numpy_peer
def _copy(x: Any, out: Any) -> None:
    np.copyto(out, x)


@numpy_peer
def _sum(x: Any, out: Any) -> None:
    out[0] = np.sum(x)


def _weights(q: Any, k: Any, causal: bool) -> Any:
    scores = q @ k.swapaxes(2, 3)
    scores *= np.float32(q.shape[3] ** -0.5)
    if causal:
        scores[:, :, *np.triu_indices(q.shape[2], 1, k.shape[2])] = -np.inf
    scores -= np.max(scores, axis=3, keepdims=True)
    np.exp(scores, out=scores)
    scores /= np.sum(scores, axis=3, keepdims=True)
    return scores


def _attention(causal: bool) -> Peer:
    def forward(q: Any, k: Any, v: Any, out: Any) -> None:
        np.matmul(_weights(q, k, causal), v, out=out)

    return forward


def _attention_backward(causal: bool) -> Peer:
    def backward(q: Any, k: Any, v: Any, dout: Any, out: Any, logsumexp: Any, dq: Any, dk: Any, dv: Any) -> None:
        p = _weights(q, k, causal)
        np.matmul(p.swapaxes(2, 3), dout, out=dv)
        ds = dout @ v.swapaxes(2, 3)
        ds -= np.sum(dout * out, axis=3, keepdims=True)
        ds *= p
        ds *= np.float32(q.shape[3] ** -0.5)
        np.matmul(ds, k, out=dq)
        np.matmul(ds.swapaxes(2, 3), q, out=dk)

    return backward


NUMPY |= {
    "attention_forward": _attention(False), "attention_forward_causal": _attention(True),
    "attention_backward": _attention_backward(False), "attention_backward_causal": _attention_backward(True),
    **decoding.numpy_peers(),
}  # fmt: skip


@numpy_peer
def _softmax(x: Any, out: Any) -> None:
    column = scratch("column", (len(x), 1))
    np.max(x, axis=1, keepdims=True, out=column)
    np.subtract(x, column, out=out)
    np.exp(out, out=out)
    np.sum(out, axis=1, keepdims=True, out=column)
    np.divide(out, column, out=out)


@numpy_peer
def _layer_norm(x: Any, weight: Any, bias: Any, out: Any) -> None:
    column = scratch("column", (len(x), 1))
    np.mean(x, axis=1, keepdims=True, out=column)
    np.subtract(x, column, out=out)
    np.einsum("ij,ij->i", out, out, out=column[:, 0])
    np.sqrt(column / np.float32(x.shape[1]) + np.float32(EPS), out=column)
    np.divide(out, column, out=out)
    np.multiply(out, weight, out=out)
    np.add(out, bias, out=out)


@numpy_peer
def _rms_norm(x: Any, weight: Any, out: Any) -> None:
    column = scratch("column", (len(x), 1))
    np.einsum("ij,ij->i", x, x, out=column[:, 0])
    np.sqrt(column / np.float32(x.shape[1]) + np.float32(EPS), out=column)
    np.divide(x, column, out=out)
    np.multiply(out, weight, out=out)


@numpy_peer
def _layer_norm_backward(
    x: Any, weight: Any, dy: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any
) -> None:  # fmt: skip
    z, g = scratch("z", x.shape), scratch("g", x.shape)
    np.subtract(x, mean[:, None], out=z)
    np.multiply(z, rstd[:, None], out=z)
    np.einsum("ij,ij->j", dy, z, out=dweight)
    np.sum(dy, axis=0, out=dbias)
    np.multiply(dy, weight, out=g)
    inner = np.einsum("ij,ij->i", g, z)[:, None] / np.float32(x.shape[1])
    np.multiply(z, inner, out=z)
    np.subtract(g, z, out=dx)
    np.subtract(dx, np.mean(g, axis=1, keepdims=True), out=dx)
    np.multiply(dx, rstd[:, None], out=dx)


@numpy_peer
def _rms_norm_backward(x: Any, weight: Any, dy: Any, rstd: Any, dx: Any, dweight: Any) -> None:
    z, g = scratch("z", x.shape), scratch("g", x.shape)
    np.multiply(x, rstd[:, None], out=z)
    np.einsum("ij,ij->j", dy, z, out=dweight)
    np.multiply(dy, weight, out=g)
    inner = np.einsum("ij,ij->i", g, z)[:, None] / np.float32(x.shape[1])
    np.multiply(z, inner, out=z)
    np.subtract(g, z, out=dx)
    np.multiply(dx, rstd[:, None], out=dx)


@numpy_peer
def _cross_entropy(x: Any, classes: Any, losses: Any, logsumexp: Any) -> None:
    powers = scratch("z", x.shape)
    largest = np.max(x, axis=1, keepdims=True)
    np.subtract(x, largest, out=powers)
    np.exp(powers, out=powers)
    np.log(np.sum(powers, axis=1), out=logsumexp)
    np.add(logsumexp, largest[:, 0], out=logsumexp)
    np.subtract(logsumexp, x[np.arange(len(x)), classes], out=losses)


@numpy_peer
def _cross_entropy_backward(x: Any, classes: Any, dlosses: Any, logsumexp: Any, dx: Any) -> None:
    np.subtract(x, logsumexp[:, None], out=dx)
    np.exp(dx, out=dx)
    dx[np.arange(len(x)), classes] -= 1
    np.multiply(dx, dlosses[:, None], out=dx)


@numpy_peer
def _swiglu(gate: Any, up: Any, out: Any) -> None:
    np.negative(gate, out=out)
    np.exp(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.divide(gate, out, out=out)
    np.multiply(out, up, out=out)


@numpy_peer
def _rope(x: Any, cosines: Any, sines: Any, out: Any) -> None:
    half = x.shape[2] // 2
    part = scratch("half", (*x.shape[:2], half))
    a, b, c, s = x[:, :, :half], x[:, :, half:], cosines[:, None], sines[:, None]
    for (to, left, right), combine in (((out[:, :, :half], a, b), np.subtract), ((out[:, :, half:], b, a), np.add)):
        np.multiply(left, c, out=to)
        np.multiply(right, s, out=part)
        combine(to, part, out=to)


@numpy_peer
def _dropout(x: Any, out: Any) -> None:
    numbers = scratch("numbers", x.shape)
    np.random.default_rng().random(out=numbers, dtype=np.float32)
    np.multiply(x, np.float32(1 / (1 - P)), out=out)
    np.multiply(out, numbers >= P, out=out)


@numpy_peer
def _transpose(x: Any, out: Any) -> None:
    np.copyto(out, x.T)


def _product(a: Any, b: Any, out: Any) -> None:
    np.matmul(a, b, out=out)


def _scaled_product(a: Any, b: Any, a_scale: Any, b_scale: Any, out: Any) -> None:
    np.matmul(a, b, out=out)
    np.multiply(out, a_scale * b_scale, out=out)


@numpy_peer
def _gemm_grouped(a: Any, b: Any, ends: Any, out: Any) -> None:
    begin = 0
    for matrix, end in zip(b, ends, strict=True):
        np.matmul(a[begin:end], matrix, out=out[begin:end])
        begin = end


@numpy_peer
def _gemm_leaky(a: Any, b: Any, out: Any) -> None:
    np.matmul(a, b, out=out)
    np.maximum(out, np.multiply(out, np.float32(0.01), out=scratch("leak", out.shape)), out=out)


MULTIPLIED = [name for name in catalogue.BENCHMARKS if name.split("_")[0] in PRODUCTS and name not in NUMPY]
NUMPY |= {name: _product for name in MULTIPLIED if catalogue.BENCHMARKS[name].module != "quantized"}
NUMPY["gemm_fp8"] = _scaled_product


def _int8_weights(x: Any, w: Any, scales: Any, out: Any) -> None:
    out[...] = (x.astype(np.float32) @ w.astype(np.float32).T) * scales


def _int4_weights(x: Any, w: Any, scales: Any, out: Any) -> None:
    numbers = np.stack([w & 15, w >> 4], 2).reshape(*scales.shape, -1).astype(np.float32) - 8
    out[...] = x.astype(np.float32) @ (numbers * scales[:, :, None].astype(np.float32)).reshape(len(w), -1).T


NUMPY |= {"skinny_int8": _int8_weights, "skinny_int4": _int4_weights}


def numba_peers() -> dict[str, Peer]:
    """Compiled at the first call. Raises ImportError without numba."""
    import numba

    jit, prange = numba.njit(parallel=True, fastmath=True), numba.prange
    eps, one = np.float32(EPS), np.float32(1)

    @jit
    def add(x, y, out):  # type: ignore[no-untyped-def]
        for i in prange(x.size):
            out[i] = x[i] + y[i]

    @jit
    def copy(x, out):  # type: ignore[no-untyped-def]
        for i in prange(x.size):
            out[i] = x[i]

    @jit
    def total(x, out):  # type: ignore[no-untyped-def]
        found = np.float32(0)
        for i in prange(x.size):
            found += x[i]
        out[0] = found

    @jit
    def softmax(x, out):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            largest = x[i, 0]
            for j in range(x.shape[1]):
                largest = max(largest, x[i, j])
            found = np.float32(0)
            for j in range(x.shape[1]):
                out[i, j] = np.exp(x[i, j] - largest)
                found += out[i, j]
            for j in range(x.shape[1]):
                out[i, j] *= one / found

    @jit
    def layer_norm(x, weight, bias, out):  # type: ignore[no-untyped-def]
        n = np.float32(x.shape[1])
        for i in prange(x.shape[0]):
            mean, square = np.float32(0), np.float32(0)
            for j in range(x.shape[1]):
                mean += x[i, j]
            mean /= n
            for j in range(x.shape[1]):
                square += (x[i, j] - mean) * (x[i, j] - mean)
            scale = one / np.sqrt(square / n + eps)
            for j in range(x.shape[1]):
                out[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]

    @jit
    def rms_norm(x, weight, out):  # type: ignore[no-untyped-def]
        n = np.float32(x.shape[1])
        for i in prange(x.shape[0]):
            square = np.float32(0)
            for j in range(x.shape[1]):
                square += x[i, j] * x[i, j]
            scale = one / np.sqrt(square / n + eps)
            for j in range(x.shape[1]):
                out[i, j] = x[i, j] * scale * weight[j]

    @jit
    def cross_entropy(x, classes, losses, logsumexp):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            largest = x[i, 0]
            for j in range(x.shape[1]):
                largest = max(largest, x[i, j])
            found = np.float32(0)
            for j in range(x.shape[1]):
                found += np.exp(x[i, j] - largest)
            logsumexp[i] = np.log(found) + largest
            losses[i] = logsumexp[i] - x[i, classes[i]]

    @jit
    def cross_entropy_backward(x, classes, dlosses, logsumexp, dx):  # type: ignore[no-untyped-def]
        for i in prange(x.shape[0]):
            for j in range(x.shape[1]):
                dx[i, j] = np.exp(x[i, j] - logsumexp[i]) * dlosses[i]
            dx[i, classes[i]] -= dlosses[i]

    @jit
    def swiglu(gate, up, out):  # type: ignore[no-untyped-def]
        for i in prange(gate.shape[0]):
            for j in range(gate.shape[1]):
                out[i, j] = gate[i, j] / (one + np.exp(-gate[i, j])) * up[i, j]

    @jit
    def rope(x, cosines, sines, out):  # type: ignore[no-untyped-def]
        half = x.shape[2] // 2
        for i in prange(x.shape[0]):
            for head in range(x.shape[1]):
                for j in range(half):
                    a, b, c, s = x[i, head, j], x[i, head, j + half], cosines[i, j], sines[i, j]
                    out[i, head, j] = a * c - b * s
                    out[i, head, j + half] = b * c + a * s

    return {
        "add": add, "copy": copy, "sum": total, "softmax": softmax, "layer_norm": layer_norm, "rms_norm": rms_norm,
        "cross_entropy": cross_entropy, "cross_entropy_backward": cross_entropy_backward, "swiglu": swiglu, "rope": rope,
    }  # fmt: skip
