"""Attention over a cache against float64: ragged and empty sequences, pages in random order, groups of heads, masks, wrong arguments."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels.decoding import DecodingCase, exact_decoding
from launches_for_gpus import captured

from blocknb.kernels import attention_decoding, decoding
from blocknb.kernels.strides import Device

DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}
TOLERANCE = {"fp16": 3e-3, "bf16": 2e-2, "fp32": 2e-5}
#: batch, heads, kv heads, queries, keys, head, page, dtype, splits, options
CASES: dict[str, tuple[Any, ...]] = {
    "grouped heads": (4, 8, 2, 4, 150, 32, 0, "bf16", 2, {}),
    "pages of 16": (4, 4, 2, 3, 160, 40, 16, "fp16", 3, {}),
    "pages of 64, one query": (3, 2, 1, 1, 192, 16, 64, "fp32", 1, {}),
    "everything": (4, 4, 2, 6, 200, 24, 0, "fp32", 3, {"window": 90, "soft_cap": 2.0, "slopes": True, "scale": 0.5}),
}
FURTHER: dict[str, tuple[Any, ...]] = {
    "one head per query": (3, 4, 4, 1, 200, 64, 0, "fp16", 3, {}),
    "one head of keys": (3, 8, 1, 16, 256, 16, 128, "fp32", 2, {}),
    "pages of 48": (3, 2, 1, 1, 144, 16, 48, "fp32", 1, {}),
    "no causal mask": (3, 4, 2, 5, 96, 16, 0, "fp32", 2, {"causal": False}),
    "window": (4, 2, 1, 4, 288, 16, 32, "fp32", 2, {"window": 70}),
    "wide heads": (2, 4, 2, 2, 200, 256, 0, "fp16", 2, {}),
    "window of one key": (3, 2, 2, 3, 100, 16, 0, "fp32", 4, {"window": 1}),
    "many splits": (3, 2, 1, 1, 912, 16, 16, "bf16", 14, {"soft_cap": 5.0}),
    "slopes without a causal mask": (3, 4, 2, 3, 128, 16, 16, "fp32", 2, {"causal": False, "slopes": True}),
    "one page": (5, 4, 2, 2, 16, 16, 16, "fp16", 1, {}),
}
ALL = [*CASES, *(pytest.param(name, marks=pytest.mark.full) for name in FURTHER)]


@pytest.mark.parametrize("name", ALL)
def test_decoding_matches_float64_for_ragged_sequences(name: str) -> None:
    *sizes, dtype, splits, options = (CASES | FURTHER)[name]
    case = DecodingCase.random(*sizes, dtype=DTYPES[dtype], **options)
    out = np.full_like(case.q, np.nan)
    assert attention_decoding(case.q, case.k, case.v, out, splits=splits, **case.options) is out
    within = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(out.astype(np.float64), case.exact(), **within)


def test_all_keys_count_without_lengths() -> None:
    case = DecodingCase.random(2, 2, 1, 2, 64, 16, 0, dtype=np.float32, ragged=False)
    right = exact_decoding(case.q, case.keys, case.values, np.array([64, 64]))
    np.testing.assert_allclose(attention_decoding(case.q, case.k, case.v), right, rtol=2e-5, atol=2e-5)


def test_lengths_beyond_the_cache_are_cut() -> None:
    case = DecodingCase.random(2, 2, 1, 2, 64, 16, 0, dtype=np.float32, ragged=False)
    right = exact_decoding(case.q, case.keys, case.values, np.array([64, 0]))
    found = attention_decoding(case.q, case.k, case.v, lengths=np.array([1000, -5]))
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)


def test_nothing_to_compute_gives_zeros() -> None:
    q, k = np.ones((2, 2, 1, 16), np.float32), np.ones((2, 1, 0, 16), np.float32)
    assert (attention_decoding(q, k, k) == 0).all()
    assert attention_decoding(q[:0], k[:0], k[:0]).shape == (0, 2, 1, 16)


def test_wrong_arguments_are_refused() -> None:
    def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros(shape, dtype)

    q, k, table = array(2, 4, 3, 16), array(2, 2, 64, 16), array(2, 4, dtype=np.int32)
    pages = array(9, 2, 16, 16)
    for message, change in {
        r"q must have the shape \(batch, heads, rows, head\)": {"q": q[0]},
        "v must have the shape of k": {"v": k[:, :, :5]},
        "both need the same batch size": {"k": k[:1], "v": k[:1]},
        "q has 3 heads, which is not a multiple of the 2": {"q": q[:, :3]},
        "a head must have 8 to 256 elements, not 4": {"q": q[..., :4], "k": k[..., :4], "v": k[..., :4]},
        "q has 17 queries per sequence, and decoding takes up to 16; use attention": {"q": array(2, 4, 17, 16)},
        "q is float64": {"q": q.astype(np.float64)},
        "k must be float32, as q is, not float16": {"k": k.astype(np.float16)},
        "the last axis of k must be contiguous": {"k": array(2, 2, 16, 64).swapaxes(2, 3)},
        "out must have the shape": {"out": q[:, :2]},
        "out must be float32, as q is": {"out": q.astype(np.float16)},
        "lengths must hold the number of keys": {"lengths": array(3, dtype=np.int32)},
        "lengths must be contiguous": {"lengths": array(4, dtype=np.int32)[::2]},
        "window must be the number of keys that a query sees, 1 or more, not 0": {"window": 0},
        "window must be the number of keys that a query sees, 1 or more, not 2.5": {"window": 2.5},
        "window must be the number of keys that a query sees, 1 or more, not '4'": {"window": "4"},
        r"alibi_slopes must be contiguous, float32, of shape \(4,\)": {"alibi_slopes": array(2)},
        "soft_cap must be positive": {"soft_cap": 0.0},
        "scale must be positive": {"scale": -1.0},
        "splits must be 1 or more": {"splits": 0},
        "block_table must hold the pages": {"k": pages, "v": pages, "block_table": table[:1]},
        "the last axis of block_table must be contiguous": {
            "k": pages,
            "v": pages,
            "block_table": np.asfortranarray(table),
        },
        "a page has 8 keys, and the least is 16": {"k": pages[:, :, :8], "v": pages[:, :, :8], "block_table": table},
        r"k must have the shape \(pages, kv heads, page size, head\)": {"k": pages[0], "block_table": table},
        "both need the same size of a head": {"k": pages[..., :8], "v": pages[..., :8], "block_table": table},
    }.items():
        with pytest.raises(ValueError, match=message):
            attention_decoding(**({"q": q, "k": k, "v": k} | change))


@pytest.mark.parametrize(
    ("name", "value", "given"),
    [
        ("q", [1.0], "of type list"),
        ("k", None, "None"),
        ("v", 3, "of type int"),
        ("out", [[0.0]], "of type list"),
        ("lengths", [64, 20], "of type list"),
        ("block_table", [[0, 1], [2, 3]], "of type list"),
        ("alibi_slopes", (0.5, 0.25), "of type tuple"),
    ],
)
def test_an_argument_that_is_no_array_is_named(name: str, value: Any, given: str) -> None:
    q, k = np.zeros((2, 2, 1, 16), np.float32), np.zeros((2, 2, 64, 16), np.float32)
    with pytest.raises(TypeError, match=f"{name} must be a NumPy, CuPy or torch array, not {given}"):
        attention_decoding(**({"q": q, "k": k, "v": k} | {name: value}))


# -- launches on GPUs: the chosen tiles and splits, assembled

COMPILED = [
    (128, 1, 16),
    *(pytest.param(*x, marks=pytest.mark.full) for x in ((64, 1, 128), (128, 16, 16), (256, 4, 0), (80, 2, 48))),
]


@pytest.mark.parametrize(("width", "queries", "page"), COMPILED)
@pytest.mark.parametrize("target", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.full)])
def test_pages_are_copied_ahead_without_spills(
    target: str, width: int, queries: int, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "device", lambda array: Device(132, 90, 232448))
    case = DecodingCase.random(2, 8, 2, queries, 1008 if page == 48 else 1024, width, page, dtype=np.float16)
    launches: list[Any] = []
    with captured(launches.append):
        attention_decoding(case.q, case.k, case.v, **case.options)
    assert [launch.kernel.__name__ for launch in launches] == ["decoding_kernel", "combine_kernel"]
    traces = [launch.retarget(target) for launch in launches]
    assert all(trace.resources.spill_bytes == 0 for trace in traces)
    assert target == "sm_80" or 232448 // traces[0].resources.shared_bytes >= 2  # CTAs per SM
    (stage,) = (stage for stage in traces[0].stages if stage.name == "software_pipelining")
    notes = [note.text for note in stage.notes]
    assert len(notes) == 2 and all("16 bytes per copy" in text for text in notes), notes
    assert all(text.endswith("its indices are loaded one iteration earlier") is (page > 0) for text in notes)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "group", "queries", "keys", "width", "window", "splits"),
    [
        (1, 8, 4, 1, 4096, 128, None, 16),  # a program per multiprocessor
        (8, 8, 4, 1, 4096, 64, None, 4),  # two with small tiles
        (64, 8, 4, 1, 1024, 128, None, 1),  # enough sequences
        (1, 8, 4, 1, 64, 128, None, 1),  # one tile of keys
        (1, 8, 4, 1, 131072, 128, 256, 6),  # few keys in the window
        (8, 1, 32, 16, 16384, 128, None, 4),  # eight tiles of queries
    ],
)
def test_keys_are_split_until_the_gpu_is_full(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, width: int, window: int | None, splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(decoding, "device", lambda array: Device(132, 90, 232448))
    found = decoding.DecodingProblem(batch, kv_heads * group, group, queries, keys, width, "float16")
    q = np.empty(1, np.float16)
    assert found.splits(q, found.tile(q), window) == splits
