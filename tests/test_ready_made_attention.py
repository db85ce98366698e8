"""The attention wrappers and their gradients against float64: partial tiles, grouped heads, masks, non-finite values."""

from __future__ import annotations

import importlib
import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import seeds
from kernels.attention import exact, exact_gradients
from kernels.decoding import exact_decoding
from launches_for_gpus import captured

from blocknb.kernels import attention, attention_backward, heads
from blocknb.runtime import launch_context
from blocknb.runtime.kernel import Launch

gradients_module = importlib.import_module("blocknb.kernels.attention_gradients")
attention_module = importlib.import_module("blocknb.kernels.attention")
DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}
TOLERANCE = {"fp16": 3e-3, "bf16": 2e-2, "fp32": 2e-5}
#: batch, heads, heads of k and v, queries, keys, head, shift (None: not causal)
SHAPES = [
    (1, 1, 1, 1, 1, 8, None),
    (2, 4, 2, 100, 130, 64, None),
    (1, 2, 2, 100, 100, 64, 0),
    (1, 4, 1, 1, 77, 40, 76),
    (1, 2, 1, 70, 33, 128, -5),
    (1, 1, 1, 130, 65, 256, 3),
    (2, 8, 4, 70, 130, 16, 5),  # the blocks of 4 heads of k and v take turns
]


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return seeds.rng().standard_normal(shape).astype(dtype)


def poison(like: np.ndarray) -> np.ndarray:
    return np.full_like(like, np.nan)


def inputs(batch: int, count: int, shared: int, queries: int, keys: int, width: int, dtype: Any) -> list[np.ndarray]:
    """q, k and v; their memory layout is (batch, rows, heads, head)."""
    q = random(batch, count, queries, width, dtype=dtype)
    return [q, *(random(batch, keys, shared, width, dtype=dtype).swapaxes(1, 2) for _ in range(2))]


def options(shift: int | None) -> dict[str, Any]:
    return {} if shift is None else {"causal": True, "shift": shift}


def in_turn(first: int) -> list:
    """Each shape in each dtype; a quick run has one dtype per shape, in turn."""
    quick = lambda i, j: (first + i + j) % len(DTYPES) == 0  # noqa: E731
    return [
        pytest.param(
            shape, dtype, marks=() if quick(i, j) else pytest.mark.full, id=f"{'x'.join(map(str, shape))}-{dtype}"
        )
        for i, shape in enumerate(SHAPES)
        for j, dtype in enumerate(DTYPES)
    ]


