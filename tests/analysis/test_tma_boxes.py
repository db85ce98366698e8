"""TMA boxes: which accesses are boxes, that each element lies where the box puts it, and why other accesses are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tma_box_helpers import accesses, after, boxes, check_boxes
from tma_box_kernels import (
    attention,
    attention_pointers,
    batched,
    batched_blocks,
    block_pointers,
    described,
    persistent,
    split,
)

import blocknb
import blocknb.language as bl
from blocknb.analysis import affine
from blocknb.analysis.tma_boxes import box_of
from blocknb.language.bulk import UNBOUNDED
from blocknb.runtime.descriptor import TensorDescriptor

HALF = np.float16


def empty(*shape: int, dtype: Any = HALF) -> np.ndarray:
    return np.zeros(shape, dtype)


# -- products through pointers -------------------------------------------------------------------------------------------------


@blocknb.kernel
def product(
    a, b, c, m, n, k, a_row, a_column, b_row, b_column, c_row, c_column,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, GROUP: bl.constexpr, WRAP: bl.constexpr,
):  # fmt: skip
    """Triton's tutorial, with masks instead of wrapped rows unless WRAP."""
    pid = bl.program_id(0)
    width = GROUP * bl.cdiv(n, BN)
    first = pid // width * GROUP
    size = min(bl.cdiv(m, BM) - first, GROUP)
    rows = (first + (pid % width) % size) * BM + bl.arange(0, BM)
    columns = (pid % width) // size * BN + bl.arange(0, BN)
    inner = bl.arange(0, BK)
    at_m, at_n = (rows % m, columns % n) if WRAP else (rows, columns)
    a_tile = a + at_m[:, None] * a_row + inner[None, :] * a_column
    b_tile = b + inner[:, None] * b_row + at_n[None, :] * b_column
    total = bl.zeros((BM, BN), dtype=bl.float32)
    for step in range(bl.cdiv(k, BK)):
        left = k - step * BK
        if WRAP:
            x = bl.load(a_tile, mask=inner[None, :] < left, other=0.0)
            y = bl.load(b_tile, mask=inner[:, None] < left, other=0.0)
        else:
            x = bl.load(a_tile, mask=(rows < m)[:, None] & (inner[None, :] < left), other=0.0)
            y = bl.load(b_tile, mask=(left > inner)[:, None] & (n - 1 >= columns)[None, :])
        total = bl.dot(x, y, total)
        a_tile += BK * a_column
        b_tile += BK * b_row
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    bl.store(c + rows[:, None] * c_row + columns[None, :] * c_column, total, mask=inside)


