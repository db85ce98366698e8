"""The tiles part of the document: it is small, reads back correctly, and gives a reason where it is empty."""

from __future__ import annotations

import base64
import gzip
import json
import weakref

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.kernels.matmul import matmul_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.layouts.linear import Layout
from blocknb.notebook import card, document, live
from blocknb.notebook.observe import record_of
from blocknb.profile.addresses import program_at
from blocknb.runtime.summary import start_of


@blocknb.kernel
def gathered(x, index, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = (at < n) & (at % 3 != 1)
    where = (at * 7) % n
    tl.store(y + at, tl.load(x + where, mask=inside) + tl.load(x + tl.load(index + at, mask=inside)), mask=inside)


@blocknb.kernel
def folded(x, y, n, B: tl.constexpr):
    row, column = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    where = (tl.program_id(0) + row * 5) % n * B + column ^ 1
    tl.store(y + row * B + column, tl.load(x + where) + tl.load(x + row * column))


def carded(kernel, grid, *arguments, target=None, **constants):
    return card.card_of(observed(lambda: kernel[grid](*arguments, **constants)), target)


@pytest.fixture(scope="module")
def multiplied():
    a, b, c = (np.zeros((128, 128), np.float16) for _ in range(3))
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 2}
    return carded(matmul_kernel, (16,), a, b, c, 128, 128, 128, 128, 1, 128, 1, 128, 1, **blocks)