@pytest.mark.parametrize(("shape", "dtype"), in_turn(0))
def test_attention_and_its_gradients_match_float64(shape: tuple, dtype: str) -> None:
    *sizes, shift = shape
    q, k, v = inputs(*sizes, DTYPES[dtype])
    out, logsumexp = poison(q), np.full(q.shape[:3], np.nan, np.float32)
    assert attention(q, k, v, out, logsumexp=logsumexp, **options(shift)) is out
    right, right_logsums, _ = exact(q, k, v, shift)
    within = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(out.astype(np.float64), right, **within)
    np.testing.assert_allclose(logsumexp, right_logsums, rtol=1e-5, atol=1e-5)
    dout, found = random(*q.shape, dtype=q.dtype), [poison(x) for x in (q, k, v)]
    attention_backward(q, k, v, out, logsumexp, dout, *found, **options(shift))
    for got, gradient in zip(found, exact_gradients(q, k, v, dout, shift), strict=True):
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(got.astype(np.float64) / largest, gradient / largest, atol=TOLERANCE[dtype])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), in_turn(1))
def test_gradients_accumulated_by_atomics_match_float64(
    shape: tuple, dtype: str, boxes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    *sizes, shift = shape
    q, k, v = inputs(*sizes, DTYPES[dtype])
    dout, found = random(*q.shape, dtype=q.dtype), [poison(x) for x in (q, k, v)]
    logsumexp = np.empty(q.shape[:3], np.float32)
    out = attention(q, k, v, logsumexp=logsumexp, **options(shift))
    monkeypatch.setattr(gradients_module, "ahead", lambda *_: sizes[0] == 1)
    monkeypatch.setattr(gradients_module, "BOXES", {(2**i, x) for i in range(9) for x in (False, True) if boxes})
    tile = {"ROWS": 64, "COLUMNS": 32, "num_warps": 4, "num_stages": 1}
    attention_backward(q, k, v, out, logsumexp, dout, *found, tile=tile, **options(shift))
    for got, gradient in zip(found, exact_gradients(q, k, v, dout, shift), strict=True):
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(got.astype(np.float64) / largest, gradient / largest, atol=TOLERANCE[dtype])


WINDOW, CAP, SLOPES = (
    {"window": 40},
    {"soft_cap": 2.0},
    {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)},
)


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "given"),
    [
        (100, 130, True, WINDOW | CAP | SLOPES),
        pytest.param(130, 130, True, WINDOW, marks=pytest.mark.full),
        pytest.param(1, 130, False, WINDOW, marks=pytest.mark.full),
        pytest.param(70, 90, True, CAP, marks=pytest.mark.full),
        pytest.param(70, 90, True, SLOPES, marks=pytest.mark.full),
        pytest.param(70, 90, False, CAP | SLOPES, marks=pytest.mark.full),
        pytest.param(150, 150, True, {"window": 1}, marks=pytest.mark.full),
    ],
)
def test_windows_soft_caps_and_slopes_match_float64(
    queries: int, keys: int, causal: bool, given: dict[str, Any]
) -> None:
    q, k, v = inputs(2, 4, 2, queries, keys, 32, np.float32)
    out = attention(q, k, v, poison(q), causal=causal, shift=keys - queries, **given)
    right = exact_decoding(q, k, v, [keys, keys], causal, **given)
    np.testing.assert_allclose(out, right, rtol=2e-5, atol=2e-5)


def test_keys_beyond_the_last_one_contribute_nothing() -> None:
    q, k, v = (100 * random(1, 1, n, 16) for n in (40, 33, 33))
    k = np.abs(k) * -np.sign(q[0, 0, 0])  # scores so low that a score of zero, as of no key, has an infinite power
    q[:] = q[:, :, :1]
    logsumexp = np.empty((1, 1, 40), np.float32)
    out = attention(q, k, v, logsumexp=logsumexp)
    assert logsumexp.max() < -1000
    tile = {"ROWS": 32, "COLUMNS": 64, "num_warps": 4, "num_stages": 1}
    found = attention_backward(q, k, v, out, logsumexp, out, tile=tile)
    assert all(np.isfinite(x).all() for x in found)


def test_missing_output_arrays_are_allocated() -> None:
    q, k, v = inputs(1, 2, 1, 20, 30, 32, np.float16)
    out = attention(q, k, v, scale=0.5)
    right, logsumexp, _ = exact(q * np.float16(0.5 * math.sqrt(32)), k, v)
    np.testing.assert_allclose(out, right, rtol=5e-3, atol=5e-3)
    found = attention_backward(q, k, v, out, logsumexp.astype(np.float32), out, scale=0.5)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in (q, k, v)]
    assert all(np.isfinite(x).all() for x in found)


def test_queries_without_keys_give_zeros_and_no_gradients() -> None:
    q, k, v = inputs(1, 1, 1, 9, 6, 16, np.float32)
    out, logsumexp = poison(q), np.empty((1, 1, 9), np.float32)
    attention(q, k, v, out, causal=True, shift=-4, logsumexp=logsumexp)
    assert (
        (out[:, :, :4] == 0).all() and (logsumexp[:, :, :4] == -np.inf).all() and np.isfinite(logsumexp[:, :, 4:]).all()
    )
    dq, dk, dv = attention_backward(q, k, v, out, logsumexp, random(*q.shape), causal=True, shift=-4)
    assert (dq[:, :, :4] == 0).all() and (dk[:, :, 5:] == 0).all() and (dv[:, :, 5:] == 0).all() and dv[:, :, 4].any()
    none = k[:, :, :0]
    assert (attention(q, none, none, out, logsumexp=logsumexp) == 0).all() and (logsumexp == -np.inf).all()
    dq, dk, _ = attention_backward(q, none, none, out, logsumexp, q)
    assert (dq == 0).all() and dk.shape == none.shape
    assert attention(q[:, :, :0], k, v).shape == (1, 1, 0, 16)