def operands(m: int, n: int, k: int, order: str = "nn", wrap: bool = False, pad: int = 16) -> dict[str, Any]:
    """Arguments of `product`, whose rows (columns for "t") have padding."""
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    found: dict[str, Any] = {}
    strides: dict[str, int] = {}
    for (name, shape), kind in zip(shapes.items(), order + "n", strict=True):
        lines, line = shape if kind == "n" else shape[::-1]
        whole = -(-line // 16) * 16 + pad
        found[name] = empty(lines, whole)
        strides |= {f"{name}_row": whole if kind == "n" else 1, f"{name}_column": 1 if kind == "n" else whole}
    return found | {"m": m, "n": n, "k": k} | strides | {"BM": 32, "BN": 16, "BK": 16, "GROUP": 2, "WRAP": wrap}


@pytest.mark.sampled(2, each=["order", "m"])
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 48, 32), (70, 33, 50), (1, 1, 1), (40, 80, 16)])
def test_loads_of_a_product_are_boxes_in_every_order(m: int, n: int, k: int, order: str) -> None:
    arguments = operands(m, n, k, order)
    a, b, c = check_boxes(product, arguments, -(-m // 32) * -(-n // 16), 3)
    assert (a.axes, b.axes, c.axes) == (
        (0, 1) if order[0] == "n" else (1, 0),
        (0, 1) if order[1] == "n" else (1, 0),
        (0, 1),
    )
    assert [x.root.name for x in (a, b, c)] == ["a", "b", "c"]
    if min(m, n, k) > 1:  # which would be constants
        assert [str(d) for d in a.dims] == (["m", "k"] if order[0] == "n" else ["k", "m"])


@pytest.mark.parametrize("order", ["nn", "nt", "tn"])
def test_wrapped_rows_in_whole_tiles_are_boxes(order: str) -> None:
    """For other sizes the same kernel has no boxes, see below."""
    a, _, _ = check_boxes(product, operands(128, 64, 50, order, wrap=True), 16, 3)
    assert UNBOUNDED in a.dims and "k" in map(str, a.dims)


# -- descriptors, batches, attention -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(64, 48, 32), (70, 33, 50)])
def test_host_descriptors_are_boxes(m: int, n: int, k: int) -> None:
    wide = empty(m, 128)[:, :k]
    arguments = {
        "a_desc": TensorDescriptor(wide, wide.shape, (128, 1), (32, 16)),
        "b_desc": TensorDescriptor.from_tensor(empty(n, -(-k // 16) * 16), [16, 16]),
        "c_desc": TensorDescriptor.from_tensor(empty(m, 96), [32, 16]),
        "k": k, "BM": 32, "BN": 16, "BK": 16,
    }  # fmt: skip
    a, b, c = check_boxes(described, arguments, (-(-m // 32), -(-n // 16)), 3)
    assert [x.root.name for x in (a, b, c)] == ["a_desc", "b_desc", "c_desc"]
    assert all(x.axes == (0, 1) for x in (a, b, c))


@pytest.mark.parametrize(("m", "n", "k"), [(64, 48, 32), (70, 48, 64)])
def test_descriptors_in_persistent_programs_are_boxes(m: int, n: int, k: int) -> None:
    sizes = {"m": m, "n": n, "k": k, "BM": 32, "BN": 16, "BK": 16, "GROUP": 2, "CTAS": 3}
    arrays = {"a": empty(m, k), "b": empty(n, k), "c": empty(m, n)}
    check_boxes(persistent, arrays | sizes, 3, 3)


@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 32), (40, 24, 48)])
def test_blocks_of_a_batch_are_boxes_of_three_axes(m: int, n: int, k: int) -> None:
    blocks = {"a": (1, 16, 16), "b": (1, 16, 16), "c": (1, 16, 16)}
    arrays = {"a": empty(3, m, k), "b": empty(3, k, n), "c": empty(3, m, n)}
    given = {f"{name}_desc": TensorDescriptor.from_tensor(arrays[name], block) for name, block in blocks.items()}
    found = check_boxes(
        batched_blocks, given | {"k": k, "BM": 16, "BN": 16, "BK": 16}, (-(-m // 16), -(-n // 16), 3), 3
    )
    assert all(box.rank == 3 and box.axes == (1, 2) for box in found)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 32), (40, 17, 50)])
def test_batch_index_adds_an_axis_to_the_box(m: int, n: int, k: int, backwards: bool) -> None:
    arguments: dict[str, Any] = {"m": m, "n": n, "k": k, "BM": 16, "BN": 16, "BK": 16, "BACKWARDS": backwards}
    for name, lines in (("a", m), ("b", k), ("c", m)):
        arguments |= {name: empty(3, lines, 64), f"{name}_batch": lines * 64, f"{name}_row": 64}
    found = check_boxes(batched, arguments, (-(-m // 16), -(-n // 16), 3), 3)
    assert all(box.rank == 3 and box.axes == (1, 2) for box in found)
    assert [str(box.strides[0]) for box in found] == ["a_batch", "b_batch", "c_batch"]
    assert all(box.dims[0] == UNBOUNDED for box in found)


@pytest.mark.parametrize("size", [int, np.int64])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 32), (40, 17, 50)])
def test_block_pointers_with_sizes_of_any_width_are_boxes(m: int, n: int, k: int, size: Any) -> None:
    arrays = {"a": empty(m, 64), "b": empty(k, 64), "c": empty(m, 64)}
    sizes = {"m": size(m), "n": size(n), "k": size(k), "a_row": 64, "b_row": 64, "c_row": size(64)}
    found = check_boxes(block_pointers, arrays | sizes | {"BM": 16, "BN": 16, "BK": 16}, (-(-m // 16), -(-n // 16)), 3)
    assert all(box.rank == 2 for box in found)


@pytest.mark.parametrize("length", [16, 32, 64])
def test_split_k_accesses_are_boxes(length: int) -> None:
    arrays = {"a": empty(40, 64), "b": empty(50, 64), "parts": empty(4, 48, 64, dtype=np.float32)}
    sizes = {"m": 40, "n": 24, "k": 50, "length": length, "a_row": 64, "b_row": 64, "BM": 16, "BN": 16, "BK": 16}
    found = check_boxes(split, arrays | sizes, (3, 2, -(-50 // length)), 3)
    assert str(found[0].start[1]) == "start" and found[2].rank == 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [64, 48])
def test_attention_through_descriptors_uses_boxes(tokens: int, causal: bool) -> None:
    arrays = {name: empty(2 * 3 * tokens, 32) for name in ("q", "k", "v", "out")}
    sizes = {"batches": 2, "heads": 3, "tokens": tokens, "BM": 32, "BN": 16, "D": 32, "CAUSAL": causal}
    found = check_boxes(attention, arrays | sizes, (-(-tokens // 32), 6), 6 if causal else 4)
    assert all(box.strides == (32,) and box.rank == 2 for box in found)


@pytest.mark.parametrize("tokens", [64, 40])
def test_attention_through_pointers_uses_boxes(tokens: int) -> None:
    arrays = {name: empty(2, tokens, 3, 32) for name in ("q", "k", "v", "out")}
    strides = {"stride_z": tokens * 96, "stride_h": 32, "stride_m": 96, "heads": 3, "tokens": tokens}
    found = check_boxes(attention_pointers, arrays | strides | {"BM": 32, "BN": 16, "D": 32}, (-(-tokens // 32), 6), 4)
    assert [box.axes for box in found] == [(2, 3), (3, 2), (2, 3), (2, 3)]
    assert [str(s) for s in found[0].strides] == ["stride_z", "stride_h", "stride_m"]


# -- what is no box --------------------------------------------------------------------------------------------------------------


def refusals(kernel: Any, arguments: dict[str, Any]) -> list[str]:
    """Why the accesses of a kernel are no boxes, at the memory level."""
    return [box for box in boxes(after(kernel, arguments, "lower_conversions")) if isinstance(box, str)]


def test_wrapped_rows_in_partial_tiles_are_no_box() -> None:
    assert refusals(product, operands(70, 33, 50, wrap=True)) == [
        "its rows wrap around (% m, which is not known to be a multiple of 32)",
        "its columns wrap around (% n, which is not known to be a multiple of 16)",
    ]


@blocknb.kernel
def one_load(x, out, n, s, index, WHAT: bl.constexpr, B: bl.constexpr, C: bl.constexpr):
    """Loads a tile of rows of x in ways that are no box, or almost no box."""
    pid = bl.program_id(0)
    rows, columns = pid * B + bl.arange(0, B), bl.arange(0, C)
    mask, other = rows[:, None] < n, None
    if WHAT == "gathered":
        rows = bl.load(index + bl.arange(0, B))
    elif WHAT == "before":
        rows -= 1
        mask = rows[:, None] < n
    elif WHAT == "negative":
        rows = pid // -2 * B + bl.arange(0, B)
        mask = rows[:, None] < n
    elif WHAT == "backwards":
        rows = -rows
        mask = rows[:, None] >= 0
    elif WHAT == "diagonal":
        mask = rows[:, None] >= columns[None, :]
    elif WHAT == "loaded bound":
        mask = rows[:, None] < bl.load(index)
    elif WHAT == "two bounds":
        mask = (rows < n)[:, None] & (rows < s)[:, None]
    elif WHAT == "every other":
        mask = 2 * rows[:, None] < n
    elif WHAT == "filled":
        other = 1.0
    elif WHAT == "minus zero":
        other = -0.0
    elif WHAT == "a number of rows":
        mask = rows[:, None] == n
    elif WHAT == "a switch":
        mask = (rows < n)[:, None] & (bl.load(index) > 0)
    elif WHAT == "strided twice":
        columns *= 2
    elif WHAT == "folded":
        rows = rows // 2
    elif WHAT == "found":
        x = bl.load(x.to(bl.pointer_type(bl.uint64))).to(bl.pointer_type(bl.float16))
    elif WHAT == "further":
        x += bl.load(index) * s
    elif WHAT == "odd further":
        x += bl.load(index) * n
    elif WHAT == "waiting":
        at = 0
        while at < bl.load(index):
            at += 1
        x += at * s
        mask = None
    tile = x + rows[:, None] * s + columns[None, :]
    if WHAT == "row":
        y = bl.load(x + columns, mask=columns < n)[None, :]
    elif WHAT == "volatile":
        y = bl.load(tile, mask=mask, volatile=True)
    else:
        y = bl.load(tile, mask=mask, other=other)
    if WHAT == "row":
        bl.store(out + columns[None, :], y)
    else:
        bl.store(out + bl.arange(0, B)[:, None] * C + bl.arange(0, C)[None, :], y)


REASONS = {
    "gathered": "the addresses of its rows are loaded indices",
    "before": "its rows may start before the array, and its mask has no lower bound",
    "negative": "its rows may start before the array, and its mask has no lower bound",
    "backwards": "its rows have a negative stride",
    "diagonal": "its mask is not the bounds of an array",
    "loaded bound": "the bound of its rows is not known at launch",
    "two bounds": "its mask bounds an axis twice",
    "every other": "its mask is not the bounds of an array",
    "filled": "its `other` is not zero, and TMA fills with zeros",
    "minus zero": "its `other` is not zero, and TMA fills with zeros",
    "a number of rows": "its mask is not the bounds of an array",
    "a switch": "its mask is not the bounds of an array",
    "strided twice": "neither its rows nor its columns are contiguous",
    "folded": "its rows are not a fixed distance apart",
    "found": "its array is not an argument of the kernel",
    "further": "it may start before the array, and its mask has no lower bound",
    "odd further": "its offset in the array is not known to be a multiple of 16 bytes (n)",
    "waiting": "its position depends on a loop without an index",
    "row": "its tile does not have two axes",
    "volatile": "it is volatile",
}


def one(what: str, dtype: Any = HALF, **more: Any) -> dict[str, Any]:
    arrays = {"x": empty(64, 32, dtype=dtype), "out": empty(16, 32, dtype=dtype), "index": empty(64, dtype=np.int32)}
    return arrays | {"n": 50, "s": 32, "WHAT": what, "B": 16, "C": 16} | more


@pytest.mark.parametrize("what", REASONS)
def test_access_that_is_no_box_gives_a_reason(what: str) -> None:
    found = boxes(after(one_load, one(what)))
    assert REASONS[what] in found, found


def test_plain_tile_of_rows_is_a_box() -> None:
    (box, _) = check_boxes(one_load, one(""), 4, 2)
    assert [str(x) for x in (*box.dims, *box.strides)] == ["n", str(UNBOUNDED), "s"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"s": 44}, "its rows are not known to be a multiple of 16 bytes apart"),
        ({"dtype": np.float64}, "its elements are fp64"),
        ({"C": 4}, "its rows have 8 bytes, which is not a multiple of 16"),
        ({"x": empty(64, 33)[1:, 1:]}, "its array may not start at a multiple of 16 bytes"),
    ],
)
def test_accesses_that_a_tensor_map_cannot_describe_are_no_boxes(given: dict[str, Any], why: str) -> None:
    found = boxes(after(one_load, one("", **given)))
    assert found[0] == why


def test_access_created_by_a_pass_is_a_box_too() -> None:
    """For example, the access of a whole tile of which a function stores subtiles."""
    func = after(one_load, one(""))
    facts = affine.analyze(func)
    for op in accesses(func):
        assert box_of(facts, op.replace(attrs={**op.attrs, "made": "up"}), op) == box_of(facts, op)