@blocknb.kernel
def of_two_axes(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        total = tl.dot(left.load([row, at]), right.load([column, at]).T, total)
    tl.store(c + (row + tl.arange(0, BM))[:, None] * n + (column + tl.arange(0, BN))[None, :], total)


@pytest.fixture(scope="module")
def scattered():
    n = 500
    return carded(gathered, (4,), np.zeros(n, np.float32), np.zeros(n, np.int32), np.zeros(n, np.float32), n, B=128)


def unpacked(found):
    return json.loads(gzip.decompress(base64.b64decode(found["packed"])))


def offsets_of(access, shape):
    """The element offsets of a short form."""
    if "list" in access:
        return np.array(access["list"]).reshape(shape)
    axes = access.get("tables") or [np.arange(n) * s for n, s in zip(shape, access["steps"], strict=True)]
    total = np.full(shape, access["base"])
    for axis, table in enumerate(axes):
        total = total + np.asarray(table).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return total


def mask_of(access, shape):
    if "bits" in access:
        size = int(np.prod(shape))
        return np.unpackbits(np.frombuffer(bytes.fromhex(access["bits"]), np.uint8), bitorder="little")[:size].reshape(
            shape
        )
    on = np.ones(shape, bool) if "box" not in access else np.zeros(shape, bool)
    if "box" in access:
        on[tuple(slice(low, high) for low, high in access["box"])] = True
    return on


@pytest.mark.parametrize("name", ["multiplied", "scattered", "folding"])
def test_the_short_forms_of_accesses_equal_the_interpreters_accesses(name, request):
    made = request.getfixturevalue(name)
    part, found = made.tiles
    content = unpacked(part)
    shapes = {op["op"]: op["shape"] for op in content["ops"]}
    checked = 0
    for number, accesses in content["programs"].items():
        for op, access in found.addresses.of(program_at(int(number), made.main.grid)).items():
            short = accesses[str(op)]
            if access.offsets is None:
                assert short["why"] == access.why
                continue
            size = next(o["bytes"] for o in content["ops"] if o["op"] == op)
            assert (offsets_of(short, shapes[op]) * size == access.offsets).all()
            assert (mask_of(short, shapes[op]) == access.on).all()
            checked += 1
    assert checked > 4
    for op in content["ops"]:
        shape, reg, lane, warp = content["layouts"][op["layout"]]
        assert list(Layout(tuple(shape), tuple(reg), tuple(lane), tuple(warp)).shape) == op["shape"]


@pytest.fixture(scope="module")
def folding():
    return carded(folded, (3,), np.zeros(2048, np.float32), np.zeros(1024, np.float32), 17, B=32)


def test_every_short_form_occurs_in_a_kernel(multiplied, scattered, folding):
    forms = {
        form
        for made in (multiplied, scattered, folding)
        for accesses in unpacked(made.tiles[0])["programs"].values()
        for access in accesses.values()
        for form in access
    }
    assert {"steps", "tables", "list", "bits", "why", "iterations"} <= forms


def test_the_tiles_part_is_small(multiplied, scattered):
    for made in (multiplied, scattered):
        assert len(gzip.decompress(base64.b64decode(made.tiles[0]["packed"]))) < 30_000
        assert len(made.tiles[0]["packed"]) < 12_000 * 4 // 3
        bundle = made.bundle()
        assert bundle[document.MIME]["tiles"] == made.tiles[0]
        assert len(json.dumps(bundle, ensure_ascii=False).encode()) <= card.LIMIT


def test_the_map_shows_the_program_swizzle(multiplied):
    found = unpacked(multiplied.tiles[0])["map"]
    assert (found["array"], found["shape"], found["extent"]) == ("c", [128, 128], [32, 32])
    corners = [(origin // 128 // 32, origin % 128 // 32) for origin in found["origins"]]
    grouped = [(first + row, column) for first in (0, 2) for column in range(4) for row in range(2)]
    assert corners == grouped


@pytest.mark.parametrize("without", [(), ("persistent_grid",), ("program_swizzle",)])
def test_programs_are_numbered_in_launch_order(without):
    """The swizzle groups two columns because the tiles are narrow. Tested in a persistent grid and with one CTA per program."""
    (m, n), (down, across) = (3 * 256, 3 * 8), (3, 3)
    a, b, c = np.zeros((m, 16), np.float16), np.zeros((n, 16), np.float16), np.zeros((m, n), np.float32)
    made = carded(
        of_two_axes, (down, across), a, b, c, m, n, 16, BM=256, BN=8, BK=16, num_warps=4, without=without
    )  # fmt: skip
    content = unpacked(made.tiles[0])
    corners = [(origin // n // 256, origin % n // 8) for origin in content["map"]["origins"]]
    assert content.get("order") == (None if without == ("program_swizzle",) else 2)
    assert corners == [program_at(number, (3, 3, 1), content.get("order"))[:2] for number in range(9)]
    for number, accesses in content["programs"].items():
        base = accesses[str(content["map"]["op"])]["base"]
        assert (base // n // 256, base % n // 8) == corners[int(number)]


def test_a_flat_array_that_is_accessed_in_rows_is_drawn_in_rows():
    @blocknb.kernel
    def rows(x, y, n, B: tl.constexpr):
        at = (tl.program_id(0) * B + tl.arange(0, B))[:, None] * n + tl.arange(0, B)[None, :]
        tl.store(y + at, tl.load(x + at))

    made = carded(rows, (2,), np.zeros(16 * 40, np.float32), np.zeros(16 * 40, np.float32), 40, B=8)
    found = unpacked(made.tiles[0])["map"]
    assert (found["shape"], found["strides"], found["extent"]) == ([16, 40], [40, 1], [8, 8])


def test_figures_of_ops_are_those_of_the_generated_code(multiplied):
    ops = unpacked(multiplied.tiles[0])["ops"]
    named = {(op["name"], op["what"]): op for op in ops}
    assert named["copy_async", "a"]["vector"] == 8
    assert named["dot", "x × y"]["dot"]["instr"] == "m16n8k16"
    assert named["local_load", "x"]["shared"]["how"].startswith("ldmatrix")
    assert all(op["shared"]["ways"] == 1 for op in ops if "shared" in op)
    source = multiplied.main.compiled.trace
    for op in ops:
        assert source.first_line <= op["line"] <= source.first_line + source.source.count("\n")


def test_a_dot_shows_the_shared_memory_wavefronts_of_its_operands():
    a, b, c = (np.zeros((32, 32), np.float32) for _ in range(3))

    @blocknb.kernel
    def exact(a, b, c, B: tl.constexpr):
        at = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))

    made = carded(exact, (1,), a, b, c, B=32)
    (dot,) = [op for op in unpacked(made.tiles[0])["ops"] if op["name"] == "dot"]
    assert dot["dot"]["instr"] == ""
    assert [side["ideal"] for side in dot["dot"]["operands"]] == [1, 1]
    assert all(side["wavefronts"] >= 1 and "layout" not in side for side in dot["dot"]["operands"])


def test_a_live_card_answers_for_any_program_and_iteration(multiplied):
    known = live.LiveCard(multiplied)
    ask = live.REQUESTS["tiles"]
    saved = unpacked(multiplied.tiles[0])["programs"]
    assert ask(known, {"program": 1})["accesses"] == saved["1"]
    one = next(op for op, access in saved["1"].items() if access.get("iterations"))
    later = ask(known, {"program": 1, "iteration": 1, "op": int(one)})["accesses"]
    assert list(later) == [one]
    assert later[one]["base"] != saved["1"][one]["base"]
    with pytest.raises(KeyError, match="program 16 is out of range"):
        ask(known, {"program": 16})


def test_a_card_without_gpu_code_shows_the_reason():
    x = np.zeros((4, 64), np.float32)
    made = carded(softmax_kernel, (4,), x, np.zeros_like(x), 64, 64, 64, target="cpu", BLOCK=64)
    assert "needs GPU code" in made.tiles[0]["why"]
    assert "needs GPU code" in live.REQUESTS["tiles"](live.LiveCard(made), {"program": 0})["error"]


def test_the_tiles_of_a_kernel_without_a_launch_show_the_reason():
    softmax_kernel.trace(x="*fp32", y="*fp32", x_stride="i32", y_stride="i32", n="i32", BLOCK=64, target="sm_80")
    made = card.card_of(record_of(softmax_kernel))
    assert "not launched" in made.tiles[0]["why"]


def test_the_tiles_part_keeps_no_array():
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    made = carded(gathered, (1,), x, np.zeros(64, np.int32), y, 64, B=64)
    assert "packed" in made.tiles[0]
    gone = weakref.ref(y)
    del x, y
    assert gone() is None
    assert live.REQUESTS["tiles"](live.LiveCard(made), {"program": 0})["accesses"]


def test_strided_and_broadcast_arrays_keep_their_strides():
    x = np.zeros((8, 64), np.float32)[::2, ::-1]
    made = carded(gathered, (1,), x[:, ::-1], np.zeros(64, np.int32), np.zeros(64, np.float32), 64, B=64)
    assert unpacked(made.tiles[0])["arrays"]["x"] == {"shape": [4, 64], "strides": [128, 1]}


@blocknb.kernel
def copied(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def tiles_of(made):
    """The content of the Tiles view, its load, and that load's access by program 0."""
    part = json.loads(gzip.decompress(base64.b64decode(made.tiles[0]["packed"])))
    op = next(op for op in part["ops"] if op["name"] == "load")
    return part, op, part["programs"]["0"][str(op["op"])]


def test_a_view_of_an_array_starts_in_the_middle_of_a_sector_and_says_what_keeps_it_narrow():
    x, y = np.zeros(4097, np.float32), np.zeros(4096, np.float32)
    made = carded(copied, (4,), x[1:], y, 4001, target="sm_90a", B=1024)
    part, op, access = tiles_of(made)
    assert part["arrays"]["x"]["start"] == 4 and "start" not in part["arrays"]["y"]
    assert "addresses" not in part  # the launch ran on the CPU
    requests, sectors, ideal = access["traffic"][:3]
    assert (sectors, ideal) == (5 * requests, 4 * requests)
    (stage,) = (s for s in made.views[made.tiles[0]["view"]].trace.stages if s.name == "coalesce")
    note = next(note.text for note in stage.notes if note.text.startswith("load"))
    assert note.endswith("; not wider: " + "; and ".join(op["limits"])) and len(op["limits"]) == 2


def test_an_access_of_16_bytes_has_no_obstacle():
    x, y = np.zeros(4096, np.float32), np.zeros(4096, np.float32)
    _, op, access = tiles_of(carded(copied, (4,), x, y, 4096, target="sm_90a", B=1024))
    assert op["vector"] == 4 and "limits" not in op
    assert access["traffic"][1] == access["traffic"][2]


@pytest.mark.parametrize(("device", "start"), [(0, 36), (-1, None)])
def test_an_array_of_a_gpu_starts_where_its_address_says(device, start):
    assert start_of(object(), 1280 + 36, device) == start