def test_non_finite_values_reach_only_the_queries_that_attend_to_them() -> None:
    q, k, v = inputs(1, 1, 1, 200, 200, 32, np.float32)
    v[0, 0, 150, 3], k[0, 0, 70, 0] = np.inf, np.nan
    out = attention(q, k, v, causal=True)
    right, _, _ = exact(q[:, :, :70], k[:, :, :70], v[:, :, :70], 0)
    np.testing.assert_allclose(
        out[:, :, :64], right[:, :, :64], rtol=2e-5, atol=2e-5
    )  # before the block that contains it
    assert np.isnan(out[0, 0, 70:]).all()
    k[0, 0, 70, 0] = 0
    out = attention(q, k, v, causal=True)
    assert (out[0, 0, 150:, 3] == np.inf).all() and np.isfinite(out[0, 0, :128]).all()
    q[0, 0, 5, 0], k[0, 0, :, 0] = np.inf, 1
    assert np.isnan(attention(q, k, v)[0, 0, 5]).all()


def test_mismatched_arrays_are_refused() -> None:
    q, k, v = inputs(1, 4, 2, 10, 12, 16, np.float32)
    for message, call in {
        r"q must have the shape \(batch, heads, rows, head\)": lambda: attention(q[0], k, v),
        "v must have the shape of k": lambda: attention(q, k, v[:, :, :5]),
        "both need the same batch size": lambda: attention(q, k[..., :8], v[..., :8]),
        "q has 3 heads, which is not a multiple of the 2": lambda: attention(q[:, :3], k, v),
        "a head must have 8 to 256 elements, not 257": lambda: attention(*(random(1, 1, 2, 257) for _ in range(3))),
        "q is float64": lambda: attention(q.astype(float), k, v),
        "k must be float32, as q is, not float16": lambda: attention(q, k.astype(np.float16), v),
        "the last axis of q must be contiguous": lambda: attention(random(1, 4, 16, 10).swapaxes(2, 3), k, v),
        "out must have the shape": lambda: attention(q, k, v, q[:, :2]),
        "logsumexp must be contiguous, float32": lambda: attention(q, k, v, logsumexp=np.zeros((1, 4, 10))),
        "scale must be positive": lambda: attention(q, k, v, scale=-1.0),
        "window must be the number of keys": lambda: attention(q, k, v, window=0),
        "alibi_slopes must be contiguous": lambda: attention(q, k, v, alibi_slopes=np.ones(2, np.float32)),
        "soft_cap must be positive": lambda: attention(q, k, v, soft_cap=-1.0),
        "a tile has 40 queries per iteration": lambda: attention_backward(
            q, k, v, q, np.zeros((1, 4, 10), np.float32), q, tile={"ROWS": 40, "COLUMNS": 64}
        ),
        'input_precision must be "tf32" or "ieee"': lambda: attention(q, k, v, input_precision="fp32"),
        "dk must have the shape": lambda: attention_backward(q, k, v, q, np.zeros((1, 4, 10), np.float32), q, dk=q),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


# -- launches on GPUs: the chosen tiles, assembled


def launches(
    width: int, causal: bool, dtype: Any, arch: int, monkeypatch: pytest.MonkeyPatch, deterministic: bool = False,
    precision: str = "tf32", capture: Any = captured,
) -> list[Launch]:  # fmt: skip
    """The forward and backward launches for a GPU of that capability."""
    monkeypatch.setattr(importlib.import_module("blocknb.kernels.heads"), "on_host", lambda array: False)
    monkeypatch.setattr(heads, "capability", lambda array: arch)
    q, k, v = inputs(1, 2, 2, 300, 300, width, dtype)
    found: list[Launch] = []
    logsumexp = np.zeros((1, 2, 300), np.float32)
    with capture(found.append):
        attention(q, k, v, logsumexp=logsumexp, causal=causal, input_precision=precision)
        attention_backward(
            q, k, v, q, logsumexp, q, causal=causal, deterministic=deterministic, input_precision=precision
        )
    return found


SOME = [
    ("sm_90a", 64, True, "fp16"),
    ("sm_90a", 128, False, "bf16"),
    ("sm_90a", 72, True, "fp16"),
    ("sm_80", 128, True, "fp16"),
    ("sm_75", 64, True, "fp16"),
]
ALL = [
    (t, w, c, d)
    for t in ("sm_90a", "sm_80", "sm_75")
    for w in (64, 128, 256)
    for c in (False, True)
    for d in ("fp16", "bf16")
]
MORE = [pytest.param(*x, marks=pytest.mark.full) for x in ALL if x not in SOME and (x[0], x[3]) != ("sm_75", "bf16")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("target", "width", "causal", "dtype"), [*SOME, *MORE])
def test_attention_code_has_no_spills_and_no_serialised_products(
    target: str, width: int, causal: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = int("".join(filter(str.isdigit, target)))
    found = launches(width, causal, DTYPES[dtype], arch, monkeypatch, deterministic=True)
    names = [launch.kernel.__name__ for launch in found]
    assert names == ["attention_kernel", "numbers_kernel", "gradients_kernel", "query_gradients_kernel"]
    found += launches(width, causal, DTYPES[dtype], arch, monkeypatch)[1:]
    adding = (1 << (width - 1).bit_length(), causal) in gradients_module.FASTER and dtype != "fp32"
    assert found[-1].kernel.__name__ == ("summed_kernel" if arch == 90 and adding else "query_gradients_kernel")
    for launch in found:
        used = launch.retarget(target, launch.compiled.options.get("without", ())).resources  # as it is launched
        assert used.spill_bytes == 0 and not used.warnings, f"{launch.kernel.__name__}: {used}"


def test_the_smaller_tile_of_grouped_heads_has_no_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("blocknb.kernels.heads"), "on_host", lambda array: False)
    monkeypatch.setattr(heads, "capability", lambda array: 90)
    q, k, v = inputs(1, 8, 2, 300, 300, 64, DTYPES["bf16"])
    found: list[Launch] = []
    with captured(found.append):
        attention_backward(q, k, v, q, np.zeros((1, 8, 300), np.float32), q, causal=True)
    launch = next(each for each in found if each.kernel.__name__ == "gradients_kernel")
    assert launch.compiled.options["num_warps"] == gradients_module.GROUPED.hopper[64][2]
    used = launch.retarget("sm_90a", launch.compiled.options.get("without", ())).resources
    assert used.spill_bytes == 0 and not used.warnings and used.registers <= 255, used


EXACT = [("sm_90a", 64, True), ("sm_90a", 128, False), ("sm_75", 128, True)]
MORE_EXACT = [
    pytest.param(t, w, c, marks=pytest.mark.full) for t, w, c, d in ALL if d == "fp16" and (t, w, c) not in EXACT
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("target", "width", "causal"), [*EXACT, *MORE_EXACT])
def test_ieee_products_use_no_tensor_cores_and_cause_no_spills(
    target: str, width: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = int("".join(filter(str.isdigit, target)))
    for launch in launches(width, causal, np.float32, arch, monkeypatch, precision="ieee"):
        trace = launch.retarget(target, launch.compiled.options.get("without", ()))
        products = re.findall(r"\bw?g?mma\.\S+", trace.ptx or "mma.")
        assert not products and trace.resources.spill_bytes == 0, f"{launch.kernel.__name__}: {trace.resources}"
    if arch == 90:
        rounded = launches(width, causal, np.float32, arch, monkeypatch)[0].retarget(target).ptx
        assert re.findall(r"\bw?g?mma\.\S+tf32", rounded)


def test_16_bit_launches_are_the_same_for_both_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        launches(64, True, np.float16, 90, monkeypatch, precision=x, capture=launch_context.captured)
        for x in ("tf32", "ieee")
    )
    assert [x.compiled is y.compiled for x, y in zip(one, other, strict=True)] == [True] * len(one)


@pytest.mark.sampled(2, each=["tile", "causal"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [(128, 128, 8, 2), (256, 64, 16, 4)])
def test_registers_of_all_roles_fit_a_multiprocessor(
    tile: tuple[int, ...], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_module, "TILES", heads.HeadTiles({64: tile}, {}))
    launch = launches(64, causal, np.float16, 90, monkeypatch)[0]
    trace = launch.retarget("sm_90a")
    (roles,) = (op for op in trace.stages[-1].after.ops() if op.name == "roles")
    shares = zip(roles.attrs["warps"], roles.attrs["registers"], strict=True)
    assert sum(32 * warps * registers for warps, registers in shares) <= 1 << 16
    assert trace.resources.spill_bytes == 0 and not trace.resources.warnings


@pytest.mark.parametrize(("dtype", "queries", "tile"), [
    (np.float16, 4096, (256, 64, 16, 4)), (np.float16, 1024, (128, 128, 8, 3)), (np.float32, 4096, (64, 64, 8, 3)),
])  # fmt: skip
def test_long_16_bit_sequences_use_more_rows_per_program(
    dtype: Any, queries: int, tile: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "on_host", lambda array: False)
    monkeypatch.setattr(heads, "capability", lambda array: 90)
    assert tuple(attention_module.TILES.choose(np.empty((1, 32, queries, 64), dtype), 64).values()) == tile


@pytest.mark.parametrize("width", [128, 40])  # rows of 40 numbers begin at multiples of 16 bytes, not of 16 numbers
def test_hopper_copies_each_tile_once_and_keeps_weights_in_registers(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launch in launches(width, True, np.float16, 90, monkeypatch, deterministic=True):
        name = launch.kernel.__name__
        if name == "numbers_kernel":
            continue
        ops = list(launch.retarget("sm_90a").stages[-1].after.ops())
        buffers = {op.result for op in ops if op.name == "alloc" and op.attrs.get("align")}
        stages = {op.result: op.args[0] for op in ops if op.name == "stage"}
        copied = {stages[op.args[0]] for op in ops if op.name == "copy_bulk"}
        read = {stages[x] for op in ops if op.name == "dot" for x in op.args[:2] if x in stages}
        assert read == copied <= buffers
        dots = [op for op in ops if op.name == "dot"]
        kept = sum(op.attrs["registers"] for op in dots) == len(dots)  # the tiles that all iterations multiply, too
        assert name == "attention_kernel" or len(read) == (2 if kept else 4)
        assert any(op.attrs["registers"] for op in dots)


def test_dq_accumulation_needs_one_fence_and_two_barriers_per_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_module, "FASTER", {(64, False), (64, True)})
    launch = launches(64, False, np.float16, 90, monkeypatch)[2]
    trace = launch.retarget("sm_90a")
    func = trace.stages[-1].after
    bodies = [op.blocks[0].ops for op in func.ops() if op.name == "for"]
    (iteration,) = (body for body in bodies if sum(op.name == "dot" for op in body) > 1)
    names = [op.name for op in iteration]
    assert names.count("fence") == 1 and names.count("barrier") == 2 and names.count("dot") == 5
    added = names.index("atomic")
    assert not any(
        name in ("local_store", "local_load", "barrier") for name in names[added - 12 : added]
    )  # from registers
    assert len(re.findall(r"red\.\S*\.v2\.f32", trace.ptx)) == 8
